/* The backend contract: what a device must be able to do, op by op.
 *
 * An op is one step of the model, large enough to fuse inside and small enough to check alone. Arguments are
 * structs. Every table is complete after open: there are no empty slots and nothing quietly moves elsewhere; what a
 * device cannot run is refused by open() or weight_pack() with a sentence. docs/contracts.md explains the choices;
 * ref/ is the definition in plain loops; cpu/ and cuda/ are held to it by tests/opcheck.
 *
 * Rules that hold for every op:
 *  - It only enqueues on its stream and reads *args before it returns. Memory behind the args (all of it obtained
 *    from nib_backend_api.alloc or weight_pack of the same backend) must live until synchronise().
 *  - It allocates nothing. Scratch belongs to the stream and was sized at open from struct nib_dims.
 *  - Outputs do not overlap inputs unless the args say "in place".
 *  - A result row depends on its own sequence only, and its bits do not depend on the other rows of the step, on
 *    how a prompt was cut into steps, or on the number of threads: sums over n_in run in an order fixed by the
 *    weight's shape; attended rows are taken in ascending position, then ascending entry; experts ascending; of
 *    equal scores the lowest index wins.
 *  - Sums over many values are wide on ref and fp32 or better elsewhere. What follows them element by element up to a
 *    quantiser is fp32 with a rounding at each step, on every backend: a norm is (x * r) * weight with r =
 *    fp32(1 / sqrt(mean + eps)), a collapsed stream is a sum of n_hc products in order, SwiGLU is fp32(silu(g)) * u.
 *    Exact ties are frequent there, and an encoder that sees unrounded values flips codes which then grow.
 *  - NaN and Inf in a row spread within that row (visibly: never clamped away) and touch no other row.
 *  - n_rows == 0 is allowed and does nothing.
 *  - BF16 rows: outputs are rounded to nearest even once. On ref and cpu, whose rows are BF16 with --numerics bf16 and release
 *    only, the results of inner modules (named in each op) are rounded to bf16 too then; a GPU may keep more precision.
 *
 * This header is C11 and C++17 (for .cu files). Single-threaded use per stream. */
#ifndef NIB_BACKEND_H
#define NIB_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Views ---------------------------------------------------------------------------------------------------- */

enum nib_dtype { NIB_DTYPE_F32, NIB_DTYPE_BF16 };

/* A view of rows, never an owner. data == NULL means "absent" where an op calls a matrix optional. */
struct nib_mat {
    void          *data;
    enum nib_dtype dtype;
    int32_t        rows, cols;
    int64_t        stride; /* elements from one row to the next */
};

/* Storage of one quantised activation row, n channels (see src/number/ for the encoders):
 *   FP8:   blocks of 128 channels (the last may be shorter) with a UE8M0 scale byte each; E4M3 codes, one byte each.
 *          amax = max(max|x|, 1e-4), scale = 2^ceil(log2(amax * (1/448))), code = e4m3(clamp(x / scale, +-448)).
 *   NVFP4: g = max|row| / 2688 (fp32, one per row); blocks of 16 channels with a UE4M3 scale byte
 *          s = e4m3(min(max|block| / 6 / g, 448)); code = e2m1(x / (s * g)); zeros if g or s is 0. True divisions.
 *          Two codes a byte, even channel in the low nibble. Value = e2m1 * (s * g), both products in fp32.
 *   INT8:  blocks of 32 channels (the last may be shorter) with an fp32 scale s = max|block| / 127 each;
 *          code = round-to-nearest-even(x / s), int8; zeros if s is 0. Value = code * s in fp32.
 * A row holding NaN or Inf gets codes and scales that decode to NaN in at least every block concerned: FP8 scale
 * byte 255; NVFP4 row scale NaN; INT8 block scale NaN. */
enum nib_act_format { NIB_ACT_PLAIN, NIB_ACT_FP8, NIB_ACT_NVFP4, NIB_ACT_INT8 };

/* Activations: plain rows, quantised rows, or both (a router and weights_proj need plain rows beside the quantised
 * ones). A producer fills each part that is present; `format` is NIB_ACT_PLAIN when there is no quantised part.
 * A consumer takes the part its weight's `act` names. */
