/* Happens-before in tensor memory, by the rules of the ISA's consistency model for tcgen05.
 *
 * Work (products, copies) is over for a warp that has seen the phase of an mbarrier to which a later commit of the
 * issuing warp arrived. Accesses to tensor memory count what was seen only up to the warp's last
 * fence::after_thread_sync. A warp's own loads and stores are over for others once it has waited for them, then
 * fenced before_thread_sync, and the others have synchronised with what it did then. Between work of one warp:
 * copies and products are in order before later products, nothing else. */
#include "ptxsim/sim_tcgen05.h"

#include <stdlib.h>
#include <string.h>

static struct px_cta *block_of(const struct px_warp *w, uint32_t actor)
{
    return &w->cta->cluster->cta[actor / w->cta->n_warps];
}

struct px_tcgen05 *px_tc_of(struct px_cta *c)
{
    if (c->tcgen05)
        return c->tcgen05;
    struct px_tcgen05 *t = calloc(1, sizeof *t);
    if (!t || !(t->warp = calloc(c->n_warps, sizeof *t->warp)))
        px_trap(c->m, "no memory for tensor memory");
    c->tcgen05 = t;
    sim_tmem_reset(&t->tmem);
    for (uint32_t x = 0; x < c->n_warps; x++) {
        t->warp[x].after = calloc(c->cluster->n_actors, sizeof *t->warp[x].after);
        if (!t->warp[x].after)
            px_trap(c->m, "no memory for tensor memory");
    }
    return t;
}

void px_tcgen05_free(struct px_cta *c)
{
    struct px_tcgen05 *t = c->tcgen05;
    if (!t)
        return;
    while (t->work) {
        struct px_tc_work *k = t->work;
        t->work = k->next;
        free(k->clock);
        free(k);
    }
    for (uint32_t x = 0; x < c->n_warps; x++)
        free(t->warp[x].after);
    free(t->warp);
    free(t->commit);
    free(t);
    c->tcgen05 = NULL;
}

/* ---- Who knows what ---- */

/* Whether work is over by what `clock` has seen. */
static bool over(const struct px_warp *w, struct px_tc_ref ref, const uint32_t *clock)
{
    const struct px_tcgen05 *t = block_of(w, ref.actor)->tcgen05;
    for (uint32_t n = t->n_commits; n-- > 0 && t->commit[n].seq > ref.seq;) {
        for (uint32_t b = 0; b < t->commit[n].n && t->commit[n].actor == ref.actor; b++) {
            if (clock[t->commit[n].bar_actor[b]] >= t->commit[n].phase[b])
                return true;
        }
    }
    return false;
}

static const uint32_t *after_of(const struct px_warp *w)
{
    return w->cta->tcgen05->warp[w->id].after;
}

static void need_over(struct px_warp *w, struct px_tc_ref ref, uint32_t column, const char *what)
{
    if (over(w, ref, after_of(w)))
        return;
    if (over(w, ref, w->clock))
        px_trap(w->cta->m, "column %u: %s, seen as over without tcgen05.fence::after_thread_sync behind it", column,
                what);
    px_trap(w->cta->m, "column %u: %s, which is not known to be over: no wait for a commit behind it", column, what);
}

/* A load or store of warp `actor`, at `clock`. */
static void need_warp(struct px_warp *w, uint32_t actor, uint32_t clock, uint32_t column, bool loads,
                      const char *what)
{
    if (actor == w->actor && clock != UINT32_MAX)
        return;
    const struct px_tc_warp *own = &w->cta->tcgen05->warp[w->id];
    /* A warp's own accesses are in order once it has waited for them. */
    if (actor == w->actor && (loads ? own->loads_over : own->stores_over))
        return;
    if (clock == UINT32_MAX)
        px_trap(w->cta->m, "column %u: %s of warp %u without tcgen05.wait or fence::before_thread_sync behind it",
                column, what, actor % w->cta->n_warps);
    if (after_of(w)[actor] >= clock)
        return;
    px_trap(w->cta->m, "column %u: %s of warp %u, %s", column, what, actor % w->cta->n_warps,
            w->clock[actor] >= clock ? "seen without tcgen05.fence::after_thread_sync behind it"
                                     : "not synchronised with");
}

static void need_allocation(struct px_warp *w, struct px_cta *c, uint32_t column)
{
    struct px_tcgen05 *t = c->tcgen05;
    if (t->tmem.owner[column / SIM_TMEM_UNIT] < 0)
        px_trap(w->cta->m, "column %u of tensor memory is not allocated", column);
    if (t->alloc_actor[column] != w->actor)
        need_warp(w, t->alloc_actor[column], t->alloc_clock[column], column, false,
                  "tensor memory from the tcgen05.alloc");
}

