/* tcgen05.mma: instruction descriptors, scale factors, the product of one instruction over one or two CTAs. */
#include <string.h>

#include "ptxsim/tensor_parts.h"

/* ---- Instruction descriptor ---- */

static uint32_t bits(uint32_t word, int first, int last)
{
    return word >> first & (uint32_t)((1ull << (last - first + 1)) - 1);
}

static bool type_of(uint32_t code, bool half, enum sim_element *type)
{
    static const int8_t of[8] = {SIM_E4M3, SIM_E5M2, -1, SIM_E2M3, SIM_E3M2, SIM_E2M1, -1, -1};
    if (half) {
        *type = code == 0 ? SIM_F16 : SIM_BF16;
        return code <= 1;
    }
    *type = of[code] < 0 ? SIM_E4M3 : (enum sim_element)of[code];
    return of[code] >= 0;
}

/* Table 42: kind::f16 and kind::f8f6f4. */
static bool decode_plain(uint32_t d, bool half, struct sim_instruction *out, struct sim_fault *fault)
{
    if (bits(d, 0, 3) || bits(d, 6, 6) || bits(d, 23, 23) || bits(d, 29, 31))
        return sim_fault_set(fault, "instruction descriptor 0x%08x: sparse, or bits 0-3, 6, 23, 29-31 are not zero", d);
    if (bits(d, 4, 5) != 1)
        return sim_fault_set(fault, "instruction descriptor 0x%08x: D type %u: wants 1, fp32 (fp16 is not modelled)", d,
                             bits(d, 4, 5));
    if (!type_of(bits(d, 7, 9), half, &out->a_type) || !type_of(bits(d, 10, 12), half, &out->b_type))
        return sim_fault_set(fault, "instruction descriptor 0x%08x: types %u and %u", d, bits(d, 7, 9),
                             bits(d, 10, 12));
    out->m = (int)bits(d, 24, 28) * 16;
    out->k = half ? 16 : 32;
    return true;
}

/* Table 43: kind::mxf8f6f4. */
static bool decode_scaled(uint32_t d, struct sim_instruction *out, struct sim_fault *fault)
{
    if (bits(d, 0, 3) || bits(d, 6, 6) || bits(d, 24, 26) || bits(d, 31, 31))
        return sim_fault_set(fault, "instruction descriptor 0x%08x: sparse, or bits 0-3, 6, 24-26, 31 are not zero", d);
    if (!bits(d, 23, 23))
        return sim_fault_set(fault, "instruction descriptor 0x%08x: scale type 0: kind::mxf8f6f4 wants 1, UE8M0", d);
    if (!type_of(bits(d, 7, 9), false, &out->a_type) || !type_of(bits(d, 10, 12), false, &out->b_type))
        return sim_fault_set(fault, "instruction descriptor 0x%08x: types %u and %u", d, bits(d, 7, 9),
                             bits(d, 10, 12));
    out->m = (int)bits(d, 27, 28) * 128;
    out->k = 32;
    return true;
}

/* Table 44: kind::mxf4 and kind::mxf4nvf4. */
static bool decode_packed(uint32_t d, bool only_ue8m0, struct sim_instruction *out, struct sim_fault *fault)
{
    if (bits(d, 0, 3) || bits(d, 6, 6) || bits(d, 12, 12) || bits(d, 24, 26))
        return sim_fault_set(fault, "instruction descriptor 0x%08x: sparse, or bits 0-3, 6, 12, 24-26 are not zero", d);
    if (bits(d, 7, 9) != 1 || bits(d, 10, 11) != 1)
        return sim_fault_set(fault, "instruction descriptor 0x%08x: types %u and %u: wants 1, E2M1", d, bits(d, 7, 9),
                             bits(d, 10, 11));
    if (bits(d, 15, 16))
        return sim_fault_set(fault, "instruction descriptor 0x%08x: 4-bit operands cannot be transposed", d);
    if (bits(d, 31, 31))
        return sim_fault_set(fault, "instruction descriptor 0x%08x: K = 96 is not modelled", d);
    if (only_ue8m0 && !bits(d, 23, 23))
        return sim_fault_set(fault, "instruction descriptor 0x%08x: scale type 0: kind::mxf4 wants 1, UE8M0", d);
    out->a_type = out->b_type = SIM_E2M1;
    out->m = (int)bits(d, 27, 28) * 128;
    out->k = 64;
    return true;
}

