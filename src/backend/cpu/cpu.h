/* Inside of the cpu backend: stream, scratch, packed weights, and what the op files share. Read kernels.h first.
 *
 * Work is divided over threads by output (rows, output blocks, heads, entries), never inside a sum. */
#ifndef NIB_CPU_H
#define NIB_CPU_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"

/* Rows that matrix ops take at a time: bounds scratch; results do not depend on it. */
#define NIB_CPU_GROUP_ROWS 256
/* Rows whose index scores are held at a time, and KV rows decoded at a time. */
#define NIB_CPU_INDEX_ROWS 16
#define NIB_CPU_KV_ROWS    48 /* a multiple of every register tile of body_attend.h */

/* Blocks of outputs that meet the same rows one after the other: rows come from a cache further away for the first of them
 * only, and an expert's weights are read in longer pieces. */
#define NIB_CPU_RUN      4
#define NIB_CPU_RUN_OUTS (NIB_CPU_RUN * NIB_CPU_TILE_OUTS)

/* Results of an op that take more are not looked for in caches when the next op reads them. */
#define NIB_CPU_CACHED_BYTES (16 << 20)

/* Segments of a query's rows at most: see attention_cpu.c. */
#define NIB_CPU_SEGMENTS 2

/* Attention of a row's heads to some of its rows: the weighted sums, and by head the maximum that they and the sums of
 * weights are relative to. */
struct nib_cpu_partial {
    float *o; /* [n_heads][head_dim] */
    float *top, *sum; /* [n_heads] */
};

/* One thread's buffers; sizes in floats unless a name says otherwise. */
struct nib_cpu_thread {
    float    *tile_work;         /* NIB_CPU_TILE_WORK */
    float    *tile_y[2];         /* TILE_ROWS * TILE_OUTS */
    float    *block_sum;         /* GROUP_ROWS * RUN_OUTS */
    float    *row[4];            /* cols each */
    float    *angle;             /* 2 * n_rot: see rotary_angles */
    float    *keys;              /* n_experts */
    uint8_t  *codes, *scales;    /* bytes of one quantised activation row */
    float    *kv, *score;        /* [KV_ROWS][nib_cpu_kv_stride], [heads][KV_ROWS] */
    float    *heads_q;           /* [n_heads][head_dim] */
    struct nib_cpu_partial partial[2];
    float    *logits, *weight;   /* [vocab] */
    uint64_t *sort[2];           /* [vocab] */
};

/* Floats from one decoded KV row to the next: a cache line more than they are long, for rows of 512 channels would all fall
 * into the same sets of a cache. */
static inline int32_t nib_cpu_kv_stride(int32_t d) { return (d + 15) / 16 * 16 + 16; }

struct nib_cpu_scratch {
    float                  *plain;      /* [GROUP_ROWS][plain_stride] */
    float                  *values;     /* [GROUP_ROWS][nib_cpu_stride(quant_cols)]: quantised rows as fp32 */
    uint8_t                *code_memory; /* [GROUP_ROWS] integer rows opened, nib_cpu_codes_bytes each */
    struct nib_cpu_code_row *codes;     /* [GROUP_ROWS] */
    uint16_t               *bf16[2];    /* the same rows as plain and as values in bf16 */
    struct nib_cpu_bf16_row *bf16_row[2]; /* [GROUP_ROWS] */
    float                  *out;        /* [GROUP_ROWS][quant_cols] */
    float                  *router;     /* [GROUP_ROWS][n_experts] */
    int32_t                *chosen;     /* [GROUP_ROWS][top_k] */
    float                  *weight;     /* [GROUP_ROWS][top_k] */
    int32_t                *pair_row;   /* [GROUP_ROWS * (top_k + 1)] rows sorted by expert; the shared expert last */
    float                  *pair_weight;
    int32_t                *expert_first; /* [n_experts + 2] */
    int32_t                *expert_fill;  /* [n_experts + 1] */
    float                  *inner;      /* [GROUP_ROWS * top_k][n_inner] and [GROUP_ROWS][n_inner_shared], nib_cpu_stride each */
    uint8_t                *inner_code_memory;
    struct nib_cpu_code_row *inner_codes; /* [GROUP_ROWS * (top_k + 1)] */
    struct nib_cpu_bf16_row *inner_bf16;  /* likewise; in the memory of inner */
    float                  *index_score; /* [INDEX_ROWS][n_entries_max] */
    uint8_t                *codes_fp4;   /* [INDEX_ROWS][n_index_heads][index_dim]: see struct nib_cpu_fp4_queries */
    float                  *scales_fp4;  /* [INDEX_ROWS][n_index_heads][blocks of 32] */
    struct nib_cpu_partial *partial;    /* [n_threads - 1 rows][SEGMENTS] of rows that threads share */
    float                  *mix;        /* [GROUP_ROWS][(2 + n_hc) * n_hc] */
    struct nib_cpu_thread  *thread;     /* [n_threads] */
};

