/* The safetensors writer. Headers are known before any data, so each file is written front to back, once. */
#include "checkpoint/writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/json_file.h"

#define INDEX_NAME "model.safetensors.index.json"
/* Data begins at a multiple of this; readers that map files then see large tensors aligned. */
#define DATA_ALIGN 64

struct output {
    char name[64];
    int64_t first, end; /* tensors */
    bool created;       /* NAME.tmp exists */
};

struct nib_writer {
    char *dir;
    struct nib_writer_tensor *tensor; /* names owned */
    uint64_t *bytes;
    int64_t n, next;
    uint64_t done; /* bytes of the next tensor that are written */
    struct output *output;
    int64_t n_outputs, current;
    int fd; /* of the current output, -1 if none is open */
    bool index_created;
};

/* Temporary or final path of an output, NULL without memory. */
static char *output_path(const struct nib_writer *w, const char *name, bool temporary)
{
    char file[72];
    (void)snprintf(file, sizeof file, "%s%s", name, temporary ? ".tmp" : "");
    return nib_path_join(w->dir, file);
}

static enum nib_status io_failed(const struct nib_writer *w, const char *verb, const char *name, int number,
                                 struct nib_error *err)
{
    char text[128];
    return nib_error_set(err, number == ENOMEM ? NIB_E_MEMORY : NIB_E_IO, "cannot %s '%.600s/%s': %s", verb, w->dir,
                         name, nib_errno_text(number, text, sizeof text));
}

