/* Row-wise steps launched together: norm, window rows, entries and ring of the compressors, queries. A block is one row
 * of one job (some heads of it for queries). Ops put their job here and return; the next launch, copy or wait runs what
 * is there first (nib_launch(), cuda.c), so the order of the stream holds.
 *
 * Jobs of one launch do not depend on each other; what would is launched before. Rows go into a compressor's ring only
 * after all entries have read it, hence with the jobs of the next launch. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/row_compress.cuh"

static_assert(sizeof(struct nib_cuda_jobs) <= 4096 - 64, "jobs are a kernel's parameters");

static __global__ void NIB_LAUNCH_BOUNDS(kRowThreads, 4) row_jobs(const __grid_constant__ struct nib_cuda_jobs jobs)
{
    nib_grid_start();
    extern __shared__ __align__(16) float x[];
    __shared__ struct row_buffers         buffers;
    int32_t                               at = (int32_t)blockIdx.x, j = 0;
    for (; at >= jobs.job[j].n_rows * jobs.job[j].per_row; j++)
        at -= jobs.job[j].n_rows * jobs.job[j].per_row;
    const struct nib_cuda_job &job = jobs.job[j];
    int64_t                    t = job.first + at / job.per_row;
    int32_t                    part = at % job.per_row;
    switch (job.kind) {
    case NIB_CUDA_JOB_NORM: norm_row(job.args.norm, t, x, &buffers); break;
    case NIB_CUDA_JOB_KV_INSERT: kv_insert_row(job.args.kv_insert, job.rows, t, x, &buffers); break;
    case NIB_CUDA_JOB_EMIT: emit_entry(job.args.compress, job.rows, t, x, &buffers); break;
    case NIB_CUDA_JOB_PUSH: push_row(job.args.compress, job.rows, t); break;
    case NIB_CUDA_JOB_Q_ROPE: query_heads(job.args.q_rope, job.rows, t, part, &buffers); break;
    case NIB_CUDA_JOB_INDEX_QUERY: index_query_head(job.args.index, job.rows, t, part, x, &buffers); break;
    }
}

/* ---- What waits ---- */

/* Shared memory of a block: the row, and codes of an FP4 query behind it. */
static size_t row_bytes_of(const struct nib_cuda_job *job)
{
    switch (job->kind) {
    case NIB_CUDA_JOB_NORM: return (size_t)job->args.norm.x.cols * sizeof(float);
    case NIB_CUDA_JOB_KV_INSERT: return (size_t)job->args.kv_insert.kv.cols * sizeof(float);
    case NIB_CUDA_JOB_EMIT: return (size_t)job->args.compress.width * sizeof(float);
    case NIB_CUDA_JOB_INDEX_QUERY: return (size_t)job->args.index.dim * 5 + 16;
    default: return 0;
    }
}

