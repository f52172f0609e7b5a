/* Values that no checkpoint may hold: NaN and Inf weights, NaN or signed scales, expert ids out of range. One pass over
 * the data while it is loaded; a block is scanned without branches and searched only when something is wrong in it. */
#include "model/weights_table.h"

#include <inttypes.h>
#include <string.h>

#define SCAN_BYTES ((size_t)4096)

/* Index of the first byte for which (byte & mask) >= limit; -1 if none. */
static int64_t find_byte(const unsigned char *p, size_t n, unsigned char mask, unsigned char limit)
{
    for (size_t start = 0; start < n; start += SCAN_BYTES) {
        const size_t end = n - start < SCAN_BYTES ? n : start + SCAN_BYTES;
        unsigned char bad = 0;
        for (size_t i = start; i < end; i++)
            bad |= (unsigned char)((p[i] & mask) >= limit);
        for (size_t i = start; bad && i < end; i++)
            if ((p[i] & mask) >= limit)
                return (int64_t)i;
    }
    return -1;
}

/* Index of the first non-finite value; high 16 bits of a little-endian fp32, or a bf16, show it. */
static int64_t find_nonfinite(const unsigned char *p, size_t n, size_t item)
{
    for (size_t start = 0; start < n; start += SCAN_BYTES) {
        const size_t end = n - start < SCAN_BYTES ? n : start + SCAN_BYTES;
        unsigned bad = 0;
        for (size_t i = start; i < end; i++) {
            const unsigned char *top = p + i * item + item - 2;
            bad |= (unsigned)((top[0] | top[1] << 8) & 0x7f80) == 0x7f80;
        }
        for (size_t i = start; bad && i < end; i++) {
            const unsigned char *top = p + i * item + item - 2;
            if (((top[0] | top[1] << 8) & 0x7f80) == 0x7f80)
                return (int64_t)i;
        }
    }
    return -1;
}

static enum nib_status bad_value(const struct nib_source *s, const char *name, const char *what, int64_t at, struct nib_error *err)
{
    return nib_error_set(err, NIB_E_FORMAT, "%s: tensor '%s' holds %s at element %" PRId64, s->entry->file, name, what,
                         at);
}

static enum nib_status check_matrix(const struct nib_source *s, const struct nib_weight_part *p, const char *name,
                                    struct nib_error *err)
{
    const size_t rows = (size_t)s->n_out, cols = (size_t)s->n_in;
    int64_t at = -1;
    switch (s->type) {
    case NIB_WEIGHT_F32:
        at = find_nonfinite(p->data, rows * cols, 4);
        return at < 0 ? NIB_OK : bad_value(s, name, "NaN or Inf", at, err);
    case NIB_WEIGHT_BF16:
        at = find_nonfinite(p->data, rows * cols, 2);
        return at < 0 ? NIB_OK : bad_value(s, name, "NaN or Inf", at, err);
    case NIB_WEIGHT_FP8:
        at = find_byte(p->data, rows * cols, 0x7f, 0x7f);
        if (at >= 0)
            return bad_value(s, name, "an E4M3 NaN", at, err);
        at = find_byte(p->scales, (rows + 127) / 128 * ((cols + 127) / 128), 0xff, 0xff);
        return at < 0 ? NIB_OK : bad_value(s, name, "a scale byte 255 (UE8M0 NaN)", at, err);
    case NIB_WEIGHT_MXFP4:
        at = find_byte(p->scales, rows * (cols / 32), 0xff, 0xff);
        return at < 0 ? NIB_OK : bad_value(s, name, "a scale byte 255 (UE8M0 NaN)", at, err);
    case NIB_WEIGHT_NVFP4:
        at = find_byte(p->scales, rows * (cols / 16), 0xff, 0x7f);
        return at < 0 ? NIB_OK : bad_value(s, name, "a block scale that is NaN or negative (UE4M3 byte 0x7F or above)",
                                           at, err);
    }
    return NIB_E_ARGUMENT;
}

static enum nib_status check_ids(const struct nib_source *s, int32_t n_experts, struct nib_error *err)
{
    const size_t n = (size_t)s->n_out * (size_t)s->n_in;
    const bool wide = s->entry->dtype == NIB_ST_I64;
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (wide) {
            memcpy(&id, (const unsigned char *)s->entry->data + i * 8, 8);
        } else {
            int32_t narrow;
            memcpy(&narrow, (const unsigned char *)s->entry->data + i * 4, 4);
            id = narrow;
        }
        if (id < 0 || id >= n_experts)
            return nib_error_set(err, NIB_E_FORMAT,
                                 "%s: tensor '%s' names expert %" PRId64 " for token %zu, wanted 0 to %" PRId32, s->entry->file,
                                 s->name, id, i / (size_t)s->n_in, n_experts - 1);
    }
    return NIB_OK;
}

enum nib_status nib_source_check(const struct nib_source *s, const struct nib_config *c, struct nib_error *err)
{
    int64_t at;
    switch (s->field->kind) {
    case NIB_FIELD_LINEAR:
    case NIB_FIELD_EXPERTS:
        for (int32_t i = 0; i < s->n_stack; i++)
            NIB_TRY(check_matrix(s, &s->part[i], s->part_name[i], err));
        return NIB_OK;
    case NIB_FIELD_VECTOR:
        at = find_nonfinite(s->entry->data, (size_t)s->n_out * (size_t)s->n_in, s->entry->dtype == NIB_ST_F32 ? 4 : 2);
        return at < 0 ? NIB_OK : bad_value(s, s->name, "NaN or Inf", at, err);
    case NIB_FIELD_IDS: return check_ids(s, c->n_experts, err);
    }
    return NIB_E_ARGUMENT;
}
