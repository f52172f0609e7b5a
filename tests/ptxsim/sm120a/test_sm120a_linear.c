/* NVFP4 products of sm_120a from their emitted PTX against sums over the operands' values. `long`: more schedules. */
#include "ptxsim/sm120a/sm120a_rig.h"

static int n_schedules = 1;

static const int32_t tiles[] = {8, 16, 32, 128};

static void run(struct rig_product r)
{
    for (int s = 0; s < n_schedules; s++) {
        struct rig_product one = r;
        one.config.seed = (uint64_t)s;
        one.config.mma_by_steps = s % 2 == 1; /* sums of scale groups rounded to fp32 */
        one.config.max_steps = 40000000;
        one.seed = r.seed + (uint64_t)s;
        rig_product_check(&one);
    }
}

/* Ragged rows, outputs and k, for every kernel. */
static void shapes(void **state)
{
    (void)state;
    static const struct {
        int32_t n_rows, n_out, n_in;
        bool    f32;
    } list[] = {
        {1, 1, 32, true}, {5, 24, 96, false}, {17, 136, 1568, true}, {130, 40, 288, false}, {9, 131, 160, true}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (size_t k = 0; k < 4; k++)
            run((struct rig_product){.p = {.n_rows = list[i].n_rows,
                                           .n_out = list[i].n_out,
                                           .n_in = list[i].n_in,
                                           .alpha = {1e-3f, 0},
                                           .y_f32 = list[i].f32,
                                           .y_stride = list[i].n_out + (int32_t)i * 8,
                                           .tile_rows = tiles[k]},
                                     .seed = 11 * i + k,
                                     .gather = i == 2});
}

static void hostile(void **state)
{
    (void)state;
    for (size_t k = 0; k < 4; k++)
        run((struct rig_product){.p = {.n_rows = 23,
                                       .n_out = 48,
                                       .n_in = 1120,
                                       .alpha = {1e-3f, 0},
                                       .y_f32 = k % 2 == 0,
                                       .tile_rows = tiles[k]},
                                 .seed = 5 + k,
                                 .hostile = true});
}

/* Gate and up in one product. */
static void swiglu(void **state)
{
    (void)state;
    for (size_t k = 0; k < 4; k++) {
        run((struct rig_product){.p = {.n_rows = 21,
                                       .n_out = k < 2 ? 44 : 132,
                                       .n_in = 544,
                                       .n_parts = 2,
                                       .alpha = {1e-3f, 2e-3f},
                                       .limit = k % 2 ? 0 : 7.0f,
                                       .y_f32 = true,
                                       .tile_rows = tiles[k]},
                                 .seed = 31 + k});
        run((struct rig_product){.p = {.n_rows = 16,
                                       .n_out = 24,
                                       .n_in = 96,
                                       .n_parts = 2,
                                       .alpha = {1e-4f, 1e-4f},
                                       .limit = 10.0f,
                                       .tile_rows = tiles[k]},
                                 .seed = 37 + k,
                                 .hostile = true});
    }
}

/* Rows of experts: none, one, more than a tile; all rows to one; rows gathered through pairs. */
static void experts(void **state)
{
    (void)state;
    static const int32_t some[5] = {1, 0, 19, 0, 8}, all_to_one[4] = {0, 0, 37, 0}, none[3] = {0, 0, 0};
    for (size_t k = 0; k < 4; k++) {
        run((struct rig_product){.p = {.n_out = 40,
                                       .n_in = 288,
                                       .n_parts = 2,
                                       .limit = 7,
                                       .tile_rows = tiles[k],
                                       .n_experts = 5,
                                       .y_f32 = true},
                                 .seed = 3 + k,
                                 .gather = true,
                                 .count = some});
        run((struct rig_product){.p = {.n_out = 24, .n_in = 160, .tile_rows = tiles[k], .n_experts = 4},
                                 .seed = 7 + k,
                                 .count = all_to_one});
    }
    struct rig_product            r = {.p = {.n_out = 24, .n_in = 160, .tile_rows = 8, .n_experts = 3, .n_parts = 1},
                                       .count = none};
    struct nib_sm120a_linear_args args;
    char                          text[200];
    r.p.groups = (const struct nib_blackwell_group *)(const void *)none;
    r.p.n_groups = none;
    assert_false(nib_sm120a_linear_plan(&r.p, &args, &r.launch, text, sizeof text)); /* 0 rows */
}

/* A row's bits do not depend on the kernel, nor on the rows beside it; NaN rows' neither. */
static void one_same_bits(int32_t n_parts, bool f32, int32_t n_out)
{
    uint8_t *first = NULL;
    for (int k = 0; k < 4; k++) {
        struct rig_product r = {.p = {.n_rows = 19,
                                      .n_out = n_out,
                                      .n_in = 2336, /* 19 tiles of k: slices of 3, the last of 1, one empty */
                                      .n_parts = n_parts,
                                      .alpha = {1e-3f, 1e-3f},
                                      .y_f32 = f32,
                                      .tile_rows = tiles[k]},
                                .config = {.seed = (uint64_t)k},
                                .hostile = true,
                                .seed = 1};
        if (!rig_product_run(&r))
            fail_msg("%s", r.error);
        size_t n = (size_t)r.p.n_rows * (size_t)r.p.n_out * (f32 ? 4 : 2);
        if (!first) {
            first = malloc(n);
            assert_non_null(first);
            memcpy(first, r.p.y, n);
        }
        assert_memory_equal(first, r.p.y, n);
        rig_product_free(&r);
    }
    free(first);
}

static void same_bits(void **state)
{
    (void)state;
    one_same_bits(1, true, 40);
    one_same_bits(2, true, 24);
    one_same_bits(2, false, 24);
    one_same_bits(1, false, 23); /* outputs one by one */
}

static void refused(const char *text, struct nib_sm120a_linear p)
{
    struct nib_sm120a_linear_args args;
    struct nib_blackwell_launch      launch;
    char                          error[200];
    assert_false(nib_sm120a_linear_plan(&p, &args, &launch, error, sizeof error));
    assert_non_null(strstr(error, text));
}

static void plans(void **state)
{
    (void)state;
    struct nib_sm120a_linear p = {
        .n_rows = 3, .n_out = 7168, .n_in = 7168, .x_codes_stride = 3584, .x_scales_stride = 448, .n_parts = 1};
    struct nib_sm120a_linear_args args;
    struct nib_blackwell_launch      launch;
    char                          error[200];
    assert_true(nib_sm120a_linear_plan(&p, &args, &launch, error, sizeof error));
    assert_string_equal(launch.kernel, "nib_sm120a_decode_8");
    assert_int_equal(launch.grid, 448); /* 7168 / 16 */
    assert_int_equal(args.slice_k_tiles, 7);
    p.n_rows = 300;
    assert_true(nib_sm120a_linear_plan(&p, &args, &launch, error, sizeof error));
    assert_string_equal(launch.kernel, "nib_sm120a_linear_128");
    assert_int_equal(launch.grid, 56 * 3);
    assert_int_equal(launch.shared_bytes, 5 * 2 * 128 * (64 + 8));
    p.tile_rows = 32;
    assert_true(nib_sm120a_linear_plan(&p, &args, &launch, error, sizeof error));
    assert_int_equal(launch.shared_bytes, 5 * (128 + 32) * (64 + 8));
    p.n_in = 40;
    refused("n_in is 40: wants a multiple of 32", p);
    p.n_in = 7168;
    p.x_codes_stride = 3000;
    refused("codes is 3000", p);
    p.x_codes_stride = 3584;
    p.x_scales_stride = 446;
    refused("scales is 446", p);
    p.x_scales_stride = 448;
    p.tile_rows = 64;
    refused("tile_rows is 64", p);
    p.tile_rows = 0;
    p.n_experts = 2;
    refused("n_experts is 2", p);
    p.n_experts = 0;
    p.n_parts = 3;
    refused("n_parts is 3", p);
    p.n_parts = 2; /* two matrices of 4 units each, of which three and three hold rows */
    p.n_rows = 3;
    p.n_out = 17;
    assert_true(nib_sm120a_linear_plan(&p, &args, &launch, error, sizeof error));
    assert_int_equal(nib_sm120a_units(17), 4);
    assert_int_equal(args.w_units, 4);
    assert_int_equal(args.n_units, 6);
    assert_int_equal(launch.grid, 3);
    assert_int_equal(nib_sm120a_tile_rows(48, 256), 8);
    assert_int_equal(nib_sm120a_tile_rows(4096 * 6, 256), 128);
}

int main(int argc, char **argv)
{
    (void)argv;
    n_schedules = argc > 1 ? 12 : 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans),   cmocka_unit_test(shapes),
                                       cmocka_unit_test(hostile), cmocka_unit_test(swiglu),
                                       cmocka_unit_test(experts), cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
