/* --trace and --compare: what they write, that they change nothing, that a right backend stays in bounds, and that a
 * wrong value in any op's result is found and named. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/observe.h"
#include "support/model_support.h"

#define N_PROMPT 261

static int32_t g_ids[777];
static char    g_path[64];

struct setting {
    const char        *name, *dir;
    enum nib_kv        kv;
    enum nib_act_quant act;
    enum nib_numerics  numerics;
};

static const struct setting k_settings[] = {
    {"compare nvfp4 bf16", MODEL_NVFP4, NIB_KV_BF16, NIB_ACT_QUANT_NONE, NIB_NUMERICS_MODEL},
    {"compare nvfp4 f32", MODEL_NVFP4, NIB_KV_F32, NIB_ACT_QUANT_FP8, NIB_NUMERICS_MODEL},
    {"compare nvfp4 nvfp4", MODEL_NVFP4, NIB_KV_NVFP4, NIB_ACT_QUANT_NVFP4, NIB_NUMERICS_MODEL},
    {"compare official fp8", MODEL_OFFICIAL, NIB_KV_FP8, NIB_ACT_QUANT_NVFP4, NIB_NUMERICS_MODEL},
    {"compare official release", MODEL_OFFICIAL, NIB_KV_FP8, NIB_ACT_QUANT_FP8, NIB_NUMERICS_RELEASE},
};
#define N_SETTINGS ((int)(sizeof k_settings / sizeof k_settings[0]))

static const char *g_backend = "cpu";

static struct nib_options options_of(const struct setting *s)
{
    struct nib_options o;
    nib_options_init(&o);
    o.backend = g_backend;
    o.n_ctx = 512;
    o.n_rows_max = 256;
    o.n_threads = 1;
    o.n_seqs_max = 2;
    o.n_drafts = 2;
    o.kv = s->kv;
    o.act_quant = s->act;
    o.numerics = s->numerics;
    return o;
}

static struct nib_seq *open_seq(struct fixture *f)
{
    struct nib_error err = {0};
    struct nib_seq *s = NULL;
    if (nib_seq_open(f->engine, &s, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return s;
}

struct tokens {
    int32_t n, *token;
};

static bool on_token(void *user, int32_t token, float logprob)
{
    struct tokens *t = user;
    (void)logprob;
    t->token[t->n++] = token;
    return true;
}

/* A prompt in two unequal pieces, then tokens with drafts. */
static enum nib_status generate(struct fixture *f, int32_t *token, int32_t n, struct nib_error *err)
{
    struct nib_seq *seq = open_seq(f);
    struct nib_generate_result r;
    struct tokens t = {.token = token};
    struct nib_generate_args a = {.seq = seq, .prompt = g_ids, .n_prompt = N_PROMPT, .n_max = n, .n_drafts = 2, .on_token = on_token,
                                  .user = &t};
    nib_sampling_init(&a.sampling);
    a.sampling.temperature = 0;
    const enum nib_status status = nib_generate(f->engine, &a, &r, err);
    nib_seq_close(seq);
    return status;
}

/* ---- Trace ---- */

static void test_trace(void **state)
{
    (void)state;
    struct nib_error err = {0};
    struct nib_options o = options_of(&k_settings[0]);
    int32_t plain[8], traced[8];
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    assert_int_equal(generate(&f, plain, 8, &err), NIB_OK);
    const int32_t n_layers = f.engine->rank.config->n_layers;
    fixture_close(&f);

    char *hashes[2] = {NULL, NULL};
    for (int round = 0; round < 2; round++) {
        o.trace = g_path;
        o.n_threads = 1 + round;
        f = fixture_open(MODEL_NVFP4, &o);
        if (generate(&f, traced, 8, &err) != NIB_OK)
            fail_msg("%s", err.text);
        fixture_close(&f);
        assert_memory_equal(traced, plain, sizeof plain);

        FILE *file = fopen(g_path, "r");
        char *line = malloc(1 << 16);
        int32_t n_lines = 0, seen[NIB_N_OPS] = {0}, n_attend[64] = {0}, last_step = 0;
        hashes[round] = calloc(1, 1 << 20);
        assert_true(file && line && hashes[round]);
        size_t used = 0;
        while (fgets(line, 1 << 16, file)) {
            json_error_t problem;
            json_t *root = json_loads(line, 0, &problem);
            if (!root)
                fail_msg("line %d: %s", (int)n_lines, problem.text);
            const char *op = json_string_value(json_object_get(root, "op"));
            const json_int_t layer = json_integer_value(json_object_get(root, "layer"));
            const char *name;
            json_t *v, *out = json_object_get(root, "out");
            assert_true(op && json_object_size(out) > 0);
            assert_int_equal(json_integer_value(json_object_get(root, "n")), ++n_lines);
            assert_true(json_number_value(json_object_get(root, "us")) >= 0);
            last_step = (int32_t)json_integer_value(json_object_get(root, "step"));
            for (int k = 0; k < NIB_N_OPS; k++)
                seen[k] += strcmp(op, nib_op_name((enum nib_op)k)) == 0;
            if (strcmp(op, "attend") == 0)
                n_attend[layer]++;
            json_object_foreach(out, name, v) {
                assert_int_equal(json_integer_value(json_object_get(v, "nan")), 0);
                assert_int_equal(json_integer_value(json_object_get(v, "inf")), 0);
                const char *hash = json_string_value(json_object_get(v, "hash"));
                assert_int_equal(strlen(hash), 16);
                memcpy(hashes[round] + used, hash, 16);
                used += 16;
                assert_true(used < (1 << 20) - 17);
            }
            json_decref(root);
        }
        (void)fclose(file);
        free(line);
        for (int k = 0; k < NIB_N_OPS; k++)
            if (seen[k] == 0)
                fail_msg("op '%s' is not in the trace", nib_op_name((enum nib_op)k));
        for (int32_t l = 0; l < n_layers; l++)
            assert_int_equal(n_attend[l], last_step);
        assert_true(n_attend[n_layers] > last_step); /* the MTP block drafts as well */
    }
    assert_string_equal(hashes[0], hashes[1]);
    free(hashes[0]);
    free(hashes[1]);
}

