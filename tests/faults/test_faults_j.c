/* Known faults of numerics: B102 to B106 and B109. B110 is the whole-model goldens' (docs/known-faults.md). */
#include "faults/moe_rig.h"

#include <stdio.h>

#include "number/kv_rows.h"
#include "support/hostile.h"
#include "support/model_support.h"

enum { VOCAB = 2048, H = RIG_HEADS, D = RIG_HEAD_DIM };

/* ---- B102, B103: which rows attention sums over, and the sink ---- */

/* n_window rows of position pos and the selected entries, all scores 0, since the query is: o = sum of rows / (rows +
 * exp(sink)). Entry and window rows hold 1 + their number / 8 in every channel. */
static void attend(int pos, int window, int ratio, int top_k, const int32_t *selected, int n_selected, const float *sink, double *o)
{
    struct rig r;
    struct rig_step st;
    rig_open(&r, 1);
    rig_step(&st, (int[]){pos, 0, 0}, (int[]){1, 0, 0});
    struct nib_store rows = rig_store(&r, NIB_ROW_F32, 128, D, 0), entries = rig_store(&r, NIB_ROW_F32, 128 / (ratio ? ratio : 1), D, 0);
    const struct nib_rope rope = {rig_random_floats(&r, RIG_ROT / 2, 0, 0), RIG_ROT}; /* no rotation */
    for (int i = 0; i <= pos; i++) {
        float x[D];
        for (int k = 0; k < D; k++)
            x[k] = 1 + (float)i / 8;
        nib_kv_f32_encode(x, D, rows.base + (st.window_page[i / 128] * 128 + i % 128) * rows.row_bytes);
        if (ratio && i < (pos + 1) / ratio)
            nib_kv_f32_encode(x, D, entries.base + (st.entry_page[i / entries.page_rows] * entries.page_rows + i % entries.page_rows) *
                                                       entries.row_bytes);
    }
    struct nib_mat q = rig_mat(&r, NIB_DTYPE_F32, 1, H * D), out = rig_mat(&r, NIB_DTYPE_F32, 1, H * D);
    for (int i = 0; i < H * D; i++)
        rig_set(&q, 0, i, 0);
    int32_t *list = rig_alloc(&r, (size_t)top_k * sizeof *list), *n = rig_alloc(&r, sizeof *n);
    float *sinks = rig_alloc(&r, H * sizeof *sinks);
    memcpy(list, selected, (size_t)top_k * sizeof *list);
    memcpy(sinks, sink, H * sizeof *sinks);
    *n = n_selected;
    const struct nib_attend_args a = {.q = q, .sink = sinks, .n_heads = H, .head_dim = D, .n_window = window, .ratio = ratio, .top_k = top_k,
                                      .scale = 0.3f, .rows = &st.rows, .rope = rope, .window = rows, .entries = entries,
                                      .selected = ratio ? list : NULL, .n_selected = ratio ? n : NULL, .o = out};
    assert_int_equal(r.ops->attend(r.s, &a), NIB_OK);
    for (int h = 0; h < H; h++) {
        o[h] = rig_get(&out, 0, h * D);
        for (int i = 0; i < D; i++)
            assert_true(rig_get(&out, 0, h * D + i) == o[h]);
    }
    rig_close(&r);
}

/* Lists carry their length, so nothing is masked in front; none selected leaves the window and the sink, one at the
 * very end counts. */
