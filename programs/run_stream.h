/* Showing an answer as its tokens come. */
#ifndef NIB_RUN_STREAM_H
#define NIB_RUN_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "nibble.h"

struct stream_options {
    bool raw;      /* all is text: nothing is taken apart */
    bool thinking; /* the prompt ended with <think> */
    bool tools;    /* look for calls */
    bool print;    /* write to standard output, not only gather */
};

struct stream {
    struct stream_options       options;
    const struct nib_tokenizer *tokenizer;
    int32_t                     eos_id;
    struct nib_chat_parser     *parser; /* NULL if raw */
    struct nib_utf8_stream      utf8;   /* raw */
    struct nib_text             text;   /* raw: the whole answer */
    struct nib_text             name, arguments; /* of the call being read */
    bool                        terminal, colour;
    bool                        reasoning; /* some was shown and not yet closed */
    bool                        said;      /* something of the answer was shown */
    bool                        failed;    /* memory is used up */
    char                        last;      /* printed; 0 at the start */
};

/* false: memory is used up. stream_close is due in any case. */
bool stream_open(struct stream *s, const struct nib_tokenizer *t, int32_t eos_id, const struct stream_options *o);

bool stream_token(struct stream *s, int32_t token);      /* false: memory is used up, or the output is closed */
bool stream_done(const struct stream *s);                /* nothing more will be read: the calls are complete */
bool stream_end(struct stream *s, enum nib_chat_end end); /* flush; false as above */
void stream_close(struct stream *s);

/* After the end, valid until close: the parts. The content of a raw answer is all of it. */
const struct nib_reply *stream_reply(const struct stream *s);
const char             *stream_content(const struct stream *s, size_t *n);

#endif
