/* tcgen05 instructions: what is checked when they are issued, and the queues from which work takes effect later,
 * in any order that the ISA allows. What the work does is tensor.h's. */
#include "ptxsim/sim_tcgen05.h"

#include <stdlib.h>
#include <string.h>

static uint32_t address_of(const struct px_warp *w, const struct px_operand *o, uint32_t lane)
{
    return (uint32_t)px_get(w, o, lane) + (uint32_t)o->offset;
}

static struct sim_choices choices_of(const struct px_machine *m)
{
    return (struct sim_choices){.group_sums_in_f32 = m->config.mma_by_steps};
}

/* All lanes must name the same value. */
static uint32_t same(struct px_warp *w, const struct px_operand *o, uint32_t lanes)
{
    uint32_t v = address_of(w, o, (uint32_t)__builtin_ctz(lanes));
    PX_EACH(l, lanes)
    {
        if (address_of(w, o, l) != v)
            px_trap(w->cta->m, "lane %u has operand 0x%x where another has 0x%x", l, address_of(w, o, l), v);
    }
    return v;
}

static int group_of(struct px_warp *w, const struct px_instruction *i)
{
    struct px_tcgen05 *t = px_tc_of(w->cta);
    uint32_t           group = px_has(i, PX_M_CTA_GROUP2) ? 2 : 1;
    if (t->group && t->group != group)
        px_trap(w->cta->m, "tcgen05 instructions of cta_group::1 and cta_group::2 in one kernel");
    t->group = group;
    if (group == 2 && w->cta->cluster->n_ctas % 2 != 0)
        px_trap(w->cta->m, "cta_group::2 in a cluster of %u", w->cta->cluster->n_ctas);
    return (int)group;
}

/* The even block of the pair and its neighbour. */
static struct px_cta *member(const struct px_warp *w, int n_ctas, int k)
{
    return &w->cta->cluster->cta[n_ctas == 2 ? w->cta->rank / 2 * 2 + (uint32_t)k : w->cta->rank];
}

/* ---- Allocation ---- */

static bool alloc(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct px_machine *m = w->cta->m;
    struct px_tcgen05 *t = px_tc_of(w->cta);
    struct sim_fault   fault;
    uint32_t           n = same(w, &i->o[1], lanes), column, first = (uint32_t)__builtin_ctz(lanes);
    (void)same(w, &i->o[0], lanes);
    (void)group_of(w, i); /* both blocks of a pair run this; each has its own columns */
    enum sim_alloc got = sim_tmem_alloc(&t->tmem, n, &column, &fault);
    if (got == SIM_ALLOC_FAULT)
        px_trap(m, "%s", fault.text);
    if (got == SIM_ALLOC_WAIT)
        return false;
    px_tc_allocated(w, column, n);
    uint8_t *to = px_place(w, i, &i->o[0], first, 4, PX_SHARED, true, false);
    memcpy(to, &column, 4);
    px_placed(w, to, 4);
    return true;
}

static void dealloc(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct sim_fault fault;
    uint32_t         address = same(w, &i->o[0], lanes), n = same(w, &i->o[1], lanes);
    (void)group_of(w, i);
    px_tc_released(w, address & 0xffff, n);
    if (!sim_tmem_dealloc(&px_tc_of(w->cta)->tmem, address, n, &fault))
        px_trap(w->cta->m, "%s", fault.text);
}

/* ---- Loads and stores ---- */

