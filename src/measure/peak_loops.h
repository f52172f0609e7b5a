/* Loops that do one thing as fast as the processor can, one set for each level of its instructions. */
#ifndef NIB_PEAK_LOOPS_H
#define NIB_PEAK_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nib_peak_loops {
    bool (*runs_here)(void);
    /* Read all bytes (a multiple of 4096, aligned to 64); the result depends on each. */
    uint64_t (*read)(const void *data, size_t bytes);
    /* n rounds of many independent products and sums; the result depends on each. Operations of one round, two a
     * product. */
    float (*fp32)(int64_t n);
    int64_t fp32_ops;
    uint64_t (*int8)(int64_t n);
    int64_t  int8_ops;
};

/* Ends with an entry whose runs_here is NULL; a missing loop is NULL. The first always runs. */
extern const struct nib_peak_loops nib_peak_loops[];

#endif
