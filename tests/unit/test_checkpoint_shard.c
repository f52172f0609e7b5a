/* One file: what its header may say, and every way of being wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "support/safetensors_write.h"

static void accepts_a_plain_file(void **state)
{
    (void)state;
    struct test_dir d;
    struct nib_checkpoint *c;
    struct nib_error err;
    test_dir_open(&d);
    /* An odd header length and a one-byte tensor in front: b and c are unaligned. Names out of order. */
    test_dir_write_shard(&d, "x.safetensors",
                         "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"c\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[25,41]},"
                         "\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[1,1,1,1],\"data_offsets\":[0,1]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[1,25]},"
                         "\"empty\":{\"dtype\":\"BF16\",\"shape\":[0,256],\"data_offsets\":[25,25]},"
                         "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[41,45]}}   ",
                         45);
    test_dir_write(&d, "notes.txt", "x", 1);
    test_dir_write(&d, "model-00002-of-00002.safetensors.tmp", "x", 1);
    test_dir_write(&d, "y.safetensors.incomplete", "x", 1);
    assert_int_equal(nib_checkpoint_open(d.path, &c, &err), NIB_OK);
    assert_int_equal(nib_checkpoint_n_tensors(c), 5);
    static const struct {
        const char *name;
        enum nib_st_dtype dtype;
        int32_t n_dims;
        uint64_t begin, bytes;
    } want[] = { { "a", NIB_ST_F8_E8M0, 4, 0, 1 },
                 { "b", NIB_ST_F32, 2, 1, 24 },
                 { "c", NIB_ST_I64, 1, 25, 16 },
                 { "empty", NIB_ST_BF16, 2, 25, 0 },
                 { "scalar", NIB_ST_F32, 0, 41, 4 } };
    for (int64_t i = 0; i < 5; i++) {
        const struct nib_tensor_entry *e = nib_checkpoint_at(c, i);
        assert_string_equal(e->name, want[i].name);
        assert_string_equal(e->file, "x.safetensors");
        assert_int_equal(e->dtype, want[i].dtype);
        assert_int_equal(e->n_dims, want[i].n_dims);
        assert_int_equal(e->bytes, want[i].bytes);
        for (uint64_t k = 0; k < e->bytes; k++)
            assert_int_equal(((const uint8_t *)e->data)[k], test_data_byte((size_t)(want[i].begin + k)));
        assert_ptr_equal(nib_checkpoint_find(c, want[i].name), e);
    }
    assert_int_equal(nib_checkpoint_find(c, "b")->shape[0], 2);
    assert_int_equal(nib_checkpoint_find(c, "b")->shape[1], 3);
    assert_null(nib_checkpoint_find(c, "d"));
    assert_null(nib_checkpoint_find(c, ""));
    assert_null(nib_checkpoint_find(c, "__metadata__"));
    nib_checkpoint_close(c);
    nib_checkpoint_close(NULL);
    test_dir_close(&d);
}

static void accepts_files_without_tensors(void **state)
{
    (void)state;
    static const char *const headers[] = { "{}", "{\"__metadata__\":{}}", "{\"__metadata__\":{\"a\":\"b\"}}      " };
    for (size_t i = 0; i < 3; i++) {
        struct test_dir d;
        struct nib_checkpoint *c;
        test_dir_open(&d);
        test_dir_write_shard(&d, "x.safetensors", headers[i], 0);
        assert_int_equal(nib_checkpoint_open(d.path, &c, NULL), NIB_OK);
        assert_int_equal(nib_checkpoint_n_tensors(c), 0);
        assert_null(nib_checkpoint_find(c, "a"));
        nib_checkpoint_close(c);
        test_dir_close(&d);
    }
}

/* The folder is refused with this status, and the text has the parts. */
static void refused(const struct test_dir *d, enum nib_status want, const char *part, const char *other)
{
    struct nib_checkpoint *c = (struct nib_checkpoint *)d;
    struct nib_error err = { NIB_OK, "" };
    enum nib_status got = nib_checkpoint_open(d->path, &c, &err);
    if (got != want || !strstr(err.text, part) || !strstr(err.text, other))
        print_error("status %s, wanted %s; parts '%s' and '%s' wanted in: %s\n", nib_status_name(got),
                    nib_status_name(want), part, other, err.text);
    assert_int_equal(got, want);
    assert_int_equal(err.status, want);
    assert_null(c);
    assert_non_null(strstr(err.text, part));
    assert_non_null(strstr(err.text, other));
}

