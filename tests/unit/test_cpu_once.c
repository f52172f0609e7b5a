/* Every weight's bytes are read once in a step of up to 16 sequences, those of experts too, whoever shares them: the
 * cpu backend's tiles of panels are counted while a model of random weights takes steps, and held to the list of its
 * tensors. What a tile does with its panel is counted by tests/kernels/reads.sh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "engine/engine.h"

enum { N_SEQS = 16, VOCAB = 2048, TOP_K = 4, PANELS_MAX = 1 << 16 };

static struct nib_cpu_kernels g_inner;
static const uint8_t         *g_panel[PANELS_MAX]; /* in the order in which tiles began */
static uint64_t               g_bytes;             /* codes of all of them */
static int32_t                g_n;

/* Factors of hyper-connections are fp32 numbers where they lie, not panels. */
static void note(const struct nib_cpu_tile *t)
{
    for (int32_t out = 0; t->w->type != NIB_WEIGHT_F32 && out < t->n_outs; out += NIB_CPU_PANEL) {
#pragma omp critical(test_cpu_once)
        {
            assert_true(g_n < PANELS_MAX);
            g_panel[g_n++] = t->w->codes + (t->out + out) / NIB_CPU_PANEL * t->w->codes_stride;
            g_bytes += (uint64_t)t->w->codes_stride;
        }
    }
}

static void counted_plain(const struct nib_cpu_tile *t)
{
    note(t);
    g_inner.tile_plain(t);
}

static void counted_codes(const struct nib_cpu_tile *t)
{
    note(t);
    g_inner.tile_codes(t);
}

static void counted_bf16(const struct nib_cpu_tile *t)
{
    note(t);
    g_inner.tile_bf16(t);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Panels and bytes of codes of all matrices that a step multiplies: all but rows that are looked up and what is kept in
 * fp32. The model has as many experts as a token takes, so a step takes all. */
static void expect(const struct nib_model *m, int32_t *n_panels, uint64_t *bytes)
{
    struct nib_tensor_info t;
    *n_panels = 0;
    *bytes = 0;
    for (int64_t i = 0; nib_model_get_tensor(m, i, &t); i++) {
        if (t.n_dims != 2 || strcmp(t.format, "f32") == 0 || strcmp(t.format, "i64") == 0 ||
            strcmp(t.family, "embed") == 0 || ends_with(t.name, ".ape"))
            continue;
        const int64_t panels = (t.shape[0] + 15) / 16, values = 16 * t.shape[1];
        *n_panels += (int32_t)panels;
        *bytes += (uint64_t)(panels * (strcmp(t.format, "bf16") == 0  ? values * 2
                                       : strcmp(t.format, "fp8") == 0 ? values
                                                                      : values / 2));
    }
}

static int compare(const void *a, const void *b)
{
    const uint8_t *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

static void check_step(struct nib_engine *e, struct nib_seq *const *seq, int32_t n_seqs, int32_t n_panels,
                       uint64_t bytes)
{
    static float logits[N_SEQS * VOCAB];
    int32_t token[N_SEQS], start[N_SEQS + 1], wanted[N_SEQS];
    for (int32_t i = 0; i <= n_seqs; i++)
        start[i] = i;
    for (int32_t i = 0; i < n_seqs; i++) {
        token[i] = 5 + 37 * i;
        wanted[i] = i;
    }
    const struct nib_batch b = {.n_rows = n_seqs, .n_seqs = n_seqs, .n_logits = n_seqs, .token = token,
                                .seq_start = start, .seq = (struct nib_seq **)seq, .logits_row = wanted};
    struct nib_error err = {0};
    g_n = 0;
    g_bytes = 0;
    if (nib_step(e, &b, logits, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    qsort(g_panel, (size_t)g_n, sizeof *g_panel, compare);
    for (int32_t i = 1; i < g_n; i++)
        if (g_panel[i] == g_panel[i - 1])
            fail_msg("%d sequences: a panel was taken twice; %d of %d", (int)n_seqs, (int)g_n, (int)n_panels);
    assert_int_equal(g_n, n_panels);
    assert_int_equal(g_bytes, bytes);
}

static void check_model(const char *format, enum nib_act_quant act)
{
    static const int32_t   batches[] = {1, 2, 4, 9, N_SEQS};
    const struct nib_shape shape = {.name = "tiny", .format = format, .n_experts = TOP_K};
    struct nib_error   err = {0};
    struct nib_options o;
    struct nib_model  *m;
    struct nib_engine *e;
    struct nib_seq    *seq[N_SEQS];
    int32_t            n_panels;
    uint64_t           bytes;
    assert_int_equal(nib_model_open_random(&shape, &m, &err), NIB_OK);
    nib_options_init(&o);
    o.backend = "cpu";
    o.n_ctx = 128;
    o.n_seqs_max = o.n_rows_max = N_SEQS;
    o.act_quant = act;
    o.n_threads = 2;
    assert_int_equal(nib_engine_open(m, &o, &e, &err), NIB_OK);
    struct nib_stream *s = e->rank.stream;
    g_inner = s->k;
    s->k.tile_plain = counted_plain;
    s->k.tile_codes = counted_codes;
    s->k.tile_bf16 = g_inner.tile_bf16 ? counted_bf16 : NULL;
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(nib_seq_open(e, &seq[i], &err), NIB_OK);
    expect(m, &n_panels, &bytes);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        check_step(e, seq, batches[i], n_panels, bytes);
    for (int i = 0; i < N_SEQS; i++)
        nib_seq_close(seq[i]);
    nib_engine_close(e);
    nib_model_close(m);
}

static void test_once(void **unused)
{
    (void)unused;
    check_model("nvfp4", NIB_ACT_QUANT_NONE);
    check_model("nvfp4", NIB_ACT_QUANT_INT8);
    check_model("official", NIB_ACT_QUANT_NONE);
    check_model("official", NIB_ACT_QUANT_FP8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_once)};
    return cmocka_run_group_tests_name("reading weights once", tests, NULL, NULL);
}
