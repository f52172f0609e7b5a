/* From what the user gave `nibble run` to token ids. */
#ifndef NIB_RUN_PROMPT_H
#define NIB_RUN_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "nibble.h"
#include "session.h"

struct prompt_options {
    const char *text, *file, *system;
    int32_t     think;   /* 0: off; otherwise an enum nib_effort */
    int32_t     profile; /* enum nib_chat_profile */
    bool        think_given, profile_given, raw, allow_control;
};

/* Report options that do not go together; returns an exit code. */
int prompt_check(const struct prompt_options *o);

/* *out is freed by the caller with nib_ids_free, also on failure. Returns an exit code. */
int prompt_encode(struct session *s, const struct prompt_options *o, struct nib_ids *out);

#endif
