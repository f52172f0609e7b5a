/* What self-tests of kernels found on this machine, kept in a file so that they need not run at every start. A line for
 * each part of the kernels of one card, driver and program, which `key` stands for.
 *
 * Nothing here is an error: where the file is not there, is not ours, is damaged or cannot be written, tests run again.
 * Safe from any thread and process: the file is replaced as a whole. */
#ifndef NIB_VERDICTS_H
#define NIB_VERDICTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether `part`'s test has run under this key. why: what failed, "" if nothing did. path NULL: there is no file. */
bool nib_verdict_find(const char *path, uint64_t key, const char *part, char *why, size_t why_bytes);
/* Keeps that it has, in folders that are made where they are missing. A file that is there and is not ours stays as it
 * is. */
void nib_verdict_keep(const char *path, uint64_t key, const char *part, const char *why);

/* h with n bytes more. */
uint64_t nib_verdict_hash(uint64_t h, const void *bytes, size_t n);

#endif