static bool check_shape(enum sim_mma_kind kind, int n_ctas, uint32_t d, const struct sim_instruction *i,
                        struct sim_fault *fault)
{
    bool scaled = kind >= SIM_KIND_MXF8F6F4;
    int  step = n_ctas == 2 ? 16 : 8;
    bool m_fits = n_ctas == 2 ? i->m == 256 || i->m == 128 : i->m == 128 || (i->m == 64 && !scaled);
    if (i->transpose_b && i->b_type != SIM_F16 && i->b_type != SIM_BF16)
        step *= 2; /* 8-bit operands */
    if (!m_fits || i->n < step || i->n > 256 || i->n % step != 0)
        return sim_fault_set(fault, "instruction descriptor 0x%08x: m = %d, n = %d over %d CTAs", d, i->m, i->n,
                             n_ctas);
    if (scaled && n_ctas == 2 && i->m == 128)
        return sim_fault_set(fault, "block scales with m = 128 over two CTAs are not modelled");
    return true;
}

static bool check_scale(enum sim_mma_kind kind, enum sim_scale scale, uint32_t d, struct sim_instruction *i,
                        struct sim_fault *fault)
{
    bool b16 = scale == SIM_SCALE_4X || scale == SIM_SCALE_BLOCK16, b32 = scale == SIM_SCALE_BLOCK32;
    bool fits = kind < SIM_KIND_MXF8F6F4     ? scale == SIM_SCALE_NONE
                : kind == SIM_KIND_MXF8F6F4  ? b32 || scale == SIM_SCALE_NONE || scale == SIM_SCALE_1X
                : kind == SIM_KIND_MXF4      ? b32 || scale == SIM_SCALE_NONE || scale == SIM_SCALE_2X
                                             : b16 || b32 || scale == SIM_SCALE_2X;
    if (!fits)
        return sim_fault_set(fault, "tcgen05.mma of kind %d with scale vector %d", kind, scale);
    i->group = kind < SIM_KIND_MXF8F6F4 ? i->k : b16 ? 16 : 32;
    i->scale_type = bits(d, 23, 23) ? SIM_UE8M0 : SIM_UE4M3;
    if (kind < SIM_KIND_MXF8F6F4)
        return true;
    if (kind == SIM_KIND_MXF4NVF4 && !b16 && i->scale_type == SIM_UE4M3)
        return sim_fault_set(fault, "instruction descriptor 0x%08x: UE4M3 scales go with blocks of 16", d);
    i->scale_b_id = bits(d, 4, 5);
    i->scale_a_id = bits(d, 29, 30);
    uint32_t odd = kind == SIM_KIND_MXF8F6F4 ? 0 : b16 ? 3 : 1; /* bits of the ids that must be zero */
    if ((i->scale_a_id | i->scale_b_id) & odd)
        return sim_fault_set(fault, "instruction descriptor 0x%08x: scale factor ids %u and %u", d, i->scale_a_id,
                             i->scale_b_id);
    return true;
}

bool sim_instruction_decode(enum sim_mma_kind kind, enum sim_scale scale, int n_ctas, uint32_t idesc,
                            struct sim_instruction *out, struct sim_fault *fault)
{
    memset(out, 0, sizeof *out);
    bool ok = kind == SIM_KIND_F16 || kind == SIM_KIND_F8F6F4 ? decode_plain(idesc, kind == SIM_KIND_F16, out, fault)
              : kind == SIM_KIND_MXF8F6F4                     ? decode_scaled(idesc, out, fault)
                                                              : decode_packed(idesc, kind == SIM_KIND_MXF4, out, fault);
    if (!ok)
        return false;
    out->negate_a = bits(idesc, 13, 13);
    out->negate_b = bits(idesc, 14, 14);
    out->transpose_a = bits(idesc, 15, 15);
    out->transpose_b = bits(idesc, 16, 16);
    out->n = (int)bits(idesc, 17, 22) * 8;
    return check_shape(kind, n_ctas, idesc, out, fault) && check_scale(kind, scale, idesc, out, fault);
}

