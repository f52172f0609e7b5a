/* Cutting text into the pieces inside which bytes may merge, by the patterns of a tokenizer.json.
 *
 * Splitters run one after the other, each inside the pieces that the one before left: no pattern sees beyond its
 * piece. A splitter keeps its matches and the gaps between them, in order. Any bytes can be cut: each byte that is no
 * part of a valid UTF-8 character counts as one character of no class (see pretokenize.c). */
#ifndef NIB_PRETOKENIZE_H
#define NIB_PRETOKENIZE_H

#include "base/status.h"

enum { NIB_SPLITTERS_MAX = 16 };

struct nib_pretokenizer;

/* Compile n patterns (valid UTF-8, at most NIB_SPLITTERS_MAX). A pattern that is wrong, or whose escapes mean something
 * else to PCRE2 than to the engine that tokenizer files are written for, is refused (NIB_E_FORMAT, NIB_E_UNSUPPORTED);
 * the text calls it "splitter <index>". */
enum nib_status nib_pretokenizer_open(const char *const *pattern, size_t n, struct nib_pretokenizer **out,
                                      struct nib_error *err);
void            nib_pretokenizer_close(struct nib_pretokenizer *p);

/* Call on_piece for each piece of text[0..n) in order; pieces are never empty and together are the text. The first
 * status but NIB_OK that it returns ends the work and is returned. The only other failures are memory and, with
 * patterns that backtrack without end, NIB_E_LIMIT. Safe from any thread. */
enum nib_status nib_pretokenizer_split(const struct nib_pretokenizer *p, const char *text, size_t n,
                                       enum nib_status (*on_piece)(void *user, const char *bytes, size_t n_bytes),
                                       void *user, struct nib_error *err);

#endif
