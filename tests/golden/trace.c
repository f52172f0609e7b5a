/* Inner values of the fp32 model at 777 tokens, last 8 positions, against the reference's, each within 1e-5 of its tensor's
 * largest value:
 *
 *   trace BACKEND MODEL_DIR      (the BF16 layout, which is not bundled)
 *
 * A table of ops that wraps the backend's watches the pass; the forward code knows nothing of it. Values that the ops only keep
 * rotated are rotated back here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "support/model_support.h"

#define N_TOKENS 777
#define N_LAST   8
#define FIRST    (N_TOKENS - N_LAST)

static const char *g_backend, *g_dir;

static struct {
    struct fixture          f;
    struct nib_checkpoint  *goldens;
    const struct nib_ops   *inner;
    struct nib_ops          table;
    struct nib_mat          collapsed, scores;
    int32_t                *chosen;
    float                  *weights;
    int32_t                 layer, n_compared, n_bad;
    bool                    in_ffn;
} g;

static struct nib_layer *layer_now(void)
{
    return &g.f.engine->rank.weights.layer[g.layer];
}

/* n values of `got` against the golden "layers.<now>.<name>" (or `name` alone when top). */
static void compare(const char *name, const float *got, size_t n, bool top)
{
    const struct nib_tensor_entry *e = top ? golden_find(g.goldens, "%s", name) : golden_find(g.goldens, "layers.%d.%s", (int)g.layer, name);
    if (!e)
        fail_msg("no golden for %s in layer %d", name, (int)g.layer);
    assert_int_equal(e->bytes, n * sizeof(float));
    float *want = golden_copy(e);
    double most = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        most = fabs((double)want[i]) > most ? fabs((double)want[i]) : most;
        worst = d <= worst ? worst : d == d ? d : INFINITY;
    }
    free(want);
    g.n_compared++;
    if (!(worst <= 1e-5 * most)) {
        g.n_bad++;
        printf("layer %d %s: off by %.3g, %.3g of its maximum\n", (int)g.layer, name, worst, worst / most);
    }
}

/* The last rows of a matrix of fp32 rows, packed. */
static void compare_rows(const char *name, const struct nib_mat *m, bool top)
{
    const int32_t first = m->rows - N_LAST;
    float *packed = malloc((size_t)N_LAST * (size_t)m->cols * sizeof *packed);
    assert_non_null(packed);
    for (int32_t t = 0; t < N_LAST; t++)
        memcpy(packed + (size_t)t * (size_t)m->cols, (const float *)m->data + (first + t) * m->stride,
               (size_t)m->cols * sizeof(float));
    compare(name, packed, (size_t)N_LAST * (size_t)m->cols, top);
    free(packed);
}

static void rotate_back(float *head, int32_t d, const struct nib_rope *rope, int32_t pos)
{
    for (int32_t i = 0; i < rope->n_rot / 2; i++) {
        const float angle = (float)pos * rope->freq[i];
        float *pair = head + d - rope->n_rot + 2 * i;
        const double c = cos((double)angle), s = sin((double)angle), x = (double)pair[0], y = (double)pair[1];
        pair[0] = (float)(x * c + y * s);
        pair[1] = (float)(y * c - x * s);
    }
}

static enum nib_status watch_hc_pre(struct nib_stream *s, const struct nib_hc_pre_args *a)
{
    struct nib_hc_pre_args mine = *a;
    g.in_ffn = a->fn == layer_now()->ffn_hc.fn;
    mine.collapsed = g.collapsed;
    const enum nib_status status = g.inner->hc_pre(s, &mine);
    compare_rows(g.in_ffn ? "ffn_hc.post" : "attn_hc.post", &a->post, false);
    compare_rows(g.in_ffn ? "ffn_hc.comb" : "attn_hc.comb", &a->comb, false);
    compare_rows(g.in_ffn ? "ffn_hc.collapsed" : "attn_hc.collapsed", &g.collapsed, false);
    if (!g.in_ffn)
        compare_rows("attn_in", &a->x.plain, false);
    return status;
}

static enum nib_status watch_norm(struct nib_stream *s, const struct nib_norm_args *a)
{
    const enum nib_status status = g.inner->norm(s, a);
    if (a->weight == layer_now()->q_norm)
        compare_rows("q_residual", &a->y.plain, false);
    return status;
}