/* ---- Accesses ---- */

static void note(struct px_warp *w, struct px_tc_range *list, uint32_t *n, struct px_tc_range r)
{
    if (*n == 64)
        px_trap(w->cta->m, "more than 64 accesses to tensor memory before tcgen05.wait");
    list[(*n)++] = r;
}

void px_tc_load(struct px_warp *w, struct px_tc_range r)
{
    struct px_tcgen05 *t = w->cta->tcgen05;
    struct px_tc_warp *own = &t->warp[w->id];
    for (uint32_t c = r.column; c < r.column + r.n; c++) {
        struct px_tc_cell *cell = &t->cell[r.quarter][c];
        need_allocation(w, w->cta, c);
        if (cell->writer == PX_TC_PIPE)
            need_over(w, cell->write, c, "loads the result of a product or copy");
        else if (cell->writer == PX_TC_WARP)
            need_warp(w, w->cta->rank * w->cta->n_warps + cell->write.actor, cell->clock, c, false,
                      "loads a tcgen05.st");
        cell->loaded[w->id / 4 % 8] = UINT32_MAX;
    }
    own->loads_over = false;
    note(w, own->load, &own->n_loads, r);
}

static void need_loads(struct px_warp *w, struct px_cta *c, uint32_t quarter, uint32_t column)
{
    for (uint32_t x = 0; x < 8; x++) {
        uint32_t clock = c->tcgen05->cell[quarter][column].loaded[x];
        if (clock)
            need_warp(w, c->rank * c->n_warps + quarter + 4 * x, clock, column, true,
                      "overwrites what is loaded by tcgen05.ld");
    }
}

void px_tc_store(struct px_warp *w, struct px_tc_range r)
{
    struct px_tcgen05 *t = w->cta->tcgen05;
    struct px_tc_warp *own = &t->warp[w->id];
    for (uint32_t c = r.column; c < r.column + r.n; c++) {
        struct px_tc_cell *cell = &t->cell[r.quarter][c];
        need_allocation(w, w->cta, c);
        need_loads(w, w->cta, r.quarter, c);
        if (cell->writer == PX_TC_PIPE)
            need_over(w, cell->write, c, "overwrites the result of a product or copy");
        if (cell->pipe_read)
            need_over(w, cell->read, c, "overwrites what a product reads");
        *cell = (struct px_tc_cell){.writer = PX_TC_WARP, .write.actor = (uint16_t)w->id, .clock = UINT32_MAX};
    }
    own->stores_over = false;
    note(w, own->store, &own->n_stores, r);
}

void px_tc_pipe(struct px_warp *w, struct px_cta *c, struct px_tc_ref ref, bool write, bool copy, uint32_t column,
                uint32_t n)
{
    struct px_tcgen05 *t = px_tc_of(c);
    (void)px_tc_of(w->cta);
    if (column + n > SIM_TMEM_COLUMNS)
        px_trap(w->cta->m, "columns %u to %u lie outside tensor memory", column, column + n - 1);
    for (uint32_t at = column; at < column + n; at++) {
        need_allocation(w, c, at);
        for (uint32_t q = 0; q < 4; q++) {
            struct px_tc_cell *cell = &t->cell[q][at];
            /* What this warp issued before is in order, except that a copy may pass both copies and products. */
            if (cell->writer == PX_TC_PIPE && (copy || cell->write.actor != w->actor))
                need_over(w, cell->write, at,
                          write ? "overwrites the result of a product or copy"
                                : "reads the result of a product or copy");
            if (cell->writer == PX_TC_WARP)
                need_warp(w, c->rank * c->n_warps + cell->write.actor, cell->clock, at, false, "follows a tcgen05.st");
            if (!write) {
                cell->pipe_read = true;
                cell->read = ref;
                continue;
            }
            need_loads(w, c, q, at);
            if (cell->pipe_read && (cell->read.actor != w->actor || (copy && !c->m->config.copies_wait_for_products)))
                need_over(w, cell->read, at, "overwrites what a product reads");
            *cell = (struct px_tc_cell){.writer = PX_TC_PIPE, .write = ref};
        }
    }
}

void px_tc_allocated(struct px_warp *w, uint32_t column, uint32_t n)
{
    struct px_tcgen05 *t = w->cta->tcgen05;
    for (uint32_t c = column; c < column + n; c++) {
        for (uint32_t q = 0; q < 4; q++)
            t->cell[q][c] = (struct px_tc_cell){.writer = PX_TC_NOBODY};
        t->alloc_actor[c] = (uint16_t)w->actor;
        t->alloc_clock[c] = UINT32_MAX;
    }
}

