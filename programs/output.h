/* Results as JSON, and sizes for people. */
#ifndef NIB_OUTPUT_H
#define NIB_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A JSON number; null for NaN and infinities, which JSON cannot hold. */
json_t *output_real(double value);

/* Print the object on standard output, keys in the order in which they were set, floats with the nine digits that
 * give back the same float; then release it. Returns an exit code; a NULL object counts as memory used up. */
int output_json(json_t *object);

/* Whether a file descriptor is a terminal on which the cursor can be moved (by TERM); and whether colours are wanted
 * there too (by NO_COLOR). */
bool output_is_screen(int fd);
bool output_has_colour(int fd);

/* Print a text that came from a file: its control characters become spaces, so that none reaches the terminal. */
void output_plain(const char *text);

/* "1.5 GiB", "117 B". Returns out. */
const char *output_bytes(char out[32], uint64_t bytes);

/* "14.6 M". Returns out. */
const char *output_count(char out[32], uint64_t count);

#endif
