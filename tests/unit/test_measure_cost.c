/* Bytes and operations of steps, held to sums over the tensors that a checkpoint of these sizes lists and to counts of
 * rows done by hand; random models and sequences; the memory of a million tokens. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nibble.h"

/* The tiny shape, with rows in bf16. */
enum { DIM = 256, LAYERS = 6, HEADS = 4, HEAD_DIM = 512, HC = 4, EXPERTS = 16, TOP_K = 4, VOCAB = 2048,
       INDEX_HEADS = 8, INDEX_DIM = 128, INDEX_TOP = 64, ROW = 2 * HEAD_DIM, INDEX_ROW = 2 * INDEX_DIM };

struct bed {
    struct nib_model  *model;
    struct nib_engine *engine;
    struct nib_seq    *seq[2];
};

static struct bed open_bed(const char *format, int32_t n_experts, enum nib_act_quant act, int32_t n_ctx)
{
    const struct nib_shape shape = {.name = "tiny", .format = format, .n_experts = n_experts};
    struct nib_error err = {0};
    struct nib_options o;
    struct bed b = {0};
    assert_int_equal(nib_model_open_random(&shape, &b.model, &err), NIB_OK);
    nib_options_init(&o);
    o.backend = "cpu";
    o.n_ctx = n_ctx;
    o.n_seqs_max = 2;
    o.n_rows_max = 512;
    o.act_quant = act;
    o.n_threads = 2;
    assert_int_equal(nib_engine_open(b.model, &o, &b.engine, &err), NIB_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(nib_seq_open(b.engine, &b.seq[i], &err), NIB_OK);
    return b;
}

static void close_bed(struct bed *b)
{
    for (int i = 0; i < 2; i++)
        nib_seq_close(b->seq[i]);
    nib_engine_close(b->engine);
    nib_model_close(b->model);
}

/* n_seqs sequences with n tokens each, from `first` on in both. */
static struct nib_profile count(struct bed *b, int32_t n_seqs, int32_t n, int32_t first)
{
    static int32_t token[1024];
    static float logits[2 * VOCAB];
    const int32_t start[] = {0, n, 2 * n}, wanted[] = {n - 1, 2 * n - 1};
    struct nib_profile p;
    struct nib_error err = {0};
    for (int32_t i = 0; i < n_seqs * n; i++)
        token[i] = (first + i % n * 37) % VOCAB;
    const struct nib_batch batch = {.n_rows = n_seqs * n, .n_seqs = n_seqs, .n_logits = n_seqs, .token = token,
                                    .seq_start = start, .seq = b->seq, .logits_row = wanted};
    assert_int_equal(nib_step_profile(b->engine, &batch, logits, true, &p, &err), NIB_OK);
    for (int32_t i = 0; i < n_seqs * VOCAB; i++)
        assert_true(isfinite(logits[i]));
    return p;
}

static const struct nib_profile_op *find(const struct nib_profile *p, const char *name)
{
    for (int32_t i = 0; i < p->n_ops; i++)
        if (strcmp(p->op[i].name, name) == 0)
            return &p->op[i];
    fail_msg("no op '%s'", name);
    return NULL;
}

static uint64_t sum_bytes(const struct nib_profile *p)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < p->n_ops; i++)
        sum += p->op[i].bytes;
    return sum;
}

enum { FP32 = 1, FP8 = 2, INT8 = 4, ALL = FP32 | FP8 | INT8 };

static uint64_t sum_ops(const struct nib_profile *p, int kinds)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < p->n_ops; i++)
        sum += (kinds & FP32 ? p->op[i].fp32_ops : 0) + (kinds & FP8 ? p->op[i].fp8_ops : 0) +
               (kinds & INT8 ? p->op[i].int8_ops : 0);
    return sum;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* What a first token of n_seqs sequences reads and multiplies, from the list of tensors. Parameters that are not
 * matrices are kept in fp32 and ids in 32 bits, whatever they are stored in; a position's own bias is one row of four
 * or 128; no entry is complete yet. */
