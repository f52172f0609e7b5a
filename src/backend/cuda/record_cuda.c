/* A step as one CUDA graph: the launches of its ops are captured from the stream, kept under their key, and launched at
 * once from then on. A key is captured when it comes a second time, since building a graph costs some steps' time. */
#include "backend/cuda/record_cuda.h"

#include <string.h>

static bool same(const struct nib_record_key *a, const struct nib_record_key *b)
{
    return a->n == b->n && memcmp(a->word, b->word, (size_t)a->n * sizeof a->word[0]) == 0;
}

static struct nib_cuda_record *find(struct nib_cuda_records *r, const struct nib_record_key *key)
{
    for (int i = 0; i < NIB_CUDA_RECORDS; i++)
        if (r->record[i].used > 0 && same(&r->record[i].key, key))
            return &r->record[i];
    return NULL;
}

static void forget(struct nib_cuda_record *record)
{
    if (record->graph)
        (void)cudaGraphExecDestroy(record->graph); /* waits for a launch that still runs */
    memset(record, 0, sizeof *record);
}

static struct nib_cuda_record *oldest(struct nib_cuda_records *r)
{
    struct nib_cuda_record *best = &r->record[0];
    for (int i = 1; i < NIB_CUDA_RECORDS; i++)
        if (r->record[i].used < best->used)
            best = &r->record[i];
    return best;
}

static enum nib_status replay(struct nib_stream *s, const struct nib_record_key *key, bool *found)
{
    struct nib_cuda_record *record = find(&s->records, key);
    *found = false;
    if (s->broken)
        return NIB_E_DEVICE;
    if (!record || !record->graph)
        return NIB_OK;
    *found = true;
    nib_cuda_flush_all(s);
    record->used = ++s->records.clock;
    return nib_cuda_check(s, cudaGraphLaunch(record->graph, s->handle), "launching a step's graph");
}

static bool begin(struct nib_stream *s, const struct nib_record_key *key)
{
    struct nib_cuda_record *record = find(&s->records, key);
    if (s->broken || s->records.off)
        return false;
    if (!record) {
        record = oldest(&s->records);
        forget(record);
        record->key = *key;
        record->used = ++s->records.clock;
        return false;
    }
    record->used = ++s->records.clock;
    nib_cuda_flush_all(s);
    if (cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    s->records.off = true;
    return false;
}

/* A capture that does not become a graph loses the step's work, so that is an error; later steps run op by op. */
static enum nib_status end(struct nib_stream *s, const struct nib_record_key *key, bool ok)
{
    struct nib_cuda_record *record = find(&s->records, key);
    cudaGraph_t             graph = NULL;
    nib_cuda_flush_all(s); /* what waits is part of the step */
    cudaError_t             e = cudaStreamEndCapture(s->handle, &graph);
    if (e == cudaSuccess && ok)
        e = cudaGraphInstantiate(&record->graph, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (e == cudaSuccess && ok)
        e = cudaGraphLaunch(record->graph, s->handle);
    if (!ok || e != cudaSuccess) {
        forget(record);
        s->records.off = true;
    }
    if (!ok) {
        (void)cudaGetLastError();
        return NIB_OK; /* the op has said what failed */
    }
    return nib_cuda_check(s, e, "recording a step's graph");
}

const struct nib_recorder nib_cuda_recorder = {.replay = replay, .begin = begin, .end = end};

void nib_cuda_records_free(struct nib_cuda_records *r)
{
    for (int i = 0; i < NIB_CUDA_RECORDS; i++)
        forget(&r->record[i]);
}