#define ONE(dtype, shape, offsets) "{\"t.w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(a, b)                                                                                                      \
    "{\"t.w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":" a "},"                                                \
    "\"t.v\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":" b "}}"

static void refuses_wrong_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
        enum nib_status status;
        const char *part; /* besides the file's name */
    } cases[] = {
        { "", 0, NIB_E_FORMAT, "header length is 0" },
        { "[]", 0, NIB_E_FORMAT, "'{'" },
        { " {}", 0, NIB_E_FORMAT, "'{'" },
        { "{", 0, NIB_E_FORMAT, "header length is 1" },
        { "{} {}", 0, NIB_E_FORMAT, "not valid JSON" },
        { "{\"t.w\":1}", 0, NIB_E_FORMAT, "'t.w' is an integer" },
        { "{\"t.w\":null}", 0, NIB_E_FORMAT, "'t.w' is null" },
        { "{\"t.w\":{}}", 0, NIB_E_FORMAT, "dtype is nothing" },
        { "{\"\":{}}", 0, NIB_E_FORMAT, "empty name" },
        { "{\"t\xff.w\":{}}", 0, NIB_E_FORMAT, "not valid JSON" },
        { "{\"t\\u0000w\":{}}", 0, NIB_E_FORMAT, "not valid JSON" },
        { "{\"__metadata__\":[]}", 0, NIB_E_FORMAT, "__metadata__ is an array" },
        { "{\"__metadata__\":{\"k\":1}}", 0, NIB_E_FORMAT, "__metadata__ 'k' is an integer" },
        { ONE("1", "[8]", "[0,8]"), 8, NIB_E_FORMAT, "'t.w': dtype is an integer" },
        { ONE("\"F4\"", "[8]", "[0,8]"), 8, NIB_E_UNSUPPORTED, "'t.w': unknown dtype 'F4'" },
        { ONE("\"u8\"", "[8]", "[0,8]"), 8, NIB_E_UNSUPPORTED, "unknown dtype 'u8'" },
        { ONE("\"U8\"", "8", "[0,8]"), 8, NIB_E_FORMAT, "'t.w': shape is an integer" },
        { ONE("\"U8\"", "[1,1,1,1,8]", "[0,8]"), 8, NIB_E_FORMAT, "shape has 5 entries, wanted 0 to 4" },
        { ONE("\"U8\"", "[\"8\"]", "[0,8]"), 8, NIB_E_FORMAT, "shape[0] is a string" },
        { ONE("\"U8\"", "[8.0]", "[0,8]"), 8, NIB_E_FORMAT, "shape[0] is a number with a fraction" },
        { ONE("\"U8\"", "[true]", "[0,1]"), 1, NIB_E_FORMAT, "shape[0] is true" },
        { ONE("\"U8\"", "[2,-4]", "[0,8]"), 8, NIB_E_FORMAT, "shape[1] is -4" },
        { ONE("\"U8\"", "[-2,-4]", "[0,8]"), 8, NIB_E_FORMAT, "shape[0] is -2" },
        { ONE("\"U8\"", "[9223372036854775808]", "[0,8]"), 8, NIB_E_FORMAT, "not valid JSON" },
        { ONE("\"U8\"", "[4294967296,4294967296]", "[0,8]"), 8, NIB_E_FORMAT, "multiply to more than" },
        { ONE("\"F32\"", "[4611686018427387906]", "[0,8]"), 8, NIB_E_FORMAT, "multiply to more than" },
        { ONE("\"U8\"", "[8]", "[0]"), 8, NIB_E_FORMAT, "data_offsets has 1 entries" },
        { ONE("\"U8\"", "[8]", "[0,8,8]"), 8, NIB_E_FORMAT, "data_offsets has 3 entries" },
        { ONE("\"U8\"", "[8]", "{}"), 8, NIB_E_FORMAT, "data_offsets is an object" },
        { ONE("\"U8\"", "[8]", "[-8,0]"), 8, NIB_E_FORMAT, "data_offsets[0] is -8" },
        { ONE("\"U8\"", "[8]", "[8,0]"), 8, NIB_E_FORMAT, "bytes 8..0 lie outside" },
        { ONE("\"U8\"", "[8]", "[0,9]"), 8, NIB_E_FORMAT, "bytes 0..9 lie outside the data section of 8" },
        { ONE("\"U8\"", "[8]", "[9223372036854775800,9223372036854775807]"), 8, NIB_E_FORMAT, "lie outside" },
        { ONE("\"U8\"", "[7]", "[0,8]"), 8, NIB_E_FORMAT, "make 7 bytes, but data_offsets span 8" },
        { ONE("\"BF16\"", "[8]", "[0,8]"), 8, NIB_E_FORMAT, "make 16 bytes, but data_offsets span 8" },
        { ONE("\"U8\"", "[0]", "[0,8]"), 8, NIB_E_FORMAT, "make 0 bytes, but data_offsets span 8" },
        { ONE("\"U8\"", "[8]", "[0,8]"), 24, NIB_E_FORMAT, "16 bytes behind the last tensor" },
        { "{}", 16, NIB_E_FORMAT, "16 bytes behind the last tensor" },
        { ONE("\"U8\"", "[8]", "[64,72]"), 72, NIB_E_FORMAT, "a hole of 64 bytes before tensor 't.w'" },
        { TWO("[0,8]", "[4,12]"), 12, NIB_E_FORMAT, "'t.w' (until byte 8) and 't.v' (from byte 4) overlap" },
        { TWO("[0,8]", "[0,8]"), 8, NIB_E_FORMAT, "overlap" },
        { TWO("[0,8]", "[72,80]"), 80, NIB_E_FORMAT, "a hole of 64 bytes before tensor 't.v'" },
        { "{\"t.w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
          "\"t.w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
          16, NIB_E_FORMAT, "'t.w' occurs twice" },
        { "{\"model.layers.0.mlp.experts.17.gate_\\\"proj.weight\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,"
          "8]},"
          "\"model.layers.0.mlp.experts.17.gate_\\\"proj.weight\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,"
          "16]}}",
          16, NIB_E_FORMAT, "'model.layers.0.mlp.experts.17.gate_\\\"proj.weight' occurs twice" },
        { "{\"t.w\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, NIB_E_FORMAT,
          "'dtype' occurs twice" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct test_dir d;
        test_dir_open(&d);
        test_dir_write_shard(&d, "bad.safetensors", cases[i].header, cases[i].n_data);
        refused(&d, cases[i].status, cases[i].part, "bad.safetensors");
        test_dir_close(&d);
    }
}

