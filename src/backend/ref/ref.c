/* The reference backend's table, its memory and its weights (which stay where the checkpoint holds them). */
#include "backend/ref/ref.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/machine.h"
#include "base/status.h"

enum { ALIGN = 256, TEAM_WORK = 200000 };

struct nib_backend {
    struct nib_stream stream;
    void             *memory; /* all scratch */
};

int nib_ref_threads(const struct nib_stream *s, int64_t work)
{
    return work < TEAM_WORK ? 1 : s->n_threads;
}

struct nib_ref_thread *nib_ref_thread(const struct nib_stream *s)
{
    return &s->thread[omp_get_thread_num()];
}

/* ---- Scratch ---- */

/* Hands out pieces of one block; with base NULL it only counts. */
struct carve {
    char  *base;
    size_t used;
};

static void *carve(struct carve *c, int64_t count, size_t element)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += ((size_t)count * element + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t widest_row(const struct nib_dims *d)
{
    int64_t n = most((int64_t)d->n_hc * d->dim, (int64_t)d->n_heads * d->head_dim);
    n = most(n, (int64_t)d->n_groups * d->o_rank);
    n = most(n, (int64_t)d->n_index_heads * d->index_dim);
    n = most(n, most(2 * (int64_t)d->head_dim, 2 * (int64_t)d->index_dim));
    n = most(n, most(d->q_rank, most(d->n_inner, d->n_inner_shared)));
    return most(n, (int64_t)(2 + d->n_hc) * d->n_hc);
}

/* Lay out the stream's scratch behind base (or count it). */
static size_t lay_out(struct nib_stream *s, const struct nib_dims *d, int32_t n_threads, char *base)
{
    struct carve c = {base, 0};
    int64_t      n_rows = d->n_rows_max, n_chosen = n_rows * most(d->top_k, 1);
    s->dims = *d;
    s->n_threads = n_threads;
    s->n_wide = widest_row(d);
    s->n_attend = (int64_t)d->n_window + most(d->n_ctx_max, d->index_top_k);
    s->thread = carve(&c, n_threads, sizeof *s->thread);
    for (int i = 0; i < 2; i++)
        s->x[i] = carve(&c, n_rows * s->n_wide, sizeof(float));
    s->hidden = carve(&c, n_chosen * most(d->n_inner, d->n_inner_shared), sizeof(float));
    s->sum = carve(&c, n_rows * d->dim, sizeof(double));
    s->route = carve(&c, n_rows * d->n_experts, sizeof(float));
    s->weight = carve(&c, n_chosen, sizeof(float));
    s->chosen = carve(&c, n_chosen, sizeof(int32_t));
    s->pair = carve(&c, n_chosen, sizeof(int32_t));
    for (int32_t i = 0; i < n_threads; i++) {
        struct nib_ref_thread th;
        th.weight = carve(&c, s->n_wide, sizeof(double));
        th.sum = carve(&c, s->n_wide, sizeof(double));
        th.score = carve(&c, NIB_REF_HEADS * s->n_attend, sizeof(double));
        th.logit = carve(&c, 2 * (int64_t)d->vocab, sizeof(double));
        for (int k = 0; k < 3; k++)
            th.row[k] = carve(&c, s->n_wide, sizeof(float));
        th.angle = carve(&c, d->n_rot, sizeof(float));
        th.index_score = carve(&c, d->n_ctx_max, sizeof(float));
        th.codes = carve(&c, s->n_wide, 1);
        th.scales = carve(&c, s->n_wide, 1);
        if (base)
            s->thread[i] = th;
    }
    return c.used;
}

/* Limits far above any V4 model, so that no product of two of them leaves 64 bits. */
static enum nib_status check_dims(const struct nib_dims *d, struct nib_error *err)
{
    const struct {
        const char *name;
        int32_t     value, least, most;
    } limit[] = {
        {"n_rows_max", d->n_rows_max, 1, 1 << 20},
        {"n_seqs_max", d->n_seqs_max, 1, 1 << 20},
        {"n_ctx_max", d->n_ctx_max, 1, 1 << 24},
        {"dim", d->dim, 1, 1 << 20},
        {"n_hc", d->n_hc, 1, 64},
        {"n_heads", d->n_heads, 1, 1 << 12},
        {"head_dim", d->head_dim, 1, 1 << 16},
        {"n_rot", d->n_rot, 0, d->head_dim},
        {"q_rank", d->q_rank, 1, 1 << 20},
        {"n_groups", d->n_groups, 1, d->n_heads},
        {"o_rank", d->o_rank, 1, 1 << 20},
        {"n_window", d->n_window, 1, 1 << 20},
        {"n_index_heads", d->n_index_heads, 0, 1 << 12},
        {"index_dim", d->index_dim, 0, 1 << 16},
        {"index_top_k", d->index_top_k, 0, 1 << 20},
        {"n_experts", d->n_experts, 0, 1 << 16},
        {"top_k", d->top_k, 0, d->n_experts},
        {"n_inner", d->n_inner, 0, 1 << 20},
        {"n_inner_shared", d->n_inner_shared, 0, 1 << 20},
        {"vocab", d->vocab, 1, 1 << 24},
    };
    for (size_t i = 0; i < sizeof limit / sizeof *limit; i++) {
        if (limit[i].value < limit[i].least || limit[i].value > limit[i].most)
            return nib_error_set(err, NIB_E_ARGUMENT, "ref: %s is %d, wanted %d to %d", limit[i].name, limit[i].value,
                                 limit[i].least, limit[i].most);
    }
    if (d->n_rot % 2 != 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "ref: n_rot is %d, wanted an even number", d->n_rot);
    return NIB_OK;
}

static int32_t thread_count(const struct nib_backend_config *c)
{
    return c->n_threads > 0 ? c->n_threads : omp_get_num_procs();
}

static size_t ref_scratch_bytes(const struct nib_backend_config *c)
{
    struct nib_stream s;
    return check_dims(&c->dims, NULL) == NIB_OK ? lay_out(&s, &c->dims, thread_count(c), NULL) : 0;
}

/* ---- Device ---- */

static void ref_close(struct nib_backend *b)
{
    if (b)
        free(b->memory);
    free(b);
}

static enum nib_status ref_open(const struct nib_backend_config *c, struct nib_backend **out, struct nib_error *err)
{
    *out = NULL;
    NIB_TRY(check_dims(&c->dims, err));
    if (c->n_threads < 0 || c->n_threads > 1024)
        return nib_error_set(err, NIB_E_ARGUMENT, "ref: n_threads is %d, wanted 0 to 1024", c->n_threads);
    size_t              bytes = ref_scratch_bytes(c);
    struct nib_backend *b = calloc(1, sizeof *b);
    if (b)
        b->memory = aligned_alloc(ALIGN, bytes);
    if (!b || !b->memory) {
        ref_close(b);
        return nib_error_set(err, NIB_E_MEMORY, "ref: no memory for %zu bytes of scratch", bytes);
    }
    lay_out(&b->stream, &c->dims, thread_count(c), b->memory);
    *out = b;
    return NIB_OK;
}

static struct nib_stream *ref_stream(struct nib_backend *b)
{
    return &b->stream;
}

static void *ref_alloc(struct nib_backend *b, size_t bytes)
{
    (void)b;
    if (bytes > SIZE_MAX - ALIGN)
        return NULL;
    size_t rounded = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    void  *p = aligned_alloc(ALIGN, rounded);
    if (p)
        memset(p, 0, rounded);
    return p;
}

static void ref_release(struct nib_backend *b, void *p)
{
    (void)b;
    free(p);
}

static enum nib_status ref_copy(struct nib_stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    if (bytes)
        memcpy(dst, src, bytes);
    return NIB_OK;
}

static enum nib_status ref_synchronise(struct nib_stream *s)
{
    (void)s; /* every op is done when it returns */
    return NIB_OK;
}

/* ---- Weights ---- */

static size_t ref_weight_bytes(const struct nib_weight_desc *d)
{
    size_t n_out = (size_t)d->n_out, n_in = (size_t)d->n_in, one = 0;
    switch (d->type) {
    case NIB_WEIGHT_F32: one = 4 * n_out * n_in; break;
    case NIB_WEIGHT_BF16: one = 2 * n_out * n_in; break;
    case NIB_WEIGHT_FP8: one = n_out * n_in + (n_out + 127) / 128 * ((n_in + 127) / 128); break;
    case NIB_WEIGHT_MXFP4: one = n_out * (n_in / 2 + n_in / 32); break;
    case NIB_WEIGHT_NVFP4: one = n_out * (n_in / 2 + n_in / 16) + sizeof(float); break;
    }
    return one * (size_t)d->n_stack;
}

static enum nib_status check_weight(const struct nib_weight_desc *d, struct nib_error *err)
{
    int32_t unit = d->type == NIB_WEIGHT_NVFP4 ? 16 : d->type == NIB_WEIGHT_MXFP4 ? 32 : 1;
    bool    plain = d->type == NIB_WEIGHT_F32 || d->type == NIB_WEIGHT_BF16;
    if (d->n_stack < 1 || d->n_out < 1 || d->n_in < 1)
        return nib_error_set(err, NIB_E_ARGUMENT, "ref: weight of %d matrices [%d, %d], wanted at least 1 of each",
                             d->n_stack, d->n_out, d->n_in);
    if (d->n_in % unit != 0)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "ref: weight has %d columns, wanted a multiple of %d", d->n_in,
                             unit);
    for (int32_t i = 0; i < d->n_stack; i++) {
        if (!d->part[i].data || (!plain && !d->part[i].scales))
            return nib_error_set(err, NIB_E_ARGUMENT, "ref: matrix %d of a weight has no data or no scales", i);
    }
    return NIB_OK;
}

