/* Folders of several shards: what the index decides, incomplete downloads, names in two files, and many tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "support/safetensors_write.h"

#define INDEX "model.safetensors.index.json"

static void write_text(const struct test_dir *d, const char *name, const char *text)
{
    test_dir_write(d, name, text, strlen(text));
}

/* One U8 tensor of n bytes. */
static void write_one(const struct test_dir *d, const char *file, const char *tensor, int n)
{
    char header[300];
    (void)snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", tensor,
                   n, n);
    test_dir_write_shard(d, file, header, (size_t)n);
}

static void opens(const struct test_dir *d, int64_t n)
{
    struct nib_checkpoint *c;
    struct nib_error err = { NIB_OK, "" };
    if (nib_checkpoint_open(d->path, &c, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib_checkpoint_n_tensors(c), n);
    nib_checkpoint_close(c);
}

/* Refused, and the text has every one of the parts (a NULL ends them). */
static void refused(const struct test_dir *d, enum nib_status want, const char *const *parts)
{
    struct nib_checkpoint *c;
    struct nib_error err = { NIB_OK, "" };
    assert_int_equal(nib_checkpoint_open(d->path, &c, &err), want);
    assert_null(c);
    for (; *parts; parts++) {
        if (!strstr(err.text, *parts))
            fail_msg("'%s' wanted in: %s", *parts, err.text);
    }
}
#define REFUSED(d, status, ...) refused(d, status, (const char *const[]){ __VA_ARGS__, NULL })

static void write_three(const struct test_dir *d, bool index)
{
    write_one(d, "model-00001-of-00003.safetensors", "a", 1);
    write_one(d, "model-00002-of-00003.safetensors", "b", 2);
    write_one(d, "model-00003-of-00003.safetensors", "c", 3);
    if (index) {
        write_text(d, INDEX,
                   "{\"metadata\":{\"total_size\":6},\"weight_map\":{\"a\":\"model-00001-of-00003.safetensors\","
                   "\"b\":\"model-00002-of-00003.safetensors\",\"c\":\"model-00003-of-00003.safetensors\"}}");
    }
}

static void missing_shards_are_all_named(void **state)
{
    (void)state;
    for (int index = 0; index < 2; index++) {
        struct test_dir d;
        test_dir_open(&d);
        write_three(&d, index);
        opens(&d, 3);
        assert_int_equal(unlink(test_dir_path(&d, "model-00002-of-00003.safetensors")), 0);
        REFUSED(&d, NIB_E_IO, "1 of 3 shards", "model-00002-of-00003.safetensors", "download may be incomplete");
        write_text(&d, "model-00002-of-00003.safetensors.incomplete", "x");
        write_text(&d, "model-00002-of-00003.safetensors.tmp", "x");
        REFUSED(&d, NIB_E_IO, "1 of 3 shards", "model-00002-of-00003.safetensors", "download may be incomplete");
        assert_int_equal(symlink("nowhere", test_dir_path(&d, "model-00002-of-00003.safetensors")), 0);
        REFUSED(&d, NIB_E_IO, "1 of 3 shards", "model-00002-of-00003.safetensors", "download may be incomplete");
        assert_int_equal(unlink(test_dir_path(&d, "model-00003-of-00003.safetensors")), 0);
        REFUSED(&d, NIB_E_IO, "2 of 3 shards", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors");
        /* A link that leads to a file is a file. */
        assert_int_equal(unlink(test_dir_path(&d, "model-00002-of-00003.safetensors")), 0);
        write_one(&d, "blob", "b", 2);
        write_one(&d, "model-00003-of-00003.safetensors", "c", 3);
        assert_int_equal(symlink("blob", test_dir_path(&d, "model-00002-of-00003.safetensors")), 0);
        opens(&d, 3);
        test_dir_close(&d);
    }
}

/* More names than one message holds: numbers stand for them, none is left out. */
static void many_missing_shards_fit_the_message(void **state)
{
    (void)state;
    struct test_dir d;
    struct nib_checkpoint *c;
    struct nib_error err;
    char name[64], *text = malloc(65536);
    size_t used = 0;
    assert_non_null(text);
    test_dir_open(&d);
    used += (size_t)sprintf(text + used, "{\"weight_map\":{");
    for (int i = 1; i <= 95; i++) {
        used += (size_t)sprintf(text + used, "%s\"t%d\":\"model-%05d-of-00095.safetensors\"", i > 1 ? "," : "", i, i);
        if (i % 2 == 0 && i < 90) {
            (void)snprintf(name, sizeof name, "model-%05d-of-00095.safetensors", i);
            write_one(&d, name, "x", 1);
        }
    }
    (void)sprintf(text + used, "}}");
    write_text(&d, INDEX, text);
    assert_int_equal(nib_checkpoint_open(d.path, &c, &err), NIB_E_IO);
    assert_non_null(strstr(err.text, "51 of 95 shards"));
    for (int i = 1; i < 90; i += 2) {
        (void)snprintf(name, sizeof name, "%05d", i);
        assert_non_null(strstr(err.text, name));
    }
    assert_non_null(strstr(err.text, "00089-00095}-of-00095.safetensors"));
    assert_non_null(strstr(err.text, "download may be incomplete"));
    free(text);
    test_dir_close(&d);
}

static void the_index_decides(void **state)
{
    (void)state;
    struct test_dir d;
    struct nib_checkpoint *c;
    test_dir_open(&d);
    write_one(&d, "model.safetensors", "w", 4);
    write_one(&d, "overlay.safetensors", "w", 7);
    REFUSED(&d, NIB_E_FORMAT, "'w'", "'model.safetensors'", "'overlay.safetensors'");
    write_text(&d, INDEX, "{\"weight_map\":{\"w\":\"overlay.safetensors\"}}");
    assert_int_equal(nib_checkpoint_open(d.path, &c, NULL), NIB_OK);
    assert_int_equal(nib_checkpoint_n_tensors(c), 1);
    assert_string_equal(nib_checkpoint_find(c, "w")->file, "overlay.safetensors");
    assert_int_equal(nib_checkpoint_find(c, "w")->bytes, 7);
    nib_checkpoint_close(c);
    /* In both listed files, assigned to the first; the second keeps only what is assigned to it. */
    test_dir_write_shard(&d, "overlay.safetensors",
                         "{\"w\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[0,7]},"
                         "\"v\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[7,9]},"
                         "\"u\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[9,11]}}",
                         11);
    write_text(&d, INDEX, "{\"weight_map\":{\"w\":\"model.safetensors\",\"v\":\"overlay.safetensors\"}}");
    assert_int_equal(nib_checkpoint_open(d.path, &c, NULL), NIB_OK);
    assert_int_equal(nib_checkpoint_n_tensors(c), 2);
    assert_int_equal(nib_checkpoint_find(c, "w")->bytes, 4);
    assert_int_equal(nib_checkpoint_find(c, "v")->bytes, 2);
    assert_null(nib_checkpoint_find(c, "u"));
    nib_checkpoint_close(c);
    /* A file that the index does not name may be anything. */
    write_text(&d, "stray.safetensors", "not safetensors at all");
    opens(&d, 2);
    test_dir_close(&d);
}

static void wrong_indexes_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        enum nib_status status;
        const char *part, *other;
    } cases[] = {
        { "", NIB_E_FORMAT, "not valid JSON", INDEX },
        { "[]", NIB_E_FORMAT, "weight_map is nothing", INDEX },
        { "{\"weight_map\":[]}", NIB_E_FORMAT, "weight_map is an array", INDEX },
        { "{\"weight_map\":{}}", NIB_E_FORMAT, "weight_map is empty", INDEX },
        { "{\"weight_map\":{\"a\":1}}", NIB_E_FORMAT, "tensor 'a' has an integer", INDEX },
        { "{\"weight_map\":{\"a\":\"x.safetensors\",\"q\":\"x.safetensors\"}}", NIB_E_FORMAT, "'q'",
          "'x.safetensors'" },
        { "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\"}}", NIB_E_FORMAT, "'b'",
          "'x.safetensors'" },
        { "{\"weight_map\":{\"a\":\"../x.safetensors\"}}", NIB_E_FORMAT, "'../x.safetensors' is unsafe", "'a'" },
        { "{\"weight_map\":{\"a\":\"/tmp/x.safetensors\"}}", NIB_E_FORMAT, "'/tmp/x.safetensors' is unsafe", "'a'" },
        { "{\"weight_map\":{\"a\":\"sub/x.safetensors\"}}", NIB_E_FORMAT, "unsafe", "'a'" },
        { "{\"weight_map\":{\"a\":\"..\\\\x.safetensors\"}}", NIB_E_FORMAT, "unsafe", "'a'" },
        { "{\"weight_map\":{\"a\":\"..\"}}", NIB_E_FORMAT, "unsafe", "'a'" },
        { "{\"weight_map\":{\"a\":\"\"}}", NIB_E_FORMAT, "does not end in .safetensors", "'a'" },
        { "{\"weight_map\":{\"a\":\"x.bin\"}}", NIB_E_FORMAT, "'x.bin' does not end in .safetensors", "'a'" },
        { "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", NIB_E_FORMAT, "'a' occurs twice",
          INDEX },
        { "{\"weight_map\":{\"a\":\"x.safetensors\",\"layers.0.attn.indexer.wq_b.weight\":\"x.safetensors\","
          "\"layers.0.attn.indexer.wq_b.weight\":\"y.safetensors\"}}",
          NIB_E_FORMAT, "'layers.0.attn.indexer.wq_b.weight' occurs twice", INDEX },
        { "{\"weight_map\":{\"a\":\"x.safetensors\"},\"weight_map\":{\"a\":\"y.safetensors\"}}", NIB_E_FORMAT,
          "'weight_map' occurs twice", INDEX },
    };
    struct test_dir d;
    test_dir_open(&d);
    write_one(&d, "x.safetensors", "a", 3);
    write_one(&d, "y.safetensors", "b", 3);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(&d, INDEX, cases[i].index);
        REFUSED(&d, cases[i].status, cases[i].part, cases[i].other);
    }
    assert_int_equal(unlink(test_dir_path(&d, INDEX)), 0);
    assert_int_equal(symlink("nowhere", test_dir_path(&d, INDEX)), 0);
    REFUSED(&d, NIB_E_IO, INDEX, "No such file");
    test_dir_close(&d);
}

