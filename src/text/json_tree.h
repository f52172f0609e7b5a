/* A JSON text as an ordered tree that still knows how each number was spelled, and its way back to text.
 *
 * Reading is strict (RFC 8259, UTF-8, nothing but white space around the value) with these choices: a surrogate escape
 * without its partner becomes U+FFFD; a duplicate key keeps its first place and its last value. */
#ifndef NIB_JSON_TREE_H
#define NIB_JSON_TREE_H

#include "base/arena.h"
#include "base/status.h"

#define NIB_TREE_DEPTH_MAX  128               /* arrays and objects open at once */
#define NIB_TREE_BYTES_MAX  ((size_t)64 << 20) /* of one text */
#define NIB_TREE_VALUES_MAX ((size_t)4 << 20)  /* of one text; the tree takes 24 to 40 bytes for each */

enum nib_tree_type {
    NIB_TREE_NULL, NIB_TREE_FALSE, NIB_TREE_TRUE, NIB_TREE_NUMBER, NIB_TREE_STRING, NIB_TREE_ARRAY, NIB_TREE_OBJECT
};

struct nib_tree_member;

struct nib_tree {
    enum nib_tree_type type;
    size_t             n; /* STRING, NUMBER: bytes of text; ARRAY, OBJECT: values held */
    union {
        const char             *text;   /* STRING: decoded UTF-8, may hold NUL; NUMBER: as spelled; no NUL behind */
        struct nib_tree        *item;   /* ARRAY [n] */
        struct nib_tree_member *member; /* OBJECT [n], in the order of the text */
    } as;
};

struct nib_tree_member {
    const char     *key;
    size_t          n_key;
    struct nib_tree value;
};

/* Read one value. `what` names the text in errors, which tell the byte offset: NIB_E_FORMAT for a text that is not
 * JSON, NIB_E_LIMIT for one beyond the limits above. The tree points into text and lives in the arena: both must
 * outlive it. *out is NULL on failure. */
enum nib_status nib_tree_parse(const char *text, size_t n, const char *what, struct nib_arena *arena,
                               struct nib_tree **out, struct nib_error *err);

/* A member's value by key; NULL if absent or if v is not an object. */
struct nib_tree *nib_tree_get(const struct nib_tree *v, const char *key);

bool        nib_tree_is_text(const struct nib_tree *v, const char *text); /* a string equal to text */
const char *nib_tree_type_name(const struct nib_tree *v);                 /* for messages: "null", "a number", ... */

/* Append v in the form of Python's json.dumps(v, ensure_ascii=False): ", " and ": " between, strings raw but for
 * quotes, backslashes and control characters, integers digit by digit, other numbers as the shortest double. A number
 * beyond the double range is NIB_E_FORMAT; `what` names v in the error. On failure out holds part of the text. */
enum nib_status nib_tree_write(const struct nib_tree *v, const char *what, struct nib_text *out, struct nib_error *err);

/* Append s as it stands inside a JSON string of that form, without the quotes around it. */
enum nib_status nib_tree_escape(const char *s, size_t n, struct nib_text *out);

#endif
