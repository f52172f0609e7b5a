/* Loads, stores and atomics in every space, with the checks of each access. */
#include "ptxsim/sim.h"
#include "ptxsim/sim_number.h"

#include <inttypes.h>
#include <string.h>

/* ---- Global ---- */

/* The region that holds these bytes, or NULL. */
struct px_region *px_region_of(struct px_machine *m, uint64_t address, uint64_t bytes)
{
    if (m->last_region < m->n_regions) {
        struct px_region *r = &m->region[m->last_region];
        uint64_t          start = (uint64_t)(uintptr_t)r->start;
        if (address >= start && address - start < r->bytes)
            return bytes <= r->bytes - (address - start) ? r : NULL;
    }
    uint32_t low = 0, high = m->n_regions;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if ((uint64_t)(uintptr_t)m->region[mid].start <= address)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0)
        return NULL;
    struct px_region *r = &m->region[low - 1];
    uint64_t          at = address - (uint64_t)(uintptr_t)r->start;
    if (at >= r->bytes || bytes > r->bytes - at)
        return NULL;
    m->last_region = low - 1;
    return r;
}

bool px_all_set(const uint8_t *flags, uint32_t bytes)
{
    uint64_t eight;
    while (bytes >= 8) {
        memcpy(&eight, flags, 8);
        if (eight != 0x0101010101010101ull)
            return false;
        flags += 8;
        bytes -= 8;
    }
    while (bytes > 0) {
        if (*flags++ != 1)
            return false;
        bytes--;
    }
    return true;
}

static __attribute__((noinline, noreturn)) void outside(struct px_machine *m, uint64_t address, uint32_t bytes)
{
    const struct px_region *near = NULL;
    for (uint32_t k = 0; k < m->n_regions && (uint64_t)(uintptr_t)m->region[k].start <= address; k++)
        near = &m->region[k];
    if (near)
        px_trap(m, "%u bytes of global memory at %#" PRIx64 ": byte %" PRIu64 " of an allocation of %zu bytes", bytes, address,
                address - (uint64_t)(uintptr_t)near->start, near->bytes);
    px_trap(m, "%u bytes of global memory at %#" PRIx64 ", which is no allocation", bytes, address);
}

uint8_t *px_global(struct px_machine *m, uint64_t address, uint32_t bytes, uint32_t align, bool write)
{
    struct px_region *r = px_region_of(m, address, bytes);
    if (!r)
        outside(m, address, bytes);
    if (address % align != 0)
        px_trap(m, "global address %#" PRIx64 " is not aligned to %u bytes", address, align);
    bool early = m->launch->overlaps && m->now && !m->now->waited;
    if (write) {
        if (r->read_only)
            px_trap(m, "a write to constant memory or parameters");
        if (early && m->launches - 1 > m->synchronised)
            px_trap(m, "a write to global memory before griddepcontrol.wait, while earlier kernels may run");
        r->kernel_write = m->launches;
    } else {
        if (early && r->kernel_write > m->synchronised && r->kernel_write != m->launches)
            px_trap(m, "memory that an earlier kernel writes is read before griddepcontrol.wait");
        if (r->written && !px_all_set(r->written + (address - (uint64_t)(uintptr_t)r->start), bytes))
            px_trap(m, "%u bytes of global memory are read at byte %" PRIu64 " of an allocation of %zu bytes, where nobody wrote", bytes,
                    address - (uint64_t)(uintptr_t)r->start, r->bytes);
    }
    return (uint8_t *)(uintptr_t)address;
}

/* ---- Shared ---- */

uint32_t px_shared(struct px_warp *w, uint64_t address, uint32_t bytes, uint32_t align, struct px_cta **cta)
{
    struct px_machine *m = w->cta->m;
    uint64_t           rank = address >> PX_RANK_SHIFT, offset = address & ((1u << PX_RANK_SHIFT) - 1);
    if (rank >= w->cta->cluster->n_ctas)
        px_trap(m, "shared address %#" PRIx64 " is in block %" PRIu64 " of a cluster of %u", address, rank, w->cta->cluster->n_ctas);
    *cta = &w->cta->cluster->cta[rank];
    if (offset < PX_SHARED_FIRST || offset >= (*cta)->shared_end || bytes > (*cta)->shared_end - offset)
        px_trap(m, "%u bytes of shared memory at %" PRId64 " of %u", bytes, (int64_t)offset - PX_SHARED_FIRST,
                (*cta)->shared_end - PX_SHARED_FIRST);
    if (offset % align != 0)
        px_trap(m, "shared address %#" PRIx64 " is not aligned to %u bytes", address, align);
    if ((*cta)->n_live == 0)
        px_trap(m, "shared memory of a block that has ended");
    return (uint32_t)offset;
}

