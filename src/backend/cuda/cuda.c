/* The CUDA backend's device: opening, scratch, memory, weights and the op table. Read cuda.h first.
 *
 * The runtime is linked statically and finds the driver when it is first asked; without one, open() refuses in a sentence
 * and nothing else is touched. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/record_cuda.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, SAMPLE_ROWS = 32, STAGE_BYTES = 16 << 20, N_STAGES = 2 };

struct nib_backend {
    struct nib_stream stream;
    void             *scratch;
    /* Loading: pinned pieces on their way, and a whole matrix as stored. */
    struct {
        void       *pinned[N_STAGES];
        cudaEvent_t sent[N_STAGES];
        int         next;
        uint8_t    *stored;
        size_t      stored_bytes;
    } load;
};

enum nib_status nib_cuda_check(struct nib_stream *s, cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return NIB_OK;
    (void)cudaGetLastError();
    /* These two leave the device usable; everything else is sticky or our own mistake. */
    if (e == cudaErrorMemoryAllocation)
        return nib_error_set(&s->error, NIB_E_MEMORY, "cuda: %s: %s", what, cudaGetErrorString(e));
    s->broken = true;
    return nib_error_set(&s->error, NIB_E_DEVICE, "cuda: %s: %s", what, cudaGetErrorString(e));
}

/* ---- Scratch ---- */

struct carve {
    uint8_t *base;
    size_t   used;
};

