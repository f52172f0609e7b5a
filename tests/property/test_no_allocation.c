/* A step allocates nothing: the allocator is replaced by one that counts, and steps of several shapes must leave the
 * count alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/model_support.h"

#ifdef __GLIBC__
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

static atomic_long g_count;

void *malloc(size_t n)
{
    atomic_fetch_add(&g_count, 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&g_count, 1);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&g_count, 1);
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    atomic_fetch_add(&g_count, 1);
    return __libc_memalign(align, n);
}

static void steps(void **state)
{
    struct nib_options o;
    struct nib_error err = {0};
    struct nib_seq *seq[2];
    int32_t token[128], start[3] = {0, 127, 128}, row[2] = {126, 127};
    nib_options_init(&o);
    o.backend = *state;
    o.n_ctx = 1024;
    o.n_seqs_max = 3;
    o.mtp = true;
    o.act_quant = NIB_ACT_QUANT_NVFP4;
    struct fixture f = fixture_open(MODEL_NVFP4, &o);
    float *logits = malloc(2 * (size_t)f.vocab * sizeof *logits), *mtp = malloc(2 * (size_t)f.vocab * sizeof *mtp);
    assert_true(logits && mtp);
    for (int i = 0; i < 128; i++)
        token[i] = (i * 37 + 5) % 2000;
    for (int i = 0; i < 2; i++)
        assert_int_equal(nib_seq_open(f.engine, &seq[i], &err), NIB_OK);
    const struct nib_batch wide = {.n_rows = 128, .n_seqs = 2, .n_logits = 2, .token = token, .seq_start = start, .seq = seq, .logits_row = row};
    const int32_t narrow_start[3] = {0, 1, 2}, narrow_row[2] = {0, 1};
    const struct nib_batch narrow = {.n_rows = 2, .n_seqs = 2, .n_logits = 2, .token = token, .seq_start = narrow_start, .seq = seq,
                                     .logits_row = narrow_row};
    /* The first of each shape may start threads. */
    assert_int_equal(nib_step(f.engine, &wide, logits, mtp, &err), NIB_OK);
    assert_int_equal(nib_step(f.engine, &narrow, logits, mtp, &err), NIB_OK);
    const long before = atomic_load(&g_count);
    for (int i = 0; i < 4; i++)
        assert_int_equal(nib_step(f.engine, &wide, logits, mtp, &err), NIB_OK);
    for (int i = 0; i < 200; i++)
        assert_int_equal(nib_step(f.engine, &narrow, logits, mtp, &err), NIB_OK);
    assert_int_equal(nib_seq_truncate(seq[0], nib_seq_length(seq[0]) - 3), NIB_OK);
    assert_int_equal(atomic_load(&g_count) - before, 0);
    assert_true(before > 0); /* the counter is in place */
    for (int i = 0; i < 2; i++)
        nib_seq_close(seq[i]);
    fixture_close(&f);
    free(logits);
    free(mtp);
}
#endif

int main(void)
{
#ifdef __GLIBC__
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(steps, (void *)(uintptr_t)"cpu"),
                                       cmocka_unit_test_prestate(steps, (void *)(uintptr_t)"ref")};
    return cmocka_run_group_tests_name("no_allocation", tests, NULL, NULL);
#else
    printf("skipped: counting allocations needs glibc\n");
    return 0;
#endif
}
