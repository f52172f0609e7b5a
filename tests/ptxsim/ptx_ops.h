/* The opcodes and modifiers that the simulator knows: a list each. Included by ptx_module.h and, for the texts, ptx_decode.c. */
#ifndef PTX_OPS_H
#define PTX_OPS_H

/* Opcode, its text, least and most written operands, and the modifiers it may carry beside types, comparisons and spaces. */
#define PX_OPS(X)                                                                                                     \
    X(PX_ADD, "add", 3, 3, "rn rz rm rp ftz sat cc")                                                                  \
    X(PX_ADDC, "addc", 3, 3, "cc")                                                                                    \
    X(PX_SUB, "sub", 3, 3, "rn rz rm rp ftz sat cc")                                                                  \
    X(PX_SUBC, "subc", 3, 3, "cc")                                                                                    \
    X(PX_MUL, "mul", 3, 3, "rn rz rm rp ftz sat lo hi wide")                                                          \
    X(PX_MAD, "mad", 4, 4, "rn rz rm rp ftz sat lo hi wide cc")                                                       \
    X(PX_MADC, "madc", 4, 4, "lo hi cc")                                                                              \
    X(PX_MUL24, "mul24", 3, 3, "lo hi")                                                                               \
    X(PX_FMA, "fma", 4, 4, "rn rz rm rp ftz sat relu")                                                                \
    X(PX_DIV, "div", 3, 3, "rn rz rm rp ftz approx full")                                                             \
    X(PX_REM, "rem", 3, 3, "")                                                                                        \
    X(PX_ABS, "abs", 2, 2, "ftz")                                                                                     \
    X(PX_NEG, "neg", 2, 2, "ftz")                                                                                     \
    X(PX_MIN, "min", 3, 4, "ftz NaN xorsign relu")                                                                    \
    X(PX_MAX, "max", 3, 4, "ftz NaN xorsign relu")                                                                    \
    X(PX_SAD, "sad", 4, 4, "")                                                                                        \
    X(PX_POPC, "popc", 2, 2, "")                                                                                      \
    X(PX_CLZ, "clz", 2, 2, "")                                                                                        \
    X(PX_BREV, "brev", 2, 2, "")                                                                                      \
    X(PX_BFIND, "bfind", 2, 2, "shiftamt")                                                                            \
    X(PX_BFE, "bfe", 4, 4, "")                                                                                        \
    X(PX_BFI, "bfi", 5, 5, "")                                                                                        \
    X(PX_BMSK, "bmsk", 3, 3, "clamp wrap")                                                                            \
    X(PX_SZEXT, "szext", 3, 3, "clamp wrap")                                                                          \
    X(PX_FNS, "fns", 4, 4, "")                                                                                        \
    X(PX_DP4A, "dp4a", 4, 4, "")                                                                                      \
    X(PX_DP2A, "dp2a", 4, 4, "lo hi")                                                                                 \
    X(PX_AND, "and", 3, 3, "")                                                                                        \
    X(PX_OR, "or", 3, 3, "")                                                                                          \
    X(PX_XOR, "xor", 3, 3, "")                                                                                        \
    X(PX_NOT, "not", 2, 2, "")                                                                                        \
    X(PX_CNOT, "cnot", 2, 2, "")                                                                                      \
    X(PX_LOP3, "lop3", 5, 5, "")                                                                                      \
    X(PX_SHL, "shl", 3, 3, "")                                                                                        \
    X(PX_SHR, "shr", 3, 3, "")                                                                                        \
    X(PX_SHF, "shf", 4, 4, "l r clamp wrap")                                                                          \
    X(PX_PRMT, "prmt", 4, 4, "f4e b4e rc8 ecl ecr rc16")                                                              \
    X(PX_MOV, "mov", 2, 2, "")                                                                                        \
    X(PX_CVT, "cvt", 2, 4, "rn rz rm rp rni rzi rmi rpi rna ftz sat satfinite relu")                                  \
    X(PX_CVTA, "cvta", 2, 2, "to")                                                                                    \
    X(PX_ISSPACEP, "isspacep", 2, 2, "")                                                                              \
    X(PX_MAPA, "mapa", 3, 3, "")                                                                                      \
    X(PX_GETCTARANK, "getctarank", 2, 2, "")                                                                          \
    X(PX_SETP, "setp", 3, 4, "ftz")                                                                                   \
    X(PX_SET, "set", 3, 4, "ftz")                                                                                     \
    X(PX_SELP, "selp", 4, 4, "")                                                                                      \
    X(PX_SLCT, "slct", 4, 4, "ftz")                                                                                   \
    X(PX_TESTP, "testp", 2, 2, "finite infinite number notanumber normal subnormal")                                  \
    X(PX_COPYSIGN, "copysign", 3, 3, "")                                                                              \
    X(PX_RCP, "rcp", 2, 2, "rn rz rm rp ftz approx")                                                                  \
    X(PX_SQRT, "sqrt", 2, 2, "rn rz rm rp ftz approx")                                                                \
    X(PX_RSQRT, "rsqrt", 2, 2, "ftz approx")                                                                          \
    X(PX_EX2, "ex2", 2, 2, "ftz approx")                                                                              \
    X(PX_LG2, "lg2", 2, 2, "ftz approx")                                                                              \
    X(PX_SIN, "sin", 2, 2, "ftz approx")                                                                              \
    X(PX_COS, "cos", 2, 2, "ftz approx")                                                                              \
    X(PX_TANH, "tanh", 2, 2, "approx")                                                                                \
    X(PX_LD, "ld", 2, 3, "volatile relaxed acquire weak cta cluster gpu sys nc L1::no_allocate L1::evict_first "      \
      "L1::evict_last L1::evict_normal L1::evict_unchanged L2::64B L2::128B L2::256B L2::cache_hint ca cg cs lu cv")  \
    X(PX_LDU, "ldu", 2, 2, "")                                                                                        \
    X(PX_ST, "st", 2, 3, "volatile relaxed release weak cta cluster gpu sys L1::no_allocate L1::evict_first "         \
      "L1::evict_last L1::evict_normal L1::evict_unchanged L2::cache_hint wb cg cs wt")                               \
    X(PX_ST_ASYNC, "st.async", 3, 3, "weak shared::cluster mbarrier::complete_tx::bytes")                             \
    X(PX_ATOM, "atom", 3, 5, "relaxed acquire release acq_rel cta cluster gpu sys inc dec exch cas L2::cache_hint noftz") \
    X(PX_RED, "red", 2, 3, "relaxed release cta cluster gpu sys inc dec L2::cache_hint noftz")                        \
    X(PX_PREFETCH, "prefetch", 1, 1, "L1 L2 L2::evict_last L2::evict_normal tensormap")                               \
    X(PX_BRA, "bra", 1, 1, "uni")                                                                                     \
    X(PX_BRX, "brx.idx", 2, 2, "uni")                                                                                 \
    X(PX_CALL, "call", 1, 3, "uni")                                                                                   \
    X(PX_RET, "ret", 0, 0, "uni")                                                                                     \
    X(PX_EXIT, "exit", 0, 0, "")                                                                                      \
    X(PX_TRAP, "trap", 0, 0, "")                                                                                      \
    X(PX_BRKPT, "brkpt", 0, 0, "")                                                                                    \
    X(PX_NANOSLEEP, "nanosleep", 1, 1, "")                                                                            \
    X(PX_SHFL, "shfl.sync", 5, 5, "up down bfly idx")                                                                 \
    X(PX_VOTE, "vote.sync", 3, 3, "all any uni ballot")                                                               \
    X(PX_MATCH, "match", 3, 3, "any all sync")                                                                        \
    X(PX_REDUX, "redux.sync", 3, 3, "abs NaN")                                                                        \
    X(PX_ELECT, "elect.sync", 2, 2, "")                                                                               \
    X(PX_ACTIVEMASK, "activemask", 1, 1, "")                                                                          \
    X(PX_BAR_WARP, "bar.warp.sync", 1, 1, "")                                                                         \
    X(PX_BAR_SYNC, "bar.sync", 1, 2, "cta")                                                                           \
    X(PX_BAR_SYNC_CTA, "bar.cta.sync", 1, 2, "")                                                                      \
    X(PX_BAR_ARRIVE, "bar.arrive", 2, 2, "cta")                                                                       \
    X(PX_BAR_ARRIVE_CTA, "bar.cta.arrive", 2, 2, "")                                                                  \
    X(PX_BAR_RED, "bar.red", 3, 4, "cta")                                                                             \
    X(PX_BAR_RED_CTA, "bar.cta.red", 3, 4, "")                                                                        \
    X(PX_BARRIER_SYNC, "barrier.sync", 1, 2, "cta aligned")                                                           \
    X(PX_BARRIER_SYNC_CTA, "barrier.cta.sync", 1, 2, "aligned")                                                       \
    X(PX_BARRIER_ARRIVE, "barrier.arrive", 2, 2, "cta aligned")                                                       \
    X(PX_BARRIER_ARRIVE_CTA, "barrier.cta.arrive", 2, 2, "aligned")                                                   \
    X(PX_BARRIER_RED, "barrier.red", 3, 4, "cta aligned")                                                             \
    X(PX_BARRIER_RED_CTA, "barrier.cta.red", 3, 4, "aligned")                                                         \
    X(PX_CLUSTER_ARRIVE, "barrier.cluster.arrive", 0, 0, "release relaxed aligned")                                   \
    X(PX_CLUSTER_WAIT, "barrier.cluster.wait", 0, 0, "acquire aligned")                                               \
    X(PX_MEMBAR, "membar", 0, 0, "cta gl sys")                                                                        \
    X(PX_FENCE, "fence", 0, 0, "sc acq_rel acquire release cta cluster gpu sys")                                      \
    X(PX_FENCE_PROXY, "fence.proxy", 0, 2, "async async::global alias tensormap tensormap::generic release acquire "  \
      "cta cluster gpu sys")                                                                                          \
    X(PX_FENCE_MBARRIER, "fence.mbarrier_init", 0, 0, "release cluster")                                              \
    X(PX_MBAR_INIT, "mbarrier.init", 2, 2, "")                                                                        \
    X(PX_MBAR_INVAL, "mbarrier.inval", 1, 1, "")                                                                      \
    X(PX_MBAR_ARRIVE, "mbarrier.arrive", 2, 3, "release relaxed cta cluster noComplete expect_tx")                    \
    X(PX_MBAR_DROP, "mbarrier.arrive_drop", 2, 3, "release relaxed cta cluster expect_tx")                            \
    X(PX_MBAR_EXPECT, "mbarrier.expect_tx", 2, 2, "relaxed cta cluster")                                              \
    X(PX_MBAR_COMPLETE, "mbarrier.complete_tx", 2, 2, "relaxed cta cluster")                                          \
    X(PX_MBAR_TEST, "mbarrier.test_wait", 3, 3, "parity acquire relaxed cta cluster")                                 \
    X(PX_MBAR_TRY, "mbarrier.try_wait", 3, 4, "parity acquire relaxed cta cluster")                                   \
    X(PX_MBAR_PENDING, "mbarrier.pending_count", 2, 2, "")                                                            \
    X(PX_CP_ASYNC, "cp.async", 3, 5, "ca cg L2::64B L2::128B L2::256B L2::cache_hint")                                \
    X(PX_CP_COMMIT, "cp.async.commit_group", 0, 0, "")                                                                \
    X(PX_CP_WAIT, "cp.async.wait_group", 1, 1, "")                                                                    \
    X(PX_CP_WAIT_ALL, "cp.async.wait_all", 0, 0, "")                                                                  \
    X(PX_CP_ARRIVE, "cp.async.mbarrier.arrive", 1, 1, "noinc")                                                        \
    X(PX_BULK, "cp.async.bulk", 3, 6, "mbarrier::complete_tx::bytes bulk_group multicast::cluster L2::cache_hint")    \
    X(PX_BULK_PREFETCH, "cp.async.bulk.prefetch", 2, 3, "L2 L2::cache_hint")                                          \
    X(PX_BULK_COMMIT, "cp.async.bulk.commit_group", 0, 0, "")                                                         \
    X(PX_BULK_WAIT, "cp.async.bulk.wait_group", 1, 1, "read")                                                         \
    X(PX_BULK_REDUCE, "cp.reduce.async.bulk", 3, 4, "bulk_group mbarrier::complete_tx::bytes L2::cache_hint noftz")   \
    X(PX_TENSOR, "cp.async.bulk.tensor", 2, 6, "1d 2d 3d 4d 5d tile tile::gather4 tile::scatter4 bulk_group "         \
      "mbarrier::complete_tx::bytes multicast::cluster L2::cache_hint cta_group::1 cta_group::2")                     \
    X(PX_TENSOR_PREFETCH, "cp.async.bulk.prefetch.tensor", 1, 2, "1d 2d 3d 4d 5d L2 tile L2::cache_hint")             \
    X(PX_LDMATRIX, "ldmatrix", 2, 2, "sync aligned m8n8 x1 x2 x4 trans b16 b8 m16n16")                                \
    X(PX_STMATRIX, "stmatrix", 2, 2, "sync aligned m8n8 x1 x2 x4 trans b16 b8")                                       \
    X(PX_MOVMATRIX, "movmatrix", 2, 2, "sync aligned m8n8 trans b16")                                                 \
    X(PX_MMA, "mma", 4, 10, "sync aligned m8n8k4 m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 row col satfinite "       \
      "kind::f8f6f4 kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4 block_scale scale_vec::1X scale_vec::2X scale_vec::4X "  \
      "block16 block32")                                                                                              \
    X(PX_TC_ALLOC, "tcgen05.alloc", 2, 2, "sync aligned cta_group::1 cta_group::2 shared::cta")                      \
    X(PX_TC_DEALLOC, "tcgen05.dealloc", 2, 2, "sync aligned cta_group::1 cta_group::2")                               \
    X(PX_TC_RELINQUISH, "tcgen05.relinquish_alloc_permit", 0, 0, "sync aligned cta_group::1 cta_group::2")            \
    X(PX_TC_LD, "tcgen05.ld", 2, 2, "sync aligned 32x32b 16x128b 16x256b x1 x2 x4 x8 x16 x32 x64 x128")               \
    X(PX_TC_ST, "tcgen05.st", 2, 2, "sync aligned 32x32b 16x128b 16x256b x1 x2 x4 x8 x16 x32 x64 x128")               \
    X(PX_TC_WAIT_LD, "tcgen05.wait::ld", 0, 0, "sync aligned")                                                        \
    X(PX_TC_WAIT_ST, "tcgen05.wait::st", 0, 0, "sync aligned")                                                        \
    X(PX_TC_BEFORE, "tcgen05.fence::before_thread_sync", 0, 0, "")                                                    \
    X(PX_TC_AFTER, "tcgen05.fence::after_thread_sync", 0, 0, "")                                                      \
    X(PX_TC_CP, "tcgen05.cp", 2, 2, "cta_group::1 cta_group::2 128x256b 4x256b 128x128b 64x128b 32x128b warpx4 "      \
      "warpx2::02_13 warpx2::01_23")                                                                                  \
    X(PX_TC_MMA_OP, "tcgen05.mma", 5, 7, "cta_group::1 cta_group::2 kind::f16 kind::f8f6f4 kind::mxf8f6f4 kind::mxf4 " \
      "kind::mxf4nvf4 block_scale block16 block32 scale_vec::1X scale_vec::2X scale_vec::4X")                         \
    X(PX_TC_COMMIT_OP, "tcgen05.commit", 1, 2, "cta_group::1 cta_group::2 mbarrier::arrive::one multicast::cluster "  \
      "shared::cluster")                                                                                              \
    X(PX_WG_FENCE, "wgmma.fence", 0, 0, "sync aligned")                                                               \
    X(PX_WG_COMMIT, "wgmma.commit_group", 0, 0, "sync aligned")                                                       \
    X(PX_WG_WAIT, "wgmma.wait_group", 1, 1, "sync aligned")                                                           \
    X(PX_WG_MMA, "wgmma.mma_async", 4, 8, "sync aligned")                                                             \
    X(PX_GRID_RELEASE, "griddepcontrol.launch_dependents", 0, 0, "")                                                  \
    X(PX_GRID_WAIT, "griddepcontrol.wait", 0, 0, "")                                                                  \
    X(PX_SETMAXNREG, "setmaxnreg", 1, 1, "inc dec sync aligned")                                                      \
    X(PX_CREATEPOLICY, "createpolicy.fractional", 1, 2, "L2::evict_first L2::evict_last L2::evict_normal "            \
      "L2::evict_unchanged")                                                                                          \
    X(PX_DISCARD, "discard", 2, 2, "L2")                                                                              \
    X(PX_APPLYPRIORITY, "applypriority", 2, 2, "L2::evict_normal")                                                    \
    X(PX_RESULTS, "(results of a call)", 0, 0, "")

