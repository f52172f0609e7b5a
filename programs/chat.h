/* nibble run as a conversation on a terminal. chat.c: the loop and its commands; chat_turn.c: one question and its
 * answer; chat_seq.c: the engine's sequence; chat_file.c: saved conversations; chat_line.c and chat_edit.c: what is
 * typed. */
#ifndef NIB_CHAT_H
#define NIB_CHAT_H

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "chat_seq.h"
#include "nibble.h"
#include "run_prompt.h"
#include "session.h"

struct chat_options {
    const struct prompt_options *prompt;
    const struct nib_sampling   *sampling;
    int32_t                      n_max;    /* tokens of an answer; 0: until the context is full */
    int32_t                      n_drafts; /* as in nib_generate_args */
};

struct chat {
    struct session            *s;
    const struct chat_options *o;
    struct prompt_rules        rules;
    char                      *tools;    /* JSON text; NULL: none */
    json_t                    *messages; /* the conversation, as nib_chat_encode takes it */
    struct chat_seq            seq;
    bool                       lost; /* the device failed, or the output is closed: nothing more can be done */
};

/* Set by Ctrl-C while an answer is made. */
extern volatile sig_atomic_t chat_interrupted;

/* Talk until the user leaves. The session has an engine, opened with `forks`. Returns an exit code. */
int chat_run(struct session *s, const struct chat_options *o);

/* ---- chat_turn.c ---- */

/* Append a message of that role and let the model answer, on standard output. A message that got no answer is taken
 * back, and why was told. A tool's result that others are still missing with is only kept. */
void chat_say(struct chat *c, const char *role, const char *text, size_t n_bytes);

/* The call whose result is due next; NULL if none is. Strings valid until the messages change. */
struct chat_call {
    const char *id, *name;
};
bool chat_call_due(const json_t *messages, struct chat_call *out);

/* ---- chat_file.c ---- */

/* Write the conversation, or read one in place of the present one. False: why not was told, and nothing changed. */
bool chat_save(const struct chat *c, const char *path);
bool chat_load(struct chat *c, const char *path);

#endif
