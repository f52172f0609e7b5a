/* From stored weights to packed tiles, on the device. Matrices that tiles would inflate by more than 2 % stay as they
 * are stored; so do F32 ones, which no tensor core multiplies. */
#include "backend/cuda/device/tiles.cuh"

constexpr int kThreads = 256;

static size_t stored_bytes(const struct nib_weight_desc *d, size_t *scales)
{
    size_t n_out = (size_t)d->n_out, n_in = (size_t)d->n_in;
    *scales = 0;
    switch (d->type) {
    case NIB_WEIGHT_F32: return 4 * n_out * n_in;
    case NIB_WEIGHT_BF16: return 2 * n_out * n_in;
    case NIB_WEIGHT_FP8: *scales = (n_out + 127) / 128 * ((n_in + 127) / 128); return n_out * n_in;
    case NIB_WEIGHT_MXFP4: *scales = n_out * (n_in / 32); return n_out * (n_in / 2);
    case NIB_WEIGHT_NVFP4: *scales = n_out * (n_in / 16); return n_out * (n_in / 2);
    }
    return 0;
}

enum nib_cuda_layout nib_cuda_layout_of(const struct nib_weight_desc *d, size_t *codes, size_t *scales)
{
    size_t tiles = ((size_t)d->n_out + kTileRows - 1) / kTileRows, blocks = ((size_t)d->n_in + kBlockCols - 1) / kBlockCols;
    size_t stored_scales, stored = stored_bytes(d, &stored_scales);
    *codes = stored;
    *scales = stored_scales;
    if (d->type == NIB_WEIGHT_F32 || d->n_in % kBlockCols != 0)
        return NIB_CUDA_STORED;
    size_t lanes = d->type == NIB_WEIGHT_NVFP4 ? 32 : 16;
    size_t tiled = tiles * blocks * (d->type == NIB_WEIGHT_BF16 ? 2048 : d->type == NIB_WEIGHT_FP8 ? 1024 : 512);
    size_t tiled_scales = d->type == NIB_WEIGHT_BF16 || d->type == NIB_WEIGHT_FP8 ? stored_scales : tiles * blocks * lanes * 2;
    if (100 * (tiled + tiled_scales) > 102 * (stored + stored_scales))
        return NIB_CUDA_STORED;
    *codes = tiled;
    *scales = tiled_scales;
    return NIB_CUDA_TILED;
}

/* ---- Powers of two ---- */

float nib_cuda_alpha(const struct nib_weight_desc *d, int32_t i, int32_t most, enum nib_cuda_layout layout)
{
    float a = d->type == NIB_WEIGHT_NVFP4 ? d->part[i].global_scale : 1.0f;
    if (layout == NIB_CUDA_TILED) {
        if (d->type == NIB_WEIGHT_NVFP4)
            a *= (float)(1 << kNvfp4Shift);
        else if (d->type == NIB_WEIGHT_MXFP4)
            a = ldexpf(1.0f, most - 128);
        else if (d->type == NIB_WEIGHT_FP8)
            a = ldexpf(1.0f, most - 134);
    }
    return a;
}

NIB_DEVICE uint32_t relative_scale(uint32_t b, int32_t most)
{
    int32_t v = (int32_t)b - most + kScaleBytes;
    return (uint32_t)(v < 0 ? 0 : v);
}

/* ---- Codes ---- */

NIB_DEVICE uint32_t stored_code4(const uint8_t *codes, int64_t n_out, int64_t n_in, int64_t o, int64_t k)
{
    return o < n_out ? (uint32_t)codes[(o * n_in + k) / 2] >> (k % 2 * 4) & 15u : 0;
}

NIB_DEVICE uint32_t fp4_word(const uint8_t *codes, int64_t n_out, int64_t n_in, int64_t o, int64_t k)
{
    uint32_t word = 0;
    for (int p = 0; p < 4; p++) {
        word |= nib_pair_put(stored_code4(codes, n_out, n_in, o, k + 2 * p), p);
        word |= nib_pair_put(stored_code4(codes, n_out, n_in, o, k + 2 * p + 1), p) << 16;
    }
    return word;
}

NIB_DEVICE uint32_t fp8_word(const uint8_t *codes, int64_t n_out, int64_t n_in, int64_t o, int64_t k)
{
    if (o >= n_out)
        return 0;
    const uint8_t *c = codes + o * n_in + k;
    return (uint32_t)c[2] | (uint32_t)c[0] << 8 | (uint32_t)c[3] << 16 | (uint32_t)c[1] << 24;
}

NIB_DEVICE uint32_t bf16_word(const uint8_t *codes, int64_t n_out, int64_t n_in, int64_t o, int64_t k)
{
    const uint16_t *c = (const uint16_t *)codes + o * n_in + k;
    return o < n_out ? (uint32_t)c[0] | (uint32_t)c[1] << 16 : 0;
}

