/* Attention on sm_120a in the simulator, held to sums in double of the rows as the formats' definition decodes them. */
#include "ptxsim/sm120a/attend_rig.h"

#include "number/kv_rows.h"

enum { D = 512, ROT = 64, PAGE = 128 };

/* ---- Operands ---- */

struct operands {
    struct nib_attend_args a;
    struct nib_rows        rows;
    float                 *window, *entries; /* decoded, by position and by number */
    float                 *q, *sink, *freq;
    int32_t               *selected, *n_selected;
    int32_t                stride; /* of o */
};

static float *floats(size_t n)
{
    float *p = calloc(n + 1, sizeof *p);
    assert_non_null(p);
    return p;
}

/* Rows of a store in pages that stand in another order; their values by number in *value. */
static struct nib_store make_store(struct rig_attend *r, struct px_machine *m, int32_t n, int32_t page_rows,
                                   const int32_t *page, float **value)
{
    int64_t  bytes = nib_row_bytes(r->format, D, ROT);
    int32_t  n_pages = (n + page_rows - 1) / page_rows;
    uint8_t *stored = calloc((size_t)(n_pages * page_rows), (size_t)bytes);
    float    x[D];
    assert_non_null(stored);
    *value = floats((size_t)n * D);
    for (int32_t i = 0; i < n; i++) {
        uint8_t *row = stored + ((int64_t)page[i / page_rows] * page_rows + i % page_rows) * bytes;
        float   *to = *value + (int64_t)i * D, size = ldexpf(1, (int)(rig_next(&r->seed) % 4));
        for (int k = 0; k < D; k++)
            x[k] = size * rig_value(&r->seed);
        if (r->format == NIB_ROW_FP8) {
            nib_kv_fp8_encode(x, D, ROT, row);
            nib_kv_fp8_decode(row, D, ROT, to);
        } else if (r->format == NIB_ROW_NVFP4) {
            nib_kv_nvfp4_encode(x, D, ROT, row);
            nib_kv_nvfp4_decode(row, D, ROT, to);
        } else {
            nib_kv_bf16_encode(x, D, row);
            nib_kv_bf16_decode(row, D, to);
        }
    }
    struct nib_store s = {.base = rig_alloc(m, (size_t)(n_pages * page_rows) * (size_t)bytes, stored),
                          .format = r->format,
                          .page_rows = page_rows,
                          .row_bytes = bytes};
    free(stored);
    return s;
}

static void choose(struct rig_attend *r, struct operands *op, struct px_machine *m)
{
    op->selected = calloc((size_t)(r->n_rows * r->top_k), 4);
    op->n_selected = calloc((size_t)r->n_rows, 4);
    assert_true(op->selected && op->n_selected);
    for (int32_t t = 0; t < r->n_rows; t++) {
        int32_t visible = (r->pos[t] + 1) / r->ratio, n = 0;
        for (int32_t e = 0; e < visible && n < r->top_k; e++)
            if (visible - e <= r->top_k - n || rig_next(&r->seed) % 2)
                op->selected[t * r->top_k + n++] = e;
        op->n_selected[t] = n;
        while (n < r->top_k)
            op->selected[t * r->top_k + n++] = -1;
    }
    op->a.selected = rig_alloc(m, (size_t)(r->n_rows * r->top_k) * 4, op->selected);
    op->a.n_selected = rig_alloc(m, (size_t)r->n_rows * 4, op->n_selected);
}

static struct nib_mat put_query(const struct rig_attend *r, struct px_machine *m, const float *q, int32_t cols)
{
    struct nib_mat to = {NULL, r->f32_query ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, r->n_rows, cols, cols};
    size_t         n = (size_t)(r->n_rows * cols);
    uint16_t      *codes = calloc(n, sizeof *codes);
    assert_non_null(codes);
    for (size_t i = 0; i < n; i++)
        codes[i] = rig_bf16(q[i]);
    to.data = r->f32_query ? rig_alloc(m, n * sizeof *q, q) : rig_alloc(m, n * sizeof *codes, codes);
    free(codes);
    return to;
}

