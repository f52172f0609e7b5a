/* What a query attends to, and the attended rows of 512 channels decoded to bf16. Every decoded value is exact: NVFP4
 * rows leave their row scale out, which multiplies scores and weights instead. */
#ifndef NIB_CUDA_ATTENDED_CUH
#define NIB_CUDA_ATTENDED_CUH

#include "backend/cuda/device/rows.cuh"

constexpr int kAttendDim = 512, kAttendRot = 64, kAttendNope = kAttendDim - kAttendRot;

struct nib_attended {
    int32_t        first, n_window, n;
    const int32_t *selected, *window_page, *entry_page;
};

NIB_DEVICE struct nib_attended nib_attended_by(const struct nib_attend_args &a, const struct nib_rows &rows, int64_t t)
{
    struct nib_attended at = {};
    int32_t         pos = rows.pos[t];
    int64_t         pages = rows.seq[t] * rows.page_stride;
    at.first = max(rows.first_pos, pos - a.n_window + 1);
    at.n_window = at.n = pos - at.first + 1;
    at.window_page = rows.window_page + pages;
    if (a.ratio > 0) {
        at.entry_page = rows.entry_page + pages;
        at.selected = a.selected ? a.selected + t * a.top_k : NULL;
        at.n += a.selected ? a.n_selected[t] : (pos + 1) / a.ratio;
    }
    return at;
}

NIB_DEVICE void nib_ldmatrix_x4(uint32_t r[4], const uint16_t *p)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(a));
}

NIB_DEVICE void nib_ldmatrix_x4_trans(uint32_t r[4], const uint16_t *p)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(a));
}

/* ---- Rows to shared memory as bf16: a warp a row ---- */

/* e4m3 byte times a power of two, exact. */
NIB_DEVICE float nib_fp8_value(uint32_t code, float scale)
{
    return __uint_as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 0x1p120f * scale;
}

/* Eight e4m3 bytes times 2^(scale_code - 127), exact but for what is below bf16's range. A byte's magnitude as the last
 * exponent and first mantissa bits of a bf16 number is its value times 2^-120, subnormal where the byte is, so one
 * product gives the rest; a scale above 2^7 is two, as no bf16 number is that large: the second one is apart. */
constexpr uint32_t kFp8ScaleMost = 134;
NIB_DEVICE uint4 nib_fp8_values_of_small(uint2 codes, uint32_t scale_code)
{
    uint32_t v[4], factor = min(scale_code, kFp8ScaleMost) * 0x00800080u + 0x3c003c00u; /* 2^(scale_code - 7), twice */
#pragma unroll
    for (int i = 0; i < 2; i++) { /* the two bytes of each number, four codes at a time */
        uint32_t c = i ? codes.y : codes.x, low = c << 4 & 0xf0f0f0f0u;
        uint32_t high = (c >> 4 & 0x07070707u) | (c & 0x80808080u);
        v[2 * i] = nib_mul_bf16x2(__byte_perm(low, high, 0x5140), factor);
        v[2 * i + 1] = nib_mul_bf16x2(__byte_perm(low, high, 0x7362), factor);
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

NIB_DEVICE uint4 nib_fp8_values_of_large(uint4 v, uint32_t scale_code)
{
    uint32_t rest = scale_code == 255u ? 0x7fc0u : (scale_code - 7u) << 7; /* 2^(scale_code - 134) */
    rest = scale_code > kFp8ScaleMost ? rest | rest << 16 : 0x3f803f80u;
    return make_uint4(nib_mul_bf16x2(v.x, rest), nib_mul_bf16x2(v.y, rest), nib_mul_bf16x2(v.z, rest),
                      nib_mul_bf16x2(v.w, rest));
}

NIB_DEVICE uint4 nib_fp8_values(uint2 codes, uint32_t scale_code)
{
    uint4 v = nib_fp8_values_of_small(codes, scale_code);
    return scale_code > kFp8ScaleMost ? nib_fp8_values_of_large(v, scale_code) : v;
}

NIB_DEVICE void nib_attend_load_fp8(const uint8_t *row, uint16_t *to, int lane)
{
    for (int i = lane; i < kAttendNope / 8; i += 32)
        ((uint4 *)to)[i] = nib_fp8_values(((const uint2 *)row)[i], row[kAttendNope + 2 * kAttendRot + i / 8]);
    for (int i = lane; i < kAttendRot / 2; i += 32)
        ((uint32_t *)(to + kAttendNope))[i] = ((const uint32_t *)(row + kAttendNope))[i];
}

/* Eight E2M1 codes times their block's E4M3 scale, which becomes a bf16 number as above. */
NIB_DEVICE uint4 nib_nvfp4_values(uint32_t codes, uint32_t scale_code)
{
    uint32_t v[4], scale = (scale_code & 0x7fu) << 4 | (scale_code & 0x80u) << 8;
    uint32_t pair = nib_mul_bf16x2(scale | scale << 16, 0x7b807b80u); /* 2^120 */
    pair = (scale_code & 0x7fu) == 0x7fu ? 0x7fc07fc0u : pair;
    nib_e2m1_bf16x8(codes, v);
    return make_uint4(nib_mul_bf16x2(v[0], pair), nib_mul_bf16x2(v[1], pair), nib_mul_bf16x2(v[2], pair),
                      nib_mul_bf16x2(v[3], pair));
}

NIB_DEVICE void nib_attend_load_nvfp4(const uint8_t *row, uint16_t *to, float *row_scale, int lane)
{
    constexpr int g_at = kAttendNope / 2 + kAttendNope / 16;
    for (int i = lane; i < kAttendNope / 8; i += 32)
        ((uint4 *)to)[i] = nib_nvfp4_values(((const uint32_t *)row)[i], row[kAttendNope / 2 + i / 2]);
    for (int i = lane; i < kAttendRot / 2; i += 32)
        ((uint32_t *)(to + kAttendNope))[i] = ((const uint32_t *)(row + g_at + 4))[i];
    if (lane == 0)
        *row_scale = *(const float *)(row + g_at);
}

/* Where attended row j < n stands. */
NIB_DEVICE const uint8_t *nib_attended_row(const struct nib_attend_args &a, const struct nib_attended &at, int32_t j)
{
    int32_t e = j - at.n_window;
    return e < 0 ? nib_store_at(a.window, at.window_page, at.first + j)
                 : nib_store_at(a.entries, at.entry_page, at.selected ? at.selected[e] : e);
}

#endif
