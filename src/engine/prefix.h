/* Beginnings of sequences worth keeping: a tree over token ids in which every edge is one page of tokens, and some
 * nodes hold a snapshot (a fork made when a sequence stood exactly there). A page boundary is where a fork shares
 * everything: the window is one full page and the long compressors hold nothing.
 *
 * Snapshots take sequence slots of the engine; the least recently used one goes first. Not thread-safe. */
#ifndef NIB_PREFIX_H
#define NIB_PREFIX_H

#include "engine/engine.h"

struct nib_prefix_node;

struct nib_prefix {
    struct nib_prefix_node *first; /* of the top level */
    int32_t                 n_snapshots, n_snapshots_max;
    uint64_t                clock;
};

void nib_prefix_init(struct nib_prefix *p, int32_t n_snapshots_max);
void nib_prefix_deinit(struct nib_prefix *p); /* closes every snapshot */

/* The longest snapshot that begins ids[0..n) and is shorter than n, used now; NULL if there is none. *n_hit: its
 * length; *n_known: the length up to which the tree knows these ids, n_hit or more. Only what was put under the same
 * salt is found. */
struct nib_seq *nib_prefix_match(struct nib_prefix *p, uint64_t salt, const int32_t *ids, int32_t n, int32_t *n_hit,
                                 int32_t *n_known);

/* Keep a fork of seq, which holds exactly ids[0..n), n a positive multiple of NIB_PAGE_TOKENS. Where one is kept
 * already it counts as used. Failing to make room or a fork is no error: the cache just does not grow. */
void nib_prefix_put(struct nib_prefix *p, uint64_t salt, const int32_t *ids, int32_t n, struct nib_seq *seq);

/* The snapshot of exactly ids[0..n), if there is one, is the next to go. */
void nib_prefix_demote(struct nib_prefix *p, uint64_t salt, const int32_t *ids, int32_t n);

/* Drop the least recently used snapshot; false if there is none. */
bool nib_prefix_evict(struct nib_prefix *p);

#endif
