/* The cpu backend's device: opening, scratch, memory, and the op table. Ops run to their end before they return, so
 * the stream is always synchronised. */
#include "backend/cpu/cpu.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/machine.h"
#include "base/status.h"

struct nib_backend {
    struct nib_stream stream;
    void             *scratch;
};

static const struct nib_ops ops = {
    .embed = nib_cpu_embed,
    .norm = nib_cpu_norm,
    .linear = nib_cpu_linear,
    .q_rope = nib_cpu_q_rope,
    .kv_insert = nib_cpu_kv_insert,
    .compress = nib_cpu_compress,
    .index_select = nib_cpu_index_select,
    .attend = nib_cpu_attend,
    .o_a = nib_cpu_o_a,
    .moe = nib_cpu_moe,
    .hc_pre = nib_cpu_hc_pre,
    .hc_post = nib_cpu_hc_post,
    .hc_head = nib_cpu_hc_head,
    .head = nib_cpu_head,
    .mtp_join = nib_cpu_mtp_join,
    .copy_rows = nib_cpu_copy_rows,
    .sample = nib_cpu_sample,
};

/* Much memory on large pages where the system has them: a step touches all of its weights, and context rows anywhere. */
void *nib_cpu_memory(size_t bytes)
{
    const size_t large = (size_t)2 << 20;
    void        *memory = NULL;
    if (posix_memalign(&memory, bytes >= 2 * large ? large : 256, bytes))
        return NULL;
    if (bytes >= 2 * large)
        (void)madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

/* Hands out 64-byte aligned pieces of one allocation; with base NULL it only counts. */
struct arena {
    uint8_t *base;
    size_t   used;
};

static void *take(struct arena *a, int64_t count, size_t size)
{
    void *p = a->base ? a->base + a->used : NULL;
    a->used += ((size_t)count * size + 63) / 64 * 64;
    return p;
}

static int32_t max_of(int32_t a, int32_t b) { return a > b ? a : b; }

static void lay_out_partial(struct nib_cpu_partial *p, const struct nib_dims *d, struct arena *a)
{
    p->o = take(a, (int64_t)d->n_heads * d->head_dim, sizeof(float));
    p->top = take(a, d->n_heads, sizeof(float));
    p->sum = take(a, d->n_heads, sizeof(float));
}

static void lay_out_thread(struct nib_cpu_thread *t, const struct nib_dims *d, int32_t cols, struct arena *a)
{
    int32_t heads = max_of(d->n_heads, d->n_index_heads);
    t->tile_work = take(a, NIB_CPU_TILE_WORK, sizeof(float));
    for (int i = 0; i < 2; i++)
        t->tile_y[i] = take(a, NIB_CPU_TILE_ROWS * NIB_CPU_TILE_OUTS, sizeof(float));
    t->block_sum = take(a, NIB_CPU_GROUP_ROWS * NIB_CPU_RUN_OUTS, sizeof(float));
    for (int i = 0; i < 4; i++)
        t->row[i] = take(a, cols, sizeof(float));
    t->angle = take(a, 2 * d->n_rot, sizeof(float));
    t->keys = take(a, d->n_experts, sizeof(float));
    t->codes = take(a, cols, 1);
    t->scales = take(a, cols / 8 + 8, 1); /* int8: 4 bytes for 32 channels */
    t->kv = take(a, (int64_t)NIB_CPU_KV_ROWS * nib_cpu_kv_stride(max_of(d->head_dim, d->index_dim)), sizeof(float));
    t->score = take(a, (int64_t)NIB_CPU_KV_ROWS * heads, sizeof(float));
    t->heads_q = take(a, (int64_t)d->n_heads * d->head_dim, sizeof(float));
    for (int i = 0; i < 2; i++)
        lay_out_partial(&t->partial[i], d, a);
    t->logits = take(a, d->vocab, sizeof(float));
    t->weight = take(a, d->vocab, sizeof(float));
    for (int i = 0; i < 2; i++)
        t->sort[i] = take(a, d->vocab, sizeof(uint64_t));
}

/* Set every pointer of the stream's scratch (to NULL where the arena only counts). */
static void lay_out(struct nib_stream *s, struct nib_cpu_thread *threads, struct arena *a)
{
    const struct nib_dims  *d = &s->dims;
    struct nib_cpu_scratch *x = &s->scratch;
    int64_t                 rows = NIB_CPU_GROUP_ROWS, pairs = rows * d->top_k;

    x->plain = take(a, rows * s->plain_stride, sizeof(float));
    x->values = take(a, rows * nib_cpu_stride(s->quant_cols), sizeof(float));
    x->code_memory = take(a, rows, nib_cpu_codes_bytes(s->quant_cols));
    x->codes = take(a, rows, sizeof *x->codes);
    for (int i = 0; i < 2; i++) {
        x->bf16[i] = take(a, rows * (i ? nib_cpu_stride(s->quant_cols) : s->plain_stride), sizeof(uint16_t));
        x->bf16_row[i] = take(a, rows, sizeof *x->bf16_row[i]);
    }
    x->out = take(a, rows * s->quant_cols, sizeof(float));
    x->router = take(a, rows * d->n_experts, sizeof(float));
    x->chosen = take(a, pairs, sizeof(int32_t));
    x->weight = take(a, pairs, sizeof(float));
    x->pair_row = take(a, pairs + rows, sizeof(int32_t));
    x->pair_weight = take(a, pairs + rows, sizeof(float));
    x->expert_first = take(a, d->n_experts + 2, sizeof(int32_t));
    x->expert_fill = take(a, d->n_experts + 1, sizeof(int32_t));
    x->inner = take(a, pairs * nib_cpu_stride(d->n_inner) + rows * nib_cpu_stride(d->n_inner_shared), sizeof(float));
    x->inner_code_memory = take(a, 1, (size_t)pairs * nib_cpu_codes_bytes(d->n_inner) +
                                          (size_t)rows * nib_cpu_codes_bytes(d->n_inner_shared));
    x->inner_codes = take(a, pairs + rows, sizeof *x->inner_codes);
    x->inner_bf16 = take(a, pairs + rows, sizeof *x->inner_bf16);
    x->index_score = take(a, (int64_t)NIB_CPU_INDEX_ROWS * s->n_entries_max, sizeof(float));
    int64_t queries = NIB_CPU_INDEX_ROWS * d->n_index_heads, blocks = (d->index_dim + 31) / 32;
    x->codes_fp4 = take(a, queries * d->index_dim, 1);
    x->scales_fp4 = take(a, queries * blocks, sizeof(float));
    x->mix = take(a, rows * (2 + d->n_hc) * d->n_hc, sizeof(float));

    const int32_t n_partials = (s->n_threads - 1) * NIB_CPU_SEGMENTS;
    struct nib_cpu_partial unused, *partials = take(a, n_partials, sizeof *partials);
    x->partial = partials;
    for (int32_t i = 0; i < n_partials; i++)
        lay_out_partial(partials ? &partials[i] : &unused, d, a);

    struct nib_cpu_thread *list = take(a, s->n_threads, sizeof *list);
    x->thread = list;
    for (int32_t i = 0; i < s->n_threads; i++)
        lay_out_thread(list ? &list[i] : threads, d, s->cols, a);
}

static void stream_init(struct nib_stream *s, const struct nib_backend_config *c)
{
    const struct nib_dims *d = &c->dims;
    memset(s, 0, sizeof *s);
    s->dims = *d;
    s->n_threads = c->n_threads > 0 ? c->n_threads : omp_get_num_procs();
    s->quant_cols = max_of(max_of(d->dim, d->q_rank), max_of(d->n_groups * d->o_rank, 2 * d->head_dim));
    s->quant_cols = max_of(s->quant_cols, max_of(d->n_inner, d->n_inner_shared));
    s->cols = max_of(max_of(d->dim * d->n_hc, d->n_heads * d->head_dim), d->n_index_heads * d->index_dim);
    s->cols = max_of(s->cols, s->quant_cols);
    s->plain_stride = nib_cpu_stride(s->cols) + NIB_CPU_BLOCK * d->n_groups;
    s->n_entries_max = d->n_ctx_max / 4 + 1; /* the only ratio that is scored */
}

static size_t scratch_bytes(const struct nib_backend_config *c)
{
    struct nib_stream     s;
    struct nib_cpu_thread t;
    struct arena          a = {0};
    stream_init(&s, c);
    lay_out(&s, &t, &a);
    return a.used;
}

static void backend_close(struct nib_backend *b)
{
    if (!b)
        return;
    free(b->scratch);
    free(b);
}

/* Far above any V4 model; keeps every product of scratch sizes well inside 64 bits and row widths inside 31. */
static enum nib_status dims_check(const struct nib_dims *d, struct nib_error *err)
{
    const struct {
        const char *name;
        int32_t     value, least, most;
    } range[] = {
        {"n_rows_max", d->n_rows_max, 1, 1 << 20},
        {"n_seqs_max", d->n_seqs_max, 1, 1 << 20},
        {"n_ctx_max", d->n_ctx_max, 1, 1 << 24},
        {"dim", d->dim, 1, 1 << 20},
        {"n_hc", d->n_hc, 1, 64},
        {"n_heads", d->n_heads, 1, 1 << 10},
        {"head_dim", d->head_dim, 1, 1 << 14},
        {"n_rot", d->n_rot, 0, d->head_dim},
        {"q_rank", d->q_rank, 1, 1 << 20},
        {"n_groups", d->n_groups, 1, d->n_heads},
        {"o_rank", d->o_rank, 1, 1 << 18},
        {"n_window", d->n_window, 1, 1 << 20},
        {"n_index_heads", d->n_index_heads, 0, 1 << 10},
        {"index_dim", d->index_dim, 0, 1 << 14},
        {"index_top_k", d->index_top_k, 0, 1 << 24},
        {"n_experts", d->n_experts, 0, 1 << 16},
        {"top_k", d->top_k, 0, d->n_experts},
        {"n_inner", d->n_inner, 0, 1 << 20},
        {"n_inner_shared", d->n_inner_shared, 0, 1 << 20},
        {"vocab", d->vocab, 1, 1 << 24},
    };
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (range[i].value < range[i].least || range[i].value > range[i].most)
            return nib_error_set(err, NIB_E_UNSUPPORTED, "cpu backend: %s is %d; wanted %d to %d", range[i].name,
                                 range[i].value, range[i].least, range[i].most);
    if (d->n_rot % 2)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "cpu backend: n_rot is %d; wanted an even number", d->n_rot);
    return NIB_OK;
}

