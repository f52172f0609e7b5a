/* Memory that ends at a chosen allocation, for tests of what then happens.
 *
 * Programs with alloc_fail.c linked in have the allocator replaced. Without sanitizers every allocation of the process
 * counts, those of libraries too, except those of the OpenMP runtime (which ends the program without memory). Under
 * sanitizers, which have an allocator of their own, those of nibble and of jansson count; the linker has to wrap them
 * (tests/faults/CMakeLists.txt). */
#ifndef ALLOC_FAIL_H
#define ALLOC_FAIL_H

#include <stdbool.h>

#include "nibble.h"

/* The n-th allocation from now, counted from 1, fails, and with `sticky` all later ones too. 0: none does. */
void alloc_fail_arm(long n, bool sticky);

/* From here on none fails. The number of allocations since alloc_fail_arm. */
long alloc_fail_disarm(void);

/* Whether this C library can do it. */
bool alloc_fail_works(void);

/* Blocks allocated and not freed. */
long alloc_fail_live(void);

struct alloc_fail_case {
    const char *name;
    /* Do it, check what came of it if it succeeded, and release everything. */
    enum nib_status (*run)(void *user, struct nib_error *err);
    void *user;
};

/* Run the case with every n-th allocation failing (at most about n_runs of them, evenly; 0: all): each must end with
 * NIB_E_MEMORY and a text, or succeed regardless, leave nothing allocated, and an untouched run afterwards must
 * succeed. Fails the cmocka test otherwise. */
void alloc_fail_check(const struct alloc_fail_case *c, long n_runs);

#endif
