/* One choice while it is generated: its parser, what it has said, and how that becomes events. */
#ifndef NIB_SERVE_CHOICE_H
#define NIB_SERVE_CHOICE_H

#include "serve_generate.h"

struct choice_call {
    char          id[32];
    struct buffer name, arguments;
};

struct choice {
    struct generation        *generation;
    int32_t                   index;
    struct nib_request       *handle;
    struct nib_chat_parser   *parser; /* chat */
    struct nib_utf8_stream    utf8;   /* completions */
    struct buffer             content, reasoning, held; /* held: may still become a stop string */
    struct choice_call       *calls;
    int32_t                   n_calls;
    json_t                   *logprobs;      /* array of all tokens' entries */
    size_t                    n_logprobs_sent;
    int32_t                  *ids; /* [n_ids] drawn, stop ids left out; only where there are tools */
    size_t                    n_ids, ids_capacity;
    int32_t                   n_tokens, n_reasoning;
    bool                      said_first; /* a chat's role, a completion's echo */
    bool                      stopped, ended, calls_ended_turn;
    size_t                    n_forced_done; /* tokens of a forced call so far */
    uint64_t                  forced_out[2]; /* of args.forced: those that differ from what came, by bits */
    bool                      forcing, forced;
    int32_t                   allowed[N_TOOLS_MAX];
    double                    last_token;
    enum nib_chat_finish      finish;
    struct nib_request_result result;
};

struct generation {
    struct exchange       *exchange;
    struct generation_args args;
    struct choice         *choice; /* [n] */
    int32_t                n, n_ended;
    char                   id[48];
    int64_t                created;
    bool                   failed;
    atomic_bool            cancelled;
    char                  *event_head; /* owned; how every event of text begins, up to the choice; NULL: not made yet */
};

/* *c is zeroed. False without memory. */
bool choice_init(struct choice *c, struct generation *g, int32_t index);

/* A token came; the exchange is locked. True to go on. */
bool choice_token(struct choice *c, const struct nib_drawn_token *t);

/* It ended: what is held goes out, the last chunk too. The exchange is locked. */
void choice_end(struct choice *c, const struct nib_request_result *r);

/* serve_logprobs.c: a token's entry, and what a chunk or an answer carries of the entries from `from` on. */
void    choice_keep_logprob(struct choice *c, const struct nib_drawn_token *t);
json_t *choice_logprobs(struct choice *c, size_t from);

/* A token of a prescribed call came. */
void choice_take_forced(struct choice *c, int32_t id);

/* Which tokens may come next where a call is prescribed; 0: any. */
int32_t choice_allowed(struct choice *c);

json_t *choice_answer(struct choice *c); /* an entry of "choices" */
void    choice_free(struct choice *c);

/* One event of the stream. */
void generation_event(struct generation *g, json_t *object);
/* One that brings text and nothing else, under that name in a chat's delta (NULL in completions). The same bytes,
 * straight. */
void generation_text_event(struct generation *g, int32_t index, const char *name, const char *text, size_t n);
json_t *generation_chunk(const struct generation *g, json_t *choices); /* takes choices */
json_t *generation_usage(const struct generation *g);

#endif
