/* Tensor memory: allocation by columns, loads and stores by warps, copies from shared memory. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ptxsim/tensor_parts.h"

#define POISON 0x7ff0dead /* a NaN that no arithmetic makes */

bool sim_fault_set(struct sim_fault *fault, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(fault->text, sizeof fault->text, format, args);
    va_end(args);
    return false;
}

uint8_t *sim_shared_at(const struct sim_shared *s, bool write, uint32_t address, uint32_t n, struct sim_fault *fault)
{
    if (address < s->base || n > s->size || address - s->base > s->size - n) {
        (void)sim_fault_set(fault, "shared memory [0x%x, +%u) lies outside the CTA's [0x%x, +%u)", address, n, s->base,
                            s->size);
        return NULL;
    }
    if (s->touch && !s->touch(s->context, write, address, n, fault))
        return NULL;
    return s->bytes + (address - s->base);
}

void sim_tmem_reset(struct sim_tmem *t)
{
    for (int lane = 0; lane < SIM_TMEM_LANES; lane++)
        for (int column = 0; column < SIM_TMEM_COLUMNS; column++)
            t->cell[lane][column] = POISON;
    memset(t->written, 0, sizeof t->written);
    memset(t->owner, -1, sizeof t->owner);
    memset(t->n_columns, 0, sizeof t->n_columns);
    t->last_columns = 0;
    t->n_allocations = 0;
    t->relinquished = false;
}

/* ---- Allocation ---- */

enum sim_alloc sim_tmem_alloc(struct sim_tmem *t, uint32_t n_columns, uint32_t *address, struct sim_fault *fault)
{
    if (n_columns < SIM_TMEM_UNIT || n_columns > SIM_TMEM_COLUMNS || (n_columns & (n_columns - 1)) != 0) {
        (void)sim_fault_set(fault, "tcgen05.alloc of %u columns: wants a power of two from 32 to 512", n_columns);
        return SIM_ALLOC_FAULT;
    }
    if (t->relinquished) {
        (void)sim_fault_set(fault, "tcgen05.alloc after the CTA gave up its permit");
        return SIM_ALLOC_FAULT;
    }
    if (t->last_columns && n_columns > t->last_columns) {
        (void)sim_fault_set(fault, "tcgen05.alloc of %u columns after one of %u: allocations must not grow", n_columns,
                            t->last_columns);
        return SIM_ALLOC_FAULT;
    }
    int units = (int)(n_columns / SIM_TMEM_UNIT), n_units = SIM_TMEM_COLUMNS / SIM_TMEM_UNIT, first = 0, run = 0;
    for (int i = 0; i < n_units && run < units; i++) {
        run = t->owner[i] < 0 ? run + 1 : 0;
        first = i + 1 - run;
    }
    if (run < units)
        return SIM_ALLOC_WAIT;
    for (int i = first; i < first + units; i++) {
        t->owner[i] = t->n_allocations;
        t->n_columns[i] = (int16_t)n_columns;
    }
    for (int lane = 0; lane < SIM_TMEM_LANES; lane++)
        memset(&t->written[lane][first * SIM_TMEM_UNIT], 0, n_columns);
    t->n_allocations = (int8_t)((t->n_allocations + 1) & 127);
    t->last_columns = n_columns;
    *address = (uint32_t)(first * SIM_TMEM_UNIT);
    return SIM_ALLOC_DONE;
}

bool sim_tmem_dealloc(struct sim_tmem *t, uint32_t address, uint32_t n_columns, struct sim_fault *fault)
{
    uint32_t first = address / SIM_TMEM_UNIT, units = n_columns / SIM_TMEM_UNIT;
    bool     whole = address % SIM_TMEM_UNIT == 0 && address < SIM_TMEM_COLUMNS && t->owner[first] >= 0 &&
                 n_columns == (uint32_t)t->n_columns[first] && (first == 0 || t->owner[first - 1] != t->owner[first]);
    if (!whole)
        return sim_fault_set(fault, "tcgen05.dealloc of 0x%x, %u columns: no such allocation", address, n_columns);
    for (uint32_t i = first; i < first + units; i++)
        t->owner[i] = -1;
    return true;
}

