/* Breaking PTX line by line. */
#include "ptxsim/ptx_break.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096, ROOM = 65536 }; /* ROOM: what all changes together may add */

char *ptx_text(const char *dir, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.ptx", dir, name);
    FILE *f = fopen(path, "r");
    if (!f)
        return NULL;
    char  *text = calloc(1, 4 << 20);
    size_t n = text ? fread(text, 1, (4 << 20) - 1, f) : 0;
    (void)fclose(f);
    if (n > 0)
        return text;
    free(text);
    return NULL;
}

static void edit_line(char *out, size_t bytes, const char *line, const struct ptx_breakage *b)
{
    const char *end = strrchr(line, ';');
    switch (b->how) {
    case PTX_DELETE: (void)snprintf(out, bytes, "\n"); return;
    case PTX_SKIP_WAIT: (void)snprintf(out, bytes, "setp.eq.u32 p, 0, 0;\n"); return;
    case PTX_REPLACE: {
        const char *at = strstr(line, b->text);
        (void)snprintf(out, bytes, "%.*s%s%s", (int)(at - line), line, b->with, at + strlen(b->text));
        return;
    }
    case PTX_LAST: {
        const char *comma = end;
        while (*comma != ',')
            comma--;
        (void)snprintf(out, bytes, "%.*s, %s;\n", (int)(comma - line), line, b->with);
        return;
    }
    }
}

char *ptx_broken(const char *text, const char *entry, const struct ptx_breakage *b)
{
    char        mark[128], line[LINE], changed[LINE + 128];
    char       *out = malloc(strlen(text) + ROOM), *to = out;
    const char *at = text;
    bool        inside = false;
    int         n = 0, hits = 0;
    if (!out)
        return NULL;
    (void)snprintf(mark, sizeof mark, ".entry %s(", entry);
    while (*at) {
        const char *next = strchr(at, '\n');
        size_t      length = next ? (size_t)(next - at) + 1 : strlen(at);
        if (length >= sizeof line)
            break;
        memcpy(line, at, length);
        line[length] = 0;
        at += length;
        if (strstr(line, ".entry "))
            inside = strstr(line, mark) != NULL;
        const char *write = line;
        if (inside && strstr(line, b->text) && (b->nth < 0 || n == b->nth)) {
            edit_line(changed, sizeof changed, line, b);
            write = changed;
            hits++;
        }
        n += inside && strstr(line, b->text);
        to += sprintf(to, "%s", write);
    }
    if (hits > 0 && !*at)
        return out;
    free(out);
    return NULL;
}
