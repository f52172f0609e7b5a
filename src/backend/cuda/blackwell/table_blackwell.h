/* What a family of Blackwell cards brings to the op table: struct nib_blackwell_family, one for sm100a/ and one for
 * sm120a/, found by the card (family_blackwell.c). ops_blackwell.c turns ops into launches through it, and
 * selftest_blackwell.c holds it to the processor. C11.
 *
 * To add what a family runs better than any/:
 *  - A whole op (attend, index_select, q_rope, kv_insert): fill the slot of its name in the family. The slot has the
 *    op's signature and is asked first; it returns what any/ gives (nib_cuda_attend() and so on) for arguments that it
 *    does not take. Scratch goes into lay_out, with pointers of its own in struct nib_cuda_blackwell.
 *  - Another format of weights: let `packs` take it, `pack` lay it out, take_rows bring rows to where `multiply` reads
 *    them. Nothing above changes.
 *  - Its kernels have never run on hardware: add them to the family's `selftest`, which runs with the shared one, or
 *    before the first weight of an engine whose rows need no other (nib_cuda_blackwell_ops_ready). */
#ifndef NIB_TABLE_BLACKWELL_H
#define NIB_TABLE_BLACKWELL_H

#include "backend/cuda/blackwell/blackwell.h"
#include "backend/cuda/cuda.h"

/* Rows as a family's products take them. */
struct nib_blackwell_x {
    enum nib_act_format format; /* NVFP4, or FP8 */
    int32_t        rows;
    const uint8_t *codes, *scales; /* scales: where the products of this family read them */
    const float   *row_scale;
    int64_t        codes_stride, scales_stride; /* bytes */
    const int32_t *pair; /* row t is row pair[t] / top_k of these; NULL: row t */
    int32_t        top_k;
};

/* The experts' groups of rows (struct nib_blackwell_groups_args). */
struct nib_blackwell_experts {
    const struct nib_blackwell_group *groups;
    const int32_t                    *n_groups;
    int32_t                           n_experts, tile_rows;
};

/* A product that the self-test runs: a weight, and the number of rows that makes the family choose this kernel. */
struct nib_blackwell_product {
    int32_t              n_rows; /* at most 130 */
    enum nib_weight_type type;
    enum nib_act_format  act;
    const char          *kernel; /* behind nib_NAME_ */
};

struct nib_blackwell_family {
    const char          *name;  /* its kernels are nib_NAME_... */
    int32_t              major; /* compute capability */
    enum nib_cuda_layout layout;

    /* Host handles of kernels with the arguments of blackwell.h. */
    const void *norm, *groups, *swiglu, *swiglu_act, *combine;

    /* Whether weights like these are packed in `layout`; bytes of one matrix's codes and scales. */
    bool (*packs)(const struct nib_weight_desc *d, size_t *codes, size_t *scales);
    /* Matrix i from a copy of the stored bytes on the device. */
    cudaError_t (*pack)(cudaStream_t stream, const struct nib_cuda_matrix *m, int32_t i, const uint8_t *codes,
                        const uint8_t *scales);
    /* The family's own scratch, behind *used (nib_blackwell_take). m: n_rows is set. */
    void (*lay_out)(struct nib_cuda_blackwell *x, const struct nib_cuda_moe_scratch *m, const struct nib_dims *d,
                    uint8_t *base, size_t *used);
    /* What the driver must have, and scratch that is read before it is written; NULL: nothing. */
    enum nib_status (*open)(struct nib_stream *s, struct nib_error *err);

    /* All products of a linear begin with take_rows, which may bring scales to where multiply reads them. At most this
     * many rows at once. */
    int64_t (*rows_most)(const struct nib_stream *s, int32_t cols);
    enum nib_status (*take_rows)(struct nib_stream *s, const struct nib_act *x, struct nib_blackwell_x *out);
    /* The same for the rows of s->moe.pair, behind `groups`. */
    enum nib_status (*take_pairs)(struct nib_stream *s, const struct nib_act *x, int32_t top_k,
                                  struct nib_blackwell_x *out);
    /* The same for rows that stand in the order of s->moe.pair, scales row by row. */
    enum nib_status (*take_inner)(struct nib_stream *s, const struct nib_act *x, struct nib_blackwell_x *out);
    /* tile_rows and scale_tile of g, and what to clear, for the kernels that will take these groups. */
    void (*tiles_of)(const struct nib_stream *s, const struct nib_moe_args *a, int32_t n_pairs,
                     struct nib_blackwell_groups_args *g);
    /* y = x w^T times the row's and the matrix's scales; e: each group with its expert's matrix, or NULL. */
    enum nib_status (*multiply)(struct nib_stream *s, const struct nib_blackwell_x *x, const struct nib_cuda_matrix *w,
                                const struct nib_mat *y, const struct nib_blackwell_experts *e);