/* The bundled checkpoints through the same door. */
static void opens_the_tiny_models(void **state)
{
    (void)state;
    struct nib_checkpoint *c;
    struct nib_error err;
    assert_int_equal(nib_checkpoint_open(NIB_SOURCE_DIR "/tests/data/tiny-v4-official", &c, &err), NIB_OK);
    assert_int_equal(nib_checkpoint_n_tensors(c), 932);
    const struct nib_tensor_entry *e = nib_checkpoint_find(c, "layers.2.ffn.experts.15.w2.weight");
    assert_non_null(e);
    assert_int_equal(e->dtype, NIB_ST_I8);
    assert_int_equal(e->shape[0], 256);
    assert_int_equal(e->shape[1], 32);
    for (int64_t i = 1; i < 932; i++)
        assert_true(strcmp(nib_checkpoint_at(c, i - 1)->name, nib_checkpoint_at(c, i)->name) < 0);
    nib_checkpoint_close(c);
    assert_int_equal(nib_checkpoint_open(NIB_SOURCE_DIR "/models/tiny-v4", &c, &err), NIB_OK);
    assert_int_equal(nib_checkpoint_n_tensors(c), 1753);
    nib_checkpoint_close(c);
}

/* One shard of n tensors of 1 MiB, its data one hole in the file. */
static void write_sparse(const struct test_dir *d, const char *file, int shard, int n, char *map, size_t *map_used)
{
    size_t room = (size_t)n * 160 + 16, used = 8;
    char *text = malloc(room);
    assert_non_null(text);
    for (int i = 0; i < n; i++) {
        char name[80];
        (void)snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight", shard, i);
        used += (size_t)snprintf(text + used, room - used,
                                 "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[1024,1024],\"data_offsets\":[%lld,%lld]}",
                                 i ? "," : "{", name, (long long)i << 20, (long long)(i + 1) << 20);
        *map_used += (size_t)sprintf(map + *map_used, "%s\"%s\":\"%s\"", *map_used ? "," : "", name, file);
    }
    text[used++] = '}';
    for (int i = 0; i < 8; i++)
        text[i] = (char)(unsigned char)((used - 8) >> (8 * i));
    test_dir_write(d, file, text, used);
    assert_int_equal(truncate(test_dir_path(d, file), (off_t)((int64_t)used + ((int64_t)n << 20))), 0);
    free(text);
}

