/* The simulator's tensor part: what the tensor instructions of PTX do to bytes, as plain functions.
 *
 * Nothing here knows of threads, warps or time. The core decides when an instruction takes effect and calls one
 * function for it; everything the instruction says is passed as the registers held it, and descriptors are decoded
 * from their bits here, by the tables of the PTX ISA (versions 9.0 and 9.1; sections 9.7.15, 9.7.16 and 5.5),
 * never with help of the kernels' headers.
 *
 *   instruction                        function
 *   cp.async.bulk.tensor (tile, gather4)   sim_tensor_load, sim_tensor_store; bytes for expect_tx: sim_tensor_bytes
 *   cuTensorMapEncodeTiled (host)          sim_tensor_map_encode_tiled: same arguments, own 128 bytes
 *   wgmma.mma_async                        sim_wgmma
 *   mma.sync with and without block scale  sim_mma_sync
 *   tcgen05.alloc, dealloc, relinquish     sim_tmem_alloc, sim_tmem_dealloc, sim_tmem_relinquish; at exit sim_tmem_leak
 *   tcgen05.ld, st                         sim_tmem_load, sim_tmem_store
 *   tcgen05.cp                             sim_tmem_copy
 *   tcgen05.mma                            sim_tcgen05_mma
 *   tcgen05.commit, wait, fences           nothing to compute: the core's own
 *
 * Every function answers true, or false with a sentence in *fault: a reserved encoding, an address out of bounds,
 * an unwritten cell, a lane that the warp may not touch. State is then unspecified.
 *
 * Order: a call reads all its operands, then writes. Reads and writes are announced to `touch` before they happen,
 * so the core can check poison, allocation and happens-before where it knows who does what; a `touch` that answers
 * false stops the call. */
#ifndef SIM_TENSOR_H
#define SIM_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_fault {
    char text[240];
};

/* Writes the sentence and answers false. */
bool sim_fault_set(struct sim_fault *fault, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- What the ISA leaves open --------------------------------------------------------------------------------- */

/* Zeroed: the reading that kernels are written for. Each is tested both ways. */
struct sim_choices {
    /* Sums inside one instruction. false: all products exact, one rounding to fp32 when D is added. true: each
     * scale group (each product where there is no scale) is rounded to fp32 and added to D in ascending k. */
    bool group_sums_in_f32;
    bool flush_scale_subnormals;  /* UE4M3 scales below 2^-6 count as zero */
    bool scale_sign_ignored;      /* top bit of a UE4M3 byte; otherwise a set bit is a fault */
    bool zero_hides_nan_scale;    /* products that are all zero stay zero under a NaN scale */
    bool scales_beyond_n_read;    /* scale words of all columns up to the next multiple of 128 must be written */
    bool lane_of_address_ignored; /* tcgen05.ld/st: lanes come from the warp alone; otherwise they must agree */
    bool base_offset_ignored;     /* descriptors: the swizzle's phase is that of the address alone */
};

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

/* One CTA's shared memory: addresses base .. base + size of its shared window. */
struct sim_shared {
    uint8_t *bytes;
    uint32_t base, size;
    bool (*touch)(void *context, bool write, uint32_t address, uint32_t n_bytes, struct sim_fault *fault); /* or NULL */
    void *context;
};

/* Global memory: the bytes at an address, or NULL if they are not all inside one allocation. */
struct sim_global {
    uint8_t *(*at)(void *context, bool write, uint64_t address, uint64_t n_bytes);
    void *context;
};

#define SIM_TMEM_LANES   128
#define SIM_TMEM_COLUMNS 512
#define SIM_TMEM_UNIT    32 /* columns are given in these */

/* One CTA's tensor memory. An address is lane << 16 | column. */
struct sim_tmem {
    uint32_t cell[SIM_TMEM_LANES][SIM_TMEM_COLUMNS];
    uint8_t  written[SIM_TMEM_LANES][SIM_TMEM_COLUMNS]; /* since the column was allocated */
    int8_t   owner[SIM_TMEM_COLUMNS / SIM_TMEM_UNIT];   /* number of the allocation; -1: free */
    int16_t  n_columns[SIM_TMEM_COLUMNS / SIM_TMEM_UNIT]; /* of that allocation */
    uint32_t last_columns; /* of the latest allocation; 0: none yet */
    int8_t   n_allocations;
    bool     relinquished;
    bool (*touch)(void *context, bool write, uint32_t lane, uint32_t n_lanes, uint32_t column, uint32_t n_columns,
                  struct sim_fault *fault); /* or NULL */
    void *context;
};

/* Nothing allocated, nothing written; cells hold a NaN pattern. Leaves touch and context as they are. */
void sim_tmem_reset(struct sim_tmem *t);

/* ---- Tensor maps and copies ------------------------------------------------------------------------------------- */

/* Numbers as in cuda.h. */
enum sim_map_type {
    SIM_MAP_U8, SIM_MAP_U16, SIM_MAP_U32, SIM_MAP_I32, SIM_MAP_U64, SIM_MAP_I64, SIM_MAP_F16, SIM_MAP_F32, SIM_MAP_F64,
    SIM_MAP_BF16, SIM_MAP_F32_FTZ, SIM_MAP_TF32, SIM_MAP_TF32_FTZ, SIM_MAP_16U4_ALIGN8B, SIM_MAP_16U4_ALIGN16B,
    SIM_MAP_16U6_ALIGN16B
};
enum sim_map_swizzle { SIM_MAP_SWIZZLE_NONE, SIM_MAP_SWIZZLE_32B, SIM_MAP_SWIZZLE_64B, SIM_MAP_SWIZZLE_128B };

/* Stands in for CUtensorMap. */
struct sim_tensor_map {
    _Alignas(64) uint64_t word[16];
};

/* Same arguments and results as cuTensorMapEncodeTiled (0, or 1 for an invalid value), so its address can be
 * handed out for it. All documented requirements are checked; the reason for a refusal is in
 * sim_tensor_map_reason(). Not modelled and refused: interleave, 6-bit types, 128-byte swizzles with larger atoms. */
int sim_tensor_map_encode_tiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dim,
                                const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride,
                                int interleave, int swizzle, int l2, int fill);
