/* The machine's limits by trying: each loop on all threads at once, the best of many short runs. */
#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/status.h"
#include "measure/peak_loops.h"

#define READ_BYTES_LEAST ((uint64_t)256 << 10)
#define READ_BYTES_MOST ((uint64_t)1 << 30) /* there are processors with 300 MB of cache */
/* A run reads so much, and the next one what follows it: short runs find the moments that are the program's alone, and
 * by the time it is a piece's turn again no cache holds it that does not hold everything. */
#define SLICE_BYTES ((uint64_t)16 << 20)
#define PIECE_BYTES 4096
#define N_RUNS      80
#define RUN_SECONDS 1e-3 /* at least: long against starting the threads */

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Something to measure: `run` does `rounds` rounds as thread i of n. */
struct task {
    const struct nib_peak_loops *loops;
    const unsigned char         *data;
    uint64_t                     slice, n_slices, next; /* bytes, and which one's turn it is */
    void (*run)(const struct task *t, int64_t rounds, int i, int n);
};

/* Where results go, so that nothing is left out. */
static volatile uint64_t g_sink;

static void run_read(const struct task *t, int64_t rounds, int i, int n)
{
    const uint64_t pieces = t->slice / PIECE_BYTES, first = pieces * (uint64_t)i / (uint64_t)n,
                   end = pieces * (uint64_t)(i + 1) / (uint64_t)n;
    uint64_t sum = 0;
    for (int64_t r = 0; r < rounds; r++) {
        const unsigned char *slice = t->data + (t->next + (uint64_t)r) % t->n_slices * t->slice;
        sum += t->loops->read(slice + first * PIECE_BYTES, (size_t)((end - first) * PIECE_BYTES));
    }
    g_sink = sum;
}

static void run_fp32(const struct task *t, int64_t rounds, int i, int n)
{
    (void)i;
    (void)n;
    g_sink = (uint64_t)t->loops->fp32(rounds);
}

static void run_int8(const struct task *t, int64_t rounds, int i, int n)
{
    (void)i;
    (void)n;
    g_sink = t->loops->int8(rounds);
}

/* Seconds that all threads together take; the slowest counts. */
static double time_of(struct task *t, int64_t rounds, int n_threads)
{
    double start = 0;
#pragma omp parallel num_threads(n_threads)
    {
#pragma omp barrier
#pragma omp master
        start = seconds();
#pragma omp barrier
        t->run(t, rounds, omp_get_thread_num(), omp_get_num_threads());
    }
    const double took = seconds() - start;
    t->next = (t->next + (uint64_t)rounds) % t->n_slices;
    return took;
}

/* Rounds a second. */
static double best_rate(struct task *t, int n_threads)
{
    int64_t rounds = 1;
    double best = 0;
    for (double took = 0; took < RUN_SECONDS; rounds *= 2) {
        took = time_of(t, rounds, n_threads);
        best = (double)rounds / took > best ? (double)rounds / took : best;
    }
    rounds /= 2;
    for (int i = 0; i < N_RUNS; i++) {
        const double rate = (double)rounds / time_of(t, rounds, n_threads);
        best = rate > best ? rate : best;
    }
    return best;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

enum nib_status nib_machine_measure(int32_t n_threads, uint64_t read_bytes, struct nib_machine *m,
                                    struct nib_error *err)
{
    if (n_threads < 0 || n_threads > 1024)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_threads is %" PRId32 ", wanted 0 to 1024", n_threads);
    const int threads = n_threads > 0 ? n_threads : omp_get_num_procs();
    uint64_t bytes = read_bytes < READ_BYTES_LEAST  ? READ_BYTES_LEAST
                     : read_bytes > READ_BYTES_MOST ? READ_BYTES_MOST
                                                    : read_bytes;
    const uint64_t n_slices = bytes / SLICE_BYTES > 2 ? bytes / SLICE_BYTES : 1,
                   slice = bytes / n_slices / PIECE_BYTES * PIECE_BYTES;
    bytes = slice * n_slices;
    /* Large pages, if the system gives any: small ones would measure the tables of pages as well. */
    unsigned char *data = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return nib_error_set(err, NIB_E_MEMORY, "no %" PRIu64 " bytes of memory to measure reading", bytes);
#ifdef MADV_HUGEPAGE
    (void)madvise(data, (size_t)bytes, MADV_HUGEPAGE);
#endif
    memset(data, 1, (size_t)bytes);
    m->read_bytes = bytes;
    m->n_threads = threads;
    for (const struct nib_peak_loops *l = nib_peak_loops; l->runs_here; l++) {
        struct task t = {.loops = l, .data = data, .slice = slice, .n_slices = n_slices};
        if (!l->runs_here())
            continue;
        t.run = run_read;
        if (l->read)
            m->read_gb_s = larger(m->read_gb_s, 1e-9 * (double)slice * best_rate(&t, threads));
        t.run = run_fp32;
        if (l->fp32)
            m->fp32_gflop_s = larger(m->fp32_gflop_s, 1e-9 * (double)l->fp32_ops * threads * best_rate(&t, threads));
        t.run = run_int8;
        if (l->int8)
            m->int8_gop_s = larger(m->int8_gop_s, 1e-9 * (double)l->int8_ops * threads * best_rate(&t, threads));
    }
    /* Without products of bytes those of fp32 do for them. */
    m->int8_gop_s = larger(m->int8_gop_s, m->fp32_gflop_s);
    (void)munmap(data, (size_t)bytes);
    return NIB_OK;
}
