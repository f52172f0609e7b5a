/* What a sequence's state consists of, as rows in device memory: for writing it somewhere else and reading it back.
 *
 * Only rows that a continuation can see are listed, so two sequences that hold the same tokens list the same bytes,
 * whatever either went through before: `floor` is the shortest length that the sequence could still be cut to, and rows
 * that matter to shorter ones only are left out. */
#ifndef NIB_STATE_PARTS_H
#define NIB_STATE_PARTS_H

#include "model/pool.h"

enum nib_part_kind {
    NIB_PART_WINDOW, NIB_PART_ENTRIES, NIB_PART_INDEX, NIB_PART_RAW, NIB_PART_RAW_GATE, NIB_PART_INDEX_RAW, NIB_PART_INDEX_RAW_GATE,
    NIB_PART_STREAMS
};

/* Rows first .. end-1 of one kind in one layer. */
struct nib_state_part {
    enum nib_part_kind kind;
    int32_t            layer, first, end;
    int64_t            row_bytes;
    unsigned char     *base;      /* of the store, or of the sequence's own ring */
    const int32_t     *page;      /* NULL: a ring */
    int32_t            page_rows; /* or rows of the ring */
};

/* Parts of every sequence of this pool, most of them empty for a short one. */
int32_t nib_state_n_parts(const struct nib_pool *p);

/* Part i for a state of length s->length whose rows begin at floor, 1 to length (0 if the length is 0). */
struct nib_state_part nib_state_part(const struct nib_pool *p, const struct nib_seq_state *s, int32_t floor, int32_t i);

/* Where row `row` is, and how many rows from it on, up to end, are side by side there. */
unsigned char *nib_state_part_rows(const struct nib_state_part *part, int32_t row, int32_t *n);

#endif
