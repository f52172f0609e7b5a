/* The sm_100a NVFP4 product from its emitted PTX, under several schedules, held to sums in double. */
#include "ptxsim/sm100a/sm100a_rig.h"

static void one(int32_t n_rows, int32_t n_out, int32_t n_in, int32_t n_ctas, int32_t n_sms, bool f32, bool hostile,
                struct px_config config)
{
    struct rig_product r = {.p = {.n_rows = n_rows,
                                  .n_out = n_out,
                                  .n_in = n_in,
                                  .alpha = 3e-4f,
                                  .y_f32 = f32,
                                  .n_ctas = n_ctas,
                                  .n_sms = n_sms,
                                  .y_stride = n_out + (n_rows % 2 ? 5 : 0)},
                            .config = config,
                            .seed = (uint64_t)(n_rows * 31 + n_out),
                            .hostile = hostile};
    if (!rig_product_run(&r))
        fail_msg("[%d, %d] x [%d], %d blocks, seed %llu: %s", n_rows, n_in, n_out, n_ctas,
                 (unsigned long long)config.seed, r.error);
    rig_product_check(&r);
    rig_product_free(&r);
}

static void one_block(void **state)
{
    (void)state;
    one(1, 8, 32, 1, 1, true, false, (struct px_config){.seed = 0});
    one(130, 136, 544, 1, 2, false, false, (struct px_config){.seed = 2});
    one(70, 200, 800, 1, 1, true, true, (struct px_config){.seed = 3});
    one(3, 129, 1568, 1, 1, false, true, (struct px_config){.seed = 4}); /* stages are used again */
}

static void two_blocks(void **state)
{
    (void)state;
    one(1, 8, 32, 2, 2, false, false, (struct px_config){.seed = 5});
    one(140, 210, 544, 2, 2, true, true, (struct px_config){.seed = 6}); /* a tile that begins inside a band */
}

static void one_grouped(const int32_t *count, int32_t n_experts, int32_t n_out, int32_t n_in, int32_t n_ctas,
                        uint64_t seed)
{
    struct rig_product r = {.p = {.n_out = n_out, .n_in = n_in, .y_f32 = seed % 2, .n_ctas = n_ctas, .n_sms = 2,
                                  .n_experts = n_experts},
                            .count = count, .config = {.seed = seed}, .seed = seed};
    if (!rig_product_run(&r))
        fail_msg("%d experts, %d blocks, seed %d: %s", n_experts, n_ctas, (int)seed, r.error);
    rig_product_check(&r);
    rig_product_free(&r);
}

static void experts(void **state)
{
    (void)state;
    static const int32_t some[5] = {0, 1, 130, 0, 17}, none[3] = {0, 0, 0}, last[300] = {[299] = 5};
    one_grouped(some, 5, 72, 288, 1, 11);
    one_grouped(some, 5, 200, 288, 2, 12); /* tiles begin inside bands */
    one_grouped(none, 3, 72, 288, 1, 13);
    one_grouped(last, 300, 8, 32, 1, 14); /* more experts than the groups kernel has threads */
}

/* What the ISA leaves open, the other way: sums of groups in fp32, copies behind products. */
static void open_questions(void **state)
{
    (void)state;
    one(40, 72, 544, 1, 1, true, false, (struct px_config){.seed = 8, .mma_by_steps = true});
    one(40, 72, 544, 1, 1, true, false, (struct px_config){.seed = 9, .copies_wait_for_products = true});
    one(40, 72, 544, 1, 1, true, false, (struct px_config){.seed = 10, .elect_high = true});
}

static void many_schedules(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 24; seed++) {
        one(300, 410, 800, 2, 4, true, true, (struct px_config){.seed = seed});
        one(200, 264, 1568, 1, 1, seed % 2, false, (struct px_config){.seed = seed, .resident = 2});
    }
    one(200, 100, 2080, 2, 4, false, false, (struct px_config){.seed = 24, .resident = 2});
    one(33, 129, 7168, 1, 1, false, true, (struct px_config){.seed = 25});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_block), cmocka_unit_test(two_blocks),
                                       cmocka_unit_test(experts), cmocka_unit_test(open_questions)};
    const struct CMUnitTest longer[] = {cmocka_unit_test(many_schedules)};
    return argc > 1 && strcmp(argv[1], "long") == 0 ? cmocka_run_group_tests(longer, NULL, NULL)
                                                    : cmocka_run_group_tests(tests, NULL, NULL);
}
