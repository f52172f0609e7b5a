/* nib_quantize_verify(): everything in a destination against its source, from the two folders alone.
 *
 * NVFP4 matrices are decoded and their errors summed as the converter did, then compared with the report if there is
 * one; NVFP4 that was NVFP4 before must have the same bytes; all other tensors too, or the same values where FP8 became
 * BF16. */
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/json_file.h"
#include "quantize/job_quant.h"

#define REPORT_BYTES_MAX ((size_t)1 << 30)
#define COMPARE_BYTES    ((size_t)4 << 20)

struct verifier {
    struct nib_quant_plan       src, dst;
    struct nib_quant_context    src_context, dst_context;
    json_t                     *report; /* by name; NULL: none */
    struct nib_quantize_result *r;
    struct nib_error           *err;
    struct nib_quant_sums       sums;
    uint64_t                    done_bytes, unused_bytes;
};

int32_t nib_quant_threads(int32_t wanted)
{
    return wanted > 0 ? wanted : omp_get_max_threads();
}

static void mismatch(struct verifier *v, const char *name, const char *what)
{
    char text[700];
    v->r->n_mismatches++;
    (void)snprintf(text, sizeof text, "'%.400s' %s", name, what);
    if (v->dst.options->warning)
        v->dst.options->warning(v->dst.options->user, text);
}

/* The source's name of a tensor of the destination. */
static bool source_name(const struct verifier *v, const struct nib_quant_id *id, const char *dst_name, char *out,
                        size_t n)
{
    if (!id->field || v->src.src_hf == v->dst.src_hf)
        return (size_t)snprintf(out, n, "%.*s", (int)id->base_bytes, dst_name) < n;
    return nib_quant_name(id, v->src.config.n_layers, v->src.src_hf, out, n);
}

static bool find_matrix(struct verifier *v, const struct nib_quant_unit *u, struct nib_quant_matrix *m,
                        enum nib_status *status)
{
    char base[400];
    if (source_name(v, &u->id, u->base, base, sizeof base) && nib_quant_matrix_find(&v->src, base, m, status, v->err))
        return true;
    if (*status != NIB_OK)
        return false;
    const struct nib_quant_unit *stacked = nib_quant_unit_find(&v->src, &u->id);
    if (stacked && stacked->action != NIB_QUANT_COPY)
        *m = stacked->m;
    return stacked && stacked->action != NIB_QUANT_COPY;
}

/* ---- NVFP4 ---- */

static enum nib_status compare_nvfp4(struct verifier *v, const struct nib_quant_unit *u, struct nib_quant_rows *a,
                                     struct nib_quant_rows *b)
{
    const size_t cols = (size_t)u->m.cols;
    bool         same = a->global == b->global;
    for (int64_t first = 0; first < u->m.rows; first += a->n_rows_max) {
        NIB_TRY(nib_quant_rows_read(a, &v->src_context, first, v->err));
        NIB_TRY(nib_quant_rows_read(b, &v->dst_context, first, v->err));
        same = same && memcmp(a->data, b->data, (size_t)a->n * cols / 2) == 0 &&
               memcmp(a->scales, b->scales, (size_t)a->n * cols / NIB_QUANT_BLOCK) == 0;
    }
    v->r->n_exact += same;
    if (!same)
        mismatch(v, u->base, "was NVFP4 in the source, but its codes or scales have changed");
    return NIB_OK;
}

/* Error sums in units of `unit`; the sums of rows are added in order. */
static enum nib_status sum_errors(struct verifier *v, struct nib_quant_rows *a, struct nib_quant_rows *b, float g,
                                  float unit, struct nib_quant_sums *out)
{
    const int64_t          cols = a->m->cols;
    struct nib_quant_sums *rows = malloc((size_t)a->n_rows_max * sizeof *rows + 1);
    enum nib_status status = rows ? NIB_OK : nib_error_set(v->err, NIB_E_MEMORY, "no memory to verify '%s'", a->name);
    for (int64_t first = 0; first < a->m->rows && status == NIB_OK; first += a->n_rows_max) {
        status = nib_quant_rows_read(a, &v->src_context, first, v->err);
        if (status == NIB_OK)
            status = nib_quant_rows_read(b, &v->dst_context, first, v->err);
        if (status != NIB_OK)
            break;
        memset(rows, 0, (size_t)a->n * sizeof *rows);
#pragma omp parallel for schedule(static) num_threads(nib_quant_team(&v->src_context, a->n * cols))
        for (int64_t i = 0; i < a->n; i++) {
            struct nib_quant_row row = nib_quant_rows_at(a, i);
            row.g = g;
            row.unit = unit;
            v->src_context.kernels->measure(&row, b->scales + i * (cols / NIB_QUANT_BLOCK), b->data + i * (cols / 2),
                                            &rows[i]);
        }
        for (int64_t i = 0; i < a->n; i++)
            nib_quant_sums_add(out, &rows[i]);
    }
    free(rows);
    return status;
}