void px_tc_released(struct px_warp *w, uint32_t column, uint32_t n)
{
    struct px_tcgen05 *t = w->cta->tcgen05;
    for (uint32_t c = column; c < column + n && c < SIM_TMEM_COLUMNS; c++) {
        for (uint32_t q = 0; q < 4; q++) {
            struct px_tc_cell *cell = &t->cell[q][c];
            need_loads(w, w->cta, q, c);
            if (cell->writer == PX_TC_PIPE)
                need_over(w, cell->write, c, "frees the result of a product or copy");
            if (cell->pipe_read)
                need_over(w, cell->read, c, "frees what a product reads");
            if (cell->writer == PX_TC_WARP)
                need_warp(w, w->cta->rank * w->cta->n_warps + cell->write.actor, cell->clock, c, false,
                          "frees a tcgen05.st");
        }
    }
}

/* ---- Waits and fences ---- */

void px_tc_wait(struct px_warp *w, bool loads)
{
    struct px_tc_warp *own = &px_tc_of(w->cta)->warp[w->id];
    if (loads)
        own->loads_over = true;
    else
        own->stores_over = true;
}

void px_tc_fence(struct px_warp *w, bool after)
{
    struct px_tcgen05 *t = px_tc_of(w->cta);
    struct px_tc_warp *own = &t->warp[w->id];
    uint32_t           now = w->clock[w->actor];
    if (after) {
        memcpy(own->after, w->clock, w->cta->cluster->n_actors * sizeof *own->after);
        return;
    }
    for (uint32_t c = 0; c < SIM_TMEM_COLUMNS; c++) {
        if (t->tmem.owner[c / SIM_TMEM_UNIT] >= 0 && t->alloc_actor[c] == w->actor && t->alloc_clock[c] == UINT32_MAX)
            t->alloc_clock[c] = now;
    }
    for (uint32_t k = 0; k < own->n_loads && own->loads_over; k++) {
        for (uint32_t c = own->load[k].column; c < own->load[k].column + own->load[k].n; c++)
            t->cell[own->load[k].quarter][c].loaded[w->id / 4 % 8] = now;
    }
    for (uint32_t k = 0; k < own->n_stores && own->stores_over; k++) {
        for (uint32_t c = own->store[k].column; c < own->store[k].column + own->store[k].n; c++) {
            if (t->cell[own->store[k].quarter][c].writer == PX_TC_WARP)
                t->cell[own->store[k].quarter][c].clock = now;
        }
    }
    own->n_loads = own->loads_over ? 0 : own->n_loads;
    own->n_stores = own->stores_over ? 0 : own->n_stores;
}

void px_tc_committed(struct px_machine *m, const struct px_tc_work *k)
{
    struct px_cluster *cluster = k->warp->cta->cluster;
    struct px_tcgen05 *t = k->warp->cta->tcgen05;
    if (t->n_commits == t->max_commits) {
        t->max_commits = t->max_commits ? 2 * t->max_commits : 64;
        struct px_tc_commit *grown = realloc(t->commit, t->max_commits * sizeof *grown);
        if (!grown)
            px_trap(m, "no memory for commits");
        t->commit = grown;
    }
    struct px_tc_commit *commit = &t->commit[t->n_commits++];
    *commit = (struct px_tc_commit){.actor = k->ref.actor, .seq = k->ref.seq};
    for (uint32_t r = 0; r < cluster->n_ctas; r++) {
        if (!(k->mask >> r & 1))
            continue;
        struct px_mbarrier *b = px_mbarrier_at(m, &cluster->cta[r], k->bar);
        commit->bar_actor[commit->n] = px_mbarrier_actor(&cluster->cta[r], b);
        commit->phase[commit->n++] = b->phase + 1;
    }
    for (uint32_t r = 0; r < cluster->n_ctas; r++) {
        if (!(k->mask >> r & 1))
            continue;
        px_clock_join(cluster, px_mbarrier_at(m, &cluster->cta[r], k->bar)->clock, k->clock);
        px_mbarrier_arrive(m, &cluster->cta[r], px_mbarrier_at(m, &cluster->cta[r], k->bar), 1);
    }
}

/* ---- Shared memory ---- */

void px_tcgen05_overwrites(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes)
{
    for (uint32_t block = offset / 1024; block <= (offset + bytes - 1) / 1024; block++) {
        if (!c->tcgen05->read[block])
            continue;
        if (!over(w, c->tcgen05->reads[block], w->clock))
            px_trap(w->cta->m, "shared memory at %u is overwritten while a product or tcgen05.cp may still read it",
                    offset - PX_SHARED_FIRST);
        c->tcgen05->read[block] = false;
    }
}
