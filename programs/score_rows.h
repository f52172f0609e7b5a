/* The rows of a .jsonl file to be scored, as ids. */
#ifndef NIB_SCORE_ROWS_H
#define NIB_SCORE_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "session.h"

struct score_row {
    int32_t *prompt, *answer; /* owned */
    int32_t  n_prompt, n_answer;
    size_t   category; /* index into score_rows.category */
    int32_t  line;     /* in the file, from 1 */
};

struct score_category {
    char   *name; /* owned; "" gathers the rows that name none */
    int32_t n_rows;
};

struct score_rows {
    struct score_row      *row;
    struct score_category *category; /* in order of first appearance */
    size_t                 n, n_categories, n_room;
};

/* Read at most `limit` rows, and at most `per_category` of each category (0: no limit). The tokenizer of the session
 * is opened when a row holds text. Reports failures and returns an exit code; free with score_rows_deinit either
 * way. */
int  score_rows_load(struct score_rows *out, const char *path, struct session *s, int32_t limit, int32_t per_category);
void score_rows_deinit(struct score_rows *r);

#endif
