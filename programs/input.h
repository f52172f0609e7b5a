/* Reading what a user hands over: files, id lists, JSON rows. Every function reports its own failures. */
#ifndef NIB_INPUT_H
#define NIB_INPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A whole file, "-" for standard input. *out is owned by the caller (free) and has a NUL after n_bytes. `what` names
 * the file's role in messages ("--ids"). */
bool input_read_file(const char *what, const char *path, char **out, size_t *n_bytes);

/* Offset of the first byte that is not part of valid UTF-8; n_bytes if there is none. */
size_t input_utf8_valid_bytes(const char *text, size_t n_bytes);

/* The list itself ("1,2,3"), or a file or "-" that holds one: numbers separated by commas or white space, with or
 * without the brackets of JSON. Each id must be in 0..vocab-1. *out is owned by the caller (free); never empty.
 * Returns an exit code: a wrong list is a usage mistake, a wrong file a failure. */
int input_ids(const char *what, const char *list_or_path, int32_t vocab, int32_t **out, int32_t *n);

/* The same from a text that is the list; it is changed. `what` names it in the failure. */
bool input_text_ids(const char *what, char *text, size_t n_bytes, int32_t vocab, int32_t **out, int32_t *n);

/* The same from a JSON array of integers. */
bool input_json_ids(const char *what, const json_t *array, int32_t vocab, int32_t **out, int32_t *n);

#endif
