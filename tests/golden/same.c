/* Two checkpoints that hold the same values in different layouts must give the same bits:
 *
 *   same BACKEND DIR_A DIR_B
 *
 * All logits of 300 tokens are compared, and the MTP block's where both have one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/model_support.h"

#define N_TOKENS 300

static const char *g_backend, *g_dir[2];

static bool has_mtp(const char *dir)
{
    struct nib_error err = {0};
    struct nib_model *m = NULL;
    if (nib_model_open(dir, &m, &err) != NIB_OK)
        fail_msg("%s", err.text);
    const bool has = nib_model_get_info(m)->has_mtp;
    nib_model_close(m);
    return has;
}

static void test_same(void **state)
{
    (void)state;
    const bool mtp = has_mtp(g_dir[0]) && has_mtp(g_dir[1]);
    struct nib_checkpoint *goldens = goldens_open();
    int32_t *ids = golden_copy(golden_find(goldens, "ids.%d", N_TOKENS));
    float *logits[2], *mtp_logits[2];
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        struct nib_options o;
        struct nib_error err = {0};
        struct nib_seq *seq = NULL;
        nib_options_init(&o);
        o.backend = g_backend;
        o.act_quant = NIB_ACT_QUANT_NONE; /* rounding before 4-bit weights would tell the layouts apart */
        o.n_ctx = 512;
        o.n_rows_max = N_TOKENS;
        o.mtp = mtp;
        struct fixture f = fixture_open(g_dir[i], &o);
        n = N_TOKENS * (size_t)f.vocab;
        logits[i] = malloc(n * sizeof(float));
        mtp_logits[i] = malloc(n * sizeof(float));
        assert_true(logits[i] && mtp_logits[i]);
        assert_int_equal(nib_seq_open(f.engine, &seq, &err), NIB_OK);
        fixture_run(&f, seq, &(struct run){.ids = ids, .n = N_TOKENS, .chunk = N_TOKENS, .n_last = N_TOKENS, .logits = logits[i],
                                           .n_mtp = mtp ? N_TOKENS : 0, .mtp = mtp ? mtp_logits[i] : NULL});
        nib_seq_close(seq);
        fixture_close(&f);
    }
    assert_memory_equal(logits[0], logits[1], n * sizeof(float));
    if (mtp)
        assert_memory_equal(mtp_logits[0], mtp_logits[1], n * sizeof(float));
    printf("%s: %d rows of logits equal bit for bit%s\n", g_backend, N_TOKENS,
           mtp ? ", MTP too" : ", no MTP block in both");
    for (int i = 0; i < 2; i++) {
        free(logits[i]);
        free(mtp_logits[i]);
    }
    free(ids);
    nib_checkpoint_close(goldens);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: same BACKEND DIR_A DIR_B\n");
        return 2;
    }
    g_backend = argv[1];
    g_dir[0] = argv[2];
    g_dir[1] = argv[3];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same)};
    return cmocka_run_group_tests_name("same", tests, NULL, NULL);
}
