/* A linear's format is decided by its own tensors, never by the config: by the dtype, by the suffixes that exist, and by the
 * scales' column count (one-byte dtypes alone cannot tell E4M3 from UE8M0, or codes from values).
 *
 *   .weight BF16 or F32                                                              plain
 *   .weight F8_E4M3   .scale, .weight_scale or .weight_scale_inv  [rows/128, cols/128]   FP8
 *   .weight U8 or I8  the same                                    [rows, cols/32]        MXFP4
 *   .weight U8 or I8  the same, and .weight_scale_2               [rows, cols/16]        NVFP4, global scale as it is
 *   .weight_packed U8 .weight_scale, and .weight_global_scale     [rows, cols/16]        NVFP4, global scale inverted */
#include "model/weights_formats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const k_scale_suffixes[] = {".weight_scale", ".scale", ".weight_scale_inv"};
static const char *const k_global_suffixes[] = {".weight_scale_2", ".weight_global_scale"};
enum { N_SCALE_SUFFIXES = 3, N_GLOBAL_SUFFIXES = 2 };

const char *nib_shape_text(const struct nib_tensor_entry *e, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = '\0';
    for (int32_t i = 0; i < e->n_dims && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s%" PRId64, i ? ", " : "[", e->shape[i]);
    if (used < size)
        (void)snprintf(buf + used, size - used, e->n_dims ? "]" : "[]");
    return buf;
}

enum nib_status nib_want_shape(const struct nib_tensor_entry *e, int64_t rows, int64_t cols, struct nib_error *err)
{
    if (e->n_dims == 2 && e->shape[0] == rows && e->shape[1] == cols)
        return NIB_OK;
    char found[96];
    return nib_error_set(err, NIB_E_FORMAT,
                         "%s: tensor '%s' has shape %s, wanted [%" PRId64 ", %" PRId64 "] by config.json", e->file, e->name,
                         nib_shape_text(e, found, sizeof found), rows, cols);
}

enum nib_status nib_wrong_dtype(const struct nib_tensor_entry *e, const char *wanted, struct nib_error *err)
{
    return nib_error_set(err, NIB_E_UNSUPPORTED, "%s: tensor '%s' has dtype %s, wanted %s", e->file, e->name,
                         nib_st_dtype_name(e->dtype), wanted);
}

static const struct nib_tensor_entry *find(const struct nib_matrix_reader *r, const char *base, const char *suffix)
{
    char name[512];
    const int n = snprintf(name, sizeof name, "%s%s", base, suffix);
    if (n < 0 || (size_t)n >= sizeof name)
        return NULL;
    return nib_checkpoint_find(r->ck, name);
}

bool nib_matrix_exists(const struct nib_matrix_reader *r, const char *base)
{
    return find(r, base, ".weight") || find(r, base, ".weight_packed");
}

/* The one tensor with a suffix of the list; two of them would leave open which counts. */
static enum nib_status find_one(struct nib_matrix_reader *r, const char *base, const char *const *suffix, int32_t n,
                                const struct nib_tensor_entry **out)
{
    *out = NULL;
    for (int32_t i = 0; i < n; i++) {
        const struct nib_tensor_entry *e = find(r, base, suffix[i]);
        if (e && *out)
            return nib_error_set(r->err, NIB_E_FORMAT, "%s: tensors '%s' and '%s' both exist, wanted one of them",
                                 e->file, (*out)->name, e->name);
        if (e)
            *out = e;
    }
    return NIB_OK;
}

static enum nib_status no_scales(const struct nib_matrix_reader *r, const struct nib_tensor_entry *w, const char *base)
{
    return nib_error_set(r->err, NIB_E_FORMAT,
                         "%s: tensor '%s' is %s but has no scales: none of '%s.weight_scale', '.scale', '.weight_scale_inv' exists",
                         w->file, w->name, nib_st_dtype_name(w->dtype), base);
}

/* Parts of other schemes that change what a matrix does: leaving one out would run without an error and compute
 * nonsense. */
static enum nib_status refuse_unknown_parts(const struct nib_matrix_reader *r, const char *base)
{
    static const char *const suffixes[] = {".pre_quant_scale", ".weight_zero_point", ".weight_g_idx"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        const struct nib_tensor_entry *e = find(r, base, suffixes[i]);
        if (e)
            return nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: tensor '%s' belongs to a quantisation that is not supported, wanted "
                                 "BF16, F32, FP8, MXFP4 or NVFP4 without such a part", e->file, e->name);
    }
    return NIB_OK;
}

/* Multiplier or divisor is known by the name. The value must bear it out: weights' amax / 2688 is far below 1, its
 * inverse far above, so a value on the other side was written under the wrong name. */
static enum nib_status read_global(struct nib_matrix_reader *r, const struct nib_tensor_entry *w, const char *base, float *out)
{
    const struct nib_tensor_entry *g = NULL;
    const bool packed = strcmp(w->name + strlen(base), ".weight_packed") == 0;
    const char *wanted = k_global_suffixes[packed];
    NIB_TRY(find_one(r, base, k_global_suffixes, N_GLOBAL_SUFFIXES, &g));
    if (!g || strcmp(g->name + strlen(base), wanted) != 0)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: NVFP4 tensor '%s' has %s%s%s, wanted '%s%s'", w->file, w->name,
                             g ? "'" : "no ", g ? g->name : "global scale", g ? "'" : "", base, wanted);
    if (g->dtype != NIB_ST_F32)
        return nib_wrong_dtype(g, "F32", r->err);
    if (g->bytes != sizeof *out)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: tensor '%s' holds %" PRIu64 " bytes, wanted one F32 value",
                             g->file, g->name, g->bytes);
    float v;
    memcpy(&v, g->data, sizeof v);
    *out = packed ? 1.0f / v : v;
    if (!(v > 0.0f) || !isfinite(v) || !isfinite(*out))
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: tensor '%s' is %g, wanted a finite global scale above 0",
                             g->file, g->name, (double)v);
    if (packed ? v < 1.0f : v > 1.0f)
        return nib_error_set(r->err, NIB_E_FORMAT,
                             "%s: tensor '%s' is %g, wanted %s: by its name codes are %s it, and this value looks like the inverse", g->file,
                             g->name, (double)v, packed ? "at least 1" : "at most 1", packed ? "divided by" : "multiplied by");
    r->n_tensors_used++;
    return NIB_OK;
}

