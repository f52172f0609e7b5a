/* The CUDA runtime's calls that nibble's backend makes, on the PTX simulator in place of a device. Linked instead of
 * libcudart: nvcc's own host stubs register the PTX that was compiled into the object files, and launch it from here.
 *
 * Work is done when it is enqueued, in the order of the calls. Misuse of the device is printed and makes every later call
 * fail, as a fault on a device would.
 *
 * From the environment: NIB_PTXSIM_CARD (compute capability times 10: 90), NIB_PTXSIM_SEED (0: fixed order), NIB_PTXSIM_SMS (8),
 * NIB_PTXSIM_RESIDENT (blocks side by side; otherwise one on each multiprocessor, as kernels need whose blocks wait for each other),
 * NIB_PTXSIM_RACES=0 (do not look for races), NIB_PTXSIM_MMA_STEPS=1, NIB_PTXSIM_TRACE=1 (a line a launch), NIB_PTXSIM_SKIP
 * (name of a kernel that does nothing). */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/sm100a/sm100a.h"
#include "ptxsim/ptxsim.h"
#include "ptxsim/runtime/runtime_stub.h"
#include "ptxsim/tensor.h"

enum { FUNCTIONS = 4096, MODULES = 64, PARAMS = 64 };

struct image {
    const char       *text;
    size_t            bytes;
    struct px_module *module;
};

struct function {
    const void   *host;
    const char   *name;
    struct image *image;
    int           dynamic_most;
    int           launches;
};

/* One recorded piece of work. */
struct work {
    struct work           *next;
    struct function       *f; /* NULL: a copy */
    struct px_launch       launch;
    void                  *value[PARAMS];
    void                  *to;
    const void            *from;
    size_t                 bytes;
    int                    set; /* byte of a memset, or -1 */
};

struct CUgraph_st { struct work *first, *last; };
struct CUgraphExec_st { struct work *first; };

static struct {
    struct image       image[MODULES];
    int                n_images;
    struct function    function[FUNCTIONS];
    int                n_functions;
    struct px_machine *machine;
    cudaError_t        last, sticky;
    struct CUgraph_st *capturing;
    bool               trace;
    int                fail_alloc, fail_launch; /* countdowns; 0: none */
    cudaError_t        launch_error;
} rt;

void ptxsim_fail_alloc(int nth)
{
    rt.fail_alloc = nth;
}

void ptxsim_fail_launch(int nth, cudaError_t e)
{
    rt.fail_launch = nth;
    rt.launch_error = e;
}

int ptxsim_launches(const char *name)
{
    for (int i = 0; i < rt.n_functions; i++)
        if (strcmp(rt.function[i].name, name) == 0)
            return rt.function[i].launches;
    return 0;
}

/* ---- Registration, called before main ---- */

struct wrapper { int magic, version; const uint8_t *data; void *more; };

/* The PTX text of a fat binary: a header of 16 bytes, then entries with a kind (1: PTX), their own header's size, and the
 * size of what follows it. */
static struct image *image_of(const struct wrapper *w)
{
    uint64_t all;
    uint16_t header;
    memcpy(&header, w->data + 6, 2);
    memcpy(&all, w->data + 8, 8);
    for (uint64_t at = header; at + 64 < header + all;) {
        uint16_t kind;
        uint32_t head;
        uint64_t size;
        memcpy(&kind, w->data + at, 2);
        memcpy(&head, w->data + at + 4, 4);
        memcpy(&size, w->data + at + 8, 8);
        const char *text = (const char *)w->data + at + head;
        if (kind == 1 && rt.n_images < MODULES) {
            struct image *i = &rt.image[rt.n_images++];
            i->text = text;
            i->bytes = strnlen(text, size);
            return i;
        }
        at += head + size;
    }
    fprintf(stderr, "ptxsim: a fat binary without PTX: compile with code=compute_90a and --no-compress\n");
    abort();
}

void **__cudaRegisterFatBinary(void *binary);
void   __cudaRegisterFatBinaryEnd(void **handle);
void   __cudaUnregisterFatBinary(void **handle);
void   __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *tid, uint3 *bid,
                              dim3 *block, dim3 *grid, int *size);
