/* Rows in memory as the ops share them: matrices of fp32 or bf16, activation rows, rotation, stored KV rows. Functions
 * named ..._block are run by all threads of a block over a row in shared memory; they begin and end with the row
 * visible to all. Blocks are whole warps. */
#ifndef NIB_CUDA_ROWS_CUH
#define NIB_CUDA_ROWS_CUH

#include "backend/backend.h"
#include "backend/cuda/device/ptx.cuh"

NIB_DEVICE float nib_mat_get(const struct nib_mat &m, int64_t row, int64_t col)
{
    int64_t i = row * m.stride + col;
    return m.dtype == NIB_DTYPE_F32 ? ((const float *)m.data)[i] : nib_bf16_value(((const uint16_t *)m.data)[i]);
}

NIB_DEVICE void nib_mat_set(const struct nib_mat &m, int64_t row, int64_t col, float v)
{
    int64_t i = row * m.stride + col;
    if (m.dtype == NIB_DTYPE_F32)
        ((float *)m.data)[i] = v;
    else
        ((uint16_t *)m.data)[i] = nib_bf16_code(v);
}

/* Whether eight values at a multiple of eight columns are one aligned access. */
NIB_DEVICE bool nib_mat_by8(const struct nib_mat &m)
{
    return m.stride % 8 == 0 && (uintptr_t)m.data % 16 == 0;
}

NIB_DEVICE void nib_bf16x8_values(uint4 v, float x[8])
{
    x[0] = nib_bf16_value(v.x & 0xffffu), x[1] = nib_bf16_value(v.x >> 16);
    x[2] = nib_bf16_value(v.y & 0xffffu), x[3] = nib_bf16_value(v.y >> 16);
    x[4] = nib_bf16_value(v.z & 0xffffu), x[5] = nib_bf16_value(v.z >> 16);
    x[6] = nib_bf16_value(v.w & 0xffffu), x[7] = nib_bf16_value(v.w >> 16);
}

NIB_DEVICE void nib_mat_get8(const struct nib_mat &m, int64_t row, int64_t col, float x[8])
{
    int64_t i = row * m.stride + col;
    if (m.dtype == NIB_DTYPE_F32) {
        *(float4 *)x = *(const float4 *)((const float *)m.data + i);
        *(float4 *)(x + 4) = *(const float4 *)((const float *)m.data + i + 4);
        return;
    }
    nib_bf16x8_values(*(const uint4 *)((const uint16_t *)m.data + i), x);
}

NIB_DEVICE void nib_mat_set8(const struct nib_mat &m, int64_t row, int64_t col, const float x[8])
{
    int64_t i = row * m.stride + col;
    if (m.dtype == NIB_DTYPE_F32) {
        *(float4 *)((float *)m.data + i) = *(const float4 *)x;
        *(float4 *)((float *)m.data + i + 4) = *(const float4 *)(x + 4);
        return;
    }
    *(uint4 *)((uint16_t *)m.data + i) = make_uint4(nib_pack_bf16x2(x[0], x[1]), nib_pack_bf16x2(x[2], x[3]),
                                                    nib_pack_bf16x2(x[4], x[5]), nib_pack_bf16x2(x[6], x[7]));
}

/* Columns [col, col + n) of a row; x must be 16-byte aligned. */
NIB_DEVICE void nib_mat_load_part_block(const struct nib_mat &m, int64_t row, int64_t col, int32_t n, float *x)
{
    int32_t whole = nib_mat_by8(m) && col % 8 == 0 ? n / 8 * 8 : 0;
    for (int32_t i = threadIdx.x * 8; i < whole; i += blockDim.x * 8)
        nib_mat_get8(m, row, col + i, x + i);
    for (int32_t i = whole + threadIdx.x; i < n; i += blockDim.x)
        x[i] = nib_mat_get(m, row, col + i);
    __syncthreads();
}

NIB_DEVICE void nib_mat_load_block(const struct nib_mat &m, int64_t row, int32_t n, float *x)
{
    nib_mat_load_part_block(m, row, 0, n, x);
}

/* ---- Parts ---- */

/* The power of two that brings a row's largest magnitude near 1, so that neither its products nor its small parts leave the
 * range of a number; 0 where nothing finite is to be brought. */
NIB_DEVICE int32_t nib_exponent_of(uint32_t amax_bits)
{
    return amax_bits == 0 || amax_bits >= 0x7f800000u ? 0 : ilogbf(__uint_as_float(amax_bits));
}

/* v as n_parts bf16 numbers whose sum it is, `stride` apart. All but the last are cut, not rounded: what is left over is then
 * exact, and never of the other sign. */