static void make_operands(struct rig_attend *r, struct px_machine *m, struct operands *op)
{
    int32_t  n = r->pos[r->n_rows - 1] + 1, n_pages = (n + PAGE - 1) / PAGE, cols = r->n_heads * D, zero = 0;
    int32_t  page[64], seq[64] = {0};
    uint32_t turn = rig_next(&r->seed);
    assert_true(n_pages <= 64 && r->n_rows <= 64);
    for (int32_t i = 0; i < n_pages; i++)
        page[i] = (int32_t)(((uint32_t)i + turn) % (uint32_t)n_pages);
    op->q = floats((size_t)(r->n_rows * cols));
    op->sink = floats((size_t)r->n_heads);
    op->freq = floats(ROT / 2);
    for (int64_t i = 0; i < (int64_t)r->n_rows * cols; i++) {
        op->q[i] = rig_value(&r->seed) + (r->f32_query ? 1e-3f * rig_value(&r->seed) : 0);
        if (!r->f32_query)
            op->q[i] = rig_from_bf16(rig_bf16(op->q[i]));
    }
    for (int32_t h = 0; h < r->n_heads; h++)
        op->sink[h] = h == 1 ? -INFINITY : 2 * rig_value(&r->seed);
    for (int32_t i = 0; i < ROT / 2; i++)
        op->freq[i] = (float)pow(10000, -2.0 * i / ROT);
    op->stride = cols + (r->bf16_out ? 0 : 3);
    op->rows = (struct nib_rows){.n_rows = r->n_rows, .n_seqs = 1, .page_stride = n_pages};
    op->rows.pos = rig_alloc(m, (size_t)r->n_rows * 4, r->pos);
    op->rows.seq = rig_alloc(m, (size_t)r->n_rows * 4, seq);
    op->rows.window_page = op->rows.entry_page = rig_alloc(m, (size_t)n_pages * 4, page);
    op->rows.seq_start = rig_alloc(m, 4, &zero);
    op->a = (struct nib_attend_args){
        .q = put_query(r, m, op->q, cols),
        .sink = rig_alloc(m, (size_t)r->n_heads * 4, op->sink),
        .n_heads = r->n_heads,
        .head_dim = D,
        .n_window = r->n_window,
        .ratio = r->ratio,
        .top_k = r->top_k,
        .scale = 0.0625f,
        .rope = {rig_alloc(m, ROT / 2 * 4, op->freq), ROT},
        .window = make_store(r, m, n, PAGE, page, &op->window),
        .o = {rig_alloc(m, (size_t)(r->n_rows * op->stride) * (r->bf16_out ? 2 : 4), NULL),
              r->bf16_out ? NIB_DTYPE_BF16 : NIB_DTYPE_F32, r->n_rows, cols, op->stride},
    };
    if (r->ratio > 0)
        op->a.entries = make_store(r, m, n / r->ratio, PAGE / r->ratio, page, &op->entries);
    if (r->ratio > 0 && r->top_k > 0)
        choose(r, op, m);
}

/* ---- What must come out ---- */

/* Rows that query t attends to, in order. */
static int32_t attended(const struct rig_attend *r, const struct operands *op, int32_t t, const float **row)
{
    int32_t pos = r->pos[t], first = pos - r->n_window + 1 > 0 ? pos - r->n_window + 1 : 0, n = 0;
    int32_t entries = r->ratio == 0 ? 0 : op->selected ? op->n_selected[t] : (pos + 1) / r->ratio;
    for (int32_t p = first; p <= pos; p++)
        row[n++] = op->window + (int64_t)p * D;
    for (int32_t e = 0; e < entries; e++)
        row[n++] = op->entries + (int64_t)(op->selected ? op->selected[t * r->top_k + e] : e) * D;
    return n;
}

/* o of one head, and how far off it may be: products of 512 terms in fp32, an exponential, weights in two bf16 parts
 * (2^-17), sums of n terms, each of which may be rescaled. An error e_j of score j moves weight p_j by p_j (e_j + sum p
 * e), to first order. */
