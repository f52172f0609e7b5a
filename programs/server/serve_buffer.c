/* Doubling; a failed buffer keeps what it has. */
#include "serve_buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buffer_add(struct buffer *b, const char *bytes, size_t n)
{
    if (b->failed)
        return;
    if (n >= SIZE_MAX / 4 || b->n >= SIZE_MAX / 4) {
        b->failed = true;
        return;
    }
    if (b->n + n + 1 > b->capacity) {
        size_t capacity = b->capacity ? b->capacity : 256;
        while (capacity < b->n + n + 1)
            capacity *= 2;
        char *data = realloc(b->data, capacity);
        if (!data) {
            b->failed = true;
            return;
        }
        b->data = data;
        b->capacity = capacity;
    }
    if (n > 0)
        memcpy(b->data + b->n, bytes, n);
    b->n += n;
    b->data[b->n] = '\0';
}

void buffer_text(struct buffer *b, const char *text)
{
    buffer_add(b, text, strlen(text));
}

void buffer_printf(struct buffer *b, const char *fmt, ...)
{
    char    text[1024];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n > 0)
        buffer_add(b, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

void buffer_json_string(struct buffer *b, const char *text, size_t n)
{
    static const char short_name[0x20] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    size_t            from = 0;
    buffer_add(b, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buffer_add(b, text + from, i - from);
        from = i + 1;
        if (c >= 0x20)
            buffer_printf(b, "\\%c", c);
        else if (short_name[c])
            buffer_printf(b, "\\%c", short_name[c]);
        else
            buffer_printf(b, "\\u%04X", (unsigned)c);
    }
    buffer_add(b, text + from, n - from);
    buffer_add(b, "\"", 1);
}

void buffer_drop_front(struct buffer *b, size_t n)
{
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->n - n);
    b->n -= n;
    b->data[b->n] = '\0';
}

void buffer_free(struct buffer *b)
{
    free(b->data);
    *b = (struct buffer){0};
}
