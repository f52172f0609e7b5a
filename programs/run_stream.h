/* Showing an answer as its tokens come. */
#ifndef NIB_RUN_STREAM_H
#define NIB_RUN_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "nibble.h"

struct stream {
    const struct nib_tokenizer *tokenizer;
    int32_t                     eos_id, think_end_id; /* -1: the tokenizer has no </think> */
    bool                        thinking;             /* still before </think> */
    bool                        print, terminal;
    struct nib_utf8_stream      utf8;
    struct nib_text             answer, reasoning;
    char                        last; /* printed; 0 at the start */
};

/* thinking: the prompt ended with <think>. print: write to standard output, not only gather. */
void stream_open(struct stream *s, const struct nib_tokenizer *t, int32_t eos_id, bool thinking, bool print);

bool stream_token(struct stream *s, int32_t token); /* false: memory is used up, or the output is closed */
bool stream_end(struct stream *s);                  /* flush; likewise */
void stream_close(struct stream *s);

#endif
