/* Predictions, held to bytes, operations and seconds worked out by hand for Flash: 43 layers, of which 2 have windows
 * alone, 21 compress 4:1 and 20 compress 128:1; a matrix [o, i] in NVFP4 takes o * i / 2 + o * i / 16 + 4 bytes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "nibble.h"

static const struct nib_card *card(const char *name)
{
    for (int32_t i = 0; nib_card_get(i); i++)
        if (strcmp(nib_card_get(i)->name, name) == 0)
            return nib_card_get(i);
    fail_msg("no card %s", name);
    return NULL;
}

static struct nib_prediction predict_on(const char *shape, const struct nib_card *on, int32_t n_seqs, int32_t n_context,
                                        int32_t n_rows)
{
    const struct nib_predict_args a = {.shape = {.name = shape},
                                       .card = on,
                                       .n_cards = 1,
                                       .n_seqs = n_seqs,
                                       .n_context = n_context,
                                       .n_rows = n_rows,
                                       .kv = NIB_KV_BF16};
    struct nib_prediction p;
    struct nib_error err = {0};
    if (nib_predict(&a, &p, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return p;
}

static struct nib_prediction predict(const char *shape, const char *on, int32_t n_seqs, int32_t n_context,
                                     int32_t n_rows)
{
    return predict_on(shape, card(on), n_seqs, n_context, n_rows);
}

static const struct nib_predicted_op *op_of(const struct nib_prediction *p, const char *name)
{
    for (int32_t i = 0; i < p->n_ops; i++)
        if (strcmp(p->op[i].name, name) == 0)
            return &p->op[i];
    fail_msg("no op %s", name);
    return NULL;
}

static void expect(const struct nib_prediction *p, const char *name, int32_t calls, uint64_t bytes, uint64_t fp4,
                   uint64_t bf16)
{
    const struct nib_predicted_op *op = op_of(p, name);
    assert_int_equal(op->n_calls, calls);
    assert_int_equal(op->bytes, bytes);
    assert_int_equal(op->fp4_ops, fp4);
    assert_int_equal(op->bf16_ops, bf16);
}

/* One token at position 4095: every layer's window is full, 1024 entries of 4 and 32 of 128 are visible. */
static void decode(void **state)
{
    (void)state;
    const struct nib_prediction p = predict("flash", "b200", 1, 4095, 1);
    /* q and kv of each; two compressor matrices of 512 or 1024 rows; 4:1 has two of 256 rows and 64 BF16 rows more. */
    expect(&p, "linear_in", 43,
           43 * (2359300ull + 1179652) + 20 * 2 * 1179652ull + 21 * (2 * 2359300ull + 2 * 589828 + 524288),
           8192ull * (43 * 1536 + 20 * 1024 + 21 * 2560), 21 * 524288ull);
    expect(&p, "linear_q", 43, 43 * 18874372ull + 21 * 4718596ull, 2048ull * (43 * 32768 + 21 * 8192), 0);
    expect(&p, "linear_out", 43, 43 * 18874372ull, 43 * 67108864ull, 0);
    /* Six experts and the shared one, three matrices of 8 Mi each; the BF16 router; biases, or six ids in three layers.
     */
    expect(&p, "moe", 43, 43 * (2097152ull + 21 * 4718596) + 40 * 1024 + 3 * 24, 43 * 21 * 16777216ull,
           43 * 2097152ull);
    /* 128 rows of the window and 512 of 1024 entries, or all 32, of 1024 bytes; 64 sinks; 4 operations a pair and
     * channel. */
    expect(&p, "attend_csa", 21, 21 * (640 * 1024 + 256), 0, 21ull * 4 * 640 * 64 * 512);
    expect(&p, "attend_hca", 20, 20 * (160 * 1024 + 256), 0, 20ull * 4 * 160 * 64 * 512);
    expect(&p, "index_select", 21, 21 * 1024 * 256, 0, 21ull * 2 * 64 * 128 * 1024);
    expect(&p, "o_a", 43, 43 * 67108864ull, 0, 43 * 67108864ull);
    /* Four streams of 4096, read and written as fp32. */
    assert_int_equal(op_of(&p, "hc_post")->bytes, 86 * 8 * 4 * 4096);

    /* 2.886 GB at 75 % of 8 TB/s; 43 launches of a norm. */
    assert_true(fabs(op_of(&p, "o_a")->seconds - 480.9e-6) < 0.1e-6);
    assert_int_equal(op_of(&p, "o_a")->bound, NIB_BOUND_BYTES);
    assert_true(fabs(op_of(&p, "norm")->seconds - 107.5e-6) < 0.1e-6);
    assert_int_equal(op_of(&p, "norm")->bound, NIB_BOUND_LAUNCHES);
    /* 20 calls of 5.4 us each: one row's bytes and operations take less on all of a card. */
    assert_int_equal(op_of(&p, "attend_hca")->n_launches, 20);
    assert_true(fabs(op_of(&p, "attend_hca")->seconds - 20 * 5.4e-6) < 0.1e-6);
    assert_int_equal(op_of(&p, "attend_hca")->bound, NIB_BOUND_LAUNCHES);
    double sum = 0;
    for (int32_t i = 0; i < p.n_ops; i++)
        sum += p.op[i].seconds;
    assert_true(fabs(p.seconds - sum) < 1e-12 && p.limit_seconds < p.seconds);
    assert_true(fabs(p.tokens_s * p.seconds - 1) < 1e-9);
}