static void move(struct px_warp *w, const struct px_instruction *i, uint32_t lanes, bool load)
{
    static _Thread_local uint32_t r[PX_LANES][128];
    static const struct {
        enum px_mod mod;
        int         times;
    } count[] = {{PX_M_X1, 1},   {PX_M_X2, 2},   {PX_M_X4, 4},   {PX_M_X8, 8},
                 {PX_M_X16, 16}, {PX_M_X32, 32}, {PX_M_X64, 64}, {PX_M_X128, 128}};
    struct px_machine       *m = w->cta->m;
    struct px_tcgen05       *t = px_tc_of(w->cta);
    struct sim_choices       choices = choices_of(m);
    struct sim_fault         fault;
    enum sim_tmem_shape      shape = px_has(i, PX_M_32X32B)    ? SIM_TMEM_32X32B
                                     : px_has(i, PX_M_16X128B) ? SIM_TMEM_16X128B
                                                               : SIM_TMEM_16X256B;
    int                      times = 0;
    if (shape == SIM_TMEM_16X256B && !px_has(i, PX_M_16X256B))
        px_trap(m, "this shape of tcgen05.ld and st is not modelled");
    for (size_t k = 0; k < sizeof count / sizeof *count; k++)
        times = px_has(i, count[k].mod) ? count[k].times : times;
    uint32_t n = (uint32_t)sim_tmem_registers(shape, times);
    if (n == 0 || n + 1 != i->n_operands)
        px_trap(m, "%u registers where %u are wanted", i->n_operands - 1, n);
    const struct px_operand *regs = load ? i->o : i->o + 1, *at = load ? i->o + n : i->o;
    uint32_t address = same(w, at, lanes), each = shape == SIM_TMEM_32X32B ? 1 : shape == SIM_TMEM_16X128B ? 4 : 8;
    struct px_tc_range range = {w->id % 4, address & 0xffff, each * (uint32_t)times};
    if (range.column + range.n > SIM_TMEM_COLUMNS)
        px_trap(m, "columns %u to %u lie outside tensor memory", range.column, range.column + range.n - 1);
    if (load) {
        if (!sim_tmem_load(&t->tmem, shape, times, address, w->id, &choices, r, &fault))
            px_trap(m, "%s", fault.text);
        px_tc_load(w, range);
    } else {
        PX_EACH(l, lanes)
        {
            for (uint32_t k = 0; k < n; k++)
                r[l][k] = px_get32(w, &regs[k], l);
        }
        px_tc_store(w, range);
        if (!sim_tmem_store(&t->tmem, shape, times, address, w->id, &choices, (const uint32_t (*)[128])r, &fault))
            px_trap(m, "%s", fault.text);
        return;
    }
    PX_EACH(l, lanes)
    {
        for (uint32_t k = 0; k < n; k++)
            px_set(w, &regs[k], l, r[l][k]);
    }
}

/* ---- Issue ---- */

static struct px_tc_work *enqueue(struct px_warp *w, const struct px_instruction *i, uint32_t lane,
                                  enum px_tc_kind kind)
{
    struct px_tcgen05 *t = px_tc_of(w->cta);
    struct px_tc_work *k = calloc(1, sizeof *k), **at = &t->work;
    if (!k)
        px_trap(w->cta->m, "no memory for work of tensor cores");
    k->kind = kind;
    k->warp = w;
    k->lane = lane;
    k->instruction = i;
    k->n_ctas = group_of(w, i);
    k->ref = (struct px_tc_ref){(uint16_t)w->actor, t->seq++};
    while (*at)
        at = &(*at)->next;
    *at = k;
    return k;
}

/* Shared memory that work reads: written, seen by this warp, visible to the asynchronous proxy. */
static void will_read(const struct px_tc_work *k, struct px_cta *c, uint32_t offset)
{
    struct px_warp *w = k->warp;
    if (offset < PX_SHARED_FIRST || offset + 16 > c->shared_end)
        px_trap(w->cta->m, "a descriptor leads to shared memory at %d, outside the block's",
                (int)offset - PX_SHARED_FIRST);
    if (!px_all_set(c->shared_written + offset, 16))
        px_trap(w->cta->m, "a descriptor leads to shared memory at %u, where nobody wrote", offset - PX_SHARED_FIRST);
    if (c->cell)
        px_race_async(w, c, offset, 16, k->lane, false);
    struct px_tcgen05 *t = px_tc_of(c);
    t->reads[offset / 1024] = k->ref;
    t->read[offset / 1024] = true;
}