static void refuses_wrong_lengths(void **state)
{
    (void)state;
    static const uint64_t lengths[] = { 1, 3, 1000, (uint64_t)1 << 32, UINT64_MAX, UINT64_MAX - 7 };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct test_dir d;
        uint8_t file[10] = { 0, 0, 0, 0, 0, 0, 0, 0, '{', '}' };
        for (int k = 0; k < 8; k++)
            file[k] = (uint8_t)(lengths[i] >> (8 * k));
        test_dir_open(&d);
        test_dir_write(&d, "bad.safetensors", file, sizeof file);
        refused(&d, NIB_E_FORMAT, "header length is", "bad.safetensors");
        test_dir_close(&d);
    }
    /* Inside the file, but over the limit: the file is a hole of 300 MiB. */
    struct test_dir d;
    uint8_t head[8] = { 0, 0, 0, 17, 0, 0, 0, 0 }; /* 272 MiB */
    test_dir_open(&d);
    test_dir_write(&d, "bad.safetensors", head, sizeof head);
    assert_int_equal(truncate(test_dir_path(&d, "bad.safetensors"), (off_t)300 << 20), 0);
    refused(&d, NIB_E_FORMAT, "header length is 285212672, wanted 2 to 268435456", "bad.safetensors");
    test_dir_close(&d);
}

static void refuses_deep_nesting(void **state)
{
    (void)state;
    struct test_dir d;
    size_t n = 200000;
    char *header = malloc(n + 1);
    assert_non_null(header);
    memset(header, '[', n);
    memcpy(header, "{\"a\":", 5);
    header[n] = 0;
    test_dir_open(&d);
    test_dir_write_shard(&d, "bad.safetensors", header, 0);
    refused(&d, NIB_E_FORMAT, "not valid JSON", "bad.safetensors");
    test_dir_close(&d);
    free(header);
}