/* One thread a lane's 16 bytes. */
static __global__ void pack_codes(int32_t type, int64_t n_out, int64_t n_in, const uint8_t *codes, uint4 *out, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int     n_chunks = nib_chunks_of(type), lane = (int)(i % 32), chunk = (int)(i / 32 % n_chunks);
    int64_t block = i / 32 / n_chunks % (n_in / kBlockCols), tile = i / 32 / n_chunks / (n_in / kBlockCols);
    int64_t o = tile * kTileRows + lane / 4, k = block * kBlockCols + lane % 4 * 16;
    uint4   v;
    if (type == NIB_WEIGHT_BF16) {
        k += 4 * chunk;
        v = make_uint4(bf16_word(codes, n_out, n_in, o, k), bf16_word(codes, n_out, n_in, o, k + 2),
                       bf16_word(codes, n_out, n_in, o + 8, k), bf16_word(codes, n_out, n_in, o + 8, k + 2));
    } else if (type == NIB_WEIGHT_FP8) {
        k += 8 * chunk;
        v = make_uint4(fp8_word(codes, n_out, n_in, o, k), fp8_word(codes, n_out, n_in, o, k + 4),
                       fp8_word(codes, n_out, n_in, o + 8, k), fp8_word(codes, n_out, n_in, o + 8, k + 4));
    } else {
        v = make_uint4(fp4_word(codes, n_out, n_in, o, k), fp4_word(codes, n_out, n_in, o, k + 8),
                       fp4_word(codes, n_out, n_in, o + 8, k), fp4_word(codes, n_out, n_in, o + 8, k + 8));
    }
    out[i] = v;
}

/* ---- Scales ---- */

static __global__ void pack_scales4(int32_t type, int64_t n_out, int64_t n_in, const uint8_t *scales, int32_t most,
                                    uint8_t *out, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, n_blocks = n_in / kBlockCols;
    if (i >= n)
        return;
    int     lanes = type == NIB_WEIGHT_NVFP4 ? 32 : 16, at = (int)(i % lanes), lane = type == NIB_WEIGHT_NVFP4 ? at : 2 * at;
    int64_t block = i / lanes % n_blocks, tile = i / lanes / n_blocks;
    int64_t per_row = n_in / (type == NIB_WEIGHT_NVFP4 ? 16 : 32);
    int64_t k = block * (type == NIB_WEIGHT_NVFP4 ? 4 : 2) + (type == NIB_WEIGHT_NVFP4 ? lane % 4 : lane % 4 / 2);
    uint8_t *to = out + nib_scale_offset(type, n_blocks, tile, block, lane);
    for (int half = 0; half < 2; half++) {
        int64_t  o = tile * kTileRows + lane / 4 + 8 * half;
        uint32_t b = o < n_out ? scales[o * per_row + k] : 0;
        to[half] = (uint8_t)(type == NIB_WEIGHT_NVFP4 || o >= n_out ? b : relative_scale(b, most));
    }
}

static __global__ void pack_scales8(const uint8_t *scales, int32_t most, uint8_t *out, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = (uint8_t)relative_scale(scales[i], most);
}

static unsigned blocks_for(int64_t n)
{
    return (unsigned)((n + kThreads - 1) / kThreads);
}

bool nib_cuda_runs_here(void)
{
    struct cudaFuncAttributes a;
    bool                      ok = cudaFuncGetAttributes(&a, pack_codes) == cudaSuccess;
    (void)cudaGetLastError();
    return ok;
}

cudaError_t nib_cuda_pack(cudaStream_t stream, const struct nib_cuda_matrix *m, int32_t i, const uint8_t *codes,
                          const uint8_t *scales, int32_t most)
{
    struct nib_weight_desc d = {(enum nib_weight_type)m->type, NIB_ACT_PLAIN, 1, m->n_out, m->n_in, NULL, NIB_USE_ANY};
    size_t                 n_codes, n_scales, stored_scales, stored = stored_bytes(&d, &stored_scales);
    (void)nib_cuda_layout_of(&d, &n_codes, &n_scales);
    uint8_t               *to = (uint8_t *)m->codes + i * m->codes_stride, *to_scales = (uint8_t *)m->scales + i * m->scales_stride;

    if (m->layout == NIB_CUDA_STORED) {
        cudaMemcpyAsync(to, codes, stored, cudaMemcpyDeviceToDevice, stream);
        if (stored_scales)
            cudaMemcpyAsync(to_scales, scales, stored_scales, cudaMemcpyDeviceToDevice, stream);
        return cudaGetLastError();
    }
    int64_t n = (int64_t)(n_codes / 16);
    pack_codes<<<blocks_for(n), kThreads, 0, stream>>>(m->type, m->n_out, m->n_in, codes, (uint4 *)to, n);
    if (m->type == NIB_WEIGHT_FP8) {
        pack_scales8<<<blocks_for((int64_t)n_scales), kThreads, 0, stream>>>(scales, most, to_scales, (int64_t)n_scales);
    } else if (m->type != NIB_WEIGHT_BF16) {
        n = (int64_t)(n_scales / 2);
        pack_scales4<<<blocks_for(n), kThreads, 0, stream>>>(m->type, m->n_out, m->n_in, scales, most, to_scales, n);
    }
    return cudaGetLastError();
}