static void will_read_matrix(const struct px_tc_work *k, struct px_cta *c, uint64_t descriptor, bool k_major, int rows,
                             int depth, int bytes)
{
    struct sim_matrix        matrix;
    struct sim_fault         fault;
    const struct sim_choices choices = choices_of(c->m);
    if (!sim_matrix_decode_tcgen05(descriptor, &matrix, &fault))
        px_trap(c->m, "%s", fault.text);
    int lines = k_major ? rows : depth, pieces = k_major ? 2 : rows * bytes / 16;
    for (int line = 0; line < lines; line++) {
        for (int p = 0; p < pieces; p++)
            will_read(k, c, sim_matrix_address(&matrix, k_major, (uint32_t)line, (uint32_t)p, &choices));
    }
}

static void issue_mma(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_machine *m = w->cta->m;
    struct px_tc_work *k = enqueue(w, i, lane, PX_TC_MMA);
    bool scaled = px_has(i, PX_M_BLOCK_SCALE);
    if (i->n_operands != (scaled ? 7u : 5u))
        px_trap(m, "this form of tcgen05.mma is not modelled");
    struct sim_tcgen05_mma *mma = &k->mma;
    mma->kind = px_has(i, PX_M_KIND_MXF4NVF4)   ? SIM_KIND_MXF4NVF4
                : px_has(i, PX_M_KIND_MXF4)     ? SIM_KIND_MXF4
                : px_has(i, PX_M_KIND_MXF8F6F4) ? SIM_KIND_MXF8F6F4
                : px_has(i, PX_M_KIND_F8F6F4)   ? SIM_KIND_F8F6F4
                                                : SIM_KIND_F16;
    if (mma->kind == SIM_KIND_F16 && !px_has(i, PX_M_KIND_F16))
        px_trap(m, "this kind of tcgen05.mma is not modelled");
    mma->scale = px_has(i, PX_M_BLOCK16)    ? SIM_SCALE_BLOCK16
                 : px_has(i, PX_M_BLOCK32)  ? SIM_SCALE_BLOCK32
                 : px_has(i, PX_M_SCALE_4X) ? SIM_SCALE_4X
                 : px_has(i, PX_M_SCALE_2X) ? SIM_SCALE_2X
                 : px_has(i, PX_M_SCALE_1X) ? SIM_SCALE_1X
                                            : SIM_SCALE_NONE;
    mma->n_ctas = k->n_ctas;
    mma->d_address = address_of(w, &i->o[0], lane);
    mma->a_in_tmem = i->o[1].width == 4;
    mma->a_address = mma->a_in_tmem ? address_of(w, &i->o[1], lane) : 0;
    mma->a_descriptor = mma->a_in_tmem ? 0 : px_get(w, &i->o[1], lane);
    mma->b_descriptor = px_get(w, &i->o[2], lane);
    mma->idesc = px_get32(w, &i->o[3], lane);
    if (scaled) {
        mma->scale_a_address = address_of(w, &i->o[4], lane);
        mma->scale_b_address = address_of(w, &i->o[5], lane);
    }
    mma->accumulate = px_pred(w, &i->o[scaled ? 6 : 4]) >> lane & 1;

    struct sim_instruction in;
    struct sim_fault       fault;
    if (!sim_instruction_decode(mma->kind, mma->scale, mma->n_ctas, mma->idesc, &in, &fault))
        px_trap(m, "%s", fault.text);
    int rows = in.m / k->n_ctas, columns = in.n / k->n_ctas;
    for (int c = 0; c < k->n_ctas; c++) {
        struct px_cta *cta = member(w, k->n_ctas, c);
        if (mma->a_in_tmem)
            px_tc_pipe(w, cta, k->ref, false, false, mma->a_address & 0xffff, 8);
        else
            will_read_matrix(k, cta, mma->a_descriptor, !in.transpose_a, rows, in.k, in.k == 16 ? 2 : 1);
        will_read_matrix(k, cta, mma->b_descriptor, !in.transpose_b, columns, in.k, in.k == 16 ? 2 : 1);
        if (scaled) {
            px_tc_pipe(w, cta, k->ref, false, false, mma->scale_a_address & 0xffff, (uint32_t)(rows + 31) / 32);
            px_tc_pipe(w, cta, k->ref, false, false, mma->scale_b_address & 0xffff, (uint32_t)(in.n + 31) / 32);
        }
        px_tc_pipe(w, cta, k->ref, true, false, mma->d_address & 0xffff,
                   (uint32_t)(in.m == 128 && k->n_ctas == 2 ? in.n / 2 : in.n));
    }
}

