/* The source's bytes. Names and shapes come from the checkpoint, which maps its files; data is read by position
 * instead, so that what was read does not stay resident and a failing disk or a file cut short is an error and not a
 * signal. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/shard.h"
#include "quantize/layout_quant.h"

static int name_compare(const void *a, const void *b)
{
    const struct nib_quant_file *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static struct nib_quant_file *find_file(const struct nib_quant_plan *p, const char *name)
{
    const struct nib_quant_file key = {.name = name};
    return bsearch(&key, p->file, (size_t)p->n_files, sizeof *p->file, name_compare);
}

/* The checkpoint does not tell where its maps begin; opening the shard once more gives one tensor's offset, and so the
 * beginning. */
static enum nib_status locate(struct nib_quant_plan *p, struct nib_quant_file *f, const struct nib_tensor_entry *e,
                              struct nib_error *err)
{
    struct nib_shard shard;
    char             text[128];
    NIB_TRY(nib_shard_open(p->src, f->name, &shard, err));
    for (int64_t i = 0; i < shard.n_entries && !f->map; i++)
        if (strcmp(shard.entry[i].name, e->name) == 0)
            f->map = (const unsigned char *)e->data -
                     ((const unsigned char *)shard.entry[i].data - (const unsigned char *)shard.map);
    f->bytes = shard.map_bytes;
    nib_shard_close(&shard);
    char *path = nib_path_join(p->src, f->name);
    f->fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const int number = path ? errno : ENOMEM;
    free(path);
    if (!f->map || f->fd < 0)
        return nib_error_set(err, NIB_E_IO, "cannot open '%s/%s': %s", p->src, f->name,
                             f->map ? nib_errno_text(number, text, sizeof text) : "it has changed meanwhile");
    return NIB_OK;
}

enum nib_status nib_quant_files_open(struct nib_quant_plan *p, struct nib_error *err)
{
    const int64_t n = nib_checkpoint_n_tensors(p->checkpoint);
    int32_t       capacity = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct nib_tensor_entry *e = nib_checkpoint_at(p->checkpoint, i);
        if (p->n_files > 0 && (strcmp(p->file[p->n_files - 1].name, e->file) == 0 || find_file(p, e->file)))
            continue;
        if (p->n_files == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            struct nib_quant_file *grown = realloc(p->file, (size_t)capacity * sizeof *grown);
            if (!grown)
                return nib_error_set(err, NIB_E_MEMORY, "no memory for %" PRId32 " files", capacity);
            p->file = grown;
        }
        struct nib_quant_file *f = &p->file[p->n_files++];
        *f = (struct nib_quant_file){.name = e->file, .fd = -1};
        NIB_TRY(locate(p, f, e, err));
        qsort(p->file, (size_t)p->n_files, sizeof *p->file, name_compare);
    }
    return NIB_OK;
}

struct nib_quant_span nib_quant_span_of(const struct nib_quant_plan *p, const struct nib_tensor_entry *e)
{
    const struct nib_quant_file *f = find_file(p, e->file);
    return (struct nib_quant_span){.file = (int32_t)(f - p->file),
                                   .offset = (uint64_t)((const unsigned char *)e->data - f->map),
                                   .bytes = e->bytes};
}

