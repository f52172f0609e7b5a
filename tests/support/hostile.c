/* Changed checkpoints; see the header. */
#include "support/hostile.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "checkpoint/json_file.h"
#include "support/model_support.h"

void hostile_open(struct hostile *h, const char *src)
{
    struct nib_checkpoint *c = NULL;
    struct nib_error err = {0};
    memset(h, 0, sizeof *h);
    char *path = nib_path_join(src, "config.json");
    assert_non_null(path);
    if (nib_json_file_read(path, 1 << 24, &h->config, &err) != NIB_OK || nib_checkpoint_open(src, &c, &err) != NIB_OK)
        fail_msg("%s", err.text);
    free(path);
    for (int64_t i = 0; i < nib_checkpoint_n_tensors(c); i++) {
        const struct nib_tensor_entry *e = nib_checkpoint_at(c, i);
        void *data = relay_items_add(&h->items, e->name, e->dtype, e->n_dims, e->shape);
        if (e->bytes > 0)
            memcpy(data, e->data, e->bytes);
    }
    nib_checkpoint_close(c);
}

void hostile_close(struct hostile *h)
{
    if (h->written)
        test_dir_close(&h->dir);
    relay_items_free(&h->items);
    json_decref(h->config);
    memset(h, 0, sizeof *h);
}

struct relay_item *hostile_item(struct hostile *h, const char *name)
{
    for (int64_t i = 0; i < h->items.n; i++)
        if (strcmp(h->items.item[i].name, name) == 0)
            return &h->items.item[i];
    fail_msg("no tensor '%s'", name);
    return NULL;
}

void hostile_drop(struct hostile *h, const char *name)
{
    struct relay_item *it = hostile_item(h, name);
    free(it->name);
    free(it->data);
    *it = h->items.item[--h->items.n];
}

void hostile_rename(struct hostile *h, const char *from, const char *to)
{
    struct relay_item *it = hostile_item(h, from);
    free(it->name);
    it->name = relay_alloc(strlen(to) + 1);
    memcpy(it->name, to, strlen(to) + 1);
}

void *hostile_add(struct hostile *h, const char *name, enum nib_st_dtype dtype, int32_t n_dims, const int64_t *shape)
{
    return relay_items_add(&h->items, name, dtype, n_dims, shape);
}

void *hostile_reshape(struct hostile *h, const char *name, enum nib_st_dtype dtype, int32_t n_dims, const int64_t *shape)
{
    hostile_drop(h, name);
    return hostile_add(h, name, dtype, n_dims, shape);
}

const char *hostile_write(struct hostile *h)
{
    struct nib_error err = {0};
    if (h->written)
        test_dir_close(&h->dir);
    test_dir_open(&h->dir);
    h->written = true;
    char *text = nib_json_dump(h->config, 0);
    assert_non_null(text);
    test_dir_write(&h->dir, "config.json", text, strlen(text));
    free(text);
    if (relay_items_write(&h->items, h->dir.path, 0, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return h->dir.path;
}

static struct nib_options small_options(const char *backend, bool mtp)
{
    struct nib_options o;
    nib_options_init(&o);
    o.backend = backend;
    o.n_threads = 1;
    o.n_ctx = 256;
    o.n_rows_max = 64;
    o.mtp = mtp;
    return o;
}

void hostile_dir_refused(const char *dir, enum nib_status status, ...)
{
    struct nib_error err = {0};
    struct nib_model *m = NULL;
    struct nib_engine *e = NULL;
    enum nib_status got = nib_model_open(dir, &m, &err);
    if (got == NIB_OK) {
        const struct nib_options o = small_options("ref", nib_model_get_info(m)->has_mtp);
        got = nib_engine_open(m, &o, &e, &err);
    }
    nib_engine_close(e);
    nib_model_close(m);
    if (got == NIB_OK)
        fail_msg("accepted, wanted status %s", nib_status_name(status));
    if (got != status || err.status != status)
        fail_msg("status %s, wanted %s: %s", nib_status_name(got), nib_status_name(status), err.text);
    va_list ap;
    va_start(ap, status);
    for (const char *text = va_arg(ap, const char *); text; text = va_arg(ap, const char *))
        if (!strstr(err.text, text))
            fail_msg("the error lacks '%s': %s", text, err.text);
    va_end(ap);
}

float *hostile_logits(const char *dir, const char *backend, enum nib_act_quant act_quant, int32_t n, bool mtp)
{
    struct nib_error err = {0};
    struct fixture f = {0};
    struct nib_seq *seq = NULL;
    int32_t ids[64];
    assert_true(n <= 64);
    for (int32_t i = 0; i < n; i++)
        ids[i] = i == 0 ? 0 : (i * 37 + 11) % 2000;
    if (nib_model_open(dir, &f.model, &err) != NIB_OK)
        fail_msg("%s", err.text);
    struct nib_options o = small_options(backend, mtp);
    o.act_quant = act_quant;
    o.kv = NIB_KV_F32; /* rows rounded to fewer bits flip where sums are ordered otherwise, and then differ by a thousand times as much */
    if (nib_engine_open(f.model, &o, &f.engine, &err) != NIB_OK || nib_seq_open(f.engine, &seq, &err) != NIB_OK)
        fail_msg("%s", err.text);
    f.vocab = nib_model_get_info(f.model)->vocab;
    float *logits = malloc((size_t)n * (size_t)f.vocab * sizeof *logits);
    assert_non_null(logits);
    const struct run r = {.ids = ids, .n = n, .chunk = n, .n_last = mtp ? 0 : n, .n_mtp = mtp ? n : 0, .logits = mtp ? NULL : logits,
                          .mtp = mtp ? logits : NULL};
    fixture_run(&f, seq, &r);
    nib_seq_close(seq);
    fixture_close(&f);
    return logits;
}

double hostile_distance(const float *a, const float *b, int32_t n, int32_t vocab)
{
    double worst = 0;
    for (int32_t t = 0; t < n; t++, a += vocab, b += vocab) {
        const double lse_a = nll_of(a, vocab, 0) + (double)a[0], lse_b = nll_of(b, vocab, 0) + (double)b[0];
        for (int32_t i = 0; i < vocab; i++) {
            const double d = fabs((double)a[i] - lse_a - ((double)b[i] - lse_b));
            worst = isnan(d) || d > worst ? d : worst;
        }
    }
    return worst;
}
