/* The sm_100a kernels of whole ops against the processor's arithmetic, before the first of them is used: attention over
 * every format of rows, by one block and by eight, through pages in disorder, with selected entries and two tiles; the
 * indexer's scores of FP4 and BF16 keys; products of plain rows with BF16 and FP8 weights. */
#include "backend/cuda/sm100a/selftest_sm100a.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/kv_rows.h"

enum { ARENA = 4 << 20 };
enum {
    D = 512,
    ROT = 64,
    HEADS = 3,
    ROWS = 1,
    WINDOW = 128,
    RATIO = 4,
    TOP = 40,
    POS = 300,
    PAGES = 3,
    ENTRIES = NIB_PAGE_TOKENS / RATIO,
    INDEX_HEADS = 5,
    INDEX_DIM = 128,
    INDEX_PAGES = 5,
    INDEX_KEYS = INDEX_PAGES * ENTRIES,
    INDEX_VISIBLE = INDEX_KEYS - 3
};

/* ---- Attention ---- */

struct attention {
    float    q[ROWS * HEADS * D];
    uint16_t half[ROWS * HEADS * D]; /* of q, where queries are bf16 */
    float    sink[HEADS], freq[ROT / 2];
    float    window[PAGES * NIB_PAGE_TOKENS][D], entries[PAGES * ENTRIES][D]; /* decoded, by place in the store */
    float    got[ROWS * HEADS * D];
    int32_t  pos[ROWS], seq[ROWS], page[2][PAGES], selected[ROWS * TOP], n_selected[ROWS];
};

static struct nib_store make_store(struct nib_sm100a_test *t, enum nib_row_format f, int32_t page_rows,
                                   float (*decoded)[D])
{
    struct nib_store s = {.format = f, .page_rows = page_rows, .row_bytes = nib_row_bytes(f, D, ROT)};
    int32_t          n = PAGES * page_rows;
    uint8_t         *rows = calloc((size_t)n, (size_t)s.row_bytes);
    if (!rows) {
        t->card.e = cudaErrorMemoryAllocation;
        return s;
    }
    for (int32_t i = 0; i < n; i++)
        nib_selftest_kv_row(&t->card.random, f, (float)(1 + i % 3), D, ROT, rows + i * s.row_bytes, decoded[i]);
    s.base = nib_selftest_put(&t->card, rows, (size_t)(n * s.row_bytes));
    free(rows);
    return s;
}

static void make_attention(struct nib_sm100a_test *t, struct attention *x)
{
    for (int32_t h = 0; h < HEADS; h++)
        x->sink[h] = nib_selftest_value(&t->card.random);
    for (int32_t i = 0; i < ROT / 2; i++)
        x->freq[i] = 1.0f / (float)(1 + i * i);
    for (int32_t i = 0; i < PAGES; i++) {
        x->page[0][i] = (i + 1) % PAGES;
        x->page[1][i] = PAGES - 1 - i;
    }
    for (int32_t r = 0; r < ROWS; r++) {
        x->pos[r] = POS + r;
        x->seq[r] = 0;
        x->n_selected[r] = TOP - r;
        for (int32_t i = 0; i < TOP; i++)
            x->selected[r * TOP + i] = i < x->n_selected[r] ? i + i / 2 : -1;
    }
}

/* Row j of those that row r attends to; NULL behind the last. */
static const float *attended(const struct attention *x, int32_t r, int32_t j)
{
    int32_t at = x->pos[r] - WINDOW + 1 + j;
    if (j < WINDOW)
        return x->window[x->page[0][at / NIB_PAGE_TOKENS] * NIB_PAGE_TOKENS + at % NIB_PAGE_TOKENS];
    if (j - WINDOW >= x->n_selected[r])
        return NULL;
    at = x->selected[r * TOP + j - WINDOW];
    return x->entries[x->page[1][at / ENTRIES] * ENTRIES + at % ENTRIES];
}

/* One head's result, and per channel the sum of magnitudes that errors are measured by. */
static void attend_head(const struct attention *x, int32_t r, int32_t h, double scale, double o[D], double size[D])
{
    double       p[WINDOW + TOP], most = (double)x->sink[h], total;
    const float *row;
    for (int32_t j = 0; j < WINDOW + TOP && (row = attended(x, r, j)); j++) {
        p[j] = 0;
        for (int32_t k = 0; k < D; k++)
            p[j] += (double)x->q[(r * HEADS + h) * D + k] * (double)row[k] * scale;
        most = fmax(most, p[j]);
    }
    total = exp((double)x->sink[h] - most);
    memset(o, 0, D * sizeof *o);
    memset(size, 0, D * sizeof *size);
    for (int32_t j = 0; j < WINDOW + TOP && (row = attended(x, r, j)); j++) {
        double weight = exp(p[j] - most);
        total += weight;
        for (int32_t k = 0; k < D; k++) {
            o[k] += weight * (double)row[k];
            size[k] += weight * fabs((double)row[k]);
        }
    }
    for (int32_t k = 0; k < D; k++) {
        o[k] /= total;
        size[k] /= total;
    }
    for (int32_t k = D - ROT; k < D; k += 2) {
        double angle = (double)((float)x->pos[r] * x->freq[(k - D + ROT) / 2]), c = cos(angle), s = sin(angle),
               even = o[k], odd = o[k + 1];
        o[k] = even * c + odd * s;
        o[k + 1] = odd * c - even * s;
        size[k] = size[k + 1] = size[k] + size[k + 1];
    }
}

