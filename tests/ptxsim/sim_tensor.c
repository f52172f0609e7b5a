/* cp.async.bulk.tensor. A load takes effect at some later turn: all its bytes land, then its mbarrier is told. A store
 * is in the list of sim_async.c: it reads shared memory at one later turn and writes global memory at another. */
#include "ptxsim/sim_tcgen05.h"

#include <stdlib.h>
#include <string.h>

/* One box on its way. */
struct px_box {
    struct px_box               *next;
    const struct px_instruction *instruction;
    struct px_warp              *warp;
    struct px_cta               *cta, *bar_cta; /* of the target, of the mbarrier */
    struct px_mbarrier          *bar;
    struct sim_tensor_map        map;
    struct sim_tensor_copy       copy;
    uint32_t                     bytes;
};

static uint64_t address_of(const struct px_warp *w, const struct px_operand *o, uint32_t lane)
{
    return px_get(w, o, lane) + (uint64_t)(int64_t)o->offset;
}

static void send(struct px_warp *w, const struct px_instruction *i, uint32_t lane, const struct px_box *what,
                 struct px_cta *c, uint32_t bar)
{
    struct px_machine *m = w->cta->m;
    struct px_box     *b = malloc(sizeof *b);
    if (!b)
        px_trap(m, "no memory for a tensor copy");
    *b = *what;
    b->instruction = i;
    b->warp = w;
    b->cta = c;
    b->copy.map = &b->map;
    b->bar_cta = b->bar_cta ? b->bar_cta : c;
    b->next = m->boxes;
    m->boxes = b;
    b->bar = px_mbarrier_at(m, b->bar_cta, bar);
    if (c->cell)
        px_race_async(w, c, b->copy.shared, b->bytes, lane, true);
    memset(c->shared_written + b->copy.shared, 0, b->bytes);
}

/* Map and coordinates, which are operand `first` and the vector behind it (group `first` + 1). Bytes of the box. */
static uint32_t box_of(struct px_warp *w, const struct px_instruction *i, uint32_t lane, uint32_t first,
                       struct sim_tensor_map *map, struct sim_tensor_copy *copy)
{
    struct px_machine       *m = w->cta->m;
    static const enum px_mod dims[5] = {PX_M_1D, PX_M_2D, PX_M_3D, PX_M_4D, PX_M_5D};
    copy->gather4 = px_has(i, PX_M_GATHER4);
    for (int d = 0; d < 5; d++)
        copy->n_dims = px_has(i, dims[d]) ? d + 1 : copy->n_dims;
    if (i->group[first + 1] != (copy->gather4 ? 5 : copy->n_dims))
        px_trap(m, "%u coordinates of a tensor copy of %d dimensions", i->group[first + 1], copy->n_dims);
    for (uint32_t d = 0; d < i->group[first + 1]; d++)
        copy->coordinate[d] = (int32_t)px_get32(w, &i->o[first + 1 + d], lane);
    memcpy(map, px_global(m, address_of(w, &i->o[first], lane), sizeof *map, 64, false), sizeof *map);
    uint32_t bytes = sim_tensor_bytes(map, copy->gather4);
    if (bytes == 0)
        px_trap(m, "lane %u: tensor copy through something that is no tensor map", lane);
    return bytes;
}

void px_tensor_issue(struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    struct px_machine *m = w->cta->m;
    struct px_box      b = {0};
    struct px_cta     *target, *bar_cta;
    if (i->n_groups < 4)
        px_trap(m, "a tensor copy into shared memory of %u operands", i->n_groups);
    b.bytes = box_of(w, i, lane, 1, &b.map, &b.copy);
    b.copy.shared = px_shared(w, address_of(w, &i->o[0], lane) & 0xffffffffu, b.bytes, 128, &target);
    const struct px_operand *after = &i->o[2 + i->group[2]];
    uint32_t bar = px_shared(w, address_of(w, after, lane) & 0xffffffffu, 8, 8, &bar_cta);
    if (!px_has(i, PX_M_MULTICAST)) {
        /* Only with cta_group::2 may the pair's other block count the bytes. */
        bool pair = px_has(i, PX_M_CTA_GROUP2) && bar_cta->rank / 2 == target->rank / 2;
        if (bar_cta != target && !pair)
            px_trap(m, "the mbarrier of a tensor copy lies in block %u, its target in block %u", bar_cta->rank,
                    target->rank);
        b.bar_cta = bar_cta;
        send(w, i, lane, &b, target, bar);
        return;
    }
    uint32_t mask = px_get32(w, after + 1, lane) & 0xffff;
    if (mask == 0 || mask >> w->cta->cluster->n_ctas)
        px_trap(m, "multicast to blocks %#x of a cluster of %u", mask, w->cta->cluster->n_ctas);
    for (uint32_t r = 0; r < w->cta->cluster->n_ctas; r++) {
        if (mask >> r & 1)
            send(w, i, lane, &b, &w->cta->cluster->cta[r], bar);
    }
}