const char *sim_tensor_map_reason(void); /* of the last refusal in this thread */

struct sim_tensor_copy {
    const struct sim_tensor_map *map;
    int                          n_dims;   /* of the instruction: .1d to .5d; 2 for gather4 */
    bool                         gather4;  /* coordinate[0], then four rows in coordinate[1..4] */
    int32_t                      coordinate[5]; /* fastest dimension first */
    uint32_t                     shared;   /* address of the box */
};

/* Bytes that the copy writes to shared memory, elements outside the tensor included; 0 if the map is none. */
uint32_t sim_tensor_bytes(const struct sim_tensor_map *map, bool gather4);
bool sim_tensor_load(const struct sim_tensor_copy *c, const struct sim_global *from, const struct sim_shared *to,
                     struct sim_fault *fault);
bool sim_tensor_store(const struct sim_tensor_copy *c, const struct sim_shared *from, const struct sim_global *to,
                      struct sim_fault *fault);

/* ---- Matrices in shared memory ---------------------------------------------------------------------------------- */

/* A decoded descriptor. */
struct sim_matrix {
    uint32_t start, leading, stride; /* bytes */
    uint32_t base_offset;
    uint32_t span;                   /* bytes that the swizzle permutes: 0 (none), 32, 64, 128 */
};

bool sim_matrix_decode_wgmma(uint64_t descriptor, struct sim_matrix *m, struct sim_fault *fault);
bool sim_matrix_decode_tcgen05(uint64_t descriptor, struct sim_matrix *m, struct sim_fault *fault);

/* Address of a 16-byte piece. K-major: `line` is the row (m or n), `piece` counts along k. MN-major: `line` is k,
 * `piece` counts along m or n. */
uint32_t sim_matrix_address(const struct sim_matrix *m, bool k_major, uint32_t line, uint32_t piece,
                            const struct sim_choices *choices);

/* ---- Element types ---------------------------------------------------------------------------------------------- */

enum sim_element {
    SIM_E2M1, SIM_E2M3, SIM_E3M2, SIM_E4M3, SIM_E5M2, SIM_F16, SIM_BF16, SIM_UE4M3, SIM_UE8M0
};

/* Exact for every code; NaN and Inf where the type has them. */
float sim_element_value(enum sim_element e, uint32_t code);

/* ---- wgmma ------------------------------------------------------------------------------------------------------ */

/* d[t][i] is register i of thread t of the warpgroup, n / 2 of them. */
struct sim_wgmma {
    enum sim_element  type;          /* SIM_F16, SIM_BF16: m64nNk16; SIM_E4M3, SIM_E5M2: m64nNk32 */
    enum sim_element  b_type;        /* as type, but E4M3 and E5M2 may mix */
    int               n;
    bool              a_in_registers;
    const uint32_t  (*a)[4];         /* [128][4] */
    uint64_t          a_descriptor, b_descriptor;
    bool              accumulate;    /* scale-d */
    bool              negate_a, negate_b, transpose_a, transpose_b;
    float           (*d)[128];       /* [128][128] */
};
bool sim_wgmma(const struct sim_wgmma *w, const struct sim_choices *choices, const struct sim_shared *shared,
               struct sim_fault *fault);

/* ---- mma.sync --------------------------------------------------------------------------------------------------- */

enum sim_scale { SIM_SCALE_NONE, SIM_SCALE_1X, SIM_SCALE_2X, SIM_SCALE_4X, SIM_SCALE_BLOCK16, SIM_SCALE_BLOCK32 };