/* Two codes a byte: NVFP4 or MXFP4, told apart by how many scale columns there are. */
static enum nib_status resolve_fp4(struct nib_matrix_reader *r, const char *base, const struct nib_tensor_entry *s,
                                   int64_t rows, int64_t cols, struct nib_matrix *m)
{
    const struct nib_tensor_entry *w = m->entry;
    if (cols % 16 != 0)
        return nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: tensor '%s' has %" PRId64 " input channels, FP4 wants a multiple of 16",
                             w->file, w->name, cols);
    NIB_TRY(nib_want_shape(w, rows, cols / 2, r->err));
    const bool packed = strcmp(w->name + strlen(base), ".weight_packed") == 0;
    if (packed || (s->n_dims == 2 && s->shape[1] == cols / 16)) {
        if (s->dtype != NIB_ST_F8_E4M3 && s->dtype != NIB_ST_U8)
            return nib_wrong_dtype(s, "F8_E4M3 (NVFP4 block scales)", r->err);
        m->type = NIB_WEIGHT_NVFP4;
        NIB_TRY(nib_want_shape(s, rows, cols / 16, r->err));
        NIB_TRY(read_global(r, w, base, &m->part.global_scale));
        m->bytes += sizeof m->part.global_scale;
    } else {
        if (s->dtype != NIB_ST_F8_E8M0 && s->dtype != NIB_ST_U8)
            return nib_wrong_dtype(s, "F8_E8M0 (MXFP4 block scales) or F8_E4M3 with a column for each 16 channels (NVFP4)", r->err);
        if (cols % 32 != 0)
            return nib_error_set(r->err, NIB_E_UNSUPPORTED,
                                 "%s: tensor '%s' has %" PRId64 " input channels, MXFP4 wants a multiple of 32", w->file, w->name, cols);
        m->type = NIB_WEIGHT_MXFP4;
        NIB_TRY(nib_want_shape(s, rows, cols / 32, r->err));
    }
    m->part.scales = s->data;
    return NIB_OK;
}