static void *take(struct carve *c, int64_t count, size_t element)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += ((size_t)count * element + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void lay_out_moe(struct nib_cuda_moe_scratch *m, const struct nib_dims *d, struct carve *c)
{
    int64_t rows = least(d->n_rows_max, 8192), pairs = rows * most(d->top_k, 1);
    int64_t inner = pairs * d->n_inner + rows * d->n_inner_shared;
    m->n_rows = (int32_t)rows;
    m->route = take(c, rows * d->n_experts, sizeof(float));
    m->chosen = take(c, pairs, sizeof(int32_t));
    m->weight = take(c, pairs, sizeof(float));
    m->first = take(c, (int64_t)d->n_experts + 1, sizeof(int32_t));
    m->pair = take(c, pairs, sizeof(int32_t));
    m->place = take(c, pairs, sizeof(int32_t));
    m->segment = take(c, 2 * (pairs + d->n_experts), sizeof(int32_t));
    m->n_segments = take(c, 1, sizeof(int32_t));
    m->hidden = take(c, inner, sizeof(float));
    m->parts = take(c, 3 * (inner + 8), sizeof(uint16_t));
    m->exponent = take(c, pairs + rows, sizeof(int32_t));
    m->y = take(c, (pairs + rows) * d->dim, sizeof(float));
}

/* Every pointer of the stream's scratch, or NULL where it is only counted. */
static void lay_out(struct nib_stream *s, const struct nib_dims *d, struct carve *c)
{
    int64_t rows = d->n_rows_max;
    int64_t wide = most(most((int64_t)d->n_heads * d->head_dim, d->dim), (int64_t)d->n_groups * d->o_rank);
    s->dims = *d;
    /* Up to 8 bf16 numbers a channel (parts of both kinds of rows and fp32); rows in pieces where there are many. */
    s->n_parts_max = least(rows, 256) * (8 * wide + 64);
    s->parts = take(c, s->n_parts_max, sizeof(uint16_t));
    s->exponent = take(c, 8 * rows, sizeof(int32_t));
    s->out = take(c, rows * d->n_groups * d->o_rank, sizeof(float));
    s->mix = take(c, rows * (((int64_t)d->n_hc * d->dim + NIB_CUDA_MIX_SLICE - 1) / NIB_CUDA_MIX_SLICE) * ((2 + d->n_hc) * d->n_hc + 1), sizeof(float));
    s->arrived = take(c, rows, sizeof(int32_t));
    s->n_entries_max = d->n_ctx_max / 4 + 1;
    s->n_score_rows = (int32_t)most(1, least(rows, (64 << 20) / (4 * (int64_t)s->n_entries_max)));
    s->score = take(c, (int64_t)s->n_score_rows * s->n_entries_max, sizeof(float));
    s->n_sample_rows = (int32_t)least(rows, SAMPLE_ROWS);
    s->sample = take(c, (int64_t)s->n_sample_rows * 2 * d->vocab, sizeof(double));
    /* Partial sums of attention: any one row's spans, and more rows at once up to 256 MiB. */
    int64_t part = nib_cuda_attend_part_floats(d->n_heads);
    s->n_attend_max = most(160 * part, least(rows * 8 * part, 64 << 20));
    s->attend = take(c, s->n_attend_max, sizeof(float));
    lay_out_moe(&s->moe, d, c);
    size_t   bytes = nib_cuda_blackwell_lay_out(&s->blackwell, &s->moe, d, NULL);
    uint8_t *base = take(c, (int64_t)bytes, 1);
    (void)nib_cuda_blackwell_lay_out(&s->blackwell, &s->moe, d, base);
}

static enum nib_status check_dims(const struct nib_dims *d, struct nib_error *err)
{
    const struct {
        const char *name;
        int32_t     value, least, most;
    } limit[] = {
        {"n_rows_max", d->n_rows_max, 1, 1 << 20},
        {"n_seqs_max", d->n_seqs_max, 1, 1 << 20},
        {"n_ctx_max", d->n_ctx_max, 1, 1 << 24},
        {"dim", d->dim, 1, 1 << 15},
        {"n_hc", d->n_hc, 1, 5}, /* a warp holds the mixing matrix */
        {"n_heads", d->n_heads, 1, 1 << 12},
        {"head_dim", d->head_dim, 1, 1024},
        {"n_rot", d->n_rot, 0, d->head_dim < 512 ? d->head_dim : 512},
        {"q_rank", d->q_rank, 1, 1 << 15},
        {"n_groups", d->n_groups, 1, d->n_heads},
        {"o_rank", d->o_rank, 1, 1 << 14},
        {"n_window", d->n_window, 1, 1 << 20},
        {"n_index_heads", d->n_index_heads, 0, 128},
        {"index_dim", d->index_dim, 0, 256},
        {"index_top_k", d->index_top_k, 0, 1 << 20},
        {"n_experts", d->n_experts, 0, 4096},
        {"top_k", d->top_k, 0, d->n_experts},
        {"n_inner", d->n_inner, 0, 1 << 15},
        {"n_inner_shared", d->n_inner_shared, 0, 1 << 15},
        {"vocab", d->vocab, 1, 1 << 24},
    };
    for (size_t i = 0; i < sizeof limit / sizeof *limit; i++) {
        if (limit[i].value < limit[i].least || limit[i].value > limit[i].most)
            return nib_error_set(err, NIB_E_ARGUMENT, "cuda: %s is %d, wanted %d to %d", limit[i].name, limit[i].value,
                                 limit[i].least, limit[i].most);
    }
    return NIB_OK;
}

static size_t scratch_bytes(const struct nib_backend_config *c)
{
    struct nib_stream s;
    struct carve      count = {NULL, 0};
    memset(&s, 0, sizeof s);
    lay_out(&s, &c->dims, &count);
    return count.used;
}

/* ---- Device ---- */

static void backend_close(struct nib_backend *b)
{
    if (!b)
        return;
    struct nib_stream *s = &b->stream;
    nib_cuda_records_free(&s->records);
    for (int i = 0; i < N_STAGES; i++) {
        if (b->load.sent[i])
            (void)cudaEventDestroy(b->load.sent[i]);
        if (b->load.pinned[i])
            (void)cudaFreeHost(b->load.pinned[i]);
    }
    (void)cudaFree(b->load.stored);
    (void)cudaFree(b->scratch);
    if (s->handle)
        (void)cudaStreamDestroy(s->handle);
    (void)cudaGetLastError();
    free(s->selftest_file);
    free(b);
}

static enum nib_status open_parts(struct nib_backend *b, struct nib_error *err)
{
    struct nib_stream *s = &b->stream;
    struct carve       c = {NULL, 0};
    lay_out(s, &s->dims, &c);
    cudaError_t e = cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaMalloc(&b->scratch, c.used);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return nib_error_set(err, NIB_E_MEMORY, "cuda: no memory on the device for %zu bytes of scratch", c.used);
    }
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return nib_error_set(err, NIB_E_DEVICE, "cuda: the device could not be opened: %s", cudaGetErrorString(e));
    }
    c = (struct carve){b->scratch, 0};
    lay_out(s, &s->dims, &c);
    e = cudaMemset(s->arrived, 0, (size_t)s->dims.n_rows_max * sizeof *s->arrived);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(NULL); /* the clearing ran on the default stream */
    if (e != cudaSuccess)
        return nib_error_set(err, NIB_E_DEVICE, "cuda: scratch could not be cleared: %s", cudaGetErrorString(e));
    return nib_cuda_blackwell_open(s, err);
}

