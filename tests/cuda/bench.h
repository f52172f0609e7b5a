/* What the parts of bench_cuda share: the opened backend, random data, timing by graph replays, and a model of
 * published shapes. One backend is open at a time; every failure ends the program with a sentence. */
#ifndef BENCH_CUDA_H
#define BENCH_CUDA_H

#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/cuda.h"
#include "model/forward.h"

extern struct nib_backend *g_backend;
extern struct nib_stream  *g_stream;
extern double              g_copy_rate; /* bytes per second, read and written */
extern bool                g_once;      /* work runs in a profiler's range, once, instead of being timed */

/* Dense BF16 products as the vendor's library reaches them on an H200: the limit of what is bound by arithmetic. */
#define BENCH_MATRIX_RATE 799e12

void     bench_done(enum nib_status status, const char *what);
uint32_t bench_draw(void);
/* Device memory with small random bf16 or fp32 values. */
void    *bench_random(size_t bytes, bool f32);
/* A copy of host memory on the device. */
void    *bench_put(const void *host, size_t bytes);
void     bench_open(const struct nib_dims *d);
void     bench_close(void);

/* Random weights: [n_stack] matrices of one type; bytes as packed. */
struct nib_weight *bench_weight(enum nib_weight_type type, int32_t n_stack, int32_t n_out, int32_t n_in);
struct nib_weight *bench_weight_for(enum nib_act_format act, enum nib_weight_type type, int32_t n_stack, int32_t n_out,
                                    int32_t n_in);
struct nib_act     bench_fp8_rows(int32_t rows, int32_t cols);
size_t             bench_weight_bytes(const struct nib_weight *w);

/* Median seconds of a replay of what `work` enqueues, captured once. *n_kernels: launches in it; NULL: not wanted. */
double bench_graph_seconds(void (*work)(void *data), void *data, int *n_kernels);

struct bench_model {
    struct nib_config config;
    struct nib_rank   rank;
    double            bytes; /* of weights that a step of one row reads */
};

struct bench_step {
    struct bench_model    *m;
    struct nib_rows        rows;
    int32_t               *logits_row;
    int32_t                n_logits;
    struct nib_sample_row *sample;
    int32_t               *token;
    float                 *logprob;
};

/* shape: "flash" or "pro". Room for 8 sequences of n_ctx tokens, filled with random rows. */
struct bench_model bench_model_make(const char *shape, int32_t n_layers, int32_t n_ctx, enum nib_kv kv);
/* `n_seqs` sequences of `length` tokens, each getting n_new more. */
struct bench_step  bench_step_make(struct bench_model *m, int32_t n_seqs, int32_t length, int32_t n_new);
void               bench_step_run(void *step);

/* ---- bench_ops.c, bench_attend.c, bench_experts.c ---- */

/* What every op of a decode step adds to its time, and how many kernels it is. */
void bench_ops(const char *shape, int32_t n_ctx);
void bench_attend(void);
void bench_index(void);
/* The mixture of experts of one layer, for few tokens and for many. */
void bench_experts(void);

#endif