struct nib_act {
    struct nib_mat      plain;         /* [rows, cols]; data NULL if absent */
    enum nib_act_format format;        /* of the quantised part */
    int32_t             rows, cols;
    uint8_t            *codes;         /* [rows][codes_stride] bytes */
    uint8_t            *scales;        /* [rows][scales_stride] bytes (INT8: fp32 values, 4-byte aligned) */
    float              *row_scale;     /* [rows], NVFP4 only */
    int64_t             codes_stride, scales_stride; /* bytes */
};

/* Bytes per row of codes and scales of a quantised activation; 0 for PLAIN. Strides are padded to 64 bytes. */
int64_t nib_act_codes_stride(enum nib_act_format format, int32_t cols);
int64_t nib_act_scales_stride(enum nib_act_format format, int32_t cols);

/* ---- Weights -------------------------------------------------------------------------------------------------- */

/* Stored formats, row-major [n_out][n_in]:
 *   F32, BF16: plain.
 *   FP8:   E4M3 bytes; UE8M0 scale bytes [ceil(n_out/128)][ceil(n_in/128)].
 *   MXFP4: E2M1 pairs [n_out][n_in/2], low nibble = even column; UE8M0 scale bytes [n_out][n_in/32].
 *   NVFP4: E2M1 pairs [n_out][n_in/2]; UE4M3 scale bytes [n_out][n_in/16]; one fp32 global scale (a multiplier). */
enum nib_weight_type { NIB_WEIGHT_F32, NIB_WEIGHT_BF16, NIB_WEIGHT_FP8, NIB_WEIGHT_MXFP4, NIB_WEIGHT_NVFP4 };

struct nib_weight_part {
    const void *data;
    const void *scales;       /* NULL for plain types */
    float       global_scale; /* NVFP4; 1 otherwise */
};

/* n_stack matrices of one shape and type (the experts of a layer; otherwise 1), as stored in the checkpoint. Values
 * were checked by the loader: no NaN scale bytes, finite globals. Source memory must outlive the packed weight
 * only where pack() says so (ref points into it; cpu and cuda copy). */
/* Which op multiplies a weight, where the model knows one that a backend may lay it out for. All ops take all weights. */
enum nib_weight_use { NIB_USE_ANY, NIB_USE_O_A, NIB_USE_ROUTER };

struct nib_weight_desc {
    enum nib_weight_type          type;
    enum nib_act_format           act; /* which activation rows this weight multiplies (policy of the model) */
    int32_t                       n_stack, n_out, n_in;
    const struct nib_weight_part *part; /* [n_stack] */
    enum nib_weight_use           use;
};

/* Head of every packed weight; the backend's own struct begins with it. Global scales stay per matrix, apart from
 * the block scales. */
struct nib_weight {
    enum nib_weight_type type;
    enum nib_act_format  act;
    int32_t              n_stack, n_out, n_in;
};

/* ---- Where rows live ------------------------------------------------------------------------------------------ */

/* Positions per page: the one unit of KV memory, snapshot and prefix reuse. Both ratios (4 and 128) divide it. */
#define NIB_PAGE_TOKENS 128

/* Storage of one KV row of d channels whose last n_rot are rotary; n = d - n_rot:
 *   F32   4d bytes; BF16 2d bytes.
 *   FP8   n E4M3 bytes, 2*n_rot bytes of bf16, then one UE8M0 byte per 64 of the n channels padded to 8 bytes
 *         (584 at d = 512). Scales as activation FP8 with blocks of 64.
 *   NVFP4 n/2 bytes of E2M1 pairs, n/16 UE4M3 bytes, one fp32 row scale g = max|n channels|/2688 (4-byte aligned),
 *         2*n_rot bytes of bf16 (384 at d = 512).
 *   FP4   (indexer keys only) all d channels: d/2 bytes of E2M1 pairs, d/32 UE8M0 bytes (68 at d = 128);
 *         amax = max(max|x|, 6*2^-126), scale = 2^ceil(log2(amax * (1/6))). Keys and queries are rotated by Hadamard before.
 * Indexer rows follow the choice for KV rows: F32 -> F32, BF16 -> BF16, FP8 and NVFP4 -> FP4. */
enum nib_row_format { NIB_ROW_F32, NIB_ROW_BF16, NIB_ROW_FP8, NIB_ROW_NVFP4, NIB_ROW_FP4 };

/* Bytes of one stored row; a multiple of 4. */
int64_t nib_row_bytes(enum nib_row_format format, int32_t d, int32_t n_rot);