void sim_tmem_relinquish(struct sim_tmem *t)
{
    t->relinquished = true;
}

bool sim_tmem_leak(const struct sim_tmem *t, struct sim_fault *fault)
{
    for (int i = 0; i < SIM_TMEM_COLUMNS / SIM_TMEM_UNIT; i++)
        if (t->owner[i] >= 0)
            return sim_fault_set(fault, "the kernel ends with %d columns of tensor memory allocated at column %d",
                                 t->n_columns[i], i * SIM_TMEM_UNIT);
    return true;
}

bool sim_tmem_use(struct sim_tmem *t, bool write, uint32_t lane, uint32_t n_lanes, uint32_t column, uint32_t n_columns,
                  const char *what, struct sim_fault *fault)
{
    if (lane + n_lanes > SIM_TMEM_LANES || column + n_columns > SIM_TMEM_COLUMNS)
        return sim_fault_set(fault, "%s: lanes %u..%u, columns %u..%u lie outside tensor memory", what, lane,
                             lane + n_lanes - 1, column, column + n_columns - 1);
    int8_t owner = t->owner[column / SIM_TMEM_UNIT];
    for (uint32_t c = column; c < column + n_columns; c++)
        if (t->owner[c / SIM_TMEM_UNIT] < 0 || t->owner[c / SIM_TMEM_UNIT] != owner)
            return sim_fault_set(fault, "%s: column %u is not %s", what, c,
                                 owner < 0 ? "allocated" : "part of the same allocation");
    if (t->touch && !t->touch(t->context, write, lane, n_lanes, column, n_columns, fault))
        return false;
    for (uint32_t l = lane; l < lane + n_lanes; l++) {
        if (write) {
            memset(&t->written[l][column], 1, n_columns);
            continue;
        }
        const uint8_t *hole = memchr(&t->written[l][column], 0, n_columns);
        if (hole)
            return sim_fault_set(fault, "%s: lane %u, column %u was never written", what, l,
                                 column + (uint32_t)(hole - &t->written[l][column]));
    }
    return true;
}

/* ---- Loads and stores ---- */

int sim_tmem_registers(enum sim_tmem_shape shape, int times)
{
    int each = shape == SIM_TMEM_32X32B ? 1 : shape == SIM_TMEM_16X128B ? 2 : 4;
    if (times < 1 || times > 128 || (times & (times - 1)) != 0 || each * times > 128)
        return 0;
    return each * times;
}

/* Where register i of a lane lies. */
static void cell_of(enum sim_tmem_shape shape, int lane, int i, uint32_t *row, uint32_t *column)
{
    switch (shape) {
    case SIM_TMEM_32X32B:
        *row = (uint32_t)lane;
        *column = (uint32_t)i;
        return;
    case SIM_TMEM_16X128B:
        *row = (uint32_t)(lane / 4 + i % 2 * 8);
        *column = (uint32_t)(i / 2 * 4 + lane % 4);
        return;
    case SIM_TMEM_16X256B:
        *row = (uint32_t)(lane / 4 + i / 2 % 2 * 8);
        *column = (uint32_t)(i / 4 * 8 + lane % 4 * 2 + i % 2);
        return;
    }
}

/* The first lane of an access, allocation and lanes checked. */
static bool warp_access(struct sim_tmem *t, bool write, enum sim_tmem_shape shape, int times, uint32_t address,
                        uint32_t warp, const struct sim_choices *choices, uint32_t *first, struct sim_fault *fault)
{
    const char *what = write ? "tcgen05.st" : "tcgen05.ld";
    uint32_t    lane = address >> 16, own = warp % 4 * 32, n_lanes = shape == SIM_TMEM_32X32B ? 32 : 16;
    uint32_t    each = shape == SIM_TMEM_32X32B ? 1 : shape == SIM_TMEM_16X128B ? 4 : 8;
    if (sim_tmem_registers(shape, times) == 0)
        return sim_fault_set(fault, "%s: no such number of repetitions: x%d", what, times);
    if (choices->lane_of_address_ignored)
        lane = own + lane % 32;
    if (lane < own || lane + n_lanes > own + 32)
        return sim_fault_set(fault, "%s: lanes %u..%u from warp %u, which may touch %u..%u", what, lane,
                             lane + n_lanes - 1, warp, own, own + 31);
    if (lane % n_lanes != 0)
        return sim_fault_set(fault, "%s: lane %u is no multiple of %u", what, lane, n_lanes);
    *first = lane;
    return sim_tmem_use(t, write, lane, n_lanes, address & 0xffff, each * (uint32_t)times, what, fault);
}