void   __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global);
unsigned    __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t bytes, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *bytes, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t bytes, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
    return (void **)image_of(binary);
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    struct image *i = (struct image *)handle;
    px_module_free(i->module);
    i->module = NULL;
    if (rt.machine)
        px_machine_free(rt.machine);
    rt.machine = NULL;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *tid, uint3 *bid,
                            dim3 *block, dim3 *grid, int *size)
{
    (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)size;
    if (rt.n_functions == FUNCTIONS)
        abort();
    rt.function[rt.n_functions++] = (struct function){host, name, (struct image *)handle, 48 * 1024, 0};
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

/* ---- State ---- */

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);
    return s && *s ? strtoull(s, NULL, 0) : otherwise;
}

/* Bytes of shared memory that a block may ask for. */
static int shared_most(void)
{
    return (setting("NIB_PTXSIM_CARD", 90) / 10 == 12 ? 99 : 227) * 1024;
}

static struct px_machine *machine(void)
{
    if (!rt.machine) {
        struct px_config c = {.seed = setting("NIB_PTXSIM_SEED", 0),
                              .resident = (int32_t)setting("NIB_PTXSIM_RESIDENT", setting("NIB_PTXSIM_SMS", 8)),
                              .shared_most = (uint32_t)shared_most(),
                              .cluster_most = setting("NIB_PTXSIM_CARD", 90) / 10 == 12 ? 1 : 16,
                              .no_races = setting("NIB_PTXSIM_RACES", 1) == 0,
                              .mma_by_steps = setting("NIB_PTXSIM_MMA_STEPS", 0) != 0};
        rt.machine = px_machine_new(&c);
        rt.trace = setting("NIB_PTXSIM_TRACE", 0) != 0;
        if (!rt.machine)
            abort();
    }
    return rt.machine;
}

static cudaError_t result(cudaError_t e)
{
    if (rt.sticky != cudaSuccess)
        e = rt.sticky;
    if (e != cudaSuccess)
        rt.last = e;
    return e;
}

static cudaError_t fault(cudaError_t e, const char *text)
{
    fprintf(stderr, "ptxsim: %s\n", text);
    rt.sticky = e;
    return result(e);
}

static struct function *function_of(const void *host)
{
    for (int i = 0; i < rt.n_functions; i++) {
        if (rt.function[i].host == host)
            return &rt.function[i];
    }
    return NULL;
}

static struct px_module *module_of(const struct function *f)
{
    char why[600];
    if (!f->image->module) {
        f->image->module = px_module_parse(f->image->text, f->image->bytes, why, sizeof why);
        if (!f->image->module) {
            fprintf(stderr, "ptxsim: PTX of %s: %s\n", f->name, why);
            abort();
        }
    }
    return f->image->module;
}

/* ---- Work ---- */