/* Integer rows are faster on every level that was measured, for one row as for many; aarch64 was not, but a dot product there
 * multiplies four times as many bytes as a multiply-add fp32 numbers, where NEON without them has twice as many. */
bool nib_cpu_prefers_int8(unsigned flags) { return !(flags & NIB_CPU_NEON) || flags & NIB_CPU_DOTPROD; }

static bool prefers_int8(const struct nib_backend_config *c)
{
    unsigned flags = nib_cpu_flags_detect() & c->cpu_mask, level = ~0u;
    if (c->cpu_level && nib_cpu_level_mask(c->cpu_level, flags, &level, NULL) != NIB_OK)
        return false;
    return nib_cpu_prefers_int8(flags & level);
}

static enum nib_status backend_open(const struct nib_backend_config *c, struct nib_backend **out, struct nib_error *err)
{
    *out = NULL;
    if (c->n_threads < 0 || c->n_threads > 4096)
        return nib_error_set(err, NIB_E_ARGUMENT, "cpu backend: %d threads; wanted 0 (all cores) to 4096",
                             c->n_threads);
    NIB_TRY(dims_check(&c->dims, err));
    unsigned flags = nib_cpu_flags_detect() & c->cpu_mask, level = ~0u;
    if (c->cpu_level)
        NIB_TRY(nib_cpu_level_mask(c->cpu_level, flags, &level, err));
    struct nib_backend *b = calloc(1, sizeof *b);
    if (!b)
        return nib_error_set(err, NIB_E_MEMORY, "cpu backend: no memory for %zu bytes", sizeof *b);
    stream_init(&b->stream, c);
    nib_cpu_kernels_init(&b->stream.k, flags & level);

