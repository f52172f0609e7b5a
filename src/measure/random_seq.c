/* The state of a sequence whose tokens were never computed: rows of random numbers in the formats and places of real
 * ones. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "measure/random_pool.h"
#include "model/state_parts.h"
#include "number/kv_rows.h"

enum { N_SAMPLES = 61 }; /* different rows of a kind; odd, so that pages do not repeat */

/* About normal, of variance 1: rows are kept behind a norm. */
static float draw(uint64_t *state)
{
    const uint64_t r = nib_random_next(state);
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(r >> 16 * i & 0xffffu) * (1.0f / 65536) - 0.5f;
    return sum * 1.7320508f;
}

static void encode(enum nib_row_format format, const float *x, int32_t d, int32_t n_rot, unsigned char *row)
{
    switch (format) {
    case NIB_ROW_F32: nib_kv_f32_encode(x, d, row); return;
    case NIB_ROW_BF16: nib_kv_bf16_encode(x, d, row); return;
    case NIB_ROW_FP8: nib_kv_fp8_encode(x, d, n_rot, row); return;
    case NIB_ROW_NVFP4: nib_kv_nvfp4_encode(x, d, n_rot, row); return;
    case NIB_ROW_FP4: nib_kv_fp4_encode(x, d, row); return;
    }
}

/* Sample rows of a part as they are stored, one after the other. */
static unsigned char *make_samples(const struct nib_pool *p, const struct nib_state_part *part, uint64_t *state)
{
    const struct nib_config *c = p->config.model;
    const struct nib_layer_state *l = &p->layer[part->layer];
    const struct nib_store *store = part->kind == NIB_PART_WINDOW    ? &l->window
                                    : part->kind == NIB_PART_ENTRIES ? &l->entries
                                    : part->kind == NIB_PART_INDEX   ? &l->index
                                                                     : NULL;
    enum nib_row_format format = store ? store->format : NIB_ROW_F32;
    if (part->kind == NIB_PART_STREAMS && p->streams_dtype == NIB_DTYPE_BF16)
        format = NIB_ROW_BF16;
    const int32_t item = format == NIB_ROW_BF16 ? 2 : 4;
    const int32_t d = !store                         ? (int32_t)(part->row_bytes / item)
                      : part->kind == NIB_PART_INDEX ? c->index_dim
                                                     : c->head_dim;
    unsigned char *rows = malloc(N_SAMPLES * (size_t)part->row_bytes);
    float *x = malloc((size_t)d * sizeof *x);
    for (int32_t i = 0; rows && x && i < N_SAMPLES; i++) {
        for (int32_t k = 0; k < d; k++)
            x[k] = draw(state);
        encode(format, x, d, c->n_rot, rows + (size_t)i * (size_t)part->row_bytes);
    }
    if (!x) {
        free(rows);
        rows = NULL;
    }
    free(x);
    return rows;
}

static enum nib_status fill_part(struct nib_engine *e, const struct nib_state_part *part, uint64_t *state)
{
    const struct nib_rank *rk = &e->rank;
    if (part->first >= part->end)
        return NIB_OK;
    unsigned char *samples = make_samples(&rk->pool, part, state);
    if (!samples)
        return NIB_E_MEMORY;
    enum nib_status status = NIB_OK;
    int32_t sample = (int32_t)(nib_random_next(state) % N_SAMPLES);
    for (int32_t row = part->first, n; row < part->end && status == NIB_OK; row += n) {
        unsigned char *to = nib_state_part_rows(part, row, &n);
        n = n < N_SAMPLES - sample ? n : N_SAMPLES - sample;
        status = rk->api->upload(rk->stream, to, samples + (size_t)sample * (size_t)part->row_bytes,
                                 (size_t)n * (size_t)part->row_bytes);
        sample = (sample + n) % N_SAMPLES;
    }
    if (status == NIB_OK)
        status = rk->api->synchronise(rk->stream);
    free(samples);
    return status;
}

enum nib_status nib_seq_fill_random(struct nib_seq *s, int32_t length, struct nib_error *err)
{
    struct nib_engine *e = s->engine;
    struct nib_pool *p = &e->rank.pool;
    uint64_t state = 3 + (uint64_t)s->state.slot;
    if (s->state.length != 0)
        return nib_error_set(err, NIB_E_STATE, "the sequence holds %d tokens already, wanted none",
                             (int)s->state.length);
    if (length < 0 || length > e->options.n_ctx)
        return nib_error_set(err, NIB_E_LIMIT, "%d random tokens, wanted 0 to the context of %d", (int)length,
                             (int)e->options.n_ctx);
    if (length == 0)
        return NIB_OK;
    const int32_t floor = length > e->options.n_rollback ? length - e->options.n_rollback : 1;
    if (nib_seq_state_restore(p, &s->state, length, floor) != NIB_OK)
        return nib_error_set(err, NIB_E_LIMIT, "no free KV pages for %d random tokens", (int)length);
    enum nib_status status = NIB_OK;
    for (int32_t i = 0; i < nib_state_n_parts(p) && status == NIB_OK; i++) {
        const struct nib_state_part part = nib_state_part(p, &s->state, floor, i);
        status = fill_part(e, &part, &state);
    }
    if (status == NIB_OK)
        return NIB_OK;
    (void)nib_seq_state_truncate(p, &s->state, 0);
    return nib_error_set(err, status, "backend '%s' failed to take random rows", e->rank.api->name);
}
