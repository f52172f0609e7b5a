/* Attention on mma.sync within 99 KiB of shared memory and without clusters, for queries of BF16 or fp32 (three bf16
 * parts, which are it exactly) at head_dim 512 with 64 rotary channels, over rows of BF16, FP8 or NVFP4.
 *
 * Attended rows are taken 32 at a time, a span. A block takes 32 heads of one query row; a warp 16 of them and a
 * quarter of the channels: of the query, which stays in its registers, in the first product, of the rows in the second.
 * Each span is weighed against its own maximum and summed by itself, then added to what came before, from the sink on.
 * With many query rows a block walks through all spans; with few a block makes one span, and fold_spans does the adding
 * with the same operations, so a row's bits do not depend on how many rows there are.
 *
 * Numbers as in any/attend_mma.cu: decoded values are exact, NVFP4 row scales multiply scores and weights, weights are
 * two bf16 parts. The next span's rows are on their way, as stored, while this one is multiplied.
 *
 * Bytes: a span once per 32 heads. Work: 3 * 32 * 32 * 512 multiply-adds a span, 5 with fp32 queries. docs/kernels/sm120a.md has the rest. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/attended.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm120a/sm120a.h"

constexpr int kD = kAttendDim, kNope = kAttendNope, kRot = kAttendRot;
constexpr int kHeads = NIB_SM120A_ATTEND_HEADS, kSpan = NIB_SM120A_SPAN, kThreads = 256, kWarps = kThreads / 32;
constexpr int kSlices = 4, kChannels = kD / kSlices; /* of a warp */
constexpr int kRowHalves = kD + 8;    /* 16 bytes of padding: the eight rows of an ldmatrix on different banks */
constexpr int kPHalves = kSpan + 8;
constexpr int kSumFloats = kSpan + 8; /* rows g and g + 1 of a fragment 8 banks apart */
constexpr int kPartFloats = NIB_SM120A_PART_FLOATS; /* a head's sum over a span, its maximum and its total */
static_assert(kPartFloats == kD + 2, "channels and two numbers");

/* Rows as stored: bytes, and bytes of one copy. BF16 rows need no decoding and go where they are multiplied. */
template <int format> struct row_of {
    static constexpr int kBytes = format == NIB_ROW_FP8     ? kNope + 2 * kRot + 8
                                  : format == NIB_ROW_NVFP4 ? kNope / 2 + kNope / 16 + 4 + 2 * kRot
                                                            : 2 * kD;
    static constexpr int  kCopy = format == NIB_ROW_FP8 ? 8 : 16;
    static constexpr bool kDecoded = format != NIB_ROW_BF16;
    static constexpr int  kStages = kDecoded ? 1 : 2, kRaw = kDecoded ? 2 : 1;
    static_assert(kBytes % kCopy == 0, "whole copies");
};

template <int format> struct shared {
    uint16_t kv[row_of<format>::kStages][kSpan][kRowHalves];
    uint8_t  raw[row_of<format>::kRaw][kSpan][row_of<format>::kRaw > 1 ? row_of<format>::kBytes : 16];
    float    sums[kSlices][kHeads][kSumFloats];
    uint16_t p[format == NIB_ROW_NVFP4 ? 2 : 1][2][kHeads][kPHalves]; /* [scaled by the row scale][part] */
    float    fade[kHeads], add[kHeads], row_scale[kSpan];
    float    angle[kRot];
};
static_assert(sizeof(struct shared<NIB_ROW_BF16>) == NIB_SM120A_ATTEND_BF16, "as launches have it");
static_assert(sizeof(struct shared<NIB_ROW_FP8>) == NIB_SM120A_ATTEND_FP8, "as launches have it");
static_assert(sizeof(struct shared<NIB_ROW_NVFP4>) == NIB_SM120A_ATTEND_NVFP4, "as launches have it");

/* ---- Rows on their way ---- */

/* `bytes` (8 or 16) from memory, or zeros. */
template <int bytes> NIB_DEVICE void copy(void *to, const void *from, bool there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(from), "r"(there ? 8 : 0)
                     : "memory");
}

/* Where row warp + 8 * lane of a span stands, for the first four lanes; NULL behind the last row. */
NIB_DEVICE const uint8_t *find_row(const struct nib_attend_args &a, const struct nib_attended &at, int32_t base)
{
    int32_t j = base + (int32_t)(threadIdx.x / 32 + threadIdx.x % 32 * kWarps);
    return threadIdx.x % 32 < kSpan / kWarps && j < at.n ? nib_attended_row(a, at, j) : NULL;
}