/* A score's error is below 2^-17 here (512 products of at most 2 and 6, sums in fp32, times 2^-4.5), so is that of a
 * weight. */
static void hold_attention(struct nib_sm100a_test *t, const char *kernel, const struct attention *x, double scale)
{
    double o[D], size[D];
    for (int32_t i = 0; i < ROWS * HEADS && t->card.why[0] == 0; i++) {
        attend_head(x, i / HEADS, i % HEADS, scale, o, size);
        for (int32_t k = 0; k < D && t->card.why[0] == 0; k++)
            if (!(fabs((double)x->got[i * D + k] - o[k]) <= 0x1p-14 * size[k]))
                (void)snprintf(t->card.why, t->card.why_bytes, "sm100a %s: row %d, element %d is %.9g, wanted %.9g",
                               kernel, i / HEADS, i % HEADS * D + k, (double)x->got[i * D + k], o[k]);
    }
}

/* Queries of 12 bits, which two bf16 parts hold, or of the eight that one does. */
static void make_queries(struct nib_sm100a_test *t, struct attention *x, bool f32)
{
    for (int32_t i = 0; i < ROWS * HEADS * D; i++) {
        float v = nib_selftest_value(&t->card.random);
        x->half[i] = nib_selftest_bf16(v);
        x->q[i] = f32 ? v : nib_selftest_from_bf16(x->half[i]);
    }
}

static enum nib_status test_attend(struct nib_sm100a_test *t, struct attention *x, enum nib_row_format f, bool f32,
                                   const char *kernel)
{
    size_t start = t->card.used;
    make_queries(t, x, f32);
    void                  *q = nib_selftest_put(&t->card, f32 ? (void *)x->q : x->half,
                                                f32 ? sizeof x->q : sizeof x->half);
    struct nib_rows        rows = {.n_rows = ROWS,
                                   .n_seqs = 1,
                                   .pos = nib_selftest_put(&t->card, x->pos, sizeof x->pos),
                                   .seq = nib_selftest_put(&t->card, x->seq, sizeof x->seq),
                                   .window_page = nib_selftest_put(&t->card, x->page[0], sizeof x->page[0]),
                                   .entry_page = nib_selftest_put(&t->card, x->page[1], sizeof x->page[1]),
                                   .page_stride = PAGES};
    struct nib_attend_args a = {.q = {q, f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, ROWS, HEADS * D, HEADS * D},
                                .sink = nib_selftest_put(&t->card, x->sink, sizeof x->sink),
                                .n_heads = HEADS,
                                .head_dim = D,
                                .n_window = WINDOW,
                                .ratio = RATIO,
                                .top_k = TOP,
                                .scale = 0.044f,
                                .rows = &rows,
                                .rope = {nib_selftest_put(&t->card, x->freq, sizeof x->freq), ROT},
                                .window = make_store(t, f, NIB_PAGE_TOKENS, x->window),
                                .entries = make_store(t, f, ENTRIES, x->entries),
                                .selected = nib_selftest_put(&t->card, x->selected, sizeof x->selected),
                                .n_selected = nib_selftest_put(&t->card, x->n_selected, sizeof x->n_selected),
                                .o = {nib_selftest_take(&t->card, sizeof x->got), NIB_DTYPE_F32, ROWS, HEADS * D,
                                      HEADS * D}};
    for (int few = 0; few < 2 && t->card.e == cudaSuccess && t->card.why[0] == 0; few++) {
        t->card.e = cudaMemsetAsync(a.o.data, 0xff, sizeof x->got, t->s->handle); /* NaN */
        if (t->card.e == cudaSuccess)
            NIB_TRY(nib_sm100a_attend_launch(t->s, &a, few));
        if (t->card.e == cudaSuccess)
            t->card.e = cudaMemcpyAsync(x->got, a.o.data, sizeof x->got, cudaMemcpyDeviceToHost, t->s->handle);
        if (t->card.e == cudaSuccess)
            t->card.e = cudaStreamSynchronize(t->s->handle);
        if (t->card.e == cudaSuccess)
            hold_attention(t, kernel, x, (double)a.scale);
    }
    t->card.used = start;
    return NIB_OK;
}