static void issue_copy(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_tc_work *k = enqueue(w, i, lane, PX_TC_COPY);
    k->address = address_of(w, &i->o[0], lane);
    k->descriptor = px_get(w, &i->o[1], lane);
    k->shape = px_has(i, PX_M_32X128B) && px_has(i, PX_M_WARPX4)         ? SIM_COPY_32X128B_X4
               : px_has(i, PX_M_128X256B)                                ? SIM_COPY_128X256B
               : px_has(i, PX_M_128X128B)                                ? SIM_COPY_128X128B
               : px_has(i, PX_M_64X128B) && px_has(i, PX_M_WARPX2_02_13) ? SIM_COPY_64X128B_02_13
               : px_has(i, PX_M_64X128B) && px_has(i, PX_M_WARPX2_01_23) ? SIM_COPY_64X128B_01_23
                                                                         : SIM_COPY_4X256B;
    struct sim_matrix        matrix;
    struct sim_fault         fault;
    const struct sim_choices choices = choices_of(w->cta->m);
    if (!sim_matrix_decode_tcgen05(k->descriptor, &matrix, &fault))
        px_trap(w->cta->m, "%s", fault.text);
    uint32_t rows = k->shape == SIM_COPY_32X128B_X4 ? 32 : k->shape >= SIM_COPY_64X128B_02_13 ? 64 : 128;
    uint32_t pieces = k->shape == SIM_COPY_128X256B ? 2 : 1;
    for (int c = 0; c < k->n_ctas; c++) {
        struct px_cta *cta = member(w, k->n_ctas, c);
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t p = 0; p < pieces; p++)
                will_read(k, cta, sim_matrix_address(&matrix, true, r, p, &choices));
        }
        px_tc_pipe(w, cta, k->ref, true, true, k->address & 0xffff, 4 * pieces);
    }
}

static void issue_commit(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_tc_work *k = enqueue(w, i, lane, PX_TC_COMMIT);
    struct px_cta     *c;
    k->bar = px_mbarrier_operand(w, i, &i->o[0], lane, &c);
    k->mask = px_has(i, PX_M_MULTICAST) ? px_get32(w, &i->o[1], lane) & 0xffff : 1u << c->rank;
    if (k->mask == 0 || k->mask >> w->cta->cluster->n_ctas)
        px_trap(w->cta->m, "a commit to blocks %#x of a cluster of %u", k->mask, w->cta->cluster->n_ctas);
    for (uint32_t r = 0; r < w->cta->cluster->n_ctas; r++) {
        if (k->mask >> r & 1)
            (void)px_mbarrier_at(w->cta->m, &w->cta->cluster->cta[r], k->bar);
    }
    /* The arrival releases, so that who sees it also knows of the loads that the products waited for. */
    k->clock = calloc(2 * w->cta->cluster->n_actors, sizeof *k->clock);
    if (!k->clock)
        px_trap(w->cta->m, "no memory for work of tensor cores");
    px_release_clock(w, k->clock);
}

bool px_tcgen05_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    bool whole = i->op != PX_TC_MMA_OP && i->op != PX_TC_CP && i->op != PX_TC_COMMIT_OP && i->op != PX_TC_BEFORE &&
                 i->op != PX_TC_AFTER;
    if (whole && lanes != ~0u)
        px_trap(w->cta->m, "only lanes %08x of the warp are here", lanes);
    switch (i->op) {
    case PX_TC_ALLOC: return alloc(w, i, lanes);
    case PX_TC_DEALLOC: dealloc(w, i, lanes); return true;
    case PX_TC_RELINQUISH: sim_tmem_relinquish(&px_tc_of(w->cta)->tmem); return true;
    case PX_TC_LD: move(w, i, lanes, true); return true;
    case PX_TC_ST: move(w, i, lanes, false); return true;
    case PX_TC_WAIT_LD: px_tc_wait(w, true); return true;
    case PX_TC_WAIT_ST: px_tc_wait(w, false); return true;
    case PX_TC_BEFORE: px_tc_fence(w, false); return true;
    case PX_TC_AFTER: px_tc_fence(w, true); return true;
    default: break;
    }
    PX_EACH(l, lanes)
    {
        if (i->op == PX_TC_MMA_OP)
            issue_mma(w, i, l);
        else if (i->op == PX_TC_CP)
            issue_copy(w, i, l);
        else
            issue_commit(w, i, l);
    }
    return true;
}

