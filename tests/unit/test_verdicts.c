/* The file of what self-tests of kernels found: what is kept is found again under its key alone, and nothing that may
 * be wrong with the file is more than a test that has to run again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/verdicts.h"

static char dir[] = "/tmp/nibble-verdicts-XXXXXX";
static char path[256], deep[300];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    (void)snprintf(path, sizeof path, "%s/selftest", dir);
    (void)snprintf(deep, sizeof deep, "%s/a/b/selftest", dir);
    return 0;
}

static int teardown(void **state)
{
    char command[400];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static size_t read_all(const char *from, char *text, size_t bytes)
{
    FILE *f = fopen(from, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, bytes - 1, f);
    text[n] = 0;
    (void)fclose(f);
    return n;
}

static void write_all(const char *to, const char *text, size_t n)
{
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void expect(const char *from, uint64_t key, const char *part, bool found, const char *wanted)
{
    char why[64] = "unchanged";
    assert_int_equal(nib_verdict_find(from, key, part, why, sizeof why), found);
    assert_string_equal(why, found ? wanted : "unchanged");
}

static void kept_and_found(void **state)
{
    (void)state;
    expect(NULL, 1, "FP8", false, "");
    expect(path, 1, "FP8", false, "");
    nib_verdict_keep(NULL, 1, "FP8", "");
    nib_verdict_keep(path, 1, "FP8", "");
    nib_verdict_keep(path, 1, "NVFP4", "linear_one: row 3\nis 1, wanted 2");
    expect(path, 1, "FP8", true, "");
    expect(path, 1, "NVFP4", true, "linear_one: row 3 is 1, wanted 2");
    expect(path, 2, "FP8", false, "");
    expect(path, 1, "FP", false, "");
    expect(path, 1, "ops", false, "");
    nib_verdict_keep(path, 2, "FP8", "norm");
    nib_verdict_keep(path, 1, "NVFP4", ""); /* in the place of the line before */
    expect(path, 1, "FP8", true, "");
    expect(path, 2, "FP8", true, "norm");
    expect(path, 1, "NVFP4", true, "");
    char text[4096];
    read_all(path, text, sizeof text);
    assert_null(strstr(text, "row 3"));
    for (uint64_t key = 100; key < 300; key++) /* many cards and programs: the last ones stay, and the file small */
        nib_verdict_keep(path, key, "FP8", "");
    expect(path, 299, "FP8", true, "");
    expect(path, 280, "FP8", true, "");
    expect(path, 1, "FP8", false, "");
    assert_true(read_all(path, text, sizeof text - 1) < 65 * 60 + 100);
}

static void folders(void **state)
{
    (void)state;
    nib_verdict_keep(deep, 5, "ops", "");
    expect(deep, 5, "ops", true, "");
    char in_file[320];
    (void)snprintf(in_file, sizeof in_file, "%s/x", path); /* where a file is no folder can be */
    nib_verdict_keep(in_file, 5, "ops", "");
    expect(in_file, 5, "ops", false, "");
    nib_verdict_keep(dir, 5, "ops", "");
    expect(dir, 5, "ops", false, "");
    char no_more[] = "/nowhere-to-write/selftest";
    if (geteuid() != 0) {
        nib_verdict_keep(no_more, 5, "ops", "");
        expect(no_more, 5, "ops", false, "");
    }
}

/* Whatever byte is changed or wherever the file ends: a line that is found says what was kept. */
static void damaged(void **state)
{
    char text[4096], changed[4096];
    (void)state;
    (void)unlink(path);
    nib_verdict_keep(path, 7, "NVFP4", "swiglu: scale");
    nib_verdict_keep(path, 7, "FP8", "");
    size_t n = read_all(path, text, sizeof text), n_lost = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(changed, text, n);
        changed[i] ^= (char)(1 << i % 7);
        write_all(path, changed, n);
        char why[64] = "";
        bool one = nib_verdict_find(path, 7, "NVFP4", why, sizeof why);
        assert_true(!one || strcmp(why, "swiglu: scale") == 0);
        bool other = nib_verdict_find(path, 7, "FP8", why, sizeof why);
        assert_true(!other || why[0] == 0);
        assert_true(!one || !other);
        n_lost += !one && !other;
        write_all(path, text, i);
        assert_true(!nib_verdict_find(path, 7, "FP8", why, sizeof why));
    }
    assert_true(n_lost >= 70); /* the first line */
    write_all(path, text, n);
    expect(path, 7, "NVFP4", true, "swiglu: scale");
    char *second = strchr(strchr(text, '\n') + 1, '\n') - 2; /* of the line before the last */
    *second ^= 1;
    write_all(path, text, n);
    nib_verdict_keep(path, 8, "ops", ""); /* drops the damaged line, keeps the whole one */
    expect(path, 7, "NVFP4", false, "");
    expect(path, 7, "FP8", true, "");
    expect(path, 8, "ops", true, "");
}

static void not_ours(void **state)
{
    static const char theirs[] = "my only copy\n";
    char              text[64], big[65600];
    (void)state;
    write_all(path, theirs, sizeof theirs - 1);
    expect(path, 7, "FP8", false, "");
    nib_verdict_keep(path, 7, "FP8", "");
    read_all(path, text, sizeof text);
    assert_string_equal(text, theirs);
    memset(big, 'x', sizeof big);
    write_all(path, big, sizeof big);
    expect(path, 7, "FP8", false, "");
    write_all(path, "\0\n", 2);
    expect(path, 7, "FP8", false, "");
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not be waited for */
    expect(path, 7, "FP8", false, "");
    nib_verdict_keep(path, 7, "FP8", "");
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept_and_found), cmocka_unit_test(folders), cmocka_unit_test(damaged),
                                       cmocka_unit_test(not_ours)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
