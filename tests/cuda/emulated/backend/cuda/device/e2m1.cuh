/* In the place of the file of this name in src/: the conversion to E2M1 without the instruction. */
#ifndef NIB_CUDA_E2M1_CUH
#define NIB_CUDA_E2M1_CUH

#include "backend/cuda/device/numbers.cuh"

/* E2M1 codes of eight values, the first lowest: to the nearest, to an even code from half way, 6 and above to 6. NaN
 * becomes 6, as the instruction has it. */
NIB_DEVICE uint32_t nib_e2m1_of(const float v[8])
{
    uint32_t codes = 0;
    for (int i = 0; i < 8; i++) {
        float    a = fabsf(v[i]);
        uint32_t code = a != a     ? 7u
                        : a > 5.0f ? 7u
                        : a >= 3.5f ? 6u
                        : a > 2.5f  ? 5u
                        : a >= 1.75f ? 4u
                        : a > 1.25f  ? 3u
                        : a >= 0.75f ? 2u
                        : a > 0.25f  ? 1u
                                     : 0u;
        codes |= (code | (a == a && signbit(v[i]) ? 8u : 0u)) << 4 * i;
    }
    return codes;
}

#endif
