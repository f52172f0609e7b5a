/* The choices of one request: submitted together, parsed as their tokens come, given out as a stream's events or as one
 * answer at the end. */
#ifndef NIB_SERVE_GENERATE_H
#define NIB_SERVE_GENERATE_H

#include "serve.h"

enum { N_CHOICES_MAX = 16, N_STOP_STRINGS_MAX = 16, STOP_STRING_BYTES_MAX = 256, N_PROMPTS_MAX = 64,
      N_TOOLS_MAX = 128 };

/* What both kinds of request ask for; filled by generation_read and the endpoint. */
struct generation_args {
    bool                   is_chat, streams, include_usage, include_stop, ignore_eos, want_logprobs;
    bool                   tools, one_call;      /* chat: look for calls; stop after the first */
    bool                   thinking;             /* chat: the prompt ended in <think> */
    bool                   wants_json;           /* response_format json_object */
    bool                   echo;
    char                  *model;                /* owned, as all pointers here */
    int32_t                n, n_max, n_min, n_top;
    bool                   has_max;
    char                  *stop[N_STOP_STRINGS_MAX];
    size_t                 n_stop;
    int32_t               *stop_id;
    int32_t                n_stop_id;
    struct nib_logit_bias *bias;
    int32_t                n_bias;
    uint64_t               salt;
    struct nib_sampling    sampling;
    /* Texts one of which a tool call must begin with, as ids; none: free. */
    struct nib_ids        *forced;
    size_t                 n_forced;
    struct nib_ids         prompt[N_PROMPTS_MAX];
    size_t                 n_prompts;
};
void generation_args_free(struct generation_args *a);

bool generation_no_memory(struct exchange *x); /* fills the error; false */

/* Entry i of the array `list`, the field `param`, as a token id; false with the error filled if it is none. */
bool generation_read_id(struct exchange *x, const char *param, const json_t *list, size_t i, int32_t *out);

/* Sampling, limits, stops: the fields that chat and completions share. */
bool generation_read(struct exchange *x, const json_t *body, struct generation_args *a);

/* Submit every choice; takes the contents of *a, also on failure, which fills x->error. */
bool generation_start(struct exchange *x, struct generation_args *a);

void generation_cancel(struct generation *g); /* from any thread; NULL is fine */
void generation_free(struct generation *g);
void generation_log(const struct exchange *x, unsigned status); /* one line of the access log */

#endif