enum px_op {
#define PX_LIST_NAME(name, text, least, most, mods) name,
    PX_OPS(PX_LIST_NAME)
#undef PX_LIST_NAME
    PX_N_OPS
};

#define PX_MODS(X)                                                                                                    \
    X(PX_M_RN, "rn") X(PX_M_RZ, "rz") X(PX_M_RM, "rm") X(PX_M_RP, "rp") X(PX_M_RNI, "rni") X(PX_M_RZI, "rzi")         \
    X(PX_M_RMI, "rmi") X(PX_M_RPI, "rpi") X(PX_M_RNA, "rna") X(PX_M_FTZ, "ftz") X(PX_M_SAT, "sat") X(PX_M_CC, "cc")   \
    X(PX_M_LO, "lo") X(PX_M_HI, "hi") X(PX_M_WIDE, "wide") X(PX_M_RELU, "relu") X(PX_M_APPROX, "approx")              \
    X(PX_M_FULL, "full") X(PX_M_NAN, "NaN") X(PX_M_XORSIGN, "xorsign") X(PX_M_SHIFTAMT, "shiftamt")                   \
    X(PX_M_CLAMP, "clamp") X(PX_M_WRAP, "wrap") X(PX_M_LEFT, "l") X(PX_M_RIGHT, "r") X(PX_M_F4E, "f4e")               \
    X(PX_M_B4E, "b4e") X(PX_M_RC8, "rc8") X(PX_M_ECL, "ecl") X(PX_M_ECR, "ecr") X(PX_M_RC16, "rc16")                  \
    X(PX_M_SATFINITE, "satfinite") X(PX_M_TO, "to") X(PX_M_FINITE, "finite") X(PX_M_INFINITE, "infinite")             \
    X(PX_M_NUMBER, "number") X(PX_M_NOTANUMBER, "notanumber") X(PX_M_NORMAL, "normal") X(PX_M_SUBNORMAL, "subnormal") \
    X(PX_M_VOLATILE, "volatile") X(PX_M_RELAXED, "relaxed") X(PX_M_ACQUIRE, "acquire") X(PX_M_RELEASE, "release")     \
    X(PX_M_ACQ_REL, "acq_rel") X(PX_M_SC, "sc") X(PX_M_WEAK, "weak") X(PX_M_CTA, "cta") X(PX_M_CLUSTER, "cluster")    \
    X(PX_M_GPU, "gpu") X(PX_M_SYS, "sys") X(PX_M_GL, "gl") X(PX_M_NC, "nc") X(PX_M_NO_ALLOCATE, "L1::no_allocate")    \
    X(PX_M_L1_FIRST, "L1::evict_first") X(PX_M_L1_LAST, "L1::evict_last") X(PX_M_L1_NORMAL, "L1::evict_normal")       \
    X(PX_M_L1_UNCHANGED, "L1::evict_unchanged") X(PX_M_L2_64, "L2::64B") X(PX_M_L2_128, "L2::128B")                   \
    X(PX_M_L2_256, "L2::256B") X(PX_M_CACHE_HINT, "L2::cache_hint") X(PX_M_CA, "ca") X(PX_M_CG, "cg")                 \
    X(PX_M_CS, "cs") X(PX_M_LU, "lu") X(PX_M_CV, "cv") X(PX_M_WB, "wb") X(PX_M_WT, "wt") X(PX_M_INC, "inc")           \
    X(PX_M_DEC, "dec") X(PX_M_EXCH, "exch") X(PX_M_CAS, "cas") X(PX_M_NOFTZ, "noftz") X(PX_M_L1, "L1")                \
    X(PX_M_L2, "L2") X(PX_M_L2_LAST, "L2::evict_last") X(PX_M_L2_NORMAL, "L2::evict_normal")                          \
    X(PX_M_L2_FIRST, "L2::evict_first") X(PX_M_L2_UNCHANGED, "L2::evict_unchanged") X(PX_M_TENSORMAP, "tensormap")    \
    X(PX_M_TENSORMAP_GENERIC, "tensormap::generic") X(PX_M_UNI, "uni") X(PX_M_UP, "up") X(PX_M_DOWN, "down")          \
    X(PX_M_BFLY, "bfly") X(PX_M_IDX, "idx") X(PX_M_ALL, "all") X(PX_M_ANY, "any") X(PX_M_BALLOT, "ballot")            \
    X(PX_M_ABS, "abs") X(PX_M_ALIGNED, "aligned") X(PX_M_SYNC, "sync") X(PX_M_ASYNC, "async")                         \
    X(PX_M_ASYNC_GLOBAL, "async::global") X(PX_M_ALIAS, "alias") X(PX_M_NO_COMPLETE, "noComplete")                    \
    X(PX_M_EXPECT_TX, "expect_tx") X(PX_M_PARITY, "parity") X(PX_M_NOINC, "noinc")                                    \
    X(PX_M_TX_BYTES, "mbarrier::complete_tx::bytes") X(PX_M_BULK_GROUP, "bulk_group")                                 \
    X(PX_M_MULTICAST, "multicast::cluster") X(PX_M_READ, "read") X(PX_M_1D, "1d") X(PX_M_2D, "2d") X(PX_M_3D, "3d")   \
    X(PX_M_4D, "4d") X(PX_M_5D, "5d") X(PX_M_TILE, "tile") X(PX_M_GATHER4, "tile::gather4")                           \
    X(PX_M_SCATTER4, "tile::scatter4") X(PX_M_CTA_GROUP1, "cta_group::1") X(PX_M_CTA_GROUP2, "cta_group::2")          \
    X(PX_M_M8N8, "m8n8") X(PX_M_M16N16, "m16n16") X(PX_M_X1, "x1") X(PX_M_X2, "x2") X(PX_M_X4, "x4")                  \
    X(PX_M_TRANS, "trans") X(PX_M_M8N8K4, "m8n8k4") X(PX_M_M16N8K4, "m16n8k4") X(PX_M_M16N8K8, "m16n8k8")             \
    X(PX_M_M16N8K16, "m16n8k16") X(PX_M_M16N8K32, "m16n8k32") X(PX_M_M16N8K64, "m16n8k64") X(PX_M_ROW, "row")         \
    X(PX_M_COL, "col") X(PX_M_KIND_F8F6F4, "kind::f8f6f4") X(PX_M_KIND_MXF8F6F4, "kind::mxf8f6f4")                    \
    X(PX_M_KIND_MXF4, "kind::mxf4") X(PX_M_KIND_MXF4NVF4, "kind::mxf4nvf4") X(PX_M_BLOCK_SCALE, "block_scale")        \
    X(PX_M_SCALE_1X, "scale_vec::1X") X(PX_M_SCALE_2X, "scale_vec::2X") X(PX_M_SCALE_4X, "scale_vec::4X")             \
    X(PX_M_BLOCK16, "block16") X(PX_M_BLOCK32, "block32") X(PX_M_SHARED_CTA, "shared::cta")                           \
    X(PX_M_SHARED_CLUSTER, "shared::cluster") X(PX_M_X8, "x8") X(PX_M_X16, "x16") X(PX_M_X32, "x32")                  \
    X(PX_M_X64, "x64") X(PX_M_X128, "x128") X(PX_M_32X32B, "32x32b") X(PX_M_16X128B, "16x128b")                       \
    X(PX_M_16X256B, "16x256b") X(PX_M_128X256B, "128x256b") X(PX_M_4X256B, "4x256b") X(PX_M_128X128B, "128x128b")     \
    X(PX_M_64X128B, "64x128b") X(PX_M_32X128B, "32x128b") X(PX_M_WARPX4, "warpx4")                                    \
    X(PX_M_WARPX2_02_13, "warpx2::02_13") X(PX_M_WARPX2_01_23, "warpx2::01_23") X(PX_M_KIND_F16, "kind::f16")         \
    X(PX_M_ARRIVE_ONE, "mbarrier::arrive::one")

enum px_mod {
#define PX_LIST_MOD(name, text) name,
    PX_MODS(PX_LIST_MOD)
#undef PX_LIST_MOD
    PX_N_MODS
};

/* Comparisons of setp, and operations of atom, red, redux, bar.red and lop-joins; `none` first. */
enum px_compare {
    PX_NO_COMPARE, PX_EQ, PX_NE, PX_LT, PX_LE, PX_GT, PX_GE, PX_LO, PX_LS, PX_HI, PX_HS, PX_EQU, PX_NEU, PX_LTU, PX_LEU,
    PX_GTU, PX_GEU, PX_NUM, PX_ISNAN
};
enum px_join { PX_NO_JOIN, PX_J_AND, PX_J_OR, PX_J_XOR, PX_J_ADD, PX_J_MIN, PX_J_MAX, PX_J_POPC };

#endif
