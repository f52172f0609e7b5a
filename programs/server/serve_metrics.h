/* Counters and histograms under vLLM's names, in Prometheus' text format. Safe from any thread. */
#ifndef NIB_SERVE_METRICS_H
#define NIB_SERVE_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include "nibble.h"
#include "serve_buffer.h"

enum metric {
    METRIC_FIRST_TOKEN, METRIC_BETWEEN_TOKENS, METRIC_REQUEST, METRIC_QUEUE, METRIC_PREFILL, METRIC_DECODE,
    METRIC_PROMPT_TOKENS, METRIC_GENERATED_TOKENS, METRIC_N_CHOICES, N_METRICS
};
enum { METRIC_BUCKETS_MAX = 24 };
enum outcome { OUTCOME_STOP, OUTCOME_LENGTH, OUTCOME_ABORT, OUTCOME_ERROR, N_OUTCOMES };

struct metrics {
    pthread_mutex_t lock;
    uint64_t        bucket[N_METRICS][METRIC_BUCKETS_MAX + 1];
    double          sum[N_METRICS];
    uint64_t        outcome[N_OUTCOMES], n_prompt_tokens, n_generated_tokens;
    uint64_t        http_status[6]; /* by hundreds */
};

void metrics_init(struct metrics *m);
void metrics_observe(struct metrics *m, enum metric which, double value);
void metrics_end(struct metrics *m, enum outcome outcome, const struct nib_request_result *r);
void metrics_http(struct metrics *m, unsigned status);
void metrics_write(struct metrics *m, const struct nib_server_stats *stats, const char *model, struct buffer *out);

#endif
