/* Sequences in files. A header of 88 bytes, then every part of the state (model/state_parts.h) as its rows and a
 * checksum. All sizes follow from the header's numbers, so nothing in the body is trusted for more than its values.
 * Little-endian, as all that nibble runs on. */
#include "base/file.h"
#include "engine/engine.h"
#include "model/state_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT_VERSION 1
#define N_BUFFER       ((size_t)1 << 18)
/* Bytes of a tensor that go into the fingerprint: enough to tell two trainings of one shape apart. */
#define N_SAMPLE       4096

static const char k_magic[8] = {'N', 'I', 'B', 'S', 'E', 'Q', '\x1a', '\n'};

struct header {
    char     magic[8];
    uint32_t version, header_bytes;
    uint64_t file_bytes; /* for people: what is wanted follows from the rest */
    uint64_t fingerprint;
    int32_t  length, floor;
    int32_t  kv, act_quant, numerics, mtp;
    int32_t  n_rollback, reserved;
    char     backend[16]; /* for people: not checked */
    uint64_t checksum;    /* of all before it */
};
_Static_assert(sizeof(struct header) == 88, "the header has no padding");

/* ---- Checksums ---- */

/* Each step maps h one to one, so a change within one word always changes the sum. */
static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static uint64_t checksum(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t word;
    for (; n >= sizeof word; p += sizeof word, n -= sizeof word) {
        memcpy(&word, p, sizeof word);
        h = mix(h, word);
    }
    word = 0;
    if (n > 0)
        memcpy(&word, p, n);
    return mix(mix(h, word), n);
}

static uint64_t sum_text(uint64_t h, const char *text)
{
    return checksum(h, text, strlen(text));
}

/* Config, and every tensor's name, format, shape and first bytes. */
static uint64_t fingerprint(const struct nib_model *m)
{
    const struct nib_config *c = &m->config;
    const int32_t number[] = {c->dim, c->n_layers, c->n_hash_layers, c->n_heads, c->head_dim, c->n_rot, c->q_rank, c->n_groups,
                              c->o_rank, c->n_window, c->n_index_heads, c->index_dim, c->index_top_k, c->n_experts, c->n_shared,
                              c->top_k, c->n_inner, c->n_hc, c->n_sinkhorn, c->vocab, c->yarn, c->yarn_original};
    const float real[] = {c->norm_eps, c->hc_eps, c->route_scale, c->swiglu_limit, c->rope_theta, c->compress_rope_theta,
                          c->yarn_factor, c->yarn_beta_fast, c->yarn_beta_slow};
    uint64_t h = checksum(FORMAT_VERSION, number, sizeof number);
    h = checksum(h, real, sizeof real);
    h = checksum(h, c->ratio, (size_t)(c->n_layers + 1) * sizeof *c->ratio);
    for (int32_t i = 0; i < m->sources.n; i++) {
        const struct nib_source *s = &m->sources.source[i];
        const uint64_t bytes = s->entry->bytes < N_SAMPLE ? s->entry->bytes : N_SAMPLE;
        const int32_t shape[] = {s->layer, s->n_stack, s->n_out, s->n_in};
        h = sum_text(sum_text(h, s->name), nib_source_format(s));
        h = checksum(checksum(h, shape, sizeof shape), s->entry->data, (size_t)bytes);
    }
    return h;
}

/* ---- Files ---- */

static enum nib_status system_failed(const char *path, const char *what, struct nib_error *err)
{
    char text[128];
    const int number = errno;
    return nib_error_set(err, NIB_E_IO, "%s: cannot %s: %s", path, what, nib_errno_text(number, text, sizeof text));
}

