/* The block-scaled product of a warp. A file of its own, so that a program for another card can put a slow equal in its
 * place and run everything around it. */
#ifndef NIB_MMA_SM120A_CUH
#define NIB_MMA_SM120A_CUH

#include <stdint.h>

/* d += a b, a 16 x 64, b 64 x 8 of E2M1, a UE4M3 scale for 16 values of k. Lane (g, l) = (lane / 4, lane % 4) holds of
 * a: rows g, g+8, g, g+8 at k = 8l, 8l, 8l+32, 8l+32 (eight values each); of b: column g at k = 8l, 8l+32; of d: rows
 * g, g, g+8, g+8 at columns 2l, 2l+1, 2l, 2l+1. Four scales in a word, lowest k lowest: of rows g and g+8 in lanes l =
 * 0 and 1, of column g in lane l = 0; other lanes' words are not read.
 *
 * Public descriptions disagree on which lanes other thread selectors than 0 mean for b; callers give every lane of a
 * quad the same words (of a: lanes 2 and 3 those of 0 and 1), so that it cannot matter. */
static __device__ __forceinline__ void nib_mma_nvfp4_warp(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                                          uint32_t scale_a, uint32_t scale_b)
{
    asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, {0, 0}, %11, {0, 0};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(scale_a), "r"(scale_b));
}

/* d += a b, a 16 x 32 of E4M3 (FP8) or of E2M1 in bits 2 to 5 of bytes, b 32 x 8 of E4M3, a UE8M0 scale for a row of a
 * and for a column of b. Lane (g, l) holds of a: rows g, g+8, g, g+8 at k = 4l, 4l, 4l+16, 4l+16 (four values each); of
 * b: column g at k = 4l, 4l+16; d and who holds whose scales as above. The scale of a is byte `step` of its word, of b
 * byte 0. step is a constant where this is inlined. */
template <bool FP8>
static __device__ __forceinline__ void nib_mma_mx_warp(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                                       uint32_t scale_a, uint32_t scale_b, int step)
{
#define NIB_MMA_MX(type, byte)                                                                                         \
    asm("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32." type ".e4m3.f32.ue8m0 "      \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, {" byte ", 0}, %11, {0, 0};"             \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                               \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(scale_a), "r"(scale_b))
#define NIB_MMA_MX_STEP(byte)                                                                                          \
    if (FP8)                                                                                                           \
        NIB_MMA_MX("e4m3", byte);                                                                                      \
    else                                                                                                               \
        NIB_MMA_MX("e2m1", byte)
    switch (step) {
    case 0: NIB_MMA_MX_STEP("0"); break;
    case 1: NIB_MMA_MX_STEP("1"); break;
    case 2: NIB_MMA_MX_STEP("2"); break;
    default: NIB_MMA_MX_STEP("3"); break;
    }
#undef NIB_MMA_MX_STEP
#undef NIB_MMA_MX
}

/* d += a b as nib_mma_nvfp4_warp does, with a UE8M0 scale for 32 values of k: two in a word, those at byte `byte` (0 or
 * 2), lower k first. */
template <int byte>
static __device__ __forceinline__ void nib_mma_mxf4_warp(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                                         uint32_t scale_a, uint32_t scale_b)
{
    asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, {%12, 0}, %11, {%12, 0};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(scale_a), "r"(scale_b), "n"(byte));
}

#endif