/* ---- Operands ---- */

/* The lane of D's row i inside one CTA, and its first column for column j: m = 128 over two CTAs puts the right
 * half of the columns into the upper lanes. */
static uint32_t lane_of_row(const struct sim_instruction *in, int n_ctas, int i, int j)
{
    if (in->m == 64)
        return (uint32_t)(i / 16 * 32 + i % 16);
    if (in->m == 128 && n_ctas == 2)
        return (uint32_t)(i + (j >= in->n / 2 ? 64 : 0));
    return (uint32_t)i;
}

static bool read_a(const struct sim_tcgen05_mma *m, const struct sim_instruction *in, const struct sim_choices *choices,
                   const struct sim_shared *shared, struct sim_tmem *tmem, int rows, float *a, struct sim_fault *fault)
{
    struct sim_matrix matrix;
    bool              packed = m->kind >= SIM_KIND_MXF4;
    if (!m->a_in_tmem)
        return sim_matrix_decode_tcgen05(m->a_descriptor, &matrix, fault) &&
               sim_matrix_read(&matrix, !in->transpose_a, in->a_type, packed, rows, in->k, shared, choices, a, fault);
    if (in->transpose_a || (!packed && in->a_type <= SIM_E3M2) || (in->m == 128 && m->n_ctas == 2))
        return sim_fault_set(fault,
                             "tcgen05.mma: A in tensor memory transposed, of 4 or 6 bits or with m = 128 over two "
                             "CTAs is not modelled");
    if (m->a_address >> 16 != 0)
        return sim_fault_set(fault, "tcgen05.mma: A at lane %u: wants 0", m->a_address >> 16);
    for (int i = 0; i < rows; i++) {
        uint32_t lane = lane_of_row(in, m->n_ctas, i, 0), column = m->a_address & 0xffff;
        if (!sim_tmem_use(tmem, false, lane, 1, column, SIM_STEP_BYTES / 4, "tcgen05.mma, A", fault))
            return false;
        sim_row_decode((const uint8_t *)&tmem->cell[lane][column], in->a_type, packed, in->k, a + (ptrdiff_t)i * in->k);
    }
    return true;
}

/* Scales of `rows` rows: row r in lane r % 32 of every partition, column + r / 32. scale[g * step_g + r * step_r]. */
static bool read_scales(const struct sim_instruction *in, uint32_t address, uint32_t id, const char *what,
                        const struct sim_choices *choices, struct sim_tmem *t, int rows, float *scale, ptrdiff_t step_r,
                        ptrdiff_t step_g, struct sim_fault *fault)
{
    uint32_t column = address & 0xffff,
             n_read = (uint32_t)(choices->scales_beyond_n_read ? (rows + 127) / 128 * 128 : rows);
    if (address >> 16 != 0)
        return sim_fault_set(fault, "tcgen05.mma, %s: address 0x%08x: wants lane 0", what, address);
    for (uint32_t part = 0; part < 4; part++)
        for (uint32_t r = 0; r < n_read; r += 32)
            if (!sim_tmem_use(t, false, part * 32, n_read - r < 32 ? n_read - r : 32, column + r / 32, 1, what, fault))
                return false;
    for (int r = 0; r < rows; r++) {
        uint32_t lane = (uint32_t)r % 32, c = column + (uint32_t)r / 32, word = t->cell[lane][c];
        for (uint32_t part = 1; part < 4; part++)
            if (t->cell[lane + 32 * part][c] != word)
                return sim_fault_set(fault, "tcgen05.mma, %s: row %d differs between lanes %u and %u of column %u",
                                     what, r, lane, lane + 32 * part, c);
        for (int g = 0; g < in->k / in->group; g++)
            if (!sim_scale_value(in->scale_type, (uint8_t)(word >> 8 * (id + (uint32_t)g)), choices,
                                 scale + step_g * g + step_r * r, fault))
                return false;
    }
    return true;
}

/* ---- The product ---- */

