/* nib_text carries no capacity: what it surely has is a function of its length, the next power of two. */
#include "base/text_buf.h"

#include <stdlib.h>
#include <string.h>

void nib_text_free(struct nib_text *t)
{
    if (t) {
        free(t->data);
        t->data = NULL;
        t->n = 0;
    }
}

/* Bytes to allocate for n and a NUL. */
static size_t capacity(size_t n)
{
    size_t cap = 16;
    while (cap < n + 1)
        cap *= 2;
    return cap;
}

enum nib_status nib_text_reserve(struct nib_text *t, size_t n)
{
    if (n >= SIZE_MAX / 4 || t->n >= SIZE_MAX / 4)
        return NIB_E_MEMORY;
    size_t cap = capacity(t->n + n);
    if (!t->data || cap > capacity(t->n)) {
        char *data = realloc(t->data, cap);
        if (!data)
            return NIB_E_MEMORY;
        t->data = data;
    }
    t->data[t->n] = '\0';
    return NIB_OK;
}

enum nib_status nib_text_append(struct nib_text *t, const char *bytes, size_t n)
{
    NIB_TRY(nib_text_reserve(t, n));
    if (n > 0)
        memcpy(t->data + t->n, bytes, n);
    t->n += n;
    t->data[t->n] = '\0';
    return NIB_OK;
}

enum nib_status nib_text_append_string(struct nib_text *t, const char *s)
{
    return nib_text_append(t, s, strlen(s));
}