/* Four rows a warp. */
template <int format>
NIB_DEVICE void start_rows(struct shared<format> *m, const struct nib_attend_args &a, const uint8_t *found, int stage)
{
    using R = row_of<format>;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kSpan / kWarps; i++) {
        int            r = threadIdx.x / 32 + i * kWarps;
        const uint8_t *row = (const uint8_t *)__shfl_sync(~0u, (unsigned long long)found, i);
        uint8_t       *to = R::kDecoded ? m->raw[stage][r] : (uint8_t *)m->kv[R::kDecoded ? 0 : stage][r];
        for (int c = lane; c < R::kBytes / R::kCopy; c += 32)
            copy<R::kCopy>(to + c * R::kCopy, row ? row + c * R::kCopy : a.window.base, row != NULL);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* From the bytes of a stage to what is multiplied. Rows that are not there are zeros. */
template <int format> NIB_DEVICE void decode_rows(struct shared<format> *m, int stage, int32_t n)
{
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < kSpan; r += kWarps) {
        if (r >= n) {
            ((uint4 *)m->kv[0][r])[lane] = ((uint4 *)m->kv[0][r])[lane + 32] = make_uint4(0, 0, 0, 0);
            if (lane == 0)
                m->row_scale[r] = 0;
        } else if (format == NIB_ROW_FP8) {
            nib_attend_load_fp8(m->raw[stage][r], m->kv[0][r], lane);
        } else {
            nib_attend_load_nvfp4(m->raw[stage][r], m->kv[0][r], &m->row_scale[r], lane);
        }
    }
}

/* ---- A span ---- */

/* Two channels of a query as registers keep them: as stored. */
template <int parts> struct pair_of {
    uint32_t v;
};
template <> struct pair_of<3> {
    float2 v;
};

/* Their bf16 parts. All but the last are cut, not rounded: what is left over is exact. */
NIB_DEVICE void parts_of(struct pair_of<1> q, uint32_t part[1])
{
    part[0] = q.v;
}

NIB_DEVICE void parts_of(struct pair_of<3> q, uint32_t part[3])
{
    asm volatile("" : "+f"(q.v.x), "+f"(q.v.y)); /* anew for each span: kept, all parts would take 96 registers */
#pragma unroll
    for (int p = 0; p < 2; p++) {
        uint32_t low = __float_as_uint(q.v.x) & 0xffff0000u, high = __float_as_uint(q.v.y) & 0xffff0000u;
        part[p] = low >> 16 | high;
        q.v.x -= __uint_as_float(low);
        q.v.y -= __uint_as_float(high);
    }
    part[2] = nib_pack_bf16x2(q.v.x, q.v.y);
}

/* This warp's part of the query as fragments: 16 heads, 128 channels. */
template <int parts>
NIB_DEVICE void load_query(const struct nib_attend_args &a, int64_t t, int h, int slice,
                           struct pair_of<parts> q[kChannels / 16][4])
{
    int     g = threadIdx.x % 32 / 4, l = threadIdx.x % 4;
    int64_t from = (t * a.q.stride + (int64_t)(h + g) * kD + slice * kChannels + 2 * l) / 2;
#pragma unroll
    for (int k = 0; k < kChannels / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            q[k][i].v = {};
            if (h + g + i % 2 * 8 < a.n_heads)
                q[k][i] = ((const struct pair_of<parts> *)a.q.data)[from + (i % 2 * 8 * kD + k * 16 + i / 2 * 8) / 2];
        }
}

