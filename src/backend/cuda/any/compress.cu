/* The compressor: one block an entry that this step completes, one thread a few channels of it; then the step's last raw
 * rows into the ring. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rows.cuh"

constexpr int kMaxRotary = 512;

NIB_DEVICE float score_of_row(const struct nib_compress_args &a, const struct nib_rows &rows, int64_t t, int32_t channel)
{
    return ((const float *)a.gate.data)[t * a.gate.stride + channel] +
           a.ape[(int64_t)(rows.pos[t] % a.ratio) * a.gate.cols + channel];
}

/* Raw rows of a sequence: from this step's projections, or older ones from the ring. */
struct source {
    int32_t first_row, first_pos;
    int64_t slot;
};

NIB_DEVICE void source_get(const struct nib_compress_args &a, const struct nib_rows &rows, const struct source &src, int32_t pos,
                           int32_t channel, float *value, float *score)
{
    if (pos >= src.first_pos) {
        int64_t t = src.first_row + pos - src.first_pos;
        *value = ((const float *)a.kv.data)[t * a.kv.stride + channel];
        *score = score_of_row(a, rows, t, channel);
    } else {
        int64_t at = src.slot * a.frontier.slot_stride + (int64_t)(pos % a.frontier.n_ring) * a.kv.cols + channel;
        *value = a.frontier.kv[at];
        *score = a.frontier.score[at];
    }
}

NIB_DEVICE float pool(const struct nib_compress_args &a, const struct nib_rows &rows, const struct source &src, int32_t e, int32_t channel)
{
    int32_t own = e * a.ratio, begin = max(a.overlap ? own - a.ratio : own, rows.first_pos);
    float   most = -INFINITY, value, score;
    double  sum = 0, weighted = 0;
    bool    nan = false; /* a NaN score must not pass a comparison unseen */
    for (int32_t p = begin; p < own + a.ratio; p++) {
        source_get(a, rows, src, p, a.overlap && p >= own ? a.width + channel : channel, &value, &score);
        most = score > most ? score : most;
        nan |= isnan(score);
    }
    for (int32_t p = begin; p < own + a.ratio; p++) {
        source_get(a, rows, src, p, a.overlap && p >= own ? a.width + channel : channel, &value, &score);
        double w = exp((double)score - (double)most);
        sum += w;
        weighted += w * (double)value;
    }
    return nan ? NAN : (float)(weighted / sum);
}

NIB_DEVICE void round_block(float *x, int32_t n, bool bf16)
{
    if (!bf16)
        return;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = nib_bf16_rounded(x[i]);
    __syncthreads();
}

static __global__ void emit_entries(const struct nib_compress_args a, const struct nib_rows rows)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ float        angle[kMaxRotary];
    __shared__ double       buffer[32];
    __shared__ uint32_t     max_buffer[32];
    int64_t                 t = blockIdx.x;
    int32_t                 pos = rows.pos[t], seq = rows.seq[t], e = pos / a.ratio, first = rows.seq_start[seq];
    if ((pos + 1) % a.ratio != 0)
        return;
    struct source src = {first, rows.pos[first], rows.slot[seq]};
    for (int32_t j = threadIdx.x; j < a.width; j += blockDim.x)
        x[j] = pool(a, rows, src, e, j);
    __syncthreads();
    round_block(x, a.width, a.round_bf16);
    nib_rms_norm_block(x, a.norm_weight, a.width, a.eps, buffer);
    round_block(x, a.width, a.round_bf16);
    nib_angles_block(a.rope, e * a.ratio - rows.first_pos, angle);
    nib_rotate_block(x, a.width, a.rope.n_rot, angle);
    round_block(x, a.width, a.round_bf16);
    if (a.hadamard) {
        nib_hadamard_block(x, a.width);
        round_block(x, a.width, a.round_bf16);
    }
    uint8_t *row = nib_store_at(a.entries, rows.entry_page + seq * rows.page_stride, e);
    nib_kv_encode_block(a.entries.format, x, a.width, a.rope.n_rot, row, a.entries.row_bytes, max_buffer);
}

/* Only after every entry has read the older rows; no two of a sequence's last n_ring rows share a ring row. */
static __global__ void push_rows(const struct nib_compress_args a, const struct nib_rows rows)
{
    nib_grid_start();
    int64_t t = blockIdx.x;
    int32_t seq = rows.seq[t], n = a.kv.cols;
    if (rows.seq_start[seq + 1] - t > a.frontier.n_ring)
        return;
    int64_t at = (int64_t)rows.slot[seq] * a.frontier.slot_stride + (int64_t)(rows.pos[t] % a.frontier.n_ring) * n;
    for (int32_t j = threadIdx.x; j < n; j += blockDim.x) {
        a.frontier.kv[at + j] = ((const float *)a.kv.data)[t * a.kv.stride + j];
        a.frontier.score[at + j] = score_of_row(a, rows, t, j);
    }
}

enum nib_status nib_cuda_compress(struct nib_stream *s, const struct nib_compress_args *a)
{
    unsigned n = (unsigned)a->rows->n_rows;
    if (n == 0)
        return NIB_OK;
    nib_launch(s, emit_entries, n, 256, (size_t)a->width * sizeof(float), *a, *a->rows);
    nib_launch(s, push_rows, n, 256, 0, *a, *a->rows);
    return nib_cuda_check(s, cudaGetLastError(), "compress");
}
