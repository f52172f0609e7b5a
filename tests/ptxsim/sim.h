/* State of a running machine. Internal to ptxsim; read ptxsim.h and ptx_module.h first.
 *
 * Addresses: global memory is the host's own; shared memory of block r of a cluster is r << 24 | offset, offsets beginning
 * at PX_SHARED_FIRST; a generic address says by its top byte whether it is one of shared or local memory.
 *
 * Order in time is kept by vector clocks of warps. A warp's clock moves on whenever it releases (barrier, arrival, fence);
 * who acquires takes the larger of each entry. Behind the entries of warps stand those of mbarriers, for which a clock is
 * a phase: asynchronous writes become visible to whoever sees the phase complete. A second set of entries says up to where
 * generic writes have been made visible to the asynchronous proxy (fence.proxy.async). */
#ifndef PTXSIM_SIM_H
#define PTXSIM_SIM_H

#include <setjmp.h>

#include "ptxsim/ptx_module.h"

#define PX_WINDOW_SHARED (1ull << 56)
#define PX_WINDOW_LOCAL  (2ull << 56)

enum {
    PX_LANES = 32, PX_SHARED_FIRST = 1024, PX_SHARED_MOST = 228 * 1024, PX_RANK_SHIFT = 24, PX_BARRIERS = 16, PX_MBARRIERS = 96,
    PX_CALLS = 8, PX_NO_ACTOR = 0xffff, PX_IN_FLIGHT = 0xfffe, PX_MANY = 0xff
};

struct px_region {
    uint8_t *start;
    size_t   bytes;
    uint8_t *written; /* a byte each; NULL: all written */
    void    *block;
    uint64_t kernel_write; /* number of the last launch that wrote here */
    bool     read_only;
};

/* Who touched 4 bytes of shared memory last. */
struct px_cell {
    uint32_t clock;      /* of the writer */
    uint16_t actor;
    uint8_t  lane, bytes; /* written bytes, a bit each */
    uint8_t  read_lane, read_bytes;
    bool     atomic;
    uint16_t read_warp;
    uint32_t read_turn;  /* of that warp */
};

struct px_barrier {
    uint32_t  arrived, expected; /* expected: 0 until someone said */
    uint32_t  lanes[PX_LANES];   /* blocked lanes of each warp of the block */
    uint32_t *clock;
    const struct px_instruction *red[PX_LANES]; /* of each warp: where the joined predicates go */
    uint32_t  true_lanes, counted; /* of .red */
};

struct px_mbarrier {
    uint32_t  address; /* offset in the block's shared memory; 0: free */
    uint32_t  expected, pending;
    int64_t   tx;
    uint32_t  phase;
    uint32_t  init_actor, init_clock;
    uint32_t *clock;   /* of arrivals in this phase */
    uint32_t *done;    /* of the last complete phase */
};

/* One asynchronous transfer on its way. */
enum px_async_kind {
    PX_ASYNC_COPY,   /* cp.async of a lane: in the list of its warp */
    PX_ASYNC_ARRIVE, /* cp.async.mbarrier.arrive */
    PX_ASYNC_LOAD, PX_ASYNC_PEER, PX_ASYNC_STORE, PX_ASYNC_REDUCE, PX_ASYNC_TENSOR_STORE
};

struct px_async {
    struct px_async    *next;
    enum px_async_kind  kind;
    struct px_warp     *warp;
    uint32_t            lane, group;     /* of cp.async or bulk_group */
    struct px_cta      *cta, *bar_cta, *from_cta;
    uint32_t            shared, bytes;   /* written or read */
    uint32_t            from, copied;    /* PEER: source; COPY: bytes that are not zeros */
    uint64_t            global;
    struct px_mbarrier *bar;
    uint32_t            phase;           /* in which it was issued */
    bool                read_done, done, seen;
    uint8_t            *data;            /* of stores: their bytes, once read */
    const struct px_instruction *instruction;
};

struct px_warp {
    struct px_cta *cta;
    uint32_t       id, actor;
    uint32_t      *regs, *base;
    uint32_t       n_regs;
    const struct px_function *filled;
    const struct px_module   *filled_module;
    uint32_t       pc[PX_LANES];
    uint32_t       live, waiting, blocked; /* lanes: not exited; at a sync instruction; at a barrier */
    uint32_t       wait_mask[PX_LANES];
    uint32_t       ret[PX_CALLS][PX_LANES];
    uint8_t        depth[PX_LANES];
    uint8_t       *local, *local_written, *frame;
    uint32_t       carry;                  /* condition code, a bit a lane */
    uint32_t      *clock;                  /* [n_actors] seen, [n_actors] seen by the asynchronous proxy */
    uint32_t       turn;                   /* counts instructions of all lanes together: what lanes read before is read */
    uint32_t       polls;                  /* failed waits in a row without an event */
    uint64_t       poll_event;
    bool           shuffle, poll, waited;
    struct px_async *copies;
    struct px_wgmma *wgmma;                /* issued and not yet done, oldest first */
    uint32_t       wgmma_group;            /* number of the open group */
    uint32_t       copy_group[PX_LANES], bulk_group[PX_LANES]; /* number of the open group */
    uint32_t       cluster_arrived, cluster_waiting; /* lanes between arrive and wait; lanes in wait */
    uint32_t       cluster_phase_done;               /* lanes whose phase is complete */
};

