/* Opening a model for a command, and stepping ids through it. */
#include "session.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "progress.h"

/* As nibble.h has them: the context where none is asked for, and the tokens of a page. */
enum { CTX_DEFAULT = 8192, PAGE_TOKENS = 128 };

int session_fail(enum nib_status status, const struct nib_error *err)
{
    if (err && err->text[0])
        return cli_fail("%s", err->text);
    return cli_fail("failed: %s", nib_status_name(status));
}

/* ---- The bundled model ---- */

static bool has_config(const char *dir)
{
    char path[4096 + 16];
    int  n = snprintf(path, sizeof path, "%s/config.json", dir);

    return n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0;
}

/* Beside the installed program, wherever the installation was moved to; else in the source tree it was built from. */
static bool find_bundled(char *dir, size_t dir_bytes)
{
    char    exe[2048];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (n > 0) {
        exe[n] = '\0';
        char *slash = strrchr(exe, '/');
        if (slash) {
            *slash = '\0';
            (void)snprintf(dir, dir_bytes, "%s/%s", exe, NIB_MODEL_FROM_BIN);
            if (has_config(dir))
                return true;
        }
    }
    (void)snprintf(dir, dir_bytes, "%s", NIB_MODEL_IN_SOURCE);
    return has_config(dir);
}

int session_find(struct session *s, const struct cli_engine_options *options)
{
    *s = (struct session){.options = options, .dir = options->model, .bundled = !options->model};
    if (s->bundled) {
        if (!find_bundled(s->dir_buffer, sizeof s->dir_buffer))
            return cli_fail("the bundled model is neither beside this program nor in '%s'; name a checkpoint with -m",
                            NIB_MODEL_IN_SOURCE);
        s->dir = s->dir_buffer;
    }
    return CLI_OK;
}

/* $XDG_CACHE_HOME is to be ignored where it is not absolute, says its specification. */
static void find_selftest_file(struct session *s)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool        given = cache && cache[0] == '/';
    int         n = 0;
    if (given || (home && home[0] == '/'))
        n = snprintf(s->selftest_file, sizeof s->selftest_file, "%s%s/nibble/selftest", given ? cache : home,
                     given ? "" : "/.cache");
    if (n < 0 || (size_t)n >= sizeof s->selftest_file)
        s->selftest_file[0] = '\0';
}

void session_test_again(const struct session *s)
{
    if (s->selftest_file[0])
        (void)unlink(s->selftest_file);
}

int session_open(struct session *s, const struct cli_engine_options *options)
{
    struct nib_error err = {0};
    int              code = session_find(s, options);

    if (code != CLI_OK)
        return code;
    enum nib_status status = nib_model_open(s->dir, &s->model, &err);
    if (status != NIB_OK)
        return session_fail(status, &err);
    s->info = nib_model_get_info(s->model);
    find_selftest_file(s);
    if (options->selftest_again)
        session_test_again(s);
    if (options->ctx > s->info->n_ctx_max)
        return cli_usage("--ctx: %d is out of range; the model was made for 1 to %d tokens", options->ctx,
                         s->info->n_ctx_max);
    if (options->verbose)
        cli_note("model: %s, %s layout", s->dir, s->info->layout);
    return CLI_OK;
}

int session_open_tokenizer(struct session *s)
{
    struct nib_error err = {0};
    enum nib_status  status = nib_tokenizer_open(s->dir, &s->tokenizer, &err);

    return status == NIB_OK ? CLI_OK : session_fail(status, &err);
}

/* ---- The engine ---- */

/* With drafts the MTP block runs over every row, also while none is made: one layer more beside those of the trunk.
 * Where that is above the 3 % that drafts must promise to be made at all, --drafts auto would lose by it for good. */
static bool drafts_may_pay(const struct nib_model_info *m)
{
    return m->has_mtp && 100 <= 3 * m->n_layers;
}

int session_engine_options(const struct session *s, int32_t n_rows_max, bool mtp, struct nib_options *out)
{
    const struct cli_engine_options *o = s->options;

    nib_options_init(out);
    out->backend = cli_backend_names[o->backend];
    out->n_threads = o->threads;
    out->cpu = o->cpu ? cli_cpu_names[o->cpu] : NULL;
    out->n_ctx = o->ctx;
    if (n_rows_max > 0)
        out->n_rows_max = n_rows_max;
    out->act_quant = (enum nib_act_quant)o->act_quant;
    out->kv = (enum nib_kv)o->kv;
    out->numerics = (enum nib_numerics)o->numerics;
    out->mtp = mtp;
    if (s->forks) {
        /* A fork and its original differ in one page besides those that only one of them has. */
        const int32_t n_ctx = o->ctx > 0 ? o->ctx : s->info->n_ctx_max < CTX_DEFAULT ? s->info->n_ctx_max : CTX_DEFAULT;
        out->n_seqs_max = 2;
        out->n_kv_pages = (n_ctx + PAGE_TOKENS - 1) / PAGE_TOKENS + 2;
    }
    out->n_drafts = o->drafts < CLI_DRAFTS_AUTO ? o->drafts : drafts_may_pay(s->info) ? CLI_DRAFTS_MAX : 0;
    out->selftest_file = s->selftest_file[0] ? s->selftest_file : NULL;
    out->trace = o->trace;
    out->compare = o->compare ? "ref" : NULL;
    if (out->numerics != NIB_NUMERICS_RELEASE)
        return CLI_OK;
    if (o->kv_given && out->kv != NIB_KV_FP8)
        return cli_usage("--numerics release keeps context rows in fp8; leave --kv out or give fp8");
    if (o->act_quant_given && out->act_quant != NIB_ACT_QUANT_FP8 && out->act_quant != NIB_ACT_QUANT_AUTO)
        return cli_usage("--numerics release rounds activations to fp8; leave --act-quant out or give fp8");
    out->kv = NIB_KV_FP8;
    out->act_quant = NIB_ACT_QUANT_FP8;
    return CLI_OK;
}

