/* nibble-quant.json and nibble-quant.md: what was done to every matrix and what it cost. Neither holds times or paths,
 * so that equal jobs give equal files. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text_buf.h"
#include "quantize/quant.h"

#define N_WORST 10
#define N_FAMILIES_MAX 16

struct family {
    const char            *name;
    struct nib_quant_stats total;
    int64_t                n, n_exact;
    uint64_t               before, after;
};

static bool is_nvfp4(const struct nib_quant_unit *u)
{
    return u->n_outs == 4;
}

static uint64_t bytes_after(const struct nib_quant_plan *p, const struct nib_quant_unit *u)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < u->n_outs; i++)
        sum += p->output[u->out + i].bytes;
    return sum;
}

/* ---- Rows ---- */

json_t *nib_quant_stats_json(const struct nib_quant_plan *p, const struct nib_quant_unit *u)
{
    const struct nib_quant_stats *s = &u->stats;
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:[f, f, f]}",
        "name", u->out_base, "family", nib_quant_family(p, &u->id), "action", nib_quant_action_name(u->action),
        "source", nib_quant_type_name(u->m.type), "rows", (json_int_t)u->m.rows, "cols", (json_int_t)u->m.cols,
        "relative_mse", nib_quant_relative_mse(&s->sums), "cosine", nib_quant_cosine(&s->sums), "global_scale",
        (double)s->global_scale, "input_scale", (double)s->input_scale, "input_scale_measured", s->calibrated, "exact",
        s->exact, "blocks", (json_int_t)s->n_blocks, "recoded", (json_int_t)s->n_recoded, "recoded_inexact",
        (json_int_t)s->n_recoded_inexact, "vanished", (json_int_t)s->n_vanished, "saturated",
        (json_int_t)s->sums.saturated, "bytes_before", (json_int_t)u->bytes_before, "bytes_after",
        (json_int_t)bytes_after(p, u), "sums", s->sums.xx, s->sums.yy, s->sums.ee);
}

enum nib_status nib_quant_stats_read(const json_t *row, struct nib_quant_unit *u, const char *what,
                                     struct nib_error *err)
{
    struct nib_quant_stats *s = &u->stats;
    const char *name = NULL;
    double      global = 0, input = 0, xx = 0, yy = 0, ee = 0;
    int         exact = 0, measured = 0;
    json_int_t  recoded = 0, inexact = 0, vanished = 0, saturated = 0;
    json_error_t why;
    if (json_unpack_ex((json_t *)row, &why, 0, "{s:s, s:F, s:F, s:b, s:b, s:I, s:I, s:I, s:I, s:[F, F, F]}", "name",
                       &name, "global_scale", &global, "input_scale", &input, "input_scale_measured", &measured,
                       "exact", &exact, "recoded", &recoded, "recoded_inexact", &inexact, "vanished", &vanished,
                       "saturated", &saturated, "sums", &xx, &yy, &ee) != 0 ||
        strcmp(name, u->out_base) != 0)
        return nib_error_set(err, NIB_E_FORMAT, "%s: no report row of '%s': %s", what, u->out_base, why.text);
    s->global_scale = (float)global;
    s->input_scale = (float)input;
    s->calibrated = measured != 0;
    s->exact = exact != 0;
    s->n_recoded = (uint64_t)recoded;
    s->n_recoded_inexact = (uint64_t)inexact;
    s->n_vanished = (uint64_t)vanished;
    s->sums = (struct nib_quant_sums){.xx = xx, .yy = yy, .ee = ee, .saturated = (int64_t)saturated};
    return NIB_OK;
}

/* ---- Sums ---- */

static void family_add(struct family *f, const struct nib_quant_plan *p, const struct nib_quant_unit *u)
{
    nib_quant_sums_add(&f->total.sums, &u->stats.sums);
    f->total.n_weights += u->stats.n_weights;
    f->total.n_blocks += u->stats.n_blocks;
    f->total.n_recoded += u->stats.n_recoded;
    f->total.n_recoded_inexact += u->stats.n_recoded_inexact;
    f->total.n_vanished += u->stats.n_vanished;
    f->n++;
    f->n_exact += u->stats.exact;
    f->before += u->bytes_before;
    f->after += bytes_after(p, u);
}