/* 0, or the errno that stopped it. */
static int write_all(int fd, const void *data, size_t bytes)
{
    for (const char *p = data; bytes > 0;) {
        ssize_t n = write(fd, p, bytes < ((size_t)1 << 30) ? bytes : (size_t)1 << 30);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        p += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static json_t *tensor_header(const struct nib_writer_tensor *t, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    bool ok = shape != NULL;
    for (int32_t i = 0; i < t->n_dims && ok; i++)
        ok = json_array_append_new(shape, json_integer(t->shape[i])) == 0;
    if (!ok) {
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", nib_st_dtype_name(t->dtype), "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)end);
}

/* Length and JSON, padded with spaces; NULL without memory. */
static char *build_header(const struct nib_writer *w, const struct output *o, size_t *n)
{
    uint64_t offset = 0;
    char *out = NULL;
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool ok = root != NULL;
    for (int64_t i = o->first; i < o->end && ok; i++) {
        ok = json_object_set_new(root, w->tensor[i].name, tensor_header(&w->tensor[i], offset, offset + w->bytes[i])) ==
             0;
        offset += w->bytes[i];
    }
    char *text = ok ? nib_json_dump(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text) {
        size_t text_bytes = strlen(text);
        *n = (8 + text_bytes + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
        out = malloc(*n);
        if (out) {
            for (int32_t i = 0; i < 8; i++)
                out[i] = (char)(unsigned char)((uint64_t)(*n - 8) >> (8 * i));
            memcpy(out + 8, text, text_bytes);
            memset(out + 8 + text_bytes, ' ', *n - 8 - text_bytes);
        }
    }
    free(text);
    return out;
}

/* Create NAME.tmp holding data so far; *fd stays open. *created tells close what to remove. */
static enum nib_status create_file(struct nib_writer *w, const char *name, const char *data, size_t n, bool *created,
                                   int *fd, struct nib_error *err)
{
    char *path = output_path(w, name, true);
    *fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    int number = path ? errno : ENOMEM;
    free(path);
    if (*fd < 0)
        return io_failed(w, "create", name, number, err);
    *created = true;
    number = write_all(*fd, data, n);
    return number ? io_failed(w, "write", name, number, err) : NIB_OK;
}

/* Flush: a full disk may show only here. */
static enum nib_status close_file(struct nib_writer *w, const char *name, int *fd, struct nib_error *err)
{
    int number = fsync(*fd) != 0 ? errno : 0;
    if (close(*fd) != 0 && number == 0)
        number = errno;
    *fd = -1;
    return number ? io_failed(w, "write", name, number, err) : NIB_OK;
}

/* Close outputs that are complete and open those whose turn it is, those without any data included. */
static enum nib_status advance(struct nib_writer *w, struct nib_error *err)
{
    while (w->next < w->n && w->done == w->bytes[w->next]) {
        w->next++;
        w->done = 0;
        while (w->next < w->n && w->bytes[w->next] == 0)
            w->next++;
    }
    while (w->current < w->n_outputs) {
        struct output *o = &w->output[w->current];
        if (!o->created) {
            size_t n = 0;
            char *header = build_header(w, o, &n);
            if (!header)
                return nib_error_set(err, NIB_E_MEMORY, "no memory for the header of '%s'", o->name);
            enum nib_status status = create_file(w, o->name, header, n, &o->created, &w->fd, err);
            free(header);
            NIB_TRY(status);
        }
        if (w->next < o->end)
            return NIB_OK;
        NIB_TRY(close_file(w, o->name, &w->fd, err));
        w->current++;
    }
    return NIB_OK;
}

static enum nib_status plan_outputs(struct nib_writer *w, uint64_t shard_bytes, struct nib_error *err)
{
    uint64_t used = 0;
    w->output = calloc((size_t)w->n + 1, sizeof *w->output);
    if (!w->output)
        return nib_error_set(err, NIB_E_MEMORY, "no memory to plan %lld tensors", (long long)w->n);
    w->n_outputs = 1;
    for (int64_t i = 0; i < w->n; i++) {
        struct output *o = &w->output[w->n_outputs - 1];
        if (shard_bytes > 0 && used > 0 && w->bytes[i] > shard_bytes - (used < shard_bytes ? used : shard_bytes)) {
            o = &w->output[w->n_outputs++];
            o->first = i;
            used = 0;
        }
        o->end = i + 1;
        if (!nib_add_u64(used, w->bytes[i], &used) || used > INT64_MAX)
            return nib_error_set(err, NIB_E_ARGUMENT, "tensor '%.200s' makes the file longer than 2^63 bytes",
                                 w->tensor[i].name);
    }
    for (int64_t i = 0; i < w->n_outputs; i++) {
        if (w->n_outputs == 1)
            (void)snprintf(w->output[i].name, sizeof w->output[i].name, "model.safetensors");
        else
            (void)snprintf(w->output[i].name, sizeof w->output[i].name, "model-%05lld-of-%05lld.safetensors",
                           (long long)i + 1, (long long)w->n_outputs);
    }
    return NIB_OK;
}

static enum nib_status copy_tensors(struct nib_writer *w, const struct nib_writer_tensor *tensor, int64_t n,
                                    struct nib_error *err)
{
    json_t *seen = json_object();
    w->tensor = calloc((size_t)n + 1, sizeof *w->tensor);
    w->bytes = calloc((size_t)n + 1, sizeof *w->bytes);
    enum nib_status status = NIB_OK;
    if (!seen || !w->tensor || !w->bytes)
        status = nib_error_set(err, NIB_E_MEMORY, "no memory for %lld tensors", (long long)n);
    for (; w->n < n && status == NIB_OK; w->n++) {
        const struct nib_writer_tensor *t = &tensor[w->n];
        if (t->name[0] == 0 || strcmp(t->name, "__metadata__") == 0) {
            status = nib_error_set(err, NIB_E_ARGUMENT, "tensor %lld: the name '%s' is not allowed", (long long)w->n,
                                   t->name);
        } else if (json_object_get(seen, t->name)) {
            status = nib_error_set(err, NIB_E_ARGUMENT, "tensor '%.200s' is listed twice", t->name);
        } else if (t->n_dims < 0 || t->n_dims > NIB_ST_DIMS_MAX ||
                   !nib_st_tensor_bytes(t->dtype, t->n_dims, t->shape, &w->bytes[w->n])) {
            status = nib_error_set(err, NIB_E_ARGUMENT, "tensor '%.200s': its shape is negative, too long or too large",
                                   t->name);
        } else if (json_object_set_new(seen, t->name, json_true()) != 0) {
            status = nib_error_set(err, NIB_E_ARGUMENT, "tensor '%.200s': the name is not UTF-8", t->name);
        }
        w->tensor[w->n] = *t;
        w->tensor[w->n].name = strdup(t->name);
        if (!w->tensor[w->n].name && status == NIB_OK)
            status = nib_error_set(err, NIB_E_MEMORY, "no memory for a name");
    }
    json_decref(seen);
    return status;
}

/* Old shards or an old index beside the new files would be read together with them. */
static enum nib_status check_folder(const struct nib_writer *w, struct nib_error *err)
{
    DIR *d = opendir(w->dir);
    enum nib_status status = NIB_OK;
    if (!d)
        return io_failed(w, "write into", "", errno, err);
    for (struct dirent *e; status == NIB_OK && (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name);
        if (strcmp(e->d_name, INDEX_NAME) == 0 || (n >= 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0)) {
            status = nib_error_set(err, NIB_E_ARGUMENT,
                                   "'%.600s' already holds '%.255s', wanted a folder without a checkpoint", w->dir,
                                   e->d_name);
        }
    }
    (void)closedir(d);
    return status;
}

enum nib_status nib_writer_open(const char *dir, const struct nib_writer_tensor *tensor, int64_t n,
                                uint64_t shard_bytes, struct nib_writer **out, struct nib_error *err)
{
    *out = NULL;
    struct nib_writer *w = calloc(1, sizeof *w);
    if (!w)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a writer");
    w->fd = -1;
    w->dir = strdup(dir);
    enum nib_status status = w->dir ? copy_tensors(w, tensor, n, err) : nib_error_set(err, NIB_E_MEMORY, "no memory");
    if (status == NIB_OK)
        status = plan_outputs(w, shard_bytes, err);
    if (status == NIB_OK)
        status = check_folder(w, err);
    if (status == NIB_OK) {
        while (w->next < w->n && w->bytes[w->next] == 0)
            w->next++;
        status = advance(w, err);
    }
    if (status == NIB_OK)
        *out = w;
    else
        nib_writer_close(w);
    return status;
}

const struct nib_writer_tensor *nib_writer_next(const struct nib_writer *w)
{
    return w->next < w->n ? &w->tensor[w->next] : NULL;
}

enum nib_status nib_writer_append(struct nib_writer *w, const void *data, size_t bytes, struct nib_error *err)
{
    if (bytes == 0)
        return NIB_OK;
    if (w->next == w->n)
        return nib_error_set(err, NIB_E_ARGUMENT, "%zu bytes behind the last tensor", bytes);
    if (bytes > w->bytes[w->next] - w->done) {
        return nib_error_set(err, NIB_E_ARGUMENT, "tensor '%.200s': %zu bytes given, %" PRIu64 " are left of %" PRIu64,
                             w->tensor[w->next].name, bytes, w->bytes[w->next] - w->done, w->bytes[w->next]);
    }
    int number = write_all(w->fd, data, bytes);
    if (number)
        return io_failed(w, "write", w->output[w->current].name, number, err);
    w->done += bytes;
    return w->done == w->bytes[w->next] ? advance(w, err) : NIB_OK;
}

static enum nib_status write_index(struct nib_writer *w, struct nib_error *err)
{
    uint64_t total = 0;
    json_t *map = json_object();
    bool ok = map != NULL;
    for (int64_t i = 0; i < w->n_outputs; i++) {
        for (int64_t k = w->output[i].first; k < w->output[i].end && ok; k++) {
            ok = json_object_set_new(map, w->tensor[k].name, json_string(w->output[i].name)) == 0;
            total += w->bytes[k];
        }
    }
    json_t *root =
        ok ? json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map) : NULL;
    char *text = root ? nib_json_dump(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    json_decref(map);
    if (!text)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for the index");
    int fd;
    enum nib_status status = create_file(w, INDEX_NAME, text, strlen(text), &w->index_created, &fd, err);
    free(text);
    if (fd >= 0) {
        enum nib_status closed = close_file(w, INDEX_NAME, &fd, status == NIB_OK ? err : NULL);
        status = status == NIB_OK ? closed : status;
    }
    return status;
}

static enum nib_status rename_file(struct nib_writer *w, const char *name, bool *created, struct nib_error *err)
{
    char *from = output_path(w, name, true), *to = output_path(w, name, false);
    int number = !from || !to ? ENOMEM : rename(from, to) != 0 ? errno : 0;
    free(from);
    free(to);
    if (number)
        return io_failed(w, "rename", name, number, err);
    *created = false;
    return NIB_OK;
}

enum nib_status nib_writer_finish(struct nib_writer *w, struct nib_error *err)
{
    if (w->next < w->n) {
        return nib_error_set(err, NIB_E_STATE, "tensor '%.200s' has %" PRIu64 " of %" PRIu64 " bytes",
                             w->tensor[w->next].name, w->done, w->bytes[w->next]);
    }
    if (w->n_outputs > 1)
        NIB_TRY(write_index(w, err));
    for (int64_t i = 0; i < w->n_outputs; i++)
        NIB_TRY(rename_file(w, w->output[i].name, &w->output[i].created, err));
    return w->n_outputs > 1 ? rename_file(w, INDEX_NAME, &w->index_created, err) : NIB_OK;
}

void nib_writer_close(struct nib_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        (void)close(w->fd);
    for (int64_t i = 0; i <= w->n_outputs && w->output; i++) {
        bool index = i == w->n_outputs;
        char *path = (index ? w->index_created : w->output[i].created)
                         ? output_path(w, index ? INDEX_NAME : w->output[i].name, true)
                         : NULL;
        if (path)
            (void)unlink(path);
        free(path);
    }
    for (int64_t i = 0; i < w->n; i++)
        free((char *)w->tensor[i].name);
    free(w->tensor);
    free(w->bytes);
    free(w->output);
    free(w->dir);
    free(w);
}