static void compare_report(struct verifier *v, const struct nib_quant_unit *u, double relative_mse, double cosine)
{
    const json_t *row = json_object_get(v->report, u->base);
    char          text[200];
    if (!v->report)
        return;
    const double said = json_number_value(json_object_get(row, "relative_mse")),
                 said_cosine = json_number_value(json_object_get(row, "cosine"));
    /* The same sums in other powers of two. */
    if (row && fabs(said - relative_mse) <= 1e-9 * fabs(relative_mse) && fabs(said_cosine - cosine) <= 1e-9)
        return;
    (void)snprintf(text, sizeof text, row ? "has relative MSE %.9g and cosine %.9f, the report says %.9g and %.9f"
                                          : "has no row in nibble-quant.json", relative_mse, cosine, said, said_cosine);
    mismatch(v, u->base, text);
}

static enum nib_status verify_rows(struct verifier *v, const struct nib_quant_unit *u, const struct nib_quant_matrix *m)
{
    struct nib_quant_rows a = {0}, b = {0};
    struct nib_quant_sums sums = {0};
    int                   exponent = 0;
    enum nib_status status = nib_quant_rows_init(&b, &v->dst, &u->m, v->src_context.chunk_bytes, 0, u->base, v->err);
    (void)frexpf(b.global, &exponent);
    /* MXFP4 rows in units of their largest scale, which the exact cast puts 8 binades above the global one. */
    const int32_t k_ref = m->type == NIB_WEIGHT_MXFP4 ? exponent - 1 + 8 : 0;
    const float   g = ldexpf(b.global, -k_ref);
    if (status == NIB_OK)
        status = nib_quant_rows_init(&a, &v->src, m, v->src_context.chunk_bytes, k_ref, u->base, v->err);
    a.n_rows_max = b.n_rows_max = a.n_rows_max < b.n_rows_max ? a.n_rows_max : b.n_rows_max;
    if (status == NIB_OK && m->type == NIB_WEIGHT_NVFP4)
        status = compare_nvfp4(v, u, &a, &b);
    else if (status == NIB_OK) {
        const float unit = nib_quant_unit_of(g * 2688.0f);
        status = sum_errors(v, &a, &b, g, unit, &sums);
        const double relative_mse = nib_quant_relative_mse(&sums), cosine = nib_quant_cosine(&sums),
                     real = ldexp(1.0, k_ref) / (double)unit;
        if (status == NIB_OK) {
            v->r->n_exact += sums.ee == 0;
            v->sums.xx += sums.xx * real * real;
            v->sums.yy += sums.yy * real * real;
            v->sums.ee += sums.ee * real * real;
            compare_report(v, u, relative_mse, cosine);
        }
    }
    nib_quant_rows_deinit(&a);
    nib_quant_rows_deinit(&b);
    return status;
}

static enum nib_status verify_nvfp4(struct verifier *v, const struct nib_quant_unit *u)
{
    struct nib_quant_matrix m;
    enum nib_status status = NIB_OK;
    v->r->n_matrices++;
    v->r->n_weights += u->stats.n_weights;
    if (!find_matrix(v, u, &m, &status)) {
        if (status == NIB_OK)
            mismatch(v, u->base, "is not in the source");
        return status;
    }
    if (m.rows != u->m.rows || m.cols != u->m.cols) {
        mismatch(v, u->base, "has another shape than in the source");
        return NIB_OK;
    }
    return verify_rows(v, u, &m);
}

/* ---- All else ---- */

