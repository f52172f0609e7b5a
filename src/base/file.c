/* Reading of small files with a size cap, and the errno text that every file error carries. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *nib_errno_text(int number, char *buf, size_t n_buf)
{
    if (strerror_r(number, buf, n_buf) != 0)
        (void)snprintf(buf, n_buf, "error %d", number);
    return buf;
}

char *nib_path_join(const char *dir, const char *name)
{
    size_t n_dir = strlen(dir), n_name = strlen(name);
    bool slash = n_dir > 0 && dir[n_dir - 1] != '/';
    char *path = malloc(n_dir + n_name + 2);
    if (path)
        (void)snprintf(path, n_dir + n_name + 2, "%s%s%s", dir, slash ? "/" : "", name);
    return path;
}

bool nib_path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static enum nib_status io_error(struct nib_error *err, const char *verb, const char *path, int number)
{
    char text[128];
    return nib_error_set(err, NIB_E_IO, "cannot %s '%s': %s", verb, path, nib_errno_text(number, text, sizeof text));
}

/* The size that fstat reports is only a first guess: files of /proc report 0, and others may grow while they are
 * read. */
static enum nib_status read_all(int fd, size_t n_guess, const char *path, size_t max_bytes, char **data, size_t *n,
                                struct nib_error *err)
{
    size_t cap = n_guess + 1, used = 0; /* one byte more than expected, so that the end is seen in the first round */
    char *buf = malloc(cap + 1);
    int number = 0;
    while (buf) {
        ssize_t got = read(fd, buf + used, cap - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            number = errno;
        if (got <= 0)
            break;
        used += (size_t)got;
        if (used > max_bytes)
            break;
        if (used == cap) {
            cap = cap < max_bytes / 2 ? 2 * cap : max_bytes + 1;
            char *grown = realloc(buf, cap + 1);
            if (!grown)
                free(buf);
            buf = grown;
        }
    }
    if (!buf)
        return nib_error_set(err, NIB_E_MEMORY, "no memory left to read '%s'", path);
    if (number != 0 || used > max_bytes) {
        free(buf);
        if (number != 0)
            return io_error(err, "read", path, number);
        return nib_error_set(err, NIB_E_FORMAT, "'%s' has more than %zu bytes, the most allowed here", path, max_bytes);
    }
    buf[used] = '\0';
    *data = buf;
    *n = used;
    return NIB_OK;
}

enum nib_status nib_file_read(const char *path, size_t max_bytes, char **data, size_t *n, struct nib_error *err)
{
    *data = NULL;
    *n = 0;
    if (max_bytes > SIZE_MAX / 4)
        max_bytes = SIZE_MAX / 4;
    /* Non-blocking, so that a FIFO under this name is refused below rather than waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return io_error(err, "open", path, errno);

    enum nib_status status;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        status = io_error(err, "read", path, errno);
    } else if (S_ISDIR(st.st_mode)) {
        status = io_error(err, "read", path, EISDIR);
    } else if (!S_ISREG(st.st_mode)) {
        status = nib_error_set(err, NIB_E_IO, "'%s' is not a regular file", path);
    } else if (st.st_size > 0 && (uint64_t)st.st_size > max_bytes) {
        status = nib_error_set(err, NIB_E_FORMAT, "'%s' has %lld bytes, the most allowed here is %zu", path,
                               (long long)st.st_size, max_bytes);
    } else {
        status = read_all(fd, st.st_size > 0 ? (size_t)st.st_size : 4095, path, max_bytes, data, n, err);
    }
    (void)close(fd);
    return status;
}
