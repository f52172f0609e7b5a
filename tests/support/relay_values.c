/* Decoding and exact re-encoding, straight from the formats' definitions. */
#include "support/relay_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/writer.h"

static const double e2m1_values[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 };

void *relay_alloc(size_t n)
{
    void *p = calloc(n ? n : 1, 1);
    if (!p) {
        fprintf(stderr, "relay: no memory for %zu bytes\n", n);
        exit(1);
    }
    return p;
}

void *relay_items_add(struct relay_items *l, const char *name, enum nib_st_dtype dtype, int32_t n_dims,
                      const int64_t *shape)
{
    if (l->n == l->room) {
        int64_t room = l->room ? 2 * l->room : 256;
        struct relay_item *grown = relay_alloc((size_t)room * sizeof *grown);
        if (l->n > 0)
            memcpy(grown, l->item, (size_t)l->n * sizeof *grown);
        free(l->item);
        l->item = grown;
        l->room = room;
    }
    struct relay_item *it = &l->item[l->n++];
    it->name = relay_alloc(strlen(name) + 1);
    memcpy(it->name, name, strlen(name) + 1);
    it->dtype = dtype;
    it->n_dims = n_dims;
    for (int32_t i = 0; i < n_dims; i++)
        it->shape[i] = shape[i];
    (void)nib_st_tensor_bytes(dtype, n_dims, shape, &it->bytes);
    it->data = relay_alloc((size_t)it->bytes);
    return it->data;
}

void relay_items_free(struct relay_items *l)
{
    for (int64_t i = 0; i < l->n; i++) {
        free(l->item[i].name);
        free(l->item[i].data);
    }
    free(l->item);
    memset(l, 0, sizeof *l);
}

static const struct nib_tensor_entry *find2(const struct nib_checkpoint *c, const char *base, const char *suffix)
{
    char name[512];
    (void)snprintf(name, sizeof name, "%s%s", base, suffix);
    return nib_checkpoint_find(c, name);
}

bool relay_linear_find(const struct nib_checkpoint *c, const char *base, struct relay_linear *out)
{
    static const char *const suffixes[] = { ".scale", ".weight_scale_inv", ".weight_scale" };
    memset(out, 0, sizeof *out);
    out->weight = find2(c, base, ".weight");
    if (!out->weight)
        return false;
    for (size_t i = 0; i < 3 && !out->scale; i++)
        out->scale = find2(c, base, suffixes[i]);
    out->scale_2 = find2(c, base, ".weight_scale_2");
    if (!out->scale || out->weight->n_dims != 2)
        return true;
    bool packed = out->weight->dtype == NIB_ST_U8 || out->weight->dtype == NIB_ST_I8;
    out->rows = out->weight->shape[0];
    out->cols = out->weight->shape[1] * (packed ? 2 : 1);
    if (!packed)
        out->format = RELAY_FP8;
    else
        out->format = out->scale_2 ? RELAY_NVFP4 : RELAY_MXFP4;
    return true;
}

static double e4m3(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    if ((b & 0x7f) == 0x7f)
        return NAN;
    return b & 0x80 ? -v : v;
}

static double e8m0(uint8_t b)
{
    return b == 255 ? NAN : ldexp(1, b - 127);
}

static int code_at(const struct relay_linear *w, int64_t row, int64_t col)
{
    uint8_t byte = ((const uint8_t *)w->weight->data)[row * (w->cols / 2) + col / 2];
    return col % 2 ? byte >> 4 : byte & 15;
}

double *relay_decode(const struct relay_linear *w, struct nib_error *err)
{
    double *out = relay_alloc((size_t)(w->rows * w->cols) * sizeof *out);
    const uint8_t *weight = w->weight->data, *scale = w->scale->data;
    int64_t block = w->format == RELAY_NVFP4 ? 16 : w->format == RELAY_MXFP4 ? 32 : 128;
    int64_t n_scale_cols = (w->cols + block - 1) / block;
    float g = 1;
    if (w->format == RELAY_NVFP4)
        memcpy(&g, w->scale_2->data, sizeof g);
    for (int64_t i = 0; i < w->rows; i++) {
        for (int64_t k = 0; k < w->cols; k++) {
            uint8_t s = scale[(w->format == RELAY_FP8 ? i / 128 : i) * n_scale_cols + k / block];
            double factor = w->format == RELAY_NVFP4 ? e4m3(s) * (double)g : e8m0(s);
            double v = w->format == RELAY_FP8 ? e4m3(weight[i * w->cols + k]) : e2m1_values[code_at(w, i, k)];
            out[i * w->cols + k] = v * factor;
            if (isnan(v * factor)) {
                (void)nib_error_set(err, NIB_E_FORMAT, "%s: a NaN code or scale", w->weight->name);
                free(out);
                return NULL;
            }
        }
    }
    return out;
}

