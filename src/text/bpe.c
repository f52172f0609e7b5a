/* Pairs are found in a hash table by open addressing. Short pieces, nearly all of them, are merged by scanning for the
 * lowest rank. A long piece (a whole request can be one) goes through a linked list and a heap, since repeated scans
 * take quadratic time. */
#include "text/bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NO_RANK UINT32_MAX
#define NONE UINT32_MAX

enum { SCAN_MAX = 32 }; /* ids */

/* A merge adds two candidates at most: three times this many fit 32 bits. */
#define PIECE_MAX ((size_t)1 << 30)

struct slot {
    int32_t  left, right, result; /* left -1: empty */
    uint32_t rank;
};

struct nib_bpe {
    size_t      mask; /* slots - 1, a power of two less one; at most half of the slots are used */
    struct slot slot[];
};

static size_t pair_hash(int32_t left, int32_t right)
{
    uint64_t h = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    h ^= h >> 31;
    h *= UINT64_C(0x9E3779B97F4A7C15);
    h ^= h >> 29;
    h *= UINT64_C(0xD6E8FEB86659FD93);
    return (size_t)(h ^ h >> 32);
}

/* The slot that holds the pair, or the empty slot where it would go. */
static size_t pair_slot(const struct nib_bpe *b, int32_t left, int32_t right)
{
    size_t i = pair_hash(left, right) & b->mask;
    while (b->slot[i].left != -1 && (b->slot[i].left != left || b->slot[i].right != right))
        i = (i + 1) & b->mask;
    return i;
}

static const struct slot *pair_find(const struct nib_bpe *b, int32_t left, int32_t right)
{
    return &b->slot[pair_slot(b, left, right)];
}

static uint32_t pair_rank(const struct nib_bpe *b, int32_t left, int32_t right)
{
    return pair_find(b, left, right)->rank; /* NO_RANK in empty slots */
}

enum nib_status nib_bpe_open(const struct nib_merge *merge, size_t n, struct nib_bpe **out, size_t *repeated)
{
    *out = NULL;
    assert(n < (size_t)INT32_MAX);
    size_t n_slots = 16;
    while (n_slots < 2 * n)
        n_slots *= 2;
    struct nib_bpe *b = malloc(sizeof *b + n_slots * sizeof b->slot[0]);
    if (!b)
        return NIB_E_MEMORY;
    b->mask = n_slots - 1;
    for (size_t i = 0; i < n_slots; i++)
        b->slot[i] = (struct slot){-1, -1, -1, NO_RANK};

    for (size_t r = 0; r < n; r++) {
        struct slot *s = &b->slot[pair_slot(b, merge[r].left, merge[r].right)];
        if (s->left != -1) {
            *repeated = r;
            nib_bpe_close(b);
            return NIB_E_FORMAT;
        }
        *s = (struct slot){merge[r].left, merge[r].right, merge[r].result, (uint32_t)r};
    }
    *out = b;
    return NIB_OK;
}

void nib_bpe_close(struct nib_bpe *b)
{
    free(b);
}

static size_t merge_by_scan(const struct nib_bpe *b, int32_t *id, size_t n)
{
    uint32_t rank[SCAN_MAX]; /* rank[i] is of the pair i, i + 1 */
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = pair_rank(b, id[i], id[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best])
                best = i;
        }
        if (rank[best] == NO_RANK)
            break;
        id[best] = pair_find(b, id[best], id[best + 1])->result;
        memmove(&id[best + 1], &id[best + 2], (n - best - 2) * sizeof id[0]);
        if (best + 2 < n)
            memmove(&rank[best], &rank[best + 1], (n - best - 2) * sizeof rank[0]);
        n--;
        if (best > 0)
            rank[best - 1] = pair_rank(b, id[best - 1], id[best]);
        if (best + 1 < n)
            rank[best] = pair_rank(b, id[best], id[best + 1]);
    }
    return n;
}

/* A long piece at work. Places are indices into the piece as it was; the ids that are left form a list of places.
 *
 * Candidates, pairs that had a merge when they were noted, leave in order of (rank, place). They are kept as runs:
 * chains of one rank with ascending places. The heap holds the first candidate of each run only. Since merging one rank
 * walks the text from left to right, the pairs that it makes come in runs as well, and the heap stays small; at worst
 * every run is a single candidate. A candidate is not taken out when its pair disappears: it is stale if its rank is
 * not the place's present one. */
struct candidate {
    uint32_t place, next; /* next of the run; NONE at its end */
};

struct run {
    uint64_t order; /* rank << 32 | place of the first candidate */
    uint32_t first;
};

/* The run of a rank that was last added to, to be found again. Ranks share entries, and whoever comes last has it: a
 * forgotten run only means that a new one begins. */
struct open_run {
    uint32_t rank, last; /* rank NO_RANK: none */
};

enum { OPEN_RUNS_MAX = 4096 };

struct long_piece {
    const struct nib_bpe *bpe;
    int32_t              *id;
    uint32_t             *previous, *next; /* by place; NONE at the ends */
    uint32_t             *rank; /* by place, of the pair that begins there; NO_RANK if there is no such merge or id */

    struct candidate *candidate;
    size_t            n_candidates, n_candidates_cap;
    struct run       *heap;
    size_t            n_heap, n_heap_cap;
    struct open_run  *open; /* [open_mask + 1], by low bits of the rank */
    uint32_t          open_mask;
};