/* Keeps pointers into the source, which must outlive the weight. */
static enum nib_status ref_weight_pack(struct nib_backend *b, const struct nib_weight_desc *d, struct nib_weight **out,
                                       struct nib_error *err)
{
    (void)b;
    *out = NULL;
    NIB_TRY(check_weight(d, err));
    struct nib_ref_weight *w = malloc(sizeof *w + (size_t)d->n_stack * sizeof w->part[0]);
    if (!w)
        return nib_error_set(err, NIB_E_MEMORY, "ref: no memory for a weight of %d matrices", d->n_stack);
    w->head = (struct nib_weight){d->type, d->act, d->n_stack, d->n_out, d->n_in};
    memcpy(w->part, d->part, (size_t)d->n_stack * sizeof w->part[0]);
    *out = &w->head;
    return NIB_OK;
}

static void ref_weight_free(struct nib_backend *b, struct nib_weight *w)
{
    (void)b;
    free(w);
}

/* ---- Table ---- */

static const struct nib_ops ops = {
    .embed = nib_ref_embed,
    .norm = nib_ref_norm,
    .linear = nib_ref_linear,
    .q_rope = nib_ref_q_rope,
    .kv_insert = nib_ref_kv_insert,
    .compress = nib_ref_compress,
    .index_select = nib_ref_index_select,
    .attend = nib_ref_attend,
    .o_a = nib_ref_o_a,
    .moe = nib_ref_moe,
    .hc_pre = nib_ref_hc_pre,
    .hc_post = nib_ref_hc_post,
    .hc_head = nib_ref_hc_head,
    .head = nib_ref_head,
    .mtp_join = nib_ref_mtp_join,
    .copy_rows = nib_ref_copy_rows,
    .sample = nib_ref_sample,
};

const struct nib_backend_api nib_backend_ref = {
    .name = "ref",
    .ops = &ops,
    .device = nib_machine_device,
    .open = ref_open,
    .close = ref_close,
    .stream = ref_stream,
    .scratch_bytes = ref_scratch_bytes,
    .alloc = ref_alloc,
    .release = ref_release,
    .upload = ref_copy,
    .download = ref_copy,
    .copy = ref_copy,
    .synchronise = ref_synchronise,
    .weight_bytes = ref_weight_bytes,
    .weight_pack = ref_weight_pack,
    .weight_free = ref_weight_free,
};
