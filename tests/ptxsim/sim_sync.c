/* Instructions of lanes together, named barriers, cluster barriers and fences. */
#include "ptxsim/sim.h"

#include <string.h>

/* ---- Between lanes ---- */

void px_shuffle(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t                 first = i->dual ? 2 : 1, value[PX_LANES], source[PX_LANES], valid = 0;
    const struct px_operand *a = &i->o[first], *b = &i->o[first + 1], *c = &i->o[first + 2];
    PX_EACH(l, lanes)
    {
        uint32_t n = px_get32(w, b, l) & 31, bounds = px_get32(w, c, l), clamp = bounds & 31, segment = bounds >> 8 & 31;
        uint32_t most = (l & segment) | (clamp & ~segment), least = l & segment, j;
        bool     inside;
        if (px_has(i, PX_M_UP)) {
            j = l - n;
            inside = (int32_t)j >= (int32_t)most;
        } else if (px_has(i, PX_M_DOWN)) {
            j = l + n;
            inside = j <= most;
        } else if (px_has(i, PX_M_BFLY)) {
            j = l ^ n;
            inside = j <= most;
        } else {
            j = least | (n & ~segment);
            inside = j <= most;
        }
        source[l] = inside ? j : l;
        valid |= (uint32_t)inside << l;
        if (!(lanes >> (source[l] & 31) & 1))
            px_trap(w->cta->m, "lane %u takes a value from lane %u, which is not there", l, source[l]);
    }
    PX_EACH(l, lanes)
    value[l] = px_get32(w, a, source[l]);
    PX_EACH(l, lanes)
    px_set(w, &i->o[0], l, value[l]);
    if (i->dual)
        px_set_pred(w, &i->o[1], lanes, valid);
}

static void vote(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t p = px_pred(w, &i->o[1]) & lanes;
    if (px_has(i, PX_M_BALLOT)) {
        PX_EACH(l, lanes)
        px_set(w, &i->o[0], l, p);
        return;
    }
    bool r = px_has(i, PX_M_ALL) ? p == lanes : px_has(i, PX_M_ANY) ? p != 0 : p == lanes || p == 0;
    px_set_pred(w, &i->o[0], lanes, r ? ~0u : 0);
}

static void match(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t first = i->dual ? 2 : 1, result[PX_LANES];
    bool     all = true;
    PX_EACH(l, lanes)
    {
        result[l] = 0;
        for (uint32_t k = 0; k < PX_LANES; k++) {
            if ((lanes >> k & 1) && px_get(w, &i->o[first], k) == px_get(w, &i->o[first], l))
                result[l] |= 1u << k;
        }
        all = all && result[l] == lanes;
    }
    PX_EACH(l, lanes)
    px_set(w, &i->o[0], l, px_has(i, PX_M_ALL) ? (all ? lanes : 0) : result[l]);
    if (i->dual)
        px_set_pred(w, &i->o[1], lanes, all ? ~0u : 0);
}

static void reduce(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    bool     is_signed = i->type[0] == PX_S32, begun = false;
    uint32_t r = 0;
    if (i->type[0] == PX_F32)
        px_trap(w->cta->m, "redux of floats is missing");
    PX_EACH(l, lanes)
    {
        uint32_t v = px_get32(w, &i->o[1], l);
        bool     less = is_signed ? (int32_t)v < (int32_t)r : v < r;
        if (!begun)
            r = v;
        else
            switch (i->join) {
            case PX_J_ADD: r += v; break;
            case PX_J_MIN: r = less ? v : r; break;
            case PX_J_MAX: r = less ? r : v; break;
            case PX_J_AND: r &= v; break;
            case PX_J_OR: r |= v; break;
            default: r ^= v; break;
            }
        begun = true;
    }
    PX_EACH(l, lanes)
    px_set(w, &i->o[0], l, r);
}

