/* One streamed chat request as `bench --serve` makes and times it. */
#ifndef NIB_BENCH_SERVE_REQUEST_H
#define NIB_BENCH_SERVE_REQUEST_H

#include <stdint.h>

#include "http_client.h"

/* Seconds, ascending once times_sort was called. Once memory is used up, `failed` is set and what comes is dropped. */
struct times {
    double *at;
    size_t  n, capacity;
    bool    failed;
};
void   times_add(struct times *t, double seconds);
void   times_sort(struct times *t);
double times_percentile(const struct times *t, double percent); /* the nearest rank; NaN of nothing */
void   times_free(struct times *t);

double bench_serve_now(void); /* seconds of a clock that is never set */

/* What a request came to. Gaps go straight to a list that requests share. */
struct request_result {
    bool    ok, has_usage;
    char    why[HTTP_WHY_BYTES]; /* where it failed */
    double  first_s, total_s;    /* from sending it to the first text, and to its end */
    int64_t n_events;            /* that held text */
    int64_t n_prompt, n_cached, n_generated; /* as the server counts; n_generated is n_events without usage */
};

struct request_shape {
    const char *model;
    int32_t     n_words;  /* of the message */
    int32_t     max_tokens;
    uint64_t    number;   /* decides the words, so that no two messages begin alike */
};

/* gaps: between each two events that held text; may be NULL. */
void bench_serve_request(struct http_client *c, const struct request_shape *shape, struct times *gaps,
                         struct request_result *out);

/* The name of the first model the server has, for free(); NULL with why[] filled. */
char *bench_serve_first_model(struct http_client *c, char why[HTTP_WHY_BYTES]);

#endif
