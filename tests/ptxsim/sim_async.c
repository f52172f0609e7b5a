/* Copies that go on while threads do other things: cp.async, bulk copies and reductions.
 *
 * A cp.async takes effect as late as it may: when its lane waits for it. Bulk transfers are a list from which a random one
 * goes on between turns; a store first reads shared memory, later writes global memory. */
#include "ptxsim/sim_tcgen05.h"
#include "ptxsim/sim_number.h"

#include <stdlib.h>
#include <string.h>

/* ---- The list ---- */

static struct px_async *new_async(struct px_warp *w, const struct px_instruction *i, enum px_async_kind kind, uint32_t lane)
{
    struct px_async *a = calloc(1, sizeof *a);
    if (!a)
        px_trap(w->cta->m, "no memory for an asynchronous copy");
    a->kind = kind;
    a->warp = w;
    a->lane = lane;
    a->instruction = i;
    a->cta = a->bar_cta = w->cta;
    struct px_async **list = kind == PX_ASYNC_COPY ? &w->copies : &w->cta->m->async;
    while (kind == PX_ASYNC_COPY && *list)
        list = &(*list)->next; /* in the order of issue */
    a->next = *list;
    *list = a;
    return a;
}

static void free_async(struct px_async *a)
{
    free(a->data);
    free(a);
}

void px_async_free(struct px_machine *m)
{
    px_tensor_free(m);
    while (m->async) {
        struct px_async *a = m->async;
        m->async = a->next;
        free_async(a);
    }
    for (uint32_t n = 0; m->cluster && n < m->n_clusters; n++) {
        for (uint32_t r = 0; m->cluster[n].cta && r < m->cluster[n].n_ctas; r++) {
            for (uint32_t x = 0; m->cluster[n].cta[r].warp && x < m->cluster[n].cta[r].n_warps; x++) {
                struct px_warp *w = &m->cluster[n].cta[r].warp[x];
                while (w->copies) {
                    struct px_async *a = w->copies;
                    w->copies = a->next;
                    free_async(a);
                }
            }
        }
    }
}

static bool is_store(const struct px_async *a)
{
    return a->kind == PX_ASYNC_STORE || a->kind == PX_ASYNC_REDUCE || a->kind == PX_ASYNC_TENSOR_STORE;
}

void px_async_end(struct px_cta *c)
{
    for (const struct px_async *a = c->m->async; a; a = a->next) {
        bool over = is_store(a) ? a->seen : a->done;
        if (!over && (a->cta == c || a->from_cta == c || a->bar_cta == c)) {
            c->m->at = a->instruction;
            px_trap(c->m, "a block ended while this copy %s its shared memory was not waited for", is_store(a) ? "out of" : "into");
        }
    }
}

/* ---- cp.async ---- */

static uint64_t address_of(const struct px_warp *w, const struct px_operand *o, uint32_t lane)
{
    return px_get(w, o, lane) + (uint64_t)(int64_t)o->offset;
}

/* A shared address as an operand holds it, from a window or generic. */
static uint32_t shared_of(struct px_warp *w, const struct px_operand *o, uint32_t lane, uint32_t bytes, uint32_t align, struct px_cta **c)
{
    uint64_t address = address_of(w, o, lane);
    if (o->width == 8 && address >> 56 != 0 && address >> 56 != 1)
        px_trap(w->cta->m, "lane %u: generic address %#llx is not in shared memory", lane, (unsigned long long)address);
    return px_shared(w, address & 0xffffffffu, bytes, align, c);
}

static void copy_issue(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_machine *m = w->cta->m;
    uint32_t           bytes = px_get32(w, &i->o[2], lane), copied = bytes;
    if (!(bytes == 16 || (px_has(i, PX_M_CA) && (bytes == 4 || bytes == 8))))
        px_trap(m, "cp.async of %u bytes", bytes);
    if (i->n_groups > 3 && !px_has(i, PX_M_CACHE_HINT)) {
        copied = i->o[3].width == 0 ? (px_get32(w, &i->o[3], lane) ? 0 : bytes) : px_get32(w, &i->o[3], lane);
        if (copied > bytes)
            px_trap(m, "cp.async of %u bytes takes %u from memory", bytes, copied);
    }
    struct px_cta   *c;
    uint32_t         offset = shared_of(w, &i->o[0], lane, bytes, bytes, &c);
    struct px_async *a = new_async(w, i, PX_ASYNC_COPY, lane);
    a->cta = c;
    a->shared = offset;
    a->bytes = bytes;
    a->copied = copied;
    a->global = address_of(w, &i->o[1], lane);
    a->group = w->copy_group[lane];
    if (a->global % bytes != 0)
        px_trap(m, "lane %u: global address %#llx of a copy of %u bytes", lane, (unsigned long long)a->global, bytes);
    if (c->cell) {
        px_race_write(w, c, offset, bytes, lane, false);
        for (uint32_t word = offset / 4; word * 4 < offset + bytes; word++)
            c->cell[word].actor = PX_IN_FLIGHT;
    }
    memset(c->shared_written + offset, 0, bytes);
}