static enum nib_status backend_open(const struct nib_backend_config *c, struct nib_backend **out, struct nib_error *err)
{
    struct cudaDeviceProp  prop;
    struct nib_device_info device;
    *out = NULL;
    NIB_TRY(check_dims(&c->dims, err));
    NIB_TRY(nib_cuda_device(0, &device, err));
    if (!device.usable)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "cuda: '%s' cannot be used: %s", device.name, device.why_not);
    cudaError_t e = cudaSetDevice(0);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&prop, 0);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return nib_error_set(err, NIB_E_DEVICE, "cuda: the device could not be opened: %s", cudaGetErrorString(e));
    }
    struct nib_backend *b = calloc(1, sizeof *b);
    if (!b)
        return nib_error_set(err, NIB_E_MEMORY, "cuda: no memory for %zu bytes", sizeof *b);
    b->stream.dims = c->dims;
    b->stream.n_sms = prop.multiProcessorCount;
    b->stream.arch = prop.major * 10 + prop.minor;
    b->stream.shared_most = (int32_t)prop.sharedMemPerBlockOptin;
    b->stream.cluster_most = prop.major == 12 ? 1 : 8; /* cards of 12.x gain nothing from clusters */
    b->stream.selftest_file = c->selftest_file ? strdup(c->selftest_file) : NULL; /* without it they run again */
    enum nib_status status = open_parts(b, err);
    if (status != NIB_OK) {
        backend_close(b);
        return status;
    }
    *out = b;
    return NIB_OK;
}

static struct nib_stream *backend_stream(struct nib_backend *b)
{
    return &b->stream;
}

/* ---- Memory ---- */

static void *backend_alloc(struct nib_backend *b, size_t bytes)
{
    void *p = NULL;
    if (b->stream.broken || cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess || cudaMemset(p, 0, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        (void)cudaFree(p);
        return NULL;
    }
    (void)cudaStreamSynchronize(NULL); /* the clearing ran on the default stream */
    return p;
}

static void backend_release(struct nib_backend *b, void *p)
{
    nib_cuda_flush_all(&b->stream);
    (void)cudaFree(p); /* waits for work that may still use it */
    (void)cudaGetLastError();
}

/* Enqueues what waits to be launched with other work. */
static enum nib_status launch_waiting(struct nib_stream *s)
{
    if (s->broken)
        return NIB_E_DEVICE;
    nib_cuda_flush_all(s);
    return nib_cuda_check(s, cudaGetLastError(), "launching what waited");
}

static enum nib_status finish(struct nib_stream *s, const char *what)
{
    return nib_cuda_check(s, cudaStreamSynchronize(s->handle), what);
}

static enum nib_status upload(struct nib_stream *s, void *dst, const void *src, size_t bytes)
{
    NIB_TRY(launch_waiting(s));
    if (bytes == 0)
        return NIB_OK;
    NIB_TRY(nib_cuda_check(s, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, s->handle), "upload"));
    /* Pageable memory is read before the call returns, pinned memory is not. */
    return NIB_OK;
}

