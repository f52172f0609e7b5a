/* Levels of the cpu backend's kernels: which features a name stands for, which machines refuse it, and that the masks
 * fill the table that they name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/kernels.h"

static void test_masks(void **state)
{
    const unsigned   zen3 = NIB_CPU_AVX2, icelake = NIB_CPU_AVX2 | NIB_CPU_AVX512 | NIB_CPU_VNNI;
    const unsigned   zen4 = icelake | NIB_CPU_BF16, sapphire = zen4 | NIB_CPU_AMX;
    const unsigned   graviton = NIB_CPU_NEON | NIB_CPU_DOTPROD;
    struct nib_error err;
    unsigned         mask = 77;
    const struct {
        const char     *name;
        unsigned        has, mask;
        enum nib_status status;
    } cases[] = {
        {"c", 0, 0, NIB_OK},
        {"c", icelake, 0, NIB_OK},
        {"avx2", zen3, NIB_CPU_AVX2, NIB_OK},
        {"avx2", 0, 0, NIB_E_UNSUPPORTED},
        {"avx512", icelake, NIB_CPU_AVX2 | NIB_CPU_AVX512, NIB_OK},
        {"avx512", zen3, 0, NIB_E_UNSUPPORTED},
        {"vnni", icelake, icelake, NIB_OK},
        {"vnni", NIB_CPU_AVX2 | NIB_CPU_AVX512, 0, NIB_E_UNSUPPORTED},
        {"bf16", zen4, zen4, NIB_OK},
        {"bf16", sapphire, zen4, NIB_OK},
        {"bf16", icelake, 0, NIB_E_UNSUPPORTED},
        {"vnni", zen4, icelake, NIB_OK},
        {"neon", graviton, NIB_CPU_NEON, NIB_OK},
        {"neon", icelake, 0, NIB_E_UNSUPPORTED},
        {"dotprod", graviton, graviton, NIB_OK},
        {"dotprod", NIB_CPU_NEON, 0, NIB_E_UNSUPPORTED},
        {"sse9", icelake, 0, NIB_E_ARGUMENT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err.text[0] = '\0';
        assert_int_equal(nib_cpu_level_mask(cases[i].name, cases[i].has, &mask, &err), cases[i].status);
        if (cases[i].status == NIB_OK)
            assert_int_equal(mask, cases[i].mask);
        else
            assert_non_null(strstr(err.text, cases[i].name));
    }
    (void)nib_cpu_level_mask("vnni", zen3, &mask, &err);
    assert_string_equal(err.text, "cpu level 'vnni' was asked for, but this machine's best level is 'avx2'");
    (void)nib_cpu_level_mask("neon", sapphire, &mask, &err);
    assert_string_equal(err.text, "cpu level 'neon' was asked for, but this machine's best level is 'vnni'");
}

/* The level bf16 is a machine's own where no AMX says that it would be slower; by name it is to be had there too. */
static void test_bf16(void **state)
{
    (void)state;
    const unsigned         zen4 = NIB_CPU_AVX2 | NIB_CPU_AVX512 | NIB_CPU_VNNI | NIB_CPU_BF16;
    struct nib_cpu_kernels k;
    if ((nib_cpu_flags_detect() & zen4) == zen4) { /* tables are filled with its instructions */
        nib_cpu_kernels_init(&k, zen4 | NIB_CPU_AMX);
        assert_string_equal(k.name, "vnni");
        assert_null(k.tile_bf16);
        nib_cpu_kernels_init(&k, zen4);
        assert_string_equal(k.name, "bf16");
        assert_non_null(k.tile_bf16);
        assert_non_null(k.bf16_take);
    }
    nib_cpu_kernels_init(&k, 0);
    assert_string_equal(k.name, "c");
    assert_null(k.tile_bf16);
}

/* Integer rows are the default on all levels but one that was not measured. */
static void test_prefers_int8(void **state)
{
    static const struct {
        const char *level;
        bool        prefers;
    } levels[] = {{"c", true}, {"avx2", true}, {"avx512", true}, {"vnni", true}, {"neon", false}, {"dotprod", true}};
    const unsigned has = nib_cpu_flags_detect();
    (void)state;
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        const struct nib_backend_config c = {.cpu_mask = ~0u, .cpu_level = levels[i].level};
        unsigned                        mask = 0;
        assert_int_equal(nib_cpu_level_mask(levels[i].level, ~0u, &mask, NULL), NIB_OK);
        assert_int_equal(nib_cpu_prefers_int8(mask), levels[i].prefers);
        assert_int_equal(nib_backend_cpu.prefers_int8(&c), levels[i].prefers && (has & mask) == mask);
    }
    const struct nib_backend_config all = {.cpu_mask = ~0u}, masked = {0};
    assert_int_equal(nib_backend_cpu.prefers_int8(&all), has == 0 || (has & (NIB_CPU_AVX2 | NIB_CPU_DOTPROD)));
    assert_true(nib_backend_cpu.prefers_int8(&masked));
}

/* Each level of this machine gets its own table; a larger mask never a lower one. */
static void test_tables(void **state)
{
    static const char *const names[] = {"c", "avx2", "avx512", "vnni", "bf16", "neon", "dotprod"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct nib_cpu_kernels k;
        unsigned               mask;
        if (nib_cpu_level_mask(names[i], nib_cpu_flags_detect(), &mask, NULL) != NIB_OK)
            continue;
        nib_cpu_kernels_init(&k, mask);
        assert_string_equal(k.name, names[i]);
    }
}

/* Every element of an octet has one place in each order, and pairs of bytes of 4-bit codes stay together. */
static void test_orders(void **state)
{
    (void)state;
    for (int best = 0; best < 2; best++) {
        struct nib_cpu_kernels k;
        nib_cpu_kernels_init(&k, best ? nib_cpu_flags_detect() : 0);
        const struct {
            const uint8_t *order;
            int            n;
        } list[] = {{k.order.fp4, sizeof k.order.fp4}, {k.order.fp8, sizeof k.order.fp8}, {k.order.bf16, sizeof k.order.bf16}};
        for (int i = 0; i < 3; i++) {
            bool seen[sizeof k.order.fp8] = {false};
            for (int e = 0; e < list[i].n; e++) {
                assert_true(list[i].order[e] < list[i].n);
                assert_false(seen[list[i].order[e]]);
                seen[list[i].order[e]] = true;
            }
        }
        for (size_t e = 0; e < sizeof k.order.fp4; e += 2) {
            assert_int_equal(k.order.fp4[e] % 2, 0);
            assert_int_equal(k.order.fp4[e + 1], k.order.fp4[e] + 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_masks), cmocka_unit_test(test_bf16), cmocka_unit_test(test_prefers_int8),
                                       cmocka_unit_test(test_tables),
                                       cmocka_unit_test(test_orders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