void px_vote(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    switch (i->op) {
    case PX_VOTE: vote(w, i, lanes); break;
    case PX_MATCH: match(w, i, lanes); break;
    case PX_REDUX: reduce(w, i, lanes); break;
    case PX_ACTIVEMASK:
        PX_EACH(l, lanes)
        px_set(w, &i->o[0], l, lanes);
        break;
    default: { /* elect: a choice of the hardware */
        uint32_t leader = (uint32_t)(w->cta->m->config.elect_high ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes));
        PX_EACH(l, lanes)
        px_set(w, &i->o[0], l, leader);
        px_set_pred(w, &i->o[1], lanes, 1u << leader);
    }
    }
}

/* ---- Fences ---- */

void px_fence(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct px_cluster *k = w->cta->cluster;
    (void)lanes;
    if (i->op == PX_FENCE_PROXY) {
        if (px_has(i, PX_M_ASYNC) || px_has(i, PX_M_ASYNC_GLOBAL)) {
            /* What this warp has seen happen is now visible to the asynchronous proxy. */
            for (uint32_t a = 0; a < k->n_actors; a++)
                w->clock[k->n_actors + a] = w->clock[a];
            w->clock[w->actor]++;
        }
        return;
    }
    px_acquire_clock(w, k->flags);
    px_release_clock(w, k->flags);
}

/* ---- Named barriers ---- */

static uint32_t expected_of(const struct px_cta *c, const struct px_barrier *b)
{
    return b->expected ? b->expected : c->n_live * PX_LANES;
}

static bool is_arrive(const struct px_instruction *i)
{
    return i->op == PX_BAR_ARRIVE || i->op == PX_BAR_ARRIVE_CTA || i->op == PX_BARRIER_ARRIVE || i->op == PX_BARRIER_ARRIVE_CTA;
}

static bool is_red(const struct px_instruction *i)
{
    return i->op == PX_BAR_RED || i->op == PX_BAR_RED_CTA || i->op == PX_BARRIER_RED || i->op == PX_BARRIER_RED_CTA;
}

static void give_results(struct px_cta *c, struct px_barrier *b)
{
    for (uint32_t k = 0; k < c->n_warps; k++) {
        const struct px_instruction *i = b->red[k];
        if (!i || !b->lanes[k])
            continue;
        bool r = i->join == PX_J_AND ? b->true_lanes == b->counted : b->true_lanes != 0;
        /* Warps stand behind their instruction in the function that holds it. */
        if (i->join == PX_J_POPC) {
            PX_EACH(l, b->lanes[k])
            px_set(&c->warp[k], &i->o[0], l, b->true_lanes);
        } else {
            px_set_pred(&c->warp[k], &i->o[0], b->lanes[k], r ? ~0u : 0);
        }
    }
}

static void complete(struct px_cta *c, struct px_barrier *b)
{
    give_results(c, b);
    for (uint32_t k = 0; k < c->n_warps; k++) {
        if (!b->lanes[k])
            continue;
        c->warp[k].blocked &= ~b->lanes[k];
        px_acquire_clock(&c->warp[k], b->clock);
    }
    uint32_t *clock = b->clock;
    memset(clock, 0, 2 * c->cluster->n_actors * sizeof *clock);
    memset(b, 0, sizeof *b);
    b->clock = clock;
    c->m->events++;
}

