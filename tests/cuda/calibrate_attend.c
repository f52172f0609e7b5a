/* Attention on Hopper for fixed inputs (calibrate_sm90a.c): every format of rows, both kinds of queries, few rows
 * (eight blocks each), more (two), and many (one).
 *
 * Where all scores are 0 weights are 1 over the number of rows and the sink, a power of two, so sums of small integers
 * come out exact. Otherwise scores differ, and exp() may, by a bound. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/attend_cuda.h"
#include "calibrate.h"

enum { D = 512, ROT = 64, QUANTISED = D - ROT, WINDOW = 128, RATIO = 4, POSITIONS = 256, ENTRIES = POSITIONS / RATIO,
       TOP = 24, HEADS_MOST = 40, ROWS_MOST = 20 };

struct attend_case {
    const char          *name;
    uint64_t             seed;
    enum nib_row_format  format;
    bool                 f32, exact;
    int32_t              n_rows, n_heads, n_sms;
    int32_t              pos[4], n_selected[4]; /* of row t: [t % 4] */
};

/* 127, 111 + 16, 63 and 31 rows, and the sink. */
#define EXACT {126, 110, 62, 30}, {0, 16, 0, 0}
#define ANY {200, 131, 9, 255}, {24, 7, 1, 20}
static const struct attend_case cases[] = {
    {"integers, attend bf16 few", 2000, NIB_ROW_BF16, false, true, 3, 7, 8, EXACT},
    {"integers, attend fp8 two", 2001, NIB_ROW_FP8, true, true, 17, 5, 64, EXACT},
    {"integers, attend nvfp4 many", 2002, NIB_ROW_NVFP4, false, true, 20, 40, 8, EXACT},
    {"random, attend fp32 bf16 few", 2004, NIB_ROW_BF16, true, false, 4, 40, 8, ANY},
    {"random, attend fp8 few", 2005, NIB_ROW_FP8, false, false, 4, 9, 8, ANY},
    {"random, attend fp32 fp8 many", 2006, NIB_ROW_FP8, true, false, 18, 3, 8, ANY},
    {"random, attend nvfp4 two", 2007, NIB_ROW_NVFP4, false, false, 17, 8, 64, ANY},
    {"random, attend fp32 nvfp4 few", 2008, NIB_ROW_NVFP4, true, false, 4, 33, 8, ANY},
};

int calibrate_attend_cases(void)
{
    return (int)(sizeof cases / sizeof *cases);
}

/* ---- Rows ---- */

static size_t row_bytes(enum nib_row_format f)
{
    /* FP8: codes, 64 bf16, seven scales and zeros; NVFP4: codes, 28 scales, the row's scale, 64 bf16. */
    return f == NIB_ROW_BF16 ? 2 * D : f == NIB_ROW_FP8 ? 592 : 384;
}

static double draw_bf16_at(uint8_t *at, bool exact)
{
    uint16_t h = calibrate_bf16(exact);
    memcpy(at, &h, 2);
    return calibrate_bf16_value(h);
}

/* One stored row; its values to v [D]. */
static void draw_row(const struct attend_case *c, uint8_t *row, double *v)
{
    uint8_t *rotated = c->format == NIB_ROW_FP8 ? row + QUANTISED : row + QUANTISED / 2 + QUANTISED / 16 + 4;
    float    g = c->exact ? 1.0f : 0.5f + (float)(calibrate_next() % 1000) / 1000.0f;
    if (c->format == NIB_ROW_BF16) {
        for (int i = 0; i < D; i++)
            v[i] = draw_bf16_at(row + 2 * i, c->exact);
        return;
    }
    for (int i = 0; i < ROT; i++)
        v[QUANTISED + i] = draw_bf16_at(rotated + 2 * i, c->exact);
    for (int b = 0; b < QUANTISED / 64 && c->format == NIB_ROW_FP8; b++) {
        row[QUANTISED + 2 * ROT + b] = (uint8_t)(c->exact ? 127 : 118 + calibrate_next() % 3);
        for (int i = b * 64; i < b * 64 + 64; i++) {
            row[i] = calibrate_e4m3(c->exact);
            v[i] = calibrate_e4m3_value(row[i]) * ldexp(1, row[QUANTISED + 2 * ROT + b] - 127);
        }
    }
    if (c->format != NIB_ROW_NVFP4)
        return;
    memcpy(rotated - 4, &g, 4);
    for (int b = 0; b < QUANTISED / 16; b++) {
        uint8_t scale = (uint8_t)(c->exact ? 0x40 : 0x28 + calibrate_next() % 0x10); /* 2, for halves are no integers */
        row[QUANTISED / 2 + b] = scale;
        for (int i = b * 16; i < b * 16 + 16; i++) {
            if (i % 2 == 0)
                row[i / 2] = (uint8_t)calibrate_next();
            v[i] = calibrate_e2m1_value((uint32_t)row[i / 2] >> i % 2 * 4 & 15u) * calibrate_e4m3_value(scale) *
                   (double)g;
        }
    }
}

