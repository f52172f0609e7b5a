/* Known faults of long contexts, chunks and the cache: B26, B29, B35, B38 to B40. Others of the group are found in
 * test_identity, test_drafts, test_sessions, test_serving and the goldens (docs/known-faults.md). */
#include "faults/both_backends.h"

#include <stdio.h>

#include "checkpoint/json_file.h"
#include "engine/engine.h"
#include "number/kv_rows.h"
#include "support/model_support.h"

enum { VOCAB = 2048, N_LONG = 270, N_STEPS = 8 };

static struct fixture open_model(const char *backend, int32_t n_ctx, int32_t n_seqs, int32_t n_rows)
{
    struct nib_options o;
    nib_options_init(&o);
    o.backend = backend;
    o.act_quant = NIB_ACT_QUANT_NONE; /* ref's default, with which cpu is compared */
    o.n_threads = 1;
    o.n_ctx = n_ctx;
    o.n_seqs_max = n_seqs;
    o.n_rows_max = n_rows;
    return fixture_open(MODEL_NVFP4, &o);
}

static struct nib_seq *open_seq(struct fixture *f)
{
    struct nib_seq *s = NULL;
    assert_int_equal(nib_seq_open(f->engine, &s, NULL), NIB_OK);
    return s;
}

/* Feed n[i] tokens of ids from at[i] to sequence i; logits of the last row of each. */
static void step(struct fixture *f, int n_seqs, struct nib_seq **seq, const int32_t *const *ids, const int *n, float *logits)
{
    int32_t token[1024], start[65] = {0}, row[64];
    struct nib_error err = {0};
    for (int i = 0; i < n_seqs; i++) {
        memcpy(token + start[i], ids[i], (size_t)n[i] * sizeof *token);
        start[i + 1] = start[i] + n[i];
        row[i] = start[i + 1] - 1;
    }
    const struct nib_batch b = {.n_rows = start[n_seqs], .n_seqs = n_seqs, .n_logits = n_seqs, .token = token, .seq_start = start,
                                .seq = seq, .logits_row = row};
    if (nib_step(f->engine, &b, logits, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static double distance(const float *a, const float *b)
{
    const double lse_a = nll_of(a, VOCAB, 0) + (double)a[0], lse_b = nll_of(b, VOCAB, 0) + (double)b[0];
    double worst = 0;
    for (int i = 0; i < VOCAB; i++) {
        const double d = fabs((double)a[i] - lse_a - ((double)b[i] - lse_b));
        worst = isnan(d) || d > worst ? d : worst;
    }
    return worst;
}

static int32_t *long_text(int32_t *n)
{
    struct nib_checkpoint *c = goldens_open();
    const struct nib_tensor_entry *best = NULL;
    for (int64_t i = 0; i < nib_checkpoint_n_tensors(c); i++) {
        const struct nib_tensor_entry *e = nib_checkpoint_at(c, i);
        if (strncmp(e->name, "ids.", 4) == 0 && (!best || e->bytes > best->bytes))
            best = e;
    }
    int32_t *ids = golden_copy(best);
    *n = (int32_t)(best->bytes / sizeof *ids);
    nib_checkpoint_close(c);
    return ids;
}

/* B26: prompts of every length around the borders of entries, and eight steps behind each, against one pass of ref over
 * the whole; no jump where the first entry, the first page or a new one begins. Longer ones are test_identity's and the
 * goldens'. */
static void b26_every_length(void **state)
{
    static const int ranges[][2] = {{1, 9}, {12, 12}, {31, 33}, {124, 124}, {127, 129}, {132, 132}, {252, 252}, {255, 257}, {260, 260}};
    struct fixture ref = open_model("ref", 1024, 1, N_LONG), cpu = open_model("cpu", 1024, 1, N_LONG);
    int32_t n = 0, *ids = long_text(&n);
    float *want = malloc((size_t)N_LONG * VOCAB * sizeof *want), got[VOCAB];
    struct nib_seq *s = open_seq(&ref);
    (void)state;
    assert_true(n >= N_LONG && want);
    fixture_run(&ref, s, &(struct run){.ids = ids, .n = N_LONG, .chunk = N_LONG, .n_last = N_LONG, .logits = want});
    nib_seq_close(s);
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        for (int length = ranges[r][0]; length <= ranges[r][1]; length++) {
            s = open_seq(&cpu);
            for (int k = 0; k <= N_STEPS; k++) {
                step(&cpu, 1, &s, (const int32_t *const[]){ids + (k ? length + k - 1 : 0)}, (int[]){k ? 1 : length},
                     got);
                const double d = distance(got, want + (size_t)(length + k - 1) * VOCAB);
                if (!(d <= 1e-3))
                    fail_msg("prompt of %d, %d steps on: off by %g", length, k, d);
            }
            nib_seq_close(s);
        }
    }
    free(want);
    free(ids);
    fixture_close(&ref);
    fixture_close(&cpu);
}

/* B26, B38: a batch of lengths 1, 3, 4, 5, 127, 128 and 129, and batches of 1, 2 and 8 in which no sequence has an
 * entry yet, give each what it gets alone; a batch of nothing is nothing. */
static void b26_b38_mixed_lengths(void **state)
{
    static const int batches[][9] = {{1, 3, 4, 5, 127, 128, 129, 0}, {2, 0}, {1, 3, 0}, {1, 2, 3, 1, 2, 3, 3, 2, 0}};
    int32_t n = 0, *ids = long_text(&n);
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct fixture f = open_model(k ? "cpu" : "ref", 256, 9, 512);
        for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
            struct nib_seq *seq[9];
            const int32_t *text[9];
            float together[9 * VOCAB], alone[VOCAB];
            int n_seqs = 0;
            for (; batches[b][n_seqs] > 0; n_seqs++) {
                seq[n_seqs] = open_seq(&f);
                text[n_seqs] = ids + 10 * n_seqs;
            }
            step(&f, n_seqs, seq, text, batches[b], together);
            for (int i = 0; i < n_seqs; i++)
                nib_seq_close(seq[i]);
            for (int i = 0; i < n_seqs; i++) {
                struct nib_seq *s = open_seq(&f);
                step(&f, 1, &s, &text[i], &batches[b][i], alone);
                assert_memory_equal(alone, together + (size_t)i * VOCAB, sizeof alone);
                for (int v = 0; v < VOCAB; v++)
                    assert_true(isfinite(alone[v]));
                nib_seq_close(s);
            }
        }
        const int32_t start = 0;
        const struct nib_batch nothing = {.seq_start = &start};
        assert_int_equal(nib_step(f.engine, &nothing, NULL, NULL, NULL), NIB_OK);
        fixture_close(&f);
    }
    free(ids);
}

