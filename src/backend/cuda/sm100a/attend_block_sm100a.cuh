/* What the warps of attend_sm100a.cu share: sizes, shared memory, the rows that a block attends to. */
#ifndef NIB_ATTEND_BLOCK_SM100A_CUH
#define NIB_ATTEND_BLOCK_SM100A_CUH

#include "backend/cuda/device/attended.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/tcgen05.cuh"
#include "backend/cuda/sm100a/sm100a.h"

constexpr int kD = kAttendDim, kNope = kAttendNope, kRot = kAttendRot;
constexpr int kColumns = NIB_SM100A_ATTEND_COLUMNS, kTile = 128, kChunk = 64, kChunks = kD / kChunk;
constexpr int kPairs = kChunks / 2; /* of chunks: the 128 channels of one product's lanes */
constexpr int kWeighWarps = 4, kProductWarp = 4, kLoadWarps = 4, kThreads = NIB_SM100A_ATTEND_THREADS;
constexpr int kRowsEach = kTile / kLoadWarps, kUnits = kRowsEach / 4; /* of a warp; 16 bytes a lane of a chunk */
constexpr int kDepth = 3;                                              /* chunks of BF16 rows on their way */
constexpr int kAhead = 1, kRing = 2; /* chunks of other rows read before they are decoded, and room for them */
constexpr int kTmemColumns = 512;
constexpr uint32_t kScores = 384, kRotaryScores = 448; /* first columns; sums stand from 0 on */
/* A maximum is raised only when it has grown by this many powers of two: sums need not be scaled for less, and weights
 * of up to 256 are as exact as those of up to 1. */
constexpr float kLate = 8.0f;
constexpr float kLog2E = 1.4426950408889634f;
static_assert(kThreads == 32 * (kWeighWarps + 1 + kLoadWarps), "a role for each warp");
static_assert(kNope % kChunk == 0 && kRot == kChunk, "the last chunk is the rotary one");

/* Heads of a block: a column each for bf16 queries (one part); two for fp32 ones (two bf16 parts), head h and then, 32
 * columns on, what its first part leaves. Weights are two parts too: with 64 heads in sets of their own (shared.p), with
 * 32 in the columns of one. */
template <int parts> constexpr int kHeads = kColumns / parts;
template <int parts> constexpr int kHalves = 2 / parts; /* of 32 heads */

struct barriers {
    uint64_t full[kChunks], empty[kPairs], scored, weighed, turn, added; /* turn: NVFP4's first weights are used up */
};

struct shared {
    union {
        uint16_t kv[kChunks][kTile][kChunk];
        float    o[kColumns][kD]; /* of a block of a cluster, in the end; by head, as all below */
    };
    uint16_t        q[kChunks][kColumns][kChunk];
    uint16_t        p[2][kTile][kColumns];
    float           most[kWeighWarps][kColumns]; /* maxima of a tile; in the end totals */
    float           peak[kColumns], fade[kColumns];
    float           angle[kRot];
    struct barriers bar;
    uint32_t        tmem;
};
static_assert(sizeof(struct shared) + 1024 == NIB_SM100A_ATTEND_SHARED, "what the host asks for");
static_assert(NIB_SM100A_ATTEND_SHARED <= 232448, "a block's memory must fit");

struct work {
    const struct nib_attend_args *a;
    struct nib_attended           at;
    int64_t                       t;
    int32_t                       h0, begin, end; /* attended rows of this block */
};

NIB_DEVICE uint32_t at(const void *p)
{
    return nib_shared_address(p);
}

/* Where 16 bytes, `unit` of the 8 of a row, stand under the swizzle. */
NIB_DEVICE uint4 *unit_of(uint16_t (*rows)[64], int row, int unit)
{
    return (uint4 *)&rows[row][(unit ^ row % 8) * 8];
}

NIB_DEVICE void weighers_sync(void)
{
    asm volatile("bar.sync 1, 128;" ::: "memory");
}

#endif