static void refuses_what_is_no_file(void **state)
{
    (void)state;
    struct test_dir d;
    test_dir_open(&d);
    refused(&d, NIB_E_IO, "no file ending in .safetensors", d.path);
    assert_int_equal(mkdir(test_dir_path(&d, "a.safetensors"), 0777), 0);
    refused(&d, NIB_E_IO, "not a regular file", "a.safetensors");
    assert_int_equal(rmdir(test_dir_path(&d, "a.safetensors")), 0);
    assert_int_equal(mkfifo(test_dir_path(&d, "a.safetensors"), 0666), 0);
    refused(&d, NIB_E_IO, "not a regular file", "a.safetensors");
    assert_int_equal(unlink(test_dir_path(&d, "a.safetensors")), 0);
    test_dir_write(&d, "a.safetensors", "", 0);
    refused(&d, NIB_E_FORMAT, "0 bytes long", "a.safetensors");
    struct test_dir none = { "/tmp/nibble-no-such-folder" };
    refused(&none, NIB_E_IO, "cannot open folder", none.path);
    test_dir_close(&d);
}

static const char small_header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                   "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                                   "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[3,11]}}";

static size_t small_file(uint8_t *file)
{
    size_t n = sizeof small_header - 1;
    memset(file, 0, 8 + n + 11);
    file[0] = (uint8_t)n;
    memcpy(file + 8, small_header, n);
    return 8 + n + 11;
}

static void refuses_every_truncation(void **state)
{
    (void)state;
    uint8_t file[512];
    size_t n = small_file(file);
    struct test_dir d;
    struct nib_checkpoint *c;
    assert_true(sizeof small_header < 256);
    test_dir_open(&d);
    test_dir_write(&d, "x.safetensors", file, n);
    assert_int_equal(nib_checkpoint_open(d.path, &c, NULL), NIB_OK);
    nib_checkpoint_close(c);
    for (size_t i = n; i-- > 0;) {
        assert_int_equal(truncate(test_dir_path(&d, "x.safetensors"), (off_t)i), 0);
        refused(&d, NIB_E_FORMAT, "x.safetensors", "");
    }
    test_dir_close(&d);
}

/* Any single byte changed: either refused with a text, or everything that was accepted lies inside the file. */
static void survives_every_byte(void **state)
{
    (void)state;
    static const uint8_t values[] = { 0, 1, '"', '0', '9', '-', '.', 'e', '{', '}', '[', ']', ',', ' ', 0x7f, 0xff };
    uint8_t file[512];
    size_t n = small_file(file), n_header = sizeof small_header - 1;
    int32_t n_ok = 0;
    struct test_dir d;
    test_dir_open(&d);
    test_dir_write(&d, "x.safetensors", file, n);
    int fd = open(test_dir_path(&d, "x.safetensors"), O_WRONLY);
    assert_true(fd >= 0);
    for (size_t i = 0; i < 8 + n_header; i++) {
        for (size_t v = 0; v < sizeof values; v++) {
            struct nib_checkpoint *c;
            struct nib_error err = { NIB_OK, "" };
            assert_int_equal(pwrite(fd, &values[v], 1, (off_t)i), 1);
            if (nib_checkpoint_open(d.path, &c, &err) == NIB_OK) {
                uint64_t bytes = 0;
                for (int64_t k = 0; k < nib_checkpoint_n_tensors(c); k++) {
                    const struct nib_tensor_entry *e = nib_checkpoint_at(c, k);
                    for (uint64_t b = 0; b < e->bytes; b++)
                        assert_int_equal(((const uint8_t *)e->data)[b], 0);
                    bytes += e->bytes;
                }
                assert_int_equal(bytes, 11);
                n_ok++;
            } else {
                assert_null(c);
                assert_true(err.status != NIB_OK && err.text[0] != 0);
            }
            nib_checkpoint_close(c);
        }
        assert_int_equal(pwrite(fd, &file[i], 1, (off_t)i), 1);
    }
    (void)close(fd);
    assert_true(n_ok > 0); /* letters of names may change */
    test_dir_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_a_plain_file),     cmocka_unit_test(accepts_files_without_tensors),
        cmocka_unit_test(refuses_wrong_headers),    cmocka_unit_test(refuses_wrong_lengths),
        cmocka_unit_test(refuses_deep_nesting),     cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(refuses_every_truncation), cmocka_unit_test(survives_every_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
