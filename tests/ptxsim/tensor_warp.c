/* Matrix instructions whose accumulators are registers: wgmma of a warpgroup, mma.sync of a warp. */
#include <string.h>

#include "ptxsim/tensor_parts.h"

/* ---- wgmma ---- */

/* Registers of the 64 x 32-byte fragment to rows: register r of a thread holds 4 bytes of row 16 warp + lane / 4 +
 * 8 (r % 2), from byte 4 (lane % 4) + 16 (r / 2) on. */
static void a_from_registers(const uint32_t (*a)[4], enum sim_element type, int k, float *x)
{
    uint8_t row[64][SIM_STEP_BYTES];
    for (int t = 0; t < 128; t++)
        for (int r = 0; r < 4; r++)
            memcpy(&row[t / 32 * 16 + t % 32 / 4 + r % 2 * 8][t % 4 * 4 + r / 2 * 16], &a[t][r], 4);
    for (int i = 0; i < 64; i++)
        sim_row_decode(row[i], type, false, k, x + (ptrdiff_t)i * k);
}

static bool check_wgmma(const struct sim_wgmma *w, struct sim_fault *fault)
{
    bool half = w->type == SIM_F16 || w->type == SIM_BF16, byte = w->type == SIM_E4M3 || w->type == SIM_E5M2;
    if (half ? w->b_type != w->type : !byte || (w->b_type != SIM_E4M3 && w->b_type != SIM_E5M2))
        return sim_fault_set(fault, "wgmma of types %d and %d", w->type, w->b_type);
    if (w->n < 8 || w->n > 256 || w->n % 8 != 0)
        return sim_fault_set(fault, "wgmma with n = %d: wants 8 to 256 in steps of 8", w->n);
    if ((w->transpose_a || w->transpose_b) && !half)
        return sim_fault_set(fault, "wgmma transposes only 16-bit types");
    if (w->transpose_a && w->a_in_registers)
        return sim_fault_set(fault, "wgmma cannot transpose A in registers");
    return true;
}

static void negate(float *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = -x[i];
}

bool sim_wgmma(const struct sim_wgmma *w, const struct sim_choices *choices, const struct sim_shared *shared,
               struct sim_fault *fault)
{
    static _Thread_local float a[64 * 32], b[256 * 32], bt[32 * 256], d[64][256];
    struct sim_matrix          m;
    int                        k = w->type == SIM_F16 || w->type == SIM_BF16 ? 16 : 32;
    if (!check_wgmma(w, fault))
        return false;
    if (w->a_in_registers)
        a_from_registers(w->a, w->type, k, a);
    else if (!sim_matrix_decode_wgmma(w->a_descriptor, &m, fault) ||
             !sim_matrix_read(&m, !w->transpose_a, w->type, false, 64, k, shared, choices, a, fault))
        return false;
    if (!sim_matrix_decode_wgmma(w->b_descriptor, &m, fault) ||
        !sim_matrix_read(&m, !w->transpose_b, w->b_type, false, w->n, k, shared, choices, b, fault))
        return false;
    if (w->negate_a != w->negate_b)
        negate(a, 64 * k);
    for (int j = 0; j < w->n; j++)
        for (int i = 0; i < k; i++)
            bt[i * w->n + j] = b[j * k + i];
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < w->n / 2; i++)
            d[t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2] = w->d[t][i];
    for (int r = 0; r < 64; r++)
        sim_row_multiply(a + (ptrdiff_t)r * k, bt, NULL, NULL, w->n, k, choices->group_sums_in_f32 ? 1 : k,
                         w->accumulate, choices, d[r]);
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < w->n / 2; i++)
            w->d[t][i] = d[t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2];
    return true;
}

/* ---- mma.sync ---- */

static int depth_of(const struct sim_mma_sync *m)
{
    return m->packed ? 64 : m->a_type == SIM_F16 || m->a_type == SIM_BF16 ? 16 : 32;
}

static bool check_mma(const struct sim_mma_sync *m, struct sim_fault *fault)
{
    int  k = depth_of(m);
    bool half = k == 16;
    if (m->packed ? m->a_type != SIM_E2M1 || m->b_type != SIM_E2M1
        : half    ? m->a_type != m->b_type
                  : m->b_type > SIM_E5M2)
        return sim_fault_set(fault, "mma.sync of types %d and %d", m->a_type, m->b_type);
    bool fits = m->packed
                    ? (m->scale == SIM_SCALE_2X && m->scale_type == SIM_UE8M0) ||
                          (m->scale == SIM_SCALE_4X && (m->scale_type == SIM_UE4M3 || m->scale_type == SIM_UE8M0))
                    : m->scale == SIM_SCALE_NONE || (!half && m->scale == SIM_SCALE_1X && m->scale_type == SIM_UE8M0);
    if (!fits)
        return sim_fault_set(fault, "mma.sync with k = %d under scale vector %d of type %d", k, m->scale,
                             m->scale_type);
    if (m->scale == SIM_SCALE_NONE)
        return true;
    uint32_t last = m->scale == SIM_SCALE_1X   ? 3
                    : m->scale == SIM_SCALE_2X ? 2
                                               : 0,
             step = m->scale == SIM_SCALE_2X ? 2 : 1;
    if (m->byte_a > last || m->byte_b > last || m->byte_a % step || m->byte_b % step || m->thread_a > 1 ||
        m->thread_b > 3)
        return sim_fault_set(fault, "mma.sync scale selectors {%u, %u}, {%u, %u}", m->byte_a, m->thread_a, m->byte_b,
                             m->thread_b);
    return true;
}

