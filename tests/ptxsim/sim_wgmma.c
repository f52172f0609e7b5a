/* Products of a warpgroup, four warps whose first is a multiple of four. A product takes effect as late as it may: when a warp
 * waits for its group and all four have issued it. Until then the accumulators hold what they held. */
#include "ptxsim/sim.h"
#include "ptxsim/tensor.h"

#include <stdlib.h>
#include <string.h>

struct px_wgmma {
    struct px_wgmma             *next;
    const struct px_instruction *instruction;
    uint32_t                     group;
    uint64_t                     a, b; /* descriptors */
    bool                         accumulate;
};

static enum sim_element element_of(struct px_machine *m, uint8_t type)
{
    switch (type) {
    case PX_F16: return SIM_F16;
    case PX_BF16: return SIM_BF16;
    case PX_E4M3: return SIM_E4M3;
    case PX_E5M2: return SIM_E5M2;
    default: px_trap(m, "wgmma on this type is missing");
    }
}

/* Operand `group` counted as written. */
static const struct px_operand *written(const struct px_instruction *i, uint32_t group)
{
    uint32_t at = 0;
    for (uint32_t k = 0; k < group; k++)
        at += i->group[k];
    return &i->o[at];
}

static void issue(struct px_warp *w, const struct px_instruction *i)
{
    struct px_machine *m = w->cta->m;
    uint32_t           n = 8u * i->vector;
    if (i->type[0] != PX_F32 || i->group[0] != n / 2 || i->n_groups < 6 || (i->group[1] != 1 && i->group[1] != 4))
        px_trap(m, "this form of wgmma is missing");
    struct px_wgmma *p = calloc(1, sizeof *p), **at = &w->wgmma;
    if (!p)
        px_trap(m, "no memory for a product");
    while (*at)
        at = &(*at)->next;
    *at = p;
    p->instruction = i;
    p->group = w->wgmma_group;
    p->a = i->group[1] == 1 ? px_get(w, written(i, 1), 0) : 0;
    p->b = px_get(w, written(i, 2), 0);
    p->accumulate = px_get(w, written(i, 3), 0) != 0;
    for (uint32_t l = 1; l < PX_LANES; l++) {
        if (px_get(w, written(i, 2), l) != p->b || (i->group[1] == 1 && px_get(w, written(i, 1), l) != p->a))
            px_trap(m, "lane %u gives another descriptor than lane 0", l);
    }
}

/* The products read shared memory by the asynchronous proxy. */
static bool touch(void *context, bool write, uint32_t offset, uint32_t bytes, struct sim_fault *fault)
{
    struct px_warp    *w = context;
    struct px_cta     *c = w->cta;
    struct px_cluster *k = c->cluster;
    (void)write;
    (void)fault;
    if (!px_all_set(c->shared_written + offset, bytes))
        px_trap(c->m, "wgmma reads shared memory at %u, where nobody wrote, or a copy is on its way", offset - PX_SHARED_FIRST);
    for (uint32_t word = offset / 4; c->cell && word * 4 < offset + bytes; word++) {
        struct px_cell *cell = &c->cell[word];
        if (cell->actor != PX_NO_ACTOR && cell->clock > w->clock[cell->actor])
            px_trap(c->m, "wgmma reads shared memory at %u that another wrote, without having waited for it", word * 4 - PX_SHARED_FIRST);
        if (cell->actor < k->n_warps && cell->clock > w->clock[k->n_actors + cell->actor])
            px_trap(c->m, "wgmma reads shared memory at %u, written by warp %u without fence.proxy.async behind the write",
                    word * 4 - PX_SHARED_FIRST, cell->actor % c->n_warps);
        cell->read_bytes = 15;
        c->read_clock[(size_t)word * k->n_warps + w->actor] = w->clock[w->actor];
    }
    return true;
}