static enum nib_status download(struct nib_stream *s, void *dst, const void *src, size_t bytes)
{
    NIB_TRY(launch_waiting(s));
    if (bytes > 0)
        NIB_TRY(nib_cuda_check(s, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, s->handle), "download"));
    return finish(s, "work before a download");
}

static void why(struct nib_stream *s, struct nib_error *out)
{
    *out = s->error;
    if (!s->broken)
        s->error.text[0] = '\0';
}

static enum nib_status copy(struct nib_stream *s, void *dst, const void *src, size_t bytes)
{
    NIB_TRY(launch_waiting(s));
    if (bytes == 0)
        return NIB_OK;
    return nib_cuda_check(s, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, s->handle), "copy");
}

static enum nib_status synchronise(struct nib_stream *s)
{
    NIB_TRY(launch_waiting(s));
    return finish(s, "work on the device");
}

/* ---- Weights ---- */

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Codes, scales, and for stacks a multiplier each; nothing is padded, so that no weight grows. */
static size_t packed_bytes(const struct nib_weight_desc *d, size_t codes, size_t scales)
{
    size_t n = (size_t)d->n_stack, bytes = n * (codes + scales);
    return n == 1 ? bytes : (bytes + 3) / 4 * 4 + n * sizeof(float);
}

static enum nib_cuda_layout layout_of(const struct nib_weight_desc *d, size_t *codes, size_t *scales)
{
    enum nib_cuda_layout layout;
    return nib_cuda_blackwell_packs(d, &layout, codes, scales) ? layout : nib_cuda_layout_of(d, codes, scales);
}

static size_t weight_bytes(const struct nib_weight_desc *d)
{
    size_t codes, scales;
    (void)layout_of(d, &codes, &scales);
    return packed_bytes(d, codes, scales);
}

static enum nib_status check_weight(const struct nib_weight_desc *d, struct nib_error *err)
{
    int32_t unit = d->type == NIB_WEIGHT_NVFP4 ? 16 : d->type == NIB_WEIGHT_MXFP4 ? 32 : 1;
    bool    plain = d->type == NIB_WEIGHT_F32 || d->type == NIB_WEIGHT_BF16;
    if (d->n_stack < 1 || d->n_out < 1 || d->n_in < 1)
        return nib_error_set(err, NIB_E_ARGUMENT, "cuda: weight of %d matrices [%d, %d], wanted at least 1 of each", d->n_stack,
                             d->n_out, d->n_in);
    if (d->n_in % unit != 0)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "cuda: weight has %d columns, wanted a multiple of %d", d->n_in, unit);
    for (int32_t i = 0; i < d->n_stack; i++) {
        if (!d->part[i].data || (!plain && !d->part[i].scales))
            return nib_error_set(err, NIB_E_ARGUMENT, "cuda: matrix %d of a weight has no data or no scales", i);
    }
    return NIB_OK;
}

/* Bytes of the checkpoint to the device through pinned memory: the copy into it runs beside the last piece's transfer. */
static cudaError_t stage(struct nib_backend *b, uint8_t *to, const void *from, size_t bytes)
{
    cudaError_t e = cudaSuccess;
    for (size_t at = 0; at < bytes && e == cudaSuccess; at += STAGE_BYTES) {
        size_t n = bytes - at < STAGE_BYTES ? bytes - at : STAGE_BYTES;
        int    i = b->load.next;
        b->load.next = (i + 1) % N_STAGES;
        if (!b->load.pinned[i]) {
            e = cudaHostAlloc(&b->load.pinned[i], STAGE_BYTES, cudaHostAllocDefault);
            if (e == cudaSuccess)
                e = cudaEventCreateWithFlags(&b->load.sent[i], cudaEventDisableTiming);
        } else {
            e = cudaEventSynchronize(b->load.sent[i]);
        }
        if (e != cudaSuccess)
            break;
        /* Pages of the file come in here, so several threads take the waiting. */
        const int64_t piece = 1 << 20, n_pieces = ((int64_t)n + piece - 1) / piece;
#pragma omp parallel for schedule(static) if (n_pieces > 1)
        for (int64_t k = 0; k < n_pieces; k++) {
            size_t begin = (size_t)(k * piece), length = n - begin < (size_t)piece ? n - begin : (size_t)piece;
            memcpy((uint8_t *)b->load.pinned[i] + begin, (const uint8_t *)from + at + begin, length);
        }
        e = cudaMemcpyAsync(to + at, b->load.pinned[i], n, cudaMemcpyHostToDevice, b->stream.handle);
        if (e == cudaSuccess)
            e = cudaEventRecord(b->load.sent[i], b->stream.handle);
    }
    return e;
}

