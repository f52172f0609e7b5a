/* Running one op on one backend with guarded buffers, and on all of them. */
#include "support/opcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, GUARD_BYTE = 0xa5, N_VARIANTS = 32 };

/* Wider than any case: n_in up to 1536 crosses a tile of 1024 channels. */
const struct nib_dims oc_dims = {
    .n_rows_max = OC_ROWS_MOST, .n_seqs_max = 8, .n_ctx_max = 140000, .dim = 1536, .n_hc = 4, .n_heads = 40, .head_dim = 512,
    .n_rot = 64, .q_rank = 1536, .n_groups = 4, .o_rank = 96, .n_window = 128, .n_index_heads = 8, .index_dim = 128,
    .index_top_k = 64, .n_experts = 16, .top_k = 4, .n_inner = 512, .n_inner_shared = 512, .vocab = 4000,
};

/* ---- Variants ---- */

struct variant {
    const struct nib_backend_api *api;
    struct nib_backend           *b;
    int32_t                       n_threads;
    uint32_t                      mask;
    char                          name[48];
};

static struct variant variants[N_VARIANTS]; /* ref first; equal api and mask stand together, one thread first */
static int            n_variants;
static const char    *level; /* of the cpu backend; NULL: all that the machine has */
static const struct variant *judged; /* what oc_again runs on */

static bool open_variant(const struct nib_backend_api *api, int32_t n_threads, uint32_t mask)
{
    struct variant           *v = &variants[n_variants];
    struct nib_backend_config config = {.dims = oc_dims, .n_threads = n_threads, .cpu_mask = mask,
                                        .cpu_level = mask ? level : NULL};
    struct nib_error          err = {0};
    *v = (struct variant){.api = api, .n_threads = n_threads, .mask = mask};
    (void)snprintf(v->name, sizeof v->name, "%s, %d threads, mask %#x%s%s", api->name, n_threads, mask,
                   level && mask ? ", level " : "", level && mask ? level : "");
    if (api->open(&config, &v->b, &err) != NIB_OK) {
        fprintf(stderr, "opcheck: %s: %s\n", v->name, err.text);
        return false;
    }
    n_variants++;
    return true;
}

bool oc_open(const char *backend, const char *cpu_level)
{
    level = cpu_level;
    if (!open_variant(&nib_backend_ref, 1, ~0u))
        return false;
    if (backend) {
        const struct nib_backend_api *api = nib_backend_find(backend);
        if (!api)
            fprintf(stderr, "opcheck: no backend named '%s'\n", backend);
        return api && open_variant(api, 1, ~0u);
    }
    for (const struct nib_backend_api *const *api = nib_backends(); *api; api++) {
        if (*api == &nib_backend_ref)
            continue;
        for (int32_t n_threads = 1; n_threads <= 3; n_threads++)
            if (!open_variant(*api, n_threads, ~0u))
                return false;
        if (!open_variant(*api, 1, 0))
            return false;
    }
    return true;
}

void oc_close(void)
{
    while (n_variants > 0) {
        n_variants--;
        variants[n_variants].api->close(variants[n_variants].b);
    }
}

/* ---- Memory of a run ---- */

struct oc_memory {
    uint8_t    *base; /* GUARD, bytes, GUARD */
    size_t      bytes;
    const void *input; /* must come back unchanged; NULL for outputs */
    int32_t     output;
};

static uint8_t *guarded(struct oc_run *r, size_t bytes, const void *start, bool is_input)
{
    if (r->n_memory == r->cap_memory) {
        r->cap_memory = r->cap_memory ? 2 * r->cap_memory : 32;
        r->memory = realloc(r->memory, (size_t)r->cap_memory * sizeof *r->memory);
    }
    uint8_t *host = malloc(bytes + 2 * GUARD), *dev = r->api->alloc(r->b, bytes + 2 * GUARD);
    if (!host || !dev || !r->memory) {
        fprintf(stderr, "opcheck: no memory\n");
        exit(2);
    }
    memset(host, GUARD_BYTE, bytes + 2 * GUARD);
    if (start && bytes)
        memcpy(host + GUARD, start, bytes);
    else
        memset(host + GUARD, 0xff, bytes);
    (void)r->api->upload(r->s, dev, host, bytes + 2 * GUARD);
    (void)r->api->synchronise(r->s);
    free(host);
    r->memory[r->n_memory++] = (struct oc_memory){dev, bytes, is_input ? start : NULL, is_input ? -1 : r->result->n};
    return dev + GUARD;
}

void *oc_put(struct oc_run *r, const void *host, size_t bytes)
{
    return host ? guarded(r, bytes, host, true) : NULL;
}

struct nib_mat oc_put_mat(struct oc_run *r, const struct oc_mat *m)
{
    size_t size = m->dtype == NIB_DTYPE_F32 ? 4 : 2;
    return (struct nib_mat){oc_put(r, m->data, (size_t)(m->rows * m->stride) * size), m->dtype, m->rows, m->cols,
                            m->stride};
}

