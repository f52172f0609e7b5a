/* What the CUDA backend does when memory runs out and when the device is lost, with the simulated runtime failing on
 * purpose. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/backend_cuda.h"
#include "ptxsim/runtime/runtime_stub.h"
#include "ptxsim/runtime/small_dims.h"

enum { COLS = SMALL_COLS };

static const struct nib_backend_api *const api = &nib_backend_cuda;

static const struct nib_backend_config k_config = {.dims = SMALL_DIMS};

static struct nib_backend *open_backend(void)
{
    struct nib_error    err = {0};
    struct nib_backend *b = NULL;
    if (api->open(&k_config, &b, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return b;
}

struct row {
    float *x, *weight, *y;
};

static struct row make_row(struct nib_backend *b)
{
    struct row r = {api->alloc(b, COLS * 4), api->alloc(b, COLS * 4), api->alloc(b, COLS * 4)};
    float      x[COLS], weight[COLS];
    assert_true(r.x && r.weight && r.y);
    for (int i = 0; i < COLS; i++) {
        x[i] = i % 2 ? -3 : 3;
        weight[i] = (float)i;
    }
    assert_int_equal(api->upload(api->stream(b), r.x, x, sizeof x), NIB_OK);
    assert_int_equal(api->upload(api->stream(b), r.weight, weight, sizeof weight), NIB_OK);
    return r;
}

static enum nib_status norm(struct nib_backend *b, const struct row *r)
{
    return api->ops->norm(api->stream(b), &(struct nib_norm_args){
        .x = {r->x, NIB_DTYPE_F32, 1, COLS, COLS}, .weight = r->weight, .eps = 0,
        .y = {.plain = {r->y, NIB_DTYPE_F32, 1, COLS, COLS}, .rows = 1, .cols = COLS}});
}

/* All values have the magnitude 3, so the norm leaves sign times weight. */
static void expect_works(struct nib_backend *b, const struct row *r)
{
    float y[COLS];
    assert_int_equal(norm(b, r), NIB_OK);
    assert_int_equal(api->download(api->stream(b), y, r->y, sizeof y), NIB_OK);
    for (int i = 0; i < COLS; i++)
        assert_true(fabsf(y[i] - (float)(i % 2 ? -i : i)) <= (float)i * 0x1p-22f);
}

static void free_row(struct nib_backend *b, const struct row *r)
{
    api->release(b, r->x);
    api->release(b, r->weight);
    api->release(b, r->y);
}

/* Every allocation of open() fails once: a sentence and no backend; then it opens. */
static void test_no_memory_to_open(void **state)
{
    (void)state;
    struct nib_error    err = {0};
    struct nib_backend *b = open_backend();
    api->close(b);
    b = (struct nib_backend *)&err; /* must be overwritten */
    ptxsim_fail_alloc(1);
    assert_int_equal(api->open(&k_config, &b, &err), NIB_E_MEMORY);
    assert_null(b);
    assert_non_null(strstr(err.text, "scratch"));
    struct row r;
    b = open_backend();
    r = make_row(b);
    expect_works(b, &r);
    free_row(b, &r);
    api->close(b);
}

static void test_no_memory_while_open(void **state)
{
    (void)state;
    struct nib_backend       *b = open_backend();
    struct row                r = make_row(b);
    struct nib_error          err = {0};
    struct nib_weight        *w = NULL;
    uint16_t                  values[16 * COLS] = {0};
    struct nib_weight_part    part = {values, NULL, 1};
    struct nib_weight_desc    desc = {NIB_WEIGHT_BF16, NIB_ACT_PLAIN, 1, 16, COLS, &part, NIB_USE_ANY};
    ptxsim_fail_alloc(1);
    assert_null(api->alloc(b, 1000));
    expect_works(b, &r);
    ptxsim_fail_alloc(1);
    assert_int_equal(api->weight_pack(b, &desc, &w, &err), NIB_E_MEMORY);
    assert_null(w);
    assert_non_null(strstr(err.text, "[16, 64]"));
    expect_works(b, &r);
    assert_int_equal(api->weight_pack(b, &desc, &w, &err), NIB_OK);
    api->weight_free(b, w);
    free_row(b, &r);
    api->close(b);
}

static void expect_lost(struct nib_backend *b, const struct row *r)
{
    struct nib_stream *s = api->stream(b);
    float              y[COLS] = {0};
    assert_int_equal(api->download(s, y, r->y, sizeof y), NIB_E_DEVICE);
    assert_int_equal(api->upload(s, r->x, y, sizeof y), NIB_E_DEVICE);
    assert_int_equal(api->copy(s, r->x, r->y, sizeof y), NIB_E_DEVICE);
    assert_int_equal(api->synchronise(s), NIB_E_DEVICE);
    assert_null(api->alloc(b, 64));
}

/* A kernel that brings the device down is seen by the next call that waits, and nothing works from then on. */
static void test_lost_device(void **state)
{
    (void)state;
    struct nib_backend *b = open_backend();
    struct row          r = make_row(b);
    expect_works(b, &r);
    ptxsim_fail_launch(1, cudaErrorLaunchFailure);
    (void)norm(b, &r);
    assert_int_equal(api->synchronise(api->stream(b)), NIB_E_DEVICE);
    expect_lost(b, &r);
    (void)norm(b, &r);
    expect_lost(b, &r);
    for (int i = 0; i < 2; i++) { /* every later failure has the first one's reason */
        struct nib_error why = {0};
        api->why(api->stream(b), &why);
        if (!strstr(why.text, "cuda: ") || !strstr(why.text, "the simulator stopped a kernel"))
            fail_msg("'%s' does not say what failed", why.text);
    }
    free_row(b, &r);
    api->close(b);
}

int main(void)
{
    /* The lost device comes last: it stays lost for the process. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory_to_open),
        cmocka_unit_test(test_no_memory_while_open),
        cmocka_unit_test(test_lost_device),
    };
    return cmocka_run_group_tests_name("cuda faults", tests, NULL, NULL);
}
