/* tcgen05 in the machine: queues of work on tensor cores, and who may touch which tensor memory when. */
#ifndef PTXSIM_SIM_TCGEN05_H
#define PTXSIM_SIM_TCGEN05_H

#include "ptxsim/sim.h"
#include "ptxsim/tensor.h"

/* A piece of work: the warp that issued it and a count of that warp's block. */
struct px_tc_ref {
    uint16_t actor;
    uint32_t seq;
};

enum px_tc_kind { PX_TC_MMA, PX_TC_COPY, PX_TC_COMMIT };

struct px_tc_work {
    struct px_tc_work *next; /* in the order of issue */
    enum px_tc_kind    kind;
    struct px_tc_ref   ref;
    struct px_warp    *warp;
    uint32_t           lane;
    int                n_ctas;
    const struct px_instruction *instruction;
    struct sim_tcgen05_mma mma;
    enum sim_copy_shape shape;
    uint32_t           address;
    uint64_t           descriptor;
    uint32_t           bar, mask; /* offset in shared memory of the blocks of the mask */
    uint32_t          *clock;     /* of a commit: what its warp had seen */
};

/* A commit that took effect: all work of its warp below seq is over for who has seen one of these phases. */
struct px_tc_commit {
    uint16_t actor;
    uint32_t seq, n;
    uint32_t bar_actor[16], phase[16];
};

/* Who wrote and read one column in one warp's quarter of the lanes. */
enum px_tc_writer { PX_TC_NOBODY, PX_TC_PIPE, PX_TC_WARP };
struct px_tc_cell {
    uint8_t          writer;
    bool             pipe_read;
    struct px_tc_ref write, read; /* of work: the last that writes, the last that reads */
    uint32_t         clock;       /* of a warp's tcgen05.st; UINT32_MAX: not known to be over */
    uint32_t         loaded[8];   /* clocks of tcgen05.ld by warps quarter, quarter + 4, ...; UINT32_MAX likewise */
};

struct px_tc_range {
    uint32_t quarter, column, n;
};

/* Of one warp: accesses between their issue and tcgen05.wait, and from there to a fence. */
struct px_tc_warp {
    uint32_t          *after; /* its clock at the last fence::after_thread_sync */
    struct px_tc_range load[64], store[64];
    uint32_t           n_loads, n_stores;
    bool               loads_over, stores_over;
};

/* Of one block. */
struct px_tcgen05 {
    struct sim_tmem      tmem;
    struct px_tc_cell    cell[4][SIM_TMEM_COLUMNS];
    uint16_t             alloc_actor[SIM_TMEM_COLUMNS];
    uint32_t             alloc_clock[SIM_TMEM_COLUMNS];
    struct px_tc_ref     reads[256]; /* the last work that reads each 1024 bytes of shared memory */
    bool                 read[256];
    struct px_tc_work   *work;
    uint32_t             seq, group; /* group: of the kernel's instructions, 0 before the first */
    struct px_tc_commit *commit;
    uint32_t             n_commits, max_commits;
    struct px_tc_warp   *warp;
};

/* Instructions of tcgen05. False where the lanes must wait and come again. */
bool px_tcgen05_op(struct px_warp *w, const struct px_instruction *i, uint32_t lanes);
/* Let one piece of work that may go on take effect; false if there is none. */
bool px_tcgen05_step(struct px_machine *m);
/* w is about to write bytes of a block's shared memory: no work may still read them. */
void px_tcgen05_overwrites(struct px_warp *w, struct px_cta *c, uint32_t offset, uint32_t bytes);
/* The last warp of a block ended. */
void px_tcgen05_end(struct px_cta *c);
void px_tcgen05_free(struct px_cta *c);

/* ---- Tensor copies (sim_tensor.c) ---- */

void px_tensor_issue(struct px_warp *w, const struct px_instruction *i, uint32_t lane);
/* A store: the bytes of its box, and in *data what the steps need; the operand behind the coordinates is the box. */
uint32_t px_tensor_store_issue(struct px_warp *w, const struct px_instruction *i, uint32_t lane, uint8_t **data);
void     px_tensor_store_step(struct px_machine *m, struct px_async *a);
/* Let one box land; false if none is on its way. */
bool px_tensor_step(struct px_machine *m);
void px_tensor_end(struct px_cta *c);
void px_tensor_free(struct px_machine *m);

/* ---- mma.sync with block scales (sim_matrix_scaled.c) ---- */

void px_mma_scaled(struct px_warp *w, const struct px_instruction *i, uint32_t lanes);

/* ---- Order (sim_tcgen05_order.c) ---- */

struct px_tcgen05 *px_tc_of(struct px_cta *c);
/* Checks and notes an access to columns of a block. */
void px_tc_load(struct px_warp *w, struct px_tc_range r);
void px_tc_store(struct px_warp *w, struct px_tc_range r);
void px_tc_pipe(struct px_warp *w, struct px_cta *c, struct px_tc_ref ref, bool write, bool copy, uint32_t column,
                uint32_t n);
void px_tc_allocated(struct px_warp *w, uint32_t column, uint32_t n);
void px_tc_released(struct px_warp *w, uint32_t column, uint32_t n);
void px_tc_wait(struct px_warp *w, bool loads);
void px_tc_fence(struct px_warp *w, bool after);
void px_tc_committed(struct px_machine *m, const struct px_tc_work *commit);

#endif
