/* nib_quantize(): a plan carried out shard by shard.
 *
 * What is in the destination while a run goes on: finished shards under their names, each with a hidden file of its
 * report rows; one shard ending in .tmp; and a hidden state file that names the job by its fingerprint and is locked by
 * the running process. The index and config.json come last, so a half-made folder is never taken for a model. A resumed
 * run keeps shards that have their name, their size and their report rows, and makes all others again; since every byte
 * follows from the job alone, the result is the same. */
#include "quantize/job_quant.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/json_file.h"

#define STATE_NAME  ".nibble-quant-state.json"
#define ROWS_PREFIX ".nibble-quant-rows-"
#define ROWS_BYTES_MAX ((size_t)1 << 30)
#define INDEX_NAME  "model.safetensors.index.json"
/* A piece of a matrix; larger ones gain nothing but fewer second reads. */
#define CHUNK_BYTES_MAX ((uint64_t)512 << 20)

double nib_quant_clock(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- The destination folder ---- */

struct folder {
    bool exists, has_state, has_report, has_config, has_data, other;
};

static bool begins_with(const char *s, const char *head)
{
    return strncmp(s, head, strlen(head)) == 0;
}

static enum nib_status look_into(const char *dst, struct folder *f, struct nib_error *err)
{
    DIR *d = opendir(dst);
    char text[128];
    memset(f, 0, sizeof *f);
    if (!d && errno == ENOENT)
        return NIB_OK;
    if (!d)
        return nib_error_set(err, NIB_E_IO, "cannot open '%s': %s", dst, nib_errno_text(errno, text, sizeof text));
    f->exists = true;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        f->other = true;
        f->has_state = f->has_state || strcmp(e->d_name, STATE_NAME) == 0;
        f->has_report = f->has_report || strcmp(e->d_name, "nibble-quant.json") == 0;
        f->has_config = f->has_config || strcmp(e->d_name, "config.json") == 0;
        f->has_data = f->has_data || strcmp(e->d_name, INDEX_NAME) == 0 || strcmp(e->d_name, "model.safetensors") == 0;
    }
    (void)closedir(d);
    return NIB_OK;
}

/* Remove files of earlier runs: unfinished ones and, at the end, report rows. */
static void sweep(const char *dst, bool rows)
{
    DIR *d = opendir(dst);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        const size_t n = strlen(e->d_name);
        if ((n > 4 && strcmp(e->d_name + n - 4, ".tmp") == 0) || (rows && begins_with(e->d_name, ROWS_PREFIX))) {
            char *path = nib_path_join(dst, e->d_name);
            if (path)
                (void)unlink(path);
            free(path);
        }
    }
    (void)closedir(d);
}

/* A destination inside the source would be copied into itself. */
static enum nib_status check_apart(const char *src, const char *dst, struct nib_error *err)
{
    char *a = realpath(src, NULL), *b = realpath(dst, NULL);
    enum nib_status status = NIB_OK;
    const size_t n = a ? strlen(a) : 0;
    if (a && b && strncmp(a, b, n) == 0 && (b[n] == '/' || b[n] == '\0'))
        status = nib_error_set(err, NIB_E_ARGUMENT,
                               "the destination '%s' is the source or lies inside it, wanted a folder elsewhere", dst);
    free(a);
    free(b);
    return status;
}

static enum nib_status write_state(const char *dst, uint64_t fingerprint, struct nib_error *err)
{
    char text[128];
    const int n = snprintf(text, sizeof text, "{\"format\": 1, \"fingerprint\": \"%016" PRIx64 "\"}\n", fingerprint);
    return nib_quant_write_file(dst, STATE_NAME, text, (size_t)n, err);
}

static enum nib_status check_state(const char *dst, uint64_t fingerprint, struct nib_error *err)
{
    char  *path = nib_path_join(dst, STATE_NAME), wanted[32];
    json_t *root = NULL;
    enum nib_status status = path ? nib_json_file_read(path, 4096, &root, err)
                                  : nib_error_set(err, NIB_E_MEMORY, "no memory for a path");
    (void)snprintf(wanted, sizeof wanted, "%016" PRIx64, fingerprint);
    const char *found = json_string_value(json_object_get(root, "fingerprint"));
    if (status == NIB_OK && (!found || strcmp(found, wanted) != 0))
        status = nib_error_set(
            err, NIB_E_STATE,
            "'%s' holds another run (job %s, this one is %s): the source or an option has changed; wanted the same "
            "job, or an empty folder",
            dst, found ? found : "?", wanted);
    json_decref(root);
    free(path);
    return status;
}

