/* Lines "SUM KEY PART VERDICT" behind a first line that names the file; SUM is the hash of what follows it in its line.
 * A line with another sum is no line. */
#include "backend/verdicts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { BYTES_MOST = 65536, LINE_MOST = 1024, LINES_KEPT = 64 };

static const char first_line[] = "What nibble's self-test of kernels found here. Without this file it runs again.\n";
static const char passed[] = "passed", failed[] = "failed: ";

uint64_t nib_verdict_hash(uint64_t h, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; n > 0; p++, n--)
        h = (h ^ *p) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* The whole file, if it is ours; freed by the caller. exists: whether any is there. */
static char *read_ours(const char *path, bool *exists)
{
    char  *text = NULL;
    size_t n;
    *exists = access(path, F_OK) == 0;
    if (nib_file_read(path, BYTES_MOST, &text, &n, NULL) != NIB_OK)
        return NULL;
    if (strlen(text) == n && strncmp(text, first_line, sizeof first_line - 1) == 0)
        return text;
    free(text);
    return NULL;
}

/* What follows the sum of a line that is whole: its length, and the verdict's place; 0 if it is none. */
static size_t parse(const char *line, size_t n, const char *start, size_t n_start, const char **verdict)
{
    char     sum[17];
    uint64_t h;
    if (n < 18 + n_start || n > LINE_MOST || line[16] != ' ')
        return 0;
    h = nib_verdict_hash(0, line + 17, n - 17);
    (void)snprintf(sum, sizeof sum, "%016" PRIx64, h);
    if (memcmp(sum, line, 16) != 0)
        return 0;
    *verdict = strncmp(line + 17, start, n_start) == 0 ? line + 17 + n_start : NULL;
    return n - 17;
}

/* A part's name has no blanks. */
static size_t start_of(char start[96], uint64_t key, const char *part)
{
    int n = snprintf(start, 96, "%016" PRIx64 " %s ", key, part);
    return n > 0 && n < 96 ? (size_t)n : 0;
}

bool nib_verdict_find(const char *path, uint64_t key, const char *part, char *why, size_t why_bytes)
{
    char   start[96];
    size_t n_start = start_of(start, key, part);
    bool   exists, found = false;
    char  *text = path && n_start > 0 ? read_ours(path, &exists) : NULL;
    for (char *line = text, *end; line && (end = strchr(line, '\n')) && !found; line = end + 1) {
        const char *verdict;
        *end = 0;
        if (parse(line, (size_t)(end - line), start, n_start, &verdict) == 0 || !verdict)
            continue;
        bool bad = strncmp(verdict, failed, sizeof failed - 1) == 0 && verdict[sizeof failed - 1] != 0;
        found = bad || strcmp(verdict, passed) == 0;
        if (found)
            (void)snprintf(why, why_bytes, "%s", bad ? verdict + sizeof failed - 1 : "");
    }
    free(text);
    return found;
}

/* ---- Keeping ---- */

/* The lines of text that are whole and of other parts, the last ones of them. */
static void write_others(FILE *f, char *text, const char *start, size_t n_start)
{
    char  *kept[LINES_KEPT];
    size_t n = 0;
    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        const char *verdict;
        *end = 0;
        if (parse(line, (size_t)(end - line), start, n_start, &verdict) > 0 && !verdict)
            kept[n++ % LINES_KEPT] = line;
    }
    for (size_t i = n > LINES_KEPT ? n - LINES_KEPT : 0; i < n; i++)
        (void)fprintf(f, "%s\n", kept[i % LINES_KEPT]);
}

static void write_line(FILE *f, const char *start, const char *why)
{
    char rest[LINE_MOST - 32];
    (void)snprintf(rest, sizeof rest, "%s%s%s", start, why[0] ? failed : passed, why);
    for (char *c = rest; *c; c++)
        *c = (unsigned char)*c < ' ' ? ' ' : *c;
    (void)fprintf(f, "%016" PRIx64 " %s\n", nib_verdict_hash(0, rest, strlen(rest)), rest);
}

/* The folders before the file, as far as they are missing. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
}

void nib_verdict_keep(const char *path, uint64_t key, const char *part, const char *why)
{
    static const char suffix[] = ".XXXXXX";
    char   start[96];
    size_t n_start = start_of(start, key, part), n_path = path ? strlen(path) : 0;
    bool   exists;
    if (n_path == 0 || n_start == 0)
        return;
    char *text = read_ours(path, &exists), *temporary = malloc(n_path + sizeof suffix);
    if (temporary && (text || !exists)) {
        memcpy(temporary, path, n_path);
        memcpy(temporary + n_path, suffix, sizeof suffix);
        make_folders(temporary);
        int   fd = mkstemp(temporary);
        FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
        if (f) {
            (void)fputs(first_line, f);
            write_others(f, text, start, n_start);
            write_line(f, start, why);
            bool written = !ferror(f) && fflush(f) == 0 && fsync(fd) == 0;
            written = fclose(f) == 0 && written;
            if (!written || rename(temporary, path) != 0)
                (void)unlink(temporary);
        } else if (fd >= 0) {
            (void)close(fd);
            (void)unlink(temporary);
        }
    }
    free(temporary);
    free(text);
}
