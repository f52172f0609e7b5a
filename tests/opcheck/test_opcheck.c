/* The op checker's program: runs every check on fresh seeds and sums up.
 *
 *   test_opcheck [--seed N] [--op NAME] [--n N] [--rows many] [--columns many] [--format nvfp4|fp8] [--backend NAME] [--cpu LEVEL]
 *
 * With --backend only that one is held to ref, in one variant.
 * A failure prints op, variant, shape, seed and the worst element; the same --seed (and --n) makes the same cases. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/opcheck.h"

/* One line for each slot of struct nib_ops; a slot without a check fails the suite. cases: share of the default run,
 * by cost and by number of formats. */
static const struct check {
    const char *name;
    size_t      slot;
    void (*run)(struct oc_case *c);
    int32_t     cases;
} checks[] = {
    {"embed", offsetof(struct nib_ops, embed), oc_check_embed, 40},
    {"norm", offsetof(struct nib_ops, norm), oc_check_norm, 80},
    {"linear", offsetof(struct nib_ops, linear), oc_check_linear, 150},
    {"q_rope", offsetof(struct nib_ops, q_rope), oc_check_q_rope, 40},
    {"kv_insert", offsetof(struct nib_ops, kv_insert), oc_check_kv_insert, 40},
    {"compress", offsetof(struct nib_ops, compress), oc_check_compress, 60},
    {"index_select", offsetof(struct nib_ops, index_select), oc_check_index_select, 50},
    {"attend", offsetof(struct nib_ops, attend), oc_check_attend, 40},
    {"o_a", offsetof(struct nib_ops, o_a), oc_check_o_a, 60},
    {"moe", offsetof(struct nib_ops, moe), oc_check_moe, 100},
    {"hc_pre", offsetof(struct nib_ops, hc_pre), oc_check_hc_pre, 60},
    {"hc_post", offsetof(struct nib_ops, hc_post), oc_check_hc_post, 40},
    {"hc_head", offsetof(struct nib_ops, hc_head), oc_check_hc_head, 40},
    {"head", offsetof(struct nib_ops, head), oc_check_head, 40},
    {"mtp_join", offsetof(struct nib_ops, mtp_join), oc_check_mtp_join, 20},
    {"copy_rows", offsetof(struct nib_ops, copy_rows), oc_check_copy_rows, 30},
    {"sample", offsetof(struct nib_ops, sample), oc_check_sample, 80},
};

enum { N_CHECKS = sizeof checks / sizeof *checks };
_Static_assert(N_CHECKS == sizeof(struct nib_ops) / sizeof(void (*)(void)), "an op in struct nib_ops has no check");

/* Every slot once, and every backend's table full. */
static bool tables_are_complete(void)
{
    for (size_t slot = 0; slot < sizeof(struct nib_ops); slot += sizeof(void (*)(void))) {
        int n = 0;
        for (int i = 0; i < N_CHECKS; i++)
            n += checks[i].slot == slot;
        if (n != 1) {
            fprintf(stderr, "opcheck: slot at byte %zu of struct nib_ops has %d checks\n", slot, n);
            return false;
        }
        for (const struct nib_backend_api *const *api = nib_backends(); *api; api++) {
            void (*function)(void);
            memcpy(&function, (const char *)(*api)->ops + slot, sizeof function);
            if (!function) {
                fprintf(stderr, "opcheck: backend %s has an empty slot at byte %zu\n", (*api)->name, slot);
                return false;
            }
        }
    }
    return true;
}

static int run_check(int which, const struct oc_case *like, int32_t n_cases)
{
    int n_failed = 0;
    for (int32_t i = 0; i < n_cases && n_failed < 5; i++) {
        struct oc_case c = *like;
        c.op = checks[which].name;
        c.index = i;
        c.rng = (c.seed * 1000003 + (uint64_t)which) * 1000003 + (uint64_t)i;
        checks[which].run(&c);
        n_failed += c.failed;
        oc_case_free(&c);
    }
    return n_failed;
}

int main(int argc, char **argv)
{
    uint64_t    seed = (uint64_t)time(NULL) * 1000 + (uint64_t)clock() % 1000;
    const char *op = NULL, *backend = NULL, *level = NULL;
    int32_t     n_cases = 0;
    bool        many = false, deep = false;
    enum nib_act_format format = NIB_ACT_PLAIN;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--op") == 0)
            op = argv[i + 1];
        else if (strcmp(argv[i], "--cpu") == 0)
            level = argv[i + 1];
        else if (strcmp(argv[i], "--n") == 0)
            n_cases = (int32_t)strtol(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--rows") == 0 && strcmp(argv[i + 1], "many") == 0)
            many = true;
        else if (strcmp(argv[i], "--format") == 0 && strcmp(argv[i + 1], "nvfp4") == 0)
            format = NIB_ACT_NVFP4;
        else if (strcmp(argv[i], "--format") == 0 && strcmp(argv[i + 1], "fp8") == 0)
            format = NIB_ACT_FP8;
        else if (strcmp(argv[i], "--columns") == 0 && strcmp(argv[i + 1], "many") == 0)
            deep = true;
        else if (strcmp(argv[i], "--backend") == 0)
            backend = argv[i + 1];
        else
            argc = 0;
    }
    if (argc % 2 == 0) {
        fprintf(stderr, "usage: test_opcheck [--seed N] [--op NAME] [--n N] [--rows many] [--format nvfp4|fp8] [--backend NAME] "
                        "[--cpu LEVEL]\n");
        return 2;
    }
    printf("opcheck: --seed %llu\n", (unsigned long long)seed);
    if (!tables_are_complete() || !oc_open(backend, level))
        return 1;
    int64_t n_checks = 0;
    int     n_failed = 0, n_ops = 0;
    const struct oc_case like = {.seed = seed, .many = many, .deep = deep, .format = format, .n_checks = &n_checks};
    for (int i = 0; i < N_CHECKS; i++) {
        if (op && strcmp(op, checks[i].name) != 0)
            continue;
        clock_t start = clock();
        int     failed = run_check(i, &like, n_cases ? n_cases : checks[i].cases);
        n_failed += failed;
        n_ops++;
        printf("%-13s %s, %.1f s\n", checks[i].name, failed ? "FAILED" : "ok",
               (double)(clock() - start) / CLOCKS_PER_SEC);
        fflush(stdout);
    }
    oc_close();
    /* By the backend's own table: the programs of static.sh and avx512.sh have no engine. */
    struct nib_device_info device = {0};
    if (backend && nib_backend_find(backend)->device(0, &device, NULL) == NIB_OK && device.failed[0])
        printf("opcheck: %s\n", device.failed);
    if (n_ops == 0) {
        fprintf(stderr, "opcheck: no op named '%s'\n", op);
        return 2;
    }
    printf("opcheck: %lld checks, %d failed\n", (long long)n_checks, n_failed);
    return n_failed ? 1 : 0;
}