enum nib_status nib_quant_read(const struct nib_quant_plan *p, const struct nib_quant_span *s, uint64_t offset,
                               void *to, size_t n, struct nib_error *err)
{
    const struct nib_quant_file *f = &p->file[s->file];
    char                         text[128];
    unsigned char               *at = to;
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(f->fd, at + done, n - done, (off_t)(s->offset + offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return nib_error_set(err, NIB_E_IO, "cannot read '%s/%s' at byte %" PRIu64 ": %s", p->src, f->name,
                                 s->offset + offset + done, nib_errno_text(errno, text, sizeof text));
        if (got == 0)
            return nib_error_set(err, NIB_E_IO,
                                 "'%s/%s' ends at byte %" PRIu64 ", its header promised %" PRIu64
                                 ": the file was cut short",
                                 p->src, f->name, s->offset + offset + done, f->bytes);
        done += (size_t)got;
    }
    return NIB_OK;
}

enum nib_status nib_quant_read_f32(const struct nib_quant_plan *p, const struct nib_quant_span *s, float *out,
                                   struct nib_error *err)
{
    return nib_quant_read(p, s, 0, out, sizeof *out, err);
}

/* ---- Matrices ---- */

struct finder {
    const struct nib_quant_plan *p;
    const char                  *base;
    struct nib_error            *err;
};

static const struct nib_tensor_entry *find(const struct finder *f, const char *suffix)
{
    char name[512];
    const int n = snprintf(name, sizeof name, "%s%s", f->base, suffix);
    return n > 0 && (size_t)n < sizeof name ? nib_checkpoint_find(f->p->checkpoint, name) : NULL;
}

static const struct nib_tensor_entry *find_scales(const struct finder *f)
{
    const struct nib_tensor_entry *e = find(f, ".weight_scale");
    if (!e)
        e = find(f, ".scale");
    return e ? e : find(f, ".weight_scale_inv");
}

static bool has_shape(const struct nib_tensor_entry *e, int64_t rows, int64_t cols)
{
    return e->n_dims == 2 && e->shape[0] == rows && e->shape[1] == cols;
}

static enum nib_status wrong(const struct finder *f, const struct nib_tensor_entry *e, const char *why)
{
    return nib_error_set(f->err, NIB_E_FORMAT, "%s: tensor '%s' (%s) %s", e->file, e->name, nib_st_dtype_name(e->dtype),
                         why);
}

static enum nib_status one_f32(const struct finder *f, const struct nib_tensor_entry *e, struct nib_quant_span *out)
{
    if (e->dtype != NIB_ST_F32 || e->bytes != sizeof(float))
        return wrong(f, e, "must be one F32 value");
    *out = nib_quant_span_of(f->p, e);
    return NIB_OK;
}

static enum nib_status find_fp4(const struct finder *f, const struct nib_tensor_entry *w, struct nib_quant_matrix *m)
{
    const struct nib_tensor_entry *s = find_scales(f), *g = find(f, ".weight_scale_2"),
                                  *d = find(f, ".weight_global_scale");
    const struct nib_tensor_entry *input = find(f, ".input_scale"), *input_divisor = find(f, ".input_global_scale");
    m->rows = w->shape[0];
    m->cols = w->shape[1] * 2;
    if (!s)
        return wrong(f, w, "holds FP4 codes, but has no '.weight_scale', '.scale' or '.weight_scale_inv'");
    m->scales = nib_quant_span_of(f->p, s);
    /* By columns: one-byte types alone cannot tell UE8M0 from E4M3. */
    if (m->cols % 16 == 0 && has_shape(s, m->rows, m->cols / 16) &&
        (s->dtype == NIB_ST_F8_E4M3 || s->dtype == NIB_ST_U8)) {
        m->type = NIB_WEIGHT_NVFP4;
        if ((g != NULL) == (d != NULL))
            return wrong(f, w,
                         g ? "has both '.weight_scale_2' and '.weight_global_scale'"
                           : "is NVFP4, but has no global scale beside it: neither "
                             "'.weight_scale_2' nor '.weight_global_scale'");
        m->divisor = d != NULL;
        NIB_TRY(one_f32(f, g ? g : d, &m->global));
        if (input || input_divisor)
            return one_f32(f,
                           m->divisor && input_divisor ? input_divisor
                           : input                     ? input
                                                       : input_divisor,
                           &m->input_scale);
        return NIB_OK;
    }
    m->type = NIB_WEIGHT_MXFP4;
    if (m->cols % 32 != 0 || !has_shape(s, m->rows, m->cols / 32) ||
        (s->dtype != NIB_ST_F8_E8M0 && s->dtype != NIB_ST_U8))
        return wrong(f, s, "fits neither NVFP4 (E4M3, a column for 16 channels) nor MXFP4 (E8M0, a column for 32)");
    return NIB_OK;
}

static enum nib_status find_matrix(const struct finder *f, const struct nib_tensor_entry *w, struct nib_quant_matrix *m)
{
    if (w->n_dims != 2)
        return wrong(f, w, "must have two dimensions");
    m->data = nib_quant_span_of(f->p, w);
    m->rows = w->shape[0];
    m->cols = w->shape[1];
    switch (w->dtype) {
    case NIB_ST_BF16: m->type = NIB_WEIGHT_BF16; return NIB_OK;
    case NIB_ST_F32: m->type = NIB_WEIGHT_F32; return NIB_OK;
    case NIB_ST_U8:
    case NIB_ST_I8: return find_fp4(f, w, m);
    case NIB_ST_F8_E4M3: {
        const struct nib_tensor_entry *s = find_scales(f);
        m->type = NIB_WEIGHT_FP8;
        if (!s)
            return wrong(f, w, "has no scales: none of '.weight_scale', '.scale', '.weight_scale_inv' exists");
        if (!has_shape(s, (m->rows + 127) / 128, (m->cols + 127) / 128) ||
            (s->dtype != NIB_ST_F8_E8M0 && s->dtype != NIB_ST_U8 && s->dtype != NIB_ST_F32))
            return wrong(f, s, "must be E8M0 or F32 with a value for each 128x128 block");
        m->f32_scales = s->dtype == NIB_ST_F32;
        m->scales = nib_quant_span_of(f->p, s);
        return NIB_OK;
    }
    default: return wrong(f, w, "must be BF16, F32, F8_E4M3, or U8/I8 (FP4 codes)");
    }
}

bool nib_quant_matrix_find(const struct nib_quant_plan *p, const char *base, struct nib_quant_matrix *out,
                           enum nib_status *status, struct nib_error *err)
{
    const struct finder f = {.p = p, .base = base, .err = err};
    const struct nib_tensor_entry *w = find(&f, ".weight");
    memset(out, 0, sizeof *out);
    out->data.file = out->scales.file = out->global.file = out->input_scale.file = -1;
    *status = NIB_OK;
    if (!w)
        w = find(&f, ".weight_packed");
    if (!w)
        return false;
    *status = find_matrix(&f, w, out);
    return *status == NIB_OK;
}