struct nib_stream {
    struct nib_cpu_kernels k;
    struct nib_dims        dims;
    int32_t                n_threads, cols, quant_cols; /* widest rows, and widest quantised ones */
    int32_t                plain_stride;                /* of the widest prepared rows */
    int32_t                n_entries_max;
    struct nib_cpu_scratch scratch;
};

/* Threads for an op of about so many multiply-adds. Waking a team takes microseconds (and far more where cores are shared), so what
 * one thread does in less runs on the caller's alone; this changes no bit. */
#define NIB_CPU_TEAM_WORK 100000
static inline int nib_cpu_threads(const struct nib_stream *s, int64_t work)
{
    return work < NIB_CPU_TEAM_WORK ? 1 : s->n_threads;
}

/* Blocks of outputs that a thread takes at a time: neighbours continue one stream of bytes, and eight turns for each thread
 * even out what they take. Panels of few channels are short, so that many may be wanted. */
static inline int32_t nib_cpu_chunk(const struct nib_stream *s, int32_t n_items)
{
    int32_t chunk = n_items / (8 * s->n_threads);
    return chunk < 1 ? 1 : chunk > 32 ? 32 : chunk;
}

void *nib_cpu_memory(size_t bytes); /* not zeroed; released by free(); NULL if there is none (cpu.c) */

/* ---- Weights (weights_cpu.c) ---- */

size_t          nib_cpu_weight_bytes(const struct nib_weight_desc *d);
enum nib_status nib_cpu_weight_pack(struct nib_backend *b, const struct nib_weight_desc *d, struct nib_weight **out,
                                    struct nib_error *err);
void            nib_cpu_weight_free(struct nib_backend *b, struct nib_weight *w);
struct nib_cpu_matrix nib_cpu_matrix_of(const struct nib_weight *w, int32_t stack);
/* One row of a plain weight as fp32. */
void nib_cpu_weight_row(const struct nib_stream *s, const struct nib_weight *w, int32_t row, float *dst);
/* Plain fp32 parameters as a matrix. */
struct nib_cpu_matrix nib_cpu_matrix_f32(const float *data, int32_t n_out, int32_t n_in);

/* ---- Rows of memory (rows_cpu.c) ---- */

static inline void *nib_cpu_row(const struct nib_mat *m, int64_t row)
{
    size_t size = m->dtype == NIB_DTYPE_F32 ? 4 : 2;
    return (uint8_t *)m->data + (size_t)(row * m->stride) * size;
}

/* n values of a row from column c, as fp32; the memory itself where it is fp32, else decoded into buffer. */
const float *nib_cpu_row_read(const struct nib_stream *s, const struct nib_mat *m, int64_t row, int32_t c, int32_t n,
                              float *buffer);
void nib_cpu_row_write(const struct nib_stream *s, const struct nib_mat *m, int64_t row, int32_t c, int32_t n,
                       const float *x);

/* Fill every part of y that is present in row t from x [y->cols], which is rounded in place if y has BF16 rows. */
void nib_cpu_act_write(const struct nib_stream *s, const struct nib_act *y, int64_t t, float *x);

/* rsqrt(mean(x^2) + eps). */
float nib_cpu_rms_factor(const struct nib_stream *s, const float *x, float eps, int32_t n);
/* x = rms norm of x with weight. */
void nib_cpu_rms_norm(const struct nib_stream *s, float *x, const float *weight, float eps, int32_t n);

/* Cosines and sines of a position's angles as rotary_angles of kernels.h gives them, and the rotation of the last n_rot of d
 * channels. */
void nib_cpu_angles(const struct nib_stream *s, const struct nib_rope *rope, int32_t pos, float *angle);
void nib_cpu_rotate(const struct nib_stream *s, float *x, int32_t d, int32_t n_rot, const float *angle, bool inverse);

/* Walsh-Hadamard transform of n (a power of two) channels times n^-0.5. */
void nib_cpu_hadamard(const struct nib_stream *s, float *x, int32_t n);

/* Where row r of a page lives, and KV rows in and out of their storage format. */
static inline uint8_t *nib_cpu_store_row(const struct nib_store *st, int32_t page, int32_t r)
{
    return st->base + ((int64_t)page * st->page_rows + r) * st->row_bytes;
}
static inline uint8_t *nib_cpu_entry(const struct nib_store *st, const struct nib_rows *rows, int32_t seq, int32_t e)
{
    return nib_cpu_store_row(st, rows->entry_page[seq * rows->page_stride + e / st->page_rows], e % st->page_rows);
}
void nib_cpu_kv_write(const struct nib_stream *s, const struct nib_store *st, const float *x, int32_t d, int32_t n_rot,
                      uint8_t *row);
void nib_cpu_kv_read(const struct nib_stream *s, enum nib_row_format f, const uint8_t *row, int32_t d, int32_t n_rot,
                     float *x);

/* ---- Matrix products (matmul_cpu.c) ---- */

/* Rows made ready for tiles, in the forms that weights need: fp32 of the plain and of the quantised part, zeros up to a
 * whole block; the same in bf16 where a level multiplies that faster and the rows are exact in it, as BF16 rows are and FP8
 * ones, whose encoder leaves none below 2^-31; or integer rows opened (NVFP4 and INT8 rows that meet a 4-bit weight). */