static void own_attend(const struct rig_attend *r, const struct operands *op, int32_t t, int32_t h, double *o,
                       double *err)
{
    const float   *row[2048];
    double         score[2048], slack[2048], most = (double)op->sink[h], sum, mean = 0, u = 0x1p-24;
    const float   *q = op->q + ((int64_t)t * r->n_heads + h) * D;
    int32_t        n = attended(r, op, t, row);
    for (int32_t j = 0; j < n; j++) {
        double dot = 0, mag = 0;
        for (int i = 0; i < D; i++) {
            double v = (double)q[i] * (double)row[j][i];
            dot += v;
            mag += fabs(v);
        }
        score[j] = dot * 0.0625;
        slack[j] = (mag * (D + 4) + 2 * fabs(dot)) * u * 0.0625;
        most = score[j] > most ? score[j] : most;
    }
    sum = exp((double)op->sink[h] - most);
    for (int32_t j = 0; j < n; j++) {
        slack[j] += 2 * u * (fabs(score[j] - most) + fabs(most) + 1);
        score[j] = exp(score[j] - most);
        sum += score[j];
    }
    for (int32_t j = 0; j < n; j++)
        mean += score[j] / sum * slack[j];
    for (int i = 0; i < D; i++) {
        o[i] = err[i] = 0;
        for (int32_t j = 0; j < n; j++) {
            double v = score[j] / sum * (double)row[j][i];
            o[i] += v;
            err[i] += fabs(v) * (1.1 * (slack[j] + mean) + (2 * n + 20) * u + 0x1p-17);
        }
    }
    for (int i = 0; i < ROT / 2; i++) {
        double *even = &o[D - ROT + 2 * i], *odd = even + 1, *d = &err[D - ROT + 2 * i];
        double  angle = (double)((float)r->pos[t] * op->freq[i]), c = cos(angle), s = sin(angle), e = *even;
        double  size = (fabs(e) + fabs(*odd)) * 4 * u, both = d[0] + d[1];
        *even = e * c + *odd * s;
        *odd = *odd * c - e * s;
        d[0] = d[1] = both + size;
    }
    for (int i = 0; i < D; i++)
        err[i] += (r->bf16_out ? 0x1p-8 : 2 * u) * fabs(o[i]);
}

/* ---- A run ---- */

static void name_of(const struct rig_attend *r, char name[64])
{
    (void)snprintf(name, 64, "nib_sm120a_attend_%s%s%s", r->f32_query ? "f32_" : "", r->n_spans > 0 ? "span_" : "",
                   r->format == NIB_ROW_FP8     ? "fp8"
                   : r->format == NIB_ROW_NVFP4 ? "nvfp4"
                                                : "bf16");
}

static bool launch(struct rig_attend *r, struct px_machine *m, const char *kernel, struct operands *op,
                   struct nib_sm120a_spans *sp, struct px_dim grid, uint32_t threads, uint32_t bytes)
{
    const void      *params[] = {&op->a, &op->rows, sp};
    struct px_launch l = {
        .grid = grid, .block = {threads, 1, 1}, .shared_bytes = bytes, .params = params, .overlaps = true};
    if (px_run(m, r->module ? r->module : rig_module("attend_sm120a"), kernel, &l))
        return true;
    (void)snprintf(r->error, sizeof r->error, "%s", px_error(m));
    return false;
}

