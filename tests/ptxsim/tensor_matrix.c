/* Operands of matrix instructions: element types, shared-memory descriptors and their canonical layouts, sums. */
#include <math.h>
#include <string.h>

#include "ptxsim/tensor_parts.h"

/* ---- Element types ---- */

enum specials { FINITE, TOP_IS_NAN, IEEE };

static float decode_float(uint32_t code, int exponent_bits, int mantissa_bits, int bias, enum specials specials)
{
    uint32_t mantissa = code & ((1u << mantissa_bits) - 1), top = (1u << exponent_bits) - 1;
    uint32_t exponent = code >> mantissa_bits & top;
    float    sign = code >> (mantissa_bits + exponent_bits) & 1 ? -1.0f : 1.0f;
    if (exponent == top && specials == IEEE)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == top && specials == TOP_IS_NAN && mantissa == (1u << mantissa_bits) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    return sign * ldexpf((float)(mantissa | 1u << mantissa_bits), (int)exponent - bias - mantissa_bits);
}

float sim_element_value(enum sim_element e, uint32_t code)
{
    switch (e) {
    case SIM_E2M1: return decode_float(code & 15, 2, 1, 1, FINITE);
    case SIM_E2M3: return decode_float(code & 63, 2, 3, 1, FINITE);
    case SIM_E3M2: return decode_float(code & 63, 3, 2, 3, FINITE);
    case SIM_E4M3: return decode_float(code & 255, 4, 3, 7, TOP_IS_NAN);
    case SIM_E5M2: return decode_float(code & 255, 5, 2, 15, IEEE);
    case SIM_F16: return decode_float(code & 0xffff, 5, 10, 15, IEEE);
    case SIM_BF16: return decode_float(code & 0xffff, 8, 7, 127, IEEE);
    case SIM_UE4M3: return decode_float(code & 127, 4, 3, 7, TOP_IS_NAN);
    case SIM_UE8M0: return (code & 255) == 255 ? NAN : ldexpf(1.0f, (int)(code & 255) - 127);
    }
    return NAN;
}

static int bits_of(enum sim_element e)
{
    return e == SIM_E2M1 ? 4 : e == SIM_E2M3 || e == SIM_E3M2 ? 6 : e == SIM_F16 || e == SIM_BF16 ? 16 : 8;
}

/* Codes of up to 8 bits come from tables. */
static const float *table_of(enum sim_element e)
{
    static _Thread_local float table[SIM_UE8M0 + 1][256];
    static _Thread_local bool  made[SIM_UE8M0 + 1];
    if (!made[e])
        for (uint32_t c = 0; c < 256; c++)
            table[e][c] = sim_element_value(e, c);
    made[e] = true;
    return table[e];
}

bool sim_scale_value(enum sim_element type, uint8_t byte, const struct sim_choices *choices, float *value,
                     struct sim_fault *fault)
{
    if (type == SIM_UE4M3 && byte > 127 && !choices->scale_sign_ignored)
        return sim_fault_set(fault, "scale byte 0x%02x: the top bit of UE4M3 must be zero", byte);
    *value = table_of(type)[byte];
    if (type == SIM_UE4M3 && (byte & 127) < 8 && choices->flush_scale_subnormals)
        *value = 0;
    return true;
}

void sim_row_decode(const uint8_t *bytes, enum sim_element type, bool packed, int k, float *x)
{
    int bits = bits_of(type);
    if (bits == 16) {
        for (int i = 0; i < k; i++)
            x[i] = sim_element_value(type, (uint32_t)bytes[2 * i] | (uint32_t)bytes[2 * i + 1] << 8);
        return;
    }
    const float *table = table_of(type);
    for (int i = 0; i < k; i++) {
        /* Without packing, 16 values of fewer than 8 bits take 16 bytes, the data first. */
        int      bit = packed ? i * bits : i / 16 * 128 + i % 16 * bits;
        uint32_t two = (uint32_t)bytes[bit / 8] | (bit % 8 + bits > 8 ? (uint32_t)bytes[bit / 8 + 1] << 8 : 0);
        x[i] = table[two >> bit % 8 & ((1u << bits) - 1)];
    }
}