static uint8_t *shared_place(struct px_warp *w, uint64_t address, uint32_t bytes, uint32_t lane, bool write, bool atomic)
{
    struct px_cta *c;
    uint32_t       offset = px_shared(w, address, bytes, bytes, &c);
    if ((!write || atomic) && !px_all_set(c->shared_written + offset, bytes) && (!write || atomic)) {
        if (c->cell && c->cell[offset / 4].actor == PX_IN_FLIGHT)
            px_trap(w->cta->m, "lane %u: shared memory at %u, into which an asynchronous copy is on its way", lane, offset - PX_SHARED_FIRST);
        if (!write || atomic)
            px_trap(w->cta->m, "lane %u: %u bytes of shared memory are read at %u, where nobody wrote", lane, bytes, offset - PX_SHARED_FIRST);
    }
    if (c->cell) {
        if (write)
            px_race_write(w, c, offset, bytes, lane, atomic);
        else
            px_race_read(w, c, offset, bytes, lane, atomic);
    }
    if (write)
        memset(c->shared_written + offset, 1, bytes);
    return c->shared + offset;
}

/* ---- Any space ---- */

static uint8_t *local_place(struct px_warp *w, uint64_t offset, uint32_t bytes, uint32_t lane, bool write)
{
    uint32_t size = w->cta->m->module->local_bytes;
    if (offset >= size || bytes > size - offset)
        px_trap(w->cta->m, "lane %u: %u bytes of local memory at %" PRIu64 " of %u", lane, bytes, offset, size);
    if (offset % bytes != 0)
        px_trap(w->cta->m, "lane %u: local address %" PRIu64 " is not aligned to %u bytes", lane, offset, bytes);
    uint8_t *written = w->local_written + (size_t)lane * size + offset;
    if (write)
        memset(written, 1, bytes);
    else if (!px_all_set(written, bytes))
        px_trap(w->cta->m, "lane %u: local memory is read at %" PRIu64 ", where nobody wrote", lane, offset);
    return w->local + (size_t)lane * size + offset;
}

static uint8_t *frame_place(struct px_warp *w, const struct px_operand *o, uint32_t lane)
{
    const struct px_module *m = w->cta->m->module;
    uint32_t                base = (uint32_t)(w->base - w->regs), frame = 0;
    for (uint32_t k = 0; k < m->n_functions; k++) {
        if (!m->function[k].entry && m->function[k].base == base)
            frame = m->function[k].frame_base;
    }
    return w->frame + (size_t)lane * m->frame_bytes + frame + (uint32_t)o->offset;
}

uint8_t *px_place(struct px_warp *w, const struct px_instruction *i, const struct px_operand *o, uint32_t lane, uint32_t bytes,
                  uint8_t space, bool write, bool atomic)
{
    struct px_machine *m = w->cta->m;
    (void)i;
    if (o->kind == PX_FRAME_ADDRESS)
        return frame_place(w, o, lane);
    uint64_t address = px_get(w, o, lane) + (uint64_t)(int64_t)o->offset;
    if (space == PX_SHARED || space == PX_LOCAL)
        address &= 0xffffffffu;
    if (space == PX_GENERIC && address >> 56 != 0) {
        space = address >> 56 == 1 ? PX_SHARED : address >> 56 == 2 ? PX_LOCAL : PX_GENERIC;
        address &= (1ull << 56) - 1;
    }
    switch (space) {
    case PX_SHARED: return shared_place(w, address, bytes, lane, write, atomic);
    case PX_LOCAL: return local_place(w, address, bytes, lane, write);
    default: {
        uint8_t *p = px_global(m, address, bytes, bytes, write && !atomic);
        if (atomic)
            (void)px_global(m, address, bytes, bytes, true);
        return p;
    }
    }
}