enum nib_status relay_to_bf16(const double *x, int64_t n, uint16_t *out, const char *name, struct nib_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        out[i] = (uint16_t)(bits >> 16);
        if ((double)f != x[i] || bits << 16 != 0)
            return nib_error_set(err, NIB_E_FORMAT, "%s: element %lld is %.17g, no BF16 number", name, (long long)i,
                                 x[i]);
    }
    return NIB_OK;
}

static bool zero_codes(const struct relay_linear *w, int64_t row, int64_t col, int64_t n)
{
    for (int64_t k = col; k < col + n; k++) {
        if ((code_at(w, row, k) & 7) != 0)
            return false;
    }
    return true;
}

static uint8_t mx_scale(const struct relay_linear *w, int64_t row, int64_t col)
{
    return ((const uint8_t *)w->scale->data)[row * (w->cols / 32) + col / 32];
}

int32_t relay_mxfp4_k_max(const struct relay_linear *w)
{
    int32_t best = INT32_MIN;
    for (int64_t i = 0; i < w->rows; i++) {
        for (int64_t k = 0; k < w->cols; k += 32) {
            int32_t e = mx_scale(w, i, k) - 127;
            if (e > best && !zero_codes(w, i, k, 32))
                best = e;
        }
    }
    return best;
}

static void *add_named(struct relay_items *l, const char *base, const char *suffix, enum nib_st_dtype dtype,
                       int32_t n_dims, int64_t rows, int64_t cols)
{
    char name[512];
    (void)snprintf(name, sizeof name, "%s%s", base, suffix);
    return relay_items_add(l, name, dtype, n_dims, (int64_t[2]){ rows, cols });
}

/* The codes stay; the block's 2^k becomes 2^(k - k_max + 8) in E4M3, which has the powers 2^-9 to 2^8, and the rest
 * goes into the global scale. */
enum nib_status relay_mxfp4_to_nvfp4(const struct relay_linear *w, int32_t k_max, const char *base,
                                     struct relay_items *out, struct nib_error *err)
{
    if (k_max == INT32_MIN)
        k_max = 0;
    float g = ldexpf(1, k_max - 8), input = 1.0f / 2688;
    memcpy(add_named(out, base, ".weight", NIB_ST_U8, 2, w->rows, w->cols / 2), w->weight->data, w->weight->bytes);
    uint8_t *scale = add_named(out, base, ".weight_scale", NIB_ST_F8_E4M3, 2, w->rows, w->cols / 16);
    memcpy(add_named(out, base, ".weight_scale_2", NIB_ST_F32, 0, 0, 0), &g, sizeof g);
    memcpy(add_named(out, base, ".input_scale", NIB_ST_F32, 0, 0, 0), &input, sizeof input);
    for (int64_t i = 0; i < w->rows; i++) {
        for (int64_t k = 0; k < w->cols; k += 16) {
            int32_t e = mx_scale(w, i, k) - 127 - k_max + 8;
            uint8_t *s = &scale[i * (w->cols / 16) + k / 16];
            if (zero_codes(w, i, k, 16))
                *s = 0;
            else if (e < -9 || e > 8)
                return nib_error_set(err, NIB_E_FORMAT, "%s: scales span more than 17 binades", base);
            else
                *s = (uint8_t)(e >= -6 ? (e + 7) << 3 : 1 << (e + 9));
        }
    }
    return NIB_OK;
}

/* The E4M3 code of x, -1 if there is none. */
static int e4m3_code(double x)
{
    int e, sign = signbit(x) ? 0x80 : 0;
    if (x == 0)
        return sign;
    double m = frexp(fabs(x), &e) * 2; /* in [1, 2), times 2^(e - 1) */
    e -= 1;
    double fraction = e >= -6 ? (m - 1) * 8 : fabs(x) * 512;
    if (e > 8 || fraction != floor(fraction) || (e == 8 && fraction > 6))
        return -1;
    return sign | (e >= -6 ? (e + 7) << 3 : 0) | (int)fraction;
}