/* One run at a time; the lock goes with the process, however it ends. */
static enum nib_status lock_state(const char *dst, int *fd, struct nib_error *err)
{
    char *path = nib_path_join(dst, STATE_NAME), text[128];
    *fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    const int number = path ? errno : ENOMEM;
    free(path);
    if (*fd < 0)
        return nib_error_set(err, NIB_E_IO, "cannot open '%s/%s': %s", dst, STATE_NAME,
                             nib_errno_text(number, text, sizeof text));
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return nib_error_set(err, NIB_E_STATE, "another process is writing '%s'", dst);
    return NIB_OK;
}

/* Leave dst with a locked state file of this job; or find that nothing is left to do. */
static enum nib_status prepare(struct nib_quant_plan *p, const char *dst, int *lock, bool *complete,
                               struct nib_error *err)
{
    const bool    resume = p->options->resume;
    struct folder f;
    char          text[128];
    NIB_TRY(look_into(dst, &f, err));
    if (!f.exists && mkdir(dst, 0777) != 0)
        return nib_error_set(err, NIB_E_IO, "cannot create '%s': %s", dst, nib_errno_text(errno, text, sizeof text));
    NIB_TRY(check_apart(p->src, dst, err));
    if (f.has_state && !resume)
        return nib_error_set(err, NIB_E_STATE,
                             "'%s' holds an interrupted run; go on with --resume, or choose an empty folder", dst);
    if (!f.has_state && f.other) {
        *complete = resume && f.has_report && f.has_config && f.has_data;
        if (*complete) {
            sweep(dst, true);
            return NIB_OK;
        }
        /* Killed between making the folder and naming its state. */
        sweep(dst, false);
        NIB_TRY(look_into(dst, &f, err));
        if (f.other)
            return nib_error_set(err, NIB_E_ARGUMENT, "'%s' is not empty%s, wanted a new or empty folder", dst,
                                 resume ? " and holds no interrupted run" : "");
    }
    if (f.has_state)
        NIB_TRY(check_state(dst, p->fingerprint, err));
    else
        NIB_TRY(write_state(dst, p->fingerprint, err));
    NIB_TRY(lock_state(dst, lock, err));
    sweep(dst, false);
    return NIB_OK;
}

/* ---- Report rows of a shard ---- */

static void rows_name(int32_t shard, char out[64])
{
    (void)snprintf(out, 64, ROWS_PREFIX "%05" PRId32 ".json", shard + 1);
}

