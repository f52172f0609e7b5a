/* UTF-8, one character at a time. The streaming decoder of nibble.h is in utf8.c too. */
#ifndef NIB_UTF8_H
#define NIB_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The well-formed character (surrogates and overlong forms excluded) at the start of s[0..n): its length, 1 to 4, and
 * its code point in *c (may be NULL); 0 if there is none. */
size_t nib_utf8_decode(const char *s, size_t n, uint32_t *c);

/* Write c, a code point up to 0x10FFFF; returns its length. Surrogates become U+FFFD. */
size_t nib_utf8_encode(uint32_t c, char out[4]);

#endif