static cudaError_t stored_reserve(struct nib_backend *b, size_t bytes)
{
    if (bytes <= b->load.stored_bytes)
        return cudaSuccess;
    (void)cudaFree(b->load.stored);
    b->load.stored = NULL;
    b->load.stored_bytes = 0;
    cudaError_t e = cudaMalloc((void **)&b->load.stored, bytes);
    b->load.stored_bytes = e == cudaSuccess ? bytes : 0;
    return e;
}

static size_t stored_size(const struct nib_weight_desc *d, size_t *scales)
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

/* alpha: [n_stack], filled. */
static cudaError_t pack_stack(struct nib_backend *b, const struct nib_weight_desc *d, const struct nib_cuda_matrix *m, float *alpha)
{
    bool        exponents = d->type == NIB_WEIGHT_MXFP4 || d->type == NIB_WEIGHT_FP8;
    size_t      scales, codes = stored_size(d, &scales), scales_at = padded(codes);
    cudaError_t e = stored_reserve(b, scales_at + padded(scales));
    for (int32_t i = 0; i < d->n_stack && e == cudaSuccess; i++) {
        int32_t largest = exponents ? nib_cuda_largest_scale(d, i) : 0;
        alpha[i] = nib_cuda_alpha(d, i, largest, (enum nib_cuda_layout)m->layout);
        e = stage(b, b->load.stored, d->part[i].data, codes);
        if (e == cudaSuccess && scales > 0)
            e = stage(b, b->load.stored + scales_at, d->part[i].scales, scales);
        if (e == cudaSuccess && (m->layout == NIB_CUDA_ATOMS || m->layout == NIB_CUDA_UNITS))
            e = nib_cuda_blackwell_pack(&b->stream, m, i, b->load.stored, b->load.stored + scales_at);
        else if (e == cudaSuccess)
            e = nib_cuda_pack(b->stream.handle, m, i, b->load.stored, b->load.stored + scales_at, largest);
    }
    if (e == cudaSuccess && m->alpha)
        e = cudaMemcpyAsync((float *)(uintptr_t)m->alpha, alpha, (size_t)d->n_stack * sizeof *alpha, cudaMemcpyHostToDevice,
                            b->stream.handle);
    return e;
}

static void weight_free(struct nib_backend *b, struct nib_weight *weight)
{
    struct nib_cuda_weight *w = (struct nib_cuda_weight *)weight;
    if (!w)
        return;
    backend_release(b, w->memory);
    free(w);
}

