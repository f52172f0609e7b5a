/* The calibration text as token ids. */
#ifndef NIB_CALIBRATION_TEXT_H
#define NIB_CALIBRATION_TEXT_H

#include "model/config.h"

/* Rows longer than this are cut. */
#define NIB_QUANT_PIECE_TOKENS 2048

struct nib_quant_text {
    int32_t *id;    /* [n] */
    int64_t  n;
    int64_t *start; /* [n_pieces + 1] */
    int64_t  n_pieces;
    int32_t  n_longest;
};

/* Read a .jsonl file: a row has "ids" or "prompt_ids" (and "answer_ids") as arrays, or "text" or "prompt" (and
 * "answer") as raw text, which the tokenizer in `dir` encodes behind a beginning of sentence. Empty lines are skipped;
 * an empty file is no text. Errors name the line. */
enum nib_status nib_quant_text_read(const char *path, const char *dir, const struct nib_config *c,
                                    struct nib_quant_text *out, struct nib_error *err);
void nib_quant_text_free(struct nib_quant_text *t);

#endif
