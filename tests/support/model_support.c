/* Helpers of model_support.h; every failure ends the running cmocka test with a message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "support/model_support.h"

struct fixture fixture_open(const char *dir, const struct nib_options *o)
{
    struct nib_error err = {0};
    struct fixture f = {0};
    if (nib_model_open(dir, &f.model, &err) != NIB_OK)
        fail_msg("%s", err.text);
    if (nib_engine_open(f.model, o, &f.engine, &err) != NIB_OK)
        fail_msg("%s", err.text);
    f.vocab = nib_model_get_info(f.model)->vocab;
    return f;
}

void fixture_close(struct fixture *f)
{
    nib_engine_close(f->engine);
    nib_model_close(f->model);
    memset(f, 0, sizeof *f);
}

int32_t argmax_of(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

double nll_of(const float *logits, int32_t n, int32_t token)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return max + log(sum) - logits[token];
}

void fixture_run(struct fixture *f, struct nib_seq *seq, const struct run *r)
{
    struct nib_error err = {0};
    const size_t vocab = (size_t)f->vocab;
    const bool all = r->argmax || r->nll;
    int32_t *rows = malloc((size_t)r->chunk * sizeof *rows);
    float *logits = malloc((size_t)r->chunk * vocab * sizeof *logits);
    float *mtp = malloc((size_t)r->chunk * vocab * sizeof *mtp);
    assert_true(rows && logits && mtp);
    for (int32_t i = 0; i < r->n; i += r->chunk) {
        const int32_t n = r->n - i < r->chunk ? r->n - i : r->chunk;
        const int32_t start[2] = {0, n};
        int32_t n_logits = 0;
        for (int32_t k = 0; k < n; k++)
            if (all || i + k >= r->n - r->n_last || i + k >= r->n - r->n_mtp)
                rows[n_logits++] = k;
        const struct nib_batch b = {.n_rows = n, .n_seqs = 1, .n_logits = n_logits, .token = r->ids + i, .seq_start = start,
                                    .seq = &seq, .logits_row = rows};
        if (nib_step(f->engine, &b, logits, r->mtp ? mtp : NULL, &err) != NIB_OK)
            fail_msg("%s", err.text);
        for (int32_t l = 0; l < n_logits; l++) {
            const int32_t p = i + rows[l];
            const float *row = logits + (size_t)l * vocab;
            if (r->argmax)
                r->argmax[p] = argmax_of(row, f->vocab);
            if (r->nll && p + 1 < r->n)
                r->nll[p] = nll_of(row, f->vocab, r->ids[p + 1]);
            if (r->logits && p >= r->n - r->n_last)
                memcpy(r->logits + (size_t)(p - (r->n - r->n_last)) * vocab, row, vocab * sizeof(float));
            if (r->mtp && p >= r->n - r->n_mtp)
                memcpy(r->mtp + (size_t)(p - (r->n - r->n_mtp)) * vocab, mtp + (size_t)l * vocab,
                       vocab * sizeof(float));
        }
    }
    free(rows);
    free(logits);
    free(mtp);
}

struct nib_checkpoint *goldens_open(void)
{
    struct nib_error err = {0};
    struct nib_checkpoint *c = NULL;
    if (nib_checkpoint_open(GOLDENS, &c, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return c;
}

const struct nib_tensor_entry *golden_find(const struct nib_checkpoint *c, const char *fmt, ...)
{
    char name[128];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return nib_checkpoint_find(c, name);
}

void *golden_copy(const struct nib_tensor_entry *e)
{
    assert_non_null(e);
    void *p = malloc(e->bytes ? e->bytes : 1);
    assert_non_null(p);
    memcpy(p, e->data, e->bytes);
    return p;
}
