/* Attention of sm_120a on a Hopper card, which has all its instructions, and the indexer's scores with theirs emulated
 * (emulated/). The problems and what must come out are those of the simulator's tests
 * (tests/ptxsim/sm120a/attend_rig.c, tests/ptxsim/blackwell/index_rig.c); this file stands in for the simulator: memory
 * that card and host both see, kernels by name.
 *
 *   parts_attend_sm120a [small]     small: problems for compute-sanitizer */
#include <cuda_runtime_api.h>

#include "ptxsim/blackwell/index_rig.h"
#include "ptxsim/sm120a/attend_rig.h"
#include "stand_in.h"

#define KERNELS(X)                                                                                                     \
    X(nib_sm120a_attend_bf16)                                                                                          \
    X(nib_sm120a_attend_fp8)                                                                                           \
    X(nib_sm120a_attend_nvfp4)                                                                                         \
    X(nib_sm120a_attend_f32_bf16)                                                                                      \
    X(nib_sm120a_attend_f32_fp8)                                                                                       \
    X(nib_sm120a_attend_f32_nvfp4)                                                                                     \
    X(nib_sm120a_attend_f32_span_bf16)                                                                                 \
    X(nib_sm120a_attend_f32_span_fp8)                                                                                  \
    X(nib_sm120a_attend_f32_span_nvfp4)                                                                                \
    X(nib_sm120a_attend_span_bf16)                                                                                     \
    X(nib_sm120a_attend_span_fp8)                                                                                      \
    X(nib_sm120a_attend_span_nvfp4)                                                                                    \
    X(nib_sm120a_attend_fold)
#define X(name) void name(struct nib_attend_args a, struct nib_rows rows, struct nib_sm120a_spans sp);
KERNELS(X)
#undef X
void nib_sm120a_index_fp4(struct nib_blackwell_index_args args);

/* ---- In the simulator's place ---- */

bool px_run(struct px_machine *m, struct px_module *module, const char *entry, const struct px_launch *l)
{
    static const struct {
        const char *name;
        const void *handle;
    } kernels[] = {
#define X(name) {#name, (const void *)name},
        KERNELS(X)
#undef X
        {"nib_sm120a_index_fp4", (const void *)nib_sm120a_index_fp4},
    };
    const void *handle = NULL;
    (void)module;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, entry) == 0)
            handle = kernels[i].handle;
    cudaError_t e =
        cudaFuncSetAttribute(handle, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l->shared_bytes);
    if (e == cudaSuccess)
        e = cudaLaunchKernel(handle, (dim3){l->grid.x, l->grid.y, l->grid.z}, (dim3){l->block.x, 1, 1},
                             (void **)(uintptr_t)l->params, l->shared_bytes, NULL);
    if (e == cudaSuccess)
        e = cudaDeviceSynchronize();
    if (e != cudaSuccess)
        (void)snprintf(m->error, sizeof m->error, "%s: %s", entry, cudaGetErrorString(e));
    return e == cudaSuccess;
}

/* ---- Problems ---- */

static int failed;

static void run(const char *name, struct rig_attend r, int32_t n_spans)
{
    char              text[300] = "";
    struct rig_attend apart = r;
    apart.n_spans = n_spans;
    bool ran = rig_attend_run(&r) && rig_attend_run(&apart);
    bool right = ran && rig_attend_right(&r, text, sizeof text) && rig_attend_right(&apart, text, sizeof text);
    bool same = right && memcmp(r.o, apart.o, (size_t)r.n_rows * (size_t)r.n_heads * 512 * sizeof *r.o) == 0;
    printf("%s rows, %s query, %d heads, window %d, ratio %d, %d chosen: %s%s%s%s\n", name,
           r.f32_query ? "fp32" : "bf16", (int)r.n_heads, (int)r.n_window,
           (int)r.ratio, (int)r.top_k, same ? "right, the same bits in spans" : "WRONG ", r.error, apart.error, text);
    failed += !same;
    rig_attend_free(&r);
    rig_attend_free(&apart);
}

static void run_index(struct index_problem p)
{
    char text[1024] = "";
    bool right = index_run(&p, NULL, "nib_sm120a_index_fp4", NIB_SM120A_INDEX_THREADS, 0, text, sizeof text);
    printf("index scores, %s query, %d heads, %d rows, %d entries: %s%s\n", p.q_f32 ? "fp32" : "bf16", (int)p.n_heads,
           (int)p.n_rows, (int)(p.pos + 1) / 4, right ? "right" : "WRONG ", text);
    failed += !right;
}

int main(int argc, char **argv)
{
    static const int32_t             few[] = {0, 40, 127}, many[] = {3, 31, 32, 200, 511, 900, 1500};
    static const enum nib_row_format formats[] = {NIB_ROW_BF16, NIB_ROW_FP8, NIB_ROW_NVFP4};
    static const char *const         names[] = {"bf16", "fp8", "nvfp4"};
    bool                             small = argc > 1 && strcmp(argv[1], "small") == 0;
    for (int f = 0; f < 3; f++) {
        struct rig_attend r = {.format = formats[f],
                               .n_heads = 35,
                               .n_rows = 3,
                               .n_window = 128,
                               .pos = few,
                               .bf16_out = f == 1,
                               .seed = (uint64_t)f};
        run(names[f], r, 3);
        r.f32_query = true;
        run(names[f], r, 2);
        if (small)
            continue;
        r.n_heads = 64;
        r.n_rows = 7;
        r.pos = many;
        r.ratio = 4;
        r.top_k = 200;
        run(names[f], r, 2);
        r.top_k = 0;
        r.f32_query = false;
        run(names[f], r, 5);
    }
    run_index((struct index_problem){.fp4 = true, .q_f32 = true, .n_heads = 5, .n_rows = 3, .pos = 1000, .top_k = 60,
                                     .blocks = 2, .traced = true});
    run_index((struct index_problem){.fp4 = true, .n_heads = 100, .n_rows = 3, .pos = 200, .top_k = 55, .blocks = 3,
                                     .not_finite = true});
    if (!small) {
        run_index(
            (struct index_problem){.fp4 = true, .n_heads = 64, .n_rows = 1, .pos = 2900, .top_k = 64, .blocks = 1});
        run_index((struct index_problem){
            .fp4 = true, .q_f32 = true, .n_heads = 128, .n_rows = 1, .pos = 5051, .top_k = 3, .blocks = 4});
    }
    puts(failed ? "FAILED" : "all right");
    return failed != 0;
}
