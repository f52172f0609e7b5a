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
#include "ptxsim/runtime/small_dims.h"

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

/* What a meter times: a norm of two rows, which the backend would let wait for the next launch. */
static enum nib_status norm_rows(struct nib_stream *s, void *data)
{
    return nib_backend_cuda.ops->norm(s, data);
}

/* The op has run when its time is known, and behind a failed launch there is none. */
static void timing(void **state)
{
    enum { N = 2 * SMALL_COLS };
    const struct nib_backend_api   *api = &nib_backend_cuda;
    const struct nib_backend_config config = {.dims = SMALL_DIMS};
    const struct nib_meter         *meter = nib_meter_of(api);
    struct nib_backend *b = NULL;
    struct nib_error    err = {0};
    float               x[N], got[N];
    double              seconds = 0;
    (void)state;
    (void)setenv("NIB_PTXSIM_CARD", "90", 1);
    assert_null(nib_meter_of(&nib_backend_cpu));
    assert_non_null(meter);
    if (api->open(&config, &b, &err) != NIB_OK)
        fail_msg("%s", err.text);
    struct nib_stream *s = api->stream(b);
    float *rows = api->alloc(b, sizeof x), *y = api->alloc(b, sizeof x), *weight = api->alloc(b, sizeof x);
    for (int i = 0; i < N; i++)
        x[i] = i < SMALL_COLS ? 2 : -4; /* rows of one magnitude, which the norm brings to 1 */
    assert_int_equal(api->upload(s, rows, x, sizeof x), NIB_OK);
    for (int i = 0; i < N; i++)
        x[i] = 3;
    assert_int_equal(api->upload(s, weight, x, sizeof x), NIB_OK);
    struct nib_norm_args a = {
        .x = {rows, NIB_DTYPE_F32, 2, SMALL_COLS, SMALL_COLS},
        .weight = weight,
        .y = {.plain = {y, NIB_DTYPE_F32, 2, SMALL_COLS, SMALL_COLS}, .rows = 2, .cols = SMALL_COLS},
    };
    assert_int_equal(meter->time(s, norm_rows, &a, &seconds), NIB_OK);
    assert_float_equal(seconds, 0.01, 1e-9);
    fetch(got, y, sizeof got);
    for (int i = 0; i < N; i++)
        assert_float_equal(got[i], i < SMALL_COLS ? 3 : -3, 0);
    ptxsim_fail_launch(1, cudaErrorLaunchFailure);
    assert_int_equal(meter->time(s, norm_rows, &a, &seconds), NIB_E_DEVICE);
    api->why(s, &err);
    assert_non_null(strstr(err.text, "timing an op"));
    api->release(b, rows);
    api->release(b, y);
    api->release(b, weight);
    api->close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hopper),  cmocka_unit_test(data_centre), cmocka_unit_test(rtx),
        cmocka_unit_test(reading), cmocka_unit_test(limits),      cmocka_unit_test(timing), /* loses the device: last */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