static void expect(const struct nib_model *m, uint64_t n_seqs, uint64_t *bytes, uint64_t *ops)
{
    struct nib_tensor_info t;
    *bytes = *ops = 0;
    for (int64_t i = 0; nib_model_get_tensor(m, i, &t); i++) {
        const uint64_t elements = (uint64_t)t.shape[0] * (uint64_t)(t.n_dims == 2 ? t.shape[1] : 1);
        if (strcmp(t.family, "experts") == 0) {
            if (!strstr(t.name, "experts.0."))
                continue; /* all have the same size, and each token takes TOP_K */
            *bytes += TOP_K * t.bytes;
            *ops += 2 * n_seqs * TOP_K * elements;
        } else if (strcmp(t.family, "embed") == 0) {
            *bytes += n_seqs * 2 * DIM;
        } else if (strcmp(t.format, "i64") == 0) {
            *bytes += n_seqs * 4 * TOP_K;
        } else if (ends_with(t.name, ".ape")) {
            *bytes += 4 * (uint64_t)t.shape[1];
        } else if (ends_with(t.name, "compressor.norm.weight")) {
            continue;
        } else {
            *bytes += t.n_dims == 1 ? 4 * elements : t.bytes;
            *ops += t.n_dims == 1 ? 0 : 2 * n_seqs * elements;
        }
    }
    const uint64_t streams = HC * DIM, heads = HEADS * HEAD_DIM;
    *bytes += n_seqs * LAYERS * ROW;
    *ops += n_seqs * (LAYERS * (2 * (2 * streams + 2 * (HC + 1) * streams) + 4 * heads + 4 * heads) + 2 * streams);
}

static void test_first_token(void **unused)
{
    (void)unused;
    static const char *const formats[] = {"nvfp4", "fp8", "mxfp4", "bf16", "official"};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        struct bed b = open_bed(formats[f], EXPERTS, NIB_ACT_QUANT_NONE, 1024);
        for (int32_t n_seqs = 1; n_seqs <= 2; n_seqs++) {
            uint64_t bytes, ops;
            const struct nib_profile p = count(&b, n_seqs, 1, 5);
            expect(b.model, (uint64_t)n_seqs, &bytes, &ops);
            assert_int_equal(sum_bytes(&p), bytes);
            assert_int_equal(sum_ops(&p, FP32), ops);
            assert_int_equal(sum_ops(&p, FP8 | INT8), 0);
            assert_int_equal(nib_seq_truncate(b.seq[0], 0), NIB_OK);
            assert_int_equal(nib_seq_truncate(b.seq[1], 0), NIB_OK);
        }
        close_bed(&b);
    }
}

/* The same products, those of 4-bit weights with integers. */
static void test_integer_products(void **unused)
{
    (void)unused;
    struct bed b = open_bed("nvfp4", EXPERTS, NIB_ACT_QUANT_NVFP4, 1024);
    struct nib_tensor_info t;
    uint64_t bytes, ops, four_bit = 0;
    const struct nib_profile p = count(&b, 1, 1, 5);
    expect(b.model, 1, &bytes, &ops);
    for (int64_t i = 0; nib_model_get_tensor(b.model, i, &t); i++)
        if (strcmp(t.format, "nvfp4") == 0 && (strcmp(t.family, "experts") != 0 || strstr(t.name, "experts.0.")))
            four_bit += 2 * (uint64_t)(t.shape[0] * t.shape[1]) * (strcmp(t.family, "experts") == 0 ? TOP_K : 1);
    assert_int_equal(sum_bytes(&p), bytes);
    assert_int_equal(sum_ops(&p, ALL), ops);
    assert_int_equal(sum_ops(&p, INT8), four_bit);
    assert_int_equal(sum_ops(&p, FP8), 0);
    close_bed(&b);
}

