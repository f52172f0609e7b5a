/* Plain scans: texts are a delta and the few bytes held back before it, markers short and few. */
#include "text/marker_tail.h"

#include <string.h>

#include "nibble.h"

bool nib_marker_find(const char *text, size_t n, const struct nib_marker *marker, size_t n_markers, size_t *at,
                     size_t *which)
{
    size_t best = n, best_length = 0;
    for (size_t m = 0; m < n_markers; m++) {
        const char first = marker[m].text[0];
        const char *from = text, *end = text + n;
        while ((size_t)(end - from) >= marker[m].n && (size_t)(from - text) <= best) {
            const char *hit = memchr(from, first, (size_t)(end - from));
            if (!hit || (size_t)(end - hit) < marker[m].n || (size_t)(hit - text) > best)
                break;
            if (memcmp(hit, marker[m].text, marker[m].n) == 0) {
                if ((size_t)(hit - text) < best || marker[m].n > best_length) {
                    best = (size_t)(hit - text);
                    best_length = marker[m].n;
                    *which = m;
                }
                break;
            }
            from = hit + 1;
        }
    }
    *at = best;
    return best_length > 0;
}

size_t nib_marker_tail(const char *text, size_t n, const struct nib_marker *marker, size_t n_markers)
{
    size_t longest = 0;
    for (size_t m = 0; m < n_markers; m++) {
        size_t k = marker[m].n - 1 < n ? marker[m].n - 1 : n;
        for (; k > longest; k--)
            if (memcmp(text + n - k, marker[m].text, k) == 0)
                longest = k;
    }
    return longest;
}

size_t nib_stop_find(const char *text, size_t n, const char *const *stop, size_t n_stop, size_t *which)
{
    size_t best = n;
    *which = n_stop;
    for (size_t s = 0; s < n_stop; s++) {
        const struct nib_marker m = {stop[s], strlen(stop[s])};
        size_t at, zero;
        if (m.n > 0 && nib_marker_find(text, n, &m, 1, &at, &zero) && at < best) {
            best = at;
            *which = s;
        }
    }
    return best;
}

size_t nib_stop_tail(const char *text, size_t n, const char *const *stop, size_t n_stop)
{
    size_t longest = 0;
    for (size_t s = 0; s < n_stop; s++) {
        const struct nib_marker m = {stop[s], strlen(stop[s])};
        const size_t k = m.n > 0 ? nib_marker_tail(text, n, &m, 1) : 0;
        longest = k > longest ? k : longest;
    }
    return longest;
}
