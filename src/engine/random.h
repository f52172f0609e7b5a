/* Counter-based random numbers: the draw at an output position depends on the seed and the position alone, so batching,
 * scheduling and preemption do not change it. Philox 4x32-10 (Salmon et al., SC'11). */
#ifndef NIB_RANDOM_H
#define NIB_RANDOM_H

#include <stdint.h>

/* Four words for (key, counter, stream). */
void nib_philox(uint64_t key, uint64_t counter, uint64_t stream, uint32_t out[4]);

/* In [0, 1), 24 bits, so that it is exact in fp32 and never rounds to 1. */
float nib_uniform(uint64_t seed, uint64_t position, uint64_t stream);

#endif