/* The copy takes effect, made by its lane, or known through an mbarrier. */
static void copy_land(struct px_machine *m, struct px_async *a, struct px_mbarrier *bar, struct px_cta *bar_cta)
{
    if (a->copied > 0)
        memcpy(a->cta->shared + a->shared, px_global(m, a->global, a->copied, 1, false), a->copied);
    memset(a->cta->shared + a->shared + a->copied, 0, a->bytes - a->copied);
    memset(a->cta->shared_written + a->shared, 1, a->bytes);
    if (!a->cta->cell)
        return;
    if (bar) {
        px_race_landed(a->cta, a->shared, a->bytes, px_mbarrier_actor(bar_cta, bar), bar->phase + 1);
        return;
    }
    px_race_landed(a->cta, a->shared, a->bytes, a->warp->actor, a->warp->clock[a->warp->actor]);
    for (uint32_t word = a->shared / 4; word * 4 < a->shared + a->bytes; word++)
        a->cta->cell[word].lane = (uint8_t)a->lane;
}

/* Of the lanes: copies of all groups but the last `but` committed ones. */
static void copies_wait(struct px_warp *w, uint32_t lanes, uint32_t but, bool all)
{
    for (struct px_async **at = &w->copies; *at;) {
        struct px_async *a = *at;
        bool             due = (lanes >> a->lane & 1) && (all || a->group + but < w->copy_group[a->lane]);
        if (!due) {
            at = &a->next;
            continue;
        }
        copy_land(w->cta->m, a, NULL, NULL);
        *at = a->next;
        free_async(a);
    }
}

static void copies_arrive(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_async *a = new_async(w, i, PX_ASYNC_ARRIVE, lane);
    a->bar = px_mbarrier_at(w->cta->m, w->cta, px_mbarrier_operand(w, i, &i->o[0], lane, &a->bar_cta));
    if (!px_has(i, PX_M_NOINC))
        a->bar->pending++;
    a->group = w->copy_group[lane];
    w->copy_group[lane]++; /* what comes later is not meant */
}

/* Of the arrivals that wait for a copy, the one issued first: who waits for it knows the copy, also where a later one
 * happened before. */
static const struct px_async *first_arrival(const struct px_machine *m, const struct px_async *copy, const struct px_async *arrival)
{
    for (const struct px_async *a = m->async; a; a = a->next)
        if (a->kind == PX_ASYNC_ARRIVE && a->warp == copy->warp && a->lane == copy->lane && a->group >= copy->group &&
            a->group < arrival->group)
            arrival = a;
    return arrival;
}

static void arrive_now(struct px_machine *m, struct px_async *arrival)
{
    struct px_warp *w = arrival->warp;
    for (struct px_async **at = &w->copies; *at;) {
        struct px_async *a = *at;
        if (a->lane != arrival->lane || a->group > arrival->group) {
            at = &a->next;
            continue;
        }
        const struct px_async *first = first_arrival(m, a, arrival);
        copy_land(m, a, first->bar, first->bar_cta);
        *at = a->next;
        free_async(a);
    }
    px_mbarrier_arrive(m, arrival->bar_cta, arrival->bar, 1);
}

/* ---- Bulk copies ---- */

static void check_bulk(struct px_machine *m, uint32_t bytes, uint64_t global)
{
    if (bytes % 16 != 0 || bytes == 0)
        px_trap(m, "a bulk copy of %u bytes, wanted a multiple of 16", bytes);
    if (global % 16 != 0)
        px_trap(m, "global address %#llx of a bulk copy is not aligned to 16 bytes", (unsigned long long)global);
}

static void aim(struct px_warp *w, struct px_async *a, const struct px_operand *bar, uint32_t lane)
{
    a->bar = px_mbarrier_at(w->cta->m, w->cta, shared_of(w, bar, lane, 8, 8, &a->bar_cta));
    a->bar = px_mbarrier_at(w->cta->m, a->bar_cta, a->bar->address);
    a->phase = a->bar->phase;
}

/* Marks the target; into_flight is where waits will find it unwritten. */
static void into_flight(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t lane)
{
    if (c->cell)
        px_race_async(w, c, offset, bytes, lane, true);
    memset(c->shared_written + offset, 0, bytes);
}

