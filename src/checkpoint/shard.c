/* Mapping one safetensors file and checking its header: 8 bytes of length, JSON, data. Tensor data is not touched. */
#include "checkpoint/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/json_file.h"

/* What the checks below need to know; `path` is for messages. */
struct header {
    const char *path;
    const uint8_t *data;
    uint64_t data_bytes;
    struct nib_error *err;
};

/* A tensor's place, sorted to find holes and overlaps. */
struct span {
    uint64_t begin, end;
    const char *name;
};

static int span_compare(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Tensors in order of offset must follow each other without gap and end where the file ends. */
static enum nib_status check_coverage(const struct header *h, struct span *span, int64_t n)
{
    uint64_t end = 0;
    if (n > 0)
        qsort(span, (size_t)n, sizeof *span, span_compare);
    for (int64_t i = 0; i < n; i++) {
        if (span[i].begin < end) {
            return nib_error_set(h->err, NIB_E_FORMAT,
                                 "%s: tensors '%.200s' (until byte %" PRIu64 ") and '%.200s' (from byte %" PRIu64
                                 ") overlap",
                                 h->path, span[i - 1].name, end, span[i].name, span[i].begin);
        }
        if (span[i].begin > end) {
            return nib_error_set(h->err, NIB_E_FORMAT,
                                 "%s: a hole of %" PRIu64 " bytes before tensor '%.200s', wanted none", h->path,
                                 span[i].begin - end, span[i].name);
        }
        end = span[i].end;
    }
    if (end != h->data_bytes) {
        return nib_error_set(h->err, NIB_E_FORMAT, "%s: %" PRIu64 " bytes behind the last tensor, wanted none", h->path,
                             h->data_bytes - end);
    }
    return NIB_OK;
}

static enum nib_status read_dtype(const struct header *h, const char *name, const json_t *v, enum nib_st_dtype *out)
{
    if (!json_is_string(v)) {
        return nib_error_set(h->err, NIB_E_FORMAT, "%s: tensor '%.200s': dtype is %s, wanted a string", h->path, name,
                             nib_json_type_name(v));
    }
    if (!nib_st_dtype_find(json_string_value(v), out)) {
        return nib_error_set(
            h->err, NIB_E_UNSUPPORTED,
            "%s: tensor '%.200s': unknown dtype '%.40s', wanted BOOL, U8, I8, F8_E4M3, F8_E5M2, F8_E8M0, "
            "I16, U16, F16, BF16, I32, U32, F32, I64, U64 or F64",
            h->path, name, json_string_value(v));
    }
    return NIB_OK;
}

/* An array of n_min to n_max integers that are not negative. */
static enum nib_status read_integers(const struct header *h, const char *name, const char *key, const json_t *v,
                                     int32_t n_min, int32_t n_max, int64_t *out, int32_t *n)
{
    if (!json_is_array(v)) {
        return nib_error_set(h->err, NIB_E_FORMAT, "%s: tensor '%.200s': %s is %s, wanted an array", h->path, name, key,
                             nib_json_type_name(v));
    }
    if (json_array_size(v) < (size_t)n_min || json_array_size(v) > (size_t)n_max) {
        return nib_error_set(h->err, NIB_E_FORMAT, "%s: tensor '%.200s': %s has %zu entries, wanted %d to %d", h->path,
                             name, key, json_array_size(v), n_min, n_max);
    }
    *n = (int32_t)json_array_size(v);
    for (int32_t i = 0; i < *n; i++) {
        const json_t *x = json_array_get(v, (size_t)i);
        if (!json_is_integer(x)) {
            return nib_error_set(h->err, NIB_E_FORMAT, "%s: tensor '%.200s': %s[%d] is %s, wanted an integer", h->path,
                                 name, key, i, nib_json_type_name(x));
        }
        out[i] = json_integer_value(x);
        if (out[i] < 0) {
            return nib_error_set(h->err, NIB_E_FORMAT, "%s: tensor '%.200s': %s[%d] is %" PRId64 ", wanted 0 or more",
                                 h->path, name, key, i, out[i]);
        }
    }
    return NIB_OK;
}

static enum nib_status read_entry(const struct header *h, const char *name, const json_t *v, struct nib_tensor_entry *e,
                                  struct span *span)
{
    int64_t offsets[2];
    int32_t n_offsets;
    if (!json_is_object(v)) {
        return nib_error_set(h->err, NIB_E_FORMAT, "%s: tensor '%.200s' is %s, wanted an object", h->path, name,
                             nib_json_type_name(v));
    }
    if (name[0] == 0)
        return nib_error_set(h->err, NIB_E_FORMAT, "%s: a tensor has an empty name", h->path);
    NIB_TRY(read_dtype(h, name, json_object_get(v, "dtype"), &e->dtype));
    NIB_TRY(read_integers(h, name, "shape", json_object_get(v, "shape"), 0, NIB_ST_DIMS_MAX, e->shape, &e->n_dims));
    NIB_TRY(read_integers(h, name, "data_offsets", json_object_get(v, "data_offsets"), 2, 2, offsets, &n_offsets));
    if (!nib_st_tensor_bytes(e->dtype, e->n_dims, e->shape, &e->bytes)) {
        return nib_error_set(h->err, NIB_E_FORMAT,
                             "%s: tensor '%.200s': the sizes of its shape multiply to more than 2^64", h->path, name);
    }
    span->begin = (uint64_t)offsets[0];
    span->end = (uint64_t)offsets[1];
    if (span->begin > span->end || span->end > h->data_bytes) {
        return nib_error_set(h->err, NIB_E_FORMAT,
                             "%s: tensor '%.200s': bytes %" PRIu64 "..%" PRIu64
                             " lie outside the data section of %" PRIu64 " bytes (a truncated file?)",
                             h->path, name, span->begin, span->end, h->data_bytes);
    }
    if (span->end - span->begin != e->bytes) {
        return nib_error_set(h->err, NIB_E_FORMAT,
                             "%s: tensor '%.200s': shape and dtype %s make %" PRIu64
                             " bytes, but data_offsets span %" PRIu64,
                             h->path, name, nib_st_dtype_name(e->dtype), e->bytes, span->end - span->begin);
    }
    e->data = h->data + span->begin;
    return NIB_OK;
}

static enum nib_status check_metadata(const struct header *h, const json_t *v)
{
    const char *key;
    json_t *x;
    if (!json_is_object(v)) {
        return nib_error_set(h->err, NIB_E_FORMAT, "%s: __metadata__ is %s, wanted an object of strings", h->path,
                             nib_json_type_name(v));
    }
    json_object_foreach((json_t *)v, key, x)
    {
        if (!json_is_string(x)) {
            return nib_error_set(h->err, NIB_E_FORMAT, "%s: __metadata__ '%.200s' is %s, wanted a string", h->path, key,
                                 nib_json_type_name(x));
        }
    }
    return NIB_OK;
}

/* All tensors of the header into s->entry. What was built before a failure is released by the shard's close. */
static enum nib_status read_entries(const struct header *h, json_t *root, struct nib_shard *s)
{
    enum nib_status status = NIB_OK;
    size_t n = json_object_size(root);
    s->entry = calloc(n + 1, sizeof *s->entry);
    struct span *span = calloc(n + 1, sizeof *span);
    const char *key;
    json_t *v;
    if (!s->entry || !span) {
        status = nib_error_set(h->err, NIB_E_MEMORY, "%s: no memory for %zu tensors", h->path, n);
        goto end;
    }
    json_object_foreach(root, key, v)
    {
        if (strcmp(key, "__metadata__") == 0) {
            status = check_metadata(h, v);
        } else {
            struct nib_tensor_entry *e = &s->entry[s->n_entries];
            status = read_entry(h, key, v, e, &span[s->n_entries]);
            e->file = s->name;
            e->name = status == NIB_OK ? strdup(key) : NULL;
            if (status == NIB_OK && !e->name)
                status = nib_error_set(h->err, NIB_E_MEMORY, "%s: no memory for a name", h->path);
            if (status == NIB_OK)
                span[s->n_entries++].name = e->name;
        }
        if (status != NIB_OK)
            goto end;
    }
    status = check_coverage(h, span, s->n_entries);
end:
    free(span);
    return status;
}

static enum nib_status read_header(struct nib_shard *s, const char *path, struct nib_error *err)
{
    const uint8_t *bytes = s->map;
    uint64_t header_bytes = 0;
    for (int32_t i = 0; i < 8; i++)
        header_bytes |= (uint64_t)bytes[i] << (8 * i);
    uint64_t rest = s->map_bytes - 8;
    if (header_bytes < 2 || header_bytes > rest || header_bytes > NIB_SHARD_HEADER_MAX) {
        return nib_error_set(err, NIB_E_FORMAT,
                             "%s: header length is %" PRIu64 ", wanted 2 to %" PRIu64
                             " (a truncated file, or not safetensors)",
                             path, header_bytes, rest < NIB_SHARD_HEADER_MAX ? rest : NIB_SHARD_HEADER_MAX);
    }
    const char *text = (const char *)bytes + 8;
    if (text[0] != '{')
        return nib_error_set(err, NIB_E_FORMAT, "%s: the header begins with byte 0x%02x, wanted '{'", path, bytes[8]);
    struct header h = { .path = path, .data = bytes + 8 + header_bytes, .data_bytes = rest - header_bytes, .err = err };
    json_t *root;
    NIB_TRY(nib_json_parse(text, (size_t)header_bytes, path, &root, err));
    enum nib_status status = read_entries(&h, root, s);
    json_decref(root);
    return status;
}

/* Map the file; the descriptor is not kept. */
static enum nib_status map_file(struct nib_shard *s, const char *path, const char *label, struct nib_error *err)
{
    char text[128];
    enum nib_status status = NIB_OK;
    struct stat st;
    /* Non-blocking, so that a FIFO under this name is refused rather than waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return nib_error_set(err, NIB_E_IO, "cannot open '%s': %s", label, nib_errno_text(errno, text, sizeof text));
    }
    if (fstat(fd, &st) != 0) {
        status = nib_error_set(err, NIB_E_IO, "cannot read '%s': %s", label, nib_errno_text(errno, text, sizeof text));
    } else if (!S_ISREG(st.st_mode)) {
        status = nib_error_set(err, NIB_E_IO, "'%s' is not a regular file", label);
    } else if (st.st_size < 8) {
        status =
            nib_error_set(err, NIB_E_FORMAT, "%s: %lld bytes long, wanted at least 8 (the download may be incomplete)",
                          label, (long long)st.st_size);
    } else {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            status =
                nib_error_set(err, NIB_E_IO, "cannot map '%s': %s", label, nib_errno_text(errno, text, sizeof text));
        } else {
            s->map = map;
            s->map_bytes = (size_t)st.st_size;
        }
    }
    (void)close(fd);
    return status;
}

enum nib_status nib_shard_open(const char *dir, const char *name, struct nib_shard *out, struct nib_error *err)
{
    memset(out, 0, sizeof *out);
    enum nib_status status;
    char *path = nib_path_join(dir, name);
    out->name = strdup(name);
    if (!path || !out->name) {
        status = nib_error_set(err, NIB_E_MEMORY, "no memory to open '%.200s'", name);
    } else {
        /* A very long folder name would push the reason out of the message. */
        const char *label = strlen(path) <= 400 ? path : out->name;
        status = map_file(out, path, label, err);
        if (status == NIB_OK)
            status = read_header(out, label, err);
    }
    free(path);
    if (status != NIB_OK)
        nib_shard_close(out);
    return status;
}

void nib_shard_close(struct nib_shard *s)
{
    for (int64_t i = 0; i < s->n_entries; i++)
        free((char *)s->entry[i].name);
    free(s->entry);
    free(s->name);
    if (s->map)
        (void)munmap(s->map, s->map_bytes);
    memset(s, 0, sizeof *s);
}
