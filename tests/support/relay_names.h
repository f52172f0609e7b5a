/* The official tensor names in Hugging Face's spelling. */
#ifndef RELAY_NAMES_H
#define RELAY_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* False if `official` is not a name of the official layout, or out (n bytes) is too short. */
bool relay_hf_name(const char *official, char *out, size_t n);

#endif