static enum nib_status test_attention(struct nib_sm100a_test *t)
{
    static const struct {
        enum nib_row_format format;
        bool                f32;
        const char         *kernel;
    } kernels[] = {{NIB_ROW_BF16, false, "attend_bf16"},     {NIB_ROW_FP8, false, "attend_fp8"},
                   {NIB_ROW_NVFP4, false, "attend_nvfp4"},   {NIB_ROW_BF16, true, "attend_f32_bf16"},
                   {NIB_ROW_FP8, true, "attend_f32_fp8"},    {NIB_ROW_NVFP4, true, "attend_f32_nvfp4"}};
    enum nib_status   status = NIB_OK;
    struct attention *x = calloc(1, sizeof *x);
    if (!x)
        return nib_error_set(&t->s->error, NIB_E_MEMORY, "cuda: no memory for the self-test");
    make_attention(t, x);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && status == NIB_OK && t->card.e == cudaSuccess; i++)
        status = test_attend(t, x, kernels[i].format, kernels[i].f32, kernels[i].kernel);
    free(x);
    return status;
}

/* ---- Index scores ---- */

struct indexer {
    float    q[INDEX_HEADS * INDEX_DIM], key[INDEX_KEYS][INDEX_DIM], weight[INDEX_HEADS]; /* key: by place */
    float    got[INDEX_KEYS];
    uint16_t half[(INDEX_HEADS + 1) * INDEX_DIM]; /* of q and the weights */
    int32_t  pos, seq, page[INDEX_PAGES];
    uint8_t  row[INDEX_KEYS][2 * INDEX_DIM];
};

/* Queries and keys in the keys' form; rows of row_bytes, one after the other, in x->row. */
static void make_indexer(struct nib_sm100a_test *t, struct indexer *x, bool fp4, bool f32, int64_t row_bytes)
{
    uint8_t  q_row[2 * INDEX_DIM];
    uint8_t *rows = &x->row[0][0];
    for (int32_t i = 0; i < INDEX_HEADS + INDEX_KEYS; i++) {
        float    v[INDEX_DIM], *to = i < INDEX_HEADS ? x->q + i * INDEX_DIM : x->key[i - INDEX_HEADS];
        uint8_t *row = i < INDEX_HEADS ? q_row : rows + (i - INDEX_HEADS) * row_bytes;
        for (int32_t k = 0; k < INDEX_DIM; k++)
            v[k] = nib_selftest_value(&t->card.random) * (float)(1 << (i + k / 32) % 5);
        if (fp4) {
            nib_kv_fp4_encode(v, INDEX_DIM, row);
            nib_kv_fp4_decode(row, INDEX_DIM, to);
        } else {
            nib_kv_bf16_encode(v, INDEX_DIM, row);
            nib_kv_bf16_decode(row, INDEX_DIM, to);
        }
        if (!fp4 && f32 && i < INDEX_HEADS) /* of 12 bits */
            memcpy(to, v, sizeof v);
    }
    for (int32_t i = 0; i < INDEX_HEADS * INDEX_DIM; i++)
        x->half[i] = nib_selftest_bf16(x->q[i]);
    for (int32_t h = 0; h < INDEX_HEADS; h++) {
        x->half[INDEX_HEADS * INDEX_DIM + h] = nib_selftest_bf16(nib_selftest_value(&t->card.random));
        x->weight[h] = nib_selftest_from_bf16(x->half[INDEX_HEADS * INDEX_DIM + h]);
    }
    for (int32_t i = 0; i < INDEX_PAGES; i++)
        x->page[i] = (i * 2 + 1) % INDEX_PAGES;
    x->pos = INDEX_VISIBLE * RATIO - 1;
}

/* bf16 products, weights and sums: each head within 2^-7 of its magnitude. fp32: the products are exact in 2^-20 (and
 * two bf16 parts hold these queries exactly). */
static void hold_scores(struct nib_sm100a_test *t, const char *kernel, const struct indexer *x, double scale, bool f32)
{
    for (int32_t e = 0; e < INDEX_VISIBLE && t->card.why[0] == 0; e++) {
        const float *key = x->key[x->page[e / ENTRIES] * ENTRIES + e % ENTRIES];
        double       want = 0, size = 0;
        for (int32_t h = 0; h < INDEX_HEADS; h++) {
            double dot = 0, all = 0;
            for (int32_t k = 0; k < INDEX_DIM; k++) {
                dot += (double)x->q[h * INDEX_DIM + k] * (double)key[k];
                all += fabs((double)x->q[h * INDEX_DIM + k] * (double)key[k]);
            }
            want += (double)x->weight[h] * scale * fmax(dot, 0);
            size += fabs((double)x->weight[h]) * scale * (f32 ? 0x1p-20 * all : 0x1p-7 * fmax(dot, 0) + 0x1p-20 * all);
        }
        if (!(fabs((double)x->got[e] - want) <= size + (f32 ? 0 : 0x1p-7 * fabs(want))))
            (void)snprintf(t->card.why, t->card.why_bytes, "sm100a %s: entry %d is %.9g, wanted %.9g", kernel, e,
                           (double)x->got[e], want);
    }
}