/* n rows on the device, values to v [n][D]. */
static struct nib_store rows_up(const struct attend_case *c, int32_t n, int32_t page_rows, double *v)
{
    struct nib_store s = {.format = c->format, .page_rows = page_rows, .row_bytes = (int64_t)row_bytes(c->format)};
    uint8_t         *rows = calibrate_host((size_t)n * row_bytes(c->format));
    for (int32_t i = 0; i < n; i++)
        draw_row(c, rows + (size_t)i * row_bytes(c->format), v + (int64_t)i * D);
    s.base = calibrate_up(rows, (size_t)n * row_bytes(c->format));
    free(rows);
    return s;
}

/* ---- What must come out ---- */

struct problem {
    const struct attend_case *c;
    double                   *q, *window, *entries; /* [n_rows][n_heads][D], [POSITIONS][D], [ENTRIES][D] */
    float                     sink[HEADS_MOST], freq[ROT / 2];
    int32_t                   selected[ROWS_MOST * TOP];
};

/* Value j of what row t attends to; NULL behind the last. */
static const double *attended(const struct problem *p, int32_t t, int32_t j)
{
    int32_t pos = p->c->pos[t % 4], first = pos - WINDOW + 1 > 0 ? pos - WINDOW + 1 : 0, n = pos - first + 1;
    if (j < n)
        return p->window + (int64_t)(first + j) * D;
    return j - n < p->c->n_selected[t % 4] ? p->entries + (int64_t)p->selected[t * TOP + j - n] * D : NULL;
}

static void expect(const struct problem *p, int32_t t, int32_t h, float scale, double *want, double *bound)
{
    double        score[WINDOW + TOP], most = (double)p->sink[h], sum, worst = 0, o[D] = {0}, size[D] = {0};
    const double *q = p->q + ((int64_t)t * p->c->n_heads + h) * D, *v;
    int32_t       n = 0;
    for (; (v = attended(p, t, n)); n++) {
        double dot = 0, dots = 0;
        for (int i = 0; i < D; i++) {
            dot += q[i] * v[i];
            dots += fabs(q[i] * v[i]);
        }
        score[n] = dot * (double)scale;
        most = score[n] > most ? score[n] : most;
        worst = dots * (double)scale > worst ? dots * (double)scale : worst;
    }
    sum = exp((double)p->sink[h] - most);
    for (int32_t j = 0; j < n; j++)
        sum += exp(score[j] - most);
    for (int32_t j = 0; j < n; j++) {
        v = attended(p, t, j);
        for (int i = 0; i < D; i++) {
            o[i] += exp(score[j] - most) / sum * v[i];
            size[i] += exp(score[j] - most) / sum * fabs(v[i]);
        }
    }
    /* Scores: an addend is cut at 2^-23 of the largest sum; an fp32 query may be two bf16 numbers. Weights: as many for
     * an fp32 query, else one. The row scale of NVFP4 rows may be rounded into either. */
    double half = p->c->f32 ? 0x1p-17 : 0x1p-9,
           part = 2 * (worst * (D * 0x1p-23 + (p->c->f32 ? 0x1p-17 : 0)) + half + 0x1p-18) + (WINDOW + TOP) * 0x1p-23;
    for (int i = 0; i < D; i++) {
        double cosine = 1, sine = 0, w = o[i], b = size[i];
        if (i >= QUANTISED) {
            double angle = (double)((float)p->c->pos[t % 4] * p->freq[(i - QUANTISED) / 2]);
            cosine = cos(angle);
            sine = i % 2 ? -sin(angle) : sin(angle); /* the other way */
            w = o[i] * cosine + o[i ^ 1] * sine;
            b = size[i] + size[i ^ 1];
        }
        want[i] = p->c->exact && !p->c->f32 ? (double)calibrate_to_bf16(w) : w;
        bound[i] = part * b + (p->c->f32 ? 0 : 0x1p-8 * fabs(w)) + 0x1p-100;
    }
}

/* ---- A case ---- */