/* ---- Descriptors ---- */

static uint32_t field(uint64_t descriptor, int first, int last)
{
    return (uint32_t)(descriptor >> first & ((1ull << (last - first + 1)) - 1));
}

static bool decode_common(uint64_t descriptor, struct sim_matrix *m, struct sim_fault *fault)
{
    m->start = field(descriptor, 0, 13) << 4;
    m->leading = field(descriptor, 16, 29) << 4;
    m->stride = field(descriptor, 32, 45) << 4;
    m->base_offset = field(descriptor, 49, 51);
    if (field(descriptor, 14, 15) || field(descriptor, 30, 31))
        return sim_fault_set(fault, "matrix descriptor 0x%016llx: bits 14-15 and 30-31 must be zero",
                             (unsigned long long)descriptor);
    return true;
}

bool sim_matrix_decode_wgmma(uint64_t descriptor, struct sim_matrix *m, struct sim_fault *fault)
{
    static const uint32_t span[4] = {0, 128, 64, 32};
    if (!decode_common(descriptor, m, fault))
        return false;
    if (field(descriptor, 46, 48) || field(descriptor, 52, 61))
        return sim_fault_set(fault, "wgmma descriptor 0x%016llx: bits 46-48 and 52-61 must be zero",
                             (unsigned long long)descriptor);
    m->span = span[field(descriptor, 62, 63)];
    return true;
}

bool sim_matrix_decode_tcgen05(uint64_t descriptor, struct sim_matrix *m, struct sim_fault *fault)
{
    uint32_t swizzle = field(descriptor, 61, 63);
    if (!decode_common(descriptor, m, fault))
        return false;
    if (field(descriptor, 46, 48) != 1)
        return sim_fault_set(fault, "tcgen05 descriptor 0x%016llx: bits 46-48 are %u: wants 1",
                             (unsigned long long)descriptor, field(descriptor, 46, 48));
    if (field(descriptor, 53, 60))
        return sim_fault_set(fault, "tcgen05 descriptor 0x%016llx: bits 53-60 must be zero",
                             (unsigned long long)descriptor);
    if (field(descriptor, 52, 52))
        return sim_fault_set(fault, "tcgen05 descriptor 0x%016llx: absolute leading offset is for K = 96",
                             (unsigned long long)descriptor);
    if (swizzle == 3 || swizzle == 5 || swizzle == 7)
        return sim_fault_set(fault, "tcgen05 descriptor 0x%016llx: swizzle %u is reserved",
                             (unsigned long long)descriptor, swizzle);
    if (swizzle == 1)
        return sim_fault_set(fault, "tcgen05 descriptor 0x%016llx: 128 bytes in atoms of 32 is for transposed tf32",
                             (unsigned long long)descriptor);
    m->span = swizzle == 2 ? 128 : swizzle == 4 ? 64 : swizzle == 6 ? 32 : 0;
    return true;
}

uint32_t sim_matrix_address(const struct sim_matrix *m, bool k_major, uint32_t line, uint32_t piece,
                            const struct sim_choices *choices)
{
    uint32_t wide = m->span / 16, offset; /* pieces that the swizzle permutes */
    if (k_major)
        offset = line / 8 * m->stride + (wide ? line % 8 * m->span + piece * 16 : line % 8 * 16 + piece * m->leading);
    else if (wide)
        offset = piece % wide * 16 + piece / wide * m->leading + line % 8 * m->span + line / 8 * m->stride;
    else
        offset = piece * m->stride + line % 8 * 16 + line / 8 * m->leading;
    uint32_t address = m->start + offset, row = address >> 7;
    if (!choices->base_offset_ignored)
        row -= m->base_offset;
    return (address ^ (wide ? (row & (wide - 1)) << 4 : 0)) & 0x3ffff;
}