void px_placed(struct px_warp *w, const uint8_t *p, uint32_t bytes)
{
    struct px_machine *m = w->cta->m;
    struct px_region  *r = px_region_of(m, (uint64_t)(uintptr_t)p, bytes);
    if (r && r->written)
        memset(r->written + (p - r->start), 1, bytes);
}

/* ---- ld and st ---- */

static uint64_t extended(uint64_t v, uint8_t t, uint32_t bytes)
{
    if (t < PX_S8 || t > PX_S64)
        return v;
    return bytes == 1 ? (uint64_t)(int8_t)v : bytes == 2 ? (uint64_t)(int16_t)v : bytes == 4 ? (uint64_t)(int32_t)(uint32_t)v : v;
}

static bool is_relaxed(const struct px_instruction *i)
{
    return px_has(i, PX_M_VOLATILE) || px_has(i, PX_M_RELAXED) || px_has(i, PX_M_ACQUIRE) || px_has(i, PX_M_RELEASE);
}

void px_load(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t                 each = px_type_bytes((enum px_type)i->type[0]), n = i->vector;
    const struct px_operand *address = &i->o[n];
    bool                     relaxed = is_relaxed(i);
    PX_EACH(l, lanes)
    {
        const uint8_t *p = px_place(w, i, address, l, each * n, i->space, false, false);
        (void)relaxed;
        for (uint32_t k = 0; k < n; k++) {
            uint64_t v = 0;
            if (each == 16)
                px_trap(w->cta->m, "ld.b128 is missing");
            memcpy(&v, p + k * each, each);
            px_set(w, &i->o[k], l, extended(v, i->type[0], each));
        }
    }
    if (px_has(i, PX_M_ACQUIRE))
        px_acquire_clock(w, w->cta->cluster->flags);
}

void px_store(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    uint32_t each = px_type_bytes((enum px_type)i->type[0]), n = i->vector;
    if (px_has(i, PX_M_RELEASE))
        px_release_clock(w, w->cta->cluster->flags);
    PX_EACH(l, lanes)
    {
        uint8_t *p = px_place(w, i, &i->o[0], l, each * n, i->space, true, false);
        for (uint32_t k = 0; k < n; k++) {
            uint64_t v = px_get(w, &i->o[1 + k], l);
            memcpy(p + k * each, &v, each);
        }
        if (i->space != PX_SHARED && i->space != PX_LOCAL)
            px_placed(w, p, each * n);
    }
}

/* ---- atom and red ---- */

static uint64_t combined(struct px_machine *m, const struct px_instruction *i, uint64_t old, uint64_t a, uint64_t b)
{
    uint8_t  t = i->type[0];
    uint32_t bytes = px_type_bytes((enum px_type)t);
    bool     narrow = bytes <= 4;
    if (px_has(i, PX_M_EXCH))
        return a;
    if (px_has(i, PX_M_CAS))
        return old == (narrow ? a & 0xffffffffu : a) ? b : old;
    if (px_has(i, PX_M_INC))
        return (uint32_t)old >= (uint32_t)a ? 0 : (uint32_t)old + 1;
    if (px_has(i, PX_M_DEC))
        return (uint32_t)old == 0 || (uint32_t)old > (uint32_t)a ? (uint32_t)a : (uint32_t)old - 1;
    if (t == PX_F16X2 || t == PX_BF16X2 || t == PX_F32 || t == PX_F64 || t == PX_F16 || t == PX_BF16) {
        uint32_t n, bits;
        uint8_t  e = px_element_type(t, &n, &bits);
        uint64_t r = 0, mask = bits == 64 ? ~0ull : (1ull << bits) - 1;
        for (uint32_t k = 0; k < n; k++) {
            double x = px_decode_float(e, old >> (k * bits) & mask), y = px_decode_float(e, a >> (k * bits) & mask);
            if (i->join == PX_J_ADD)
                r |= px_encode_sum(e, x, y, PX_TO_NEAREST, false) << (k * bits);
            else if (i->join == PX_J_MIN || i->join == PX_J_MAX)
                r |= px_encode_float(e, (i->join == PX_J_MIN) == (x < y) ? x : y, PX_TO_NEAREST, false) << (k * bits);
            else
                px_trap(m, "this atomic on floats is missing");
        }
        return r;
    }
    int64_t sa = narrow ? (int32_t)(uint32_t)a : (int64_t)a, so = narrow ? (int32_t)(uint32_t)old : (int64_t)old;
    bool    is_signed = t >= PX_S8 && t <= PX_S64;
    switch (i->join) {
    case PX_J_ADD: return old + a;
    case PX_J_AND: return old & a;
    case PX_J_OR: return old | a;
    case PX_J_XOR: return old ^ a;
    case PX_J_MIN: return is_signed ? (so < sa ? old : a) : (old < a ? old : a);
    case PX_J_MAX: return is_signed ? (so > sa ? old : a) : (old > a ? old : a);
    default: px_trap(m, "this atomic is missing");
    }
}

