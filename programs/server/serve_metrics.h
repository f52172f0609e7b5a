/* Counters and histograms under vLLM's names, in Prometheus' text format. Safe from any thread. */
#ifndef NIB_SERVE_METRICS_H
#define NIB_SERVE_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include "nibble.h"
#include "serve_buffer.h"

enum metric {
    METRIC_FIRST_TOKEN, METRIC_BETWEEN_TOKENS, METRIC_REQUEST, METRIC_QUEUE, METRIC_PREFILL, METRIC_DECODE,
    METRIC_PROMPT_TOKENS, METRIC_GENERATED_TOKENS, METRIC_N_CHOICES,
    METRIC_INFERENCE, METRIC_MAX_TOKENS, METRIC_MOST_GENERATED, N_METRICS
};
enum { METRIC_BUCKETS_MAX = 24 };
enum outcome { OUTCOME_STOP, OUTCOME_LENGTH, OUTCOME_ABORT, OUTCOME_ERROR, N_OUTCOMES };

enum { N_HANDLERS_MAX = 32 };

/* Answers of one path and method. */
struct handler_metrics {
    const char *handler, *method;
    uint64_t    status[6]; /* by hundreds */
    uint64_t    n;
    double      seconds;
};

struct metrics {
    pthread_mutex_t lock;
    uint64_t        bucket[N_METRICS][METRIC_BUCKETS_MAX + 1];
    double          sum[N_METRICS];
    uint64_t        outcome[N_OUTCOMES], n_prompt_tokens, n_generated_tokens;
    struct handler_metrics handler[N_HANDLERS_MAX]; /* [n_handlers] */
    int                    n_handlers;
    double                 start_time; /* seconds since 1970 */
};

void metrics_init(struct metrics *m);
void metrics_observe(struct metrics *m, enum metric which, double value);
void metrics_end(struct metrics *m, enum outcome outcome, const struct nib_request_result *r);
/* An answer; handler and method are kept as pointers. */
void metrics_http(struct metrics *m, const char *handler, const char *method, unsigned status, double seconds);
void metrics_write(struct metrics *m, const struct nib_server_stats *stats, const char *model, struct buffer *out);

#endif
