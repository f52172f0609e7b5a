/* Nodes are few (a page each of the kept beginnings), so siblings are lists and the oldest is found by a walk. */
#include "engine/prefix.h"

#include <stdlib.h>
#include <string.h>

struct nib_prefix_node {
    struct nib_prefix_node *parent, *child, *next;
    struct nib_seq         *snapshot; /* NULL: only on the way to others */
    uint64_t                salt, used;
    int32_t                 ids[NIB_PAGE_TOKENS];
};

void nib_prefix_init(struct nib_prefix *p, int32_t n_snapshots_max)
{
    *p = (struct nib_prefix){.n_snapshots_max = n_snapshots_max};
}

static struct nib_prefix_node *find_child(struct nib_prefix_node *first, uint64_t salt, const int32_t *ids)
{
    for (struct nib_prefix_node *c = first; c; c = c->next)
        if (c->salt == salt && memcmp(c->ids, ids, sizeof c->ids) == 0)
            return c;
    return NULL;
}

/* Take out a node that holds nothing and leads nowhere, and its ancestors where that makes them so. */
static void prune(struct nib_prefix *p, struct nib_prefix_node *node)
{
    while (node && !node->snapshot && !node->child) {
        struct nib_prefix_node *parent = node->parent;
        struct nib_prefix_node **link = parent ? &parent->child : &p->first;
        while (*link != node)
            link = &(*link)->next;
        *link = node->next;
        free(node);
        node = parent;
    }
}

static void drop_snapshot(struct nib_prefix *p, struct nib_prefix_node *node)
{
    nib_seq_close(node->snapshot);
    node->snapshot = NULL;
    p->n_snapshots--;
    prune(p, node);
}

/* The node after `node` in depth-first order, children first. */
static struct nib_prefix_node *following(struct nib_prefix_node *node)
{
    if (node->child)
        return node->child;
    while (node && !node->next)
        node = node->parent;
    return node ? node->next : NULL;
}

bool nib_prefix_evict(struct nib_prefix *p)
{
    struct nib_prefix_node *oldest = NULL;
    for (struct nib_prefix_node *n = p->first; n; n = following(n))
        if (n->snapshot && (!oldest || n->used < oldest->used))
            oldest = n;
    if (oldest)
        drop_snapshot(p, oldest);
    return oldest != NULL;
}

void nib_prefix_deinit(struct nib_prefix *p)
{
    while (nib_prefix_evict(p))
        continue;
}

struct nib_seq *nib_prefix_match(struct nib_prefix *p, uint64_t salt, const int32_t *ids, int32_t n, int32_t *n_hit,
                                 int32_t *n_known)
{
    struct nib_prefix_node *level = p->first, *best = NULL;
    *n_hit = *n_known = 0;
    for (int32_t end = NIB_PAGE_TOKENS; end < n; end += NIB_PAGE_TOKENS) {
        struct nib_prefix_node *node = find_child(level, salt, ids + end - NIB_PAGE_TOKENS);
        if (!node)
            break;
        *n_known = end;
        if (node->snapshot) {
            best = node;
            *n_hit = end;
        }
        level = node->child;
    }
    if (!best)
        return NULL;
    best->used = ++p->clock;
    return best->snapshot;
}

/* The node of ids[0..n), made with its ancestors where missing; NULL without memory. */
static struct nib_prefix_node *make_path(struct nib_prefix *p, uint64_t salt, const int32_t *ids, int32_t n)
{
    struct nib_prefix_node *parent = NULL;
    for (int32_t at = 0; at < n; at += NIB_PAGE_TOKENS) {
        struct nib_prefix_node **first = parent ? &parent->child : &p->first;
        struct nib_prefix_node *node = find_child(*first, salt, ids + at);
        if (!node) {
            node = calloc(1, sizeof *node);
            if (!node) {
                prune(p, parent);
                return NULL;
            }
            memcpy(node->ids, ids + at, sizeof node->ids);
            node->salt = salt;
            node->parent = parent;
            node->next = *first;
            *first = node;
        }
        parent = node;
    }
    return parent;
}

static struct nib_prefix_node *find(const struct nib_prefix *p, uint64_t salt, const int32_t *ids, int32_t n)
{
    struct nib_prefix_node *level = p->first, *node = NULL;
    for (int32_t at = 0; at < n; at += NIB_PAGE_TOKENS) {
        node = find_child(level, salt, ids + at);
        if (!node)
            return NULL;
        level = node->child;
    }
    return node;
}

void nib_prefix_put(struct nib_prefix *p, uint64_t salt, const int32_t *ids, int32_t n, struct nib_seq *seq)
{
    struct nib_prefix_node *node = find(p, salt, ids, n);
    if (p->n_snapshots_max == 0)
        return;
    if (!node || !node->snapshot) {
        /* Room first: that takes nodes away, and the new one may seem to lead nowhere. */
        while (p->n_snapshots >= p->n_snapshots_max)
            (void)nib_prefix_evict(p);
        node = make_path(p, salt, ids, n);
        if (!node)
            return;
        if (nib_seq_fork(seq, &node->snapshot, NULL) != NIB_OK) {
            node->snapshot = NULL;
            prune(p, node);
            return;
        }
        p->n_snapshots++;
    }
    node->used = ++p->clock;
}

void nib_prefix_demote(struct nib_prefix *p, uint64_t salt, const int32_t *ids, int32_t n)
{
    struct nib_prefix_node *node = find(p, salt, ids, n);
    if (node)
        node->used = 0;
}
