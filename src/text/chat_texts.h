/* The fixed texts of V4 prompts: markers here, sections in chat_texts.c. */
#ifndef NIB_CHAT_TEXTS_H
#define NIB_CHAT_TEXTS_H

#include "nibble.h"

#define NIB_MARK_BOS         "<｜begin▁of▁sentence｜>"
#define NIB_MARK_EOS         "<｜end▁of▁sentence｜>"
#define NIB_MARK_USER        "<｜User｜>"
#define NIB_MARK_ASSISTANT   "<｜Assistant｜>"
#define NIB_MARK_REMINDER    "<｜latest_reminder｜>"
#define NIB_MARK_THINK_START "<think>"
#define NIB_MARK_THINK_END   "</think>"
#define NIB_MARK_DSML        "｜DSML｜"

/* Around the tool schemas, one JSON object a line; in front of a response schema. */
extern const char nib_chat_tools_before[], nib_chat_tools_after[], nib_chat_format_before[];

/* What thinking with that effort puts in front of the first message; NULL where the profile does not know it. */
const char *nib_chat_effort_prefix(enum nib_chat_profile profile, enum nib_effort effort);

/* Tasks that a message may end in, and their tokens. */
struct nib_chat_task {
    const char *name, *token;
};
#define NIB_CHAT_N_TASKS 6
extern const struct nib_chat_task nib_chat_tasks[NIB_CHAT_N_TASKS];

#endif
