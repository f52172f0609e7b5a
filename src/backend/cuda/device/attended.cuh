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

NIB_DEVICE void nib_attend_load_fp8(const uint8_t *row, uint16_t *to, int lane)
{
    for (int i = lane; i < kAttendNope / 8; i += 32) {
        uint2 c = ((const uint2 *)row)[i];
        float scale = nib_e8m0_value(row[kAttendNope + 2 * kAttendRot + i / 8]);
        uint4 v;
        v.x = nib_pack_bf16x2(nib_fp8_value(c.x & 255, scale), nib_fp8_value(c.x >> 8 & 255, scale));
        v.y = nib_pack_bf16x2(nib_fp8_value(c.x >> 16 & 255, scale), nib_fp8_value(c.x >> 24, scale));
        v.z = nib_pack_bf16x2(nib_fp8_value(c.y & 255, scale), nib_fp8_value(c.y >> 8 & 255, scale));
        v.w = nib_pack_bf16x2(nib_fp8_value(c.y >> 16 & 255, scale), nib_fp8_value(c.y >> 24, scale));
        ((uint4 *)to)[i] = v;
    }
    for (int i = lane; i < kAttendRot / 2; i += 32)
        ((uint32_t *)(to + kAttendNope))[i] = ((const uint32_t *)(row + kAttendNope))[i];
}

NIB_DEVICE void nib_attend_load_nvfp4(const uint8_t *row, uint16_t *to, float *row_scale, int lane)
{
    constexpr int g_at = kAttendNope / 2 + kAttendNope / 16;
    for (int i = lane; i < kAttendNope / 8; i += 32) {
        uint32_t v[4];
        float    scale = nib_e4m3_value(row[kAttendNope / 2 + i / 2]);
        uint32_t pair = nib_pack_bf16x2(scale, scale);
        nib_e2m1_bf16x8(((const uint32_t *)row)[i], v);
        for (int k = 0; k < 4; k++)
            v[k] = nib_mul_bf16x2(v[k], pair);
        ((uint4 *)to)[i] = make_uint4(v[0], v[1], v[2], v[3]);
    }
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
