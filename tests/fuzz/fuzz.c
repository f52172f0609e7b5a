/* Files, folders and checks of fuzz targets. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_check(int holds, const char *text, const char *file, int line)
{
    if (holds)
        return;
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, text);
    abort();
}

static void write_all(int fd, const void *data, size_t n)
{
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
    for (size_t done = 0; done < n;) {
        const ssize_t got = pwrite(fd, (const char *)data + done, n - done, (off_t)done);
        FUZZ_CHECK(got > 0);
        done += (size_t)got;
    }
}

const char *fuzz_file(const void *data, size_t n)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("nibble-fuzz", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    write_all(fd, data, n);
    return path;
}

static char g_dir[64], g_name[16][64];
static int g_n_names;

static void dir_remove(void)
{
    for (int i = 0; i < g_n_names; i++)
        fuzz_dir_remove(g_name[i]);
    (void)rmdir(g_dir);
}

const char *fuzz_dir(void)
{
    if (!g_dir[0]) {
        (void)snprintf(g_dir, sizeof g_dir, "%s/nibble-fuzz-XXXXXX",
                       access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        FUZZ_CHECK(mkdtemp(g_dir) != NULL);
        (void)atexit(dir_remove);
    }
    return g_dir;
}

static void in_dir(const char *name, char *path, size_t n)
{
    (void)snprintf(path, n, "%s/%s", fuzz_dir(), name);
}

void fuzz_dir_write(const char *name, const void *data, size_t n)
{
    char path[192];
    int i = 0;
    in_dir(name, path, sizeof path);
    while (i < g_n_names && strcmp(g_name[i], name) != 0)
        i++;
    if (i == g_n_names) {
        FUZZ_CHECK(g_n_names < 16);
        (void)snprintf(g_name[g_n_names++], sizeof g_name[0], "%s", name);
    }
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    write_all(fd, data, n);
    (void)close(fd);
}

void fuzz_dir_remove(const char *name)
{
    char path[192];
    in_dir(name, path, sizeof path);
    (void)unlink(path);
}

char *fuzz_part(const uint8_t **rest, size_t *n_rest, size_t *n)
{
    const uint8_t *end = *n_rest ? memchr(*rest, 0, *n_rest) : NULL;
    *n = end ? (size_t)(end - *rest) : *n_rest;
    char *part = malloc(*n + 1);
    FUZZ_CHECK(part != NULL);
    if (*n)
        memcpy(part, *rest, *n);
    part[*n] = '\0';
    if (*n_rest)
        *rest += *n + (end != NULL);
    *n_rest -= *n + (end != NULL);
    return part;
}

void fuzz_check_error(enum nib_status status, const struct nib_error *err)
{
    FUZZ_CHECK(status != NIB_OK && err->status == status);
    FUZZ_CHECK(err->text[0] != '\0' && memchr(err->text, '\0', sizeof err->text));
}