static cudaError_t run_kernel(struct function *f, const struct px_launch *l)
{
    struct timespec a, b;
    uint64_t        before = px_stats_of(machine()).steps;
    (void)clock_gettime(CLOCK_MONOTONIC, &a);
    if (rt.sticky != cudaSuccess)
        return result(rt.sticky);
    const char *skip = getenv("NIB_PTXSIM_SKIP");
    if (skip && strcmp(skip, f->name) == 0)
        return cudaSuccess;
    if (rt.fail_launch > 0 && --rt.fail_launch == 0) {
        /* As on a device: the launch is taken, and every later call says what became of it. */
        rt.sticky = rt.launch_error;
        return cudaSuccess;
    }
    if (!px_run(machine(), module_of(f), f->name, l))
        return fault(cudaErrorLaunchFailure, px_error(machine()));
    f->launches++;
    (void)clock_gettime(CLOCK_MONOTONIC, &b);
    if (rt.trace)
        fprintf(stderr, "ptxsim: %s <<<(%u,%u,%u), %u>>> %llu steps, %.1f ms\n", f->name, l->grid.x, l->grid.y, l->grid.z, l->block.x,
                (unsigned long long)(px_stats_of(machine()).steps - before),
                (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6);
    return cudaSuccess;
}

static cudaError_t copy_bytes(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    if (rt.sticky != cudaSuccess)
        return result(rt.sticky);
    if (from_device && !px_inside(machine(), from, bytes))
        return fault(cudaErrorInvalidValue, "a copy from device memory that is no allocation");
    if (from_device && !px_written(machine(), from, bytes))
        return fault(cudaErrorInvalidValue, "a copy from device memory where nobody wrote");
    if (to_device && !px_wrote(machine(), to, bytes))
        return fault(cudaErrorInvalidValue, "a copy to device memory that is no allocation");
    memmove(to, from, bytes);
    px_synchronised(machine());
    return cudaSuccess;
}

static struct work *record(void)
{
    struct work *w = calloc(1, sizeof *w);
    if (!w)
        abort();
    if (rt.capturing->last)
        rt.capturing->last->next = w;
    else
        rt.capturing->first = w;
    rt.capturing->last = w;
    return w;
}

static cudaError_t enqueue_kernel(struct function *f, const struct px_launch *l)
{
    int32_t n = 0;
    if (!f || !px_module_has(module_of(f), f->name, &n) || n > PARAMS)
        return result(cudaErrorInvalidDeviceFunction);
    if (l->shared_bytes > (uint32_t)f->dynamic_most)
        return fault(cudaErrorInvalidValue, "a launch with more dynamic shared memory than cudaFuncSetAttribute allowed");
    if (!rt.capturing)
        return run_kernel(f, l);
    struct work *w = record();
    w->f = f;
    w->launch = *l;
    w->launch.params = (const void **)w->value;
    for (int32_t i = 0; i < n; i++) {
        size_t bytes = px_module_param_bytes(module_of(f), f->name, i);
        w->value[i] = malloc(bytes ? bytes : 1);
        if (!w->value[i])
            abort();
        memcpy(w->value[i], l->params[i], bytes);
    }
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    struct px_launch l = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {0, 0, 0}, (uint32_t)bytes, (const void **)args, false};
    return enqueue_kernel(function_of(host), &l);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args)
{
    struct px_launch l = {{c->gridDim.x, c->gridDim.y, c->gridDim.z}, {c->blockDim.x, c->blockDim.y, c->blockDim.z}, {0, 0, 0},
                          (uint32_t)c->dynamicSmemBytes, (const void **)args, false};
    for (unsigned i = 0; i < c->numAttrs; i++) {
        const cudaLaunchAttribute *a = &c->attrs[i];
        if (a->id == cudaLaunchAttributeProgrammaticStreamSerialization)
            l.overlaps = a->val.programmaticStreamSerializationAllowed != 0;
        else if (a->id == cudaLaunchAttributeClusterDimension)
            l.cluster = (struct px_dim){a->val.clusterDim.x, a->val.clusterDim.y, a->val.clusterDim.z};
    }
    return enqueue_kernel(function_of(host), &l);
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    memcpy(kernel, &host, sizeof host);
    return function_of(host) ? cudaSuccess : result(cudaErrorInvalidDeviceFunction);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t bytes, cudaStream_t stream)
{
    return cudaLaunchKernel((const void *)kernel, grid, block, args, bytes, stream);
}

static struct { dim3 grid, block; size_t bytes; void *stream; } pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t bytes, struct CUstream_st *stream)
{
    pushed.grid = grid;
    pushed.block = block;
    pushed.bytes = bytes;
    pushed.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *bytes, void *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *bytes = pushed.bytes;
    memcpy(stream, &pushed.stream, sizeof pushed.stream);
    return cudaSuccess;
}