static enum nib_status weight_pack(struct nib_backend *b, const struct nib_weight_desc *d, struct nib_weight **out,
                                   struct nib_error *err)
{
    size_t codes, scales, n = (size_t)d->n_stack;
    *out = NULL;
    NIB_TRY(check_weight(d, err));
    enum nib_cuda_layout layout = layout_of(d, &codes, &scales);
    if (layout == NIB_CUDA_ATOMS || layout == NIB_CUDA_UNITS) {
        bool ready;
        NIB_TRY(nib_cuda_blackwell_ready(&b->stream, d->act, &ready, err));
        if (!ready)
            layout = nib_cuda_layout_of(d, &codes, &scales);
    }
    NIB_TRY(nib_cuda_blackwell_ops_ready(&b->stream, d->act, err));
    struct nib_cuda_weight *w = calloc(1, sizeof *w);
    float                  *alpha = malloc(n * sizeof *alpha);
    if (!w || !alpha) {
        free(w);
        free(alpha);
        return nib_error_set(err, NIB_E_MEMORY, "cuda: no memory for a weight of %d matrices", d->n_stack);
    }
    if (layout == NIB_CUDA_TILED && !nib_cuda_span_fits(d)) {
        layout = NIB_CUDA_STORED;
        codes = stored_size(d, &scales);
    }
    cudaError_t          e = cudaMalloc(&w->memory, packed_bytes(d, codes, scales));
    if (e == cudaSuccess) {
        uint8_t *p = w->memory;
        w->head = (struct nib_weight){d->type, d->act, d->n_stack, d->n_out, d->n_in};
        w->m = (struct nib_cuda_matrix){.codes = p, .scales = p + n * codes, .codes_stride = (int64_t)codes,
                                        .scales_stride = (int64_t)scales, .type = (int32_t)d->type, .layout = (int32_t)layout,
                                        .n_stack = d->n_stack, .n_out = d->n_out, .n_in = d->n_in};
        if (n > 1)
            w->m.alpha = (const float *)(const void *)(p + (n * (codes + scales) + 3) / 4 * 4);
        e = pack_stack(b, d, &w->m, alpha);
        w->m.alpha0 = alpha[0];
    }
    free(alpha);
    if (e != cudaSuccess) {
        enum nib_status status = nib_cuda_check(&b->stream, e, "packing a weight");
        weight_free(b, &w->head);
        return nib_error_set(err, status, "cuda: a weight of %d matrices [%d, %d] does not fit or could not be packed: %s", d->n_stack,
                             d->n_out, d->n_in, cudaGetErrorString(e));
    }
    *out = &w->head;
    return NIB_OK;
}

/* ---- Table ---- */

/* Rows that wait for a place in a compressor's ring may wait past a product that leaves them as they are. */
static enum nib_status linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    bool hold = true;
    for (int32_t i = 0; i < a->n_weights; i++)
        hold &= !nib_cuda_jobs_mind(s, &a->y[i]);
    s->hold = hold;
    enum nib_status status = nib_cuda_blackwell_linear(s, a);
    s->hold = false;
    return status;
}

static const struct nib_ops ops = {
    .embed = nib_cuda_embed,
    .norm = nib_cuda_blackwell_norm,
    .linear = linear,
    .q_rope = nib_cuda_blackwell_q_rope,
    .kv_insert = nib_cuda_blackwell_kv_insert,
    .compress = nib_cuda_compress,
    .index_select = nib_cuda_blackwell_index_select,
    .attend = nib_cuda_blackwell_attend,
    .o_a = nib_cuda_blackwell_o_a,
    .moe = nib_cuda_blackwell_moe,
    .hc_pre = nib_cuda_hc_pre,
    .hc_post = nib_cuda_hc_post,
    .hc_head = nib_cuda_hc_head,
    .head = nib_cuda_head,
    .mtp_join = nib_cuda_mtp_join,
    .copy_rows = nib_cuda_copy_rows,
    .sample = nib_cuda_sample,
};

const struct nib_backend_api nib_backend_cuda = {
    .name = "cuda",
    .ops = &ops,
    .recorder = &nib_cuda_recorder,
    .device = nib_cuda_device,
    .open = backend_open,
    .close = backend_close,
    .stream = backend_stream,
    .scratch_bytes = scratch_bytes,
    .prefers_bf16 = true,
    .alloc = backend_alloc,
    .release = backend_release,
    .upload = upload,
    .download = download,
    .copy = copy,
    .synchronise = synchronise,
    .why = why,
    .weight_bytes = weight_bytes,
    .weight_pack = weight_pack,
    .weight_free = weight_free,
};