static enum nib_status watch_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a)
{
    const enum nib_status status = g.inner->q_rope(s, a);
    float *q = malloc((size_t)N_LAST * (size_t)a->q.cols * sizeof *q);
    assert_non_null(q);
    for (int32_t t = 0; t < N_LAST; t++) {
        memcpy(q + (size_t)t * (size_t)a->q.cols, (const float *)a->q.data + (FIRST + t) * a->q.stride,
               (size_t)a->q.cols * sizeof(float));
        for (int32_t h = 0; h < a->n_heads; h++)
            rotate_back(q + (size_t)t * (size_t)a->q.cols + h * a->head_dim, a->head_dim, &a->rope, FIRST + t);
    }
    compare("q_normed", q, (size_t)N_LAST * (size_t)a->q.cols, false);
    free(q);
    return status;
}

static const float *stored_row(const struct nib_store *st, const int32_t *page, int32_t i)
{
    return (const float *)(const void *)(st->base + ((int64_t)page[i / st->page_rows] * st->page_rows + i % st->page_rows) * st->row_bytes);
}

static enum nib_status watch_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a)
{
    const enum nib_status status = g.inner->kv_insert(s, a);
    const int32_t d = a->kv.cols;
    float *kv = malloc((size_t)N_LAST * (size_t)d * sizeof *kv);
    assert_non_null(kv);
    for (int32_t t = 0; t < N_LAST; t++) {
        memcpy(kv + (size_t)t * (size_t)d, stored_row(&a->window, a->rows->window_page, FIRST + t),
               (size_t)d * sizeof(float));
        rotate_back(kv + (size_t)t * (size_t)d, d, &a->rope, FIRST + t);
    }
    compare("kv_normed", kv, (size_t)N_LAST * (size_t)d, false);
    free(kv);
    return status;
}

static enum nib_status watch_compress(struct nib_stream *s, const struct nib_compress_args *a)
{
    const enum nib_status status = g.inner->compress(s, a);
    const int32_t n = N_TOKENS / a->ratio;
    if (a->ape != layer_now()->compress.ape)
        return status;
    float *e = malloc((size_t)n * (size_t)a->width * sizeof *e);
    assert_non_null(e);
    for (int32_t i = 0; i < n; i++)
        memcpy(e + (size_t)i * (size_t)a->width, stored_row(&a->entries, a->rows->entry_page, i),
               (size_t)a->width * sizeof(float));
    compare("compressed_kv", e, (size_t)n * (size_t)a->width, false);
    free(e);
    return status;
}

static enum nib_status watch_index_select(struct nib_stream *s, const struct nib_index_select_args *a)
{
    struct nib_index_select_args mine = *a;
    mine.scores = g.scores;
    const enum nib_status status = g.inner->index_select(s, &mine);
    const int32_t n = N_TOKENS / a->ratio;
    float *want = golden_copy(golden_find(g.goldens, "layers.%d.index_scores",
                                          (int)g.layer)), *got = malloc((size_t)N_LAST * (size_t)n * 4);
    int32_t *top = golden_copy(golden_find(g.goldens, "layers.%d.index_topk", (int)g.layer));
    assert_non_null(got);
    for (int32_t t = 0; t < N_LAST; t++)
        for (int32_t c = 0; c < n; c++) /* entries that a query does not see are scored by the reference only */
            got[t * n + c] = c < (FIRST + t + 1) / a->ratio ? ((const float *)g.scores.data)[(FIRST + t) * g.scores.stride + c]
                                                           : want[t * n + c];
    compare("index_scores", got, (size_t)N_LAST * (size_t)n, false);
    for (int32_t t = 0; t < N_LAST; t++)
        if (memcmp(top + t * a->top_k, a->selected + (FIRST + t) * a->top_k, (size_t)a->top_k * 4) != 0) {
            g.n_bad++;
            printf("layer %d: row %d selects other entries\n", (int)g.layer, (int)(FIRST + t));
        }
    free(want);
    free(got);
    free(top);
    return status;
}

static enum nib_status watch_attend(struct nib_stream *s, const struct nib_attend_args *a)
{
    const enum nib_status status = g.inner->attend(s, a);
    compare_rows("o_a_in", &a->o, false);
    return status;
}

static enum nib_status watch_linear(struct nib_stream *s, const struct nib_linear_args *a)
{
    const enum nib_status status = g.inner->linear(s, a);
    if (a->w[0] == layer_now()->wo_b)
        compare_rows("attn_out", &a->y[0], false);
    return status;
}

/* The same experts, each with its weight, in whatever order. */
static void compare_routes(int32_t top_k)
{
    int32_t *want = golden_copy(golden_find(g.goldens, "layers.%d.router_experts", (int)g.layer));
    float *weight = golden_copy(golden_find(g.goldens, "layers.%d.router_weights",
                                            (int)g.layer)), *got = malloc((size_t)(N_LAST * top_k) * 4);
    assert_non_null(got);
    for (int32_t i = 0; i < N_LAST * top_k; i++) {
        const int32_t row = i / top_k * top_k, base = FIRST * top_k + row;
        got[i] = NAN;
        for (int32_t j = 0; j < top_k; j++)
            if (g.chosen[base + j] == want[i])
                got[i] = g.weights[base + j];
    }
    compare("router_weights", got, (size_t)(N_LAST * top_k), false);
    free(want);
    free(weight);
    free(got);
}

