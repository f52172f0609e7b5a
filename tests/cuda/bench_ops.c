/* Where a decode step's time goes: the step is timed with its first k ops only, for every k, so that the differences
 * are what each op adds where it stands, launches that overlap included, and sum up to the whole. Beside them the
 * kernels. Ops that wait to be launched with others count as part of the last of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { N_OPS_MAX = 256 };

static const char *g_name[N_OPS_MAX];
static int         g_n, g_limit;

static bool admit(const char *name)
{
    if (g_n >= g_limit || g_n >= N_OPS_MAX)
        return false;
    g_name[g_n++] = name;
    return true;
}

#define COUNTED(op)                                                                              \
    static enum nib_status counted_##op(struct nib_stream *s, const struct nib_##op##_args *a)  \
    {                                                                                            \
        return admit(#op) ? nib_backend_cuda.ops->op(s, a) : NIB_OK;                             \
    }
COUNTED(embed)
COUNTED(norm)
COUNTED(linear)
COUNTED(q_rope)
COUNTED(kv_insert)
COUNTED(compress)
COUNTED(index_select)
COUNTED(attend)
COUNTED(o_a)
COUNTED(moe)
COUNTED(hc_pre)
COUNTED(hc_post)
COUNTED(hc_head)
COUNTED(head)
COUNTED(mtp_join)
COUNTED(copy_rows)
COUNTED(sample)

static const struct nib_ops k_counted = {
    counted_embed,  counted_norm, counted_linear,  counted_q_rope,  counted_kv_insert, counted_compress,
    counted_index_select, counted_attend, counted_o_a, counted_moe, counted_hc_pre, counted_hc_post, counted_hc_head,
    counted_head, counted_mtp_join, counted_copy_rows, counted_sample};

/* The sampler is not called through the rank's ops, so it is part of the whole only. */
static void run_counted(void *data)
{
    struct bench_step *step = data;
    struct nib_rank   *rk = &step->m->rank;
    g_n = 0;
    bench_done(nib_forward(rk, &step->rows), "forward");
    bench_done(nib_forward_logits(rk, step->logits_row, step->n_logits, false), "logits");
    bench_done(
        rk->ops->sample(g_stream, &(struct nib_sample_args){.logits = nib_mat_rows(rk->work.logits, step->n_logits),
                                                            .n = step->n_logits,
                                                            .row = step->sample,
                                                            .token = step->token,
                                                            .logprob = step->logprob}),
        "sample");
}

static void bench_batch(struct bench_model *m, const char *shape, int32_t n_ctx, int32_t n_seqs)
{
    struct bench_step step = bench_step_make(m, n_seqs, n_ctx, 1);
    double            before = 0, whole;
    int               n_before = 0, n_kernels, n_ops;

    m->rank.ops = m->rank.api->ops;
    whole = bench_graph_seconds(bench_step_run, &step, &n_kernels);
    m->rank.ops = &k_counted;
    g_limit = N_OPS_MAX;
    run_counted(&step);
    bench_done(m->rank.api->synchronise(g_stream), "step");
    n_ops = g_n;
    printf("ops of a step, %s, 2 layers (ratio 4, then 128), context %d, batch %d: %d kernels, %.1f us\n", shape, n_ctx,
           n_seqs, n_kernels, whole * 1e6);
    for (int k = 1; k <= n_ops; k++) {
        g_limit = k;
        double seconds = bench_graph_seconds(run_counted, &step, &n_kernels);
        printf("  %-13s %2d kernels %8.2f us\n", g_name[k - 1], n_kernels - n_before, (seconds - before) * 1e6);
        before = seconds;
        n_before = n_kernels;
    }
}

void bench_ops(const char *shape, int32_t n_ctx)
{
    struct bench_model m = bench_model_make(shape, 2, n_ctx, NIB_KV_BF16);
    for (int32_t n = 1; n <= 8; n *= 8)
        bench_batch(&m, shape, n_ctx, n);
}
