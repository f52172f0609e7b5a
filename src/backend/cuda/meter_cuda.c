/* Measuring the card: its limits by the loops of any/rates.h, the best of many short runs, and single ops by events. */
#include "backend/meter.h"
#include "backend/cuda/any/rates.h"
#include "backend/cuda/cuda.h"

#define READ_BYTES_LEAST ((uint64_t)256 << 10)
#define READ_BYTES_MOST  ((uint64_t)4 << 30)
#define RUN_SECONDS      1e-3 /* at least: long against starting a kernel */
#define N_RUNS           30
#define ROUNDS_MOST      (1 << 24)
/* Clocks that the queue is held for: some 100 us, in which the host enqueues the launches of an op. */
#define HOLD_CLOCKS 200000

const struct nib_rate_loop nib_rate_loops[] = {
    {0, NIB_RATE_BF16, 4, NIB_RATE_WARPS * NIB_RATE_WARP_SUMS * NIB_RATE_MMA_OPS(16), nib_rate_mma_bf16},
#ifdef NIB_CUDA_SM90A
    {9, NIB_RATE_BF16, 1, 2 * NIB_RATE_WGMMA_STEPS * 2 * 64 * 256 * 16, nib_rate_wgmma_bf16},
#endif
#ifdef NIB_CUDA_SM100A
    {10, NIB_RATE_BF16, 1, NIB_RATE_TCGEN05_STEPS * 2 * 128 * 256 * 16, nib_rate_tcgen05_bf16},
    {10, NIB_RATE_FP8, 1, NIB_RATE_TCGEN05_STEPS * 2 * 128 * 256 * 32, nib_rate_tcgen05_fp8},
    {10, NIB_RATE_FP4, 1, NIB_RATE_TCGEN05_STEPS * 2 * 128 * 256 * 64, nib_rate_tcgen05_fp4},
#endif
#ifdef NIB_CUDA_SM120A
    {12, NIB_RATE_FP8, 4, NIB_RATE_WARPS * NIB_RATE_WARP_SUMS * NIB_RATE_MMA_OPS(32), nib_rate_mma_fp8},
    {12, NIB_RATE_FP4, 4, NIB_RATE_WARPS * NIB_RATE_WARP_SUMS * NIB_RATE_MMA_OPS(64), nib_rate_mma_fp4},
#endif
    {0},
};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---- Time between two events ---- */

struct stopwatch {
    cudaEvent_t begin, end;
};

static cudaError_t stopwatch_open(struct stopwatch *w)
{
    *w = (struct stopwatch){NULL, NULL};
    cudaError_t e = cudaEventCreateWithFlags(&w->begin, cudaEventDefault);
    return e == cudaSuccess ? cudaEventCreateWithFlags(&w->end, cudaEventDefault) : e;
}

static void stopwatch_close(struct stopwatch *w)
{
    if (w->begin)
        (void)cudaEventDestroy(w->begin);
    if (w->end)
        (void)cudaEventDestroy(w->end);
}

/* Behind the end's record. */
static cudaError_t stopwatch_read(struct stopwatch *w, double *seconds)
{
    float       ms = 0;
    cudaError_t e = cudaEventSynchronize(w->end);
    if (e == cudaSuccess)
        e = cudaEventElapsedTime(&ms, w->begin, w->end);
    *seconds = 1e-3 * (double)ms;
    return e;
}

/* ---- Limits ---- */

struct rig {
    cudaStream_t     stream;
    struct stopwatch watch;
    int32_t          n_sms, major;
    void            *data;    /* to be read */
    uint64_t         n_words; /* of 16 bytes, a power of two */
    void            *out;     /* [n_sms * blocks] */
};

#define BLOCKS_MOST 4 /* a multiprocessor */

/* rounds of a loop, or where it is NULL of reading, with so many blocks a multiprocessor. */
static cudaError_t run_once(struct rig *r, const struct nib_rate_loop *loop, int32_t blocks, int32_t rounds,
                            double *seconds)
{
    const int32_t n_blocks = r->n_sms * blocks;
    cudaError_t   e = cudaEventRecord(r->watch.begin, r->stream);
    if (e == cudaSuccess)
        e = loop ? loop->run(r->stream, n_blocks, rounds, r->out)
                 : nib_rate_read(r->stream, n_blocks, rounds, r->data, r->n_words, r->out);
    if (e == cudaSuccess)
        e = cudaEventRecord(r->watch.end, r->stream);
    return e == cudaSuccess ? stopwatch_read(&r->watch, seconds) : e;
}

/* Rounds a second, the best of many runs. */
static cudaError_t best_rate(struct rig *r, const struct nib_rate_loop *loop, int32_t blocks, double *best)
{
    int32_t     rounds = 1;
    double      took = 0;
    cudaError_t e = run_once(r, loop, blocks, 1, &took); /* the first run brings the kernel there */
    for (took = 0; e == cudaSuccess && took < RUN_SECONDS && rounds < ROUNDS_MOST;) {
        rounds *= 2;
        e = run_once(r, loop, blocks, rounds, &took);
    }
    *best = 0;
    for (int i = 0; e == cudaSuccess && i < N_RUNS; i++) {
        e = run_once(r, loop, blocks, rounds, &took);
        if (e == cudaSuccess && took > 0)
            *best = larger(*best, rounds / took);
    }
    return e;
}

