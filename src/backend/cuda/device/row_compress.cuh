/* Bodies of the compressor for a block of row_jobs.cu: the entry that a row completes, pooled with a thread for a few
 * channels, and the step's last raw rows into the ring. */
#ifndef NIB_CUDA_ROW_COMPRESS_CUH
#define NIB_CUDA_ROW_COMPRESS_CUH

#include "backend/cuda/device/row_norm.cuh"

NIB_DEVICE float score_of_row(const struct nib_compress_args &a, const struct nib_rows &rows, int64_t t,
                              int32_t channel)
{
    return ((const float *)a.gate.data)[t * a.gate.stride + channel] +
           a.ape[(int64_t)(rows.pos[t] % a.ratio) * a.gate.cols + channel];
}

/* Raw rows of a sequence: from this step's projections, or older ones from the ring. */
struct source {
    int32_t first_row, first_pos;
    int64_t slot;
};

NIB_DEVICE void source_get(const struct nib_compress_args &a, const struct nib_rows &rows, const struct source &src,
                           int32_t pos, int32_t channel, float *value, float *score)
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

NIB_DEVICE float pool(const struct nib_compress_args &a, const struct nib_rows &rows, const struct source &src,
                      int32_t e, int32_t channel)
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

NIB_DEVICE void emit_entry(const struct nib_compress_args &a, const struct nib_rows &rows, int64_t t, float *x,
                           struct row_buffers *b)
{
    int32_t pos = rows.pos[t], seq = rows.seq[t], e = pos / a.ratio, first = rows.seq_start[seq];
    if ((pos + 1) % a.ratio != 0)
        return;
    struct source src = {first, rows.pos[first], rows.slot[seq]};
    for (int32_t j = threadIdx.x; j < a.width; j += blockDim.x)
        x[j] = pool(a, rows, src, e, j);
    __syncthreads();
    round_block(x, a.width, a.round_bf16);
    nib_rms_norm_block(x, a.norm_weight, a.width, a.eps, b->sum);
    round_block(x, a.width, a.round_bf16);
    nib_angles_block(a.rope, e * a.ratio - rows.first_pos, b->angle);
    nib_rotate_block(x, a.width, a.rope.n_rot, b->angle);
    round_block(x, a.width, a.round_bf16);
    if (a.hadamard) {
        nib_hadamard_block(x, a.width);
        round_block(x, a.width, a.round_bf16);
    }
    uint8_t *row = nib_store_at(a.entries, rows.entry_page + seq * rows.page_stride, e);
    nib_kv_encode_block(a.entries.format, x, a.width, a.rope.n_rot, row, a.entries.row_bytes, b->most);
}

/* Only after every entry has read the older rows; no two of a sequence's last n_ring rows share a ring row. */
NIB_DEVICE void push_row(const struct nib_compress_args &a, const struct nib_rows &rows, int64_t t)
{
    int32_t seq = rows.seq[t], n = a.kv.cols;
    if (rows.seq_start[seq + 1] - t > a.frontier.n_ring)
        return;
    int64_t at = (int64_t)rows.slot[seq] * a.frontier.slot_stride + (int64_t)(rows.pos[t] % a.frontier.n_ring) * n;
    for (int32_t j = threadIdx.x; j < n; j += blockDim.x) {
        a.frontier.kv[at + j] = ((const float *)a.kv.data)[t * a.kv.stride + j];
        a.frontier.score[at + j] = score_of_row(a, rows, t, j);
    }
}

#endif