static enum nib_status compare_spans(struct verifier *v, const struct nib_quant_unit *u, const struct nib_quant_span *a)
{
    const struct nib_quant_span *b = &u->m.data;
    unsigned char               *buffer = malloc(2 * COMPARE_BYTES);
    enum nib_status status = buffer ? NIB_OK
                                    : nib_error_set(v->err, NIB_E_MEMORY, "no memory to compare '%s'", u->base);
    bool            same = a->bytes == b->bytes;
    for (uint64_t at = 0; at < a->bytes && same && status == NIB_OK; at += COMPARE_BYTES) {
        const size_t n = a->bytes - at < COMPARE_BYTES ? (size_t)(a->bytes - at) : COMPARE_BYTES;
        status = nib_quant_read(&v->src, a, at, buffer, n, v->err);
        if (status == NIB_OK)
            status = nib_quant_read(&v->dst, b, at, buffer + COMPARE_BYTES, n, v->err);
        same = status == NIB_OK && memcmp(buffer, buffer + COMPARE_BYTES, n) == 0;
    }
    free(buffer);
    if (status == NIB_OK && !same)
        mismatch(v, u->base, "has other bytes than in the source");
    return status;
}

/* FP8 in the source, BF16 here. */
static enum nib_status compare_widened(struct verifier *v, const struct nib_quant_unit *u,
                                       const struct nib_quant_matrix *m)
{
    struct nib_quant_rows r = {0};
    const size_t    cols = (size_t)m->cols;
    uint16_t       *want = NULL;
    bool            same = true;
    enum nib_status status = nib_quant_rows_init(&r, &v->src, m, v->src_context.chunk_bytes, 0, u->base, v->err);
    if (status == NIB_OK)
        want = malloc((size_t)r.n_rows_max * cols * 2 + 1);
    if (status == NIB_OK && (!want || !r.bf16 || u->m.data.bytes != (uint64_t)m->rows * cols * 2))
        status = nib_error_set(v->err, want ? NIB_E_UNSUPPORTED : NIB_E_MEMORY,
                               "cannot compare '%s': not BF16 of the source's shape", u->base);
    for (int64_t first = 0; first < m->rows && status == NIB_OK && same; first += r.n_rows_max) {
        status = nib_quant_rows_read(&r, &v->src_context, first, v->err);
        if (status == NIB_OK)
            status = nib_quant_read(&v->dst, &u->m.data, (uint64_t)first * cols * 2, want, (size_t)r.n * cols * 2,
                                    v->err);
        same = status == NIB_OK && memcmp(want, r.bf16, (size_t)r.n * cols * 2) == 0;
    }
    free(want);
    nib_quant_rows_deinit(&r);
    if (status == NIB_OK && !same)
        mismatch(v, u->base, "has other values than the source's FP8");
    return status;
}

static const struct nib_tensor_entry *find_source(const struct verifier *v, const struct nib_quant_unit *u,
                                                  const char *base)
{
    static const char *const scales[] = {".scale", ".weight_scale_inv", ".weight_scale"};
    char name[512];
    (void)snprintf(name, sizeof name, "%s%s", base, u->id.suffix);
    const struct nib_tensor_entry *e = nib_checkpoint_find(v->src.checkpoint, name);
    for (size_t i = 0; i < 3 && !e; i++)
        if (strcmp(u->id.suffix, scales[0]) == 0 || strcmp(u->id.suffix, scales[1]) == 0 ||
            strcmp(u->id.suffix, scales[2]) == 0) {
            (void)snprintf(name, sizeof name, "%s%s", base, scales[i]);
            e = nib_checkpoint_find(v->src.checkpoint, name);
        }
    return e;
}

static enum nib_status verify_copy(struct verifier *v, const struct nib_quant_unit *u)
{
    struct nib_quant_matrix m;
    enum nib_status status = NIB_OK;
    char base[512];
    const struct nib_tensor_entry *e = source_name(v, &u->id, u->base, base, sizeof base) ? find_source(v, u, base)
                                                                                          : NULL;
    if (u->id.field && strcmp(u->id.suffix, ".weight") == 0 && v->dst.output[u->out].dtype == NIB_ST_BF16 &&
        nib_quant_matrix_find(&v->src, base, &m, &status, v->err) && m.type == NIB_WEIGHT_FP8)
        return compare_widened(v, u, &m);
    NIB_TRY(status);
    if (!e) {
        mismatch(v, u->base, "is not in the source");
        return NIB_OK;
    }
    const struct nib_quant_span span = nib_quant_span_of(&v->src, e);
    return compare_spans(v, u, &span);
}

