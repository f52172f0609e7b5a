/* Reading whole files: sizes around the cap, things that are no plain files, and what errors say. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"

static char dir[] = "/tmp/nib_file_XXXXXX";

static void write_file(const char *path, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t i = 0; i < n; i++)
        assert_true(fputc((int)(i * 7 % 256), f) != EOF);
    assert_int_equal(fclose(f), 0);
}

static void check_content(const char *path, size_t max_bytes, size_t n_want)
{
    char *data;
    size_t n;
    assert_int_equal(nib_file_read(path, max_bytes, &data, &n, NULL), NIB_OK);
    assert_int_equal(n, n_want);
    for (size_t i = 0; i < n; i++)
        assert_int_equal((unsigned char)data[i], i * 7 % 256);
    assert_int_equal(data[n], '\0');
    free(data);
}

static void check_refused(const char *path, size_t max_bytes, enum nib_status want, const char *reason)
{
    char *data = dir;
    size_t n = 1;
    struct nib_error err = {NIB_OK, ""};
    assert_int_equal(nib_file_read(path, max_bytes, &data, &n, &err), want);
    assert_int_equal(err.status, want);
    assert_null(data);
    assert_int_equal(n, 0);
    assert_non_null(strstr(err.text, path));
    if (!strstr(err.text, reason))
        fail_msg("'%s' does not say '%s'", err.text, reason);
}

static void sizes_up_to_the_cap(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 100000};
    char *path = nib_path_join(dir, "sized");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        write_file(path, sizes[i]);
        check_content(path, sizes[i], sizes[i]);
        check_content(path, sizes[i] + 1, sizes[i]);
        check_content(path, SIZE_MAX, sizes[i]);
        if (sizes[i] > 0)
            check_refused(path, sizes[i] - 1, NIB_E_FORMAT, "most allowed");
    }
    assert_int_equal(unlink(path), 0);
    free(path);
}

/* A FIFO without a writer would be waited for without end, a device might never end. */
static void other_files_are_refused(void **state)
{
    (void)state;
    char *path = nib_path_join(dir, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    check_refused(path, 100, NIB_E_IO, "not a regular file");
    assert_int_equal(unlink(path), 0);
    free(path);
    check_refused("/dev/zero", 100, NIB_E_IO, "not a regular file");
}

/* Files of /proc tell no size. */
static void sizes_are_a_guess(void **state)
{
    (void)state;
    char *data;
    size_t n;
    if (access("/proc/self/status", R_OK) != 0)
        skip();
    assert_int_equal(nib_file_read("/proc/self/status", 1 << 20, &data, &n, NULL), NIB_OK);
    assert_true(n > 100 && strlen(data) == n);
    free(data);
    check_refused("/proc/self/status", 100, NIB_E_FORMAT, "most allowed");
}

static void errors_name_path_and_reason(void **state)
{
    (void)state;
    char *path = nib_path_join(dir, "absent");
    check_refused(path, 100, NIB_E_IO, "No such file");
    free(path);
    check_refused(dir, 100, NIB_E_IO, "Is a directory");
    check_refused("", 100, NIB_E_IO, "No such file");
}

static void paths(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}, {"a//", "b", "a//b"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *joined = nib_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(joined, cases[i][2]);
        free(joined);
    }
    char *path = nib_path_join(dir, "file");
    write_file(path, 1);
    assert_true(nib_path_is_dir(dir));
    assert_false(nib_path_is_dir(path));
    assert_int_equal(unlink(path), 0);
    assert_false(nib_path_is_dir(path));
    free(path);

    char text[128];
    assert_string_equal(nib_errno_text(EACCES, text, sizeof text), "Permission denied");
    assert_true(strlen(nib_errno_text(123456, text, sizeof text)) > 0);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_up_to_the_cap),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(sizes_are_a_guess),
        cmocka_unit_test(errors_name_path_and_reason),
        cmocka_unit_test(paths),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
