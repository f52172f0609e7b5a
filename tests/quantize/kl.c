/* kl SOURCE EVALUATION FOLDER...: mean Kullback-Leibler divergence, in nats, of next-token distributions from those of
 * SOURCE, for each FOLDER. Over all positions of every 34th row of EVALUATION (JSON lines with prompt_ids and
 * answer_ids) that has at most 800 ids: a row or two of each kind. kl.sh leaves these rows out of its calibration
 * texts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "nibble.h"

enum { EVERY = 34, N_IDS_MAX = 800, N_ROWS_MAX = 64 };

struct row {
    int32_t n, id[N_IDS_MAX];
    float  *logits; /* [n][vocab] of the source */
};

static struct row g_row[N_ROWS_MAX];
static int        g_n_rows;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "kl: %s: %s\n", what, why);
    exit(1);
}

static void add_ids(struct row *r, const json_t *ids, bool *fits)
{
    for (size_t i = 0; i < json_array_size(ids); i++) {
        *fits = *fits && r->n < N_IDS_MAX;
        if (*fits)
            r->id[r->n++] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
}

static void read_rows(const char *path)
{
    static char line[1 << 20];
    FILE       *f = fopen(path, "r");
    if (!f)
        fail(path, "cannot be opened");
    for (int i = 0; fgets(line, sizeof line, f); i++) {
        json_t *j = i % EVERY == 0 && g_n_rows < N_ROWS_MAX ? json_loads(line, 0, NULL) : NULL;
        bool    fits = j != NULL;
        g_row[g_n_rows % N_ROWS_MAX].n = 0;
        add_ids(&g_row[g_n_rows % N_ROWS_MAX], json_object_get(j, "prompt_ids"), &fits);
        add_ids(&g_row[g_n_rows % N_ROWS_MAX], json_object_get(j, "answer_ids"), &fits);
        g_n_rows += fits;
        json_decref(j);
    }
    (void)fclose(f);
}

static double kl(const float *p, const float *q, int32_t n)
{
    double p_most = -INFINITY, q_most = -INFINITY, p_sum = 0, q_sum = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        p_most = fmax(p_most, (double)p[i]);
        q_most = fmax(q_most, (double)q[i]);
    }
    for (int32_t i = 0; i < n; i++) {
        p_sum += exp((double)p[i] - p_most);
        q_sum += exp((double)q[i] - q_most);
    }
    for (int32_t i = 0; i < n; i++) {
        const double lp = (double)p[i] - p_most - log(p_sum), lq = (double)q[i] - q_most - log(q_sum);
        sum += exp(lp) * (lp - lq);
    }
    return sum;
}

/* Of the source, logits are kept; of another, they are compared. */
static void run(const char *folder, bool source)
{
    struct nib_error   err = {NIB_OK, ""};
    struct nib_options o;
    struct nib_model  *m;
    struct nib_engine *e;
    double             sum = 0, most = 0;
    int64_t            n = 0;
    nib_options_init(&o);
    o.backend = "cpu";
    o.act_quant = NIB_ACT_QUANT_NONE; /* what is measured is the weights */
    o.n_ctx = 1024;
    o.n_rows_max = N_IDS_MAX;
    if (nib_model_open(folder, &m, &err) != NIB_OK || nib_engine_open(m, &o, &e, &err) != NIB_OK)
        fail(folder, err.text);
    const int32_t vocab = nib_model_get_info(m)->vocab;
    float        *logits = malloc(sizeof *logits * N_IDS_MAX * (size_t)vocab);
    for (int i = 0; i < g_n_rows && logits; i++) {
        struct row     *r = &g_row[i];
        struct nib_seq *s;
        int32_t         every[N_IDS_MAX];
        for (int32_t k = 0; k < r->n; k++)
            every[k] = k;
        if (source)
            r->logits = malloc(sizeof *logits * (size_t)r->n * (size_t)vocab);
        float                 *to = source ? r->logits : logits;
        const struct nib_batch b = {.n_rows = r->n, .n_seqs = 1, .n_logits = r->n, .token = r->id,
                                    .seq_start = (int32_t[]){0, r->n}, .seq = &s, .logits_row = every};
        if (!to || nib_seq_open(e, &s, &err) != NIB_OK || nib_step(e, &b, to, NULL, &err) != NIB_OK)
            fail(folder, to ? err.text : "no memory");
        nib_seq_close(s);
        for (int32_t k = 0; k < r->n && !source; k++, n++) {
            const double v = kl(r->logits + (size_t)k * (size_t)vocab, logits + (size_t)k * (size_t)vocab, vocab);
            sum += v;
            most = fmax(most, v);
        }
    }
    free(logits);
    nib_engine_close(e);
    nib_model_close(m);
    if (!source)
        printf("%-40s mean KL %.3e, most %.2e, %lld positions of %d rows\n", folder, sum / (double)n, most,
               (long long)n, g_n_rows);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        fail("usage", "kl SOURCE EVALUATION FOLDER...");
    read_rows(argv[2]);
    if (g_n_rows == 0)
        fail(argv[2], "holds no rows with prompt_ids");
    run(argv[1], true);
    for (int i = 3; i < argc; i++)
        run(argv[i], false);
    for (int i = 0; i < g_n_rows; i++)
        free(g_row[i].logits);
    return 0;
}