static void out_of(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t lane)
{
    if (!px_all_set(c->shared_written + offset, bytes))
        px_trap(w->cta->m, "lane %u: shared memory at %u is copied out, where nobody wrote", lane, offset - PX_SHARED_FIRST);
    if (c->cell) {
        px_race_async(w, c, offset, bytes, lane, false);
        px_race_reading(w, c, offset, bytes, true);
    }
}

static void load_issue(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_machine *m = w->cta->m;
    uint32_t           bytes = px_get32(w, &i->o[2], lane), at = 4, mask = 0;
    bool               peer = px_has(i, PX_M_SHARED_CTA) && px_has(i, PX_M_SHARED_CLUSTER);
    check_bulk(m, bytes, peer ? 0 : address_of(w, &i->o[1], lane));
    struct px_cta *first;
    uint32_t       offset = shared_of(w, &i->o[0], lane, bytes, 16, &first);
    bool           many = px_has(i, PX_M_MULTICAST);
    if (many)
        mask = px_get32(w, &i->o[at], lane);
    if (many && (mask == 0 || mask >> w->cta->cluster->n_ctas))
        px_trap(m, "multicast to blocks %#x of a cluster of %u", mask, w->cta->cluster->n_ctas);
    for (uint32_t r = 0; r < w->cta->cluster->n_ctas; r++) {
        struct px_cta *c = &w->cta->cluster->cta[r];
        if (many ? !(mask >> r & 1) : c != first)
            continue;
        struct px_async *a = new_async(w, i, peer ? PX_ASYNC_PEER : PX_ASYNC_LOAD, lane);
        a->cta = c;
        a->shared = offset;
        a->bytes = bytes;
        aim(w, a, &i->o[3], lane);
        if (many) {
            a->bar = px_mbarrier_at(m, c, a->bar->address);
            a->bar_cta = c;
        }
        if (peer) {
            a->from = shared_of(w, &i->o[1], lane, bytes, 16, &a->from_cta);
            out_of(w, a->from_cta, a->from, bytes, lane);
        } else {
            a->global = address_of(w, &i->o[1], lane);
            (void)px_global(m, a->global, bytes, 16, false);
        }
        into_flight(w, c, offset, bytes, lane);
    }
}

static void store_issue(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    uint32_t bytes = px_get32(w, &i->o[2], lane);
    uint64_t global = address_of(w, &i->o[0], lane);
    check_bulk(w->cta->m, bytes, global);
    struct px_async *a = new_async(w, i, i->op == PX_BULK_REDUCE ? PX_ASYNC_REDUCE : PX_ASYNC_STORE, lane);
    a->global = global;
    a->bytes = bytes;
    a->shared = shared_of(w, &i->o[1], lane, bytes, 16, &a->cta);
    a->group = w->bulk_group[lane];
    (void)px_global(w->cta->m, global, bytes, 16, true);
    out_of(w, a->cta, a->shared, bytes, lane);
}

static void tensor_store_issue(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    uint8_t         *data = NULL;
    uint32_t         bytes = px_tensor_store_issue(w, i, lane, &data);
    struct px_async *a = new_async(w, i, PX_ASYNC_TENSOR_STORE, lane);
    a->data = data;
    a->bytes = bytes;
    a->shared = shared_of(w, &i->o[1 + i->group[1]], lane, bytes, 128, &a->cta);
    a->group = w->bulk_group[lane];
    if (a->cta != w->cta)
        px_trap(w->cta->m, "a tensor store from another block's shared memory");
    out_of(w, a->cta, a->shared, bytes, lane);
}

/* ---- Going on ---- */

static void land(struct px_machine *m, struct px_async *a)
{
    const uint8_t *from = a->kind == PX_ASYNC_PEER ? a->from_cta->shared + a->from : px_global(m, a->global, a->bytes, 16, false);
    memcpy(a->cta->shared + a->shared, from, a->bytes);
    memset(a->cta->shared_written + a->shared, 1, a->bytes);
    if (a->cta->cell)
        px_race_landed(a->cta, a->shared, a->bytes, px_mbarrier_actor(a->bar_cta, a->bar), a->bar->phase + 1);
    if (a->kind == PX_ASYNC_PEER && a->from_cta->cell)
        px_race_reading(a->warp, a->from_cta, a->from, a->bytes, false);
    px_mbarrier_complete(m, a->bar_cta, a->bar, a->bytes);
}

static void add_to(struct px_machine *m, const struct px_async *a, uint8_t *to)
{
    uint32_t n, bits, each = px_type_bytes((enum px_type)a->instruction->type[0]);
    uint8_t  t = px_element_type(a->instruction->type[0], &n, &bits);
    if (a->instruction->join != PX_J_ADD || each == 0)
        px_trap(m, "this bulk reduction is missing");
    bool is_float = t >= PX_F16 && t <= PX_F64;
    for (uint32_t at = 0; at < a->bytes; at += each) {
        uint64_t x = 0, y = 0;
        memcpy(&x, to + at, each);
        memcpy(&y, a->data + at, each);
        y = is_float ? px_encode_sum(t, px_decode_float(t, x), px_decode_float(t, y), PX_TO_NEAREST, false) : x + y;
        memcpy(to + at, &y, each);
    }
}

