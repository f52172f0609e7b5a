/* The bundled model on a simulated card against ref, both with NVFP4 activations, or the same model of FP8 and MXFP4
 * weights with `release` numerics, whose activations are FP8: 124 tokens in one step, then eight
 * drawn greedily one at a time, so that windows, both kinds of compressed entries, the indexer's choice (8 of up to 33)
 * and routing by hash and by score all take part. The drawn tokens must be equal, and the mean loss of the prompt
 * within 0.005: codes of activations that flip on ties move single logits, not the mean.
 *
 *   test_tiny_ptxsim [release|bf16] [TOKENS]   a shorter prompt, for a look by hand */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <unistd.h>

#include <cmocka.h>

#include "ptxsim/runtime/runtime_stub.h"
#include "support/model_support.h"

enum { PROMPT = 124, DRAWN = 8 };

static int32_t g_prompt = PROMPT;
static bool    g_release, g_bf16;

/* The model with another index_topk: its config edited, the rest by links. */
static void make_model(const char *dir)
{
    static const char *const bundled[] = {"model.safetensors", "generation_config.json", "tokenizer.json",
                                          "tokenizer_config.json", NULL};
    static const char *const official[] = {"model-00001-of-00002.safetensors",
                                           "model-00002-of-00002.safetensors",
                                           "model.safetensors.index.json",
                                           "generation_config.json",
                                           "tokenizer.json",
                                           "tokenizer_config.json",
                                           NULL};
    const char *const *linked = g_release ? official : bundled;
    const char        *at_home = g_release ? MODEL_OFFICIAL : MODEL_NVFP4;
    static const char        from[] = "\"index_topk\": 64,", to[] = "\"index_topk\": 8, ";
    char                     path[512], text[16384], source[512];
    for (size_t i = 0; linked[i]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, linked[i]);
        (void)snprintf(source, sizeof source, "%s/%s", at_home, linked[i]);
        assert_int_equal(symlink(source, path), 0);
    }
    (void)snprintf(source, sizeof source, "%s/config.json", at_home);
    FILE *f = fopen(source, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = 0;
    char *at = strstr(text, from);
    assert_non_null(at);
    memcpy(at, to, sizeof to - 1);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void remove_model(const char *dir)
{
    char command[512];
    (void)snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
}

/* What a card of 10.0 has of its own for such a model, prompt and decode: launches must be more in the end than before,
 * when its self-test had launched all. */
static struct kernel {
    const char *name;
    int         before;
} g_kernels[] = {{"norm", 0},           {"linear_one", 0},      {"place", 0},          {"groups", 0},
                 {"experts_in_16", 0},  {"experts_in_96", 0},   {"experts_out_16", 0}, {"experts_out_96", 0},
                 {"swiglu_act", 0},     {"attend_f32_bf16", 0}, {"index_f32_bf16", 0},
                 {"plain_few_f32", 0},   {"plain_many_f32", 0}};
/* With bf16 rows between ops, as a card has them by default. */
static struct kernel g_bf16_kernels[] = {{"norm", 0},           {"linear_one", 0},      {"place", 0},          {"groups", 0},
                                         {"experts_in_16", 0},  {"experts_in_96", 0},   {"experts_out_16", 0}, {"experts_out_96", 0},
                                         {"swiglu_act", 0},     {"attend_bf16", 0},     {"index_bf16", 0},
                                         {"plain_few_bf16", 0}, {"plain_many_bf16", 0}};
/* With `release` numerics. The model's experts have fewer columns than MXFP4 wants there. */
static struct kernel g_release_kernels[] = {{"fp8_one", 0},           {"place", 0},           {"attend_fp8", 0},
                                            {"plain_fp8_few_bf16", 0}, {"plain_few_bf16", 0}, {"index_fp4", 0}};

static void kernels(bool in_the_end)
{
    const char *which = getenv("NIB_PTXSIM_CARD");
    char        name[64];
    struct kernel *list = g_release ? g_release_kernels : g_bf16 ? g_bf16_kernels : g_kernels;
    size_t         n_kernels = g_release ? sizeof g_release_kernels / sizeof *list
                               : g_bf16  ? sizeof g_bf16_kernels / sizeof *list
                                         : sizeof g_kernels / sizeof *list;
    for (size_t i = 0; which && strcmp(which, "100") == 0 && i < n_kernels; i++) {
        (void)snprintf(name, sizeof name, "nib_sm100a_%s", list[i].name);
        int n = ptxsim_launches(name);
        if (in_the_end && n == list[i].before)
            fail_msg("%s was not launched", name);
        list[i].before = n;
    }
}

struct pass {
    int32_t drawn[DRAWN];
    double  nll; /* mean of the prompt */
};

static struct pass run_pass(const char *dir, const char *backend, const int32_t *ids, int32_t n)
{
    struct nib_options o;
    struct nib_error   err = {0};
    struct nib_seq    *seq = NULL;
    struct pass        p = {.nll = 0};
    nib_options_init(&o);
    o.backend = backend;
    o.n_ctx = 256;
    if (g_release)
        o.numerics = NIB_NUMERICS_RELEASE;
    else
        o.act_quant = NIB_ACT_QUANT_NVFP4, o.numerics = g_bf16 ? NIB_NUMERICS_BF16 : NIB_NUMERICS_MODEL;
    struct fixture f = fixture_open(dir, &o);
    kernels(false);
    double        *nll = calloc((size_t)n, sizeof *nll);
    float         *logits = malloc((size_t)f.vocab * sizeof *logits);
    assert_true(nll && logits);
    if (nib_seq_open(f.engine, &seq, &err) != NIB_OK)
        fail_msg("%s", err.text);
    fixture_run(&f, seq, &(struct run){.ids = ids, .n = n, .chunk = n, .n_last = 1, .logits = logits, .nll = nll});
    for (int32_t i = 0; i + 1 < n; i++)
        p.nll += nll[i] / (n - 1);
    for (int32_t i = 0; i < DRAWN; i++) {
        p.drawn[i] = argmax_of(logits, f.vocab);
        fixture_run(&f, seq, &(struct run){.ids = &p.drawn[i], .n = 1, .chunk = 1, .n_last = 1, .logits = logits});
    }
    printf("%s: mean nll %.6f, drawn", backend, p.nll);
    for (int32_t i = 0; i < DRAWN; i++)
        printf(" %d", (int)p.drawn[i]);
    printf("\n");
    (void)fflush(stdout);
    free(nll);
    free(logits);
    nib_seq_close(seq);
    fixture_close(&f);
    return p;
}

/* Whoever asks about a Blackwell card is told what was never tried on one. */
static void card(void)
{
    struct nib_device_info d;
    struct nib_error       err = {0};
    if (nib_device_get("cuda", 0, &d, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_true(d.usable);
    const char *which = getenv("NIB_PTXSIM_CARD");
    assert_non_null(strstr(d.name, which && strcmp(which, "120") == 0 ? "capability 12.0" : "capability 10.0"));
    assert_non_null(strstr(d.note, "not yet run on such a card"));
}

static void tiny(void **state)
{
    (void)state;
    card();
    char dir[] = "/tmp/nibble-tiny-XXXXXX";
    assert_non_null(mkdtemp(dir));
    make_model(dir);
    struct nib_checkpoint *goldens = goldens_open();
    int32_t               *ids = golden_copy(golden_find(goldens, "ids.%d", 132));
    struct pass            want = run_pass(dir, "ref", ids, g_prompt), got = run_pass(dir, "cuda", ids, g_prompt);
    free(ids);
    nib_checkpoint_close(goldens);
    remove_model(dir);
    kernels(true);
    assert_memory_equal(got.drawn, want.drawn, sizeof want.drawn);
    assert_true(fabs(got.nll - want.nll) <= 0.005);
}

int main(int argc, char **argv)
{
    g_release = argc > 1 && strcmp(argv[1], "release") == 0;
    g_bf16 = argc > 1 && strcmp(argv[1], "bf16") == 0;
    const int at = 1 + (g_release || g_bf16);
    if (argc > at)
        g_prompt = (int32_t)strtol(argv[at], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiny)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
