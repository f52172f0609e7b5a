/* The inside of nib_tokenizer, for the files src/text/tokenizer*.c and their tests. */
#ifndef NIB_TOKENIZER_H
#define NIB_TOKENIZER_H

#include "base/status.h"
#include "text/bpe.h"
#include "text/pretokenize.h"

enum { NIB_TOKEN_IDS_MAX = 1 << 24 }; /* ids lie below this */

struct nib_token {
    uint32_t start, n_bytes; /* in nib_tokenizer.bytes; no bytes: the id has no token */
    bool     added, special;
};

/* Added tokens in the order of their bytes, so that all that begin alike are neighbours. */
struct nib_added {
    const char *bytes;
    uint32_t    n_bytes;
    int32_t     id;
};

/* Nothing changes after opening. */
struct nib_tokenizer {
    struct nib_text   bytes;
    struct nib_token *token; /* [n_ids] */
    int32_t           n_ids;
    int32_t           byte_id[256];

    struct nib_added *added; /* [n_added], into `bytes` */
    size_t            n_added;
    size_t            added_first[257]; /* those that begin with byte b are added_first[b] to added_first[b + 1] - 1 */

    struct nib_bpe          *bpe;
    struct nib_pretokenizer *pretokenizer;
};

/* Fill the zeroed *t from the file at `path`. On failure what was filled stays for nib_tokenizer_close. */
enum nib_status nib_tokenizer_read(struct nib_tokenizer *t, const char *path, struct nib_error *err);

/* Sort t->added and index it; the index in t->added of one of two equal texts goes to *repeated, else n_added. */
void nib_added_index(struct nib_tokenizer *t, size_t *repeated);

/* The added token with exactly these bytes; NULL if there is none. */
const struct nib_added *nib_added_find(const struct nib_tokenizer *t, const char *bytes, size_t n);

/* Find the leftmost added token in text[from..n), the longest of those that begin there, among those that touch no byte
 * of the ascending literal ranges; *at is where. NULL if there is none. */
const struct nib_added *nib_added_next(const struct nib_tokenizer *t, const char *text, size_t n, size_t from,
                                       const struct nib_range *literal, size_t n_literal, size_t *at);

/* GPT-2's visible alphabet: each byte is written as one printable character. The byte that code point c stands for, -1
 * if it stands for none. */
int32_t nib_byte_of_char(uint32_t c);

#endif
