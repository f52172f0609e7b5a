/* The sm_100a products, experts and row kernels on a Hopper card, tensor memory and tcgen05 emulated (emulated/): packing,
 * quantisation, tensor copies, barriers, roles of warps and epilogues are the kernels' own. Problems and what must come
 * out are those of the simulator's tests (tests/ptxsim/sm100a/test_*.c), which this program holds, too; this file stands
 * in for the simulator: memory that card and host both see, tensor maps of the driver, kernels by name. Usage:
 *
 *   parts_sm100a [PART]...   rows, linear, mx, moe, experts; none: all of them
 *   parts_sm100a broken      kernels with one thing broken: each must be noticed
 *
 * The last line is "N passed, N failed". */
#include <cuda_runtime_api.h>

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "emulated/emulated_sm100a.h"
#include "stand_in.h"
#include "ptxsim/sm100a/sm100a_rig.h"

#define KERNELS(X)                                                                                                     \
    X(nib_sm100a_linear_one, struct nib_sm100a_linear_args)                                                            \
    X(nib_sm100a_linear_pair, struct nib_sm100a_linear_args)                                                           \
    X(nib_sm100a_fp8_one, struct nib_sm100a_linear_args)                                                               \
    X(nib_sm100a_fp8_pair, struct nib_sm100a_linear_args)                                                              \
    X(nib_sm100a_mxfp4_one, struct nib_sm100a_linear_args)                                                             \
    X(nib_sm100a_mxfp4_pair, struct nib_sm100a_linear_args)                                                            \
    X(nib_sm100a_experts_in_96, struct nib_sm100a_experts_args)                                                        \
    X(nib_sm100a_experts_in_16, struct nib_sm100a_experts_args)                                                        \
    X(nib_sm100a_experts_out_96, struct nib_sm100a_experts_args)                                                       \
    X(nib_sm100a_experts_out_16, struct nib_sm100a_experts_args)                                                       \
    X(nib_sm100a_mx_in_96, struct nib_sm100a_experts_args)                                                          \
    X(nib_sm100a_mx_in_16, struct nib_sm100a_experts_args)                                                          \
    X(nib_sm100a_mx_out_96, struct nib_sm100a_experts_args)                                                         \
    X(nib_sm100a_mx_out_16, struct nib_sm100a_experts_args)                                                         \
    X(nib_sm100a_norm, struct nib_blackwell_norm_args)                                                                 \
    X(nib_sm100a_swiglu, struct nib_blackwell_swiglu_args)                                                             \
    X(nib_sm100a_place, struct nib_sm100a_place_args)                                                                  \
    X(nib_sm100a_groups, struct nib_blackwell_groups_args)                                                             \
    X(nib_sm100a_combine, struct nib_blackwell_combine_args)                                                           \
    X(nib_sm100a_pack_scales, struct nib_sm100a_pack_args)

/* nib_sm100a_linear_one with one thing changed in its text (CMakeLists.txt). */
#define BROKEN(X)                                                                                                      \
    X(nib_broken_early_free, "stages are given back before their products")                                            \
    X(nib_broken_full, "no wait for a full stage")                                                                     \
    X(nib_broken_empty, "no wait for an empty stage")                                                                  \
    X(nib_broken_done, "no wait for a finished tile")

#define X(name, args) void name(args a);
KERNELS(X)
#undef X
#define X(name, what) void name(struct nib_sm100a_linear_args a);
BROKEN(X)
#undef X

/* main() of the simulator's tests. */
int main_rows(void);
int main_linear(int argc, char **argv);
int main_mx(int argc, char **argv);
int main_moe(void);
int main_experts(int argc, char **argv);

enum { TYPE_U8 = 0, TYPE_U64 = 4, TYPE_16U4_ALIGN16B = 14, FILES = 8 };

static double      seconds_most = 500; /* for a kernel, before it is called stuck: minutes under a sanitizer */
static const void *instead;            /* of nib_sm100a_linear_one */

/* ---- What kernels and this program tell each other ---- */

static struct {
    const void              *handle[FILES];
    int                      n;
    struct nib_emulated_card next; /* for the next launch */
} card;

void nib_emulated_add(const void *handle)
{
    if (card.n < FILES)
        card.handle[card.n++] = handle;
}

/* 16 values of 4 bits to each 16 bytes, as a copy does on cards that know the type; this one does not. */
static void *spread_codes(const uint8_t *codes, uint64_t values, uint64_t rows, uint64_t stride)
{
    uint8_t *to = NULL;
    if (cudaMallocManaged((void **)&to, (size_t)(rows * values), cudaMemAttachGlobal) != cudaSuccess || !stand_in_keep(to))
        return NULL;
    memset(to, 0, (size_t)(rows * values));
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t i = 0; i < values / 16; i++)
            memcpy(to + row * values + i * 16, codes + row * stride + i * 8, 8);
    return to;
}