/* Experts of 64 tokens: 256 * (1 - (1 - 6 / 256)^64) = 199.9 of 256 are expected; 43 layers average well within 2 %. */
static void experts_of_many(void **state)
{
    (void)state;
    const struct nib_prediction p = predict("flash", "b200", 64, 100, 1);
    const double expected = 256 * (1 - pow(1 - 6.0 / 256, 64)), layer = (double)op_of(&p, "moe")->bytes / 43 - 2097152;
    assert_true(fabs((layer / (3 * 4718596.0) - 1) / expected - 1) < 0.02);
}

/* 4096 tokens are bound by products: 4096 x 43 layers of o_a's 67,108,864 operations at 25 % of the BF16 rate. */
static void prompt(void **state)
{
    (void)state;
    const struct nib_prediction p = predict("flash", "b200", 1, 0, 4096);
    assert_int_equal(op_of(&p, "o_a")->bound, NIB_BOUND_PRODUCTS);
    /* Attention of a card with kernels for tensor memory, and of another with the same rates. */
    struct nib_card plain = *card("b200");
    plain.name = "other";
    const struct nib_prediction other = predict_on("flash", &plain, 1, 0, 4096);
    assert_int_equal(op_of(&p, "attend_csa")->bound, NIB_BOUND_PRODUCTS);
    assert_true(fabs(op_of(&p, "attend_csa")->seconds / op_of(&other, "attend_csa")->seconds - 0.50 / 0.32) < 1e-9);
    assert_true(fabs(op_of(&p, "o_a")->seconds / (4096 * 43 * 67108864.0 / 2250e12 / 0.25) - 1) < 1e-9);
}

/* A card without FP4 multiplies everything as BF16 and gets no NVFP4 activations unless asked for; the bytes are the
 * same. Cards are needed for 152.5 GiB of weights: two of 141 GB at 90 %. */
static void other_cards(void **state)
{
    (void)state;
    const struct nib_prediction b = predict("flash", "b200", 1, 4095, 1), h = predict("flash", "h200", 1, 4095, 1);
    assert_int_equal(b.act_quant, NIB_ACT_QUANT_NVFP4);
    assert_int_equal(h.act_quant, NIB_ACT_QUANT_NONE);
    assert_int_equal(op_of(&h, "moe")->bytes, op_of(&b, "moe")->bytes);
    assert_int_equal(op_of(&h, "moe")->fp4_ops, 0);
    assert_int_equal(op_of(&h, "moe")->bf16_ops, op_of(&b, "moe")->bf16_ops + op_of(&b, "moe")->fp4_ops);
    assert_int_equal(h.n_cards_needed, 2);
    const struct nib_prediction pro = predict("pro", "b300", 1, 0, 1);
    /* 61 layers of 384 experts, 3 matrices of 7168 x 3072, 0.5625 bytes each: 870.6 GB, and 20 to 30 of all the rest.
     */
    assert_in_range(pro.weights_bytes, 890000000000, 905000000000);
    assert_int_equal(pro.n_cards_needed, 4);
    /* o_a of 4096 tokens is bound by BF16 products. */
    const struct nib_prediction g = predict("flash", "gb300", 1, 0, 4096), f = predict("flash", "b300", 1, 0, 4096);
    assert_true(fabs(op_of(&g, "o_a")->seconds * 2500 / (op_of(&f, "o_a")->seconds * 2250) - 1) < 1e-9);
}

static void mistakes(void **state)
{
    (void)state;
    struct nib_predict_args a = {
        .shape = {.name = "flash"}, .card = card("spark"), .n_cards = 1, .n_seqs = 1, .n_rows = 1};
    struct nib_prediction p;
    struct nib_error err = {0};
    a.n_seqs = 0;
    assert_int_equal(nib_predict(&a, &p, &err), NIB_E_ARGUMENT);
    assert_non_null(strstr(err.text, "n_seqs is 0, wanted 1 to 4096"));
    a.n_seqs = 1;
    a.n_context = 1 << 20;
    assert_int_equal(nib_predict(&a, &p, &err), NIB_E_ARGUMENT);
    assert_non_null(strstr(err.text, "n_context is 1048576, wanted 0 to 1048575"));
    a.shape.name = "huge";
    assert_int_equal(nib_predict(&a, &p, &err), NIB_E_ARGUMENT);
    assert_non_null(strstr(err.text, "shape 'huge' is not known"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(decode), cmocka_unit_test(experts_of_many),
                                       cmocka_unit_test(prompt), cmocka_unit_test(other_cards),
                                       cmocka_unit_test(mistakes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
