/* From what the user gave `nibble run` to token ids. */
#ifndef NIB_RUN_PROMPT_H
#define NIB_RUN_PROMPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "nibble.h"
#include "session.h"

struct prompt_options {
    const char *text, *file, *system, *tools; /* tools: a file */
    int32_t     think;   /* 0: off; otherwise an enum nib_effort */
    int32_t     profile; /* enum nib_chat_profile */
    bool        think_given, profile_given, raw, allow_control;
};

/* Values of --think and --chat-profile; NULL-terminated. */
extern const char *const prompt_think_names[], *const prompt_profile_names[];

/* Report options that do not go together; `chat`: no prompt is needed. Returns an exit code, as all of these do. */
int prompt_check(const struct prompt_options *o, bool chat);

/* *out is freed by the caller with nib_ids_free, also on failure. *has_tools: calls may come. */
int prompt_encode(struct session *s, const struct prompt_options *o, struct nib_ids *out, bool *has_tools);

/* Which prompt rules apply. */
int prompt_profile(const struct session *s, const struct prompt_options *o, enum nib_chat_profile *out);

/* The file of --tools: a JSON array, as text. NULL where there is none or it is empty; the caller frees it. */
int prompt_read_tools(const struct prompt_options *o, char **out);

/* Append {"role": ..., "content": ...}. `what` names the text in messages. */
int prompt_add_message(json_t *messages, const char *what, const char *role, const char *text, size_t n_bytes);

/* A conversation to text and ids, freed by the caller with nib_prompt_free and nib_ids_free, also on failure. */
struct prompt_rules {
    enum nib_chat_profile profile;
    int32_t               think; /* as in prompt_options */
    bool                  allow_control;
    bool                  as_reference;  /* no turn is opened where the releases' own encoder opens none */
    bool                  keep_thinking; /* reasoning of earlier turns too */
};
int prompt_render(const struct session *s, const struct prompt_rules *r, const char *messages, const char *tools,
                  struct nib_prompt *text, struct nib_ids *ids);

#endif
