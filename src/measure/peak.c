/* The machine's limits by trying: each loop on all threads at once, all loops in turn, the best of many short runs. */
#include <assert.h>
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
#define N_TURNS     20
#define N_RUNS      5 /* of each task in a turn; all those of the first few turns may be short */
#define N_TASKS_MAX 16
#define RUN_SECONDS 1e-3 /* at least: long against starting the threads */

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What is read, and which slice's turn it is. */
struct memory {
    const unsigned char *data;
    uint64_t             slice, n_slices, next; /* slice in bytes */
};

/* Something to measure: `run` does `rounds` rounds as thread i of n. */
struct task {
    const struct nib_peak_loops *loops;
    struct memory               *memory; /* one for all, so that no run finds in a cache what another has just read */
    void (*run)(const struct task *t, int64_t rounds, int i, int n);
    int64_t rounds;    /* of a run */
    double  per_round; /* what one is worth, of all threads */
    double *best;      /* so much a second */
};

/* Where results go, so that nothing is left out. */
static volatile uint64_t g_sink;

static void run_read(const struct task *t, int64_t rounds, int i, int n)
{
    const struct memory *m = t->memory;
    const uint64_t pieces = m->slice / PIECE_BYTES, first = pieces * (uint64_t)i / (uint64_t)n,
                   end = pieces * (uint64_t)(i + 1) / (uint64_t)n;
    uint64_t sum = 0;
    for (int64_t r = 0; r < rounds; r++) {
        const unsigned char *slice = m->data + (m->next + (uint64_t)r) % m->n_slices * m->slice;
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

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Seconds that all threads together take; the slowest counts. */
static double run_once(const struct task *t, int n_threads)
{
    double start = 0;
#pragma omp parallel num_threads(n_threads)
    {
#pragma omp barrier
#pragma omp master
        start = seconds();
#pragma omp barrier
        t->run(t, t->rounds, omp_get_thread_num(), omp_get_num_threads());
    }
    const double took = seconds() - start;
    if (t->run == run_read)
        t->memory->next = (t->memory->next + (uint64_t)t->rounds) % t->memory->n_slices;
    *t->best = larger(*t->best, t->per_round * (double)t->rounds / took);
    return took;
}

/* All tasks in turn, so that what else the machine does for a while is not all one task's loss; a few runs each, so that
 * what fits into a cache is there. Runs grow until they are long enough: one that was held up says too early that it is,
 * the next ones say otherwise. */
static void run_all(struct task *t, int n_tasks, int n_threads)
{
    for (int turn = 0; turn < N_TURNS; turn++)
        for (int k = 0; k < n_tasks; k++)
            for (int i = 0; i < N_RUNS; i++)
                if (run_once(&t[k], n_threads) < RUN_SECONDS)
                    t[k].rounds *= 2;
}

/* The loops that this machine can run, of at most N_TASKS_MAX. */
static int list_tasks(struct memory *memory, struct nib_machine *m, struct task *t)
{
    int n = 0;
    for (const struct nib_peak_loops *l = nib_peak_loops; l->runs_here; l++) {
        if (!l->runs_here())
            continue;
        assert(n + 3 <= N_TASKS_MAX);
        if (l->read)
            t[n++] = (struct task){l, memory, run_read, 1, 1e-9 * (double)memory->slice, &m->read_gb_s};
        if (l->fp32)
            t[n++] = (struct task){l, memory, run_fp32, 1, 1e-9 * (double)l->fp32_ops * m->n_threads, &m->fp32_gflop_s};
        if (l->int8)
            t[n++] = (struct task){l, memory, run_int8, 1, 1e-9 * (double)l->int8_ops * m->n_threads, &m->int8_gop_s};
    }
    return n;
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
    struct memory memory = {.data = data, .slice = slice, .n_slices = n_slices};
    struct task   task[N_TASKS_MAX];
    run_all(task, list_tasks(&memory, m, task), threads);
    m->fp8_gflop_s = larger(m->fp8_gflop_s, m->fp32_gflop_s); /* which FP8 rows are multiplied as */
    /* Without products of bytes those of fp32 do for them. */
    m->int8_gop_s = larger(m->int8_gop_s, m->fp32_gflop_s);
    (void)munmap(data, (size_t)bytes);
    return NIB_OK;
}