bool sim_tmem_load(struct sim_tmem *t, enum sim_tmem_shape shape, int times, uint32_t address, uint32_t warp,
                   const struct sim_choices *choices, uint32_t (*r)[128], struct sim_fault *fault)
{
    uint32_t first, row = 0, column = 0;
    if (!warp_access(t, false, shape, times, address, warp, choices, &first, fault))
        return false;
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < sim_tmem_registers(shape, times); i++) {
            cell_of(shape, lane, i, &row, &column);
            r[lane][i] = t->cell[first + row][(address & 0xffff) + column];
        }
    return true;
}

bool sim_tmem_store(struct sim_tmem *t, enum sim_tmem_shape shape, int times, uint32_t address, uint32_t warp,
                    const struct sim_choices *choices, const uint32_t (*r)[128], struct sim_fault *fault)
{
    uint32_t first, row = 0, column = 0;
    if (!warp_access(t, true, shape, times, address, warp, choices, &first, fault))
        return false;
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < sim_tmem_registers(shape, times); i++) {
            cell_of(shape, lane, i, &row, &column);
            t->cell[first + row][(address & 0xffff) + column] = r[lane][i];
        }
    return true;
}

/* ---- Copies from shared memory ---- */

/* The first lanes of the two copies of 32-row part `part`. With 02_13 warps 0 and 2 form a pair whose members take
 * half of the rows each, as do 1 and 3. */
static uint32_t lane_of_part(enum sim_copy_shape shape, uint32_t part, uint32_t copy)
{
    switch (shape) {
    case SIM_COPY_64X128B_02_13: return (part * 2 + copy) * 32;
    case SIM_COPY_64X128B_01_23: return (copy * 2 + part) * 32;
    case SIM_COPY_32X128B_X4: return copy * 32;
    case SIM_COPY_128X256B:
    case SIM_COPY_128X128B:
    case SIM_COPY_4X256B: break;
    }
    return part * 32;
}

bool sim_tmem_copy(struct sim_tmem *t, enum sim_copy_shape shape, uint32_t address, uint64_t descriptor,
                   const struct sim_shared *shared, const struct sim_choices *choices, struct sim_fault *fault)
{
    struct sim_matrix m;
    uint8_t           row[128][32];
    uint32_t          column = address & 0xffff;
    if (shape == SIM_COPY_4X256B)
        return sim_fault_set(fault, "tcgen05.cp.4x256b is not modelled");
    if (address >> 16 != 0)
        return sim_fault_set(fault, "tcgen05.cp to lane %u: wants lane 0", address >> 16);
    if (!sim_matrix_decode_tcgen05(descriptor, &m, fault))
        return false;
    uint32_t n_parts = shape == SIM_COPY_32X128B_X4                               ? 1
                       : shape == SIM_COPY_128X256B || shape == SIM_COPY_128X128B ? 4
                                                                                  : 2;
    uint32_t n_copies = 4 / n_parts, pieces = shape == SIM_COPY_128X256B ? 2 : 1;
    for (uint32_t r = 0; r < n_parts * 32; r++)
        for (uint32_t p = 0; p < pieces; p++) {
            const uint8_t *from = sim_shared_at(shared, false, sim_matrix_address(&m, true, r, p, choices), 16, fault);
            if (!from)
                return false;
            memcpy(row[r] + 16 * (size_t)p, from, 16);
        }
    for (uint32_t part = 0; part < n_parts; part++)
        for (uint32_t copy = 0; copy < n_copies; copy++) {
            uint32_t lane = lane_of_part(shape, part, copy);
            if (!sim_tmem_use(t, true, lane, 32, column, pieces * 4, "tcgen05.cp", fault))
                return false;
            for (uint32_t r = 0; r < 32; r++)
                memcpy(&t->cell[lane + r][column], row[part * 32 + r], (size_t)pieces * 16);
        }
    return true;
}