/* A row of 32 bytes from containers of 8 bits: E2M1 stands in bits 2 to 5, the 6-bit types in bits 0 to 5. */
static bool decode_containers(uint8_t *row, enum sim_element type, bool packed, int k, float *x,
                              struct sim_fault *fault)
{
    if (packed || type > SIM_E3M2) {
        sim_row_decode(row, type, packed, k, x);
        return true;
    }
    for (int i = 0; i < k; i++) {
        uint32_t empty = type == SIM_E2M1 ? 0xc3 : 0xc0;
        if (row[i] & empty)
            return sim_fault_set(fault, "mma.sync: byte 0x%02x has bits outside its %d-bit value", row[i],
                                 type == SIM_E2M1 ? 4 : 6);
        x[i] = sim_element_value(type, type == SIM_E2M1 ? (uint32_t)row[i] >> 2 : row[i]);
    }
    return true;
}

/* Scales of a row of A or a column of B, from the register of the lane that holds them. */
static bool decode_scales(const struct sim_mma_sync *m, uint32_t word, uint32_t first_byte,
                          const struct sim_choices *choices, int n, float *scale, ptrdiff_t step,
                          struct sim_fault *fault)
{
    for (int i = 0; i < n; i++)
        if (!sim_scale_value(m->scale_type, (uint8_t)(word >> 8 * (first_byte + (uint32_t)i)), choices,
                             scale + step * i, fault))
            return false;
    return true;
}

bool sim_mma_sync(const struct sim_mma_sync *m, const struct sim_choices *choices, struct sim_fault *fault)
{
    uint8_t row_a[16][SIM_STEP_BYTES], row_b[8][SIM_STEP_BYTES];
    float   a[16][64], b[8][64], bt[64 * 8], scale_a[16][4], scale_b[4 * 8], d[16][8];
    int     k = depth_of(m), n_scales = m->scale == SIM_SCALE_4X ? 4 : m->scale == SIM_SCALE_2X ? 2 : 1;
    bool    scaled = m->scale != SIM_SCALE_NONE;
    if (!check_mma(m, fault))
        return false;
    for (int t = 0; t < 32; t++) {
        for (int r = 0; r < 4; r++)
            memcpy(&row_a[t / 4 + r % 2 * 8][t % 4 * 4 + r / 2 * 16], &m->a[t][r], 4);
        for (int r = 0; r < 2; r++)
            memcpy(&row_b[t / 4][t % 4 * 4 + r * 16], &m->b[t][r], 4);
        for (int i = 0; i < 4; i++)
            d[t / 4 + i / 2 * 8][t % 4 * 2 + i % 2] = m->d[t][i];
    }
    for (int r = 0; r < 16; r++)
        if (!decode_containers(row_a[r], m->a_type, m->packed, k, a[r], fault) ||
            (scaled && !decode_scales(m, m->scale_a[4 * (r % 8) + 2 * (int)m->thread_a + r / 8], m->byte_a, choices,
                                      n_scales, scale_a[r], 1, fault)))
            return false;
    for (int j = 0; j < 8; j++) {
        if (!decode_containers(row_b[j], m->b_type, m->packed, k, b[j], fault) ||
            (scaled && !decode_scales(m, m->scale_b[4 * j + (int)m->thread_b], m->byte_b, choices, n_scales,
                                      scale_b + j, 8, fault)))
            return false;
        for (int i = 0; i < k; i++)
            bt[i * 8 + j] = b[j][i];
    }
    int group = scaled ? k / n_scales : choices->group_sums_in_f32 ? 1 : k;
    for (int r = 0; r < 16; r++)
        sim_row_multiply(a[r], bt, scaled ? scale_a[r] : NULL, scale_b, 8, k, group, true, choices, d[r]);
    for (int t = 0; t < 32; t++)
        for (int i = 0; i < 4; i++)
            m->d[t][i] = d[t / 4 + i / 2 * 8][t % 4 * 2 + i % 2];
    return true;
}
