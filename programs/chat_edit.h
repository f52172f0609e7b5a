/* The text being edited, and how it is drawn: one row of the terminal, a window that moves with the cursor. */
#ifndef NIB_CHAT_EDIT_H
#define NIB_CHAT_EDIT_H

#include <stdbool.h>
#include <stddef.h>

/* More than any message; keeps a stuck paste from filling memory. */
#define CHAT_EDIT_BYTES_MAX ((size_t)16 << 20)

/* All zero: empty. Positions are bytes; the cursor stands before a whole character. Bytes that are no UTF-8 are kept,
 * each a character of its own. */
struct chat_edit {
    char  *text; /* [n], no NUL */
    size_t n, room, cursor;
    size_t first;  /* where the window begins */
    bool   failed; /* something did not fit or memory is used up; stays set */
};

void chat_edit_insert(struct chat_edit *e, const char *bytes, size_t n);
void chat_edit_erase(struct chat_edit *e, size_t from, size_t to); /* the cursor goes to from */
void chat_edit_set(struct chat_edit *e, const char *bytes, size_t n);
void chat_edit_free(struct chat_edit *e);

size_t chat_edit_next(const struct chat_edit *e, size_t at);     /* behind the character at `at` */
size_t chat_edit_previous(const struct chat_edit *e, size_t at); /* before the one before it */
size_t chat_edit_next_word(const struct chat_edit *e, size_t at);
size_t chat_edit_previous_word(const struct chat_edit *e, size_t at);

/* Write prompt and window to standard output, over what is drawn there, for a terminal of n_columns. */
void chat_edit_draw(struct chat_edit *e, const char *prompt, int n_columns);

/* Write prompt and all of the text in place of the window, as it stays on the screen; a long one shortened. */
void chat_edit_draw_whole(const struct chat_edit *e, const char *prompt);

/* Take control characters out of pasted text, all line ends becoming '\n'. Returns how many bytes are left. */
size_t chat_edit_clean(char *bytes, size_t n);

#endif