struct px_cta {
    struct px_machine *m;
    struct px_cluster *cluster;
    uint32_t           rank, id[3];
    uint8_t           *shared, *shared_written;
    uint32_t           shared_end;
    struct px_cell    *cell;
    uint32_t          *read_clock; /* [words][warps of the cluster] */
    struct px_barrier  barrier[PX_BARRIERS];
    struct px_mbarrier mbarrier[PX_MBARRIERS];
    struct px_warp    *warp;
    uint32_t           n_warps, n_live;
    struct px_tcgen05 *tcgen05; /* NULL until the block uses tensor memory */
};

struct px_cluster {
    struct px_cta *cta;
    uint32_t       n_ctas, id[3];
    uint32_t       arrived;   /* lanes at barrier.cluster in this phase */
    uint32_t      *clock, *done;
    uint32_t      *flags;     /* what fences and releasing atomics gave away */
    bool           active;
    uint32_t       n_actors, n_warps;
};

struct px_machine {
    struct px_config   config;
    struct px_region  *region; /* sorted by address */
    uint32_t           n_regions, max_regions, last_region;
    uint64_t           random;
    uint64_t           events; /* phases and arrivals so far */
    uint64_t           launches, synchronised;
    struct px_stats    stats;
    /* The launch that runs. */
    const struct px_module   *module;
    const struct px_function *function;
    const struct px_launch   *launch;
    uint8_t           *params;
    struct px_cluster *cluster;
    uint32_t           n_clusters; /* that may run side by side */
    struct px_async   *async;
    struct px_box     *boxes; /* tensor copies on their way */
    bool               uses_mbarriers;
    uint64_t           next_cluster; /* to start, of the order below */
    uint32_t          *order;
    struct px_warp    *now;
    const struct px_instruction *at;
    /* Kept from launch to launch. */
    struct px_pool { uint32_t *regs; size_t words; const struct px_function *filled; const struct px_module *module; } *pool;
    uint32_t           n_pool;
    char               error[1024];
    jmp_buf            out;
};

typedef void px_exec(struct px_warp *w, const struct px_instruction *i, uint32_t lanes);

/* Ends the launch with this sentence and where it happened. */
__attribute__((format(printf, 2, 3), noreturn)) void px_trap(struct px_machine *m, const char *fmt, ...);
uint64_t px_random(struct px_machine *m);

/* ---- Operands ---- */

static inline uint32_t *px_r32(const struct px_warp *w, const struct px_operand *o)
{
    return w->base + o->slot;
}

static inline uint64_t *px_r64(const struct px_warp *w, const struct px_operand *o)
{
    return (uint64_t *)(void *)(w->base + o->slot);
}

/* Any register or immediate as 64 bits, zero-extended. */
static inline uint64_t px_get(const struct px_warp *w, const struct px_operand *o, uint32_t lane)
{
    return o->width == 8 ? px_r64(w, o)[lane] : o->width == 0 ? (uint64_t)(w->base[o->slot] >> lane & 1) : px_r32(w, o)[lane];
}

static inline uint32_t px_get32(const struct px_warp *w, const struct px_operand *o, uint32_t lane)
{
    return (uint32_t)px_get(w, o, lane);
}

static inline void px_set(struct px_warp *w, const struct px_operand *o, uint32_t lane, uint64_t v)
{
    if (o->kind == PX_SINK)
        return;
    if (o->width == 8)
        px_r64(w, o)[lane] = v;
    else if (o->width == 0)
        w->base[o->slot] = (w->base[o->slot] & ~(1u << lane)) | (uint32_t)(v & 1) << lane;
    else
        px_r32(w, o)[lane] = o->width == 2 ? (uint32_t)v & 0xffffu : (uint32_t)v;
}

/* Lane bits of a predicate, negated if so written. */
static inline uint32_t px_pred(const struct px_warp *w, const struct px_operand *o)
{
    uint32_t p = w->base[o->slot];
    return o->negated ? ~p : p;
}

static inline void px_set_pred(struct px_warp *w, const struct px_operand *o, uint32_t lanes, uint32_t p)
{
    if (o->kind != PX_SINK)
        w->base[o->slot] = (w->base[o->slot] & ~lanes) | (p & lanes);
}

#define PX_EACH(lane, lanes) for (uint32_t lane = 0, rest_ = (lanes); rest_; rest_ >>= 1, lane++) if (rest_ & 1)

