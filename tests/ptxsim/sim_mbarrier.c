/* mbarrier objects. They are kept beside shared memory; the memory itself only says that it is in use. */
#include "ptxsim/sim.h"

#include <string.h>

enum { COUNT_MOST = (1 << 20) - 1 };

struct px_mbarrier *px_mbarrier_at(struct px_machine *m, struct px_cta *c, uint32_t offset)
{
    for (uint32_t k = 0; k < PX_MBARRIERS; k++) {
        if (c->mbarrier[k].address == offset)
            return &c->mbarrier[k];
    }
    px_trap(m, "no mbarrier was initialised at %u of shared memory", offset - PX_SHARED_FIRST);
}

uint32_t px_mbarrier_actor(const struct px_cta *c, const struct px_mbarrier *b)
{
    return c->cluster->n_warps + c->rank * PX_MBARRIERS + (uint32_t)(b - c->mbarrier);
}

/* The phase ends when all have arrived and all bytes are there. */
static void check_phase(struct px_cta *c, struct px_mbarrier *b)
{
    if (b->pending > 0 || b->tx != 0)
        return;
    uint32_t n = 2 * c->cluster->n_actors;
    b->phase++;
    b->pending = b->expected;
    memcpy(b->done, b->clock, n * sizeof *b->done);
    b->done[px_mbarrier_actor(c, b)] = b->phase;
    c->m->events++;
}

void px_mbarrier_complete(struct px_machine *m, struct px_cta *c, struct px_mbarrier *b, uint32_t bytes)
{
    b->tx -= bytes;
    if (b->tx < -(int64_t)COUNT_MOST)
        px_trap(m, "the mbarrier at %u was told of more bytes than it can count", b->address - PX_SHARED_FIRST);
    check_phase(c, b);
}

void px_mbarrier_arrive(struct px_machine *m, struct px_cta *c, struct px_mbarrier *b, uint32_t count)
{
    if (count > b->pending)
        px_trap(m, "%u arrive at the mbarrier at %u, which waits for %u more in this phase", count, b->address - PX_SHARED_FIRST, b->pending);
    b->pending -= count;
    check_phase(c, b);
}

uint32_t px_mbarrier_operand(struct px_warp *w, const struct px_instruction *i, const struct px_operand *o, uint32_t lane, struct px_cta **c)
{
    uint64_t address = px_get(w, o, lane) + (uint64_t)(int64_t)o->offset;
    if (i->space == PX_GENERIC && address >> 56 != 1 && address >> 32 != 0)
        px_trap(w->cta->m, "lane %u: generic address %#llx of an mbarrier is not in shared memory", lane, (unsigned long long)address);
    return px_shared(w, address & 0xffffffffu, 8, 8, c);
}

static void expect(struct px_machine *m, struct px_mbarrier *b, uint32_t bytes)
{
    b->tx += bytes;
    if (b->tx > COUNT_MOST)
        px_trap(m, "the mbarrier at %u expects %lld bytes, at most %d can be counted", b->address - PX_SHARED_FIRST, (long long)b->tx, COUNT_MOST);
}

static void init(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_cta *c;
    uint32_t       offset = px_mbarrier_operand(w, i, &i->o[0], lane, &c), count = px_get32(w, &i->o[1], lane), k = 0;
    if (c != w->cta)
        px_trap(w->cta->m, "an mbarrier of another block is initialised");
    if (count < 1 || count > COUNT_MOST)
        px_trap(w->cta->m, "an mbarrier for %u arrivals, wanted 1 to %d", count, COUNT_MOST);
    struct px_mbarrier *b = NULL;
    for (k = 0; k < PX_MBARRIERS; k++) {
        if (c->mbarrier[k].address == offset)
            px_trap(w->cta->m, "the mbarrier at %u is initialised again without mbarrier.inval", offset - PX_SHARED_FIRST);
        if (c->mbarrier[k].address == 0 && !b)
            b = &c->mbarrier[k];
    }
    if (!b)
        px_trap(w->cta->m, "more than %d mbarriers in one block", PX_MBARRIERS);
    if (c->cell)
        px_race_write(w, c, offset, 8, lane, true);
    memset(c->shared_written + offset, 1, 8);
    b->address = offset;
    b->expected = b->pending = count;
    b->tx = 0;
    b->init_actor = w->actor;
    b->init_clock = w->clock[w->actor];
    memset(b->clock, 0, 2 * c->cluster->n_actors * sizeof *b->clock);
    /* Phases go on counting where a barrier stood before, so that old clocks stay old. */
    w->clock[px_mbarrier_actor(c, b)] = w->clock[px_mbarrier_actor(c, b)] > b->phase ? w->clock[px_mbarrier_actor(c, b)] : b->phase;
    b->phase += b->phase & 1;
}