static bool check_d(const struct sim_tcgen05_mma *m, const struct sim_instruction *in, struct sim_tmem *t, bool write,
                    int rows, struct sim_fault *fault)
{
    uint32_t column = m->d_address & 0xffff, n = (uint32_t)in->n;
    if (m->d_address >> 16 != 0)
        return sim_fault_set(fault, "tcgen05.mma: D at lane %u: wants 0", m->d_address >> 16);
    if (in->m == 128 && m->n_ctas == 2)
        return sim_tmem_use(t, write, 0, 128, column, n / 2, "tcgen05.mma, D", fault);
    for (int i = 0; i < rows; i += in->m == 64 ? 16 : rows)
        if (!sim_tmem_use(t, write, lane_of_row(in, m->n_ctas, i, 0), (uint32_t)(in->m == 64 ? 16 : rows), column, n,
                          "tcgen05.mma, D", fault))
            return false;
    return true;
}

static void multiply(const struct sim_tcgen05_mma *m, const struct sim_instruction *in,
                     const struct sim_choices *choices, struct sim_tmem *t, int rows, const float *a, const float *bt,
                     const float *scale_a, const float *scale_b)
{
    float    d[256];
    uint32_t column = m->d_address & 0xffff;
    bool     scaled = m->kind >= SIM_KIND_MXF8F6F4;
    int      half = in->m == 128 && m->n_ctas == 2 ? in->n / 2 : in->n;
    int      group = scaled ? in->group : choices->group_sums_in_f32 ? 1 : in->k;
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < in->n; j += half)
            memcpy(d + j, &t->cell[lane_of_row(in, m->n_ctas, i, j)][column], (size_t)half * 4);
        sim_row_multiply(a + (ptrdiff_t)i * in->k, bt, scaled ? scale_a + (ptrdiff_t)i * (in->k / in->group) : NULL,
                         scale_b, in->n, in->k, group, m->accumulate, choices, d);
        for (int j = 0; j < in->n; j += half)
            memcpy(&t->cell[lane_of_row(in, m->n_ctas, i, j)][column], d + j, (size_t)half * 4);
    }
}

bool sim_tcgen05_mma(const struct sim_tcgen05_mma *m, const struct sim_choices *choices,
                     const struct sim_shared *const *shared, struct sim_tmem *const *tmem, struct sim_fault *fault)
{
    static _Thread_local float a[2][128 * 64], b[256 * 64], bt[64 * 256], scale_a[2][128 * 4], scale_b[2][4 * 256];
    struct sim_instruction     in;
    struct sim_matrix          matrix;
    bool                       packed = m->kind >= SIM_KIND_MXF4, scaled = m->kind >= SIM_KIND_MXF8F6F4;
    if (!sim_instruction_decode(m->kind, m->scale, m->n_ctas, m->idesc, &in, fault) ||
        !sim_matrix_decode_tcgen05(m->b_descriptor, &matrix, fault))
        return false;
    int rows = in.m / m->n_ctas, columns = in.n / m->n_ctas, n_groups = in.k / in.group;
    for (int c = 0; c < m->n_ctas; c++) {
        /* Each CTA holds its rows of A and its share of B's columns, but the scales of all of them. */
        if (!read_a(m, &in, choices, shared[c], tmem[c], rows, a[c], fault) ||
            !sim_matrix_read(&matrix, !in.transpose_b, in.b_type, packed, columns, in.k, shared[c], choices,
                             b + (ptrdiff_t)c * columns * in.k, fault))
            return false;
        if (scaled && (!read_scales(&in, m->scale_a_address, in.scale_a_id, "scales of A", choices, tmem[c], rows,
                                    scale_a[c], n_groups, 1, fault) ||
                       !read_scales(&in, m->scale_b_address, in.scale_b_id, "scales of B", choices, tmem[c], in.n,
                                    scale_b[c], 1, in.n, fault)))
            return false;
        if (m->accumulate && !check_d(m, &in, tmem[c], false, rows, fault))
            return false;
    }
    for (int j = 0; j < in.n; j++)
        for (int i = 0; i < in.k; i++)
            bt[i * in.n + j] = in.negate_a != in.negate_b ? -b[j * in.k + i] : b[j * in.k + i];
    for (int c = 0; c < m->n_ctas; c++) {
        if (!check_d(m, &in, tmem[c], true, rows, fault))
            return false;
        multiply(m, &in, choices, tmem[c], rows, a[c], bt, scale_a[c], scale_b[c]);
    }
    return true;
}
