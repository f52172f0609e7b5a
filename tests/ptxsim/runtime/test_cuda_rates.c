/* The loops that a card's limits are measured by do the work that they are counted for, in the simulator of each
 * family: ones times ones, so that sums tell how many products there were. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/any/rates.h"
#include "backend/cuda/backend_cuda.h"
#include "backend/meter.h"
#include "ptxsim/runtime/runtime_stub.h"

/* Zeroed memory of the card. */
static void *taken(size_t bytes)
{
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    assert_int_equal(cudaMemset(p, 0, bytes), cudaSuccess);
    return p;
}

static void fetch(void *to, const void *from, size_t bytes)
{
    assert_int_equal(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, NULL), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
}

/* One round, and two more. */
static void products(int32_t major, int n_wanted)
{
    enum { BLOCKS = 2 };
    int n = 0;
    for (const struct nib_rate_loop *l = nib_rate_loops; l->run; l++) {
        double sum[BLOCKS], *out;
        if (l->major != 0 && l->major != major)
            continue;
        out = taken(sizeof sum);
        for (int32_t rounds = 1; rounds <= 2; rounds++)
            assert_int_equal(l->run(NULL, BLOCKS, rounds, out), cudaSuccess);
        fetch(sum, out, sizeof sum);
        for (int b = 0; b < BLOCKS; b++)
            if (sum[b] != 3 * (double)l->ops / 2)
                fail_msg("kind %d of %d.x, block %d: sums are %.17g after 3 rounds, wanted %.17g", (int)l->kind,
                         (int)major, b, sum[b], 3 * (double)l->ops / 2);
        assert_int_equal(cudaFree(out), cudaSuccess);
        n++;
    }
    assert_int_equal(n, n_wanted);
}

static void hopper(void **state)
{
    (void)state;
    (void)setenv("NIB_PTXSIM_CARD", "90", 1);
    products(9, 2);
}

static void data_centre(void **state)
{
    (void)state;
    (void)setenv("NIB_PTXSIM_CARD", "100", 1);
    products(10, 4);
}

static void rtx(void **state)
{
    (void)state;
    (void)setenv("NIB_PTXSIM_CARD", "120", 1);
    products(12, 3);
}

/* Every word once, then the first ones again. */
static void reading(void **state)
{
    enum { BLOCKS = 2, WORDS = 2 * BLOCKS * NIB_RATE_READ_WORDS };
    (void)state;
    uint32_t           *host = malloc(16 * (size_t)WORDS), *data = taken(16 * (size_t)WORDS);
    unsigned long long *out = taken(sizeof *out), sum, wanted = 0;
    assert_non_null(host);
    for (uint32_t i = 0; i < 4 * WORDS; i++) {
        host[i] = i * 2654435761u;
        wanted += host[i];
        if (i < 4 * WORDS / 2)
            wanted += host[i];
    }
    assert_int_equal(cudaMemcpyAsync(data, host, 16 * (size_t)WORDS, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    assert_int_equal(nib_rate_read(NULL, BLOCKS, 3, data, WORDS, out), cudaSuccess);
    fetch(&sum, out, sizeof sum);
    if (sum != wanted)
        fail_msg("words add up to %llu, wanted %llu", sum, wanted);
    assert_int_equal(cudaFree(data), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
    free(host);
}

/* As a benchmark asks, where a run takes ten milliseconds: 2 rounds of each loop. */
static void limits(void **state)
{
    struct nib_machine m = {0};
    struct nib_error   err = {0};
    (void)state;
    (void)setenv("NIB_PTXSIM_CARD", "90", 1);
    (void)setenv("NIB_PTXSIM_SMS", "1", 1);
    if (nib_device_measure("cuda", 1 << 18, &m, &err) != NIB_OK)
        fail_msg("%s", err.text);
    /* 16 multiply-adds of 256 outputs by 64 rows by 16, in two groups and two rounds, a hundred times a second. */
    assert_float_equal(m.fp32_gflop_s, 1e-9 * 100 * 2 * 2 * 16 * 2.0 * 256 * 64 * 16, 1e-9);
    assert_true(m.fp8_gflop_s == m.fp32_gflop_s && m.int8_gop_s == m.fp32_gflop_s);
    /* 4 blocks of 512 threads read 8 words each in a round. */
    assert_float_equal(m.read_gb_s, 1e-9 * 100 * 2 * 4 * 512 * 8 * 16, 1e-9);
    assert_int_equal(m.read_bytes, 1 << 18);
    assert_int_equal(nib_device_measure("cpu", 1 << 18, &m, &err), NIB_E_UNSUPPORTED);
    assert_string_equal(err.text, "backend 'cpu' has no card whose limits could be measured");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hopper),  cmocka_unit_test(data_centre), cmocka_unit_test(rtx),
        cmocka_unit_test(reading), cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