static uint8_t *global_at(void *context, bool write, uint64_t address, uint64_t n)
{
    return px_global(context, address, (uint32_t)n, 1, write);
}

/* ---- Stores ---- */

struct px_tensor_store {
    struct sim_tensor_map  map;
    struct sim_tensor_copy copy;
    uint32_t               bytes; /* whole lines of 128, which swizzles permute within */
    uint8_t                box[];
};

uint32_t px_tensor_store_issue(struct px_warp *w, const struct px_instruction *i, uint32_t lane, uint8_t **data)
{
    struct px_machine     *m = w->cta->m;
    struct sim_tensor_map  map;
    struct sim_tensor_copy copy = {0};
    if (i->n_groups != 3 || !px_has(i, PX_M_BULK_GROUP) || px_has(i, PX_M_GATHER4) || i->join)
        px_trap(m, "this form of a tensor copy out of shared memory is missing");
    uint32_t                bytes = box_of(w, i, lane, 0, &map, &copy), room = (bytes + 127) / 128 * 128;
    struct px_tensor_store *s = malloc(sizeof *s + room);
    if (!s)
        px_trap(m, "no memory for a tensor copy");
    s->map = map;
    s->copy = copy;
    s->bytes = room;
    *data = (uint8_t *)s;
    return bytes;
}

static uint8_t *written_at(void *context, bool write, uint64_t address, uint64_t n)
{
    struct px_machine *m = context;
    uint8_t           *p = px_global(m, address, (uint32_t)n, 1, write);
    (void)px_wrote(m, p, n);
    return p;
}

void px_tensor_store_step(struct px_machine *m, struct px_async *a)
{
    struct px_tensor_store *s = (struct px_tensor_store *)(void *)a->data;
    struct sim_fault        fault;
    if (!a->read_done) {
        uint32_t room = a->cta->shared_end - a->shared < s->bytes ? a->cta->shared_end - a->shared : s->bytes;
        memcpy(s->box, a->cta->shared + a->shared, room);
        s->copy.map = &s->map;
        s->copy.shared = a->shared;
        s->bytes = room;
        a->read_done = true;
        return;
    }
    struct sim_global global = {written_at, m};
    struct sim_shared shared = {.bytes = s->box, .base = a->shared, .size = s->bytes};
    if (!sim_tensor_store(&s->copy, &shared, &global, &fault))
        px_trap(m, "%s", fault.text);
    a->done = true;
}

/* ---- Going on ---- */

bool px_tensor_step(struct px_machine *m)
{
    struct px_box **at = &m->boxes, **chosen = NULL;
    uint64_t        n = 0;
    for (; *at; at = &(*at)->next)
        if (m->config.seed == 0 || px_random(m) % ++n == 0)
            chosen = at; /* without a seed the oldest */
    if (!chosen)
        return false;
    struct px_box *b = *chosen;
    *chosen = b->next;
    m->events++;
    m->now = b->warp;
    m->at = b->instruction;
    struct sim_global global = {global_at, m};
    struct sim_shared shared = {.bytes = b->cta->shared, .base = 0, .size = b->cta->shared_end};
    struct sim_fault  fault;
    struct px_box     box = *b; /* a trap must not leave it behind */
    free(b);
    box.copy.map = &box.map;
    if (!sim_tensor_load(&box.copy, &global, &shared, &fault))
        px_trap(m, "%s", fault.text);
    memset(box.cta->shared_written + box.copy.shared, 1, box.bytes);
    if (box.cta->cell)
        px_race_landed(box.cta, box.copy.shared, box.bytes, px_mbarrier_actor(box.bar_cta, box.bar),
                       box.bar->phase + 1);
    px_mbarrier_complete(m, box.bar_cta, box.bar, box.bytes);
    return true;
}

void px_tensor_end(struct px_cta *c)
{
    for (const struct px_box *b = c->m->boxes; b; b = b->next) {
        if (b->cta == c || b->bar_cta == c) {
            c->m->at = b->instruction;
            px_trap(c->m, "a block ended while this copy into its shared memory was not waited for");
        }
    }
}

void px_tensor_free(struct px_machine *m)
{
    while (m->boxes) {
        struct px_box *b = m->boxes;
        m->boxes = b->next;
        free(b);
    }
}
