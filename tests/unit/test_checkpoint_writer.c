/* What the writer writes, the reader reads; and what goes wrong on the way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "support/safetensors_write.h"

/* Every kind of shape: a scalar, an empty tensor in front, between and at the end, odd sizes. */
static const struct nib_writer_tensor list[] = {
    { "none.first", NIB_ST_F32, 2, { 0, 4 } },
    { "w", NIB_ST_BF16, 2, { 3, 5 } },
    { "scale \"q\" \\ \xc3\xa9", NIB_ST_F8_E4M3, 1, { 7 } },
    { "none.mid", NIB_ST_U8, 1, { 0 } },
    { "g", NIB_ST_F32, 0, { 0 } },
    { "t", NIB_ST_I64, 4, { 1, 2, 2, 1 } },
    { "none.last", NIB_ST_I64, 1, { 0 } },
};
enum { N = sizeof list / sizeof list[0] };

/* Byte k of tensor i. */
static uint8_t byte_of(int64_t i, uint64_t k)
{
    return test_data_byte((size_t)i * 1000 + (size_t)k);
}

static enum nib_status write_all(struct nib_writer *w, size_t piece, struct nib_error *err)
{
    for (const struct nib_writer_tensor *t; (t = nib_writer_next(w)) != NULL;) {
        int64_t i = 0;
        uint64_t bytes;
        uint8_t data[256];
        while (strcmp(list[i].name, t->name) != 0)
            i++;
        assert_true(nib_st_tensor_bytes(t->dtype, t->n_dims, t->shape, &bytes));
        for (uint64_t k = 0; k < bytes; k++)
            data[k] = byte_of(i, k);
        for (uint64_t k = 0; k < bytes; k += piece) {
            enum nib_status s = nib_writer_append(w, data + k, bytes - k < piece ? (size_t)(bytes - k) : piece, err);
            if (s != NIB_OK)
                return s;
        }
    }
    return NIB_OK;
}

