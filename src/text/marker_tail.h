/* Strings to look for in a text that arrives in pieces: where the first of them is, and how much of the end must wait
 * because it could still become one. */
#ifndef NIB_MARKER_TAIL_H
#define NIB_MARKER_TAIL_H

#include <stdbool.h>
#include <stddef.h>

struct nib_marker {
    const char *text;
    size_t      n;
};

/* The leftmost marker in text[0..n), of those that begin at one place the longest; its position in *at and its number
 * in *which. Markers must not be empty. */
bool nib_marker_find(const char *text, size_t n, const struct nib_marker *marker, size_t n_markers, size_t *at,
                     size_t *which);

/* Length of the longest end of text[0..n) that begins a marker without being all of it. */
size_t nib_marker_tail(const char *text, size_t n, const struct nib_marker *marker, size_t n_markers);

#endif