/* Products of this warp's heads and channels with all 32 rows, to shared memory. */
template <int format, int parts>
NIB_DEVICE void score_span(struct shared<format> *m, int stage, int half, int slice,
                           const struct pair_of<parts> q[kChannels / 16][4])
{
    int   lane = threadIdx.x % 32, g = lane / 4, l = lane % 4;
    float s[kSpan / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kChannels / 16; k++) {
        if (format == NIB_ROW_NVFP4 && slice == kSlices - 1 && k == (kNope - (kSlices - 1) * kChannels) / 16)
#pragma unroll
            for (int i = 0; i < kSpan / 2; i++)
                s[i / 4][i % 4] *= m->row_scale[i / 4 * 8 + 2 * l + i % 2];
        uint32_t w[4][parts], part[parts][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            parts_of(q[k][i], w[i]);
#pragma unroll
            for (int p = 0; p < parts; p++)
                part[p][i] = w[i][p];
        }
#pragma unroll
        for (int r = 0; r < kSpan; r += 16) {
            uint32_t b[4];
            nib_ldmatrix_x4(
                b, &m->kv[stage][r + lane / 16 * 8 + lane % 8][slice * kChannels + k * 16 + lane / 8 % 2 * 8]);
#pragma unroll
            for (int p = 0; p < parts; p++) {
                nib_mma_bf16(s[r / 8], part[p], b[0], b[1]);
                nib_mma_bf16(s[r / 8 + 1], part[p], b[2], b[3]);
            }
        }
    }
    if (format == NIB_ROW_NVFP4 && slice < kSlices - 1)
#pragma unroll
        for (int i = 0; i < kSpan / 2; i++)
            s[i / 4][i % 4] *= m->row_scale[i / 4 * 8 + 2 * l + i % 2];
#pragma unroll
    for (int i = 0; i < kSpan / 8; i++) {
        float *to = &m->sums[slice][half * 16 + g][i * 8 + 2 * l];
        *(float2 *)to = make_float2(s[i][0], s[i][1]);
        *(float2 *)(to + 8 * kSumFloats) = make_float2(s[i][2], s[i][3]);
    }
}

NIB_DEVICE void put_parts(uint16_t p[2][kHeads][kPHalves], int h, int r, const float v[4])
{
    uint32_t part[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        part[0][i] = nib_pack_bf16x2(v[2 * i], v[2 * i + 1]);
        part[1][i] = nib_pack_bf16x2(v[2 * i] - nib_bf16_value(part[0][i] & 0xffffu),
                                     v[2 * i + 1] - nib_bf16_value(part[0][i] >> 16));
    }
    *(uint2 *)&p[0][h][r] = make_uint2(part[0][0], part[0][1]);
    *(uint2 *)&p[1][h][r] = make_uint2(part[1][0], part[1][1]);
}