/* Nothing of the source may be missing. */
static void verify_presence(struct verifier *v)
{
    for (int64_t i = 0; i < v->src.n_units; i++) {
        const struct nib_quant_unit *u = &v->src.unit[i];
        char name[512];
        if (u->id.field && (u->id.field->kind == NIB_FIELD_LINEAR || u->id.field->kind == NIB_FIELD_EXPERTS)) {
            struct nib_quant_matrix m;
            enum nib_status         status = NIB_OK;
            if (nib_quant_name(&u->id, v->src.config.n_layers, v->dst.src_hf, name, sizeof name) &&
                !nib_quant_matrix_find(&v->dst, name, &m, &status, NULL) && status == NIB_OK &&
                !nib_quant_unit_find(&v->dst, &u->id))
                mismatch(v, u->base, "of the source is missing");
            continue;
        }
        if (u->id.field && !nib_quant_name(&u->id, v->src.config.n_layers, v->dst.src_hf, name, sizeof name))
            continue;
        if (!nib_checkpoint_find(v->dst.checkpoint, u->id.field ? name : u->base))
            mismatch(v, u->base, "of the source is missing");
    }
}

static enum nib_status read_report(struct verifier *v, const char *dst)
{
    json_t *root = NULL, *row;
    size_t  i;
    char   *path = nib_path_join(dst, "nibble-quant.json");
    if (!path)
        return nib_error_set(v->err, NIB_E_MEMORY, "no memory for a path");
    if (access(path, F_OK) == 0 && nib_json_file_read(path, REPORT_BYTES_MAX, &root, v->err) != NIB_OK) {
        free(path);
        return NIB_E_FORMAT;
    }
    free(path);
    v->report = root ? json_object() : NULL;
    json_array_foreach(json_object_get(root, "matrices"), i, row)
        (void)json_object_set(v->report, json_string_value(json_object_get(row, "name")), row);
    json_decref(root);
    return NIB_OK;
}

static enum nib_status verify_all(struct verifier *v)
{
    for (int64_t i = 0; i < v->dst.n_units; i++) {
        const struct nib_quant_unit *u = &v->dst.unit[i];
        NIB_TRY(u->action == NIB_QUANT_RELAY ? verify_nvfp4(v, u) : verify_copy(v, u));
        v->done_bytes += 2 * u->bytes_before;
        NIB_TRY(v->dst_context.tick(&v->dst_context, v->err));
    }
    verify_presence(v);
    return NIB_OK;
}

enum nib_status nib_quantize_verify(const char *src, const char *dst, const struct nib_quantize_options *o,
                                    struct nib_quantize_result *r, struct nib_error *err)
{
    const double start = nib_quant_clock();
    /* Without a preset's choices: experts as they are, so that only NVFP4 tensors count as such. */
    struct nib_quantize_options plain = *o;
    plain.preset = NIB_QUANT_EXPERTS;
    plain.layout = NIB_QUANT_LAYOUT_KEEP;
    plain.include = plain.exclude = plain.calibrate = NULL;
    struct nib_quantize_options keep = plain;
    keep.exclude = "*";
    struct verifier v = {.r = r, .err = err};
    memset(r, 0, sizeof *r);
    enum nib_status status = nib_quant_plan_open(src, &plain, &v.src, err);
    if (status == NIB_OK)
        status = nib_quant_plan_open(dst, &keep, &v.dst, err);
    if (status == NIB_OK)
        status = read_report(&v, dst);
    if (status == NIB_OK) {
        nib_quant_context_init(&v.src_context, &v.src, "verifying", &v.unused_bytes);
        nib_quant_context_init(&v.dst_context, &v.dst, "verifying", &v.done_bytes);
        status = verify_all(&v);
    }
    r->n_tensors = v.dst.n_outputs;
    r->source_bytes = v.src.source_bytes;
    r->output_bytes = v.dst.source_bytes;
    r->relative_mse = nib_quant_relative_mse(&v.sums);
    r->cosine = nib_quant_cosine(&v.sums);
    r->seconds = nib_quant_clock() - start;
    json_decref(v.report);
    nib_quant_plan_close(&v.dst);
    nib_quant_plan_close(&v.src);
    return status;
}