/* The stored rows of one kind in one layer: page i begins at base + i * page_rows * row_bytes. */
struct nib_store {
    uint8_t            *base;
    enum nib_row_format format;
    int32_t             page_rows; /* rows in a page: 128 window rows, 128/ratio entries */
    int64_t             row_bytes;
};

/* The compressor's raw rows that no entry holds yet, fp32: a ring by absolute position, position p in ring row
 * p % n_ring of its sequence's slot. kv and score (gate + ape) are [n_slots][n_ring][width]. */
struct nib_frontier {
    float  *kv, *score;
    int32_t n_ring;
    int64_t slot_stride; /* elements */
};

/* The rows of a step: all sequences' tokens together, each sequence's rows contiguous and in ascending position.
 * Device-resident; only n_rows and n_seqs are read by the host. */
struct nib_rows {
    int32_t        n_rows, n_seqs;
    const int32_t *token;       /* [n_rows] */
    const int32_t *pos;         /* [n_rows] position in its own sequence */
    const int32_t *seq;         /* [n_rows] index of its sequence in this step */
    const int32_t *seq_start;   /* [n_seqs + 1] first row of each sequence */
    const int32_t *slot;        /* [n_seqs] frontier slot */
    const int32_t *window_page; /* [n_seqs][page_stride] page of positions 128*i .. 128*i+127; -1 where not held */
    const int32_t *entry_page;  /* [n_seqs][page_stride] page of the entries of those positions */
    int64_t        page_stride;
    int32_t        first_pos;   /* positions below hold no row; rotation angles count from here (0; 1 for the MTP
                                   block, whose row at position p pairs p-1's streams with p's token) */
};

/* Rotary frequencies of a layer kind: fp32 [n_rot / 2]. The angle at position p is the fp32 product
 * (float)(p - first_pos) * freq[i]; pairs are adjacent channels (e, e+1) of the last n_rot. */
struct nib_rope {
    const float *freq;
    int32_t      n_rot;
};

/* ---- Ops ------------------------------------------------------------------------------------------------------ */

/* y[t][c*dim + i] = w[token[t]][i] for c < n_copies. */
struct nib_embed_args {
    const int32_t           *token; /* [n_rows] */
    int32_t                  n_rows, n_copies;
    const struct nib_weight *w;     /* [vocab, dim] BF16 or F32 */
    struct nib_mat           y;     /* [n_rows, n_copies * dim] */
};

/* y = x * rsqrt(mean(x^2) + eps) * weight, then the activation rows that y asks for. The quantised part is made
 * from the plain values as stored (so from bf16 values when plain is BF16), or from fp32 when plain is absent. */
struct nib_norm_args {
    struct nib_mat x;      /* [n, dim] */
    const float   *weight; /* [dim] */
    float          eps;
    struct nib_act y;      /* [n, dim] */
};

/* y[i][t][o] = sum_k x[t][k] * w[i][o][k]: several projections of the same rows. Each weight multiplies the part
 * of x that its `act` names. */
#define NIB_LINEAR_MAX 8
struct nib_linear_args {
    struct nib_act           x; /* [n, n_in] */
    int32_t                  n_weights;
    const struct nib_weight *w[NIB_LINEAR_MAX];
    struct nib_mat           y[NIB_LINEAR_MAX]; /* [n, n_out] */
};

/* Per head: q *= rsqrt(mean(q^2) + eps), then rotate. In place. BF16 rows: square, mean, rsqrt and product each
 * rounded to bf16, then the rotation in fp32 rounded once. */
struct nib_q_rope_args {
    struct nib_mat         q; /* [n_rows, n_heads * head_dim] */
    int32_t                n_heads, head_dim;
    float                  eps;
    const struct nib_rows *rows;
    struct nib_rope        rope;
};

/* kv row: rms norm with weight, rotate, store into the window page of its position in the store's format.
 * BF16 input rows: rounded to bf16 after the norm and after the rotation. */
struct nib_kv_insert_args {
    struct nib_mat         kv;          /* [n_rows, head_dim]; not changed */
    const float           *norm_weight; /* [head_dim] */
    float                  eps;
    const struct nib_rows *rows;
    struct nib_rope        rope;
    struct nib_store       window;
};