static bool on_load(void *user, uint64_t done, uint64_t total)
{
    progress_update(user, done, total);
    return true;
}

/* Only said, not refused: what counts as available is an estimate, the engine itself knows when memory ends. */
static void warn_if_too_large(const struct session *s, const struct nib_options *o)
{
    struct nib_memory_plan plan;

    if (nib_model_plan(s->model, o, &plan, NULL) == NIB_OK && plan.available_bytes > 0 &&
        plan.total_bytes > plan.available_bytes)
        cli_note("warning: this needs %.1f GiB of memory, %.1f GiB are available", (double)plan.total_bytes / 0x1p30,
                 (double)plan.available_bytes / 0x1p30);
}

void session_warn_of_kernels(const char *backend)
{
    struct nib_device_info d;

    if (nib_device_get(backend, 0, &d, NULL) == NIB_OK && d.failed[0])
        cli_note("warning: %s", d.failed);
}

int session_open_engine(struct session *s, int32_t n_rows_max, bool mtp)
{
    struct nib_options options;
    struct nib_error   err = {0};
    struct progress    progress;

    int code = session_engine_options(s, n_rows_max, mtp, &options);
    if (code != CLI_OK)
        return code;
    if (mtp && !s->info->has_mtp)
        return cli_fail("--mtp: '%s' has no MTP block", s->dir);
    warn_if_too_large(s, &options);

    progress_start(&progress, "loading", "B");
    options.progress = on_load;
    options.progress_user = &progress;
    enum nib_status status = nib_engine_open(s->model, &options, &s->engine, &err);
    progress_finish(&progress);
    if (status == NIB_OK)
        status = nib_seq_open(s->engine, &s->seq, &err);
    if (status != NIB_OK)
        return session_fail(status, &err);

    const struct nib_options *resolved = nib_engine_options(s->engine);
    session_warn_of_kernels(resolved->backend);
    s->n_ctx = resolved->n_ctx;
    s->n_rows_max = resolved->n_rows_max;
    if (s->options->verbose)
        cli_note("engine: %s backend, %d threads, %d tokens of context", resolved->backend, resolved->n_threads,
                 resolved->n_ctx);
    return CLI_OK;
}

void session_close(struct session *s)
{
    free(s->logits);
    free(s->mtp_logits);
    free(s->rows);
    nib_seq_close(s->seq);
    nib_engine_close(s->engine);
    nib_tokenizer_close(s->tokenizer);
    nib_model_close(s->model);
    *s = (struct session){0};
}

/* ---- Steps ---- */

static bool make_buffers(struct session *s)
{
    size_t n = (size_t)s->n_rows_max * (size_t)s->info->vocab;
    bool   mtp = nib_engine_options(s->engine)->mtp;

    if (!s->rows)
        s->rows = malloc((size_t)s->n_rows_max * sizeof *s->rows);
    if (!s->logits)
        s->logits = malloc(n * sizeof *s->logits);
    if (!s->mtp_logits && mtp)
        s->mtp_logits = malloc(n * sizeof *s->mtp_logits);
    return s->rows && s->logits && (s->mtp_logits || !mtp);
}

int session_feed(struct session *s, const int32_t *ids, int32_t n, int32_t n_last, session_row_fn *on_row, void *user)
{
    size_t           vocab = (size_t)s->info->vocab;
    struct nib_error err = {0};
    int32_t          n_rows;

    if (!make_buffers(s))
        return cli_fail_memory();
    for (int32_t start = 0; start < n; start += n_rows) {
        n_rows = n - start < s->n_rows_max ? n - start : s->n_rows_max;
        int32_t n_logits = 0;
        for (int32_t i = 0; i < n_rows; i++)
            if (start + i >= n - n_last)
                s->rows[n_logits++] = i;

        int32_t          seq_start[2] = {0, n_rows};
        struct nib_batch batch = {
            .n_rows = n_rows,
            .n_seqs = 1,
            .n_logits = n_logits,
            .token = ids + start,
            .seq_start = seq_start,
            .seq = &s->seq,
            .logits_row = s->rows,
        };
        enum nib_status status = nib_step(s->engine, &batch, s->logits, s->mtp_logits, &err);
        if (status != NIB_OK)
            return session_fail(status, &err);
        for (int32_t i = 0; i < n_logits; i++) {
            const float *mtp = s->mtp_logits ? s->mtp_logits + (size_t)i * vocab : NULL;
            if (!on_row(user, start + s->rows[i], s->logits + (size_t)i * vocab, mtp))
                return CLI_FAILED;
        }
    }
    return CLI_OK;
}

int32_t session_argmax(const struct session *s, const float *logits)
{
    int32_t best = 0;

    for (int32_t i = 0; i < s->info->vocab; i++) {
        if (isnan(logits[i]))
            return -1;
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}

double session_nll(const struct session *s, const float *logits, int32_t id)
{
    int32_t best = session_argmax(s, logits);
    double  sum = 0;

    if (best < 0)
        return NAN;
    for (int32_t i = 0; i < s->info->vocab; i++)
        sum += exp((double)logits[i] - (double)logits[best]);
    return (double)logits[best] + log(sum) - (double)logits[id];
}