static int sum_families(const struct nib_quant_plan *p, struct family *families, struct family *all)
{
    int n = 0;
    memset(all, 0, sizeof *all);
    all->name = "all";
    for (int64_t i = 0; i < p->n_units; i++) {
        const struct nib_quant_unit *u = &p->unit[i];
        if (!is_nvfp4(u))
            continue;
        const char *name = nib_quant_family(p, &u->id);
        int k = 0;
        while (k < n && strcmp(families[k].name, name) != 0)
            k++;
        if (k == N_FAMILIES_MAX)
            continue;
        if (k == n)
            families[n++] = (struct family){.name = name};
        family_add(&families[k], p, u);
        family_add(all, p, u);
    }
    return n;
}

void nib_quant_result_fill(const struct nib_quant_plan *p, struct nib_quantize_result *r)
{
    struct family all, families[N_FAMILIES_MAX];
    (void)sum_families(p, families, &all);
    r->n_tensors = p->n_outputs;
    r->n_matrices = p->n_matrices;
    r->n_exact = all.n_exact;
    r->n_weights = all.total.n_weights;
    r->n_recoded = all.total.n_recoded;
    r->n_saturated = (uint64_t)all.total.sums.saturated;
    r->source_bytes = p->source_bytes;
    r->output_bytes = p->output_bytes;
    r->relative_mse = nib_quant_relative_mse(&all.total.sums);
    r->cosine = nib_quant_cosine(&all.total.sums);
    r->n_shards = p->n_shards;
}

/* The largest relative errors; of equal ones the first. */
static int find_worst(const struct nib_quant_plan *p, const struct nib_quant_unit *worst[N_WORST])
{
    int n = 0;
    for (int64_t i = 0; i < p->n_units; i++) {
        const struct nib_quant_unit *u = &p->unit[i];
        if (!is_nvfp4(u) || u->stats.exact)
            continue;
        const double error = nib_quant_relative_mse(&u->stats.sums);
        int          at = n;
        while (at > 0 && nib_quant_relative_mse(&worst[at - 1]->stats.sums) < error)
            at--;
        if (at == N_WORST)
            continue;
        n += n < N_WORST;
        memmove(&worst[at + 1], &worst[at], (size_t)(n - 1 - at) * sizeof worst[0]);
        worst[at] = u;
    }
    return n;
}

/* ---- JSON ---- */

static json_t *family_json(const struct family *f)
{
    const struct nib_quant_stats *s = &f->total;
    return json_pack(
        "{s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "matrices", (json_int_t)f->n, "exact",
        (json_int_t)f->n_exact, "weights", (json_int_t)s->n_weights, "relative_mse", nib_quant_relative_mse(&s->sums),
        "cosine", nib_quant_cosine(&s->sums), "blocks", (json_int_t)s->n_blocks, "recoded", (json_int_t)s->n_recoded,
        "recoded_inexact", (json_int_t)s->n_recoded_inexact, "vanished", (json_int_t)s->n_vanished, "saturated",
        (json_int_t)s->sums.saturated, "bytes_before", (json_int_t)f->before, "bytes_after", (json_int_t)f->after);
}

static json_t *report_json(const struct nib_quant_plan *p)
{
    struct family all, families[N_FAMILIES_MAX];
    const struct nib_quant_unit *worst[N_WORST + 1];
    const int n = sum_families(p, families, &all), n_worst = find_worst(p, worst);
    json_t *by_family = json_object(), *rows = json_array(), *last = json_array();
    for (int i = 0; i < n; i++)
        (void)json_object_set_new(by_family, families[i].name, family_json(&families[i]));
    for (int64_t i = 0; i < p->n_units; i++)
        if (is_nvfp4(&p->unit[i]))
            (void)json_array_append_new(rows, nib_quant_stats_json(p, &p->unit[i]));
    for (int i = 0; i < n_worst; i++)
        (void)json_array_append_new(last, json_string(worst[i]->out_base));
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "format", 1, "producer", "nibble",
                     "preset", nib_quant_preset_name(p->options->preset), "method",
                     nib_quant_method_name(p->options->method), "layout", p->hf ? "hf" : "official", "tensors",
                     (json_int_t)p->n_outputs, "source_bytes", (json_int_t)p->source_bytes, "output_bytes",
                     (json_int_t)p->output_bytes, "total", family_json(&all), "families", by_family, "worst", last,
                     "matrices", rows);
}