static enum nib_status write_rows(const struct nib_quant_plan *p, const char *dst, int32_t shard, struct nib_error *err)
{
    const struct nib_quant_shard *s = &p->shard[shard];
    char    name[64];
    json_t *rows = json_array();
    for (int64_t i = s->first_unit; i < s->end_unit; i++)
        if (p->unit[i].n_outs == 4)
            (void)json_array_append_new(rows, nib_quant_stats_json(p, &p->unit[i]));
    char *text = rows ? json_dumps(rows, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(rows);
    rows_name(shard, name);
    const enum nib_status status = text ? nib_quant_write_file(dst, name, text, strlen(text), err)
                                        : nib_error_set(err, NIB_E_MEMORY, "no memory for the report of '%s'", s->name);
    free(text);
    return status;
}

/* Whether the shard is there, whole, with its rows; these are read into the plan. */
static bool find_finished(struct nib_quant_plan *p, const char *dst, int32_t shard)
{
    struct nib_quant_shard *s = &p->shard[shard];
    struct stat st;
    char        name[64];
    json_t     *rows = NULL;
    rows_name(shard, name);
    char *path = nib_path_join(dst, s->name), *rows_path = nib_path_join(dst, name);
    bool  ok = path && rows_path && stat(path, &st) == 0 && (uint64_t)st.st_size == s->header_bytes + s->bytes &&
              nib_json_file_read(rows_path, ROWS_BYTES_MAX, &rows, NULL) == NIB_OK;
    size_t next = 0;
    for (int64_t i = s->first_unit; i < s->end_unit && ok; i++)
        if (p->unit[i].n_outs == 4)
            ok = nib_quant_stats_read(json_array_get(rows, next++), &p->unit[i], name, NULL) == NIB_OK;
    json_decref(rows);
    free(path);
    free(rows_path);
    return ok;
}

/* ---- Shards ---- */

static enum nib_status write_shard(struct nib_quant_context *c, struct nib_quant_plan *p, const char *dst,
                                   int32_t shard, const char *header, struct nib_error *err)
{
    const struct nib_quant_shard *s = &p->shard[shard];
    int fd;
    NIB_TRY(nib_quant_create(dst, s->name, &fd, err));
    enum nib_status status = nib_quant_write_at(fd, dst, s->name, 0, header, (size_t)s->header_bytes, err);
    for (int64_t i = s->first_unit; i < s->end_unit && status == NIB_OK; i++)
        status = nib_quant_unit_write(c, i, fd, dst, err);
    if (status == NIB_OK)
        status = write_rows(p, dst, shard, err);
    if (status != NIB_OK) {
        nib_quant_abandon(dst, s->name, fd);
        return status;
    }
    return nib_quant_commit(dst, s->name, fd, err);
}

static enum nib_status write_shards(struct nib_quant_context *c, struct nib_quant_plan *p, const char *dst,
                                    struct nib_quantize_result *r, struct nib_error *err)
{
    for (int32_t i = 0; i < p->n_shards; i++) {
        struct nib_quant_shard *s = &p->shard[i];
        char  *header;
        size_t n;
        NIB_TRY(nib_quant_shard_header(p, i, &header, &n, err));
        s->header_bytes = n;
        enum nib_status status = NIB_OK;
        if (find_finished(p, dst, i)) {
            r->n_shards_kept++;
            for (int64_t k = s->first_unit; k < s->end_unit; k++)
                *c->done_bytes += p->unit[k].bytes_before;
            *c->done_bytes += s->bytes;
        } else {
            status = write_shard(c, p, dst, i, header, err);
        }
        free(header);
        NIB_TRY(status);
    }
    return NIB_OK;
}

static enum nib_status write_index(const struct nib_quant_plan *p, const char *dst, struct nib_error *err)
{
    json_t *map = json_object();
    bool    ok = map != NULL;
    for (int64_t i = 0; i < p->n_outputs && ok; i++)
        ok = json_object_set_new(map, p->output[i].name, json_string(p->shard[p->output[i].shard].name)) == 0;
    json_t *root = ok ? json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)p->output_bytes, "weight_map",
                                  map)
                      : NULL;
    char   *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    json_decref(map);
    const enum nib_status status = text ? nib_quant_write_file(dst, INDEX_NAME, text, strlen(text), err)
                                        : nib_error_set(err, NIB_E_MEMORY, "no memory for the index");
    free(text);
    return status;
}

static enum nib_status finish(const struct nib_quant_plan *p, const char *dst, struct nib_error *err)
{
    char text[128];
    NIB_TRY(nib_quant_copy_files(p->src, dst, err));
    NIB_TRY(nib_quant_report_write(p, dst, err));
    NIB_TRY(nib_quant_config_write(p, dst, err));
    if (p->n_shards > 1)
        NIB_TRY(write_index(p, dst, err));
    char *path = nib_path_join(dst, STATE_NAME);
    const int number = !path ? ENOMEM : unlink(path) != 0 ? errno : 0;
    free(path);
    if (number)
        return nib_error_set(err, NIB_E_IO, "cannot remove '%s/%s': %s", dst, STATE_NAME,
                             nib_errno_text(number, text, sizeof text));
    sweep(dst, true);
    return NIB_OK;
}

/* ---- Options, memory, estimates ---- */

void nib_quantize_options_init(struct nib_quantize_options *o)
{
    *o = (struct nib_quantize_options){.memory_bytes = (uint64_t)4 << 30, .shard_bytes = (uint64_t)5 << 30};
}