/* Eight threads a head: weights of the span against its own maximum; both the same in all eight. */
template <int format>
NIB_DEVICE void weigh_span(struct shared<format> *m, float scale, int32_t n, float *most, float *total)
{
    int   h = threadIdx.x / 8, r = threadIdx.x % 8 * 4;
    float v[4] = {}, p[4], top = -INFINITY, sum = 0;
#pragma unroll
    for (int s = 0; s < kSlices; s++) {
        float4 x = *(const float4 *)&m->sums[s][h][r];
        v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = r + i < n ? v[i] * scale : -INFINITY;
        top = fmaxf(top, v[i]);
    }
    for (int i = 1; i < 8; i *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        p[i] = v[i] == -INFINITY ? 0 : expf(v[i] - top); /* NaN passes */
        sum += p[i];
    }
    for (int i = 1; i < 8; i *= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    put_parts(m->p[0], h, r, p);
    if (format == NIB_ROW_NVFP4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[i] *= m->row_scale[r + i];
        put_parts(m->p[format == NIB_ROW_NVFP4], h, r, p);
    }
    *most = top;
    *total = sum;
}

/* How a sum so far and a span's go together: both by their distance from the larger maximum. */
struct fold {
    float fade, add;
};

NIB_DEVICE struct fold fold_totals(float *most, float *total, float span_most, float span_total)
{
    float       top = fmaxf(*most, span_most);
    struct fold f = {*most == -INFINITY ? 0 : expf(*most - top), span_most == -INFINITY ? 0 : expf(span_most - top)};
    *total = fmaf(span_total, f.add, *total * f.fade);
    *most = top;
    return f;
}

NIB_DEVICE float fold_sum(float so_far, float span, struct fold f)
{
    return fmaf(span, f.add, so_far * f.fade);
}

/* Weights times rows for this warp's heads and channels: o of the span (all), or added to o. */
template <int format, bool all>
NIB_DEVICE void add_span(const struct shared<format> *m, int stage, int half, int slice, float o[kChannels / 8][4])
{
    int         lane = threadIdx.x % 32, h = half * 16, g = lane / 4;
    uint32_t    a[2][2][4], plain[2][2][4]; /* [k][part] */
    struct fold low, high;
    if (!all) {
        low = {m->fade[h + g], m->add[h + g]};
        high = {m->fade[h + g + 8], m->add[h + g + 8]};
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        nib_ldmatrix_x4(plain[i / 2][i % 2], &m->p[0][i % 2][h + lane % 16][i / 2 * 16 + lane / 16 * 8]);
        if (format == NIB_ROW_NVFP4)
            nib_ldmatrix_x4(a[i / 2][i % 2],
                            &m->p[format == NIB_ROW_NVFP4][i % 2][h + lane % 16][i / 2 * 16 + lane / 16 * 8]);
    }
#pragma unroll
    for (int nt = 0; nt < kChannels / 8; nt += 2) {
        float sum[2][4] = {};
        bool  rotary = slice * kChannels + nt * 8 >= kNope;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t b[4];
            nib_ldmatrix_x4_trans(b,
                                  &m->kv[stage][k * 16 + lane % 16][slice * kChannels + nt * 8 + lane / 16 * 8]);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const uint32_t *w = format == NIB_ROW_NVFP4 && !rotary ? a[k][part] : plain[k][part];
                nib_mma_bf16(sum[0], w, b[0], b[1]);
                nib_mma_bf16(sum[1], w, b[2], b[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            o[nt + i / 4][i % 4] =
                all ? sum[i / 4][i % 4] : fold_sum(o[nt + i / 4][i % 4], sum[i / 4][i % 4], i % 4 < 2 ? low : high);
    }
}

/* ---- Results ---- */

/* Cosine and sine of an angle below 2^24 in some forty operations of fp64, of which these cards do two a clock and SM:
 * off by less than 2^-36, and relatively so near zero. */
NIB_DEVICE void turn(float angle, float *cosine, float *sine)
{
    double x = (double)angle, k = rint(x * 0x1.45f306dc9c883p-1); /* quarters of a turn */
    double r = fma(-k, 0x1.1a62633145c07p-54, fma(-k, 0x1.921fb54442d18p+0, x)), q = r * r;
    double s = fma(fma(fma(fma(fma(-0x1.ae64567f544e4p-26, q, 0x1.71de3a556c734p-19), q, -0x1.a01a01a01a01ap-13), q,
                           0x1.1111111111111p-7), q, -0x1.5555555555555p-3), q, 1.0) * r;
    double c = fma(fma(fma(fma(fma(fma(0x1.1eed8eff8d898p-29, q, -0x1.27e4fb7789f5cp-22), q, 0x1.a01a01a01a01ap-16), q,
                               -0x1.6c16c16c16c17p-10), q, 0x1.5555555555555p-5), q, -0.5), q, 1.0);
    int    quarter = (int)k & 3;
    double a = quarter & 1 ? s : c, b = quarter & 1 ? c : s;
    *cosine = (float)(quarter == 1 || quarter == 2 ? -a : a);
    *sine = (float)(quarter >= 2 ? -b : b);
}

/* e * c + o * s and o * c - e * s, each product's rounding made good: within two units in the last place, without the
 * fp64 that these cards have next to none of. */
NIB_DEVICE void rotate_back(float *even, float *odd, float c, float s)
{
    float e = *even, o = *odd, p = o * s, q = e * s;
    *even = fmaf(e, c, p) + fmaf(o, s, -p);
    *odd = fmaf(o, c, -q) - fmaf(e, s, -q);
}

/* Two channels from element i of y on. */
NIB_DEVICE void store_pair(const struct nib_mat &y, int64_t i, float v0, float v1)
{
    if (y.dtype == NIB_DTYPE_F32) {
        ((float *)y.data)[i] = v0;
        ((float *)y.data)[i + 1] = v1;
        return;
    }
    uint32_t both = nib_pack_bf16x2(v0, v1);
    uint16_t *to = (uint16_t *)y.data + i;
    if ((uintptr_t)to % 4 == 0) {
        *(uint32_t *)to = both;
    } else {
        to[0] = (uint16_t)both;
        to[1] = (uint16_t)(both >> 16);
    }
}

NIB_DEVICE float *part_at(const struct nib_sm120a_spans &sp, int64_t row, int32_t span, int32_t h)
{
    return sp.part + ((row * (sp.n_spans + 1) + span) * sp.n_heads + h) * kPartFloats;
}

NIB_DEVICE void store_part(const struct nib_sm120a_spans &sp, int64_t row, int32_t span, int32_t h0, int half, int slice,
                           const float o[kChannels / 8][4])
{
    int lane = threadIdx.x % 32, h = h0 + half * 16 + lane / 4, c = slice * kChannels + lane % 4 * 2;
#pragma unroll
    for (int nt = 0; nt < kChannels / 8; nt++) {
        if (h < sp.n_heads)
            *(float2 *)(part_at(sp, row, span, h) + c + nt * 8) = make_float2(o[nt][0], o[nt][1]);
        if (h + 8 < sp.n_heads)
            *(float2 *)(part_at(sp, row, span, h + 8) + c + nt * 8) = make_float2(o[nt][2], o[nt][3]);
    }
}

/* m->add holds what sums are multiplied by. */
template <int format>
NIB_DEVICE void store_heads(const struct nib_attend_args &a, const struct shared<format> *m, int64_t t, int32_t h0,
                            int half, int slice, const float o[kChannels / 8][4])
{
    int lane = threadIdx.x % 32, g = half * 16 + lane / 4, c = slice * kChannels + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int     h = g + i * 8;
        int64_t at = t * a.o.stride + (int64_t)(h0 + h) * kD + c;
        if (h0 + h >= a.n_heads)
            continue;
#pragma unroll
        for (int nt = 0; nt < kChannels / 8; nt++) {
            int   pair = (c + nt * 8 - kNope) / 2;
            float even = o[nt][2 * i] * m->add[h], odd = o[nt][2 * i + 1] * m->add[h];
            if (c + nt * 8 >= kNope)
                rotate_back(&even, &odd, m->angle[pair], m->angle[kRot / 2 + pair]);
            store_pair(a.o, at + nt * 8, even, odd);
        }
    }
}

/* ---- Kernels ---- */

/* Grid (rows * groups of heads), or for one span a block (spans, groups of heads, rows). */
template <int format, int parts, bool split>
NIB_DEVICE void attend(const struct nib_attend_args &a, const struct nib_rows &rows, const struct nib_sm120a_spans &sp)
{
    extern __shared__ __align__(16) uint8_t memory[];
    struct shared<format> *m = (struct shared<format> *)memory;
    int     warp = threadIdx.x / 32, half = warp % 2, slice = warp / 2, n_stages = row_of<format>::kStages;
    int32_t row = split ? (int32_t)blockIdx.z : (int32_t)blockIdx.x / sp.n_groups;
    int32_t h0 = (split ? (int32_t)blockIdx.y : (int32_t)blockIdx.x % sp.n_groups) * kHeads;
    int64_t t = sp.first_row + (int64_t)row;
    struct nib_attended at = nib_attended_by(a, rows, t);
    int32_t begin = split ? (sp.first + (int32_t)blockIdx.x) * kSpan : 0, end = split ? min(begin + kSpan, at.n) : at.n;
    if (begin >= at.n)
        return;
    start_rows<format>(m, a, find_row(a, at, begin), 0);
    const uint8_t *found = split ? NULL : find_row(a, at, begin + kSpan);
    struct pair_of<parts> q[kChannels / 16][4];
    float          o[kChannels / 8][4] = {};
    int32_t        head = h0 + (int32_t)threadIdx.x / 8;
    float          most = head < a.n_heads ? a.sink[head] : 0, total = 1;
    load_query<parts>(a, t, h0 + half * 16, slice, q);
    if (!split && threadIdx.x < kRot / 2)
        turn((float)(rows.pos[t] - rows.first_pos) * a.rope.freq[threadIdx.x], &m->angle[threadIdx.x],
             &m->angle[kRot / 2 + threadIdx.x]);

    for (int32_t base = begin, i = 0; base < end; base += kSpan, i++) {
        int   stage = i % n_stages, n = min(kSpan, end - base);
        float span_most, span_total;
        if (i > 0 && !row_of<format>::kDecoded)
            __syncthreads(); /* all are done with the last span; decoding waits for it below */
        if (base + kSpan < end) {
            start_rows<format>(m, a, found, (i + 1) % 2);
            found = find_row(a, at, base + 2 * kSpan);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncthreads();
        if (row_of<format>::kDecoded) {
            decode_rows<format>(m, i % 2, n);
            __syncthreads();
        }
        score_span<format, parts>(m, stage, half, slice, q);
        __syncthreads();
        weigh_span<format>(m, a.scale, n, &span_most, &span_total);
        if (!split) {
            struct fold f = fold_totals(&most, &total, span_most, span_total);
            if (threadIdx.x % 8 == 0) {
                m->fade[threadIdx.x / 8] = f.fade;
                m->add[threadIdx.x / 8] = f.add;
            }
        } else if (threadIdx.x % 8 == 0 && head < a.n_heads) {
            float *to = part_at(sp, row, (int32_t)blockIdx.x, head) + kD;
            to[0] = span_most;
            to[1] = span_total;
        }
        __syncthreads();
        add_span<format, split>(m, stage, half, slice, o);
    }
    if (split) {
        store_part(sp, row, (int32_t)blockIdx.x, h0, half, slice, o);
        return;
    }
    __syncthreads();
    if (threadIdx.x % 8 == 0)
        m->add[threadIdx.x / 8] = 1 / total;
    __syncthreads();
    store_heads<format>(a, m, t, h0, half, slice, o);
}

#define KERNEL(name, format, parts, split)                                                                             \
    extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                          \
    nib_sm120a_attend_##name(const __grid_constant__ struct nib_attend_args a,                                         \
                             const __grid_constant__ struct nib_rows rows,                                             \
                             const __grid_constant__ struct nib_sm120a_spans sp)                                       \
    {                                                                                                                  \
        nib_grid_start();                                                                                              \
        attend<format, parts, split>(a, rows, sp);                                                                     \
    }
#define KERNELS(name, format)                                                                                          \
    KERNEL(name, format, 1, false)                                                                                     \
    KERNEL(span_##name, format, 1, true)                                                                               \
    KERNEL(f32_##name, format, 3, false)                                                                               \
    KERNEL(f32_span_##name, format, 3, true)
KERNELS(bf16, NIB_ROW_BF16)
KERNELS(fp8, NIB_ROW_FP8)
KERNELS(nvfp4, NIB_ROW_NVFP4)
#undef KERNELS
#undef KERNEL

/* Adds the spans of this launch to the sum so far. Grid (heads, rows), 128 threads: four channels each. */
extern "C" __global__ void __launch_bounds__(128)
nib_sm120a_attend_fold(const __grid_constant__ struct nib_attend_args a, const __grid_constant__ struct nib_rows rows,
                       const __grid_constant__ struct nib_sm120a_spans sp)
{
    nib_grid_start();
    int64_t row = blockIdx.y, t = sp.first_row + row;
    int32_t h = blockIdx.x, c = threadIdx.x * 4, all = (nib_attended_by(a, rows, t).n + kSpan - 1) / kSpan;
    int32_t n = min(all - sp.first, sp.n_spans);
    float  *so_far = part_at(sp, row, sp.n_spans, h), most = a.sink[h], total = 1, o[4] = {};
    if (n <= 0)
        return;
    if (sp.first > 0) {
        most = so_far[kD];
        total = so_far[kD + 1];
        for (int i = 0; i < 4; i++)
            o[i] = so_far[c + i];
    }
#pragma unroll 4
    for (int32_t s = 0; s < n; s++) {
        const float *p = part_at(sp, row, s, h);
        float2       low = *(const float2 *)(p + c), high = *(const float2 *)(p + c + 2);
        struct fold  f = fold_totals(&most, &total, p[kD], p[kD + 1]);
        o[0] = fold_sum(o[0], low.x, f);
        o[1] = fold_sum(o[1], low.y, f);
        o[2] = fold_sum(o[2], high.x, f);
        o[3] = fold_sum(o[3], high.y, f);
    }
    if (sp.first + n < all) {
        __syncthreads(); /* all have read the sum so far */
        for (int i = 0; i < 4; i++)
            so_far[c + i] = o[i];
        if (threadIdx.x == 0) {
            so_far[kD] = most;
            so_far[kD + 1] = total;
        }
        return;
    }
    float whole = 1 / total;
    for (int i = 0; i < 4; i += 2) {
        float even = o[i] * whole, odd = o[i + 1] * whole;
        if (c >= kNope) {
            float cosine, sine;
            turn((float)(rows.pos[t] - rows.first_pos) * a.rope.freq[(c - kNope + i) / 2], &cosine, &sine);
            rotate_back(&even, &odd, cosine, sine);
        }
        store_pair(a.o, t * a.o.stride + (int64_t)h * kD + c + i, even, odd);
    }
}

/* ---- Launches ---- */

using kernel = void(const struct nib_attend_args, const struct nib_rows, const struct nib_sm120a_spans);

static void launch(struct nib_stream *s, kernel *k, dim3 grid, size_t bytes, const struct nib_attend_args *a,
                   const struct nib_sm120a_spans &sp)
{
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, k, grid, kThreads, bytes, *a, *a->rows, sp);
}

/* Sums over spans apart, then together: as many rows and spans at a time as scratch holds. */
static void launch_split(struct nib_stream *s, kernel *k, size_t bytes, const struct nib_attend_args *a,
                         struct nib_sm120a_spans sp)
{
    int64_t most = a->n_window + (a->ratio == 0 ? 0 : a->selected ? a->top_k : s->dims.n_ctx_max / a->ratio);
    int32_t n_rows = a->rows->n_rows, all = (int32_t)((most + kSpan - 1) / kSpan), n;
    int64_t fit = s->n_attend_max / ((int64_t)a->n_heads * kPartFloats); /* at least 160 */
    sp.n_spans = all < fit - 1 ? all : (int32_t)fit - 1;
    int64_t fit_rows = fit / (sp.n_spans + 1);
    for (int32_t first = 0; first < n_rows; first += n) {
        n = n_rows - first < fit_rows ? n_rows - first : (int32_t)fit_rows;
        sp.first_row = first;
        for (sp.first = 0; sp.first < all; sp.first += sp.n_spans) {
            launch(s, k, dim3((unsigned)sp.n_spans, (unsigned)sp.n_groups, (unsigned)n), bytes, a, sp);
            nib_launch(s, nib_sm120a_attend_fold, dim3((unsigned)a->n_heads, (unsigned)n), 128, 0, *a, *a->rows, sp);
        }
    }
}

static bool takes(const struct nib_attend_args *a)
{
    /* Rows' formats, sizes and places are asked for as if the query were BF16; an fp32 one is read by 8 bytes. */
    struct nib_attend_args as_bf16 = *a;
    as_bf16.q.dtype = NIB_DTYPE_BF16;
    as_bf16.q.stride *= a->q.dtype == NIB_DTYPE_F32 && a->q.stride % 2 == 0 ? 4 : 1;
    return nib_cuda_attend_mma_takes(&as_bf16);
}

enum nib_status nib_cuda_sm120a_attend(struct nib_stream *s, const struct nib_attend_args *a)
{
    static const struct {
        kernel *whole[2], *span[2]; /* of queries in BF16 and fp32 */
        size_t  bytes;
    } kernels[] = {{{nib_sm120a_attend_bf16, nib_sm120a_attend_f32_bf16},
                    {nib_sm120a_attend_span_bf16, nib_sm120a_attend_f32_span_bf16},
                    NIB_SM120A_ATTEND_BF16},
                   {{nib_sm120a_attend_fp8, nib_sm120a_attend_f32_fp8},
                    {nib_sm120a_attend_span_fp8, nib_sm120a_attend_f32_span_fp8},
                    NIB_SM120A_ATTEND_FP8},
                   {{nib_sm120a_attend_nvfp4, nib_sm120a_attend_f32_nvfp4},
                    {nib_sm120a_attend_span_nvfp4, nib_sm120a_attend_f32_span_nvfp4},
                    NIB_SM120A_ATTEND_NVFP4}};
    const auto &k = kernels[a->window.format == NIB_ROW_FP8 ? 1 : a->window.format == NIB_ROW_NVFP4 ? 2 : 0];
    int         f32 = a->q.dtype == NIB_DTYPE_F32;
    struct nib_sm120a_spans sp = {};
    if (a->rows->n_rows == 0 || !takes(a))
        return nib_cuda_attend(s, a);
    sp.part = s->attend;
    sp.n_heads = a->n_heads;
    sp.n_groups = (a->n_heads + kHeads - 1) / kHeads;
    /* Whole rows take a block as long as all their spans; spans apart take memory for sums. */
    int64_t blocks = (int64_t)a->rows->n_rows * sp.n_groups;
    if (blocks * 8 > s->n_sms)
        launch(s, k.whole[f32], (unsigned)blocks, k.bytes, a, sp);
    else
        launch_split(s, k.span[f32], k.bytes, a, sp);
    return nib_cuda_check(s, cudaGetLastError(), "attend");
}