struct nib_act oc_put_act(struct oc_run *r, const struct oc_act *a)
{
    size_t n = (size_t)a->rows;
    return (struct nib_act){
        .plain = oc_put_mat(r, &a->plain),
        .format = a->format,
        .rows = a->rows,
        .cols = a->cols,
        .codes = oc_put(r, a->codes, n * (size_t)a->codes_stride),
        .scales = oc_put(r, a->scales, n * (size_t)a->scales_stride),
        .row_scale = a->format == NIB_ACT_NVFP4 ? oc_put(r, a->row_scale, 4 * n) : NULL,
        .codes_stride = a->codes_stride,
        .scales_stride = a->scales_stride,
    };
}

const struct nib_weight *oc_put_weight(struct oc_run *r, const struct oc_weight *w)
{
    struct nib_error   err = {0};
    struct nib_weight *packed = NULL;
    if (!w)
        return NULL;
    if (r->api->weight_pack(r->b, &w->desc, &packed, &err) != NIB_OK) {
        oc_fail(r->c, "weight_pack: %s", err.text);
        exit(2);
    }
    r->weight[r->n_weights++] = packed;
    return packed;
}

void *oc_out(struct oc_run *r, const char *name, enum oc_kind kind, int32_t rows, int32_t cols, const void *start)
{
    size_t           size = kind == OC_BYTES ? 1 : kind == OC_BF16 ? 2 : 4;
    struct oc_output o = {name, kind, rows, cols, cols, (size_t)rows * (size_t)cols * size, NULL};
    uint8_t         *dev = guarded(r, o.bytes, start, false);
    r->result->out[r->result->n++] = o;
    return dev;
}

struct nib_mat oc_out_mat(struct oc_run *r, const char *name, enum nib_dtype dtype, int32_t rows, int32_t cols,
                          int64_t stride, const void *start)
{
    void *dev = oc_out(r, name, dtype == NIB_DTYPE_F32 ? OC_F32 : OC_BF16, rows, (int32_t)stride, start);
    r->result->out[r->result->n - 1].cols = cols;
    return (struct nib_mat){dev, dtype, rows, cols, stride};
}

struct nib_act oc_out_act(struct oc_run *r, bool plain, enum nib_dtype dtype, enum nib_act_format format, int32_t rows,
                          int32_t cols)
{
    struct nib_act a = {.format = format, .rows = rows, .cols = cols};
    if (plain)
        a.plain = oc_out_mat(r, "plain", dtype, rows, cols, cols + 3, NULL);
    if (format == NIB_ACT_PLAIN)
        return a;
    a.codes_stride = nib_act_codes_stride(format, cols);
    a.scales_stride = nib_act_scales_stride(format, cols);
    a.codes = oc_out(r, "codes", OC_BYTES, rows, (int32_t)a.codes_stride, NULL);
    a.scales = oc_out(r, "scales", OC_BYTES, rows, (int32_t)a.scales_stride, NULL);
    if (format == NIB_ACT_NVFP4)
        a.row_scale = oc_out(r, "row_scale", OC_F32, rows, 1, NULL);
    return a;
}

struct nib_mat oc_rows_of_mat(struct nib_mat m, int32_t row0, int32_t n)
{
    int64_t size = m.dtype == NIB_DTYPE_F32 ? 4 : 2;
    if (m.data)
        m.data = (uint8_t *)m.data + row0 * m.stride * size;
    m.rows = n;
    return m;
}

struct nib_act oc_rows_of_act(struct nib_act a, int32_t row0, int32_t n)
{
    a.plain = oc_rows_of_mat(a.plain, row0, n);
    a.rows = n;
    if (a.codes) {
        a.codes += row0 * a.codes_stride;
        a.scales += row0 * a.scales_stride;
    }
    if (a.row_scale)
        a.row_scale += row0;
    return a;
}

void oc_op(struct oc_run *r, enum nib_status status)
{
    if (status != NIB_OK)
        oc_fail(r->c, "the op returned %s", nib_status_name(status));
}

/* Fetch outputs, check guards and inputs, release everything. */
static void finish(struct oc_run *r)
{
    if (r->api->synchronise(r->s) != NIB_OK)
        oc_fail(r->c, "synchronise failed");
    for (int32_t i = 0; i < r->n_memory; i++) {
        struct oc_memory *m = &r->memory[i];
        uint8_t          *host = oc_new(r->c, m->bytes + 2 * GUARD);
        (void)r->api->download(r->s, host, m->base, m->bytes + 2 * GUARD);
        for (size_t k = 0; k < GUARD; k++)
            if (host[k] != GUARD_BYTE || host[GUARD + m->bytes + k] != GUARD_BYTE)
                oc_fail(r->c, "wrote outside buffer %d (%s) of %zu bytes, guard byte %zu", i,
                        m->input ? "an input" : r->result->out[m->output].name, m->bytes, k);
        if (m->input && m->bytes && memcmp(host + GUARD, m->input, m->bytes) != 0)
            oc_fail(r->c, "changed an input of %zu bytes", m->bytes);
        if (!m->input)
            r->result->out[m->output].data = host + GUARD;
        r->api->release(r->b, m->base);
    }
    for (int32_t i = 0; i < r->n_weights; i++)
        r->api->weight_free(r->b, r->weight[i]);
    free(r->memory);
    ++*r->c->n_checks;
}