NIB_DEVICE void nib_parts_put(float v, int n_parts, uint16_t *part, int64_t stride)
{
    for (int p = 0; p < n_parts; p++) {
        uint16_t h = p + 1 < n_parts ? (uint16_t)(__float_as_uint(v) >> 16) : nib_bf16_code(v);
        part[p * stride] = h;
        v -= nib_bf16_value(h);
    }
}

/* ---- Norm ---- */

/* x = (x * r) * weight, r = fp32(1 / sqrt(mean + eps)). */
NIB_DEVICE void nib_rms_norm_block(float *x, const float *weight, int32_t n, float eps, double *buffer)
{
    double sum = 0;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += (double)x[i] * (double)x[i];
    float mean = (float)(nib_block_sum_f64(sum, buffer) / n);
    float r = (float)(1.0 / sqrt((double)(mean + eps)));
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = x[i] * r * weight[i];
    __syncthreads();
}

/* ---- Activation rows ---- */

NIB_DEVICE void nib_fp8_encode_block(const float *x, int32_t n, int32_t block, uint8_t *codes, uint8_t *scales)
{
    int lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    for (int32_t b = threadIdx.x / 32; b * block < n; b += n_warps) {
        int32_t  begin = b * block, end = min(begin + block, n);
        uint32_t most = 0;
        for (int32_t i = begin + lane; i < end; i += 32)
            most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
        float    amax = __uint_as_float(nib_warp_max_u32(most));
        bool     finite = nib_is_finite(amax);
        uint32_t code = finite ? nib_e8m0_ceil_code((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f)) : 255u;
        float    scale = nib_e8m0_value(code);
        for (int32_t i = begin + lane; i < end; i += 32)
            codes[i] = (uint8_t)(finite ? nib_e4m3_code(x[i] / scale) : 0x7fu);
        if (lane == 0)
            scales[b] = (uint8_t)code;
    }
}

/* The row scale is the same in every thread. */
NIB_DEVICE float nib_nvfp4_encode_block(const float *x, int32_t n, uint8_t *codes, uint8_t *scales, uint32_t *buffer)
{
    uint32_t most = 0;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
    float amax = __uint_as_float(nib_block_max_u32(most, buffer));
    bool  finite = nib_is_finite(amax);
    float g = finite ? amax / (6.0f * 448.0f) : __uint_as_float(0x7fc00000u);
    for (int32_t b = threadIdx.x; b * 16 < n; b += blockDim.x) {
        int32_t length = min(16, n - b * 16);
        if (finite) {
            scales[b] = nib_nvfp4_block_pack(x + b * 16, length, g, codes + b * 8);
        } else {
            scales[b] = 0x7f;
            for (int32_t i = 0; i < (length + 1) / 2; i++)
                codes[b * 8 + i] = 0;
        }
    }
    return g;
}

NIB_DEVICE void nib_int8_encode_block(const float *x, int32_t n, int8_t *codes, float *scales)
{
    int lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    for (int32_t b = threadIdx.x / 32; b * 32 < n; b += n_warps) {
        int32_t  i = b * 32 + lane;
        float    v = i < n ? x[i] : 0;
        float    amax = __uint_as_float(nib_warp_max_u32(__float_as_uint(v) & 0x7fffffffu));
        float    s = nib_is_finite(amax) ? amax / 127.0f : __uint_as_float(0x7fc00000u);
        int32_t  q = s > 0 ? (int32_t)rintf(v / s) : 0;
        if (i < n)
            codes[i] = (int8_t)min(127, max(-127, q));
        if (lane == 0)
            scales[b] = s;
    }
}

NIB_DEVICE void nib_fp4_encode_block(const float *x, int32_t n, uint8_t *codes, uint8_t *scales)
{
    for (int32_t b = threadIdx.x; b * 32 < n; b += blockDim.x) {
        int32_t length = min(32, n - b * 32);
        float   amax = __uint_as_float(nib_absmax_bits(x + b * 32, length)), least = 0x1.8p-124f;
        if (nib_is_finite(amax)) {
            uint32_t code = nib_e8m0_ceil_code((amax > least ? amax : least) * (1.0f / 6.0f));
            scales[b] = (uint8_t)code;
            nib_e2m1_block_pack(x + b * 32, length, nib_e8m0_value(code), codes + b * 16);
        } else {
            scales[b] = 255;
            for (int32_t i = 0; i < (length + 1) / 2; i++)
                codes[b * 16 + i] = 0;
        }
    }
}