/* Push each row's projections into its sequence's frontier and emit an entry wherever (pos + 1) % ratio == 0:
 * softmax over the window's rows per channel, rms norm, rotation at the window's first position, storage.
 * Entry e of a sequence goes to page entry_page[e / page_rows], row e % page_rows.
 *   overlap (ratio 4):  projections are 2*width wide; entry e pools channels [0,width) of positions
 *                       ratio*(e-1)..ratio*e-1 (absent for e = 0) and [width,2*width) of ratio*e..ratio*e+ratio-1.
 *   otherwise:          width wide; entry e pools positions ratio*e..ratio*e+ratio-1.
 * Rows are pooled in ascending position. Raw rows of this step come from kv/gate, older ones from the ring; the
 * ring then holds the step's last n_ring rows.
 * hadamard: rotate by the Walsh-Hadamard transform of `width` (x width^-0.5) after the rotation (FP4 stores).
 * round_bf16 (--numerics release): round to bf16 after pooling, norm, rotation and Hadamard. */
struct nib_compress_args {
    struct nib_mat         kv, gate; /* [n_rows, (overlap ? 2 : 1) * width] F32, without ape */
    const float           *ape;      /* [ratio][(overlap ? 2 : 1) * width] */
    const float           *norm_weight; /* [width] */
    float                  eps;
    int32_t                ratio, width;
    bool                   overlap, hadamard, round_bf16;
    const struct nib_rows *rows;
    struct nib_rope        rope;
    struct nib_frontier    frontier;
    struct nib_store       entries;
};

/* For each row: which compressed entries its query attends to. visible = (pos + 1) / ratio. If visible <= top_k
 * all of them, without scores. Otherwise q is rotated by RoPE (and, for FP4 keys, Hadamard and FP4) and
 *   score[c] = sum_h (weight[h] * scale) * max(0, dot(q[h], key[c])),  h ascending,
 * and the top_k largest are taken, ties to the lowest entry, listed ascending. q is changed in place.
 * BF16 q rows: q rounded to bf16 after each step, each dot product, weight * scale and the final score rounded to bf16.
 * fp32 q rows and keys that bf16 holds: a device may take a query's values as the sum of two bf16 numbers, 2^-17 of it off. */
struct nib_index_select_args {
    struct nib_mat         q;      /* [n_rows, n_heads * dim] */
    struct nib_mat         weight; /* [n_rows, n_heads] */
    int32_t                n_heads, dim, ratio, top_k;
    float                  scale;  /* dim^-0.5 * n_heads^-0.5 */
    const struct nib_rows *rows;
    struct nib_rope        rope;
    struct nib_store       keys;
    int32_t               *selected;   /* [n_rows][top_k], ascending; the tail of a short list is -1 */
    int32_t               *n_selected; /* [n_rows] */
    struct nib_mat         scores;     /* optional F32 [n_rows, >= max visible]: all visible entries' scores, also
                                          where every entry is taken; for tracing */
};

/* o[h] = sum_j p_j * row_j over window rows max(first_pos, pos-window+1)..pos then compressed entries, with
 * p = softmax over { scale * dot(q[h], row_j) } and the sink logit sink[h] (which has no row); o is then rotated
 * back (angle of the query's position, negative sine).
 * ratio 0: window only. selected == NULL: all entries below (pos + 1) / ratio; else the listed ones.
 * bf16 queries: a device may round exp(score - some maximum) to bf16 before it multiplies a row, as the release does.
 * fp32 queries and rows that bf16 holds: it may take both a query's values and that weight as the sum of two bf16
 * numbers, 2^-17 of it off. */
struct nib_attend_args {
    struct nib_mat         q;    /* [n_rows, n_heads * head_dim], normed and rotated */
    const float           *sink; /* [n_heads] */
    int32_t                n_heads, head_dim, n_window, ratio, top_k;
    float                  scale;
    const struct nib_rows *rows;
    struct nib_rope        rope;
    struct nib_store       window, entries;
    const int32_t         *selected;   /* [n_rows][top_k] or NULL */
    const int32_t         *n_selected; /* [n_rows] or NULL */
    struct nib_mat         o;          /* [n_rows, n_heads * head_dim] */
};

/* Block-diagonal projection: y[t][g*R + a] = sum_b w[g*R + a][b] * x[t][g*B + b], R = n_out / n_groups,
 * B = n_in; then the activation rows that y asks for. Always multiplies plain rows. */
