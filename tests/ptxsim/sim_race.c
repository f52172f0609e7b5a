/* Races in shared memory: every access is compared with the last write and the reads since, by vector clocks of warps; lanes
 * of one warp are in order only across bar.warp.sync and barriers. Of shfl.sync and its like only this is taken: what lanes
 * read before it, they have read. Atomics do not race with each other. */
#include "ptxsim/sim_tcgen05.h"

void px_clock_join(const struct px_cluster *k, uint32_t *into, const uint32_t *from)
{
    for (uint32_t a = 0; a < 2 * k->n_actors; a++)
        into[a] = into[a] > from[a] ? into[a] : from[a];
}

void px_release_clock(struct px_warp *w, uint32_t *into)
{
    if (into)
        px_clock_join(w->cta->cluster, into, w->clock);
    w->clock[w->actor]++;
    w->turn++;
}

void px_acquire_clock(struct px_warp *w, const uint32_t *from)
{
    px_clock_join(w->cta->cluster, w->clock, from);
}

static uint8_t byte_bits(uint32_t word, uint32_t offset, uint32_t bytes)
{
    uint32_t bits = 0;
    for (uint32_t b = 0; b < 4; b++) {
        if (word * 4 + b >= offset && word * 4 + b < offset + bytes)
            bits |= 1u << b;
    }
    return (uint8_t)bits;
}

static __attribute__((noinline, noreturn)) void race(struct px_warp *w, const struct px_cta *c, uint32_t word, uint32_t lane,
                                                     const char *what, uint32_t actor, uint32_t other_lane)
{
    uint32_t per = c->n_warps;
    if (actor >= c->cluster->n_warps)
        px_trap(w->cta->m, "race in shared memory at %u: lane %u %s that an asynchronous copy made, without having waited for it",
                word * 4 - PX_SHARED_FIRST, lane, what);
    px_trap(w->cta->m, "race in shared memory at %u: lane %u %s of warp %u%s, lane %u, without a barrier between", word * 4 - PX_SHARED_FIRST,
            lane, what, actor % per, actor == w->actor ? " (its own)" : actor / per == w->cta->rank ? "" : " of another block",
            other_lane == PX_MANY ? 0 : other_lane);
}

static void check_write_before(struct px_warp *w, struct px_cta *c, uint32_t word, uint8_t bits, uint32_t lane, bool atomic, const char *what)
{
    const struct px_cell *cell = &c->cell[word];
    if (cell->actor == PX_IN_FLIGHT)
        px_trap(w->cta->m, "lane %u: shared memory at %u, into which an asynchronous copy is on its way", lane, word * 4 - PX_SHARED_FIRST);
    if (cell->actor == PX_NO_ACTOR || !(cell->bytes & bits) || (atomic && cell->atomic))
        return;
    bool after = cell->actor == w->actor ? cell->clock < w->clock[w->actor] || cell->lane == lane : cell->clock <= w->clock[cell->actor];
    if (!after)
        race(w, c, word, lane, what, cell->actor, cell->lane);
}

void px_race_read(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t lane, bool atomic)
{
    uint32_t now = w->clock[w->actor], n_warps = c->cluster->n_warps;
    for (uint32_t word = offset / 4; word * 4 < offset + bytes; word++) {
        uint8_t bits = bytes >= 4 ? 15 : byte_bits(word, offset, bytes);
        check_write_before(w, c, word, bits, lane, atomic, "reads what is a write");
        struct px_cell *cell = &c->cell[word];
        uint32_t *read = &c->read_clock[(size_t)word * n_warps + w->actor];
        *read = *read == UINT32_MAX ? *read : now;
        bool same = cell->read_warp == w->actor && cell->read_turn == w->turn && cell->read_lane != lane;
        cell->read_lane = same ? PX_MANY : (uint8_t)lane;
        cell->read_warp = (uint16_t)w->actor;
        cell->read_turn = w->turn;
        cell->read_bytes |= bits;
    }
}

static void check_reads_before(struct px_warp *w, struct px_cta *c, uint32_t word, uint8_t bits, uint32_t lane)
{
    const struct px_cell *cell = &c->cell[word];
    const uint32_t       *read = c->read_clock + (size_t)word * c->cluster->n_warps;
    if (!(cell->read_bytes & bits))
        return;
    for (uint32_t r = 0; r < c->cluster->n_warps; r++) {
        if (read[r] == UINT32_MAX)
            px_trap(w->cta->m, "lane %u overwrites shared memory at %u while an asynchronous read of warp %u may still go on", lane,
                    word * 4 - PX_SHARED_FIRST, r % c->n_warps);
        if (r != w->actor && read[r] > w->clock[r])
            race(w, c, word, lane, "overwrites what is a read", r, 0);
    }
    if (cell->read_warp == w->actor && cell->read_turn == w->turn && cell->read_lane != lane)
        race(w, c, word, lane, "overwrites what is a read", w->actor, cell->read_lane);
}

void px_race_write(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t lane, bool atomic)
{
    uint32_t now = w->clock[w->actor];
    if (c->tcgen05)
        px_tcgen05_overwrites(w, c, offset, bytes);
    for (uint32_t word = offset / 4; word * 4 < offset + bytes; word++) {
        uint8_t         bits = bytes >= 4 ? 15 : byte_bits(word, offset, bytes);
        struct px_cell *cell = &c->cell[word];
        check_write_before(w, c, word, bits, lane, atomic, "overwrites what is a write");
        check_reads_before(w, c, word, bits, lane);
        bool same = cell->actor == w->actor && cell->clock == now && cell->lane == lane;
        cell->bytes = same ? cell->bytes | bits : bits;
        cell->actor = (uint16_t)w->actor;
        cell->clock = now;
        cell->lane = (uint8_t)lane;
        cell->atomic = atomic && !(same && !cell->atomic); /* a plain write before, by the same lane, stays one */
        cell->read_bytes &= (uint8_t)~bits;
    }
}

void px_race_async(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t lane, bool write)
{
    const uint32_t *proxied = w->clock + c->cluster->n_actors;
    if (write && c->tcgen05)
        px_tcgen05_overwrites(w, c, offset, bytes);
    for (uint32_t word = offset / 4; word * 4 < offset + bytes; word++) {
        struct px_cell *cell = &c->cell[word];
        check_write_before(w, c, word, 15, lane, false, write ? "copies over what is a write" : "copies out what is a write");
        if (write) {
            check_reads_before(w, c, word, 15, lane);
            *cell = (struct px_cell){.actor = PX_IN_FLIGHT, .bytes = 15};
        } else if (cell->actor < c->cluster->n_warps && cell->clock > proxied[cell->actor]) {
            px_trap(w->cta->m, "shared memory at %u, written by warp %u, is copied out without fence.proxy.async behind the write",
                    word * 4 - PX_SHARED_FIRST, cell->actor % c->n_warps);
        }
    }
}

void px_race_landed(struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t actor, uint32_t clock)
{
    for (uint32_t word = offset / 4; word * 4 < offset + bytes; word++)
        c->cell[word] = (struct px_cell){.actor = (uint16_t)actor, .clock = clock, .bytes = 15, .lane = PX_MANY};
}

void px_race_reading(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, bool pending)
{
    for (uint32_t word = offset / 4; word * 4 < offset + bytes; word++) {
        c->cell[word].read_bytes = 15;
        c->read_clock[(size_t)word * c->cluster->n_warps + w->actor] = pending ? UINT32_MAX : w->clock[w->actor];
    }
}