/* FP8 block scales that are stored as numbers, as bytes of exponents; only powers of two are such. */
static enum nib_status exponent_bytes(struct nib_matrix_reader *r, const struct nib_tensor_entry *s, const unsigned char **out)
{
    const size_t item = (size_t)nib_st_dtype_bytes(s->dtype), n = (size_t)s->bytes / item;
    unsigned char *bytes = nib_arena_alloc(r->arena, n);
    if (!bytes)
        return nib_error_set(r->err, NIB_E_MEMORY, "no memory for %zu scales of tensor '%s'", n, s->name);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        int exponent = 0;
        float v;
        /* The high half of a little-endian fp32 is a bf16. */
        memcpy((unsigned char *)&bits + sizeof bits - item, (const unsigned char *)s->data + i * item, item);
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v) || frexpf(v, &exponent) != 0.5f || exponent - 1 < -127)
            return nib_error_set(r->err, NIB_E_UNSUPPORTED, "%s: tensor '%s' holds %.9g at element %zu, wanted powers of two from 2^-127",
                                 s->file, s->name, (double)v, i);
        bytes[i] = (unsigned char)(exponent - 1 + 127);
    }
    *out = bytes;
    return NIB_OK;
}

static enum nib_status resolve_fp8(struct nib_matrix_reader *r, const struct nib_tensor_entry *s, int64_t rows,
                                   int64_t cols, struct nib_matrix *m)
{
    const unsigned char *scales = s->data;
    const bool numbers = s->dtype == NIB_ST_F32 || s->dtype == NIB_ST_BF16;
    if (!numbers && s->dtype != NIB_ST_F8_E8M0 && s->dtype != NIB_ST_U8)
        return nib_wrong_dtype(s, "F8_E8M0, or powers of two as F32 or BF16 (128x128 block scales)", r->err);
    NIB_TRY(nib_want_shape(m->entry, rows, cols, r->err));
    NIB_TRY(nib_want_shape(s, (rows + 127) / 128, (cols + 127) / 128, r->err));
    if (numbers)
        NIB_TRY(exponent_bytes(r, s, &scales));
    m->type = NIB_WEIGHT_FP8;
    m->part.scales = scales;
    return NIB_OK;
}

/* Codes or values under ".weight", or codes under ".weight_packed". */
static enum nib_status find_codes(struct nib_matrix_reader *r, const char *base, const struct nib_tensor_entry **out)
{
    static const char *const suffixes[] = {".weight", ".weight_packed"};
    NIB_TRY(find_one(r, base, suffixes, 2, out));
    if (!*out)
        return nib_error_set(r->err, NIB_E_FORMAT, "tensor '%s.weight' is missing", base);
    if (*out == find(r, base, ".weight_packed") && (*out)->dtype != NIB_ST_U8)
        return nib_wrong_dtype(*out, "U8 (two NVFP4 codes a byte; integer codes are not NVFP4)", r->err);
    return refuse_unknown_parts(r, base);
}

enum nib_status nib_matrix_resolve(struct nib_matrix_reader *r, const char *base, int64_t rows, int64_t cols, struct nib_matrix *out)
{
    const struct nib_tensor_entry *w = NULL, *s = NULL, *g = NULL;
    memset(out, 0, sizeof *out);
    NIB_TRY(find_codes(r, base, &w));
    NIB_TRY(find_one(r, base, k_scale_suffixes, N_SCALE_SUFFIXES, &s));
    NIB_TRY(find_one(r, base, k_global_suffixes, N_GLOBAL_SUFFIXES, &g));
    const bool coded = w->dtype == NIB_ST_U8 || w->dtype == NIB_ST_I8, fp8 = w->dtype == NIB_ST_F8_E4M3;
    if (!coded && !fp8 && w->dtype != NIB_ST_BF16 && w->dtype != NIB_ST_F32)
        return nib_wrong_dtype(w, "BF16, F32, F8_E4M3, or U8/I8 (FP4 codes)", r->err);
    if ((coded || fp8) && !s)
        return no_scales(r, w, base);
    out->entry = w;
    out->part.data = w->data;
    out->part.global_scale = 1.0f;
    out->bytes = w->bytes + (s ? s->bytes : 0);
    if (coded)
        NIB_TRY(resolve_fp4(r, base, s, rows, cols, out));
    else if (fp8)
        NIB_TRY(resolve_fp8(r, s, rows, cols, out));
    else
        out->type = w->dtype == NIB_ST_BF16 ? NIB_WEIGHT_BF16 : NIB_WEIGHT_F32;

    const struct nib_tensor_entry *stray = !coded && !fp8 && s ? s : out->type != NIB_WEIGHT_NVFP4 ? g : NULL;
    if (stray)
        return nib_error_set(r->err, NIB_E_FORMAT, "%s: tensor '%s' is %s, which takes no such scales, but '%s' exists",
                             w->file, w->name, coded ? "MXFP4" : nib_st_dtype_name(w->dtype), stray->name);
    r->n_tensors_used += 1 + (s != NULL);
    return coded || fp8 ? NIB_OK : nib_want_shape(w, rows, cols, r->err);
}