/* ---- Reading ---- */

static bool read_k_major(const struct sim_matrix *m, enum sim_element type, bool packed, int rows, int k,
                         const struct sim_shared *shared, const struct sim_choices *choices, float *x,
                         struct sim_fault *fault)
{
    uint8_t bytes[SIM_STEP_BYTES];
    for (int r = 0; r < rows; r++) {
        for (uint32_t p = 0; p < SIM_STEP_BYTES / 16; p++) {
            const uint8_t *at =
                sim_shared_at(shared, false, sim_matrix_address(m, true, (uint32_t)r, p, choices), 16, fault);
            if (!at)
                return false;
            memcpy(bytes + 16 * p, at, 16);
        }
        sim_row_decode(bytes, type, packed, k, x + (ptrdiff_t)r * k);
    }
    return true;
}

static bool read_mn_major(const struct sim_matrix *m, enum sim_element type, int rows, int k,
                          const struct sim_shared *shared, const struct sim_choices *choices, float *x,
                          struct sim_fault *fault)
{
    int   each = 128 / bits_of(type);
    float piece[16];
    if (bits_of(type) < 8)
        return sim_fault_set(fault, "a transposed operand of %d-bit values", bits_of(type));
    for (int i = 0; i < k; i++)
        for (int r = 0; r < rows; r += each) {
            const uint8_t *at = sim_shared_at(
                shared, false, sim_matrix_address(m, false, (uint32_t)i, (uint32_t)(r / each), choices), 16, fault);
            if (!at)
                return false;
            sim_row_decode(at, type, true, each, piece);
            for (int j = 0; j < each && r + j < rows; j++)
                x[(ptrdiff_t)(r + j) * k + i] = piece[j];
        }
    return true;
}

bool sim_matrix_read(const struct sim_matrix *m, bool k_major, enum sim_element type, bool packed, int rows, int k,
                     const struct sim_shared *shared, const struct sim_choices *choices, float *x,
                     struct sim_fault *fault)
{
    if (k_major)
        return read_k_major(m, type, packed, rows, k, shared, choices, x, fault);
    return read_mn_major(m, type, rows, k, shared, choices, x, fault);
}

/* ---- Sums ----
 *
 * Products of two values of at most 11 significant bits (bf16: 8) are exact in double. 64 products of NVFP4 under
 * four scale products span 48 bits, so their sum is exact too, as is that of 32 products of E4M3 (41 bits); adding
 * D rounds to 53 bits and then to 24. For E5M2, fp16 and bf16, whose exponents may lie far apart, an error of at
 * most k * 2^-53 of the sum of the magnitudes remains. */
void sim_row_multiply(const float *a, const float *bt, const float *scale_a, const float *scale_b, int n, int k,
                      int group, bool accumulate, const struct sim_choices *choices, float *d)
{
    double sum[256], part[256];
    bool   whole = scale_a != NULL;
    for (int j = 0; j < n; j++)
        sum[j] = choices->group_sums_in_f32 && accumulate ? (double)d[j] : 0.0;
    for (int first = 0; first < k; first += group) {
        for (int j = 0; j < n; j++)
            part[j] = 0;
        for (int i = first; i < first + group; i++)
            for (int j = 0; j < n; j++)
                part[j] += (double)a[i] * (double)bt[(ptrdiff_t)i * n + j];
        for (int j = 0; j < n; j++) {
            double scale =
                whole ? (double)scale_a[first / group] * (double)scale_b[(ptrdiff_t)(first / group) * n + j] : 1.0;
            double value = choices->zero_hides_nan_scale && part[j] == 0.0 ? 0.0 : part[j] * scale;
            sum[j] = choices->group_sums_in_f32 ? (double)(float)(sum[j] + (double)(float)value) : sum[j] + value;
        }
    }
    for (int j = 0; j < n; j++)
        d[j] = (float)(choices->group_sums_in_f32 || !accumulate ? sum[j] : sum[j] + (double)d[j]);
}