/* ---- Taking effect ---- */

/* Whether earlier work lets this go on: products follow copies and products, commits follow everything, copies
 * nothing (or products, if so configured). */
static bool ready(const struct px_machine *m, const struct px_tc_work *first, const struct px_tc_work *k)
{
    for (const struct px_tc_work *e = first; e != k; e = e->next) {
        if (e->warp != k->warp)
            continue;
        if (k->kind == PX_TC_COMMIT || (k->kind == PX_TC_MMA && e->kind != PX_TC_COMMIT))
            return false;
        if (k->kind == PX_TC_COPY && e->kind == PX_TC_MMA && m->config.copies_wait_for_products)
            return false;
    }
    return true;
}

static struct sim_shared shared_of(const struct px_cta *c)
{
    return (struct sim_shared){.bytes = c->shared, .base = 0, .size = c->shared_end};
}

static void take_effect(struct px_machine *m, struct px_tc_work *k)
{
    struct sim_choices       choices = choices_of(m);
    struct sim_fault         fault;
    struct sim_shared        s[2];
    const struct sim_shared *shared[2] = {&s[0], &s[1]};
    struct sim_tmem         *tmem[2];
    if (k->kind == PX_TC_COMMIT) {
        px_tc_committed(m, k);
        return;
    }
    for (int c = 0; c < k->n_ctas; c++) {
        struct px_cta *cta = member(k->warp, k->n_ctas, c);
        s[c] = shared_of(cta);
        tmem[c] = &px_tc_of(cta)->tmem;
        if (k->kind == PX_TC_COPY &&
            !sim_tmem_copy(tmem[c], k->shape, k->address, k->descriptor, &s[c], &choices, &fault))
            px_trap(m, "%s", fault.text);
    }
    if (k->kind == PX_TC_MMA && !sim_tcgen05_mma(&k->mma, &choices, shared, tmem, &fault))
        px_trap(m, "%s", fault.text);
    m->stats.products += k->kind == PX_TC_MMA;
}

bool px_tcgen05_step(struct px_machine *m)
{
    struct px_tcgen05 *from = NULL;
    struct px_tc_work *chosen = NULL;
    uint64_t           seen = 0;
    for (uint32_t n = 0; n < m->n_clusters; n++) {
        for (uint32_t r = 0; m->cluster[n].cta && r < m->cluster[n].n_ctas; r++) {
            struct px_tcgen05 *t = m->cluster[n].cta[r].tcgen05;
            for (struct px_tc_work *k = t ? t->work : NULL; k; k = k->next) {
                if (!ready(m, t->work, k) || (chosen && (m->config.seed == 0 || px_random(m) % ++seen != 0)))
                    continue;
                chosen = k;
                from = t;
                seen += seen == 0;
            }
        }
    }
    if (!chosen)
        return false;
    m->events++;
    m->now = chosen->warp;
    m->at = chosen->instruction;
    take_effect(m, chosen);
    struct px_tc_work **at = &from->work;
    while (*at != chosen)
        at = &(*at)->next;
    *at = chosen->next;
    free(chosen->clock);
    free(chosen);
    return true;
}

void px_tcgen05_end(struct px_cta *c)
{
    struct sim_fault fault;
    if (!c->tcgen05)
        return;
    if (c->tcgen05->work) {
        c->m->at = c->tcgen05->work->instruction;
        px_trap(c->m, "a block ended before its work on tensor cores was over");
    }
    if (!sim_tmem_leak(&c->tcgen05->tmem, &fault))
        px_trap(c->m, "%s", fault.text);
    /* Blocks of a cluster know of each other's work to their end. */
    for (uint32_t r = 0; !c->cluster->active && r < c->cluster->n_ctas; r++)
        px_tcgen05_free(&c->cluster->cta[r]);
}
