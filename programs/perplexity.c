/* Windows of a text through the model; the definition is in perplexity.h. */
#include "perplexity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "input.h"
#include "output.h"
#include "progress.h"

struct window_sum {
    const struct session *session;
    const int32_t        *id; /* wanted at each row of the present window */
    struct progress       progress;
    uint64_t              n_done, n_total;
    double                nll;
};

static bool see_row(void *user, int32_t i, const float *logits, const float *mtp_logits)
{
    struct window_sum *w = user;
    double             nll = session_nll(w->session, logits, w->id[i]);

    (void)mtp_logits;
    if (isnan(nll)) {
        (void)cli_fail("the logits before token %d of a window hold NaN", i);
        return false;
    }
    w->nll += nll;
    progress_update(&w->progress, ++w->n_done, w->n_total);
    return true;
}

static int encode_file(struct session *s, const char *path, struct nib_ids *ids)
{
    struct nib_error err = {0};
    char            *text;
    size_t           n_bytes;

    if (!input_read_file("score", path, &text, &n_bytes))
        return CLI_FAILED;
    struct nib_range everything = {0, n_bytes};
    enum nib_status  status = nib_tokenizer_encode(s->tokenizer, text, n_bytes, &everything, 1, ids, &err);
    free(text);
    if (status != NIB_OK)
        return session_fail(status, &err);
    return ids->n > 0 ? CLI_OK : cli_fail("%s: holds no text", path);
}

static int print_result(const struct window_sum *w, int32_t n_windows, bool json)
{
    double nll = w->nll / (double)w->n_done;

    if (json)
        return output_json(json_pack("{s:I, s:i, s:o, s:o}", "tokens", (json_int_t)w->n_done, "windows", n_windows,
                                     "nll", output_real(nll), "perplexity", output_real(exp(nll))));
    (void)printf("tokens %llu, windows %d, nll %.6f, perplexity %.4f\n", (unsigned long long)w->n_done, n_windows, nll,
                 exp(nll));
    return CLI_OK;
}

static int score_windows(struct session *s, const struct nib_ids *ids, int32_t limit, bool json)
{
    size_t            n_window = (size_t)s->n_ctx, n_used = ids->n;
    struct window_sum w = {.session = s};
    int32_t           n_windows = 0;
    int               code = CLI_OK;

    int32_t *fed = malloc(n_window * sizeof *fed);
    if (!fed)
        return cli_fail_memory();
    if (limit > 0 && n_used / n_window >= (size_t)limit)
        n_used = (size_t)limit * n_window;
    w.n_total = n_used;
    progress_start(&w.progress, "scoring", "tok");
    for (size_t start = 0; start < n_used && code == CLI_OK; start += n_window) {
        size_t n = n_used - start < n_window ? n_used - start : n_window;
        fed[0] = s->info->bos_id;
        memcpy(fed + 1, ids->id + start, (n - 1) * sizeof *fed);
        w.id = ids->id + start;
        enum nib_status status = nib_seq_truncate(s->seq, 0);
        code = status == NIB_OK ? session_feed(s, fed, (int32_t)n, (int32_t)n, see_row, &w)
                                : session_fail(status, NULL);
        n_windows++;
    }
    progress_finish(&w.progress);
    free(fed);
    return code == CLI_OK ? print_result(&w, n_windows, json) : code;
}

int perplexity_score(struct session *s, const char *path, int32_t limit, bool json)
{
    struct nib_ids ids = {0};
    int            code = session_open_tokenizer(s);

    if (code == CLI_OK)
        code = encode_file(s, path, &ids);
    if (code == CLI_OK)
        code = session_open_engine(s, 0, false);
    if (code == CLI_OK)
        code = score_windows(s, &ids, limit, json);
    nib_ids_free(&ids);
    return code;
}