struct nib_o_a_args {
    struct nib_mat           x; /* [n, n_groups * n_in] */
    int32_t                  n_groups;
    const struct nib_weight *w; /* [n_groups * R, B] */
    struct nib_act           y; /* [n, n_groups * R] */
};

/* The whole mixture of experts.
 *   z = router . x (plain rows, fp32);  s = sqrt(softplus(z))
 *   chosen: tid2eid[token] if tid2eid, else the top_k largest of s + bias, ties to the lowest expert
 *   weight_i = s_i / sum of chosen s * route_scale
 *   expert: g = min(w1.x, limit), u = clamp(w3.x, +-limit) (no clamp if limit is 0), a = silu(g) * u,
 *           y_e = w2.a with the routing weight on a (weight_before_w2) or on y_e
 *   y = sum over chosen experts in ascending id (fp32) + shared(x), the shared one with clamps and no weight.
 * Inputs of w1/w3 and w2 take the activation format of those weights: a is quantised inside as rows of n_inner.
 * BF16 rows: w1.x, w3.x, a, each y_e and shared(x) are rounded to bf16. */
struct nib_moe_args {
    struct nib_act           x;        /* plain always present */
    const struct nib_rows   *rows;     /* token for hash routing */
    const struct nib_weight *router;   /* [n_experts, dim] plain */
    const float             *bias;     /* [n_experts], scored layers; else NULL */
    const int32_t           *tid2eid;  /* [vocab][top_k], hash layers; else NULL */
    int32_t                  n_experts, top_k;
    float                    route_scale, limit;
    bool                     weight_before_w2;
    const struct nib_weight *w1, *w2, *w3;    /* stacks of n_experts: [inner, dim], [dim, inner], [inner, dim] */
    const struct nib_weight *sw1, *sw2, *sw3; /* shared expert */
    struct nib_mat           y;        /* [n, dim] */
    int32_t                 *chosen;   /* optional [n][top_k] in order of choice, for tracing */
    float                   *weights;  /* optional [n][top_k], likewise */
};

/* Manifold-constrained hyper-connections before a module, with the module's norm and activation rows.
 * X = one token's streams, n_hc * dim; ir = rsqrt(mean(X^2) + norm_eps); mix = (fn . X) * ir, (2 + n_hc) * n_hc values;
 * pre = sigmoid(mix*scale[0]+base)+hc_eps; post = 2*sigmoid(mix*scale[1]+base); comb = sinkhorn(mix*scale[2]+base) (softmax
 * over the last index, +hc_eps, columns, then n_iters-1 times rows and columns);
 * collapsed = sum_i pre[i]*stream[i]; x = norm(collapsed) as in nib_norm_args.
 * BF16 rows: collapsed is rounded before the norm. */
struct nib_hc_pre_args {
    struct nib_mat streams; /* [n, n_hc * dim] */
    int32_t        n_hc, n_iters;
    const float   *fn, *base, *scale; /* [(2+n_hc)*n_hc][n_hc*dim], [(2+n_hc)*n_hc], [3] */
    float          hc_eps, norm_eps;
    const float   *norm_weight; /* [dim] */
    struct nib_mat post;        /* F32 [n, n_hc] */
    struct nib_mat comb;        /* F32 [n, n_hc * n_hc], [source][destination] */
    struct nib_act x;           /* [n, dim] */
    struct nib_mat collapsed;   /* optional F32 or BF16 [n, dim], for tracing */
};

/* streams[k] = post[k] * y + sum_j comb[j][k] * streams[j]. In place. */
struct nib_hc_post_args {
    struct nib_mat streams; /* [n, n_hc * dim] */
    int32_t        n_hc;
    struct nib_mat y;       /* [n, dim] */
    struct nib_mat post, comb;
};

/* Final collapse of chosen rows and the last norm: w = sigmoid(mix*scale[0]+base)+hc_eps with fn [n_hc][n_hc*dim];
 * x = norm(sum_i w[i]*stream[i]). BF16 rows: rounded before and after the norm. */
struct nib_hc_head_args {
    struct nib_mat streams;   /* [*, n_hc * dim] */
    const int32_t *row;       /* [n] rows of streams */
    int32_t        n, n_hc;
    const float   *fn, *base, *scale;
    float          hc_eps, norm_eps;
    const float   *norm_weight;
    struct nib_mat x;         /* [n, dim] */
    struct nib_mat collapsed; /* optional [n, dim], for tracing */
};