/* Lanes come in a random order. */
void px_atomic(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct px_machine *m = w->cta->m;
    uint32_t           each = px_type_bytes((enum px_type)i->type[0]), n = i->vector, first = i->op == PX_ATOM ? n : 0;
    uint32_t           turn = m->config.seed ? (uint32_t)(px_random(m) % 32) : 0;
    if (px_has(i, PX_M_RELEASE) || px_has(i, PX_M_ACQ_REL))
        px_release_clock(w, w->cta->cluster->flags);
    for (uint32_t k = 0; k < PX_LANES; k++) {
        uint32_t l = (k + turn) % 32;
        if (!(lanes >> l & 1))
            continue;
        uint8_t *p = px_place(w, i, &i->o[first], l, each * n, i->space, true, true);
        for (uint32_t e = 0; e < n; e++) {
            uint64_t old = 0, a = px_get(w, &i->o[first + 1 + e], l), b = px_has(i, PX_M_CAS) ? px_get(w, &i->o[first + 2], l) : 0;
            memcpy(&old, p + e * each, each);
            uint64_t v = combined(m, i, old, a, b);
            memcpy(p + e * each, &v, each);
            if (i->op == PX_ATOM)
                px_set(w, &i->o[e], l, old);
        }
        if (i->space != PX_SHARED)
            px_placed(w, p, each * n);
    }
    m->events++;
    if (px_has(i, PX_M_ACQUIRE) || px_has(i, PX_M_ACQ_REL))
        px_acquire_clock(w, w->cta->cluster->flags);
}

/* ---- Addresses ---- */

static uint64_t converted(struct px_warp *w, const struct px_instruction *i, uint64_t a, uint32_t lane)
{
    struct px_machine *m = w->cta->m;
    if (!px_has(i, PX_M_TO)) {
        if (i->space == PX_SHARED)
            return PX_WINDOW_SHARED | (uint32_t)a;
        return i->space == PX_LOCAL ? PX_WINDOW_LOCAL | (uint32_t)a : a;
    }
    uint64_t window = a >> 56, wanted = i->space == PX_SHARED ? 1 : i->space == PX_LOCAL ? 2 : 0;
    if (window != wanted)
        px_trap(m, "lane %u: generic address %#" PRIx64 " is not in the space it is converted to", lane, a);
    return a & ((1ull << 56) - 1);
}

void px_address(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    PX_EACH(l, lanes)
    {
        uint64_t a = px_get(w, &i->o[1], l) + (uint64_t)(int64_t)i->o[1].offset;
        switch (i->op) {
        case PX_CVTA: px_set(w, &i->o[0], l, converted(w, i, a, l)); break;
        case PX_ISSPACEP:
            px_set(w, &i->o[0], l, a >> 56 == (i->space == PX_SHARED ? 1u : i->space == PX_LOCAL ? 2u : 0u));
            break;
        case PX_GETCTARANK: px_set(w, &i->o[0], l, (uint32_t)a >> PX_RANK_SHIFT); break;
        default: { /* mapa */
            uint32_t rank = px_get32(w, &i->o[2], l);
            if (rank >= w->cta->cluster->n_ctas)
                px_trap(w->cta->m, "lane %u: mapa to block %u of a cluster of %u", l, rank, w->cta->cluster->n_ctas);
            uint64_t window = i->space == PX_SHARED ? 0 : a & PX_WINDOW_SHARED;
            px_set(w, &i->o[0], l, window | (a & ((1u << PX_RANK_SHIFT) - 1)) | (uint64_t)rank << PX_RANK_SHIFT);
        }
        }
    }
}