int sim_tensor_map_encode_tiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dim,
                                const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride,
                                int interleave, int swizzle, int l2, int fill)
{
    static nib_sm100a_encode            *encode;
    enum cudaDriverEntryPointQueryResult found;
    uint64_t                             stride[1] = {stride_bytes[0]};
    void                                *entry = NULL;
    if (!encode && cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                                    &found) == cudaSuccess)
        memcpy(&encode, &entry, sizeof encode);
    if (!encode || rank != 2 || card.next.n_boxes == 8)
        return 1;
    if (type == TYPE_16U4_ALIGN16B) {
        address = spread_codes(address, dim[0], dim[1], stride[0]);
        stride[0] = dim[0];
        type = TYPE_U8;
    }
    if (!address)
        return 1;
    int e = encode(map, type, rank, address, dim, stride, box, element_stride, interleave, swizzle, l2, fill);
    memcpy(card.next.box[card.next.n_boxes].map, map, 128);
    card.next.box[card.next.n_boxes++].bytes = box[0] * box[1] * (type == TYPE_U64 ? 8 : 1);
    return e;
}

/* ---- In the simulator's place ---- */

static const void *handle_of(const char *entry)
{
    static const struct {
        const char *name;
        const void *handle;
    } kernels[] = {
#define X(name, args) {#name, (const void *)name},
        KERNELS(X)
#undef X
    };
    if (instead && strcmp(entry, "nib_sm100a_linear_one") == 0)
        return instead;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, entry) == 0)
            return kernels[i].handle;
    return NULL;
}

static cudaError_t finished(void)
{
    struct timespec start, now, pause = {.tv_nsec = 200000};
    cudaError_t     e;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while ((e = cudaStreamQuery(NULL)) == cudaErrorNotReady) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((double)(now.tv_sec - start.tv_sec) > seconds_most)
            return e;
        nanosleep(&pause, NULL);
    }
    return e == cudaSuccess ? cudaDeviceSynchronize() : e;
}

bool px_run(struct px_machine *m, struct px_module *module, const char *entry, const struct px_launch *l)
{
    const void *handle = handle_of(entry);
    int32_t     held = 0;
    cudaError_t e = handle ? cudaSuccess : cudaErrorInvalidDeviceFunction;
    (void)module;
    if ((uint64_t)l->grid.x * l->grid.y * l->grid.z > NIB_EMULATED_BLOCKS && l->shared_bytes > 100000)
        e = cudaErrorInvalidConfiguration;
    for (int i = 0; i < card.n && e == cudaSuccess; i++)
        e = cudaMemcpyToSymbol(card.handle[i], &card.next, sizeof card.next, 0, cudaMemcpyHostToDevice);
    card.next.n_boxes = 0;
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(handle, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l->shared_bytes);
    if (e == cudaSuccess)
        e = cudaLaunchKernel(handle, (dim3){l->grid.x, l->grid.y, l->grid.z}, (dim3){l->block.x, 1, 1},
                             (void **)(uintptr_t)l->params, l->shared_bytes, NULL);
    if (e == cudaSuccess)
        e = finished();
    for (int i = 0; i < card.n && e == cudaSuccess && held == 0; i++)
        e = cudaMemcpyFromSymbol(&held, card.handle[i], sizeof held, offsetof(struct nib_emulated_card, held),
                                 cudaMemcpyDeviceToHost);
    if (e != cudaSuccess)
        (void)snprintf(m->error, sizeof m->error, "%s: %s", entry, cudaGetErrorString(e));
    else if (held != 0)
        (void)snprintf(m->error, sizeof m->error, "%s: %d columns of tensor memory were not freed", entry, (int)held);
    return e == cudaSuccess && held == 0;
}

/* ---- Broken kernels ---- */

/* In a process of its own, which ends with the kernel still running if it must: 0 if something was wrong. */
static int notice(const void *kernel, const char *what)
{
    char               text[600] = "";
    struct rig_product r = {
        .p = {.n_rows = 130, .n_out = 136, .n_in = 2080, .alpha = 1e-3f, .y_f32 = true, .n_ctas = 1, .n_sms = 1}, .seed = 3};
    instead = kernel;
    seconds_most = 3; /* the whole kernel takes a tenth of one */
    bool ran = rig_product_run(&r), right = ran && rig_product_right(&r, text, sizeof text);
    printf("%s: %s\n", what, right ? "nothing was wrong" : ran ? text : r.error);
    (void)fflush(stdout);
    _exit(kernel ? right : !right);
}

static bool in_a_process(const void *kernel, const char *what)
{
    int   status = 1;
    pid_t child = fork();
    if (child == 0)
        (void)notice(kernel, what);
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
        int (*run_with)(int argc, char **argv);
    } parts[] = {{"rows", main_rows, NULL}, {"linear", NULL, main_linear}, {"mx", NULL, main_mx}, {"moe", main_moe, NULL},
                 {"experts", NULL, main_experts}};
    int  passed = 0, failed = 0;
    char own[] = "parts_sm100a", *own_argv[] = {own, NULL};
    if (argc > 1 && strcmp(argv[1], "broken") == 0) {
        *(in_a_process(NULL, "the kernel as it is") ? &passed : &failed) += 1;
#define X(name, what) *(in_a_process((const void *)name, what) ? &passed : &failed) += 1;
        BROKEN(X)
#undef X
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool chosen = argc == 1;
        for (int a = 1; a < argc; a++)
            chosen |= strcmp(argv[a], parts[i].name) == 0;
        if (!chosen)
            continue;
        bool good = (parts[i].run ? parts[i].run() : parts[i].run_with(1, own_argv)) == 0;
        printf("%s: %s\n", parts[i].name, good ? "right" : "WRONG");
        *(good ? &passed : &failed) += 1;
    }
    if (passed + failed == 0)
        fputs("parts_sm100a: parts are rows, linear, mx, moe, experts, and broken\n", stderr);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