static void store_step(struct px_machine *m, struct px_async *a)
{
    if (a->kind == PX_ASYNC_TENSOR_STORE) {
        px_tensor_store_step(m, a);
        return;
    }
    if (!a->read_done) {
        a->data = malloc(a->bytes);
        if (!a->data)
            px_trap(m, "no memory for a bulk copy");
        memcpy(a->data, a->cta->shared + a->shared, a->bytes);
        a->read_done = true;
        return;
    }
    uint8_t *to = (uint8_t *)(uintptr_t)a->global;
    if (a->kind == PX_ASYNC_REDUCE)
        add_to(m, a, px_global(m, a->global, a->bytes, 16, false));
    else
        memcpy(to, a->data, a->bytes);
    struct px_region *r = px_region_of(m, a->global, a->bytes);
    if (r && r->written)
        memset(r->written + (to - r->start), 1, a->bytes);
    a->done = true;
}

static void remove_async(struct px_machine *m, struct px_async *a)
{
    struct px_async **at = &m->async;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    free_async(a);
}

bool px_async_step(struct px_machine *m)
{
    struct px_async *chosen = NULL;
    uint64_t         n = 0;
    for (struct px_async *a = m->async; a; a = a->next) {
        if (!a->done && (m->config.seed == 0 || px_random(m) % ++n == 0))
            chosen = a; /* without a seed the oldest, which is the last of the list */
    }
    if (!chosen)
        return false;
    m->events++;
    m->at = chosen->instruction;
    m->now = chosen->warp;
    if (is_store(chosen)) {
        store_step(m, chosen);
        if (chosen->done && chosen->seen)
            remove_async(m, chosen);
        return true;
    }
    if (chosen->kind == PX_ASYNC_ARRIVE)
        arrive_now(m, chosen);
    else
        land(m, chosen);
    remove_async(m, chosen);
    return true;
}

/* Whether all groups of these lanes but the last `but` are over, or at least have been read. */
static bool bulk_over(struct px_warp *w, uint32_t lanes, uint32_t but, bool read)
{
    struct px_machine *m = w->cta->m;
    for (struct px_async *a = m->async; a; a = a->next) {
        bool due = is_store(a) && a->warp == w && (lanes >> a->lane & 1) && a->group + but < w->bulk_group[a->lane];
        if (due && !(read ? a->read_done : a->done))
            return false;
    }
    for (struct px_async *a = m->async, *next; a; a = next) {
        next = a->next;
        if (!is_store(a) || a->warp != w || !(lanes >> a->lane & 1) || a->group + but >= w->bulk_group[a->lane])
            continue;
        if (!a->seen && a->cta->cell)
            px_race_reading(w, a->cta, a->shared, a->bytes, false);
        a->seen = true;
        if (a->done)
            remove_async(m, a);
    }
    return true;
}

bool px_async_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t first = (uint32_t)__builtin_ctz(lanes);
    switch (i->op) {
    case PX_CP_WAIT: copies_wait(w, lanes, px_get32(w, &i->o[0], first), false); return true;
    case PX_CP_WAIT_ALL: copies_wait(w, lanes, 0, true); return true;
    case PX_BULK_WAIT: return bulk_over(w, lanes, px_get32(w, &i->o[0], first), px_has(i, PX_M_READ));
    default: break;
    }
    PX_EACH(l, lanes)
    {
        switch (i->op) {
        case PX_CP_ASYNC: copy_issue(w, i, l); break;
        case PX_CP_COMMIT: w->copy_group[l]++; break;
        case PX_CP_ARRIVE: copies_arrive(w, i, l); break;
        case PX_BULK_COMMIT: w->bulk_group[l]++; break;
        case PX_BULK:
            if (i->space == PX_GLOBAL)
                store_issue(w, i, l);
            else
                load_issue(w, i, l);
            break;
        case PX_TENSOR:
            if (i->space == PX_GLOBAL)
                tensor_store_issue(w, i, l);
            else
                px_tensor_issue(w, i, l);
            break;
        case PX_BULK_REDUCE:
            if (i->space != PX_GLOBAL)
                px_trap(w->cta->m, "a bulk reduction into shared memory is missing");
            store_issue(w, i, l);
            break;
        default: px_trap(w->cta->m, "'%s' is missing", px_op_name((enum px_op)i->op));
        }
    }
    return true;
}