/* logits = x . w, fp32 sums and fp32 results whatever x is. */
struct nib_head_args {
    struct nib_mat           x;      /* [n, dim] */
    const struct nib_weight *w;      /* [vocab, dim] */
    struct nib_mat           logits; /* F32 [n, vocab] */
};

/* MTP input: h[t][s] += e[t] for every stream s. h is [n, n_hc * dim], in place. */
struct nib_mtp_join_args {
    struct nib_mat e; /* [n, dim] */
    struct nib_mat h; /* [n, n_hc * dim] */
    int32_t        n_hc;
};

/* dst[dst_row[i]] = src[src_row[i]] for i < n; -1 in either skips. Same dtype and cols. */
struct nib_copy_rows_args {
    struct nib_mat src, dst;
    const int32_t *src_row, *dst_row; /* [n] */
    int32_t        n;
};

/* How one row's next token is drawn: penalties, temperature, min_p, top_k, top_p, draw, in that order
 * (docs/sampling.md). temperature < 1e-5: the largest logit, ties to the lowest id. */
struct nib_sample_row {
    float    temperature, top_p, min_p;
    int32_t  top_k;                           /* 0: off */
    float    repetition, presence, frequency; /* 1, 0, 0: off */
    float    uniform;                         /* in [0, 1): this position's random number */
    int32_t  history_start, history_count;    /* range in the history arrays */
};

struct nib_sample_args {
    struct nib_mat               logits; /* F32 [n, vocab]; not changed */
    int32_t                      n;
    const struct nib_sample_row *row;            /* [n] */
    const int32_t               *history_token;  /* distinct ids a row has seen */
    const int32_t               *history_times;  /* times generated; 0: in the prompt only */
    int32_t                     *token;          /* [n]; -1 where a row's logits hold NaN or no finite value */
    float                       *logprob;        /* [n] natural log of the raw softmax at the token */
};

struct nib_stream; /* an ordered queue of work with its scratch */

struct nib_ops {
    enum nib_status (*embed)(struct nib_stream *s, const struct nib_embed_args *a);
    enum nib_status (*norm)(struct nib_stream *s, const struct nib_norm_args *a);
    enum nib_status (*linear)(struct nib_stream *s, const struct nib_linear_args *a);
    enum nib_status (*q_rope)(struct nib_stream *s, const struct nib_q_rope_args *a);
    enum nib_status (*kv_insert)(struct nib_stream *s, const struct nib_kv_insert_args *a);
    enum nib_status (*compress)(struct nib_stream *s, const struct nib_compress_args *a);
    enum nib_status (*index_select)(struct nib_stream *s, const struct nib_index_select_args *a);
    enum nib_status (*attend)(struct nib_stream *s, const struct nib_attend_args *a);
    enum nib_status (*o_a)(struct nib_stream *s, const struct nib_o_a_args *a);
    enum nib_status (*moe)(struct nib_stream *s, const struct nib_moe_args *a);
    enum nib_status (*hc_pre)(struct nib_stream *s, const struct nib_hc_pre_args *a);
    enum nib_status (*hc_post)(struct nib_stream *s, const struct nib_hc_post_args *a);
    enum nib_status (*hc_head)(struct nib_stream *s, const struct nib_hc_head_args *a);
    enum nib_status (*head)(struct nib_stream *s, const struct nib_head_args *a);
    enum nib_status (*mtp_join)(struct nib_stream *s, const struct nib_mtp_join_args *a);
    enum nib_status (*copy_rows)(struct nib_stream *s, const struct nib_copy_rows_args *a);
    enum nib_status (*sample)(struct nib_stream *s, const struct nib_sample_args *a);
};

/* ---- Devices -------------------------------------------------------------------------------------------------- */

/* Upper bounds of everything an op will be asked for; scratch is sized from it once. */
struct nib_dims {
    int32_t n_rows_max, n_seqs_max, n_ctx_max;
    int32_t dim, n_hc, n_heads, head_dim, n_rot, q_rank, n_groups, o_rank;
    int32_t n_window, n_index_heads, index_dim, index_top_k;
    int32_t n_experts, top_k, n_inner, n_inner_shared, vocab;
};

