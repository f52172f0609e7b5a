/* Temporary folders and hand-made safetensors files. */
#include "support/safetensors_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <unistd.h>

void test_dir_open(struct test_dir *d)
{
    (void)snprintf(d->path, sizeof d->path, "/tmp/nibble-test-XXXXXX");
    assert_non_null(mkdtemp(d->path));
}

static void remove_inside(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        char inner[512];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        (void)snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        if (unlink(inner) != 0) {
            remove_inside(inner);
            (void)rmdir(inner);
        }
    }
    if (dir)
        (void)closedir(dir);
}

void test_dir_close(struct test_dir *d)
{
    remove_inside(d->path);
    (void)rmdir(d->path);
}

const char *test_dir_path(const struct test_dir *d, const char *name)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", d->path, name);
    return path;
}

void test_dir_write(const struct test_dir *d, const char *name, const void *data, size_t n)
{
    FILE *f = fopen(test_dir_path(d, name), "wb");
    assert_non_null(f);
    assert_true(fwrite(data, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

uint8_t test_data_byte(size_t i)
{
    return (uint8_t)(i * 37 + (i >> 8) + 11);
}

void test_dir_write_shard(const struct test_dir *d, const char *name, const char *header, size_t n_data)
{
    size_t n_header = strlen(header), n = 8 + n_header + n_data;
    uint8_t *file = malloc(n);
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)n_header >> (8 * i));
    memcpy(file + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++)
        file[8 + n_header + i] = test_data_byte(i);
    test_dir_write(d, name, file, n);
    free(file);
}