static int count_files(const struct test_dir *d)
{
    int n = 0;
    DIR *dir = opendir(d->path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        n += e->d_name[0] != '.';
    (void)closedir(dir);
    return n;
}

static void check_read(const struct test_dir *d)
{
    struct nib_checkpoint *c;
    struct nib_error err;
    if (nib_checkpoint_open(d->path, &c, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib_checkpoint_n_tensors(c), N);
    for (int64_t i = 0; i < N; i++) {
        const struct nib_tensor_entry *e = nib_checkpoint_find(c, list[i].name);
        assert_non_null(e);
        assert_int_equal(e->dtype, list[i].dtype);
        assert_int_equal(e->n_dims, list[i].n_dims);
        for (int32_t k = 0; k < e->n_dims; k++)
            assert_int_equal(e->shape[k], list[i].shape[k]);
        for (uint64_t k = 0; k < e->bytes; k++)
            assert_int_equal(((const uint8_t *)e->data)[k], byte_of(i, k));
    }
    nib_checkpoint_close(c);
}

static void reads_back(void **state)
{
    (void)state;
    /* 0: one file; 30: the first real tensor fills a shard exactly; 1: a shard each; 1000: all fit. */
    static const struct {
        uint64_t shard_bytes;
        size_t piece;
        int n_files;
    } cases[] = { { 0, 1000, 1 }, { 0, 1, 1 }, { 1000, 3, 1 }, { 30, 1000, 4 }, { 1, 2, 5 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct test_dir d;
        struct nib_writer *w;
        struct nib_error err;
        test_dir_open(&d);
        assert_int_equal(nib_writer_open(d.path, list, N, cases[i].shard_bytes, &w, &err), NIB_OK);
        assert_string_equal(nib_writer_next(w)->name, "w");
        assert_int_equal(write_all(w, cases[i].piece, &err), NIB_OK);
        assert_null(nib_writer_next(w));
        /* Nothing has its name yet, so an interrupted run leaves no checkpoint. */
        struct nib_checkpoint *c;
        assert_int_equal(nib_checkpoint_open(d.path, &c, NULL), NIB_E_IO);
        assert_int_equal(nib_writer_finish(w, &err), NIB_OK);
        nib_writer_close(w);
        assert_int_equal(count_files(&d), cases[i].n_files);
        check_read(&d);
        test_dir_close(&d);
    }
}

static void writes_no_tensors(void **state)
{
    (void)state;
    struct test_dir d;
    struct nib_writer *w;
    struct nib_checkpoint *c;
    test_dir_open(&d);
    assert_int_equal(nib_writer_open(d.path, list, 0, 0, &w, NULL), NIB_OK);
    assert_int_equal(nib_writer_finish(w, NULL), NIB_OK);
    nib_writer_close(w);
    assert_int_equal(nib_checkpoint_open(d.path, &c, NULL), NIB_OK);
    assert_int_equal(nib_checkpoint_n_tensors(c), 0);
    nib_checkpoint_close(c);
    test_dir_close(&d);
}

static void refuses_wrong_lists(void **state)
{
    (void)state;
    static const struct {
        struct nib_writer_tensor t[2];
        int64_t n;
        const char *part;
    } cases[] = {
        { { { "", NIB_ST_U8, 0, { 0 } } }, 1, "not allowed" },
        { { { "__metadata__", NIB_ST_U8, 0, { 0 } } }, 1, "not allowed" },
        { { { "a", NIB_ST_U8, 0, { 0 } }, { "a", NIB_ST_F32, 0, { 0 } } }, 2, "'a' is listed twice" },
        { { { "a", NIB_ST_U8, 1, { -1 } } }, 1, "'a'" },
        { { { "a", NIB_ST_U8, 2, { -1, 0 } } }, 1, "'a'" },
        { { { "a", NIB_ST_U8, 5, { 1 } } }, 1, "'a'" },
        { { { "a", NIB_ST_F32, 2, { INT64_MAX, 4 } } }, 1, "'a'" },
        { { { "a", NIB_ST_U8, 1, { INT64_MAX } }, { "b", NIB_ST_U8, 1, { INT64_MAX } } }, 2, "'b'" },
        { { { "a\xff", NIB_ST_U8, 0, { 0 } } }, 1, "UTF-8" },
    };
    struct test_dir d;
    test_dir_open(&d);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct nib_writer *w;
        struct nib_error err = { NIB_OK, "" };
        assert_int_equal(nib_writer_open(d.path, cases[i].t, cases[i].n, 0, &w, &err), NIB_E_ARGUMENT);
        assert_null(w);
        assert_non_null(strstr(err.text, cases[i].part));
    }
    assert_int_equal(count_files(&d), 0);
    test_dir_close(&d);
}

static void refuses_wrong_order_of_calls(void **state)
{
    (void)state;
    struct test_dir d;
    struct nib_writer *w, *other;
    struct nib_error err;
    uint8_t data[64] = { 0 };
    test_dir_open(&d);
    assert_int_equal(nib_writer_open(d.path, list, N, 20, &w, &err), NIB_OK);
    assert_int_equal(nib_writer_append(w, data, 31, &err), NIB_E_ARGUMENT);
    assert_non_null(strstr(err.text, "'w': 31 bytes given, 30 are left"));
    assert_int_equal(nib_writer_append(w, data, 29, &err), NIB_OK);
    assert_int_equal(nib_writer_finish(w, &err), NIB_E_STATE);
    assert_non_null(strstr(err.text, "'w' has 29 of 30"));
    nib_writer_close(w);
    assert_int_equal(count_files(&d), 0);
    /* Beside other shards the result would be a mixture. */
    test_dir_write_shard(&d, "model-00009-of-00009.safetensors", "{}", 0);
    assert_int_equal(nib_writer_open(d.path, list, N, 0, &other, &err), NIB_E_ARGUMENT);
    assert_non_null(strstr(err.text, "model-00009-of-00009.safetensors"));
    assert_int_equal(count_files(&d), 1);
    test_dir_close(&d);
    assert_int_equal(nib_writer_open(d.path, list, N, 0, &other, &err), NIB_E_IO);
    nib_writer_close(NULL);
}

/* A limit on file sizes is the disk that is full. */
static void reports_a_full_disk(void **state)
{
    (void)state;
    struct test_dir d;
    struct nib_writer *w;
    struct nib_error err = { NIB_OK, "" };
    struct rlimit old, small;
    const struct nib_writer_tensor big = { "big", NIB_ST_U8, 1, { 1 << 20 } };
    uint8_t *data = calloc(1, 1 << 20);
    assert_non_null(data);
    test_dir_open(&d);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    small = old;
    small.rlim_cur = 1 << 19;
    assert_int_equal(nib_writer_open(d.path, &big, 1, 0, &w, &err), NIB_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum nib_status status = nib_writer_append(w, data, 1 << 20, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, NIB_E_IO);
    assert_non_null(strstr(err.text, "model.safetensors"));
    assert_non_null(strstr(err.text, "File too large"));
    nib_writer_close(w);
    assert_int_equal(count_files(&d), 0);
    free(data);
    test_dir_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_back),          cmocka_unit_test(writes_no_tensors),
        cmocka_unit_test(refuses_wrong_lists), cmocka_unit_test(refuses_wrong_order_of_calls),
        cmocka_unit_test(reports_a_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
