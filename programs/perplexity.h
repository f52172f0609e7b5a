/* Perplexity of a plain text. */
#ifndef NIB_PERPLEXITY_H
#define NIB_PERPLEXITY_H

#include <stdbool.h>
#include <stdint.h>

#include "session.h"

/* Score the file and print the result. The text is encoded with control tokens as plain text and cut into windows
 * that do not overlap; each begins anew with the beginning-of-sentence token in front and holds as many tokens as
 * the context. limit: windows at most, 0 for all. The session must have no engine yet. Returns an exit code. */
int perplexity_score(struct session *s, const char *path, int32_t limit, bool json);

#endif
