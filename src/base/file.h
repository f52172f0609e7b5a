/* Small files, read whole. Weights are mapped by the checkpoint folder instead. */
#ifndef NIB_FILE_H
#define NIB_FILE_H

#include "base/status.h"

/* Read the file at `path` into fresh memory: *data holds *n bytes and a NUL behind them; the caller frees it. A file of
 * more than `max_bytes` is refused (NIB_E_FORMAT) without reading more of it. NIB_E_IO names the path and the system's
 * reason, for a folder too, and for anything else that is not a regular file: such could be waited for without end. On
 * failure *data is NULL and *n is 0. Safe from any thread. */
enum nib_status nib_file_read(const char *path, size_t max_bytes, char **data, size_t *n, struct nib_error *err);

/* Write the system's text for an errno value into buf, which is also returned. Safe from any thread. */
const char *nib_errno_text(int number, char *buf, size_t n_buf);

/* "dir/name" in fresh memory, NULL when there is none left; the caller frees it. */
char *nib_path_join(const char *dir, const char *name);

/* Whether `path` exists and is a folder (through links). */
bool nib_path_is_dir(const char *path);

#endif