struct nib_backend_config {
    struct nib_dims dims;
    int32_t         n_threads; /* 0: all cores */
    uint32_t        cpu_mask;  /* CPU features allowed, ~0u: all; see cpu/ */
    const char     *cpu_level; /* cpu: kernels of this level and those below it, by name; NULL: the best allowed */
    const char     *selftest_file; /* cuda: as nib_options has it; NULL: none. open() takes a copy */
};

struct nib_backend; /* one opened device; owns its memory and stream */

/* Repeating a long row of ops as one piece of work, for devices where issuing them one by one costs time. */
#define NIB_RECORD_KEY_WORDS 24
struct nib_record_key {
    int32_t  n;
    uint64_t word[NIB_RECORD_KEY_WORDS]; /* everything that the arguments of the ops depend on */
};
struct nib_recorder {
    /* Enqueue again what was kept under this key. *found is false, and nothing done, if there is no such record. */
    enum nib_status (*replay)(struct nib_stream *s, const struct nib_record_key *key, bool *found);
    /* From here on ops (and nothing else) are written down, not run. False: not now; the ops run as they are called. */
    bool (*begin)(struct nib_stream *s, const struct nib_record_key *key);
    /* Keep what was written down and enqueue it. ok false: an op failed, so forget it. */
    enum nib_status (*end)(struct nib_stream *s, const struct nib_record_key *key, bool ok);
};

struct nib_backend_api {
    const char                *name;
    const struct nib_ops      *ops;      /* complete */
    const struct nib_recorder *recorder; /* NULL where ops run at once */

    /* As nib_device_get(). The engine runs on device 0. */
    enum nib_status (*device)(int32_t i, struct nib_device_info *out, struct nib_error *err);
    /* *out is NULL on failure. */
    enum nib_status (*open)(const struct nib_backend_config *c, struct nib_backend **out, struct nib_error *err);
    void (*close)(struct nib_backend *b); /* NULL is fine; all memory and weights must have been released */
    struct nib_stream *(*stream)(struct nib_backend *b);
    /* Scratch that open() will take for these dims; answers without allocating. */
    size_t (*scratch_bytes)(const struct nib_backend_config *c);

    /* Zeroed memory, aligned to 256 bytes; NULL when there is none left. release() takes NULL. */
    void *(*alloc)(struct nib_backend *b, size_t bytes);
    void (*release)(struct nib_backend *b, void *p);
    /* In stream order. upload may return before the copy is done only if it has taken its own copy of src. */
    enum nib_status (*upload)(struct nib_stream *s, void *dst, const void *src, size_t bytes);
    enum nib_status (*download)(struct nib_stream *s, void *dst, const void *src, size_t bytes); /* synchronises */
    enum nib_status (*copy)(struct nib_stream *s, void *dst, const void *src, size_t bytes);     /* no overlap */
    enum nib_status (*synchronise)(struct nib_stream *s);
    /* The reason of the stream's last failure, told once, but again and again if nothing works any more since; else an empty
     * text. NULL: the status is all there is to tell. */
    void (*why)(struct nib_stream *s, struct nib_error *out);

    /* Whether rows of INT8 are what 4-bit weights should meet there unless something else is asked for: they cost little accuracy
     * and gain much speed. Of a config only cpu_mask and cpu_level count. NULL: no. */
    bool (*prefers_int8)(const struct nib_backend_config *c);
    /* Whether rows between ops are BF16 there unless something else is asked for: fp32 rows are taken, but meet slower kernels. */
    bool prefers_bf16;

    /* Device bytes a weight will take, without reading it: at most 2 % over the stored bytes, or by the rest of the last panel
     * of 16 outputs by 16 channels, and the rest of the last tile of scales (128 rows by 256 columns) where a tensor core
     * takes NVFP4 scales by tiles. */
    size_t (*weight_bytes)(const struct nib_weight_desc *d);
    enum nib_status (*weight_pack)(struct nib_backend *b, const struct nib_weight_desc *d, struct nib_weight **out,
                                   struct nib_error *err);
    void (*weight_free)(struct nib_backend *b, struct nib_weight *w);
};

/* The backends of this build, best last; NULL-terminated. */
const struct nib_backend_api *const *nib_backends(void);
const struct nib_backend_api *nib_backend_find(const char *name); /* NULL if unknown */

extern const struct nib_backend_api nib_backend_ref;
extern const struct nib_backend_api nib_backend_cpu;

#ifdef __cplusplus
}
#endif
#endif
