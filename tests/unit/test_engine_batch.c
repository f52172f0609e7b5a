/* What nib_step refuses: each wrong batch by the sentence that names it, with the sequences as they were
 * before. The logits of a right step afterwards are those of an engine that never saw a wrong one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "support/model_support.h"

enum { N_CTX = 8, N_ROWS = 6, N_SEQS = 2 };

static struct fixture open_engine(void)
{
    struct nib_options o;
    nib_options_init(&o);
    o.backend = "cpu";
    o.n_threads = 1;
    o.n_ctx = N_CTX;
    o.n_rows_max = N_ROWS;
    o.n_seqs_max = N_SEQS;
    return fixture_open(MODEL_NVFP4, &o);
}

static const int32_t k_token[N_ROWS + 1] = {0, 500, 600, 0, 700, 800, 900};

static struct nib_batch batch(struct nib_seq *const *seq, const int32_t *start, int32_t n_seqs)
{
    return (struct nib_batch){
        .n_rows = start[n_seqs], .n_seqs = n_seqs, .token = k_token, .seq_start = start, .seq = seq};
}

/* The right batch, two sequences of three rows, and its last rows' logits. */
static void right(struct fixture *f, struct nib_seq *const *seq, float *logits)
{
    struct nib_batch b = batch(seq, (int32_t[]){0, 3, 6}, 2);
    struct nib_error err = {0};
    b.n_logits = 2;
    b.logits_row = (int32_t[]){2, 5};
    if (nib_step(f->engine, &b, logits, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void refused(struct fixture *f, const struct nib_batch *b, enum nib_status status, const char *text)
{
    struct nib_error err = {0};
    float           *logits = malloc((size_t)(N_ROWS + 1) * (size_t)f->vocab * sizeof *logits);
    assert_non_null(logits);
    const enum nib_status found = nib_step(f->engine, b, logits, NULL, &err);
    free(logits);
    if (found != status || strcmp(err.text, text) != 0)
        fail_msg("status %s, wanted %s; '%s', wanted '%s'", nib_status_name(found), nib_status_name(status), err.text,
                 text);
}

static void wrong_shapes(struct fixture *f, struct nib_seq *const *seq)
{
    struct nib_batch b = batch(seq, (int32_t[]){0, 3, 7}, 2);
    refused(f, &b, NIB_E_ARGUMENT, "n_rows is 7, wanted 0 to 6");
    b.n_rows = -1;
    refused(f, &b, NIB_E_ARGUMENT, "n_rows is -1, wanted 0 to 6");
    b = batch(seq, (int32_t[]){0, 1, 2, 3}, 3);
    refused(f, &b, NIB_E_ARGUMENT, "n_seqs is 3, wanted 0 to 2");
    b = batch(seq, (int32_t[]){1, 3}, 1);
    refused(f, &b, NIB_E_ARGUMENT, "seq_start must run from 0 to n_rows (3)");
    b = batch(seq, (int32_t[]){0, 3}, 1);
    b.n_rows = 4;
    refused(f, &b, NIB_E_ARGUMENT, "seq_start must run from 0 to n_rows (4)");
    b = batch(seq, (int32_t[]){0, 3, 3}, 2);
    refused(f, &b, NIB_E_ARGUMENT, "sequence 1 has 0 rows, wanted at least 1");
    b = batch(seq, (int32_t[]){0, 4, 3}, 2);
    refused(f, &b, NIB_E_ARGUMENT, "sequence 1 has -1 rows, wanted at least 1");
}

static void wrong_values(struct fixture *f, struct nib_seq *const *seq)
{
    struct nib_batch b = batch(seq, (int32_t[]){0, 3}, 1);
    b.token = (int32_t[]){0, 2048, 0};
    refused(f, &b, NIB_E_ARGUMENT, "token 1 is 2048, wanted 0 to 2047");
    b.token = (int32_t[]){0, 0, -1};
    refused(f, &b, NIB_E_ARGUMENT, "token 2 is -1, wanted 0 to 2047");
    b.token = k_token;
    b.n_logits = 4;
    refused(f, &b, NIB_E_ARGUMENT, "n_logits is 4, wanted 0 to 3");
    b.n_logits = 2;
    b.logits_row = (int32_t[]){1, 3};
    refused(f, &b, NIB_E_ARGUMENT, "logits_row 1 is 3, wanted ascending rows below 3");
    b.logits_row = (int32_t[]){-1, 2};
    refused(f, &b, NIB_E_ARGUMENT, "logits_row 0 is -1, wanted ascending rows below 3");
    b.logits_row = (int32_t[]){1, 1};
    refused(f, &b, NIB_E_ARGUMENT, "logits_row 1 is 1, wanted ascending rows below 3");
    b.logits_row = (int32_t[]){2, 0};
    refused(f, &b, NIB_E_ARGUMENT, "logits_row 1 is 0, wanted ascending rows below 3");
    float mtp;
    struct nib_error err;
    assert_int_equal(nib_step(f->engine, &b, NULL, &mtp, &err), NIB_E_ARGUMENT);
    assert_string_equal(err.text, "MTP logits were asked for, but the engine was opened without mtp");
}

static void wrong_sequences(struct fixture *f, struct nib_seq *const *seq, struct nib_seq *foreign)
{
    struct nib_batch b = batch((struct nib_seq *[]){seq[1], seq[1]}, (int32_t[]){0, 3, 6}, 2);
    refused(f, &b, NIB_E_ARGUMENT, "sequence 1 stands twice in the batch");
    b = batch((struct nib_seq *[]){seq[0], foreign}, (int32_t[]){0, 3, 6}, 2);
    refused(f, &b, NIB_E_ARGUMENT, "sequence 1 is not of this engine");
    b = batch((struct nib_seq *[]){NULL}, (int32_t[]){0, 3}, 1);
    refused(f, &b, NIB_E_ARGUMENT, "sequence 0 is not of this engine");
}

static void test_step(void **state)
{
    (void)state;
    struct fixture  f = open_engine(), other = open_engine();
    struct nib_seq *seq[N_SEQS], *twin[N_SEQS], *more;
    const size_t    n = N_SEQS * (size_t)f.vocab;
    float          *found = malloc(n * sizeof *found), *wanted = malloc(n * sizeof *wanted);
    assert_true(found && wanted);
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(nib_seq_open(f.engine, &seq[i], NULL), NIB_OK);
        assert_int_equal(nib_seq_open(other.engine, &twin[i], NULL), NIB_OK);
    }
    assert_int_equal(nib_seq_open(f.engine, &more, NULL), NIB_E_LIMIT);
    assert_null(more);
    assert_int_equal(nib_seq_fork(seq[0], &more, NULL), NIB_E_LIMIT);
    assert_null(more);
    for (int round = 0; round < 2; round++) {
        wrong_shapes(&f, seq);
        wrong_values(&f, seq);
        wrong_sequences(&f, seq, twin[0]);
        assert_int_equal(nib_seq_length(seq[0]), 3 * round);
        assert_int_equal(nib_seq_length(seq[1]), 3 * round);
        right(&f, seq, found);
        right(&other, twin, wanted);
        assert_memory_equal(found, wanted, n * sizeof *found);
    }
    const struct nib_batch b = batch(seq, (int32_t[]){0, 3}, 1);
    refused(&f, &b, NIB_E_LIMIT, "sequence 0 holds 6 tokens and gets 3 more; the context is 8");
    for (int i = 0; i < N_SEQS; i++) {
        nib_seq_close(seq[i]);
        nib_seq_close(twin[i]);
    }
    free(found);
    free(wanted);
    fixture_close(&f);
    fixture_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