/* The oldest product of all four warps, which are the same. */
static void run(struct px_warp *w, struct px_warp *first)
{
    static _Thread_local float    d[128][128];
    static _Thread_local uint32_t a[128][4];
    struct px_machine            *m = w->cta->m;
    const struct px_wgmma        *p = first->wgmma;
    const struct px_instruction  *i = p->instruction;
    bool                          in_registers = i->group[1] == 4;
    struct sim_fault              fault;
    struct sim_shared shared = {w->cta->shared + PX_SHARED_FIRST, PX_SHARED_FIRST, w->cta->shared_end - PX_SHARED_FIRST, touch, w};
    uint32_t          n_d = i->group[0];
    for (uint32_t t = 0; t < 128; t++) {
        struct px_warp *v = &first[t / 32];
        const struct px_wgmma *q = v->wgmma;
        if (q->instruction != i || q->a != p->a || q->b != p->b || q->accumulate != p->accumulate)
            px_trap(m, "the warps of a warpgroup issue different products");
        for (uint32_t k = 0; k < n_d; k++)
            memcpy(&d[t][k], &px_r32(v, &i->o[k])[t % 32], 4);
        for (uint32_t k = 0; k < 4 && in_registers; k++)
            a[t][k] = px_r32(v, &i->o[n_d + k])[t % 32];
    }
    struct sim_wgmma g = {.type = element_of(m, i->type[1]), .b_type = element_of(m, i->type[2]), .n = 8 * i->vector,
                          .a_in_registers = in_registers, .a = (const uint32_t(*)[4])a, .a_descriptor = p->a, .b_descriptor = p->b,
                          .accumulate = p->accumulate, .d = d,
                          .negate_a = written(i, 4)->value >> 31 & 1, .negate_b = written(i, 5)->value >> 31 & 1};
    if (i->n_groups > 6 && !in_registers)
        g.transpose_a = written(i, 6)->value != 0;
    if (i->n_groups > 6)
        g.transpose_b = written(i, i->n_groups - 1u)->value != 0;
    if (!sim_wgmma(&g, &(struct sim_choices){.group_sums_in_f32 = m->config.mma_by_steps}, &shared, &fault))
        px_trap(m, "%s", fault.text);
    for (uint32_t t = 0; t < 128; t++) {
        for (uint32_t k = 0; k < n_d; k++)
            memcpy(&px_r32(&first[t / 32], &i->o[k])[t % 32], &d[t][k], 4);
    }
    for (uint32_t k = 0; k < 4; k++) {
        struct px_wgmma *done = first[k].wgmma;
        first[k].wgmma = done->next;
        free(done);
    }
    m->stats.products++;
    m->events++;
}

static bool wait(struct px_warp *w, uint32_t but)
{
    struct px_warp *first = &w->cta->warp[w->id & ~3u];
    while (w->wgmma && w->wgmma->group + but < w->wgmma_group) {
        for (uint32_t k = 0; k < 4; k++) {
            if (!first[k].wgmma)
                return false; /* the others are not there yet */
        }
        run(w, first);
    }
    return true;
}

bool px_wgmma_op(struct px_warp *w, const struct px_instruction *i)
{
    if ((w->id & ~3u) + 4 > w->cta->n_warps)
        px_trap(w->cta->m, "wgmma by a warp that is in no warpgroup of four");
    switch (i->op) {
    case PX_WG_MMA: issue(w, i); return true;
    case PX_WG_COMMIT: w->wgmma_group++; return true;
    case PX_WG_WAIT: return wait(w, px_get32(w, &i->o[0], 0));
    default: return true; /* the fence orders registers */
    }
}

void px_wgmma_end(struct px_warp *w, bool fault)
{
    if (w->wgmma && fault)
        px_trap(w->cta->m, "a warp ended with products that it did not wait for");
    while (w->wgmma) {
        struct px_wgmma *p = w->wgmma;
        w->wgmma = p->next;
        free(p);
    }
}
