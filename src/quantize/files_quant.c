/* Files of the destination. Nothing appears under its own name before it is complete and on disk, so that an
 * interruption at any moment leaves files that are whole and files that end in .tmp. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "quantize/quant.h"

#define COPY_BYTES ((size_t)1 << 20)

static enum nib_status failed(const char *verb, const char *dir, const char *name, int number, struct nib_error *err)
{
    char text[128];
    return nib_error_set(err, number == ENOMEM ? NIB_E_MEMORY : NIB_E_IO, "cannot %s '%.500s/%.300s': %s%s", verb, dir,
                         name, nib_errno_text(number, text, sizeof text),
                         number == ENOSPC || number == EDQUOT
                             ? "; finished shards are kept, free some space and go on with --resume"
                             : "");
}

static char *path_of(const char *dir, const char *name, bool temporary)
{
    const size_t n = strlen(dir) + strlen(name) + 8;
    char        *path = malloc(n);
    if (path)
        (void)snprintf(path, n, "%s/%s%s", dir, name, temporary ? ".tmp" : "");
    return path;
}

enum nib_status nib_quant_write_at(int fd, const char *dir, const char *name, uint64_t offset, const void *data,
                                   size_t n, struct nib_error *err)
{
    const char *at = data;
    while (n > 0) {
        const ssize_t done = pwrite(fd, at, n, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return failed("write", dir, name, done < 0 ? errno : EIO, err);
        at += done;
        offset += (uint64_t)done;
        n -= (size_t)done;
    }
    return NIB_OK;
}

enum nib_status nib_quant_create(const char *dir, const char *name, int *fd, struct nib_error *err)
{
    char *path = path_of(dir, name, true);
    *fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    const int number = path ? errno : ENOMEM;
    free(path);
    return *fd < 0 ? failed("create", dir, name, number, err) : NIB_OK;
}

/* A new name is only safe once the folder is on disk too. */
static int sync_folder(const char *dir)
{
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    /* Some file systems cannot sync folders and say EINVAL. */
    const int number = fsync(fd) != 0 && errno != EINVAL ? errno : 0;
    (void)close(fd);
    return number;
}

enum nib_status nib_quant_commit(const char *dir, const char *name, int fd, struct nib_error *err)
{
    char *from = path_of(dir, name, true), *to = path_of(dir, name, false);
    int   number = !from || !to ? ENOMEM : fsync(fd) != 0 ? errno : 0;
    if (close(fd) != 0 && number == 0)
        number = errno;
    if (number == 0 && rename(from, to) != 0)
        number = errno;
    if (number != 0 && from)
        (void)unlink(from);
    if (number == 0)
        number = sync_folder(dir);
    free(from);
    free(to);
    return number ? failed("write", dir, name, number, err) : NIB_OK;
}

void nib_quant_abandon(const char *dir, const char *name, int fd)
{
    char *path = path_of(dir, name, true);
    (void)close(fd);
    if (path)
        (void)unlink(path);
    free(path);
}

enum nib_status nib_quant_write_file(const char *dir, const char *name, const char *data, size_t n,
                                     struct nib_error *err)
{
    int fd;
    NIB_TRY(nib_quant_create(dir, name, &fd, err));
    const enum nib_status status = nib_quant_write_at(fd, dir, name, 0, data, n, err);
    if (status != NIB_OK) {
        nib_quant_abandon(dir, name, fd);
        return status;
    }
    return nib_quant_commit(dir, name, fd, err);
}

/* ---- Files that are only copied ---- */

static bool ends_in(const char *s, const char *tail)
{
    const size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static bool is_ours(const char *name)
{
    static const char *const own[] = {"config.json", "hf_quant_config.json", "model.safetensors.index.json",
                                      "nibble-quant.json", "nibble-quant.md"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return name[0] == '.' || ends_in(name, ".safetensors") || ends_in(name, ".tmp") || ends_in(name, ".incomplete");
}

static enum nib_status copy_data(int from, const char *src, int to, const char *dst, const char *name,
                                 struct nib_error *err)
{
    char *buffer = malloc(COPY_BYTES);
    enum nib_status status = buffer ? NIB_OK : nib_error_set(err, NIB_E_MEMORY, "no memory to copy '%s'", name);
    uint64_t at = 0;
    while (status == NIB_OK) {
        const ssize_t n = read(from, buffer, COPY_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            break;
        status = n < 0 ? failed("read", src, name, errno, err)
                       : nib_quant_write_at(to, dst, name, at, buffer, (size_t)n, err);
        at += n > 0 ? (uint64_t)n : 0;
    }
    free(buffer);
    return status;
}

static enum nib_status copy_file(const char *src, const char *dst, const char *name, struct nib_error *err)
{
    char     *path = path_of(src, name, false);
    const int from = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const int number = path ? errno : ENOMEM;
    int       to;
    free(path);
    if (from < 0)
        return failed("open", src, name, number, err);
    enum nib_status status = nib_quant_create(dst, name, &to, err);
    if (status == NIB_OK) {
        status = copy_data(from, src, to, dst, name, err);
        if (status == NIB_OK)
            status = nib_quant_commit(dst, name, to, err);
        else
            nib_quant_abandon(dst, name, to);
    }
    (void)close(from);
    return status;
}

static enum nib_status copy_folder(const char *src, const char *dst, int depth, struct nib_error *err)
{
    DIR *d = opendir(src);
    enum nib_status status = d ? NIB_OK : failed("open", src, "", errno, err);
    for (struct dirent *e; status == NIB_OK && (e = readdir(d)) != NULL;) {
        struct stat st;
        if (is_ours(e->d_name))
            continue;
        char *from = path_of(src, e->d_name, false), *to = path_of(dst, e->d_name, false);
        if (!from || !to)
            status = nib_error_set(err, NIB_E_MEMORY, "no memory for a path");
        else if (stat(from, &st) != 0)
            status = failed("read", src, e->d_name, errno, err);
        else if (S_ISREG(st.st_mode))
            status = copy_file(src, dst, e->d_name, err);
        else if (S_ISDIR(st.st_mode) && depth < 4)
            status = mkdir(to, 0777) != 0 && errno != EEXIST ? failed("create", dst, e->d_name, errno, err)
                                                             : copy_folder(from, to, depth + 1, err);
        free(from);
        free(to);
    }
    if (d)
        (void)closedir(d);
    return status;
}

enum nib_status nib_quant_copy_files(const char *src, const char *dst, struct nib_error *err)
{
    return copy_folder(src, dst, 0, err);
}
