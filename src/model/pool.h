/* The memory behind sequences: pages of window rows and of compressed entries, and a frontier slot for each sequence.
 *
 * A page covers NIB_PAGE_TOKENS positions in every layer at once and is reference-counted: forks share pages and copy
 * one before they write into it. Window pages behind the window are given back; entry pages stay while the sequence
 * lives. What is not in pages is the frontier: raw compressor rows that no entry holds yet (rings by absolute
 * position), and, for the MTP block, the last streams. All are rings with n_rollback rows to spare, so the last
 * n_rollback tokens can always be dropped without replay.
 *
 * A page boundary is a natural snapshot: there the window is exactly one page, and the 128-token compressors hold
 * nothing.
 *
 * Not thread-safe; the engine serialises. */
#ifndef NIB_POOL_H
#define NIB_POOL_H

#include "backend/backend.h"
#include "model/config.h"

struct nib_pool_config {
    const struct nib_config *model;
    enum nib_kv              kv;
    int32_t                  n_ctx, n_seqs_max, n_rows_max, n_rollback;
    int32_t                  n_pages; /* of entries; 0: full contexts for all sequences */
    bool                     mtp;
};

struct nib_layer_state {
    struct nib_store    window, entries, index;
    struct nib_frontier frontier, index_frontier;
};

struct nib_page_set {
    int32_t  n, n_free;
    int32_t *free_page; /* [n_free] stack */
    int32_t *n_refs;    /* [n] */
};

struct nib_pool {
    struct nib_pool_config        config;
    const struct nib_backend_api *api;
    struct nib_backend           *backend;
    int32_t                       n_layers; /* with the MTP block, which is the last */
    struct nib_layer_state       *layer;
    struct nib_page_set           window, entry;
    int32_t                       page_stride; /* pages of a full context */
    bool                         *slot_used;   /* [n_seqs_max] */
    int32_t                       n_slots_used;
    void                         *streams; /* MTP: [n_seqs_max][n_streams][n_hc * dim] */
    enum nib_dtype                streams_dtype;
    int32_t                       n_streams;
};

struct nib_seq_state {
    int32_t  length;
    int32_t  high; /* one past the highest position ever written since the sequence was empty */
    int32_t  low;  /* rows that only matter below this length were never here (restored state); 0 */
    int32_t  slot;
    int32_t *window_page, *entry_page; /* [page_stride], -1 where not held */
};

/* Bytes on the device: everything, and what one more sequence adds. */
uint64_t nib_pool_bytes(const struct nib_pool_config *c, uint64_t *per_seq);

enum nib_status nib_pool_init(struct nib_pool *p, const struct nib_pool_config *c, const struct nib_backend_api *api,
                              struct nib_backend *b, enum nib_dtype streams_dtype, struct nib_error *err);
void nib_pool_deinit(struct nib_pool *p); /* every sequence's state must have been deinitialised */

/* NIB_E_LIMIT when all slots are taken, NIB_E_MEMORY. */
enum nib_status nib_seq_state_init(struct nib_pool *p, struct nib_seq_state *s);
void            nib_seq_state_deinit(struct nib_pool *p, struct nib_seq_state *s);

/* *to, initialised and empty, becomes a copy of *from. */
enum nib_status nib_seq_state_copy(struct nib_pool *p, struct nib_seq_state *to, const struct nib_seq_state *from);

/* *s, initialised and empty, gets pages for `length` tokens that can be cut to `low` (1 to length) or more, all to be
 * filled by the caller. NIB_E_LIMIT changes nothing. */
enum nib_status nib_seq_state_restore(struct nib_pool *p, struct nib_seq_state *s, int32_t length, int32_t low);

/* Whether all that a sequence cut to `length` (at least 1) needs is still held. */
bool nib_seq_state_can_truncate(const struct nib_pool *p, const struct nib_seq_state *s, int32_t length);

/* The first position whose raw rows a compressor would still need after `length` tokens. */
int32_t nib_first_raw_row(int32_t ratio, int32_t length);

/* See nib_seq_truncate(). */
enum nib_status nib_seq_state_truncate(struct nib_pool *p, struct nib_seq_state *s, int32_t length);

/* Make the positions length .. length+n-1 writable for each of n_seqs sequences: all of them or, on NIB_E_LIMIT,
 * none. */
enum nib_status nib_pool_reserve(struct nib_pool *p, struct nib_seq_state *const *seq, const int32_t *n,
                                 int32_t n_seqs);

/* After a step: the sequence is n tokens longer. n = 0 takes a failed step back. Pages out of reach are given back. */
void nib_seq_state_advance(struct nib_pool *p, struct nib_seq_state *s, int32_t n);

/* Formats of rows under a KV setting. */
enum nib_row_format nib_kv_row_format(enum nib_kv kv);
enum nib_row_format nib_kv_index_format(enum nib_kv kv);

#endif