/* The array, moved if it has no room for one more item than n; NULL if that fails, the old array stays then. */
static void *grown(void *array, size_t *cap, size_t n, size_t item_bytes)
{
    if (n < *cap)
        return array;
    size_t wanted = *cap < 64 ? 64 : 2 * *cap;
    void *moved = wanted <= SIZE_MAX / item_bytes ? realloc(array, wanted * item_bytes) : NULL;
    if (moved)
        *cap = wanted;
    return moved;
}

static void heap_rise(struct run *heap, size_t i, struct run r)
{
    for (; i > 0 && r.order < heap[(i - 1) / 2].order; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = r;
}

static void heap_sink(struct run *heap, size_t n, struct run r)
{
    size_t i = 0;
    for (size_t child = 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && heap[child + 1].order < heap[child].order)
            child++;
        if (heap[child].order >= r.order)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = r;
}

static uint64_t run_order(uint32_t rank, uint32_t place)
{
    return (uint64_t)rank << 32 | place;
}

static enum nib_status candidate_add(struct long_piece *p, uint32_t rank, uint32_t place)
{
    struct candidate *candidate = grown(p->candidate, &p->n_candidates_cap, p->n_candidates, sizeof *candidate);
    if (!candidate)
        return NIB_E_MEMORY;
    p->candidate = candidate;
    uint32_t c = (uint32_t)p->n_candidates;
    p->candidate[p->n_candidates++] = (struct candidate){place, NONE};

    struct open_run *open = &p->open[rank & p->open_mask];
    if (open->rank == rank && p->candidate[open->last].place < place) {
        p->candidate[open->last].next = c;
    } else {
        struct run *heap = grown(p->heap, &p->n_heap_cap, p->n_heap, sizeof *heap);
        if (!heap)
            return NIB_E_MEMORY;
        p->heap = heap;
        heap_rise(heap, p->n_heap++, (struct run){run_order(rank, place), c});
    }
    *open = (struct open_run){rank, c};
    return NIB_OK;
}

/* Take out the first of all candidates; the heap is not empty. */
static void candidate_take(struct long_piece *p, uint32_t *rank, uint32_t *place)
{
    struct run r = p->heap[0];
    *rank = (uint32_t)(r.order >> 32);
    *place = (uint32_t)r.order;
    uint32_t next = p->candidate[r.first].next;
    if (next != NONE) {
        heap_sink(p->heap, p->n_heap, (struct run){run_order(*rank, p->candidate[next].place), next});
        return;
    }
    struct open_run *open = &p->open[*rank & p->open_mask];
    if (open->rank == *rank && open->last == r.first)
        open->rank = NO_RANK;
    struct run last = p->heap[--p->n_heap];
    if (p->n_heap > 0)
        heap_sink(p->heap, p->n_heap, last);
}

/* Note the pair that begins at `place`, one of whose ids is new. */
static enum nib_status pair_note(struct long_piece *p, uint32_t place)
{
    uint32_t next = p->next[place];
    p->rank[place] = next != NONE ? pair_rank(p->bpe, p->id[place], p->id[next]) : NO_RANK;
    return p->rank[place] != NO_RANK ? candidate_add(p, p->rank[place], place) : NIB_OK;
}

static enum nib_status long_merge(struct long_piece *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        p->previous[i] = i > 0 ? i - 1 : NONE;
        p->next[i] = i + 1 < n ? i + 1 : NONE;
        NIB_TRY(pair_note(p, i));
    }
    while (p->n_heap > 0) {
        uint32_t rank, place;
        candidate_take(p, &rank, &place);
        if (p->rank[place] != rank)
            continue;
        uint32_t gone = p->next[place], after = p->next[gone];
        p->id[place] = pair_find(p->bpe, p->id[place], p->id[gone])->result;
        p->rank[gone] = NO_RANK;
        p->next[place] = after;
        if (after != NONE)
            p->previous[after] = place;
        if (p->previous[place] != NONE)
            NIB_TRY(pair_note(p, p->previous[place]));
        NIB_TRY(pair_note(p, place));
    }
    return NIB_OK;
}

static enum nib_status merge_long(const struct nib_bpe *b, int32_t *id, size_t *n)
{
    uint32_t n_open = 1;
    while (n_open < *n && n_open < OPEN_RUNS_MAX)
        n_open *= 2;
    struct long_piece p = {.bpe = b, .id = id, .open_mask = n_open - 1};
    p.rank = malloc(*n * 3 * sizeof *p.rank);
    p.open = malloc(n_open * sizeof *p.open);
    enum nib_status status = NIB_E_MEMORY;
    if (p.rank && p.open) {
        p.previous = p.rank + *n;
        p.next = p.previous + *n;
        for (uint32_t i = 0; i < n_open; i++)
            p.open[i] = (struct open_run){NO_RANK, 0};
        status = long_merge(&p, (uint32_t)*n);
    }
    if (status == NIB_OK) {
        size_t kept = 0;
        for (uint32_t place = 0; place != NONE; place = p.next[place])
            id[kept++] = id[place];
        *n = kept;
    }
    free(p.heap);
    free(p.candidate);
    free(p.open);
    free(p.rank);
    return status;
}

enum nib_status nib_bpe_apply(const struct nib_bpe *b, int32_t *id, size_t *n)
{
    if (*n > PIECE_MAX)
        return NIB_E_LIMIT;
    if (*n > SCAN_MAX)
        return merge_long(b, id, n);
    *n = merge_by_scan(b, id, *n);
    return NIB_OK;
}