/* The quantised part of row t. */
NIB_DEVICE void nib_act_quantise_block(const struct nib_act &y, int64_t t, const float *x, uint32_t *buffer)
{
    uint8_t *codes = y.codes + t * y.codes_stride, *scales = y.scales + t * y.scales_stride;
    if (y.format == NIB_ACT_FP8) {
        nib_fp8_encode_block(x, y.cols, 128, codes, scales);
    } else if (y.format == NIB_ACT_INT8) {
        nib_int8_encode_block(x, y.cols, (int8_t *)codes, (float *)scales);
    } else if (y.format == NIB_ACT_NVFP4) {
        float g = nib_nvfp4_encode_block(x, y.cols, codes, scales, buffer);
        if (threadIdx.x == 0)
            y.row_scale[t] = g;
    }
    __syncthreads();
}

/* Every part of row t of y that is present; the quantised part is of x as the plain part stores it. x is 16-byte aligned and
 * may change. */
NIB_DEVICE void nib_act_store_block(const struct nib_act &y, int64_t t, float *x, uint32_t *buffer)
{
    if (y.plain.data) {
        int32_t whole = nib_mat_by8(y.plain) ? y.cols / 8 * 8 : 0;
        for (int32_t i = threadIdx.x * 8; i < whole; i += blockDim.x * 8)
            nib_mat_set8(y.plain, t, i, x + i);
        for (int32_t i = whole + threadIdx.x; i < y.cols; i += blockDim.x)
            nib_mat_set(y.plain, t, i, x[i]);
        if (y.plain.dtype == NIB_DTYPE_BF16 && y.format != NIB_ACT_PLAIN) {
            __syncthreads();
            for (int32_t i = threadIdx.x; i < y.cols; i += blockDim.x)
                x[i] = nib_bf16_rounded(x[i]);
        }
        __syncthreads();
    }
    if (y.format != NIB_ACT_PLAIN)
        nib_act_quantise_block(y, t, x, buffer);
}

/* One value of a quantised row as the format defines it; NVFP4 with its row scale. */
NIB_DEVICE float nib_act_get(const struct nib_act &x, int64_t t, int32_t i)
{
    const uint8_t *codes = x.codes + t * x.codes_stride, *scales = x.scales + t * x.scales_stride;
    if (x.format == NIB_ACT_FP8)
        return nib_e4m3_value(codes[i]) * nib_e8m0_value(scales[i / 128]);
    if (x.format == NIB_ACT_INT8)
        return (float)((const int8_t *)codes)[i] * ((const float *)scales)[i / 32];
    uint32_t code = (uint32_t)codes[i / 2] >> (i % 2 * 4);
    return nib_e2m1_value(code) * (nib_e4m3_value(scales[i / 16]) * x.row_scale[t]);
}

/* ---- Rotation ---- */

/* Cosines, then sines [n_rot / 2] each. */
NIB_DEVICE void nib_angles_block(const struct nib_rope &rope, int32_t pos, float *angle)
{
    int32_t n = rope.n_rot / 2;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x) {
        double s, c;
        sincos((double)((float)pos * rope.freq[i]), &s, &c);
        angle[i] = (float)c;
        angle[n + i] = (float)s;
    }
    __syncthreads();
}

/* One pair; sine negated by the caller for the inverse. */
NIB_DEVICE void nib_rotate_pair(float *even, float *odd, float c, float s)
{
    double e = (double)*even, o = (double)*odd;
    *even = (float)(e * (double)c - o * (double)s);
    *odd = (float)(e * (double)s + o * (double)c);
}

NIB_DEVICE void nib_rotate_block(float *x, int32_t d, int32_t n_rot, const float *angle)
{
    for (int32_t i = threadIdx.x; i < n_rot / 2; i += blockDim.x)
        nib_rotate_pair(&x[d - n_rot + 2 * i], &x[d - n_rot + 2 * i + 1], angle[i], angle[n_rot / 2 + i]);
    __syncthreads();
}

/* In fp32: sums and differences by stride, then one product each. */
NIB_DEVICE void nib_hadamard_block(float *x, int32_t n)
{
    for (int32_t stride = 1; stride < n; stride *= 2) {
        for (int32_t i = threadIdx.x; i < n / 2; i += blockDim.x) {
            int32_t k = i / stride * 2 * stride + i % stride;
            float   a = x[k], b = x[k + stride];
            x[k] = a + b;
            x[k + stride] = a - b;
        }
        __syncthreads();
    }
    float scale = (float)(1.0 / sqrt((double)n));
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        x[i] *= scale;
    __syncthreads();
}

/* ---- Stored rows ---- */

