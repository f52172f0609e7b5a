/* The kernels of whole ops of sm_120a against the processor's arithmetic: attention with every format of rows, queries
 * in BF16 and fp32, a row as a whole and by spans; the indexer's scores of FP4 keys in pages out of order. */
#include "backend/cuda/sm120a/selftest_sm120a.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/blackwell/selftest_draw_blackwell.h"
#include "backend/cuda/sm120a/sm120a.h"
#include "number/kv_rows.h"

enum { D = 512, ROT = 64, HEADS = 3, WINDOW = 20, POS = 70, ROWS = NIB_PAGE_TOKENS };
enum {
    INDEX_HEADS = 21,
    INDEX_DIM = 128,
    RATIO = 4,
    ENTRIES = NIB_PAGE_TOKENS / RATIO, /* of a page */
    PAGES = 9,
    KEYS = PAGES * ENTRIES,
    VISIBLE = KEYS - 3,
    KEY_BYTES = INDEX_DIM / 2 + INDEX_DIM / 32
};

struct memory { /* the same on the host and on the device */
    uint8_t  window[ROWS * D * 2]; /* what is read by 16 bytes comes first */
    uint16_t q_bf16[HEADS * D];
    float    q[HEADS * D], o[HEADS * D];
    float    part[2 * HEADS * NIB_SM120A_PART_FLOATS];
    float    sink[HEADS], freq[ROT / 2];
    int32_t  pos, seq, page;
};

struct test {
    struct memory host;
    float         row[ROWS][D]; /* decoded */
    uint64_t      random;
};

static void make_rows(struct test *t, enum nib_row_format f)
{
    int64_t bytes = nib_row_bytes(f, D, ROT);
    for (int32_t i = 0; i < ROWS; i++)
        nib_selftest_kv_row(&t->random, f, (float)(1 + i % 3), D, ROT, t->host.window + i * bytes, t->row[i]);
}

/* Values that bf16 holds, so that both kinds of queries have the same results. */
static void make_query(struct test *t)
{
    struct memory *m = &t->host;
    for (int32_t i = 0; i < HEADS * D; i++) {
        uint32_t u;
        m->q[i] = nib_selftest_value(&t->random);
        memcpy(&u, &m->q[i], 4);
        u &= 0xffff0000u;
        memcpy(&m->q[i], &u, 4);
        m->q_bf16[i] = (uint16_t)(u >> 16);
    }
    for (int32_t h = 0; h < HEADS; h++)
        m->sink[h] = nib_selftest_value(&t->random);
    for (int32_t i = 0; i < ROT / 2; i++)
        m->freq[i] = 1.0f / (float)(1 + i * i);
    m->pos = POS;
}

/* One head's result, and per channel the sum of magnitudes that errors are measured by. */
static void attend_head(const struct test *t, int32_t h, double scale, double o[D], double size[D])
{
    const struct memory *m = &t->host;
    double               p[WINDOW], most = (double)m->sink[h], total;
    for (int32_t j = 0; j < WINDOW; j++) {
        p[j] = 0;
        for (int32_t k = 0; k < D; k++)
            p[j] += (double)m->q[h * D + k] * (double)t->row[POS - WINDOW + 1 + j][k] * scale;
        most = fmax(most, p[j]);
    }
    total = exp((double)m->sink[h] - most);
    memset(o, 0, D * sizeof *o);
    memset(size, 0, D * sizeof *size);
    for (int32_t j = 0; j < WINDOW; j++) {
        double weight = exp(p[j] - most);
        total += weight;
        for (int32_t k = 0; k < D; k++) {
            double v = (double)t->row[POS - WINDOW + 1 + j][k];
            o[k] += weight * v;
            size[k] += weight * fabs(v);
        }
    }
    for (int32_t k = 0; k < D; k++) {
        o[k] /= total;
        size[k] /= total;
    }
    for (int32_t k = D - ROT; k < D; k += 2) {
        double angle = (double)((float)POS * m->freq[(k - D + ROT) / 2]), c = cos(angle), s = sin(angle), even = o[k];
        o[k] = even * c + o[k + 1] * s;
        o[k + 1] = o[k + 1] * c - even * s;
        size[k] = size[k + 1] = size[k] + size[k + 1];
    }
}

/* A score's error is below 2^-17 here (512 products of at most 2 and 6, sums in fp32, times 2^-4.5), a weight's
 * 2^-17. */