bool px_barrier_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct px_cta *c = w->cta;
    bool           red = is_red(i);
    uint32_t       first = red ? 1 : 0, lane = (uint32_t)__builtin_ctz(lanes), id = px_get32(w, &i->o[first], lane), count = 0;
    if (i->n_groups == (red ? 4 : 2))
        count = px_get32(w, &i->o[first + 1], lane);
    if (id >= PX_BARRIERS)
        px_trap(c->m, "barrier %u of %d", id, PX_BARRIERS);
    if (count % PX_LANES != 0)
        px_trap(c->m, "barrier %u for %u threads, wanted a multiple of %d", id, count, PX_LANES);
    if (count > c->n_warps * PX_LANES)
        px_trap(c->m, "barrier %u for %u threads in a block of %u", id, count, c->n_warps * PX_LANES);
    struct px_barrier *b = &c->barrier[id];
    if (b->arrived > 0 && b->expected != count)
        px_trap(c->m, "barrier %u for %u threads, while others wait there for %u (0: all)", id, count, b->expected);
    b->expected = count;
    if (b->lanes[w->id] & lanes)
        px_trap(c->m, "lanes arrive twice at barrier %u", id);
    b->arrived += lanes == w->live ? PX_LANES : (uint32_t)__builtin_popcount(lanes);
    px_release_clock(w, b->clock);
    if (red) {
        uint32_t p = px_pred(w, &i->o[i->n_operands - 1]) & lanes;
        if (i->o[i->n_operands - 1].constant)
            p = i->o[i->n_operands - 1].value ? lanes : 0;
        b->true_lanes += (uint32_t)__builtin_popcount(p);
        b->counted += (uint32_t)__builtin_popcount(lanes);
        b->red[w->id] = i;
    }
    if (!is_arrive(i)) {
        b->lanes[w->id] |= lanes;
        w->blocked |= lanes;
    }
    if (b->arrived > expected_of(c, b))
        px_trap(c->m, "%u threads at barrier %u, which is for %u", b->arrived, id, expected_of(c, b));
    if (b->arrived == expected_of(c, b)) {
        complete(c, b);
        return false;
    }
    return !is_arrive(i);
}

void px_barrier_exit(struct px_cta *c)
{
    for (uint32_t id = 0; id < PX_BARRIERS; id++) {
        struct px_barrier *b = &c->barrier[id];
        if (b->arrived > 0 && b->expected == 0 && b->arrived == expected_of(c, b))
            complete(c, b);
    }
}

/* ---- Clusters ---- */

static uint32_t live_lanes(const struct px_cluster *k)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < k->n_ctas; r++) {
        for (uint32_t x = 0; x < k->cta[r].n_warps; x++)
            n += (uint32_t)__builtin_popcount(k->cta[r].warp[x].live);
    }
    return n;
}

static void cluster_complete(struct px_cluster *k)
{
    k->arrived = 0;
    memcpy(k->done, k->clock, 2 * k->n_actors * sizeof *k->done);
    for (uint32_t r = 0; r < k->n_ctas; r++) {
        for (uint32_t x = 0; x < k->cta[r].n_warps; x++) {
            struct px_warp *w = &k->cta[r].warp[x];
            uint32_t        ready = w->cluster_arrived;
            w->cluster_phase_done |= ready & ~w->cluster_waiting;
            if (w->cluster_waiting & ready)
                px_acquire_clock(w, k->done);
            w->blocked &= ~(w->cluster_waiting & ready);
            w->cluster_arrived &= ~(w->cluster_waiting & ready);
            w->cluster_waiting &= ~ready;
        }
    }
    k->cta[0].m->events++;
}

void px_cluster_exit(struct px_cluster *k)
{
    if (k->arrived > 0 && k->arrived == live_lanes(k))
        cluster_complete(k);
}

bool px_cluster_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct px_cluster *k = w->cta->cluster;
    if (i->op == PX_CLUSTER_ARRIVE) {
        if (w->cluster_arrived & lanes)
            px_trap(w->cta->m, "lanes %08x arrive twice at the cluster's barrier", w->cluster_arrived & lanes);
        w->cluster_arrived |= lanes;
        k->arrived += (uint32_t)__builtin_popcount(lanes);
        if (!px_has(i, PX_M_RELAXED))
            px_release_clock(w, k->clock);
        if (k->arrived == live_lanes(k))
            cluster_complete(k);
        return false;
    }
    if (lanes & ~w->cluster_arrived)
        px_trap(w->cta->m, "lanes %08x wait at the cluster's barrier and did not arrive", lanes & ~w->cluster_arrived);
    uint32_t ready = lanes & w->cluster_phase_done, rest = lanes & ~ready;
    if (ready)
        px_acquire_clock(w, k->done);
    w->cluster_phase_done &= ~ready;
    w->cluster_arrived &= ~ready;
    w->cluster_waiting |= rest;
    w->blocked |= rest;
    return rest != 0;
}
