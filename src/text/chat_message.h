/* A conversation between its JSON and its prompt: messages as structs, merged into turns, put in order.
 *
 * chat.c drives: read -> (normalise) -> attach tools -> merge -> join with the context -> sort -> drop -> render. */
#ifndef NIB_CHAT_MESSAGE_H
#define NIB_CHAT_MESSAGE_H

#include "text/json_tree.h"

enum nib_chat_role {
    NIB_CHAT_SYSTEM, NIB_CHAT_DEVELOPER, NIB_CHAT_USER, NIB_CHAT_ASSISTANT, NIB_CHAT_TOOL, NIB_CHAT_LATEST_REMINDER,
    NIB_CHAT_FUNCTION, /* only before normalising */
    NIB_CHAT_OTHER_ROLE
};

/* A piece of a user turn: what a user said, or what a tool answered. */
struct nib_chat_block {
    bool                   is_result;
    const struct nib_tree *content;
    const struct nib_tree *call_id; /* of a result; NULL if absent */
    size_t                 index;   /* of the message it came from */
};

/* Values point into the JSON tree; NULL where the message has no such key. */
struct nib_chat_message {
    enum nib_chat_role     role;
    const char            *list;  /* "messages" or "context", and */
    size_t                 index; /* the place there, for errors */
    const struct nib_tree *role_text, *content, *reasoning, *tool_calls, *call_id, *tools, *response_format, *task;
    const struct nib_tree *reasoning_alias; /* "reasoning": some clients' name for reasoning_content */
    bool                   without_eos, prefix;
    struct nib_chat_block *block; /* [n_blocks] of a user message after merging */
    size_t                 n_blocks;
};

struct nib_chat_list {
    struct nib_chat_message *message; /* [n] */
    size_t                   n;
};

/* Whether Python would take the value as true; NULL is false. */
bool nib_chat_is_true(const struct nib_tree *v);

/* "messages[3].content: found a number, wanted ..." */
enum nib_status nib_chat_bad_value(const struct nib_chat_message *m, const char *key, const struct nib_tree *found,
                                   const char *wanted, struct nib_error *err);

/* An array of message objects to a list, which lives in the arena with one message to spare in front (for
 * nib_chat_attach_tools). */
enum nib_status nib_chat_read(const struct nib_tree *array, const char *list, struct nib_arena *arena,
                              struct nib_chat_list *out, struct nib_error *err);

/* What the caller means rather than what the reference would crash on or print: see chat_normalise.c. Changes the
 * messages and, where call arguments are objects, their tree. */
enum nib_status nib_chat_normalise(struct nib_chat_list *list, struct nib_arena *arena, struct nib_error *err);

/* Request-level tools go to the first message if that is a system or developer message, else to an empty system message
 * put in front. */
enum nib_status nib_chat_attach_tools(struct nib_chat_list *list, const struct nib_tree *tools, struct nib_error *err);

/* Users and tools in a row become one user turn of blocks. In place. */
enum nib_status nib_chat_merge(struct nib_chat_list *list, struct nib_arena *arena);

/* a followed by b. */
enum nib_status nib_chat_join(const struct nib_chat_list *a, const struct nib_chat_list *b, struct nib_arena *arena,
                              struct nib_chat_list *out);

/* Tool results of a turn in the order of the calls they answer. */
enum nib_status nib_chat_sort_results(struct nib_chat_list *list, struct nib_arena *arena);

/* Index of the last user or developer message, -1 if there is none. */
ptrdiff_t nib_chat_last_user(const struct nib_chat_list *list);

/* Without the messages that a prompt with thinking leaves out before the last user message. In place. */
void nib_chat_drop(struct nib_chat_list *list);

#endif