/* 60,000 tensors in 20 shards of 3,000, with index. Real checkpoints have 95 such shards and must open in seconds; a
 * quadratic step would show here. Tensor data must stay untouched: pages in the middle of a shard are not loaded. */
static void opens_many_tensors_without_reading_them(void **state)
{
    (void)state;
    enum { SHARDS = 20, EACH = 3000 };
    struct test_dir d;
    struct nib_checkpoint *c;
    struct nib_error err;
    size_t used = 0;
    char *map = malloc((size_t)SHARDS * EACH * 128), *index;
    test_dir_open(&d);
    assert_non_null(map);
    for (int i = 0; i < SHARDS; i++) {
        char file[64];
        (void)snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", i + 1, SHARDS);
        write_sparse(&d, file, i, EACH, map, &used);
    }
    index = malloc(used + 32);
    assert_non_null(index);
    (void)snprintf(index, used + 32, "{\"weight_map\":{%s}}", map);
    write_text(&d, INDEX, index);
    clock_t start = clock();
    assert_int_equal(nib_checkpoint_open(d.path, &c, &err), NIB_OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("%d tensors opened in %.2f s\n", SHARDS * EACH, seconds);
    assert_true(seconds < 10);
    assert_int_equal(nib_checkpoint_n_tensors(c), SHARDS * EACH);
    for (int64_t i = 0; i < SHARDS * EACH; i++)
        assert_ptr_equal(nib_checkpoint_find(c, nib_checkpoint_at(c, i)->name), nib_checkpoint_at(c, i));
    const struct nib_tensor_entry *e = nib_checkpoint_find(c, "model.layers.7.mlp.experts.1500.gate_proj.weight");
    assert_non_null(e);
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = ((uintptr_t)e->data + page - 1) / page * page;
    unsigned char resident[64];
    assert_int_equal(mincore((void *)at, 64 * page, resident), 0);
    for (int i = 0; i < 64; i++)
        assert_int_equal(resident[i] & 1, 0);
    nib_checkpoint_close(c);
    free(index);
    free(map);
    test_dir_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_shards_are_all_named),
        cmocka_unit_test(many_missing_shards_fit_the_message),
        cmocka_unit_test(the_index_decides),
        cmocka_unit_test(wrong_indexes_are_refused),
        cmocka_unit_test(opens_the_tiny_models),
        cmocka_unit_test(opens_many_tensors_without_reading_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
