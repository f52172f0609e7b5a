/* Added tokens: exact text that becomes one id, found before anything else is cut. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

static int compare_bytes(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order != 0 ? order : (n_a > n_b) - (n_a < n_b);
}

static int compare_added(const void *a, const void *b)
{
    const struct nib_added *x = a, *y = b;
    return compare_bytes(x->bytes, x->n_bytes, y->bytes, y->n_bytes);
}

void nib_added_index(struct nib_tokenizer *t, size_t *repeated)
{
    if (t->n_added > 0)
        qsort(t->added, t->n_added, sizeof t->added[0], compare_added);
    size_t next = 0;
    for (size_t b = 0; b < 256; b++) {
        t->added_first[b] = next;
        while (next < t->n_added && (unsigned char)t->added[next].bytes[0] == b)
            next++;
    }
    t->added_first[256] = next;

    *repeated = t->n_added;
    for (size_t i = 1; i < t->n_added; i++) {
        if (compare_added(&t->added[i - 1], &t->added[i]) == 0)
            *repeated = i;
    }
}

const struct nib_added *nib_added_find(const struct nib_tokenizer *t, const char *bytes, size_t n)
{
    size_t low = 0, high = t->n_added;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_bytes(t->added[middle].bytes, t->added[middle].n_bytes, bytes, n);
        if (order == 0)
            return &t->added[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The first of added[low..high) whose byte at `depth` is at least `byte`. All of them agree before `depth`. */
static size_t first_with_byte(const struct nib_tokenizer *t, size_t low, size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)t->added[middle].bytes[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest added token at the start of text[0..n): narrow the sorted list byte by byte. */
static const struct nib_added *longest_at(const struct nib_tokenizer *t, const char *text, size_t n)
{
    const struct nib_added *best = NULL;
    unsigned char byte = (unsigned char)text[0];
    size_t low = t->added_first[byte], high = t->added_first[byte + 1];
    for (size_t depth = 1; low < high; depth++) {
        if (t->added[low].n_bytes == depth) /* sorted: a whole token comes before those that it begins */
            best = &t->added[low++];
        if (depth == n)
            break;
        byte = (unsigned char)text[depth];
        low = first_with_byte(t, low, high, depth, byte);
        high = first_with_byte(t, low, high, depth, byte + 1u);
    }
    return best;
}

const struct nib_added *nib_added_next(const struct nib_tokenizer *t, const char *text, size_t n, size_t from,
                                       const struct nib_range *literal, size_t n_literal, size_t *at)
{
    size_t l = 0;
    for (size_t i = from; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (t->added_first[byte] == t->added_first[byte + 1])
            continue;
        while (l < n_literal && (literal[l].end <= i || literal[l].start == literal[l].end))
            l++;
        if (l < n_literal && literal[l].start <= i) {
            i = literal[l].end - 1;
            continue;
        }
        const struct nib_added *hit = longest_at(t, text + i, (l < n_literal ? literal[l].start : n) - i);
        if (hit) {
            *at = i;
            return hit;
        }
    }
    return NULL;
}