static cudaError_t measure_reading(struct rig *r, struct nib_machine *m)
{
    cudaError_t e = cudaSuccess;
    for (int32_t blocks = 1; e == cudaSuccess && blocks <= BLOCKS_MOST; blocks *= 2) {
        double rate = 0;
        e = best_rate(r, NULL, blocks, &rate);
        m->read_gb_s = larger(m->read_gb_s, 1e-9 * 16 * NIB_RATE_READ_WORDS * (double)(r->n_sms * blocks) * rate);
    }
    return e;
}

static cudaError_t measure_products(struct rig *r, struct nib_machine *m)
{
    cudaError_t e = cudaSuccess;
    for (const struct nib_rate_loop *l = nib_rate_loops; e == cudaSuccess && l->run; l++) {
        double  rate = 0;
        double *to = l->kind == NIB_RATE_BF16  ? &m->fp32_gflop_s
                     : l->kind == NIB_RATE_FP8 ? &m->fp8_gflop_s
                                               : &m->int8_gop_s;
        if (l->major != 0 && l->major != r->major)
            continue;
        e = best_rate(r, l, l->blocks, &rate);
        *to = larger(*to, 1e-9 * (double)l->ops * (double)(r->n_sms * l->blocks) * rate);
    }
    /* Where a kind has no products of its own, the wider ones do for it. */
    m->fp8_gflop_s = larger(m->fp8_gflop_s, m->fp32_gflop_s);
    m->int8_gop_s = larger(m->int8_gop_s, m->fp8_gflop_s);
    return e;
}

/* As much as is wanted, or the half of it and so on that there is. What was measured before is measured again, or if an
 * engine has taken the memory since, not at all. */
static cudaError_t take_data(struct rig *r, uint64_t read_bytes, const struct nib_machine *m)
{
    uint64_t bytes = READ_BYTES_MOST;
    while (bytes > READ_BYTES_LEAST && bytes > read_bytes)
        bytes /= 2;
    if (m->read_bytes > 0)
        bytes = m->read_bytes;
    cudaError_t e = cudaMalloc(&r->data, bytes);
    for (; e == cudaErrorMemoryAllocation && m->read_bytes == 0 && bytes > READ_BYTES_LEAST; bytes /= 2) {
        (void)cudaGetLastError();
        e = cudaMalloc(&r->data, bytes / 2);
    }
    if (e == cudaErrorMemoryAllocation && m->read_bytes > 0) {
        (void)cudaGetLastError();
        return cudaSuccess;
    }
    r->n_words = bytes / 16;
    return e == cudaSuccess ? cudaMemsetAsync(r->data, 1, bytes, r->stream) : e;
}

static cudaError_t measure(struct rig *r, uint64_t read_bytes, struct nib_machine *m)
{
    struct cudaDeviceProp prop;
    cudaError_t           e = cudaSetDevice(0);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&prop, 0);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = stopwatch_open(&r->watch);
    if (e != cudaSuccess)
        return e;
    r->n_sms = prop.multiProcessorCount;
    r->major = prop.major;
    e = cudaMalloc(&r->out, sizeof(double) * (size_t)(r->n_sms * BLOCKS_MOST));
    if (e == cudaSuccess)
        e = cudaMemsetAsync(r->out, 0, sizeof(double) * (size_t)(r->n_sms * BLOCKS_MOST), r->stream);
    if (e == cudaSuccess)
        e = take_data(r, read_bytes, m);
    if (e == cudaSuccess && r->data) {
        e = measure_reading(r, m);
        m->read_bytes = 16 * r->n_words;
    }
    return e == cudaSuccess ? measure_products(r, m) : e;
}

static enum nib_status limits(uint64_t read_bytes, struct nib_machine *m, struct nib_error *err)
{
    struct nib_device_info device;
    struct rig             r = {0};
    NIB_TRY(nib_cuda_device(0, &device, err));
    if (!device.usable)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "cuda: '%s' cannot be used: %s", device.name, device.why_not);
    const cudaError_t e = measure(&r, read_bytes, m);
    (void)cudaGetLastError();
    stopwatch_close(&r.watch);
    (void)cudaFree(r.data);
    (void)cudaFree(r.out);
    if (r.stream)
        (void)cudaStreamDestroy(r.stream);
    (void)cudaGetLastError();
    if (e != cudaSuccess)
        return nib_error_set(err, e == cudaErrorMemoryAllocation ? NIB_E_MEMORY : NIB_E_DEVICE,
                             "cuda: measuring the card: %s", cudaGetErrorString(e));
    return NIB_OK;
}

/* ---- Single ops ---- */

/* While the queue is held, what follows is enqueued, so that the time between the events has no part of the host's. */
static enum nib_status time_work(struct nib_stream *s, enum nib_status (*work)(struct nib_stream *s, void *data),
                                 void *data, double *seconds)
{
    struct stopwatch w;
    nib_cuda_flush_all(s);
    cudaError_t e = stopwatch_open(&w);
    if (e == cudaSuccess)
        e = nib_rate_hold(s->handle, HOLD_CLOCKS);
    if (e == cudaSuccess)
        e = cudaEventRecord(w.begin, s->handle);
    enum nib_status status = nib_cuda_check(s, e, "timing an op");
    if (status == NIB_OK)
        status = work(s, data);
    nib_cuda_flush_all(s);
    if (status == NIB_OK) {
        e = cudaGetLastError();
        if (e == cudaSuccess)
            e = cudaEventRecord(w.end, s->handle);
        status = nib_cuda_check(s, e == cudaSuccess ? stopwatch_read(&w, seconds) : e, "timing an op");
    }
    stopwatch_close(&w);
    return status;
}

const struct nib_meter nib_cuda_meter = {.limits = limits, .time = time_work};