/* ---- B29: rotary settings by layer ---- */

static json_t *tiny_config(void)
{
    json_t *root = NULL;
    assert_int_equal(nib_json_file_read(MODEL_OFFICIAL "/config.json", 1 << 20, &root, NULL), NIB_OK);
    return root;
}

static void frequencies(json_t *root, bool compressed, float *freq)
{
    struct nib_config c;
    struct nib_error err = {0};
    char *text = json_dumps(root, 0);
    if (nib_config_parse(text, strlen(text), "here", &c, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib_rope_freq(&c, compressed, freq);
    free(text);
}

static void b29_plain_layers_know_no_yarn(void **state)
{
    float with[32], without[32], flash[32];
    json_t *root = tiny_config();
    (void)state;
    frequencies(root, false, with);
    json_object_del(root, "rope_scaling");
    frequencies(root, false, without);
    assert_memory_equal(with, without, sizeof with);
    for (int i = 0; i < 32; i++)
        assert_true(fabs((double)with[i] / pow(10000, -2 * i / 64.0) - 1) <= 1e-6);
    frequencies(root, true, without);
    for (int i = 0; i < 32; i++)
        assert_true(fabs((double)without[i] / pow(160000, -2 * i / 64.0) - 1) <= 1e-6);
    /* Flash and Pro share factor 16 over 65536: pairs that turn more than 32 times in it keep their frequency, those
     * that turn less than once have a sixteenth of it. */
    json_object_set_new(root, "rope_scaling", json_pack("{s:s,s:i,s:i,s:i,s:i}", "type", "yarn", "factor", 16, "original_max_position_embeddings",
                                                        65536, "beta_fast", 32, "beta_slow", 1));
    frequencies(root, true, flash);
    for (int i = 0; i < 32; i++) {
        const double exact = pow(160000, -2 * i / 64.0), turns = 65536 * exact / 6.283185307179586;
        const double share = (double)flash[i] / exact;
        if (turns > 64)
            assert_true(fabs(share - 1) <= 1e-6);
        else if (turns < 0.5)
            assert_true(fabs(share * 16 - 1) <= 1e-6);
        else
            assert_true(share <= 1 + 1e-6 && share >= 1.0 / 16 - 1e-6);
    }
    json_decref(root);
}

/* Positions to the end of a million: the angle is the fp32 product, its sine and cosine right to fp32. */
static void b29_rotation_at_far_positions(void)
{
    static const int32_t positions[] = {0, 1, 127, 65535, 65536, 65537, 131072, 1048575};
    enum { N = 8, D = RIG_HEAD_DIM, H = 2 };
    struct rig r;
    struct rig_step st;
    rig_open(&r, 1);
    rig_step(&st, (int[]){0, 0, 0}, (int[]){N, 0, 0});
    memcpy(st.pos, positions, sizeof positions);
    struct nib_mat q = rig_mat(&r, NIB_DTYPE_F32, N, H * D);
    rig_randomise(&r, &q);
    double want[N][H][D];
    const struct nib_rope rope = rig_rope(&r);
    for (int t = 0; t < N; t++) {
        for (int h = 0; h < H; h++) {
            double sum = 0;
            for (int i = 0; i < D; i++)
                sum += rig_get(&q, t, h * D + i) * rig_get(&q, t, h * D + i);
            for (int i = 0; i < D; i++)
                want[t][h][i] = rig_get(&q, t, h * D + i) / sqrt(sum / D + 1e-6);
            rig_rotate(&rope, want[t][h], D, positions[t], 1);
        }
    }
    assert_int_equal(r.ops->q_rope(r.s, &(struct nib_q_rope_args){q, H, D, 1e-6f, &st.rows, rope}), NIB_OK);
    for (int t = 0; t < N; t++)
        for (int i = 0; i < H * D; i++)
            assert_true(fabs(rig_get(&q, t, i) - want[t][i / D][i % D]) <= 3e-6); /* values below 4: a few ulps of fp32 */
    rig_close(&r);
}
BOTH(b29_rotation_at_far_positions)

/* B35: the same last tokens of a text are not worse predicted behind more of it. */
static void b35_quality_does_not_fall_with_context(void **state)
{
    enum { SCORED = 256 };
    static const int contexts[] = {512, 1024, 2048};
    int32_t n = 0, *ids = long_text(&n);
    double first = 0;
    (void)state;
    struct fixture f = open_model("cpu", 4096, 1, 256);
    for (int c = 0; c < 3 && contexts[c] <= n; c++) {
        double *nll = malloc((size_t)contexts[c] * sizeof *nll), sum = 0;
        assert_non_null(nll);
        struct nib_seq *s = open_seq(&f);
        fixture_run(&f, s, &(struct run){.ids = ids + n - contexts[c], .n = contexts[c], .chunk = 256, .nll = nll});
        for (int i = contexts[c] - 1 - SCORED; i < contexts[c] - 1; i++)
            sum += nll[i] / SCORED;
        printf("%d tokens of context: mean loss of the last %d is %.4f\n", contexts[c], SCORED, sum);
        if (c == 0)
            first = sum;
        assert_true(sum <= first * 1.02 + 0.01);
        nib_seq_close(s);
        free(nll);
    }
    fixture_close(&f);
    free(ids);
}

/* B39: what does not fit is refused at the start, with the largest that does. */
static void b39_contexts_beyond_the_model(void **state)
{
    static const int32_t bad[] = {16385, 65536, 779424, 779425, 1048576, INT32_MAX, -1};
    struct nib_model *m = NULL;
    (void)state;
    assert_int_equal(nib_model_open(MODEL_NVFP4, &m, NULL), NIB_OK);
    const int32_t largest = nib_model_get_info(m)->n_ctx_max;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct nib_options o;
        struct nib_error err = {0};
        struct nib_engine *e = NULL;
        char number[16];
        nib_options_init(&o);
        o.backend = "cpu";
        o.n_ctx = bad[i] == 16385 ? largest + 1 : bad[i];
        assert_int_equal(nib_engine_open(m, &o, &e, &err), NIB_E_ARGUMENT);
        (void)snprintf(number, sizeof number, "%d", (int)largest);
        assert_true(!e && strstr(err.text, "n_ctx") && strstr(err.text, number));
    }
    nib_model_close(m);
}

/* ---- B40 (and B39's unit): any index_topk over any number of entries ---- */

/* One row whose entries' scores are the given ones: one head, key e = (score, 0, ...), query (1, 0, ...). Scores must
 * be above 0. */
static void select_of(const float *score, int n, int k, int32_t *selected, int32_t *n_selected)
{
    enum { D = 32, RATIO = 4 };
    const struct nib_backend_config config = {
        .dims = {.n_rows_max = 1, .n_seqs_max = 1, .n_ctx_max = RATIO * n + 128, .dim = 64, .n_hc = 1, .n_heads = 1, .head_dim = 96, .n_rot = 16,
                 .q_rank = 32, .n_groups = 1, .o_rank = 32, .n_window = 128, .n_index_heads = 1, .index_dim = D, .index_top_k = k,
                 .n_experts = 2, .top_k = 1, .n_inner = 32, .n_inner_shared = 32, .vocab = 16},
        .n_threads = 1, .cpu_mask = ~0u};
    struct nib_backend *b = NULL;
    assert_int_equal(g_api->open(&config, &b, NULL), NIB_OK);
    const int n_pages = (n + 31) / 32 + 1;
    const int64_t row_bytes = nib_row_bytes(NIB_ROW_F32, D, 0);
    uint8_t *keys = g_api->alloc(b, (size_t)(n_pages * 32 * row_bytes));
    float *q = g_api->alloc(b, D * sizeof *q), *weight = g_api->alloc(b, sizeof *weight), *freq = g_api->alloc(b, 8 * sizeof *freq);
    int32_t *page = g_api->alloc(b, (size_t)n_pages * sizeof *page);
    assert_true(keys && q && weight && freq && page);
    memset(q, 0, D * sizeof *q);
    memset(freq, 0, 8 * sizeof *freq);
    q[0] = 1;
    *weight = 1;
    for (int e = 0; e < n; e++) {
        float key[D] = {score[e]};
        nib_kv_f32_encode(key, D, keys + e * row_bytes);
    }
    for (int i = 0; i < n_pages; i++)
        page[i] = i;
    const int32_t token = 0, pos = n ? RATIO * n : 2, seq = 0, start[2] = {0, 1}, slot = 0;
    const struct nib_rows rows = {1, 1, &token, &pos, &seq, start, &slot, page, page, n_pages, 0};
    const struct nib_index_select_args a = {.q = {q, NIB_DTYPE_F32, 1, D, D}, .weight = {weight, NIB_DTYPE_F32, 1, 1, 1}, .n_heads = 1, .dim = D,
                                            .ratio = RATIO, .top_k = k, .scale = 1, .rows = &rows, .rope = {freq, 16},
                                            .keys = {keys, NIB_ROW_F32, 32, row_bytes}, .selected = selected, .n_selected = n_selected};
    assert_int_equal(g_api->ops->index_select(g_api->stream(b), &a), NIB_OK);
    assert_int_equal(g_api->synchronise(g_api->stream(b)), NIB_OK);
    g_api->release(b, keys);
    g_api->release(b, q);
    g_api->release(b, weight);
    g_api->release(b, freq);
    g_api->release(b, page);
    g_api->close(b);
}

struct ranked {
    float score;
    int   entry;
};

static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score > y->score ? -1 : 1) : x->entry - y->entry;
}