NIB_DEVICE int32_t nib_round_up(int32_t n, int32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Where the row scale of an NVFP4 row of n quantised channels stands. */
NIB_DEVICE int32_t nib_nvfp4_row_scale_at(int32_t n)
{
    return nib_round_up((n + 1) / 2 + (n + 15) / 16, 4);
}

/* page_rows divides NIB_PAGE_TOKENS, so it is a power of two, and neither quotient nor rest takes a division. */
static_assert((NIB_PAGE_TOKENS & (NIB_PAGE_TOKENS - 1)) == 0, "pages hold a power of two of positions");
NIB_DEVICE uint8_t *nib_store_at(const struct nib_store &store, const int32_t *page, int32_t i)
{
    int64_t row = (int64_t)page[i >> (31 - __clz(store.page_rows))] * store.page_rows + (i & (store.page_rows - 1));
    return store.base + row * store.row_bytes;
}

NIB_DEVICE void nib_bf16_encode_block(const float *x, int32_t n, uint8_t *bytes)
{
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        ((uint16_t *)bytes)[i] = nib_bf16_code(x[i]);
}

NIB_DEVICE void nib_kv_encode_block(enum nib_row_format f, const float *x, int32_t d, int32_t n_rot, uint8_t *row,
                                    int64_t row_bytes, uint32_t *buffer)
{
    int32_t n = d - n_rot;
    if (f == NIB_ROW_F32) {
        for (int32_t i = threadIdx.x; i < d; i += blockDim.x)
            ((float *)row)[i] = x[i];
    } else if (f == NIB_ROW_BF16) {
        nib_bf16_encode_block(x, d, row);
        if (d % 2 && threadIdx.x == 0)
            ((uint16_t *)row)[d] = 0;
    } else if (f == NIB_ROW_FP8) {
        uint8_t *scales = row + n + 2 * n_rot;
        for (int32_t i = threadIdx.x + (n + 63) / 64; i < row_bytes - n - 2 * n_rot; i += blockDim.x)
            scales[i] = 0;
        nib_fp8_encode_block(x, n, 64, row, scales);
        for (int32_t i = threadIdx.x; i < n_rot; i += blockDim.x) {
            uint32_t h = nib_bf16_code(x[n + i]); /* n may be odd */
            row[n + 2 * i] = (uint8_t)h;
            row[n + 2 * i + 1] = (uint8_t)(h >> 8);
        }
    } else if (f == NIB_ROW_NVFP4) {
        int32_t scales_at = (n + 1) / 2, g_at = nib_nvfp4_row_scale_at(n);
        for (int32_t i = threadIdx.x + scales_at + (n + 15) / 16; i < g_at; i += blockDim.x)
            row[i] = 0;
        float g = nib_nvfp4_encode_block(x, n, row, row + scales_at, buffer);
        if (threadIdx.x == 0)
            *(float *)(row + g_at) = g;
        nib_bf16_encode_block(x + n, n_rot, row + g_at + 4);
        for (int32_t i = threadIdx.x + g_at + 4 + 2 * n_rot; i < row_bytes; i += blockDim.x)
            row[i] = 0;
    } else {
        int32_t scales_at = (d + 1) / 2;
        for (int32_t i = threadIdx.x + scales_at + (d + 31) / 32; i < row_bytes; i += blockDim.x)
            row[i] = 0;
        nib_fp4_encode_block(x, d, row, row + scales_at);
    }
    __syncthreads();
}

/* Channel i of a stored row. */
NIB_DEVICE float nib_kv_get(enum nib_row_format f, const uint8_t *row, int32_t d, int32_t n_rot, int32_t i)
{
    int32_t n = d - n_rot;
    if (f == NIB_ROW_F32)
        return ((const float *)row)[i];
    if (f == NIB_ROW_BF16)
        return nib_bf16_value(((const uint16_t *)row)[i]);
    if (f == NIB_ROW_FP4) {
        uint32_t code = (uint32_t)row[i / 2] >> (i % 2 * 4);
        return nib_e2m1_value(code) * nib_e8m0_value(row[(d + 1) / 2 + i / 32]);
    }
    if (f == NIB_ROW_FP8) {
        if (i < n)
            return nib_e4m3_value(row[i]) * nib_e8m0_value(row[n + 2 * n_rot + i / 64]);
        const uint8_t *h = row + n + 2 * (i - n);
        return nib_bf16_value((uint32_t)h[0] | (uint32_t)h[1] << 8);
    }
    int32_t g_at = nib_nvfp4_row_scale_at(n);
    if (i >= n)
        return nib_bf16_value(((const uint16_t *)(row + g_at + 4))[i - n]);
    uint32_t code = (uint32_t)row[i / 2] >> (i % 2 * 4);
    return nib_e2m1_value(code) * (nib_e4m3_value(row[(n + 1) / 2 + i / 16]) * *(const float *)(row + g_at));
}

#endif