static void b102_short_lists(void)
{
    enum { POS = 299, TOP_K = 16 };
    static const int32_t lists[][TOP_K] = {
        {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
        {74, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
        {0, 1, 2, 3, 70, 71, 72, 73, 74, -1, -1, -1, -1, -1, -1, -1},
        {0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 74},
    };
    static const int counts[] = {0, 1, 9, 16};
    float sink[H] = {0};
    for (int l = 0; l < 4; l++) {
        for (int window = 1; window <= 128; window += 127) {
            double o[H], sum = 0;
            for (int i = POS - window + 1; i <= POS; i++)
                sum += 1 + i / 8.0;
            for (int i = 0; i < counts[l]; i++)
                sum += 1 + lists[l][i] / 8.0;
            attend(POS, window, 4, TOP_K, lists[l], counts[l], sink, o);
            for (int h = 0; h < H; h++)
                assert_true(fabs(o[h] - sum / (window + counts[l] + 1)) <= 1e-5 * o[h]);
        }
    }
}
BOTH(b102_short_lists)

static void b103_sinks(void)
{
    static const float sinks[] = {-INFINITY, -10, 0, 5, 80, 3e38f};
    static const int32_t none[1] = {-1};
    for (int pos = 0; pos <= 299; pos += 299) {
        double o[H], sum = 0;
        const int n = pos + 1 < 128 ? pos + 1 : 128;
        float sink[H];
        for (int h = 0; h < H; h++)
            sink[h] = sinks[h % 6];
        for (int i = pos - n + 1; i <= pos; i++)
            sum += 1 + i / 8.0;
        attend(pos, 128, 0, 1, none, 0, sink, o);
        for (int h = 0; h < H; h++) {
            /* plain output x sigmoid(log n - sink) */
            const double wanted = sum / n / (1 + exp((double)sink[h] - log(n)));
            assert_true(isfinite(o[h]) && fabs(o[h] - wanted) <= 1e-5 * wanted + 1e-37);
        }
    }
}
BOTH(b103_sinks)

/* ---- B104: clamps of SwiGLU, of routed experts and of the shared one ---- */

static void b104_clamps(void)
{
    static const float gates[] = {9.9f, 10, 10.1f, 50, -50, 0.5f, -3}, ups[] = {9.9f, -9.9f, 10.1f, -10.1f, 50, -50, 1};
    static const float logit[RIG_EXPERTS] = {1, 1, 1, 1, 1, 1};
    float gate[RIG_INNER] = {0}, up[RIG_INNER] = {0}, bias[RIG_EXPERTS] = {0};
    for (int i = 0; i < 49; i++) {
        gate[i] = gates[i / 7];
        up[i] = ups[i % 7];
    }
    for (int shared = 0; shared < 2; shared++) {
        for (int limited = 0; limited < 2; limited++) {
            struct moe_rig m;
            moe_open(&m, 1, logit, bias, NULL, gate, up, shared ? 0 : 1, shared ? 1 : 0);
            if (!limited) {
                m.a.limit = 0;
                assert_int_equal(m.r.ops->moe(m.r.s, &m.a), NIB_OK);
            }
            for (int i = 0; i < 49; i++) {
                const double g = limited ? fmin((double)gate[i], 10) : (double)gate[i];
                const double u = limited ? fmax(-10, fmin((double)up[i], 10)) : (double)up[i];
                const double wanted = g / (1 + exp(-g)) * u * (shared ? 1 : 1.5);
                if (!(fabs(rig_get(&m.a.y, 0, i) - wanted) <= 2e-6 * fabs(wanted) + 1e-30))
                    fail_msg("gate %g, up %g, limit %d: %.9g, wanted %.9g", (double)gate[i], (double)up[i],
                             limited * 10, rig_get(&m.a.y, 0, i), wanted);
            }
            rig_close(&m.r);
        }
    }
}
BOTH(b104_clamps)

/* ---- Whole models ---- */

/* In fp32 throughout, right backends stay within 2.5e-5 of each other (golden.c); a BF16 row's bit would make up to
 * 2e-3 of it. */
static void check_close(const char *dir, int32_t n, const char *what, const float *far_from)
{
    float *a = hostile_logits(dir, "ref", NIB_ACT_QUANT_NONE, n, false), *b = hostile_logits(dir, "cpu", NIB_ACT_QUANT_NONE, n, false);
    for (int32_t i = 0; i < n * VOCAB; i++)
        assert_true(isfinite(a[i]) && isfinite(b[i]));
    const double d = hostile_distance(a, b, n, VOCAB);
    if (!(d <= 1e-4))
        fail_msg("%s: ref and cpu differ by %g", what, d);
    if (far_from)
        assert_true(hostile_distance(a, far_from, n, VOCAB) > 1e-2);
    free(a);
    free(b);
}

/* hc_eps and rms_norm_eps are different numbers in different places: each matters, and not as the other does. The op's
 * formula with hc_eps of its own is test_ref_hc's. */
static void b105_eps_of_streams_and_norms(void **state)
{
    enum { N = 6 };
    struct hostile h;
    float *both, *hc;
    (void)state;
    hostile_open(&h, MODEL_OFFICIAL);
    both = hostile_logits(hostile_write(&h), "ref", NIB_ACT_QUANT_NONE, N, false);
    json_object_set_new(h.config, "hc_eps", json_real(1e-2));
    check_close(hostile_write(&h), N, "hc_eps 1e-2", both);
    hc = hostile_logits(h.dir.path, "ref", NIB_ACT_QUANT_NONE, N, false);
    json_object_set_new(h.config, "hc_eps", json_real(1e-6));
    json_object_set_new(h.config, "rms_norm_eps", json_real(1e-2));
    check_close(hostile_write(&h), N, "rms_norm_eps 1e-2", both);
    check_close(h.dir.path, N, "rms_norm_eps 1e-2", hc);
    free(both);
    free(hc);
    hostile_close(&h);
}

/* One block of an output projection 2^20 and 2^24 times as large: far beyond 65,504 in the streams. */
static void b106_large_residuals(void **state)
{
    static const int shifts[] = {20, 24};
    struct hostile h;
    (void)state;
    for (int i = 0; i < 2; i++) {
        hostile_open(&h, MODEL_OFFICIAL);
        ((unsigned char *)hostile_item(&h, "layers.2.attn.wo_b.scale")->data)[0] += (unsigned char)shifts[i];
        check_close(hostile_write(&h), 6, "large residuals", NULL);
        hostile_close(&h);
    }
}

/* ---- B109: however many decode together ---- */

static void b109_batch_sizes(void **state)
{
    enum { N_PROMPTS = 5, MOST = 64, N_STEPS = 3 };
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64};
    static float want[N_PROMPTS][N_STEPS][VOCAB], got[MOST * VOCAB];
    struct nib_options o;
    struct nib_error err = {0};
    (void)state;
    nib_options_init(&o);
    o.backend = "cpu";
    o.n_threads = 1;
    o.n_ctx = 128;
    o.n_seqs_max = MOST;
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const int n = sizes[s], n_passes = n == 1 ? N_PROMPTS : 1;
        for (int pass = 0; pass < n_passes; pass++) {
            struct nib_seq *seq[MOST];
            for (int i = 0; i < n; i++)
                assert_int_equal(nib_seq_open(f.engine, &seq[i], &err), NIB_OK);
            for (int k = 0; k < N_STEPS; k++) {
                int32_t token[MOST], start[MOST + 1], row[MOST];
                for (int i = 0; i < n; i++) {
                    token[i] = k == 0 ? 0 : ((i + pass) % N_PROMPTS * 101 + k * 17 + 3) % VOCAB;
                    start[i] = row[i] = i;
                }
                start[n] = n;
                const struct nib_batch b = {.n_rows = n, .n_seqs = n, .n_logits = n, .token = token, .seq_start = start, .seq = seq, .logits_row = row};
                assert_int_equal(nib_step(f.engine, &b, got, NULL, &err), NIB_OK);
                for (int i = 0; i < n; i++) {
                    float *one = want[(i + pass) % N_PROMPTS][k];
                    if (n == 1)
                        memcpy(one, got, VOCAB * sizeof *got);
                    for (int v = 0; v < VOCAB; v++)
                        assert_true(isfinite(got[i * VOCAB + v]));
                    if (memcmp(one, got + i * VOCAB, VOCAB * sizeof *got) != 0)
                        fail_msg("batch of %d, row %d, step %d: not what it is alone", n, i, k);
                }
            }
            for (int i = 0; i < n; i++)
                nib_seq_close(seq[i]);
        }
    }
    fixture_close(&f);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        ON_BOTH(b102_short_lists),
        ON_BOTH(b103_sinks),
        ON_BOTH(b104_clamps),
        cmocka_unit_test(b105_eps_of_streams_and_norms),
        cmocka_unit_test(b106_large_residuals),
        cmocka_unit_test(b109_batch_sizes),
    };
    return cmocka_run_group_tests_name("faults_j", tests, NULL, NULL);
}