static void hold(const struct test *t, const char *name, double scale, char *why, size_t why_bytes)
{
    double o[D], size[D];
    for (int32_t h = 0; h < HEADS && why[0] == 0; h++) {
        attend_head(t, h, scale, o, size);
        for (int32_t k = 0; k < D && why[0] == 0; k++)
            if (!(fabs((double)t->host.o[h * D + k] - o[k]) <= 0x1p-14 * size[k]))
                (void)snprintf(why, why_bytes, "sm120a attend_%s: row 0, element %d is %.9g, wanted %.9g", name,
                               h * D + k, (double)t->host.o[h * D + k], o[k]);
    }
}

/* One run; whole: by one block, not by spans and their sum. */
static enum nib_status run(struct nib_stream *s, struct test *t, struct memory *on, enum nib_row_format f, bool f32,
                           bool whole, float scale)
{
    struct nib_rows        rows = {.n_rows = 1,
                                   .n_seqs = 1,
                                   .pos = &on->pos,
                                   .seq = &on->seq,
                                   .window_page = &on->page,
                                   .entry_page = &on->page,
                                   .page_stride = 1};
    struct nib_attend_args a = {
        .q = {f32 ? (void *)on->q : on->q_bf16, f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, 1, HEADS * D, HEADS * D},
        .sink = on->sink,
        .n_heads = HEADS,
        .head_dim = D,
        .n_window = WINDOW,
        .scale = scale,
        .rows = &rows,
        .rope = {on->freq, ROT},
        .window = {on->window, f, ROWS, nib_row_bytes(f, D, ROT)},
        .o = {on->o, NIB_DTYPE_F32, 1, HEADS * D, HEADS * D}};
    s->attend = on->part;
    s->n_attend_max = sizeof on->part / sizeof *on->part;
    s->n_sms = whole ? 1 : 1024; /* few rows are what a card has many multiprocessors for */
    /* NaN, over the sums of the kernel before too: they are this one's. */
    cudaError_t e = cudaMemsetAsync(on->o, 0xff, sizeof on->o, s->handle);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(on->part, 0xff, sizeof on->part, s->handle);
    if (e == cudaSuccess)
        NIB_TRY(nib_cuda_sm120a_attend(s, &a));
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(t->host.o, on->o, sizeof on->o, cudaMemcpyDeviceToHost, s->handle);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(s->handle);
    return nib_cuda_check(s, e, "self-test");
}

static enum nib_status run_all(struct nib_stream *s, struct test *t, struct memory *on, char *why, size_t why_bytes)
{
    static const enum nib_row_format formats[] = {NIB_ROW_BF16, NIB_ROW_FP8, NIB_ROW_NVFP4};
    static const char *const         names[] = {"bf16",          "fp8",          "nvfp4",
                                                "span_bf16",     "span_fp8",     "span_nvfp4",
                                                "f32_bf16",      "f32_fp8",      "f32_nvfp4",
                                                "f32_span_bf16", "f32_span_fp8", "f32_span_nvfp4"};
    const float                      scale = 0.044f;
    make_query(t);
    for (int f = 0; f < 3; f++) {
        make_rows(t, formats[f]);
        NIB_TRY(nib_cuda_check(
            s, cudaMemcpyAsync(on, &t->host, sizeof *on, cudaMemcpyHostToDevice, s->handle), "self-test"));
        NIB_TRY(nib_cuda_check(s, cudaStreamSynchronize(s->handle), "self-test"));
        for (int way = 0; way < 4 && why[0] == 0; way++) {
            NIB_TRY(run(s, t, on, formats[f], way >= 2, way % 2 == 0, scale));
            hold(t, names[way * 3 + f], (double)scale, why, why_bytes);
        }
    }
    return NIB_OK;
}

/* ---- Index scores ---- */

struct index_memory {
    uint8_t row[KEYS * KEY_BYTES];
    float   q[INDEX_HEADS * INDEX_DIM], weight[INDEX_HEADS], score[KEYS];
    int32_t pos, seq, page[PAGES];
};

struct index_test {
    uint64_t            random;
    struct index_memory host;
    float               key[KEYS][INDEX_DIM]; /* by place */
};

static void make_index(struct index_test *t)
{
    struct index_memory *m = &t->host;
    for (int32_t i = 0; i < INDEX_HEADS + KEYS; i++) {
        float    x[INDEX_DIM];
        uint8_t  query[KEY_BYTES], *row = i < INDEX_HEADS ? query : m->row + (i - INDEX_HEADS) * KEY_BYTES;
        for (int32_t k = 0; k < INDEX_DIM; k++)
            x[k] = nib_selftest_value(&t->random) * (float)(1 << (i + k / 32) % 5);
        nib_kv_fp4_encode(x, INDEX_DIM, row);
        nib_kv_fp4_decode(row, INDEX_DIM, i < INDEX_HEADS ? m->q + i * INDEX_DIM : t->key[i - INDEX_HEADS]);
    }
    for (int32_t h = 0; h < INDEX_HEADS; h++)
        m->weight[h] = nib_selftest_value(&t->random);
    for (int32_t i = 0; i < PAGES; i++)
        m->page[i] = (i * 2 + 1) % PAGES;
    m->pos = VISIBLE * RATIO - 1;
}