/* FP8 rows meet weights of 8 and 4 bits, but for o_a, which always takes plain ones. */
static void test_fp8_products(void **unused)
{
    (void)unused;
    struct bed b = open_bed("official", EXPERTS, NIB_ACT_QUANT_FP8, 1024);
    struct nib_tensor_info t;
    uint64_t bytes, ops, narrow = 0;
    const struct nib_profile p = count(&b, 1, 1, 5);
    expect(b.model, 1, &bytes, &ops);
    for (int64_t i = 0; nib_model_get_tensor(b.model, i, &t); i++) {
        const bool expert = strcmp(t.family, "experts") == 0;
        if ((strcmp(t.format, "fp8") == 0 || strcmp(t.format, "mxfp4") == 0) && !strstr(t.name, "wo_a") &&
            (!expert || strstr(t.name, "experts.0.")))
            narrow += 2 * (uint64_t)(t.shape[0] * t.shape[1]) * (expert ? TOP_K : 1);
    }
    assert_true(narrow > 0);
    assert_int_equal(sum_bytes(&p), bytes);
    assert_int_equal(sum_ops(&p, ALL), ops);
    assert_int_equal(sum_ops(&p, FP8), narrow);
    assert_int_equal(sum_ops(&p, INT8), 0);
    close_bed(&b);
}

/* Bytes of one of a tiny layer's experts in NVFP4, and of what every token reads of the mixtures besides experts and
 * ids. */
static void moe_bytes(const struct nib_model *m, uint64_t *expert, uint64_t *rest)
{
    struct nib_tensor_info t;
    *expert = *rest = 0;
    for (int64_t i = 0; nib_model_get_tensor(m, i, &t); i++) {
        if (strcmp(t.family, "experts") == 0)
            *expert += strncmp(t.name, "layers.0.ffn.experts.0.", 23) == 0 ? t.bytes : 0;
        else if ((strcmp(t.family, "shared") == 0 || strcmp(t.family, "router") == 0) && strcmp(t.format, "i64") != 0)
            *rest += t.bytes;
    }
}

/* However many rows choose an expert, it is read once: with as many experts as a token takes, all of them are; with
 * more, whole ones, at least as many as one token takes and at most all. */
static void test_shared_experts(void **unused)
{
    (void)unused;
    for (int32_t n_experts = TOP_K; n_experts <= EXPERTS; n_experts += EXPERTS - TOP_K) {
        struct bed b = open_bed("nvfp4", n_experts, NIB_ACT_QUANT_NONE, 1024);
        uint64_t expert, rest;
        const struct nib_profile p = count(&b, 1, 512, 0);
        moe_bytes(b.model, &expert, &rest);
        const uint64_t hash_ids = 2 * 512 * TOP_K * 4, routed = find(&p, "moe")->bytes - rest - hash_ids;
        assert_int_equal(find(&p, "moe")->n_calls, LAYERS);
        assert_int_equal(routed % expert, 0);
        assert_true(routed / expert >= (n_experts == TOP_K ? LAYERS * TOP_K : LAYERS * TOP_K + 1));
        assert_true(routed / expert <= (uint64_t)(LAYERS * n_experts));
        close_bed(&b);
    }
}

/* 1024 tokens before: a window of 128 rows with the new one, 256 entries of which 64 are selected, 8 of the
 * other kind. */
static void test_context(void **unused)
{
    (void)unused;
    struct bed b = open_bed("nvfp4", EXPERTS, NIB_ACT_QUANT_NONE, 2048);
    struct nib_error err = {0};
    for (int i = 0; i < 2; i++)
        assert_int_equal(nib_seq_fill_random(b.seq[i], 1024, &err), NIB_OK);
    const struct nib_profile p = count(&b, 2, 1, 9);
    const uint64_t sinks = 4 * HEADS, products = 4 * HEADS * HEAD_DIM;
    assert_int_equal(find(&p, "attend_swa")->bytes, sinks + 2 * 128 * ROW);
    assert_int_equal(find(&p, "attend_csa")->bytes, 3 * (sinks + 2 * (128 + INDEX_TOP) * ROW));
    assert_int_equal(find(&p, "attend_hca")->bytes, 2 * (sinks + 2 * (128 + 8) * ROW));
    assert_int_equal(find(&p, "attend_hca")->fp32_ops, 2 * 2 * (128 + 8) * products);
    assert_int_equal(find(&p, "index_select")->bytes, 3 * 2 * 256 * INDEX_ROW);
    assert_int_equal(find(&p, "index_select")->fp32_ops, 3 * 2 * 256 * 2 * INDEX_HEADS * INDEX_DIM);
    close_bed(&b);
}

