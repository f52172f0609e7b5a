/* The parts of a parser of generated text: nibble.h's nib_chat_parser is made of a filter that stops at the end marker,
 * a machine for reasoning and content (chat_parse.c) and one for the block of tool calls (chat_parse_calls.c). */
#ifndef NIB_CHAT_PARSE_H
#define NIB_CHAT_PARSE_H

#include "base/status.h"

/* One parameter of the call being read; value is JSON text. */
struct nib_call_member {
    struct nib_text key, value;
};

/* Everything behind the marker that opens the block. Zero it and set options and message. */
struct nib_call_block {
    const struct nib_chat_parser_options *options;
    struct nib_reply              *message; /* gets the calls that count */
    struct nib_text                       text;
    enum { NIB_CALL_BETWEEN, NIB_CALL_STRING, NIB_CALL_JSON } in; /* between tags, or in a value of that kind */
    size_t                  at;      /* between tags: read up to here; else where the value begins */
    size_t                  scan;    /* value: searched for its end up to here */
    size_t                  emitted; /* string value: given out up to here */
    bool                    open;    /* a call's header was read, not yet its end */
    bool                    closed, blank; /* the block's end was read; nothing but white space came before it */
    int32_t                 n_begun;
    struct nib_text         name;
    struct nib_call_member *member;
    size_t                  n_members, member_capacity;
    size_t                  current;   /* member whose value is being read */
    struct nib_text         fragment;
};

/* Take more text, whole characters; nothing is read behind the block's end. */
enum nib_status nib_call_block_push(struct nib_call_block *b, const char *text, size_t n);

/* The text ends here: the open call counts or is dropped, by `end`. */
enum nib_status nib_call_block_end(struct nib_call_block *b, enum nib_chat_end end);

void nib_call_block_deinit(struct nib_call_block *b);

/* Hand an event to the caller, unless it would say nothing. */
void nib_chat_emit(const struct nib_chat_parser_options *o, enum nib_chat_event_kind kind, int32_t call,
                   const char *text, size_t n);

#endif