/* Products are exact, sums fp32: within 2^-20 of the sum of magnitudes. */
static void hold_index(const struct index_test *t, double scale, char *why, size_t why_bytes)
{
    const struct index_memory *m = &t->host;
    for (int32_t e = 0; e < VISIBLE && why[0] == 0; e++) {
        const float *key = t->key[m->page[e / ENTRIES] * ENTRIES + e % ENTRIES];
        double       want = 0, size = 0;
        for (int32_t h = 0; h < INDEX_HEADS; h++) {
            double dot = 0, all = 0;
            for (int32_t k = 0; k < INDEX_DIM; k++) {
                dot += (double)m->q[h * INDEX_DIM + k] * (double)key[k];
                all += fabs((double)m->q[h * INDEX_DIM + k] * (double)key[k]);
            }
            want += (double)m->weight[h] * scale * fmax(dot, 0);
            size += fabs((double)m->weight[h]) * scale * all;
        }
        if (!(fabs((double)m->score[e] - want) <= 0x1p-20 * size))
            (void)snprintf(why, why_bytes, "sm120a index_fp4: entry %d is %.9g, wanted %.9g", e, (double)m->score[e],
                           want);
    }
}

static enum nib_status run_index(struct nib_stream *s, struct index_test *t, struct index_memory *on, char *why,
                                 size_t why_bytes)
{
    make_index(t);
    memset(t->host.score, 0xff, sizeof t->host.score); /* NaN */
    struct nib_rows rows = {.n_rows = 1,
                            .n_seqs = 1,
                            .pos = &on->pos,
                            .seq = &on->seq,
                            .entry_page = on->page,
                            .page_stride = PAGES};
    struct nib_index_select_args a = {
        .q = {on->q, NIB_DTYPE_F32, 1, INDEX_HEADS * INDEX_DIM, INDEX_HEADS * INDEX_DIM},
        .weight = {on->weight, NIB_DTYPE_F32, 1, INDEX_HEADS, INDEX_HEADS},
        .n_heads = INDEX_HEADS,
        .dim = INDEX_DIM,
        .ratio = RATIO,
        .top_k = 1,
        .scale = 0.125f,
        .rows = &rows,
        .keys = {on->row, NIB_ROW_FP4, ENTRIES, KEY_BYTES}};
    s->n_sms = 0; /* one block, which takes its tiles in turn */
    cudaError_t e = cudaMemcpyAsync(on, &t->host, sizeof *on, cudaMemcpyHostToDevice, s->handle);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(s->handle);
    if (e == cudaSuccess)
        NIB_TRY(nib_sm120a_index_scores(s, &a, 0, 1, VISIBLE, on->score, KEYS));
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(t->host.score, on->score, sizeof on->score, cudaMemcpyDeviceToHost, s->handle);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(s->handle);
    NIB_TRY(nib_cuda_check(s, e, "self-test"));
    hold_index(t, (double)a.scale, why, why_bytes);
    return NIB_OK;
}

static enum nib_status test_index(struct nib_stream *s, char *why, size_t why_bytes)
{
    struct index_test   *t = calloc(1, sizeof *t);
    struct index_memory *on = NULL;
    if (!t)
        return nib_error_set(&s->error, NIB_E_MEMORY, "cuda: no memory for the self-test");
    enum nib_status status = nib_cuda_check(s, cudaMalloc((void **)&on, sizeof *on), "self-test");
    if (status == NIB_OK)
        status = run_index(s, t, on, why, why_bytes);
    (void)cudaFree(on);
    free(t);
    return status;
}

/* ---- All of them ---- */

enum nib_status nib_sm120a_selftest(struct nib_stream *s, char *why, size_t why_bytes)
{
    struct nib_stream mine = *s; /* with scratch of its own */
    struct test      *t = calloc(1, sizeof *t);
    struct memory    *on = NULL;
    enum nib_status   status = NIB_E_MEMORY;
    if (t)
        status = nib_cuda_check(s, cudaMalloc((void **)&on, sizeof *on), "self-test");
    else
        (void)nib_error_set(&s->error, NIB_E_MEMORY, "cuda: no memory for the self-test");
    if (status == NIB_OK) {
        status = run_all(&mine, t, on, why, why_bytes);
        if (status == NIB_OK && why[0] == 0)
            status = test_index(&mine, why, why_bytes);
        if (status != NIB_OK)
            s->error = mine.error;
    }
    (void)cudaFree(on);
    free(t);
    return status;
}