/* One E8M0 scale a block of 128 x 128: the largest inside it / 2^6, since 6 * 2^6 is the largest code that still fits.
 */
enum nib_status relay_mxfp4_to_fp8(const struct relay_linear *w, const char *base, struct relay_items *out,
                                   struct nib_error *err)
{
    int64_t n_block_cols = (w->cols + 127) / 128, n_block_rows = (w->rows + 127) / 128;
    uint8_t *code = add_named(out, base, ".weight", NIB_ST_F8_E4M3, 2, w->rows, w->cols);
    uint8_t *scale = add_named(out, base, ".scale", NIB_ST_F8_E8M0, 2, n_block_rows, n_block_cols);
    for (int64_t i = 0; i < w->rows; i++) {
        for (int64_t k = 0; k < w->cols; k += 32) {
            uint8_t *s = &scale[i / 128 * n_block_cols + k / 128];
            if (mx_scale(w, i, k) > *s)
                *s = mx_scale(w, i, k);
        }
    }
    for (int64_t i = 0; i < n_block_rows * n_block_cols; i++) {
        if (scale[i] < 6)
            return nib_error_set(err, NIB_E_FORMAT, "%s: a block's scale is below 2^-121", base);
        scale[i] = (uint8_t)(scale[i] - 6);
    }
    for (int64_t i = 0; i < w->rows; i++) {
        for (int64_t k = 0; k < w->cols; k++) {
            int shift = mx_scale(w, i, k) - scale[i / 128 * n_block_cols + k / 128];
            int c = e4m3_code(ldexp(e2m1_values[code_at(w, i, k)], shift));
            if (c < 0)
                return nib_error_set(err, NIB_E_FORMAT, "%s: scales of a 128 x 128 block span too many binades", base);
            code[i * w->cols + k] = (uint8_t)c;
        }
    }
    return NIB_OK;
}

/* Wide elements first: then every tensor is aligned for its type. */
static int item_compare(const void *a, const void *b)
{
    const struct relay_item *x = a, *y = b;
    int32_t wx = nib_st_dtype_bytes(x->dtype), wy = nib_st_dtype_bytes(y->dtype);
    return wx != wy ? (wx > wy ? -1 : 1) : strcmp(x->name, y->name);
}

/* Files that the writer makes of this limit; it fills them in order. */
static int64_t count_shards(const struct relay_items *l, uint64_t limit)
{
    int64_t n = 1;
    uint64_t used = 0;
    for (int64_t i = 0; i < l->n; i++) {
        if (used > 0 && used + l->item[i].bytes > limit) {
            n++;
            used = 0;
        }
        used += l->item[i].bytes;
    }
    return n;
}

enum nib_status relay_items_write(struct relay_items *l, const char *dst, int64_t n_shards, struct nib_error *err)
{
    uint64_t limit = 0;
    qsort(l->item, (size_t)l->n, sizeof *l->item, item_compare);
    if (n_shards > 0) {
        for (int64_t i = 0; i < l->n; i++)
            limit += l->item[i].bytes;
        limit /= (uint64_t)n_shards;
        while (count_shards(l, limit) > n_shards)
            limit += limit / 256 + 1;
    }
    struct nib_writer_tensor *t = relay_alloc((size_t)l->n * sizeof *t);
    for (int64_t i = 0; i < l->n; i++) {
        t[i] = (struct nib_writer_tensor){ .name = l->item[i].name,
                                           .dtype = l->item[i].dtype,
                                           .n_dims = l->item[i].n_dims };
        memcpy(t[i].shape, l->item[i].shape, sizeof t[i].shape);
    }
    struct nib_writer *w;
    enum nib_status status = nib_writer_open(dst, t, l->n, limit, &w, err);
    for (int64_t i = 0; i < l->n && status == NIB_OK; i++)
        status = nib_writer_append(w, l->item[i].data, (size_t)l->item[i].bytes, err);
    if (status == NIB_OK)
        status = nib_writer_finish(w, err);
    nib_writer_close(w);
    free(t);
    return status;
}
