/* Blackwell's conversion to E2M1. */
#ifndef NIB_CUDA_E2M1_CUH
#define NIB_CUDA_E2M1_CUH

#include "backend/cuda/device/numbers.cuh"

/* E2M1 codes of eight values, the first lowest. */
NIB_DEVICE uint32_t nib_e2m1_of(const float v[8])
{
    uint32_t codes;
    asm("{\n.reg .b8 a, b, c, d;\ncvt.rn.satfinite.e2m1x2.f32 a, %2, %1;\ncvt.rn.satfinite.e2m1x2.f32 b, %4, %3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 c, %6, %5;\ncvt.rn.satfinite.e2m1x2.f32 d, %8, %7;\nmov.b32 %0, {a, b, c, d};\n}"
        : "=r"(codes)
        : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
    return codes;
}

#endif