/* The barrier of an operand, whose initialisation this warp must have seen. */
static struct px_mbarrier *seen(struct px_warp *w, const struct px_instruction *i, const struct px_operand *o, uint32_t lane, struct px_cta **c)
{
    uint32_t            offset = px_mbarrier_operand(w, i, o, lane, c);
    struct px_mbarrier *b = px_mbarrier_at(w->cta->m, *c, offset);
    if (b->init_actor != w->actor && b->init_clock > w->clock[b->init_actor])
        px_trap(w->cta->m, "the mbarrier at %u is used before its initialisation by warp %u is known to this one", offset - PX_SHARED_FIRST,
                b->init_actor % (*c)->n_warps);
    return b;
}

static void arrive(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_machine  *m = w->cta->m;
    struct px_cta      *c;
    struct px_mbarrier *b = seen(w, i, &i->o[1], lane, &c);
    if (c != w->cta && i->o[0].kind != PX_SINK)
        px_trap(m, "an arrival at another block's mbarrier returns no state");
    if (c != w->cta && px_has(i, PX_M_SHARED_CTA))
        px_trap(m, "shared::cta names an mbarrier of another block");
    bool     tx = px_has(i, PX_M_EXPECT_TX);
    uint32_t count = !tx && i->n_operands > 2 ? px_get32(w, &i->o[2], lane) : 1;
    if (count < 1 || count > COUNT_MOST)
        px_trap(m, "%u arrivals at once, wanted 1 to %d", count, COUNT_MOST);
    px_set(w, &i->o[0], lane, b->phase);
    if (tx)
        expect(m, b, px_get32(w, &i->o[2], lane));
    if (!px_has(i, PX_M_RELAXED))
        px_clock_join(c->cluster, b->clock, w->clock);
    if (i->op == PX_MBAR_DROP)
        b->expected -= count <= b->expected ? count : b->expected;
    px_mbarrier_arrive(m, c, b, count);
}

static bool wait(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_machine  *m = w->cta->m;
    struct px_cta      *c;
    struct px_mbarrier *b = seen(w, i, &i->o[1], lane, &c);
    if (c != w->cta)
        px_trap(m, "a wait at another block's mbarrier");
    uint64_t state = px_get(w, &i->o[2], lane);
    if (px_has(i, PX_M_PARITY) && state > 1)
        px_trap(m, "phase parity %llu, wanted 0 or 1", (unsigned long long)state);
    bool done = px_has(i, PX_M_PARITY) ? (b->phase & 1) != state : b->phase > (uint32_t)state;
    /* The hardware may give up early. */
    if (done && m->config.seed && i->op == PX_MBAR_TRY && px_random(m) % 8 == 0)
        done = false;
    if (done && !px_has(i, PX_M_RELAXED) && b->phase > 0)
        px_acquire_clock(w, b->done);
    return done;
}

bool px_mbarrier_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct px_cta      *c;
    struct px_mbarrier *b;
    bool                all = true, released = false;
    PX_EACH(l, lanes)
    {
        switch (i->op) {
        case PX_MBAR_INIT: init(w, i, l); break;
        case PX_MBAR_INVAL:
            b = seen(w, i, &i->o[0], l, &c);
            if (b->tx != 0)
                px_trap(w->cta->m, "the mbarrier at %u is made invalid while it waits for %lld bytes", b->address - PX_SHARED_FIRST, (long long)b->tx);
            b->address = 0;
            break;
        case PX_MBAR_EXPECT:
            b = seen(w, i, &i->o[0], l, &c);
            expect(w->cta->m, b, px_get32(w, &i->o[1], l));
            break;
        case PX_MBAR_COMPLETE:
            b = seen(w, i, &i->o[0], l, &c);
            px_mbarrier_complete(w->cta->m, c, b, px_get32(w, &i->o[1], l));
            break;
        case PX_MBAR_ARRIVE: case PX_MBAR_DROP:
            arrive(w, i, l);
            released = true;
            break;
        case PX_MBAR_PENDING: px_trap(w->cta->m, "mbarrier.pending_count is missing");
        default: {
            bool done = wait(w, i, l);
            px_set(w, &i->o[0], l, done);
            all = all && done;
        }
        }
    }
    if (released)
        px_release_clock(w, NULL);
    return all;
}