static enum nib_status check_options(const struct nib_quantize_options *o, struct nib_error *err)
{
    if (o->preset > NIB_QUANT_FULL_HEAD || o->method > NIB_QUANT_GPTQ || o->layout > NIB_QUANT_LAYOUT_OFFICIAL)
        return nib_error_set(err, NIB_E_ARGUMENT, "preset, method or layout is out of range");
    if (o->memory_bytes < (uint64_t)64 << 20)
        return nib_error_set(err, NIB_E_ARGUMENT, "memory is %" PRIu64 " bytes, wanted at least 64 MiB",
                             o->memory_bytes);
    if (o->shard_bytes < 1)
        return nib_error_set(err, NIB_E_ARGUMENT, "shard size is 0, wanted at least 1 byte");
    if (o->n_threads < 0)
        return nib_error_set(err, NIB_E_ARGUMENT, "n_threads is %d, wanted 0 (all cores) or more", (int)o->n_threads);
    if (o->method == NIB_QUANT_GPTQ && !o->calibrate)
        return nib_error_set(err, NIB_E_ARGUMENT, "method gptq needs a calibration text: give --calibrate FILE.jsonl");
    return NIB_OK;
}

static enum nib_status report_progress(struct nib_quant_context *c, struct nib_error *err)
{
    const struct nib_quant_plan *p = c->plan;
    if (p->options->progress && !p->options->progress(p->options->user, &(struct nib_quantize_progress){
            .what = c->what, .done_bytes = *c->done_bytes, .total_bytes = p->source_bytes + p->output_bytes}))
        return nib_error_set(err, NIB_E_CANCELLED, "cancelled; finished shards are kept, go on with --resume");
    return NIB_OK;
}

/* Names, shapes and JSON of the plan itself; measured at about 900 bytes a tensor. */
static uint64_t plan_bytes(const struct nib_quant_plan *p)
{
    return ((uint64_t)nib_checkpoint_n_tensors(p->checkpoint) + (uint64_t)p->n_outputs) * 900;
}

/* Two matrices are held at once (w1 and its partner), and the codes of one. */
void nib_quant_context_init(struct nib_quant_context *c, const struct nib_quant_plan *p, const char *what,
                            uint64_t *done_bytes)
{
    const uint64_t fixed = plan_bytes(p) + ((uint64_t)24 << 20), budget = p->options->memory_bytes;
    uint64_t       chunk = budget > fixed ? (budget - fixed) / (p->options->calibrate ? 6 : 3) : 0;
    chunk = chunk > CHUNK_BYTES_MAX ? CHUNK_BYTES_MAX : chunk;
    *c = (struct nib_quant_context){.plan = p,
                                    .kernels = nib_quant_kernels_find(false),
                                    .n_threads = nib_quant_threads(p->options->n_threads),
                                    .chunk_bytes = (size_t)chunk,
                                    .done_bytes = done_bytes,
                                    .tick = report_progress,
                                    .what = what,
                                    .partner = -1};
}