static enum nib_status test_index(struct nib_sm100a_test *t, struct indexer *x, bool fp4, bool f32, const char *kernel)
{
    enum nib_row_format f = fp4 ? NIB_ROW_FP4 : NIB_ROW_BF16;
    int64_t             row_bytes = nib_row_bytes(f, INDEX_DIM, 0);
    enum nib_dtype      dtype = f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16;
    make_indexer(t, x, fp4, f32, row_bytes);
    const uint16_t *half = nib_selftest_put(&t->card, x->half, sizeof x->half);
    void *q = f32 ? nib_selftest_put(&t->card, x->q, sizeof x->q) : (void *)(uintptr_t)half,
         *weight = f32 ? nib_selftest_put(&t->card, x->weight, sizeof x->weight)
                       : (void *)(uintptr_t)(half + INDEX_HEADS * INDEX_DIM);
    struct nib_rows rows = {.n_rows = 1,
                            .n_seqs = 1,
                            .pos = nib_selftest_put(&t->card, &x->pos, sizeof x->pos),
                            .seq = nib_selftest_put(&t->card, &x->seq, sizeof x->seq),
                            .entry_page = nib_selftest_put(&t->card, x->page, sizeof x->page),
                            .page_stride = INDEX_PAGES};
    struct nib_index_select_args a = {
        .q = {q, dtype, 1, INDEX_HEADS * INDEX_DIM, INDEX_HEADS * INDEX_DIM},
        .weight = {weight, dtype, 1, INDEX_HEADS, INDEX_HEADS},
        .n_heads = INDEX_HEADS,
        .dim = INDEX_DIM,
        .ratio = RATIO,
        .top_k = 1,
        .scale = 0.125f,
        .rows = &rows,
        .keys = {nib_selftest_put(&t->card, x->row, sizeof x->row), f, ENTRIES, row_bytes},
    };
    float *score = nib_selftest_take(&t->card, sizeof x->got);
    if (t->card.e == cudaSuccess)
        t->card.e = cudaMemsetAsync(score, 0xff, sizeof x->got, t->s->handle); /* NaN */
    if (t->card.e == cudaSuccess)
        NIB_TRY(nib_sm100a_index_scores(t->s, &a, 0, 1, INDEX_VISIBLE, score, INDEX_KEYS));
    if (t->card.e == cudaSuccess)
        t->card.e = cudaMemcpyAsync(x->got, score, sizeof x->got, cudaMemcpyDeviceToHost, t->s->handle);
    if (t->card.e == cudaSuccess)
        t->card.e = cudaStreamSynchronize(t->s->handle);
    if (t->card.e == cudaSuccess)
        hold_scores(t, kernel, x, (double)a.scale, f32);
    return NIB_OK;
}

static enum nib_status test_indexer(struct nib_sm100a_test *t)
{
    struct indexer *x = calloc(1, sizeof *x);
    if (!x)
        return nib_error_set(&t->s->error, NIB_E_MEMORY, "cuda: no memory for the self-test");
    enum nib_status status = test_index(t, x, true, true, "index_fp4");
    if (status == NIB_OK && t->card.e == cudaSuccess && t->card.why[0] == 0)
        status = test_index(t, x, false, false, "index_bf16");
    if (status == NIB_OK && t->card.e == cudaSuccess && t->card.why[0] == 0)
        status = test_index(t, x, false, true, "index_f32_bf16");
    free(x);
    return status;
}

/* ---- All of them ---- */

enum nib_status nib_sm100a_selftest(struct nib_stream *s, char *why, size_t why_bytes)
{
    struct nib_sm100a_test t = {
        .s = s,
        .card = {.queue = s->handle, .size = ARENA, .random = 7, .why = why, .why_bytes = why_bytes},
    };
    enum nib_status status = NIB_OK;
    t.card.e = cudaMalloc((void **)&t.card.arena, ARENA);
    if (t.card.e == cudaSuccess)
        status = test_attention(&t);
    if (status == NIB_OK && t.card.e == cudaSuccess && why[0] == 0)
        status = test_indexer(&t);
    if (status == NIB_OK && t.card.e == cudaSuccess && why[0] == 0)
        status = nib_sm100a_test_products(&t);
    if (status == NIB_OK && t.card.e != cudaSuccess)
        status = nib_cuda_check(s, t.card.e, "self-test");
    (void)cudaStreamSynchronize(s->handle);
    (void)cudaFree(t.card.arena);
    return status;
}