struct nib_cpu_rows {
    const float                   *plain, *values;
    const struct nib_cpu_code_row *codes;
    const struct nib_cpu_bf16_row *plain_bf16, *values_bf16;
    int64_t                        plain_stride, values_stride;
};

enum nib_cpu_need {
    NIB_CPU_NEED_PLAIN = 1,
    NIB_CPU_NEED_VALUES = 2,
    NIB_CPU_NEED_CODES = 4,
    NIB_CPU_NEED_PLAIN_BF16 = 8,
    NIB_CPU_NEED_VALUES_BF16 = 16
};

/* Which of them a weight multiplies; `plain` is the type of the plain rows. */
unsigned nib_cpu_need_of(const struct nib_stream *s, const struct nib_weight *w, enum nib_dtype plain);
/* Channels up to a whole block. */
static inline int32_t nib_cpu_padded(int32_t cols)
{
    return (cols + NIB_CPU_BLOCK - 1) / NIB_CPU_BLOCK * NIB_CPU_BLOCK;
}
/* From one prepared row to the next: 33 cache lines more, so that rows of 4096 channels do not all fall into the same sets of
 * the caches. */
static inline int32_t nib_cpu_stride(int32_t cols) { return nib_cpu_padded(cols) + 33 * 16; }
/* Bytes from one opened integer row to the next, likewise. */
size_t nib_cpu_codes_bytes(int32_t cols);

/* Make rows [first, first + n) of x ready, in place or in the stream's scratch; n <= GROUP_ROWS. Plain rows have n_parts
 * equal parts, each padded to whole blocks. */
void nib_cpu_rows_prepare(struct nib_stream *s, const struct nib_act *x, int32_t first, int32_t n, int32_t n_parts,
                          unsigned need, struct nib_cpu_rows *out);
/* One quantised row of cols channels as fp32, and an integer row opened in memory of nib_cpu_codes_bytes. */
void nib_cpu_act_decode(const struct nib_stream *s, enum nib_act_format format, const uint8_t *codes,
                        const uint8_t *scales, float row_scale, int32_t cols, float *values);
void nib_cpu_codes_open(const struct nib_stream *s, enum nib_act_format format, const uint8_t *codes,
                        const uint8_t *scales, float row_scale, int32_t cols, void *memory,
                        struct nib_cpu_code_row *out);

/* y[r][o] for rows index[r] (or first + r where index is NULL), r < n <= TILE_ROWS, and outputs [out, out + n_outs), where
 * out begins a panel; column offset x_col into the rows' form that is needed. y has TILE_OUTS to a row. */
void nib_cpu_tile_run(const struct nib_stream *s, struct nib_cpu_thread *th, const struct nib_cpu_matrix *w,
                      unsigned need, const struct nib_cpu_rows *rows, const int32_t *index, int32_t first, int32_t n,
                      int32_t x_col, int32_t out, int32_t n_outs, float *y);

/* y = x . w for prepared rows and a plain fp32 result [n][y_stride], over all threads. */
void nib_cpu_matmul(struct nib_stream *s, const struct nib_cpu_matrix *w, unsigned need,
                    const struct nib_cpu_rows *rows, int32_t n, float *y, int64_t y_stride);

/* ---- Ops ---- */

enum nib_status nib_cpu_embed(struct nib_stream *s, const struct nib_embed_args *a);
enum nib_status nib_cpu_norm(struct nib_stream *s, const struct nib_norm_args *a);
enum nib_status nib_cpu_linear(struct nib_stream *s, const struct nib_linear_args *a);
enum nib_status nib_cpu_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a);
enum nib_status nib_cpu_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a);
enum nib_status nib_cpu_compress(struct nib_stream *s, const struct nib_compress_args *a);
enum nib_status nib_cpu_index_select(struct nib_stream *s, const struct nib_index_select_args *a);
enum nib_status nib_cpu_attend(struct nib_stream *s, const struct nib_attend_args *a);
enum nib_status nib_cpu_o_a(struct nib_stream *s, const struct nib_o_a_args *a);
enum nib_status nib_cpu_moe(struct nib_stream *s, const struct nib_moe_args *a);
enum nib_status nib_cpu_hc_pre(struct nib_stream *s, const struct nib_hc_pre_args *a);
enum nib_status nib_cpu_hc_post(struct nib_stream *s, const struct nib_hc_post_args *a);
enum nib_status nib_cpu_hc_head(struct nib_stream *s, const struct nib_hc_head_args *a);
enum nib_status nib_cpu_head(struct nib_stream *s, const struct nib_head_args *a);
enum nib_status nib_cpu_mtp_join(struct nib_stream *s, const struct nib_mtp_join_args *a);
enum nib_status nib_cpu_copy_rows(struct nib_stream *s, const struct nib_copy_rows_args *a);
enum nib_status nib_cpu_sample(struct nib_stream *s, const struct nib_sample_args *a);

#endif
