/* Bytes that grow. Once memory is used up the buffer stays failed and ignores what comes, so that only the end needs a
 * look. */
#ifndef NIB_SERVE_BUFFER_H
#define NIB_SERVE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

struct buffer {
    char  *data; /* NUL behind n bytes; NULL while empty */
    size_t n, capacity;
    bool   failed;
};

void buffer_add(struct buffer *b, const char *bytes, size_t n);
void buffer_text(struct buffer *b, const char *text);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void buffer_printf(struct buffer *b, const char *fmt, ...); /* at most 1 KiB a call */
void buffer_json_string(struct buffer *b, const char *text, size_t n); /* UTF-8, written as a JSON string in its quotes */
void buffer_drop_front(struct buffer *b, size_t n);
void buffer_free(struct buffer *b);

#endif