/* ---- Compare ---- */

static void test_right(void **state)
{
    struct nib_error err = {0};
    struct nib_options o = options_of(*state);
    int32_t token[6];
    o.compare = "ref";
    struct fixture f = fixture_open(((const struct setting *)*state)->dir, &o);
    if (generate(&f, token, 6, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_true(f.engine->observer->n_ops > 300);
    fixture_close(&f);
}

/* A backend that is wrong in one value of one op, in one call of it. */
static struct {
    const struct nib_ops *inner;
    struct nib_ops        table;
    enum nib_op           op;
    int32_t               call, at_call;
} g;

static void bend(float *x)
{
    *x = *x * 1.02f + 0.02f;
}

static void bend_mat(const struct nib_mat *m)
{
    bend((float *)m->data + (m->rows - 1) * m->stride + m->cols / 3);
}

static void bend_result(const void *args)
{
    switch (g.op) {
    case NIB_OP_EMBED: bend_mat(&((const struct nib_embed_args *)args)->y); return;
    case NIB_OP_NORM: bend_mat(&((const struct nib_norm_args *)args)->y.plain); return;
    case NIB_OP_LINEAR: {
        const struct nib_linear_args *a = args;
        bend_mat(&a->y[a->n_weights - 1]);
        return;
    }
    case NIB_OP_Q_ROPE: bend_mat(&((const struct nib_q_rope_args *)args)->q); return;
    case NIB_OP_KV_INSERT: {
        const struct nib_kv_insert_args *a = args;
        const int32_t r = a->rows->n_rows - 1, pos = a->rows->pos[r];
        const int32_t page = a->rows->window_page[a->rows->seq[r] * a->rows->page_stride + pos / 128];
        bend((float *)(void *)(a->window.base + ((int64_t)page * 128 + pos % 128) * a->window.row_bytes) + 40);
        return;
    }
    case NIB_OP_COMPRESS: {
        const struct nib_compress_args *a = args;
        bend((float *)(void *)(a->entries.base + (int64_t)a->rows->entry_page[0] * a->entries.page_rows * a->entries.row_bytes) + 40);
        return;
    }
    case NIB_OP_INDEX_SELECT: {
        const struct nib_index_select_args *a = args;
        const int32_t r = a->rows->n_rows - 1, visible = (a->rows->pos[r] + 1) / a->ratio;
        int32_t *list = a->selected + r * a->top_k, n = a->n_selected[r];
        assert_true(visible > n); /* so there is a choice; take the entries from the end */
        for (int32_t i = 0; i < n; i++)
            list[i] = visible - n + i;
        return;
    }
    case NIB_OP_ATTEND: bend_mat(&((const struct nib_attend_args *)args)->o); return;
    case NIB_OP_O_A: bend_mat(&((const struct nib_o_a_args *)args)->y.plain); return;
    case NIB_OP_MOE: bend_mat(&((const struct nib_moe_args *)args)->y); return;
    case NIB_OP_HC_PRE: bend_mat(&((const struct nib_hc_pre_args *)args)->comb); return;
    case NIB_OP_HC_POST: bend_mat(&((const struct nib_hc_post_args *)args)->streams); return;
    case NIB_OP_HC_HEAD: bend_mat(&((const struct nib_hc_head_args *)args)->x); return;
    case NIB_OP_HEAD: bend_mat(&((const struct nib_head_args *)args)->logits); return;
    case NIB_OP_MTP_JOIN: bend_mat(&((const struct nib_mtp_join_args *)args)->h); return;
    case NIB_OP_COPY_ROWS: {
        const struct nib_copy_rows_args *a = args;
        for (int32_t i = 0; i < a->n; i++)
            if (a->src_row[i] >= 0)
                bend((float *)a->dst.data + a->dst_row[i] * a->dst.stride + 5);
        return;
    }
    case NIB_OP_SAMPLE: ((const struct nib_sample_args *)args)->token[0] ^= 1; return;
    case NIB_N_OPS: return;
    }
}

static enum nib_status call(enum nib_op op, struct nib_stream *s, const void *args)
{
    const enum nib_status status = nib_op_call(g.inner, op, s, args);
    if (op == g.op && g.call++ == g.at_call)
        bend_result(args);
    return status;
}

#define X(upper, lower)                                                                             \
    static enum nib_status bent_##lower(struct nib_stream *s, const struct nib_##lower##_args *a)   \
    {                                                                                               \
        return call(NIB_OP_##upper, s, a);                                                          \
    }
NIB_OP_LIST(X)
#undef X

static void test_wrong(void **state)
{
    (void)state;
    struct nib_options o = options_of(&k_settings[1]);
    o.act_quant = NIB_ACT_QUANT_NONE; /* plain rows are present everywhere */
    o.compare = "ref";
    o.n_rows_max = 512;
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    g.inner = f.engine->observer->inner;
#define X(upper, lower) g.table.lower = bent_##lower;
    NIB_OP_LIST(X)
#undef X
    f.engine->observer->inner = &g.table;
    for (int k = 0; k < NIB_N_OPS; k++) {
        struct nib_error err = {0};
        int32_t token[4];
        char wanted[64];
        g.op = (enum nib_op)k;
        g.call = 0;
        g.at_call = g.op == NIB_OP_COMPRESS ? 2 : 0; /* of layer 2: the first is layer 1's entries, then its index
                                                        keys */
        (void)snprintf(wanted, sizeof wanted, "op '%s' in ", nib_op_name(g.op));
        const enum nib_status status = generate(&f, token, 4, &err);
        if (status != NIB_E_NUMERIC || strncmp(err.text, wanted, strlen(wanted)) != 0 || !strstr(err.text, "of step "))
            fail_msg("a wrong result of '%s' gave %s: %s", nib_op_name(g.op), nib_status_name(status), err.text);
        printf("%s\n", err.text);
        if (g.op == NIB_OP_ATTEND)
            assert_non_null(strstr(err.text, "layer 0 (attention) of step"));
    }
    /* And right again, on the same engine. */
    struct nib_error err = {0};
    int32_t token[4];
    g.at_call = -1;
    if (generate(&f, token, 4, &err) != NIB_OK)
        fail_msg("%s", err.text);
    fixture_close(&f);
}

static void test_refusals(void **state)
{
    (void)state;
    struct nib_error err = {0};
    struct nib_options o = options_of(&k_settings[0]);
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    struct nib_engine *e = NULL;
    o.compare = "cpu";
    assert_int_equal(nib_engine_open(f.model, &o, &e, &err), NIB_E_ARGUMENT);
    assert_string_equal(err.text, "compare is 'cpu', wanted 'ref'");
    o.compare = NULL;
    o.trace = "/absent/trace";
    assert_int_equal(nib_engine_open(f.model, &o, &e, &err), NIB_E_IO);
    assert_non_null(strstr(err.text, "/absent/trace"));
    assert_null(e);
    fixture_close(&f);
}

/* With an argument, the tests whose names match it. */
/* FILTER and BACKEND: the tests run on that backend instead; for cards, which make check has none of. */
int main(int argc, char **argv)
{
    struct CMUnitTest tests[N_SETTINGS + 3];
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (argc > 2)
        g_backend = argv[2];
    struct nib_checkpoint *goldens = goldens_open();
    int32_t *ids = golden_copy(golden_find(goldens, "ids.777"));
    memcpy(g_ids, ids, sizeof g_ids);
    free(ids);
    nib_checkpoint_close(goldens);
    (void)snprintf(g_path, sizeof g_path, "/tmp/nibble-trace-XXXXXX");
    const int fd = mkstemp(g_path);
    if (fd < 0)
        return 1;
    (void)close(fd);
    for (int i = 0; i < N_SETTINGS; i++)
        tests[i] = (struct CMUnitTest){k_settings[i].name, test_right, NULL, NULL, (void *)(uintptr_t)&k_settings[i]};
    tests[N_SETTINGS] = (struct CMUnitTest){"trace", test_trace, NULL, NULL, NULL};
    tests[N_SETTINGS + 1] = (struct CMUnitTest){"a wrong value in any op", test_wrong, NULL, NULL, NULL};
    tests[N_SETTINGS + 2] = (struct CMUnitTest){"refusals", test_refusals, NULL, NULL, NULL};
    const int failed = cmocka_run_group_tests_name("observing", tests, NULL, NULL);
    (void)unlink(g_path);
    return failed;
}
