/* Names and buckets are those of vLLM, so that its dashboards work. */
#include "serve_metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct histogram {
    const char *name;
    double      bound[METRIC_BUCKETS_MAX]; /* ends at 0 */
};

#define SECONDS {0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
#define TOKENS  {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000}

static const struct histogram histograms[N_METRICS] = {
    [METRIC_FIRST_TOKEN] = {"vllm:time_to_first_token_seconds",
                            {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
                             40, 80, 160, 640, 2560}},
    [METRIC_BETWEEN_TOKENS] = {"vllm:inter_token_latency_seconds",
                               {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
                                40, 80}},
    [METRIC_REQUEST] = {"vllm:e2e_request_latency_seconds", SECONDS},
    [METRIC_QUEUE] = {"vllm:request_queue_time_seconds", SECONDS},
    [METRIC_PREFILL] = {"vllm:request_prefill_time_seconds", SECONDS},
    [METRIC_DECODE] = {"vllm:request_decode_time_seconds", SECONDS},
    [METRIC_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", TOKENS},
    [METRIC_GENERATED_TOKENS] = {"vllm:request_generation_tokens", TOKENS},
    [METRIC_N_CHOICES] = {"vllm:request_params_n", {1, 2, 5, 10, 20}},
    [METRIC_INFERENCE] = {"vllm:request_inference_time_seconds", SECONDS},
    [METRIC_MAX_TOKENS] = {"vllm:request_params_max_tokens", TOKENS},
    [METRIC_MOST_GENERATED] = {"vllm:request_max_num_generation_tokens", TOKENS},
};

void metrics_init(struct metrics *m)
{
    memset(m, 0, sizeof *m);
    m->start_time = (double)time(NULL);
    (void)pthread_mutex_init(&m->lock, NULL);
}

static void observe(struct metrics *m, enum metric which, double value)
{
    const double *bound = histograms[which].bound;
    int           i = 0;
    while (i < METRIC_BUCKETS_MAX && bound[i] > 0 && value > bound[i])
        i++;
    m->bucket[which][i]++;
    m->sum[which] += value;
}

void metrics_observe(struct metrics *m, enum metric which, double value)
{
    (void)pthread_mutex_lock(&m->lock);
    observe(m, which, value);
    (void)pthread_mutex_unlock(&m->lock);
}

void metrics_end(struct metrics *m, enum outcome outcome, const struct nib_request_result *r)
{
    (void)pthread_mutex_lock(&m->lock);
    m->outcome[outcome]++;
    m->n_generated_tokens += (uint64_t)r->n_generated;
    observe(m, METRIC_REQUEST, r->total_s);
    observe(m, METRIC_QUEUE, r->queue_s);
    if (r->n_generated > 0) {
        m->n_prompt_tokens += (uint64_t)r->n_prompt;
        observe(m, METRIC_PROMPT_TOKENS, r->n_prompt);
        observe(m, METRIC_GENERATED_TOKENS, r->n_generated);
        observe(m, METRIC_PREFILL, r->first_token_s - r->queue_s);
        observe(m, METRIC_DECODE, r->total_s - r->first_token_s);
        observe(m, METRIC_INFERENCE, r->total_s - r->queue_s);
    }
    (void)pthread_mutex_unlock(&m->lock);
}

void metrics_http(struct metrics *m, const char *handler, const char *method, unsigned status, double seconds)
{
    int i = 0;
    (void)pthread_mutex_lock(&m->lock);
    while (i < m->n_handlers && (strcmp(m->handler[i].handler, handler) != 0 || strcmp(m->handler[i].method, method) != 0))
        i++;
    if (i == m->n_handlers && i < N_HANDLERS_MAX)
        m->handler[m->n_handlers++] = (struct handler_metrics){.handler = handler, .method = method};
    if (i < N_HANDLERS_MAX) {
        m->handler[i].status[status / 100 < 6 ? status / 100 : 5]++;
        m->handler[i].seconds += seconds;
        m->handler[i].n++;
    }
    (void)pthread_mutex_unlock(&m->lock);
}

static void write_http(const struct metrics *m, struct buffer *out)
{
    buffer_printf(out, "# TYPE http_requests_total counter\n");
    for (int i = 0; i < m->n_handlers; i++)
        for (int k = 2; k < 6; k++)
            if (m->handler[i].status[k] > 0)
                buffer_printf(out, "http_requests_total{handler=\"%s\",method=\"%s\",status=\"%dxx\"} %llu\n", m->handler[i].handler,
                              m->handler[i].method, k, (unsigned long long)m->handler[i].status[k]);
    buffer_printf(out, "# TYPE http_request_duration_seconds summary\n");
    for (int i = 0; i < m->n_handlers; i++)
        buffer_printf(out, "http_request_duration_seconds_sum{handler=\"%s\",method=\"%s\"} %.9g\n"
                           "http_request_duration_seconds_count{handler=\"%s\",method=\"%s\"} %llu\n",
                      m->handler[i].handler, m->handler[i].method, m->handler[i].seconds, m->handler[i].handler, m->handler[i].method,
                      (unsigned long long)m->handler[i].n);
}

static void write_histogram(const struct metrics *m, enum metric which, const char *labels, struct buffer *out)
{
    const struct histogram *h = &histograms[which];
    uint64_t                count = 0;
    int                     i = 0;

    buffer_printf(out, "# TYPE %s histogram\n", h->name);
    for (; i < METRIC_BUCKETS_MAX && h->bound[i] > 0; i++) {
        count += m->bucket[which][i];
        buffer_printf(out, "%s_bucket{%s,le=\"%g\"} %llu\n", h->name, labels, h->bound[i], (unsigned long long)count);
    }
    count += m->bucket[which][i];
    buffer_printf(out, "%s_bucket{%s,le=\"+Inf\"} %llu\n%s_sum{%s} %.9g\n%s_count{%s} %llu\n", h->name, labels,
                  (unsigned long long)count, h->name, labels, m->sum[which], h->name, labels, (unsigned long long)count);
}

static void write_one(struct buffer *out, const char *name, const char *type, const char *labels, double value)
{
    buffer_printf(out, "# TYPE %s %s\n%s{%s} %.17g\n", name, type, name, labels, value);
}

static void write_steps(const struct nib_server_stats *s, const char *labels, struct buffer *out)
{
    uint64_t count = 0;
    buffer_printf(out, "# TYPE vllm:iteration_tokens_total histogram\n");
    for (int i = 0; i < NIB_SERVER_N_BUCKETS; i++) {
        char bound[16];
        (void)snprintf(bound, sizeof bound, "%d", i == 0 ? 1 : 4 << i);
        count += s->step_rows[i];
        buffer_printf(out, "vllm:iteration_tokens_total_bucket{%s,le=\"%s\"} %llu\n", labels,
                      i == NIB_SERVER_N_BUCKETS - 1 ? "+Inf" : bound, (unsigned long long)count);
    }
    buffer_printf(out, "vllm:iteration_tokens_total_sum{%s} %llu\nvllm:iteration_tokens_total_count{%s} %llu\n", labels,
                  (unsigned long long)s->n_step_rows, labels, (unsigned long long)s->n_steps);
}

static int n_open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int  n = -3; /* itself and the two of every folder */
    if (!d)
        return 0;
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

static void write_process(const struct metrics *m, struct buffer *out)
{
    long  pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%ld %ld", &pages, &resident) != 2)
            resident = 0;
        (void)fclose(f);
    }
    buffer_printf(out, "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes %lld\n",
                  (long long)resident * (long long)sysconf(_SC_PAGESIZE));
    buffer_printf(out, "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total %.3f\n",
                  (double)clock() / CLOCKS_PER_SEC);
    buffer_printf(out, "# TYPE process_open_fds gauge\nprocess_open_fds %d\n", n_open_files());
    buffer_printf(out, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %.0f\n", m->start_time);
}

void metrics_write(struct metrics *m, const struct nib_server_stats *s, const char *model, struct buffer *out)
{
    static const char *const outcomes[N_OUTCOMES] = {"stop", "length", "abort", "error"};
    char                     labels[2200], escaped[2100]; /* a name of 1 KiB, every byte of it escaped */
    size_t                   n = 0;

    for (const char *c = model; *c && n + 3 < sizeof escaped; c++) {
        if (*c == '"' || *c == '\\')
            escaped[n++] = '\\';
        escaped[n++] = *c;
    }
    escaped[n] = '\0';
    (void)snprintf(labels, sizeof labels, "model_name=\"%s\",engine=\"0\"", escaped);
    (void)pthread_mutex_lock(&m->lock);
    write_one(out, "vllm:num_requests_running", "gauge", labels, s->n_running);
    write_one(out, "vllm:num_requests_waiting", "gauge", labels, s->n_waiting);
    write_one(out, "vllm:kv_cache_usage_perc", "gauge", labels, s->n_pages ? (double)s->n_pages_used / s->n_pages : 0);
    write_one(out, "vllm:prefix_cache_queries_total", "counter", labels, (double)s->n_prefix_queries);
    write_one(out, "vllm:prefix_cache_hits_total", "counter", labels, (double)s->n_prefix_hits);
    write_one(out, "vllm:num_preemptions_total", "counter", labels, (double)s->n_preemptions);
    write_one(out, "vllm:prompt_tokens_total", "counter", labels, (double)m->n_prompt_tokens);
    write_one(out, "vllm:generation_tokens_total", "counter", labels, (double)m->n_generated_tokens);
    write_one(out, "vllm:spec_decode_num_drafts_total", "counter", labels, (double)s->n_drafts);
    write_one(out, "vllm:spec_decode_num_draft_tokens_total", "counter", labels, (double)s->n_draft_tokens);
    write_one(out, "vllm:spec_decode_num_accepted_tokens_total", "counter", labels, (double)s->n_accepted_tokens);
    buffer_printf(out, "# TYPE vllm:request_success_total counter\n");
    for (int i = 0; i < N_OUTCOMES; i++)
        buffer_printf(out, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", labels, outcomes[i],
                      (unsigned long long)m->outcome[i]);
    for (enum metric i = 0; i < N_METRICS; i++)
        write_histogram(m, i, labels, out);
    write_steps(s, labels, out);
    buffer_printf(out, "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{%s,block_size=\"128\",num_gpu_blocks=\"%d\","
                       "enable_prefix_caching=\"%s\"} 1\n",
                  labels, s->n_pages, s->n_snapshots_max > 0 ? "True" : "False");
    buffer_printf(out, "# TYPE nibble_kept_beginnings gauge\nnibble_kept_beginnings %d\n", s->n_snapshots);
    write_http(m, out);
    (void)pthread_mutex_unlock(&m->lock);
    write_process(m, out);
}