static enum nib_status watch_moe(struct nib_stream *s, const struct nib_moe_args *a)
{
    struct nib_moe_args mine = *a;
    mine.chosen = g.chosen;
    mine.weights = g.weights;
    const enum nib_status status = g.inner->moe(s, &mine);
    compare_routes(a->top_k);
    compare_rows("moe_out", &a->y, false);
    return status;
}

static enum nib_status watch_hc_post(struct nib_stream *s, const struct nib_hc_post_args *a)
{
    const enum nib_status status = g.inner->hc_post(s, a);
    if (g.in_ffn) {
        compare_rows("streams_out", &a->streams, false);
        g.layer += g.layer + 1 < g.f.engine->rank.config->n_layers;
    }
    return status;
}

static enum nib_status watch_hc_head(struct nib_stream *s, const struct nib_hc_head_args *a)
{
    struct nib_hc_head_args mine = *a;
    mine.collapsed = g.collapsed;
    mine.collapsed.rows = a->n;
    const enum nib_status status = g.inner->hc_head(s, &mine);
    compare_rows("hc_head_out", &mine.collapsed, true);
    return status;
}

static void watch(void)
{
    struct nib_rank *rk = &g.f.engine->rank;
    g.inner = rk->ops;
    g.table = *rk->ops;
    g.table.hc_pre = watch_hc_pre;
    g.table.norm = watch_norm;
    g.table.q_rope = watch_q_rope;
    g.table.kv_insert = watch_kv_insert;
    g.table.compress = watch_compress;
    g.table.index_select = watch_index_select;
    g.table.attend = watch_attend;
    g.table.linear = watch_linear;
    g.table.moe = watch_moe;
    g.table.hc_post = watch_hc_post;
    g.table.hc_head = watch_hc_head;
    rk->ops = &g.table;
    g.collapsed = (struct nib_mat){calloc(N_TOKENS * (size_t)rk->config->dim, 4), NIB_DTYPE_F32, N_TOKENS, rk->config->dim, rk->config->dim};
    g.scores = (struct nib_mat){calloc(N_TOKENS * 256, 4), NIB_DTYPE_F32, N_TOKENS, 256, 256};
    g.chosen = calloc(N_TOKENS * (size_t)rk->config->top_k, 4);
    g.weights = calloc(N_TOKENS * (size_t)rk->config->top_k, 4);
    assert_true(g.collapsed.data && g.scores.data && g.chosen && g.weights);
}

static void test_trace(void **state)
{
    (void)state;
    struct nib_options o;
    struct nib_error err = {0};
    struct nib_seq *seq = NULL;
    nib_options_init(&o);
    o.backend = g_backend;
    o.n_ctx = 1024;
    o.n_rows_max = N_TOKENS;
    o.kv = NIB_KV_F32;
    o.act_quant = NIB_ACT_QUANT_NONE;
    g.goldens = goldens_open();
    g.f = fixture_open(g_dir, &o);
    watch();
    assert_int_equal(nib_seq_open(g.f.engine, &seq, &err), NIB_OK);
    int32_t *ids = golden_copy(golden_find(g.goldens, "ids.%d", N_TOKENS));
    float *logits = malloc((size_t)N_LAST * (size_t)g.f.vocab * sizeof *logits);
    assert_non_null(logits);
    fixture_run(&g.f, seq,
                &(struct run){.ids = ids, .n = N_TOKENS, .chunk = N_TOKENS, .n_last = N_LAST, .logits = logits});
    compare("logits", logits, (size_t)N_LAST * (size_t)g.f.vocab, true);
    printf("%s: %d tensors compared, %d outside 1e-5 of their maximum\n", g_backend, (int)g.n_compared, (int)g.n_bad);
    assert_int_equal(g.n_bad, 0);
    assert_true(g.n_compared > 80);
    free(logits);
    free(ids);
    nib_seq_close(seq);
    fixture_close(&g.f);
    nib_checkpoint_close(g.goldens);
    free(g.collapsed.data);
    free(g.scores.data);
    free(g.chosen);
    free(g.weights);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: trace BACKEND MODEL_DIR\n");
        return 2;
    }
    g_backend = argv[1];
    g_dir = argv[2];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trace)};
    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