/* ---- Memory ---- */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    if (rt.fail_alloc > 0 && --rt.fail_alloc == 0) {
        *p = NULL;
        return result(cudaErrorMemoryAllocation);
    }
    *p = px_alloc(machine(), bytes);
    return result(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *p)
{
    if (p && !px_release(machine(), p))
        return fault(cudaErrorInvalidValue, "cudaFree of what is no allocation");
    return result(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    *p = malloc(bytes);
    return result(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return result(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)stream;
    if (rt.capturing) {
        struct work *w = record();
        w->to = to;
        w->from = from;
        w->bytes = bytes;
        w->set = (int)kind;
        return cudaSuccess;
    }
    return copy_bytes(to, from, bytes, kind);
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
    if (!px_wrote(machine(), to, bytes))
        return fault(cudaErrorInvalidValue, "cudaMemset of what is no allocation");
    memset(to, byte, bytes);
    px_synchronised(machine());
    return result(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    return rt.capturing ? fault(cudaErrorNotSupported, "cudaMemsetAsync while a graph is captured") : cudaMemset(to, byte, bytes);
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    *unused = *total = (size_t)4 << 30;
    return result(cudaSuccess);
}

/* ---- Device, streams, events ---- */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return result(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return result(cudaSuccess);
}

cudaError_t cudaSetDevice(int device)
{
    return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    memset(p, 0, sizeof *p);
    (void)snprintf(p->name, sizeof p->name, "PTX simulator");
    p->major = (int)setting("NIB_PTXSIM_CARD", 90) / 10;
    p->minor = (int)setting("NIB_PTXSIM_CARD", 90) % 10;
    p->multiProcessorCount = (int)setting("NIB_PTXSIM_SMS", 8);
    p->totalGlobalMem = (size_t)4 << 30;
    p->sharedMemPerBlockOptin = (size_t)shared_most();
    p->sharedMemPerMultiprocessor = (size_t)shared_most() + 1024;
    return result(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    if (device != 0 || attribute != cudaDevAttrComputeCapabilityMajor)
        return result(cudaErrorInvalidValue);
    *value = (int)setting("NIB_PTXSIM_CARD", 90) / 10;
    return result(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = (int)setting("NIB_PTXSIM_DRIVER", 13000);
    return result(cudaSuccess);
}

/* The driver's own calls: only its encoder of tensor maps is asked for. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    nib_sm100a_encode *encode = sim_tensor_map_encode_tiled;
    (void)version, (void)flags;
    *function = NULL;
    *found = cudaDriverEntryPointSymbolNotFound;
    if (strcmp(symbol, "cuTensorMapEncodeTiled") == 0) {
        memcpy(function, &encode, sizeof encode);
        *found = cudaDriverEntryPointSuccess;
    }
    return result(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host)
{
    memset(a, 0, sizeof *a);
    return result(function_of(host) ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value)
{
    struct function *f = function_of(host);
    if (!f)
        return result(cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value > shared_most())
            return result(cudaErrorInvalidValue);
        f->dynamic_most = value > f->dynamic_most ? value : f->dynamic_most;
    }
    return result(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = malloc(1);
    return result(*stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    px_synchronised(machine());
    return result(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return result(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = malloc(1);
    return result(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)event, (void)stream;
    return result(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return result(cudaSuccess);
}

/* There is no time here: whatever was done took ten milliseconds. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    (void)begin, (void)end;
    *ms = 10;
    return result(cudaSuccess);
}

/* ---- Graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)stream, (void)mode;
    rt.capturing = calloc(1, sizeof *rt.capturing);
    return result(rt.capturing ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    (void)stream;
    *graph = rt.capturing;
    rt.capturing = NULL;
    return result(*graph ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
}

/* The work goes over to the executable graph. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *exec = calloc(1, sizeof **exec);
    if (!*exec)
        return result(cudaErrorMemoryAllocation);
    (*exec)->first = graph->first;
    graph->first = NULL;
    return result(cudaSuccess);
}

static void free_work(struct work *w)
{
    while (w) {
        struct work *next = w->next;
        for (int i = 0; i < PARAMS; i++)
            free(w->value[i]);
        free(w);
        w = next;
    }
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    free_work(graph->first);
    free(graph);
    return result(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    free_work(exec->first);
    free(exec);
    return result(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)stream;
    cudaError_t e = cudaSuccess;
    for (const struct work *w = exec->first; w && e == cudaSuccess; w = w->next)
        e = w->f ? run_kernel(w->f, &w->launch) : copy_bytes(w->to, w->from, w->bytes, (enum cudaMemcpyKind)w->set);
    return result(e);
}

/* ---- Errors ---- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = rt.sticky != cudaSuccess ? rt.sticky : rt.last;
    rt.last = cudaSuccess;
    return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorLaunchFailure: return "the simulator stopped a kernel (see above)";
    case cudaErrorInvalidDeviceFunction: return "no such kernel";
    case cudaErrorInvalidValue: return "invalid value";
    default: return "an error of the simulated runtime";
    }
}