static bool launch_all(struct rig_attend *r, struct px_machine *m, struct operands *op)
{
    int32_t  most = r->n_window + (r->ratio == 0 ? 0 : r->top_k ? r->top_k : (r->pos[r->n_rows - 1] + 1) / r->ratio);
    int32_t  all = (most + NIB_SM120A_SPAN - 1) / NIB_SM120A_SPAN;
    uint32_t bytes = r->format == NIB_ROW_FP8     ? NIB_SM120A_ATTEND_FP8
                     : r->format == NIB_ROW_NVFP4 ? NIB_SM120A_ATTEND_NVFP4
                                                  : NIB_SM120A_ATTEND_BF16;
    struct nib_sm120a_spans sp = {.n_heads = r->n_heads,
                                  .n_spans = r->n_spans,
                                  .n_groups = (r->n_heads + NIB_SM120A_ATTEND_HEADS - 1) / NIB_SM120A_ATTEND_HEADS};
    char     name[64];
    uint32_t rows = (uint32_t)r->n_rows, groups = (uint32_t)sp.n_groups, heads = (uint32_t)r->n_heads;
    name_of(r, name);
    if (r->n_spans == 0)
        return launch(r, m, name, op, &sp, (struct px_dim){rows * groups, 1, 1}, 256, bytes);
    sp.part = rig_alloc(m, (size_t)r->n_rows * (size_t)(r->n_spans + 1) * heads * NIB_SM120A_PART_FLOATS * 4, NULL);
    for (; sp.first < all; sp.first += sp.n_spans)
        if (!launch(r, m, name, op, &sp, (struct px_dim){(uint32_t)sp.n_spans, groups, rows}, 256, bytes) ||
            !launch(r, m, "nib_sm120a_attend_fold", op, &sp, (struct px_dim){heads, rows, 1}, 128, 0))
            return false;
    return true;
}

static bool take_results(struct rig_attend *r, struct px_machine *m, const struct operands *op)
{
    size_t cols = (size_t)r->n_heads * D, size = r->bf16_out ? 2 : 4;
    for (int32_t t = 0; t < r->n_rows; t++) {
        const uint8_t *from = (const uint8_t *)op->a.o.data + (size_t)t * (size_t)op->stride * size;
        if (!px_written(m, from, cols * size)) {
            (void)snprintf(r->error, sizeof r->error, "row %d of o was not all written", (int)t);
            return false;
        }
        for (size_t i = 0; i < cols; i++)
            r->o[(size_t)t * cols + i] =
                r->bf16_out ? rig_from_bf16(((const uint16_t *)(const void *)from)[i]) : ((const float *)(const void *)from)[i];
    }
    return true;
}

bool rig_attend_run(struct rig_attend *r)
{
    struct px_config   config = r->config;
    struct operands    op = {.stride = 0};
    size_t             cols = (size_t)r->n_heads * D;
    config.shared_most = 99 * 1024;
    config.cluster_most = 1;
    struct px_machine *m = px_machine_new(&config);
    assert_non_null(m);
    r->o = floats((size_t)r->n_rows * cols);
    r->want = calloc((size_t)r->n_rows * cols, sizeof *r->want);
    r->bound = calloc((size_t)r->n_rows * cols, sizeof *r->bound);
    assert_true(r->want && r->bound);
    make_operands(r, m, &op);
    for (int32_t t = 0; t < r->n_rows; t++)
        for (int32_t h = 0; h < r->n_heads; h++)
            own_attend(r, &op, t, h, r->want + (size_t)t * cols + (size_t)h * D, r->bound + (size_t)t * cols + (size_t)h * D);
    bool ran = launch_all(r, m, &op) && take_results(r, m, &op);
    px_machine_free(m);
    free(op.window);
    free(op.entries);
    free(op.q);
    free(op.sink);
    free(op.freq);
    free(op.selected);
    free(op.n_selected);
    return ran;
}

bool rig_attend_right(const struct rig_attend *r, char *text, size_t bytes)
{
    size_t cols = (size_t)r->n_heads * D;
    for (size_t i = 0; i < (size_t)r->n_rows * cols; i++)
        if (!(fabs((double)r->o[i] - r->want[i]) <= r->bound[i])) {
            (void)snprintf(text, bytes, "row %d, head %d, channel %d is %.9g, wanted %.9g +- %.3g", (int)(i / cols),
                           (int)(i % cols / D), (int)(i % D), (double)r->o[i], r->want[i], r->bound[i]);
            return false;
        }
    return true;
}

void rig_attend_free(struct rig_attend *r)
{
    free(r->o);
    free(r->want);
    free(r->bound);
    r->o = NULL;
    r->want = r->bound = NULL;
}