static double thread_clock(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Weights a second that choose, encode and measure take: one thread's own time, times the threads, so that a busy
 * machine gives the same answer. */
static double measure_rate(const struct nib_quant_context *c, enum nib_quant_choice how)
{
    enum { COLS = 4096, ROWS = 64 };
    uint16_t x[COLS];
    uint8_t  scales[COLS / NIB_QUANT_BLOCK], codes[COLS / 2];
    uint32_t seed = 1;
    for (int i = 0; i < COLS; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (uint16_t)(0x3c00u + (seed >> 22) + ((seed >> 8 & 1u) << 15));
    }
    const struct nib_quant_row r = {.bf16 = x, .n_blocks = COLS / NIB_QUANT_BLOCK, .g = 1e-5f, .unit = 1};
    const double               start = thread_clock();
    for (int i = 0; i < ROWS; i++) {
        struct nib_quant_sums sums = {0};
        c->kernels->choose(&r, how, scales);
        c->kernels->encode(&r, scales, codes, &sums);
    }
    return (double)COLS * ROWS * c->n_threads / (thread_clock() - start + 1e-9);
}

static void estimate(const struct nib_quant_context *c, struct nib_quantize_result *r)
{
    const struct nib_quant_plan *p = c->plan;
    uint64_t encoded = 0, cast = 0;
    for (int64_t i = 0; i < p->n_units; i++) {
        encoded += p->unit[i].action == NIB_QUANT_ENCODE ? p->unit[i].stats.n_weights : 0;
        cast += p->unit[i].action == NIB_QUANT_CAST ? p->unit[i].stats.n_weights : 0;
    }
    const enum nib_quant_choice how = p->options->method == NIB_QUANT_ABSMAX   ? NIB_QUANT_CHOOSE_ABSMAX
                                      : p->options->method == NIB_QUANT_4OVER6 ? NIB_QUANT_CHOOSE_4OVER6
                                                                               : NIB_QUANT_CHOOSE_MSE;
    r->seconds = (double)encoded / measure_rate(c, how) + (double)cast / measure_rate(c, NIB_QUANT_CHOOSE_ABSMAX) +
                 (double)(p->source_bytes + p->output_bytes) / 1e9;
    r->memory_bytes = plan_bytes(p) + ((uint64_t)24 << 20) + 3 * (uint64_t)c->chunk_bytes;
}

/* ---- Entry ---- */

static void warn(const struct nib_quant_plan *p, const char *text)
{
    if (p->options->warning)
        p->options->warning(p->options->user, text);
}

static void warnings(const struct nib_quant_plan *p)
{
    char    text[512];
    int64_t n_fallback = 0;
    for (int64_t i = 0; i < p->n_units; i++)
        n_fallback += p->unit[i].n_outs == 4 && !p->unit[i].stats.calibrated;
    if (p->n_unknown > 0) {
        (void)snprintf(text, sizeof text,
                       "%" PRId64 " tensors have names that no DeepSeek-V4 layout knows; they were copied",
                       p->n_unknown);
        warn(p, text);
    }
    if (p->options->calibrate && n_fallback > 0) {
        (void)snprintf(text, sizeof text,
                       "%" PRId64 " of %" PRId64
                       " matrices were not reached by the calibration text; their input_scale is that of "
                       "the layer's other experts, or 1",
                       n_fallback, p->n_matrices);
        warn(p, text);
    }
    for (int64_t i = 0; i < p->n_units; i++)
        if (p->unit[i].action == NIB_QUANT_ENCODE && p->unit[i].stats.n_vanished > 0) {
            (void)snprintf(text, sizeof text,
                           "matrix '%s': %" PRIu64 " of %" PRIu64
                           " blocks are so far below the largest weight that their scale is "
                           "subnormal or zero: an outlier costs them precision",
                           p->unit[i].base, p->unit[i].stats.n_vanished, p->unit[i].stats.n_blocks);
            warn(p, text);
        }
}

static enum nib_status run(struct nib_quant_plan *p, const char *dst, struct nib_quantize_result *r,
                           struct nib_error *err)
{
    uint64_t done = 0;
    int      lock = -1;
    bool     complete = false;
    struct nib_quant_context c;
    struct nib_quant_rows    rows[2] = {{0}, {0}};
    nib_quant_context_init(&c, p, "converting", &done);
    c.rows = rows;
    enum nib_status status = prepare(p, dst, &lock, &complete, err);
    if (status == NIB_OK && !complete && p->options->calibrate)
        status = nib_quant_calibration_open(p, c.n_threads, &c.calibration, err);
    if (status == NIB_OK && !complete)
        status = write_shards(&c, p, dst, r, err);
    if (status == NIB_OK && !complete)
        status = finish(p, dst, err);
    if (status == NIB_OK && !complete)
        warnings(p);
    nib_quant_calibration_close(c.calibration);
    for (int i = 0; i < 2; i++)
        nib_quant_rows_deinit(&rows[i]);
    if (lock >= 0)
        (void)close(lock);
    r->was_complete = complete;
    r->memory_bytes = plan_bytes(p) + 3 * (uint64_t)c.chunk_bytes;
    return status;
}

enum nib_status nib_quantize(const char *src, const char *dst, const struct nib_quantize_options *o,
                             struct nib_quantize_result *r, struct nib_error *err)
{
    const double start = nib_quant_clock();
    struct nib_quant_plan p;
    memset(r, 0, sizeof *r);
    NIB_TRY(check_options(o, err));
    enum nib_status status = nib_quant_plan_open(src, o, &p, err);
    if (status == NIB_OK && o->dry_run) {
        uint64_t done = 0;
        struct nib_quant_context c;
        nib_quant_context_init(&c, &p, "planning", &done);
        nib_quant_result_fill(&p, r);
        estimate(&c, r);
    } else if (status == NIB_OK) {
        status = run(&p, dst, r, err);
        nib_quant_result_fill(&p, r);
        r->seconds = nib_quant_clock() - start;
    }
    nib_quant_plan_close(&p);
    return status;
}
