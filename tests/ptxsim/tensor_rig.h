/* For the tests of the tensor part: memory with canaries, random numbers, layouts evaluated as the ISA writes them. */
#ifndef SIM_TENSOR_RIG_H
#define SIM_TENSOR_RIG_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ptxsim/tensor.h"

#define GOLDENS_SM100 NIB_SOURCE_DIR "/tests/data/goldens/sm100/"

static const struct sim_choices plain; /* zeroed */

static inline uint32_t rig_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) ^ (uint32_t)(*seed >> 17);
}

/* The test ends if an expected success was none. */
#define RIG_OK(call)                                                                                                   \
    do {                                                                                                               \
        if (!(call))                                                                                                   \
            fail_msg("%s", fault.text);                                                                                \
    } while (0)

/* The call must fail with a sentence that holds the text. */
#define RIG_FAULT(call, part)                                                                                          \
    do {                                                                                                               \
        fault.text[0] = 0;                                                                                             \
        assert_false(call);                                                                                            \
        if (!strstr(fault.text, part))                                                                                 \
            fail_msg("the fault is '%s' and should mention '%s'", fault.text, part);                                   \
    } while (0)

/* One mode of a CuTe layout: sizes and strides, the first varies fastest; 0 ends it and a last size of -1 takes
 * the rest. */
struct rig_mode {
    int size[3];
    int stride[3];
};

static inline int rig_mode_at(const struct rig_mode *m, int i)
{
    int offset = 0;
    for (int d = 0; d < 3 && m->size[d] != 0; d++) {
        offset += (m->size[d] < 0 ? i : i % m->size[d]) * m->stride[d];
        i = m->size[d] < 0 ? 0 : i / m->size[d];
    }
    return offset;
}

/* Byte of element (mn, k) in the canonical layout of the ISA's table for `bits` wide elements, unswizzled offset
 * in elements of 128 / t bits; span is the swizzle's 0, 32, 64 or 128 bytes. */
static inline uint32_t rig_canonical(bool k_major, int span, int bits, int leading, int stride, uint32_t start, int mn,
                                     int k)
{
    int             t = 128 / bits, wide = span / 16, l = leading * 8 / bits, s = stride * 8 / bits;
    struct rig_mode rows, columns;
    if (k_major && span == 0) {
        rows = (struct rig_mode){{8, -1}, {t, s}};
        columns = (struct rig_mode){{t, -1}, {1, l}};
    } else if (k_major) {
        rows = (struct rig_mode){{8, -1}, {wide * t, s}};
        columns = (struct rig_mode){{t, -1}, {1, t}};
    } else if (span == 0) {
        rows = (struct rig_mode){{t, 1, -1}, {1, t, s}};
        columns = (struct rig_mode){{8, -1}, {t, l}};
    } else {
        rows = (struct rig_mode){{t, wide, -1}, {1, t, l}};
        columns = (struct rig_mode){{8, -1}, {wide * t, s}};
    }
    uint32_t at = start + (uint32_t)((rig_mode_at(&rows, mn) + rig_mode_at(&columns, k)) * bits / 8);
    int      swizzle_bits = span == 0 ? 0 : span == 32 ? 1 : span == 64 ? 2 : 3;
    uint32_t mask = (1u << swizzle_bits) - 1;
    return at ^ (at >> 7 & mask) << 4; /* Swizzle<bits, 4, 3> */
}

#endif