    /* y = silu(min(g, limit)) * clamp(u, +-limit) of g = x w1^T and u = x w3^T, without clamps if limit is 0, for weights
     * of one shape and type; NULL: two of the above and a kernel for SwiGLU. */
    enum nib_status (*multiply_swiglu)(struct nib_stream *s, const struct nib_blackwell_x *x,
                                       const struct nib_cuda_matrix *w1, const struct nib_cuda_matrix *w3, float limit,
                                       const struct nib_mat *y, const struct nib_blackwell_experts *e);

    /* nib_cuda_blackwell_plain() for weights of whole ops (`use`) that `packs` took; NULL: none. */
    enum nib_status (*plain)(struct nib_stream *s, const struct nib_mat *x, int32_t n_groups,
                             const struct nib_cuda_matrix *w, const struct nib_mat *y, bool *taken);

    /* A mixture in two kernels, where tiles_of has asked for words to be cleared; NULL: in products, SwiGLU and a sum.
     * in: SwiGLU of x w1^T and x w3^T as rows; out: c's sum of the experts of x w2^T, for n_rows rows. */
    enum nib_status (*experts_in)(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_blackwell_x *x,
                                  const struct nib_blackwell_experts *e, struct nib_blackwell_x *inner);
    enum nib_status (*experts_out)(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_blackwell_x *x,
                                   const struct nib_blackwell_experts *e, const struct nib_blackwell_combine_args *c,
                                   int32_t n_rows);

    const struct nib_blackwell_product *products; /* ends with n_rows 0 */
    /* Where the scale of a row's block of 16 values stands among rows laid out for the tensor core; NULL: row by
     * row. */
    int64_t (*scale_offset)(int64_t row, int64_t block, int64_t n_in);
    /* Of what only this family has; NULL: nothing. As nib_cuda_blackwell_selftest(). */
    enum nib_status (*selftest)(struct nib_stream *s, char *why, size_t why_bytes);

    /* Whole ops; NULL: those of any/. ops_needed: those of any/ do not fit the card, so engines of all rows have the
     * family's and none opens if they fail their self-test. */
    bool ops_needed;
    enum nib_status (*q_rope)(struct nib_stream *s, const struct nib_q_rope_args *a);
    enum nib_status (*kv_insert)(struct nib_stream *s, const struct nib_kv_insert_args *a);
    enum nib_status (*index_select)(struct nib_stream *s, const struct nib_index_select_args *a);
    enum nib_status (*attend)(struct nib_stream *s, const struct nib_attend_args *a);
};

/* Those whose kernels a build with such targets has. */
extern const struct nib_blackwell_family nib_blackwell_sm100a, nib_blackwell_sm120a;

/* Of device 0, if this build has its kernels; else NULL. */
const struct nib_blackwell_family *nib_blackwell_find(void);

/* Bytes from `base` on, aligned to 256, advancing *used; NULL while base is. */
void *nib_blackwell_take(uint8_t *base, size_t *used, int64_t bytes);

/* kernel(args) behind the work that waits, as nib_launch() (device/launch.cuh): it may begin while what is before it in
 * the stream still runs. cluster: blocks along x together. args: the kernel's one argument. */
enum nib_status nib_blackwell_launch(struct nib_stream *s, const void *kernel, dim3 grid, unsigned threads,
                                     unsigned cluster, size_t shared_bytes, void *args, const char *what);

/* A mixture's rows from the experts of s->moe.chosen and their weights; all routed weights are in the family's
 * layout. */
enum nib_status nib_blackwell_experts_run(struct nib_stream *s, const struct nib_moe_args *a, const struct nib_act *x,
                                          struct nib_mat y);
/* Runs every kernel of the family that takes rows of this format on small problems, and holds the results to the
 * processor's. why: what disagreed, or "". Memory of its own; needs s->handle, n_sms and what open() found. */
enum nib_status nib_blackwell_selftest(struct nib_stream *s, enum nib_act_format format, char *why, size_t why_bytes);

#endif