static int by_entry(const void *a, const void *b)
{
    return ((const struct ranked *)a)->entry - ((const struct ranked *)b)->entry;
}

static void b40_any_top_k(void)
{
    static const int ks[] = {1, 3, 8, 512, 1024, 2048};
    uint64_t seed = 5;
    for (int i = 0; i < 6; i++) {
        const int k = ks[i], counts[] = {0, 1, k - 1, k, k + 1, 10 * k, 50000};
        for (int c = 0; c < (k == 512 ? 7 : 6); c++) {
            for (int equal = 0; equal < 2; equal++) {
                const int n = counts[c], taken = n < k ? n : k;
                float *score = malloc((size_t)(n + 1) * sizeof *score);
                struct ranked *rank = malloc((size_t)(n + 1) * sizeof *rank);
                int32_t *selected = malloc((size_t)k * sizeof *selected), n_selected = -1;
                assert_true(score && rank && selected);
                for (int e = 0; e < n; e++) {
                    /* Few different values, so that ties cross the border; or one value. */
                    score[e] = equal ? 1 : 1 + (float)(model_random(&seed) % (uint64_t)(n / 2 + 1));
                    rank[e] = (struct ranked){score[e], e};
                }
                qsort(rank, (size_t)n, sizeof *rank, by_score);
                qsort(rank, (size_t)taken, sizeof *rank, by_entry);
                select_of(score, n, k, selected, &n_selected);
                assert_int_equal(n_selected, taken);
                for (int j = 0; j < k; j++)
                    assert_int_equal(selected[j], j < taken ? rank[j].entry : -1);
                free(score);
                free(rank);
                free(selected);
            }
        }
    }
}
BOTH(b40_any_top_k)

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b26_every_length),
        cmocka_unit_test(b26_b38_mixed_lengths),
        cmocka_unit_test(b29_plain_layers_know_no_yarn),
        ON_BOTH(b29_rotation_at_far_positions),
        cmocka_unit_test(b35_quality_does_not_fall_with_context),
        cmocka_unit_test(b39_contexts_beyond_the_model),
        ON_BOTH(b40_any_top_k),
    };
    return cmocka_run_group_tests_name("faults_c", tests, NULL, NULL);
}