static bool write_all(int fd, const void *data, size_t n)
{
    for (const char *p = data; n > 0;) {
        const ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* False at the end of the file too, with errno 0. */
static bool read_all(int fd, void *data, size_t n)
{
    for (char *p = data; n > 0;) {
        const ssize_t k = read(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            errno = k == 0 ? 0 : errno;
            return false;
        }
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* What one part takes in the file: whole rows in pieces that fit the buffer, then the sum. */
static uint64_t part_bytes(const struct nib_state_part *part)
{
    return (uint64_t)(part->end - part->first) * (uint64_t)part->row_bytes + sizeof(uint64_t);
}

static uint64_t file_bytes(const struct nib_pool *p, const struct nib_seq_state *s, int32_t floor)
{
    uint64_t n = sizeof(struct header);
    for (int32_t i = 0; i < nib_state_n_parts(p); i++) {
        const struct nib_state_part part = nib_state_part(p, s, floor, i);
        n += part_bytes(&part);
    }
    return n;
}

/* ---- Saving ---- */

static enum nib_status write_part(struct nib_engine *e, const struct nib_state_part *part, int fd, const char *path,
                                  unsigned char *buffer, struct nib_error *err)
{
    const struct nib_rank *rk = &e->rank;
    const int32_t at_once = part->row_bytes > 0 ? (int32_t)((int64_t)N_BUFFER / part->row_bytes) : 1;
    uint64_t sum = (uint64_t)part->kind + 1;
    for (int32_t row = part->first, n; row < part->end; row += n) {
        const unsigned char *from = nib_state_part_rows(part, row, &n);
        n = n < at_once ? n : at_once;
        const size_t bytes = (size_t)n * (size_t)part->row_bytes;
        const enum nib_status status = rk->api->download(rk->stream, buffer, from, bytes);
        if (status != NIB_OK)
            return nib_error_set(err, status, "backend '%s' failed to read a sequence's state", rk->api->name);
        for (int32_t i = 0; i < n; i++)
            sum = checksum(sum, buffer + (size_t)i * (size_t)part->row_bytes, (size_t)part->row_bytes);
        if (!write_all(fd, buffer, bytes))
            return system_failed(path, "write", err);
    }
    return write_all(fd, &sum, sizeof sum) ? NIB_OK : system_failed(path, "write", err);
}

/* The shortest length the sequence can promise to be cut to. */
static int32_t floor_of(const struct nib_seq *s)
{
    const struct nib_pool *p = &s->engine->rank.pool;
    int32_t floor = s->state.length;
    while (floor > 1 && floor > s->state.length - s->engine->options.n_rollback && nib_seq_state_can_truncate(p, &s->state, floor - 1))
        floor--;
    return floor;
}

static enum nib_status write_file(struct nib_seq *s, int fd, const char *path, unsigned char *buffer, struct nib_error *err)
{
    struct nib_engine *e = s->engine;
    const struct nib_options *o = &e->options;
    const struct nib_pool *p = &e->rank.pool;
    const int32_t floor = floor_of(s);
    struct header h = {.version = FORMAT_VERSION, .header_bytes = sizeof h, .file_bytes = file_bytes(p, &s->state, floor),
                       .fingerprint = fingerprint(e->model), .length = s->state.length, .floor = floor, .kv = (int32_t)o->kv,
                       .act_quant = (int32_t)o->act_quant, .numerics = (int32_t)o->numerics, .mtp = o->mtp,
                       .n_rollback = o->n_rollback};
    memcpy(h.magic, k_magic, sizeof h.magic);
    (void)snprintf(h.backend, sizeof h.backend, "%s", o->backend);
    h.checksum = checksum(0, &h, offsetof(struct header, checksum));
    if (!write_all(fd, &h, sizeof h))
        return system_failed(path, "write", err);
    for (int32_t i = 0; i < nib_state_n_parts(p); i++) {
        const struct nib_state_part part = nib_state_part(p, &s->state, floor, i);
        NIB_TRY(write_part(e, &part, fd, path, buffer, err));
    }
    return fsync(fd) == 0 ? NIB_OK : system_failed(path, "write to disk", err);
}

/* So that the new name survives a crash, too. Some file systems cannot; that is no reason to fail. */
static void sync_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    const int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        (void)close(fd);
    }
    free(dir);
}

enum nib_status nib_seq_save(struct nib_seq *s, const char *path, struct nib_error *err)
{
    const size_t n = strlen(path) + sizeof ".XXXXXX";
    char *temporary = malloc(n);
    unsigned char *buffer = malloc(N_BUFFER);
    enum nib_status status = NIB_OK;
    int fd = -1;
    if (!temporary || !buffer) {
        status = nib_error_set(err, NIB_E_MEMORY, "no memory to save a sequence");
        goto end;
    }
    if (s->engine->broken) {
        status = nib_error_set(err, NIB_E_DEVICE, "the device failed earlier (%s); there is no state to save",
                               s->engine->why_broken.text);
        goto end;
    }
    (void)snprintf(temporary, n, "%s.XXXXXX", path);
    fd = mkstemp(temporary); /* mode 0600: a session tells what was said */
    if (fd < 0) {
        status = system_failed(path, "create a file beside it", err);
        goto end;
    }
    status = write_file(s, fd, path, buffer, err);
    if (close(fd) != 0 && status == NIB_OK)
        status = system_failed(path, "write", err);
    if (status == NIB_OK && rename(temporary, path) != 0)
        status = system_failed(path, "give the file its name", err);
    if (status == NIB_OK)
        sync_folder_of(path);
    else
        (void)unlink(temporary);
end:
    free(temporary);
    free(buffer);
    return status;
}

/* ---- Loading ---- */

static const char *const k_kv[] = {"f32", "bf16", "fp8", "nvfp4"};
static const char *const k_act[] = {"auto", "none", "fp8", "nvfp4", "int8"};
static const char *const k_numerics[] = {"model", "release", "bf16"};

static enum nib_status check_option(const char *path, const char *name, const char *const *names, int32_t n,
                                    int32_t found, int32_t wanted, struct nib_error *err)
{
    if (found == wanted)
        return NIB_OK;
    return nib_error_set(err, NIB_E_UNSUPPORTED, "%s: was saved with %s %s, the engine has %s %s", path, name,
                         found >= 0 && found < n ? names[found] : "unknown", name, names[wanted]);
}

static enum nib_status check_header(const struct nib_engine *e, const char *path, const struct header *h, struct nib_error *err)
{
    static const char *const switched[] = {"off", "on"};
    const struct nib_options *o = &e->options;
    if (memcmp(h->magic, k_magic, sizeof k_magic) != 0)
        return nib_error_set(err, NIB_E_FORMAT, "%s: is not a saved sequence (its first bytes differ)", path);
    if (h->version != FORMAT_VERSION)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "%s: has format version %" PRIu32 ", wanted %d", path, h->version,
                             FORMAT_VERSION);
    if (h->checksum != checksum(0, h, offsetof(struct header, checksum)))
        return nib_error_set(err, NIB_E_FORMAT, "%s: the header is damaged (its checksum differs)", path);
    if (h->header_bytes != sizeof *h || h->length < 0 || h->floor < 0 || h->floor > h->length || (h->length > 0 && h->floor < 1))
        return nib_error_set(err, NIB_E_FORMAT, "%s: the header says %" PRId32 " tokens from %" PRId32 ", which cannot be", path,
                             h->length, h->floor);
    if (h->fingerprint != fingerprint(e->model))
        return nib_error_set(err, NIB_E_UNSUPPORTED, "%s: was saved with another model than '%s'", path, e->model->dir);
    NIB_TRY(check_option(path, "kv", k_kv, 4, h->kv, (int32_t)o->kv, err));
    NIB_TRY(check_option(path, "act_quant", k_act, 5, h->act_quant, (int32_t)o->act_quant, err));
    NIB_TRY(check_option(path, "numerics", k_numerics, 3, h->numerics, (int32_t)o->numerics, err));
    NIB_TRY(check_option(path, "mtp", switched, 2, h->mtp, o->mtp, err));
    if (h->length > o->n_ctx)
        return nib_error_set(err, NIB_E_LIMIT, "%s: holds %" PRId32 " tokens, the context is %" PRId32, path, h->length,
                             o->n_ctx);
    return NIB_OK;
}

static enum nib_status read_failed(const char *path, struct nib_error *err)
{
    return errno ? system_failed(path, "read", err) : nib_error_set(err, NIB_E_FORMAT, "%s: ends too early", path);
}

/* Rows from `first` on go to the device; the ones before only matter to engines that can cut further back. */
static enum nib_status read_part(struct nib_engine *e, const struct nib_state_part *part, int32_t first, int fd,
                                 const char *path, unsigned char *buffer, struct nib_error *err)
{
    const struct nib_rank *rk = &e->rank;
    const int32_t at_once = part->row_bytes > 0 ? (int32_t)((int64_t)N_BUFFER / part->row_bytes) : 1;
    uint64_t sum = (uint64_t)part->kind + 1, wanted = 0;
    for (int32_t row = part->first, n; row < part->end; row += n) {
        n = row < first ? first - row : part->end - row;
        unsigned char *to = row < first ? NULL : nib_state_part_rows(part, row, &n);
        n = n < at_once ? n : at_once;
        const size_t bytes = (size_t)n * (size_t)part->row_bytes;
        if (!read_all(fd, buffer, bytes))
            return read_failed(path, err);
        for (int32_t i = 0; i < n; i++)
            sum = checksum(sum, buffer + (size_t)i * (size_t)part->row_bytes, (size_t)part->row_bytes);
        const enum nib_status status = to ? rk->api->upload(rk->stream, to, buffer, bytes) : NIB_OK;
        if (status != NIB_OK)
            return nib_error_set(err, status, "backend '%s' failed to take a sequence's state", rk->api->name);
    }
    if (!read_all(fd, &wanted, sizeof wanted))
        return read_failed(path, err);
    if (sum != wanted)
        return nib_error_set(err, NIB_E_FORMAT, "%s: the state of layer %" PRId32 " is damaged (checksum of part %d differs)", path,
                             part->layer, (int)part->kind);
    return NIB_OK;
}

static enum nib_status check_size(const char *path, const struct stat *st, uint64_t wanted, struct nib_error *err)
{
    if ((uint64_t)st->st_size == wanted)
        return NIB_OK;
    return nib_error_set(err, NIB_E_FORMAT, "%s: has %" PRIu64 " bytes, wanted %" PRIu64, path, (uint64_t)st->st_size,
                         wanted);
}

static enum nib_status read_file(struct nib_seq *s, const char *path, int fd, unsigned char *buffer, struct nib_error *err)
{
    struct nib_engine *e = s->engine;
    struct nib_pool *p = &e->rank.pool;
    struct header h;
    struct stat st;
    if (fstat(fd, &st) != 0)
        return system_failed(path, "read", err);
    if (!S_ISREG(st.st_mode))
        return nib_error_set(err, NIB_E_FORMAT, "%s: is not a regular file", path);
    if ((uint64_t)st.st_size < sizeof h)
        return nib_error_set(err, NIB_E_FORMAT, "%s: has %" PRIu64 " bytes, less than the %zu of a header", path,
                             (uint64_t)st.st_size, sizeof h);
    if (!read_all(fd, &h, sizeof h))
        return read_failed(path, err);
    NIB_TRY(check_header(e, path, &h, err));
    if (h.length == 0)
        return check_size(path, &st, file_bytes(p, &s->state, 0), err);

    const int32_t reach = h.length - e->options.n_rollback;
    const int32_t floor = h.floor > reach ? h.floor : reach;
    if (nib_seq_state_restore(p, &s->state, h.length, floor) != NIB_OK)
        return nib_error_set(err, NIB_E_LIMIT, "%s: no free KV pages for its %" PRId32 " tokens", path, h.length);
    NIB_TRY(check_size(path, &st, file_bytes(p, &s->state, h.floor), err));
    for (int32_t i = 0; i < nib_state_n_parts(p); i++) {
        const struct nib_state_part part = nib_state_part(p, &s->state, h.floor, i);
        NIB_TRY(read_part(e, &part, nib_state_part(p, &s->state, floor, i).first, fd, path, buffer, err));
    }
    return NIB_OK;
}

enum nib_status nib_seq_load(struct nib_engine *e, const char *path, struct nib_seq **out, struct nib_error *err)
{
    *out = NULL;
    struct nib_seq *s = NULL;
    unsigned char *buffer = malloc(N_BUFFER);
    if (!buffer)
        return nib_error_set(err, NIB_E_MEMORY, "no memory to load a sequence");
    const int fd = open(path, O_RDONLY | O_NONBLOCK); /* a pipe is refused, not waited for */
    enum nib_status status = fd < 0 ? system_failed(path, "open", err) : nib_seq_open(e, &s, err);
    if (status == NIB_OK)
        status = read_file(s, path, fd, buffer, err);
    if (status == NIB_OK)
        *out = s;
    else
        nib_seq_close(s);
    if (fd >= 0)
        (void)close(fd);
    free(buffer);
    return status;
}