/* ---- Text ---- */

static enum nib_status add(struct nib_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static enum nib_status add(struct nib_text *t, const char *fmt, ...)
{
    char    line[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    return nib_text_append_string(t, line);
}

static enum nib_status add_family(struct nib_text *t, const struct family *f)
{
    const struct nib_quant_stats *s = &f->total;
    return add(t, "| %s | %" PRId64 " | %" PRId64 " | %.4g | %.6f | %" PRIu64 " | %" PRId64 " | %.4g | %.4g |\n",
               f->name, f->n, f->n_exact, nib_quant_relative_mse(&s->sums), nib_quant_cosine(&s->sums), s->n_recoded,
               s->sums.saturated, (double)f->before / 1e9, (double)f->after / 1e9);
}

static enum nib_status report_text(const struct nib_quant_plan *p, struct nib_text *t)
{
    struct family all, families[N_FAMILIES_MAX];
    const struct nib_quant_unit *worst[N_WORST + 1];
    const int n = sum_families(p, families, &all), n_worst = find_worst(p, worst);
    NIB_TRY(add(t,
                "# NVFP4 quantisation\n\nPreset `%s`, method `%s`, %s names. %" PRId64
                " tensors in %d shards: %.4g GB from %.4g GB.\n\n",
                nib_quant_preset_name(p->options->preset), nib_quant_method_name(p->options->method),
                p->hf ? "Hugging Face" : "official", p->n_outputs, (int)p->n_shards, (double)p->output_bytes / 1e9,
                (double)p->source_bytes / 1e9));
    NIB_TRY(add(t, "Relative MSE is sum((w - w')^2) / sum(w^2). Exact: every decoded weight equals the source's. "
                   "Recoded: blocks of 16 outside "
                   "the window of an exact cast.\nSaturated: weights beyond 6 times their scale.\n\n"));
    NIB_TRY(add(t,
                "| family | matrices | exact | relative MSE | cosine | recoded | saturated | GB before | GB after |\n"
                "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"));
    for (int i = 0; i < n; i++)
        NIB_TRY(add_family(t, &families[i]));
    NIB_TRY(add_family(t, &all));
    if (n_worst == 0)
        return add(t, "\nEvery matrix is exact.\n");
    NIB_TRY(add(t, "\n## The worst\n\n| matrix | source | relative MSE | cosine |\n| --- | --- | ---: | ---: |\n"));
    for (int i = 0; i < n_worst; i++)
        NIB_TRY(add(t, "| %.300s | %s | %.4g | %.6f |\n", worst[i]->out_base, nib_quant_type_name(worst[i]->m.type),
                    nib_quant_relative_mse(&worst[i]->stats.sums), nib_quant_cosine(&worst[i]->stats.sums)));
    return NIB_OK;
}

enum nib_status nib_quant_report_write(const struct nib_quant_plan *p, const char *dst, struct nib_error *err)
{
    json_t *root = report_json(p);
    char   *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    enum nib_status status = text ? nib_quant_write_file(dst, "nibble-quant.json", text, strlen(text), err)
                                  : nib_error_set(err, NIB_E_MEMORY, "no memory for the report");
    free(text);
    NIB_TRY(status);
    struct nib_text t = {0};
    status = report_text(p, &t);
    if (status == NIB_OK)
        status = nib_quant_write_file(dst, "nibble-quant.md", t.data, t.n, err);
    else
        (void)nib_error_set(err, status, "no memory for the report");
    nib_text_free(&t);
    return status;
}