/* The token at position 1023 completes an entry of 128 rows, and one of four with the four before: all but its own come
 * from earlier. */
static void test_completed_entries(void **unused)
{
    (void)unused;
    struct bed b = open_bed("nvfp4", EXPERTS, NIB_ACT_QUANT_NONE, 2048);
    struct nib_error err = {0};
    assert_int_equal(nib_seq_fill_random(b.seq[0], 1023, &err), NIB_OK);
    const struct nib_profile p = count(&b, 1, 1, 9);
    assert_int_equal(find(&p, "compress_hca")->bytes, 2 * 4 * (HEAD_DIM + 127 * 2 * HEAD_DIM + HEAD_DIM));
    assert_int_equal(find(&p, "compress_csa")->bytes, 3 * 4 * (2 * HEAD_DIM + 7 * 2 * HEAD_DIM + HEAD_DIM));
    assert_int_equal(find(&p, "compress_index")->bytes, 3 * 4 * (2 * INDEX_DIM + 7 * 2 * INDEX_DIM + INDEX_DIM));
    close_bed(&b);
}

static void test_fill(void **unused)
{
    (void)unused;
    static const int32_t lengths[] = {1, 3, 127, 128, 129, 1000, 2047};
    struct bed b = open_bed("nvfp4", EXPERTS, NIB_ACT_QUANT_NONE, 2048);
    struct nib_error err = {0};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        assert_int_equal(nib_seq_fill_random(b.seq[0], lengths[i], &err), NIB_OK);
        assert_int_equal(nib_seq_length(b.seq[0]), lengths[i]);
        (void)count(&b, 1, 1, 3);
        assert_int_equal(nib_seq_length(b.seq[0]), lengths[i] + 1);
        assert_int_equal(nib_seq_fill_random(b.seq[0], 5, &err), NIB_E_STATE);
        assert_int_equal(nib_seq_truncate(b.seq[0], lengths[i]), NIB_OK);
        assert_int_equal(nib_seq_truncate(b.seq[0], 0), NIB_OK);
    }
    assert_int_equal(nib_seq_fill_random(b.seq[0], 2049, &err), NIB_E_LIMIT);
    assert_non_null(strstr(err.text, "2048"));
    close_bed(&b);
}