static void run_on(struct oc_case *c, const struct variant *v, oc_run_function *run, const void *data, int32_t step,
                   struct oc_result *result)
{
    struct oc_run r = {.c = c, .api = v->api, .b = v->b, .s = v->api->stream(v->b), .result = result};
    memset(result, 0, sizeof *result);
    run(&r, data, step);
    finish(&r);
}

void oc_again(struct oc_case *c, oc_run_function *run, const void *data, struct oc_result *result)
{
    run_on(c, judged, run, data, 1 << 30, result);
}

/* Equal bits, except that a NaN equals a NaN: which operand's sign and payload it carries is up to the compiler. */
static void expect_same_bits(struct oc_case *c, const struct oc_result *a, const struct oc_result *b, const char *what)
{
    ++*c->n_checks;
    for (int32_t i = 0; i < a->n; i++) {
        const struct oc_output *x = &a->out[i], *y = &b->out[i];
        size_t                  size = x->kind == OC_BYTES ? 1 : x->kind == OC_BF16 ? 2 : 4;
        bool                    floats = x->kind == OC_F32 || x->kind == OC_BF16;
        for (int64_t k = 0; k < (int64_t)(x->bytes / size); k++) {
            if (memcmp((uint8_t *)x->data + k * (int64_t)size, (uint8_t *)y->data + k * (int64_t)size, size) == 0 ||
                (floats && isnan(oc_at(x, 0, k)) && isnan(oc_at(y, 0, k))))
                continue;
            oc_fail(c, "%s: bits of %s differ in row %lld, column %lld", what, x->name, (long long)(k / x->stride),
                    (long long)(k % x->stride));
            return;
        }
    }
}

/* Columns beyond a matrix's own must not be written. */
static void expect_padding(struct oc_case *c, const struct oc_result *ref, const struct oc_result *got)
{
    for (int32_t i = 0; i < got->n; i++) {
        const struct oc_output *a = &ref->out[i], *b = &got->out[i];
        size_t                  size = b->kind == OC_BF16 ? 2 : 4, used = (size_t)b->cols * size;
        if (b->kind == OC_BYTES)
            continue;
        for (int64_t r = 0; r < b->rows; r++) {
            size_t at = (size_t)(r * b->stride) * size + used, n = (size_t)b->stride * size - used;
            if (memcmp((uint8_t *)a->data + at, (uint8_t *)b->data + at, n) != 0)
                oc_fail(c, "%s: wrote into the padding behind row %lld", b->name, (long long)r);
        }
    }
}

void oc_all(struct oc_case *c, oc_run_function *run, oc_judge_function *judge, const void *data, int32_t n_rows)
{
    const int32_t    all = 1 << 30;
    struct oc_result ref, first, other;
    c->variant = variants[0].name;
    run_on(c, &variants[0], run, data, all, &ref);
    for (int i = 1; i < n_variants && !c->failed; i++) {
        const struct variant *v = &variants[i];
        bool leads = v->api != variants[i - 1].api || v->mask != variants[i - 1].mask;
        c->variant = v->name;
        judged = v;
        if (!leads) {
            run_on(c, v, run, data, all, &other);
            expect_same_bits(c, &first, &other, "against one thread");
            continue;
        }
        run_on(c, v, run, data, all, &first);
        expect_padding(c, &ref, &first);
        judge(c, data, &ref, &first);
        run_on(c, v, run, data, all, &other);
        expect_same_bits(c, &first, &other, "second run");
        /* The CUDA backend has kernel variants for many rows, with sums of their own order (docs/contracts.md). */
        bool one_variant = n_rows <= (strcmp(c->op, "attend") == 0 ? 16 : 96) || strcmp(v->api->name, "cuda") != 0;
        if (n_rows > 1 && one_variant) {
            run_on(c, v, run, data, 1, &other);
            expect_same_bits(c, &first, &other, "row by row");
            run_on(c, v, run, data, oc_range(c, 1, n_rows), &other);
            expect_same_bits(c, &first, &other, "in parts");
        }
    }
}

/* ---- Results ---- */

const struct oc_output *oc_find(const struct oc_result *r, const char *name)
{
    for (int32_t i = 0; i < r->n; i++)
        if (strcmp(r->out[i].name, name) == 0)
            return &r->out[i];
    return NULL;
}

double oc_at(const struct oc_output *o, int64_t row, int64_t col)
{
    int64_t at = row * o->stride + col;
    if (o->kind == OC_F32)
        return (double)((const float *)o->data)[at];
    return (double)oc_bf16_value(((const uint16_t *)o->data)[at]);
}

int32_t oc_int_at(const struct oc_output *o, int64_t row, int64_t col)
{
    return ((const int32_t *)o->data)[row * o->stride + col];
}

const uint8_t *oc_row_at(const struct oc_output *o, int64_t row)
{
    return (const uint8_t *)o->data + row * o->stride;
}