/* ---- Instructions, one file a family ---- */

px_exec px_integer, px_bits, px_move, px_compare_op, px_float, px_function, px_convert, px_pack; /* sim_integer.c, sim_float.c, sim_convert.c */
px_exec px_load, px_store, px_atomic, px_address;                                                   /* sim_memory.c */
px_exec px_shuffle, px_vote, px_fence;                                                              /* sim_sync.c */
px_exec px_mma, px_matrix_move;                                                                     /* sim_matrix.c */

/* ---- Memory (sim_memory.c) ---- */

struct px_region *px_region_of(struct px_machine *m, uint64_t address, uint64_t bytes);
/* Bytes of the address space of an operand's value in one lane. */
uint8_t *px_place(struct px_warp *w, const struct px_instruction *i, const struct px_operand *o, uint32_t lane, uint32_t bytes,
                  uint8_t space, bool write, bool atomic);
/* Of the bytes that px_place gave for writing: they have been written. */
void px_placed(struct px_warp *w, const uint8_t *p, uint32_t bytes);
/* A place in global memory that an instruction reads or writes; traps when it must not. */
uint8_t *px_global(struct px_machine *m, uint64_t address, uint32_t bytes, uint32_t align, bool write);
/* Offset in shared memory of a shared::cluster address seen by w, and whose it is; bounds and alignment are checked. */
uint32_t px_shared(struct px_warp *w, uint64_t address, uint32_t bytes, uint32_t align, struct px_cta **cta);
bool     px_all_set(const uint8_t *flags, uint32_t bytes);

/* ---- Races (sim_race.c) ---- */

void px_race_read(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t lane, bool atomic);
void px_race_write(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t lane, bool atomic);
/* An asynchronous operation that w issues will read or write these bytes. */
void px_race_async(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t lane, bool write);
/* An asynchronous read of w is over, or (pending) begins: until then nobody may write. */
void px_race_reading(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes, bool pending);
void px_race_landed(struct px_cta *c, uint32_t offset, uint32_t bytes, uint32_t actor, uint32_t clock);
void px_clock_join(const struct px_cluster *k, uint32_t *into, const uint32_t *from);
/* What w did so far is given into `into`; its clock moves on. */
void px_release_clock(struct px_warp *w, uint32_t *into);
void px_acquire_clock(struct px_warp *w, const uint32_t *from);

/* ---- Synchronisation (sim_sync.c, sim_mbarrier.c) ---- */

/* Arrive at a barrier with these lanes; true if they must block. */
bool px_barrier_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes);
/* A warp of the block ended: barriers that wait for all may now be complete. */
void px_barrier_exit(struct px_cta *c);
bool px_cluster_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes);
void px_cluster_exit(struct px_cluster *k);
/* mbarrier.*; false where a wait failed. */
bool px_mbarrier_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes);
/* The barrier at an offset of a block's shared memory; traps where there is none. */
struct px_mbarrier *px_mbarrier_at(struct px_machine *m, struct px_cta *c, uint32_t offset);
uint32_t px_mbarrier_actor(const struct px_cta *c, const struct px_mbarrier *b);
/* bytes of a transfer are there. */
void px_mbarrier_complete(struct px_machine *m, struct px_cta *c, struct px_mbarrier *b, uint32_t bytes);
/* Arrivals that no lane makes: of cp.async.mbarrier.arrive and commits. */
void px_mbarrier_arrive(struct px_machine *m, struct px_cta *c, struct px_mbarrier *b, uint32_t count);
/* Offset and block of an operand that names an mbarrier in one lane. */
uint32_t px_mbarrier_operand(struct px_warp *w, const struct px_instruction *i, const struct px_operand *o, uint32_t lane, struct px_cta **c);

/* ---- Asynchronous copies (sim_async.c) ---- */

/* False where the lanes must wait and come again. */
bool px_async_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes);
/* Let one random transfer go on; false if there is none. */
bool px_async_step(struct px_machine *m);
/* Traps if transfers of a block that ends are not over. */
void px_async_end(struct px_cta *c);
void px_async_free(struct px_machine *m);

/* ---- Warpgroups (sim_wgmma.c) ---- */

/* wgmma.*; false where the warp must wait and come again. */
bool px_wgmma_op(struct px_warp *w, const struct px_instruction *i);
/* Traps if products are left when a warp ends (fault), and forgets them. */
void px_wgmma_end(struct px_warp *w, bool fault);

/* ---- Warps (sim_warp.c) ---- */

enum px_stop { PX_STOP_TURN, PX_STOP_BLOCKED, PX_STOP_POLL, PX_STOP_EXITED };
enum px_stop px_warp_run(struct px_warp *w, uint32_t turn);
void         px_warp_start(struct px_warp *w, uint32_t first_thread, uint32_t n_threads);

#endif