void nib_cuda_flush(struct nib_stream *s)
{
    if (s->broken)
        s->jobs.n = 0, s->post_waits = false;
    if (s->post_waits)
        nib_cuda_hc_post_run(s);
    if (s->jobs.n == 0)
        return;

    struct nib_cuda_jobs jobs = s->jobs;
    size_t               bytes = 0;
    int64_t              blocks = 0;
    bool                 only_pushes = true;
    s->jobs.n = 0;
    for (int32_t i = 0; i < jobs.n; i++) {
        size_t wanted = row_bytes_of(&jobs.job[i]);
        bytes = wanted > bytes ? wanted : bytes;
        blocks += (int64_t)jobs.job[i].n_rows * jobs.job[i].per_row;
        only_pushes &= jobs.job[i].kind == NIB_CUDA_JOB_PUSH;
    }
    if (s->hold && only_pushes) {
        s->jobs = jobs;
        return;
    }
    cudaFuncSetAttribute(row_jobs, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    nib_launch(s, row_jobs, (unsigned)blocks, kRowThreads, bytes, jobs);
    for (int32_t i = 0; i < jobs.n; i++) {
        if (jobs.job[i].kind == NIB_CUDA_JOB_EMIT) {
            s->jobs.job[s->jobs.n] = jobs.job[i];
            s->jobs.job[s->jobs.n++].kind = NIB_CUDA_JOB_PUSH;
        }
    }
}

void nib_cuda_flush_all(struct nib_stream *s)
{
    s->hold = false;
    while (s->jobs.n > 0 || s->post_waits)
        nib_cuda_flush(s);
}

/* ---- Which jobs may wait together ---- */

static bool overlap(const struct nib_mat *a, const struct nib_mat *b)
{
    if (!a->data || !b->data || a->rows == 0 || b->rows == 0)
        return false;
    uintptr_t a0 = (uintptr_t)a->data, b0 = (uintptr_t)b->data;
    uintptr_t a1 = a0 + (size_t)a->rows * (size_t)a->stride * (a->dtype == NIB_DTYPE_F32 ? 4 : 2);
    uintptr_t b1 = b0 + (size_t)b->rows * (size_t)b->stride * (b->dtype == NIB_DTYPE_F32 ? 4 : 2);
    return a0 < b1 && b0 < a1;
}

/* The rows that a job reads, up to two. */
static int inputs_of(const struct nib_cuda_job *job, const struct nib_mat *in[2])
{
    switch (job->kind) {
    case NIB_CUDA_JOB_NORM: in[0] = &job->args.norm.x; return 1;
    case NIB_CUDA_JOB_KV_INSERT: in[0] = &job->args.kv_insert.kv; return 1;
    case NIB_CUDA_JOB_Q_ROPE: in[0] = &job->args.q_rope.q; return 1;
    case NIB_CUDA_JOB_INDEX_QUERY: in[0] = &job->args.index.q; return 1;
    default: in[0] = &job->args.compress.kv, in[1] = &job->args.compress.gate; return 2;
    }
}

/* The rows that a job writes, beside stores and rings; NULL: none. */
static const struct nib_mat *output_of(const struct nib_cuda_job *job)
{
    switch (job->kind) {
    case NIB_CUDA_JOB_NORM: return &job->args.norm.y.plain;
    case NIB_CUDA_JOB_Q_ROPE: return &job->args.q_rope.q;
    case NIB_CUDA_JOB_INDEX_QUERY: return &job->args.index.q;
    default: return NULL;
    }
}

static bool reads(const struct nib_cuda_job *job, const struct nib_mat *m)
{
    const struct nib_mat *in[2] = {};
    int                   n = inputs_of(job, in);
    for (int i = 0; i < n; i++)
        if (overlap(in[i], m))
            return true;
    return false;
}

/* Two compressors of different rings and stores may wait together; of all other kinds one. */
static bool may_wait_beside(const struct nib_cuda_job *a, const struct nib_cuda_job *b)
{
    const struct nib_mat *from_a = output_of(a), *from_b = output_of(b);
    bool                  compress_a = a->kind == NIB_CUDA_JOB_EMIT || a->kind == NIB_CUDA_JOB_PUSH;
    bool                  compress_b = b->kind == NIB_CUDA_JOB_EMIT || b->kind == NIB_CUDA_JOB_PUSH;
    if (compress_a && compress_b &&
        (a->args.compress.frontier.kv == b->args.compress.frontier.kv ||
         a->args.compress.entries.base == b->args.compress.entries.base))
        return false;
    if (a->kind == b->kind && !compress_a)
        return false;
    if (from_a && (reads(b, from_a) || (from_b && overlap(from_a, from_b))))
        return false;
    return !from_b || !reads(a, from_b);
}

static void add(struct nib_stream *s, const struct nib_cuda_job *job)
{
    bool apart = s->jobs.n == NIB_CUDA_JOBS || s->post_waits;
    for (int32_t i = 0; i < s->jobs.n; i++)
        apart |= !may_wait_beside(&s->jobs.job[i], job);
    if (apart)
        nib_cuda_flush_all(s);
    s->jobs.job[s->jobs.n++] = *job;
}

bool nib_cuda_jobs_mind(const struct nib_stream *s, const struct nib_mat *written)
{
    for (int32_t i = 0; i < s->jobs.n; i++)
        if (reads(&s->jobs.job[i], written))
            return true;
    return false;
}

/* ---- Ops ---- */

static struct nib_cuda_job job_of(enum nib_cuda_job_kind kind, const struct nib_rows *rows, int32_t n_rows)
{
    struct nib_cuda_job job = {};
    job.kind = kind;
    job.n_rows = n_rows;
    job.per_row = 1;
    if (rows)
        job.rows = *rows;
    return job;
}

enum nib_status nib_cuda_norm(struct nib_stream *s, const struct nib_norm_args *a)
{
    struct nib_cuda_job job = job_of(NIB_CUDA_JOB_NORM, NULL, a->x.rows);
    job.args.norm = *a;
    if (a->x.rows > 0)
        add(s, &job);
    return NIB_OK;
}

enum nib_status nib_cuda_kv_insert(struct nib_stream *s, const struct nib_kv_insert_args *a)
{
    struct nib_cuda_job job = job_of(NIB_CUDA_JOB_KV_INSERT, a->rows, a->rows->n_rows);
    job.args.kv_insert = *a;
    if (job.n_rows > 0)
        add(s, &job);
    return NIB_OK;
}

enum nib_status nib_cuda_compress(struct nib_stream *s, const struct nib_compress_args *a)
{
    struct nib_cuda_job job = job_of(NIB_CUDA_JOB_EMIT, a->rows, a->rows->n_rows);
    job.args.compress = *a;
    if (job.n_rows > 0)
        add(s, &job);
    return NIB_OK;
}

enum nib_status nib_cuda_q_rope(struct nib_stream *s, const struct nib_q_rope_args *a)
{
    struct nib_cuda_job job = job_of(NIB_CUDA_JOB_Q_ROPE, a->rows, a->rows->n_rows);
    job.args.q_rope = *a;
    job.per_row = (a->n_heads + kQueryHeads - 1) / kQueryHeads;
    if (job.n_rows > 0)
        add(s, &job);
    return NIB_OK;
}

void nib_cuda_index_query(struct nib_stream *s, const struct nib_index_select_args *a, int32_t first, int32_t n)
{
    struct nib_cuda_job job = job_of(NIB_CUDA_JOB_INDEX_QUERY, a->rows, n);
    job.args.index = *a;
    job.first = first;
    job.per_row = a->n_heads;
    add(s, &job);
}