static struct nib_mat queries_up(const struct attend_case *c, double *q)
{
    int64_t   n = (int64_t)c->n_rows * c->n_heads * D, width = (int64_t)c->n_heads * D;
    uint16_t *half = calibrate_host((size_t)n * 2);
    float    *full = calibrate_host((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        half[i] = c->exact ? 0 : calibrate_bf16(false);
        full[i] = 0;
        if (!c->exact)
            full[i] = (float)calibrate_bf16_value(half[i]) * (1.0f + (float)(calibrate_next() % 1000) * 0x1p-18f);
        q[i] = c->f32 ? (double)full[i] : calibrate_bf16_value(half[i]);
    }
    struct nib_mat m = {calibrate_up(c->f32 ? (void *)full : (void *)half, (size_t)n * (c->f32 ? 4 : 2)),
                        c->f32 ? NIB_DTYPE_F32 : NIB_DTYPE_BF16, c->n_rows, (int32_t)width, width};
    free(half);
    free(full);
    return m;
}

static struct nib_rows positions_up(const struct attend_case *c)
{
    int32_t pos[ROWS_MOST], seq[ROWS_MOST] = {0}, window_page[2] = {1, 0}, entry_page[2] = {0, 1};
    for (int32_t t = 0; t < c->n_rows; t++)
        pos[t] = c->pos[t % 4];
    int32_t start[2] = {0, c->n_rows};
    return (struct nib_rows){.n_rows = c->n_rows,
                             .n_seqs = 1,
                             .pos = calibrate_up(pos, sizeof pos),
                             .seq = calibrate_up(seq, sizeof seq),
                             .seq_start = calibrate_up(start, sizeof start),
                             .window_page = calibrate_up(window_page, sizeof window_page),
                             .entry_page = calibrate_up(entry_page, sizeof entry_page),
                             .page_stride = 2};
}

/* Rows of pages 0 and 1 the other way round, as positions 128 and on lie in page 0. */
static void by_position(double *v)
{
    for (int64_t i = 0; i < (int64_t)WINDOW * D; i++) {
        double was = v[i];
        v[i] = v[i + (int64_t)WINDOW * D];
        v[i + (int64_t)WINDOW * D] = was;
    }
}

static void launch(struct nib_stream *s, const struct nib_attend_args *a)
{
    if (a->window.format == NIB_ROW_FP8)
        nib_cuda_attend_wide_fp8(s, a);
    else if (a->window.format == NIB_ROW_NVFP4)
        nib_cuda_attend_wide_nvfp4(s, a);
    else
        nib_cuda_attend_wide_bf16(s, a);
    (void)nib_cuda_check(s, cudaGetLastError(), "attention");
}

void calibrate_attend(struct nib_stream *s, int index)
{
    const struct attend_case *c = &cases[index];
    struct problem           *p = calibrate_host(sizeof *p);
    int32_t                   n_selected[ROWS_MOST], n_sms = s->n_sms;
    int64_t                   width = (int64_t)c->n_heads * D, n = c->n_rows * width;
    double                   *want = calibrate_host((size_t)n * 8), *bound = calibrate_host((size_t)n * 8);
    calibrate_seed(c->seed);
    p->c = c;
    p->q = calibrate_host((size_t)n * 8);
    p->window = calibrate_host((size_t)POSITIONS * D * 8);
    p->entries = calibrate_host((size_t)ENTRIES * D * 8);
    for (int32_t t = 0; t < c->n_rows; t++) {
        n_selected[t] = c->n_selected[t % 4];
        int32_t visible = (c->pos[t % 4] + 1) / RATIO;
        for (int32_t j = 0; j < TOP; j++) /* ascending, the last ones that there are */
            p->selected[t * TOP + j] = j < n_selected[t] ? visible - n_selected[t] + j : -1;
    }
    for (int h = 0; h < c->n_heads; h++)
        p->sink[h] = c->exact ? 0 : (float)(calibrate_next() % 5) - 2;
    for (int i = 0; i < ROT / 2; i++)
        p->freq[i] = c->exact ? 0 : 1.0f / (float)(i + 1);
    struct nib_rows        rows = positions_up(c);
    struct nib_attend_args a = {.q = queries_up(c, p->q),
                                .sink = calibrate_up(p->sink, sizeof p->sink),
                                .n_heads = c->n_heads,
                                .head_dim = D,
                                .n_window = WINDOW,
                                .ratio = RATIO,
                                .top_k = TOP,
                                .scale = 0x1p-5f,
                                .rows = &rows,
                                .rope = {calibrate_up(p->freq, sizeof p->freq), ROT},
                                .window = rows_up(c, POSITIONS, WINDOW, p->window),
                                .entries = rows_up(c, ENTRIES, WINDOW / RATIO, p->entries),
                                .selected = calibrate_up(p->selected, sizeof p->selected),
                                .n_selected = calibrate_up(n_selected, sizeof n_selected)};
    by_position(p->window);
    a.o = (struct nib_mat){calibrate_room((size_t)n * 4), a.q.dtype, c->n_rows, (int32_t)width, width};
    s->n_sms = c->n_sms; /* which decides how many blocks share a row: the same everywhere */
    launch(s, &a);
    s->n_sms = n_sms;
    float *got = calibrate_down(&a.o);
    for (int32_t t = 0; t < c->n_rows; t++)
        for (int32_t h = 0; h < c->n_heads; h++)
            expect(p, t, h, a.scale, want + t * width + h * D, bound + t * width + h * D);
    calibrate_judge(c->name, got, want, c->exact ? NULL : bound, n);
    free(got);
    free(want);
    free(bound);
    free(p->q);
    free(p->window);
    free(p->entries);
    free(p);
}