static void test_bad_shapes(void **unused)
{
    (void)unused;
    static const struct {
        struct nib_shape shape;
        const char      *says;
    } bad[] = {{{.name = NULL}, "shape '(none)'"},
               {{.name = "large"}, "shape 'large'"},
               {{.name = "tiny", .format = "q4"}, "format 'q4'"},
               {{.name = "tiny", .n_layers = 7}, "7 layers, wanted 1 to 6"},
               {{.name = "flash", .n_experts = 5}, "5 experts, wanted 6 to 256"},
               {{.name = "pro", .n_experts = 385}, "385 experts, wanted 6 to 384"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct nib_model *m;
        struct nib_error err = {0};
        assert_int_equal(nib_model_open_random(&bad[i].shape, &m, &err), NIB_E_ARGUMENT);
        assert_null(m);
        assert_non_null(strstr(err.text, bad[i].says));
    }
}

/* Published totals: tensors and bytes of the official checkpoints without their MTP blocks, which these models leave
 * out. */
static void test_published_sizes(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        int64_t     n_tensors;
        double      params, context_bytes; /* of 2^20 tokens with fp8 rows and FP4 keys, and the raw rows besides */
        int32_t     n_swa, n_csa, n_hca;
    } known[] = {{"pro", 145116 - 2343, 1573.00e9, 5.28e9 + 18.7e6, 0, 30, 31},
                 {"flash", 69187 - 1575, 284.33e9, 3.69e9 + 12.2e6, 2, 21, 20}};
    for (size_t i = 0; i < 2; i++) {
        const struct nib_shape shape = {.name = known[i].name, .format = "official"};
        struct nib_model *m;
        struct nib_error err = {0};
        struct nib_options o;
        struct nib_memory_plan plan;
        assert_int_equal(nib_model_open_random(&shape, &m, &err), NIB_OK);
        const struct nib_model_info *info = nib_model_get_info(m);
        assert_int_equal(info->n_tensors, known[i].n_tensors);
        assert_int_equal(info->n_tensors_used, info->n_tensors);
        assert_true(fabs((double)info->n_params / known[i].params - 1) < 1e-3);
        assert_int_equal(info->n_swa_layers, known[i].n_swa);
        assert_int_equal(info->n_csa_layers, known[i].n_csa);
        assert_int_equal(info->n_hca_layers, known[i].n_hca);
        nib_options_init(&o);
        o.backend = "cpu";
        o.n_ctx = 1 << 20;
        o.kv = NIB_KV_FP8;
        assert_int_equal(nib_model_plan(m, &o, &plan, &err), NIB_OK);
        assert_true(fabs((double)plan.kv_bytes / known[i].context_bytes - 1) < 0.1);
        assert_true(fabs((double)plan.kv_bytes_per_seq / known[i].context_bytes - 1) < 0.1);
        /* What is left open: 256 rows of fp32 on a processor, and rows of bf16 take less. */
        assert_int_equal(plan.n_rows_max, 256);
        const uint64_t open_bytes = plan.workspace_bytes;
        o.n_rows_max = 256;
        o.numerics = NIB_NUMERICS_MODEL;
        assert_int_equal(nib_model_plan(m, &o, &plan, &err), NIB_OK);
        assert_true(plan.workspace_bytes == open_bytes);
        o.numerics = NIB_NUMERICS_BF16;
        assert_int_equal(nib_model_plan(m, &o, &plan, &err), NIB_OK);
        assert_true(plan.workspace_bytes < open_bytes);
        o.n_rows_max = -1;
        assert_int_equal(nib_model_plan(m, &o, &plan, &err), NIB_E_ARGUMENT);
        nib_model_close(m);
    }
}

static void test_machine(void **unused)
{
    (void)unused;
    struct nib_machine m = {0};
    struct nib_error err = {0};
    assert_int_equal(nib_machine_measure(-1, 1 << 20, &m, &err), NIB_E_ARGUMENT);
    assert_int_equal(nib_machine_measure(1, 1 << 20, &m, &err), NIB_OK);
    assert_int_equal(m.n_threads, 1);
    assert_int_equal(m.read_bytes, 1 << 20);
    assert_true(m.read_gb_s > 0 && m.fp32_gflop_s > 0 && m.int8_gop_s >= m.fp32_gflop_s);
    assert_true(m.fp8_gflop_s == m.fp32_gflop_s);
    /* Figures that no machine reaches stay. */
    m.read_gb_s = m.fp32_gflop_s = m.int8_gop_s = 1e9;
    assert_int_equal(nib_machine_measure(1, 1 << 20, &m, &err), NIB_OK);
    assert_true(m.read_gb_s >= 1e9 && m.fp32_gflop_s >= 1e9 && m.int8_gop_s >= 1e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_token),       cmocka_unit_test(test_integer_products), cmocka_unit_test(test_fp8_products),
        cmocka_unit_test(test_shared_experts),    cmocka_unit_test(test_context),
        cmocka_unit_test(test_completed_entries), cmocka_unit_test(test_fill),
        cmocka_unit_test(test_bad_shapes),        cmocka_unit_test(test_published_sizes),
        cmocka_unit_test(test_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