    size_t bytes = scratch_bytes(c);
    b->scratch = nib_cpu_memory(bytes);
    if (!b->scratch) {
        backend_close(b);
        return nib_error_set(err, NIB_E_MEMORY, "cpu backend: no memory for %zu bytes of scratch", bytes);
    }
    struct arena a = {.base = b->scratch};
    lay_out(&b->stream, NULL, &a);
    *out = b;
    return NIB_OK;
}

static struct nib_stream *backend_stream(struct nib_backend *b) { return &b->stream; }

static void *backend_alloc(struct nib_backend *b, size_t bytes)
{
    (void)b;
    void *p = nib_cpu_memory(bytes ? bytes : 1);
    return p ? memset(p, 0, bytes) : NULL;
}

static void backend_release(struct nib_backend *b, void *p)
{
    (void)b;
    free(p);
}

static enum nib_status copy(struct nib_stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    if (bytes)
        memcpy(dst, src, bytes);
    return NIB_OK;
}

static enum nib_status synchronise(struct nib_stream *s)
{
    (void)s;
    return NIB_OK;
}

const struct nib_backend_api nib_backend_cpu = {
    .name = "cpu",
    .ops = &ops,
    .device = nib_machine_device,
    .open = backend_open,
    .close = backend_close,
    .stream = backend_stream,
    .scratch_bytes = scratch_bytes,
    .alloc = backend_alloc,
    .release = backend_release,
    .upload = copy,
    .download = copy,
    .copy = copy,
    .synchronise = synchronise,
    .prefers_int8 = prefers_int8,
    .weight_bytes = nib_cpu_weight_bytes,
    .weight_pack = nib_cpu_weight_pack,
    .weight_free = nib_cpu_weight_free,
};