/* fp32 accumulators. Shapes by type: SIM_F16, SIM_BF16 m16n8k16; 8-bit containers m16n8k32 (E4M3, E5M2, E2M3,
 * E3M2, E2M1); `packed` E2M1 (kind::mxf4, kind::mxf4nvf4) m16n8k64. Arrays are [lane][register]. */
struct sim_mma_sync {
    enum sim_element a_type, b_type;
    bool             packed;
    enum sim_scale   scale;      /* NONE, or 1X with m16n8k32, 2X and 4X with m16n8k64 */
    enum sim_element scale_type; /* SIM_UE8M0, SIM_UE4M3 */
    const uint32_t (*a)[4], (*b)[2], *scale_a, *scale_b; /* [32] */
    uint32_t         byte_a, thread_a, byte_b, thread_b;
    float          (*d)[4];      /* C in, D out */
};
bool sim_mma_sync(const struct sim_mma_sync *m, const struct sim_choices *choices, struct sim_fault *fault);

/* ---- Tensor memory ---------------------------------------------------------------------------------------------- */

enum sim_alloc { SIM_ALLOC_DONE, SIM_ALLOC_WAIT, SIM_ALLOC_FAULT };

/* The lowest free range; WAIT when there is none now. */
enum sim_alloc sim_tmem_alloc(struct sim_tmem *t, uint32_t n_columns, uint32_t *address, struct sim_fault *fault);
bool sim_tmem_dealloc(struct sim_tmem *t, uint32_t address, uint32_t n_columns, struct sim_fault *fault);
void sim_tmem_relinquish(struct sim_tmem *t);
/* False, with a sentence, if anything is still allocated. */
bool sim_tmem_leak(const struct sim_tmem *t, struct sim_fault *fault);

/* Lanes x bits of tcgen05.ld and st; x1 .. x128 is `times`. */
enum sim_tmem_shape { SIM_TMEM_32X32B, SIM_TMEM_16X128B, SIM_TMEM_16X256B };
int sim_tmem_registers(enum sim_tmem_shape shape, int times); /* a thread's; 0 if there is no such form */

/* r[lane][register]. warp: %warpid of the CTA. The core makes registers valid at wait::ld. */
bool sim_tmem_load(struct sim_tmem *t, enum sim_tmem_shape shape, int times, uint32_t address, uint32_t warp,
                   const struct sim_choices *choices, uint32_t (*r)[128], struct sim_fault *fault);
bool sim_tmem_store(struct sim_tmem *t, enum sim_tmem_shape shape, int times, uint32_t address, uint32_t warp,
                    const struct sim_choices *choices, const uint32_t (*r)[128], struct sim_fault *fault);

/* tcgen05.cp without decompression. cta_group::2 is two calls, each CTA's shared memory to its own tensor memory: an
 * assumption, as the ISA does not say which shared memory feeds the peer. 4x256b is not modelled. */
enum sim_copy_shape {
    SIM_COPY_128X256B, SIM_COPY_128X128B, SIM_COPY_4X256B, SIM_COPY_64X128B_02_13, SIM_COPY_64X128B_01_23,
    SIM_COPY_32X128B_X4
};
bool sim_tmem_copy(struct sim_tmem *t, enum sim_copy_shape shape, uint32_t address, uint64_t descriptor,
                   const struct sim_shared *shared, const struct sim_choices *choices, struct sim_fault *fault);

/* ---- tcgen05.mma ------------------------------------------------------------------------------------------------ */

enum sim_mma_kind { SIM_KIND_F16, SIM_KIND_F8F6F4, SIM_KIND_MXF8F6F4, SIM_KIND_MXF4, SIM_KIND_MXF4NVF4 };

struct sim_tcgen05_mma {
    enum sim_mma_kind kind;
    enum sim_scale    scale;
    int               n_ctas; /* cta_group */
    uint32_t          idesc;
    uint64_t          a_descriptor, b_descriptor;
    bool              a_in_tmem;
    uint32_t          a_address, d_address, scale_a_address, scale_b_address;
    bool              accumulate; /* enable-input-d */
};

/* The shape and types that an instruction descriptor asks for. */
struct sim_instruction {
    int              m, n, k;
    enum sim_element a_type, b_type, scale_type;
    bool             negate_a, negate_b, transpose_a, transpose_b;
    uint32_t         scale_a_id, scale_b_id;
    int              group; /* k of one scale; k where there is none */
};
bool sim_instruction_decode(enum sim_mma_kind kind, enum sim_scale scale, int n_ctas, uint32_t idesc,
                            struct sim_instruction *out, struct sim_fault *fault);

/* shared[i], tmem[i]: CTA i of the pair, even one first; one of each with cta_group::1. Not modelled and refused:
 * sparse, K = 96, fp16 accumulators, M = 128 over two CTAs with block scales. */
bool sim_tcgen05_mma(const struct sim_tcgen05_mma *m, const struct sim_choices *choices,
                     const struct sim_shared *const *shared, struct sim_tmem *const *tmem, struct sim_fault *fault);

#endif
