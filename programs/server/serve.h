/* The server as its parts see it: settings and the model (struct serve), and one HTTP request with what it is answered
 * (struct exchange).
 *
 * Threads: HTTP requests are read and answered on libmicrohttpd's threads; tokens arrive on the library's one; a watch
 * thread looks for clients that left and keeps quiet streams alive. Whatever of an exchange more than one of them
 * touches is guarded by its lock. */
#ifndef NIB_SERVE_H
#define NIB_SERVE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "nibble.h"
#include "serve_buffer.h"
#include "serve_fields.h"
#include "serve_metrics.h"
#include "serve_replay.h"

enum { REASONING_CONTENT, REASONING_SHORT, REASONING_BOTH }; /* reasoning_content, reasoning */

struct serve_settings {
    const char *host, *api_key, *api_key_file, *served_name, *cors;
    int32_t     port, n_running, n_waiting, n_prefill, max_body_mb, max_unsent_mb, log_level;
    int32_t     drain_timeout_s, queue_timeout_s, request_timeout_s, receive_timeout_s, idle_timeout_s;
    int32_t     reasoning_field, default_effort; /* of enum nib_effort */
    bool        allow_control_tokens, any_model;
};

/* What the log's last line about it counted. */
struct throughput {
    double   time;
    uint64_t n_prompt, n_generated, n_queries, n_hits;
};

struct serve {
    const struct serve_settings  *settings;
    const struct nib_model_info  *info;
    struct nib_tokenizer         *tokenizer;
    struct nib_server            *engine; /* set before ready */
    enum nib_chat_profile         profile;
    const char                   *name, *dir;
    const char                   *other_names; /* further names of the model, with commas between; may be empty */
    int32_t                       n_ctx, dsml_id, think_end_id;
    int64_t                       start_time; /* seconds since 1970 */
    char                        **keys; /* [n_keys] API keys; none: no key is asked for */
    size_t                        n_keys;
    atomic_bool                   ready, draining;
    struct metrics                metrics;
    struct replay                *replay;
    struct throughput             throughput; /* the watch's */
    struct MHD_Daemon            *daemon;
    pthread_t                     watch;
    atomic_bool                   watch_ends;
    pthread_mutex_t               lock; /* of the list */
    struct exchange              *exchanges; /* those that wait for tokens */
    struct exchange              *told;      /* those that tokens or ends came for since the last were woken; the engine's thread's */
    struct link                  *links;     /* every connection */
    atomic_int                    n_exchanges; /* all of them */
};

struct generation; /* serve_generate.h */

/* A client's connection, and how long it may take until its next request is here. */
struct link {
    struct link *next, *previous; /* in serve->links */
    int          socket;
    double       limit; /* serve->lock */
};

struct exchange {
    struct serve           *serve;
    struct MHD_Connection  *connection;
    struct link            *link; /* NULL without memory for one */
    const struct route     *route;
    char                    id[40]; /* request id */
    char                    client[64];
    struct buffer           body;
    struct api_error        error;
    double                  start;
    bool                    answered, dispatched;
    /* What a plain endpoint answers. */
    char                   *text; /* owned; malloc'd */
    size_t                  n_text;
    const char             *content_type;
    /* While tokens come. */
    struct exchange        *next, *previous; /* in serve->exchanges */
    bool                    watched;
    int                     socket;
    atomic_int              n_refs; /* the connection's and each choice's */
    pthread_mutex_t         lock;
    struct generation      *generation;
    bool                    streams, suspended, finished; /* lock */
    bool                    begun; /* lock; a stream's headers are out */
    struct buffer           out;      /* lock; a stream's events, or the whole answer */
    double                  last_out; /* lock; when something was last put into it */
    struct exchange        *next_told; /* in serve->told, which holds a reference */
    bool                    is_told;   /* it is in there; the engine's thread's */
};

/* Endpoints: take the body (NUL-terminated) and leave text, or an error, or a generation that runs. */
typedef void route_fn(struct exchange *x);
struct route {
    const char *path;   /* without a trailing slash */
    const char *method; /* "GET" or "POST" */
    route_fn   *run;
    bool        is_public;  /* needs no key */
    bool        needs_model; /* 503 until the weights are loaded */
    bool        is_quiet;   /* not in the access log */
};

enum { N_CONNECTIONS_MAX = 4096 };

/* serve_http.c */
int  serve_http_check(const struct serve_settings *o); /* the address; an exit code, the mistake reported */
bool serve_http_start(struct serve *s);                /* with checked settings; reports its own failure */
void serve_http_stop(struct serve *s);  /* after generations have ended */

/* serve_exchange.c */
double serve_now(void); /* seconds, monotonic */
void   serve_random(void *out, size_t n); /* n bytes, at most 256, that nobody can guess */
struct exchange *exchange_new(struct serve *s, struct MHD_Connection *connection); /* NULL without memory */
void exchange_answer(struct exchange *x, json_t *object); /* takes the object; an error where it is NULL */
void exchange_wake(struct exchange *x);   /* with its lock held: where there is something to send, or it is finished */
void exchange_tell(struct exchange *x);   /* on the engine's thread: to be woken with all others of the step */
void exchange_wake_told(void *serve);     /* on the engine's thread; nib_server_options' on_told */
void exchange_unref(struct exchange *x);
void exchange_watch(struct exchange *x);  /* until unwatched or ended */
void exchange_unwatch(struct exchange *x);
void exchange_set_limit(struct exchange *x, double time); /* by when its request must be here; INFINITY: it is */
void link_changed(void *user, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what);
bool watch_start(struct serve *s);
void watch_stop(struct serve *s);

/* Endpoints. */
void serve_chat(struct exchange *x);
void serve_completions(struct exchange *x);
void serve_tokenize(struct exchange *x);
void serve_detokenize(struct exchange *x);
void serve_models(struct exchange *x);
void serve_health(struct exchange *x);
void serve_version(struct exchange *x);
void serve_metrics(struct exchange *x);
void serve_page(struct exchange *x);

/* Whether a request may name this model; fills the error if not. *name is what to answer with. */
bool serve_check_model(struct exchange *x, const json_t *body, const char **name);

/* The prompt of a conversation: ids, and whether the model will think. raw_* are JSON texts; tools may be NULL. */
struct chat_prompt {
    bool           thinking;
    bool           has_prefix; /* the last message is continued */
    struct nib_ids ids;
};
bool serve_encode_chat(struct exchange *x, const json_t *body, struct chat_prompt *out);

#endif
