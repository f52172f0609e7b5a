/* A warp's turn: lanes grouped by where they are, the group that is furthest behind first, so that lanes meet again where
 * their paths join. Lanes that reach an instruction for several lanes wait there for the others. */
#include "ptxsim/sim_tcgen05.h"

#include <string.h>

/* What an opcode needs beside its function. */
enum class { PLAIN, BRANCH, TABLE, CALL, RESULTS, RETURN, EXIT, TRAP, TOGETHER, BAR_WARP, BARRIER, CLUSTER, MBARRIER, ASYNC,
             TENSOR, WARPGROUP, SLEEP, NOTHING, GRID_WAIT };

static const struct { px_exec *run; enum class class; } how[PX_N_OPS] = {
    [PX_ADD] = {px_integer, PLAIN}, [PX_ADDC] = {px_integer, PLAIN}, [PX_SUB] = {px_integer, PLAIN}, [PX_SUBC] = {px_integer, PLAIN},
    [PX_MUL] = {px_integer, PLAIN}, [PX_MAD] = {px_integer, PLAIN}, [PX_MADC] = {px_integer, PLAIN}, [PX_MUL24] = {px_integer, PLAIN},
    [PX_DIV] = {px_integer, PLAIN}, [PX_REM] = {px_integer, PLAIN}, [PX_ABS] = {px_integer, PLAIN}, [PX_NEG] = {px_integer, PLAIN},
    [PX_MIN] = {px_integer, PLAIN}, [PX_MAX] = {px_integer, PLAIN}, [PX_SAD] = {px_integer, PLAIN}, [PX_FMA] = {px_float, PLAIN},
    [PX_POPC] = {px_bits, PLAIN}, [PX_CLZ] = {px_bits, PLAIN}, [PX_BREV] = {px_bits, PLAIN}, [PX_BFIND] = {px_bits, PLAIN},
    [PX_BFE] = {px_bits, PLAIN}, [PX_BFI] = {px_bits, PLAIN}, [PX_BMSK] = {px_bits, PLAIN}, [PX_SZEXT] = {px_bits, PLAIN},
    [PX_FNS] = {px_bits, PLAIN}, [PX_DP4A] = {px_bits, PLAIN}, [PX_DP2A] = {px_bits, PLAIN}, [PX_LOP3] = {px_bits, PLAIN},
    [PX_SHF] = {px_bits, PLAIN}, [PX_PRMT] = {px_bits, PLAIN}, [PX_CNOT] = {px_bits, PLAIN}, [PX_AND] = {px_integer, PLAIN},
    [PX_OR] = {px_integer, PLAIN}, [PX_XOR] = {px_integer, PLAIN}, [PX_NOT] = {px_integer, PLAIN}, [PX_SHL] = {px_integer, PLAIN},
    [PX_SHR] = {px_integer, PLAIN}, [PX_MOV] = {px_move, PLAIN}, [PX_CVT] = {px_convert, PLAIN}, [PX_SELP] = {px_compare_op, PLAIN},
    [PX_SETP] = {px_compare_op, PLAIN}, [PX_SET] = {px_compare_op, PLAIN}, [PX_SLCT] = {px_compare_op, PLAIN},
    [PX_TESTP] = {px_function, PLAIN}, [PX_COPYSIGN] = {px_function, PLAIN}, [PX_RCP] = {px_function, PLAIN},
    [PX_SQRT] = {px_function, PLAIN}, [PX_RSQRT] = {px_function, PLAIN}, [PX_EX2] = {px_function, PLAIN},
    [PX_LG2] = {px_function, PLAIN}, [PX_SIN] = {px_function, PLAIN}, [PX_COS] = {px_function, PLAIN}, [PX_TANH] = {px_function, PLAIN},
    [PX_CVTA] = {px_address, PLAIN}, [PX_ISSPACEP] = {px_address, PLAIN}, [PX_MAPA] = {px_address, PLAIN},
    [PX_GETCTARANK] = {px_address, PLAIN}, [PX_LD] = {px_load, PLAIN}, [PX_LDU] = {px_load, PLAIN}, [PX_ST] = {px_store, PLAIN},
    [PX_ATOM] = {px_atomic, PLAIN}, [PX_RED] = {px_atomic, PLAIN}, [PX_FENCE] = {px_fence, PLAIN}, [PX_MEMBAR] = {px_fence, PLAIN},
    [PX_FENCE_PROXY] = {px_fence, PLAIN}, [PX_FENCE_MBARRIER] = {px_fence, PLAIN},
    [PX_SHFL] = {px_shuffle, TOGETHER}, [PX_VOTE] = {px_vote, TOGETHER}, [PX_MATCH] = {px_vote, TOGETHER},
    [PX_REDUX] = {px_vote, TOGETHER}, [PX_ELECT] = {px_vote, TOGETHER}, [PX_ACTIVEMASK] = {px_vote, PLAIN},
    [PX_BAR_WARP] = {NULL, BAR_WARP}, [PX_BAR_SYNC] = {NULL, BARRIER}, [PX_BAR_SYNC_CTA] = {NULL, BARRIER},
    [PX_BAR_ARRIVE] = {NULL, BARRIER}, [PX_BAR_ARRIVE_CTA] = {NULL, BARRIER}, [PX_BAR_RED] = {NULL, BARRIER},
    [PX_BAR_RED_CTA] = {NULL, BARRIER}, [PX_BARRIER_SYNC] = {NULL, BARRIER}, [PX_BARRIER_SYNC_CTA] = {NULL, BARRIER},
    [PX_BARRIER_ARRIVE] = {NULL, BARRIER}, [PX_BARRIER_ARRIVE_CTA] = {NULL, BARRIER}, [PX_BARRIER_RED] = {NULL, BARRIER},
    [PX_BARRIER_RED_CTA] = {NULL, BARRIER}, [PX_CLUSTER_ARRIVE] = {NULL, CLUSTER}, [PX_CLUSTER_WAIT] = {NULL, CLUSTER},
    [PX_MBAR_INIT] = {NULL, MBARRIER}, [PX_MBAR_INVAL] = {NULL, MBARRIER}, [PX_MBAR_ARRIVE] = {NULL, MBARRIER},
    [PX_MBAR_DROP] = {NULL, MBARRIER}, [PX_MBAR_EXPECT] = {NULL, MBARRIER}, [PX_MBAR_COMPLETE] = {NULL, MBARRIER},
    [PX_MBAR_TEST] = {NULL, MBARRIER}, [PX_MBAR_TRY] = {NULL, MBARRIER}, [PX_MBAR_PENDING] = {NULL, MBARRIER},
    [PX_CP_ASYNC] = {NULL, ASYNC}, [PX_CP_COMMIT] = {NULL, ASYNC}, [PX_CP_WAIT] = {NULL, ASYNC}, [PX_CP_WAIT_ALL] = {NULL, ASYNC},
    [PX_CP_ARRIVE] = {NULL, ASYNC}, [PX_BULK] = {NULL, ASYNC}, [PX_BULK_COMMIT] = {NULL, ASYNC}, [PX_BULK_WAIT] = {NULL, ASYNC},
    [PX_BULK_REDUCE] = {NULL, ASYNC}, [PX_TENSOR] = {NULL, ASYNC}, [PX_ST_ASYNC] = {NULL, ASYNC},
    [PX_LDMATRIX] = {px_matrix_move, TOGETHER}, [PX_STMATRIX] = {px_matrix_move, TOGETHER}, [PX_MOVMATRIX] = {px_matrix_move, TOGETHER},
    [PX_MMA] = {px_mma, TOGETHER}, [PX_BRA] = {NULL, BRANCH}, [PX_BRX] = {NULL, TABLE}, [PX_CALL] = {NULL, CALL},
    [PX_RESULTS] = {NULL, RESULTS}, [PX_RET] = {NULL, RETURN}, [PX_EXIT] = {NULL, EXIT}, [PX_TRAP] = {NULL, TRAP}, [PX_BRKPT] = {NULL, TRAP},
    [PX_NANOSLEEP] = {NULL, SLEEP}, [PX_PREFETCH] = {NULL, NOTHING}, [PX_BULK_PREFETCH] = {NULL, NOTHING},
    [PX_TENSOR_PREFETCH] = {NULL, NOTHING}, [PX_GRID_RELEASE] = {NULL, NOTHING}, [PX_GRID_WAIT] = {NULL, GRID_WAIT},
    [PX_SETMAXNREG] = {NULL, NOTHING}, [PX_CREATEPOLICY] = {NULL, NOTHING}, [PX_DISCARD] = {NULL, NOTHING},
    [PX_APPLYPRIORITY] = {NULL, NOTHING},
    [PX_TC_ALLOC] = {NULL, TENSOR}, [PX_TC_DEALLOC] = {NULL, TENSOR}, [PX_TC_RELINQUISH] = {NULL, TENSOR},
    [PX_TC_LD] = {NULL, TENSOR}, [PX_TC_ST] = {NULL, TENSOR}, [PX_TC_WAIT_LD] = {NULL, TENSOR},
    [PX_TC_WAIT_ST] = {NULL, TENSOR}, [PX_TC_BEFORE] = {NULL, TENSOR}, [PX_TC_AFTER] = {NULL, TENSOR},
    [PX_WG_FENCE] = {NULL, WARPGROUP}, [PX_WG_COMMIT] = {NULL, WARPGROUP}, [PX_WG_WAIT] = {NULL, WARPGROUP},
    [PX_WG_MMA] = {NULL, WARPGROUP}, [PX_TC_CP] = {NULL, TENSOR}, [PX_TC_MMA_OP] = {NULL, TENSOR}, [PX_TC_COMMIT_OP] = {NULL, TENSOR},
};

/* ---- Groups ---- */

/* Lanes that can go on. */
static uint32_t runnable(const struct px_warp *w)
{
    return w->live & ~w->waiting & ~w->blocked;
}

/* The lanes to run, their place, and the nearest place ahead where others stand. 0 if nobody can go on. */
static uint32_t choose(struct px_warp *w, uint32_t *pc, uint32_t *ahead)
{
    uint32_t lanes = runnable(w), group = 0;
    *pc = *ahead = UINT32_MAX;
    if (lanes == 0)
        return 0;
    PX_EACH(l, lanes)
    {
        if (w->pc[l] < *pc)
            *pc = w->pc[l];
    }
    if (w->shuffle) {
        /* After a failed wait the lane that could change matters may be any other. */
        uint32_t n = 0;
        PX_EACH(l, lanes)
        {
            if (px_random(w->cta->m) % ++n == 0)
                *pc = w->pc[l];
        }
        w->shuffle = false;
    }
    PX_EACH(l, lanes)
    {
        if (w->pc[l] == *pc)
            group |= 1u << l;
        else if (w->pc[l] > *pc && w->pc[l] < *ahead)
            *ahead = w->pc[l];
    }
    return group;
}

static void put(struct px_warp *w, uint32_t lanes, uint32_t pc)
{
    PX_EACH(l, lanes)
    w->pc[l] = pc;
}

static void set_base(struct px_warp *w, uint32_t pc)
{
    const struct px_module *m = w->cta->m->module;
    for (uint32_t k = 0; k < m->n_functions; k++) {
        const struct px_function *f = &m->function[k];
        if (f->defined && pc >= f->begin && pc < f->end) {
            w->base = w->regs + f->base;
            return;
        }
    }
}

/* ---- Lanes together ---- */

static uint32_t member_mask(const struct px_warp *w, const struct px_instruction *i, uint32_t lane)
{
    if (i->full)
        return w->live;
    const struct px_operand *o = i->op == PX_BAR_WARP ? &i->o[0] : &i->o[i->n_operands - 1];
    return px_get32(w, o, lane);
}

/* Of lanes that stand at i: a set that is complete, with those that waited for it, or 0 when all of them must wait. *rest:
 * lanes of `lanes` that belong to other sets. */
static uint32_t gather(struct px_warp *w, const struct px_instruction *i, uint32_t pc, uint32_t lanes, uint32_t *rest)
{
    uint32_t first = (uint32_t)__builtin_ctz(lanes), mask = member_mask(w, i, first), set = 0;
    PX_EACH(l, lanes)
    {
        if (member_mask(w, i, l) == mask)
            set |= 1u << l;
    }
    *rest = lanes & ~set;
    if (set & ~mask)
        px_trap(w->cta->m, "lanes %08x execute it with member mask %08x, which does not hold them", set, mask);
    uint32_t wanted = mask & w->live, have = set;
    PX_EACH(l, w->waiting & wanted & ~set)
    {
        const struct px_instruction *at = &w->cta->m->module->code[w->pc[l]];
        bool meets = i->op == PX_BAR_WARP ? at->op == PX_BAR_WARP : w->pc[l] == pc;
        if (meets && w->wait_mask[l] == mask)
            have |= 1u << l;
        else if (!meets && (i->full || at->full))
            px_trap(w->cta->m, "lanes of one warp stand at different aligned instructions: lane %u at line %u", l, at->line);
    }
    if (have == wanted) {
        w->waiting &= ~have;
        return have;
    }
    put(w, set, pc);
    w->waiting |= set;
    PX_EACH(l, set)
    w->wait_mask[l] = mask;
    return 0;
}

/* ---- Control ---- */

static void leave(struct px_warp *w, uint32_t lanes)
{
    w->live &= ~lanes;
    /* Who waits for lanes that are gone looks again. */
    w->waiting = 0;
}

static void copy_frames(struct px_warp *w, const struct px_instruction *i, uint32_t lanes, bool results)
{
    const struct px_module   *m = w->cta->m->module;
    const struct px_function *f = &m->function[i->target];
    uint32_t                  n = results ? f->n_returns : f->n_params;
    if (!f->defined)
        px_trap(w->cta->m, "'%s' is called but not defined", f->name);
    if (i->n_operands != n)
        px_trap(w->cta->m, "'%s' is called with %u, wanted %u", f->name, i->n_operands, n);
    uint32_t caller = (uint32_t)(w->base - w->regs), caller_frame = 0;
    for (uint32_t k = 0; k < m->n_functions; k++) {
        if (m->function[k].base == caller && !m->function[k].entry)
            caller_frame = m->function[k].frame_base;
    }
    for (uint32_t k = 0; k < n; k++) {
        const struct px_param *p = results ? &f->result[k] : &f->param[k];
        PX_EACH(l, lanes)
        {
            uint8_t *frame = w->frame + (size_t)l * m->frame_bytes;
            uint8_t *outer = frame + caller_frame + i->o[k].offset, *inner = frame + f->frame_base + p->offset;
            if (results)
                memcpy(outer, inner, p->bytes);
            else
                memcpy(inner, outer, p->bytes);
        }
    }
}

static void enter(struct px_warp *w, const struct px_instruction *i, uint32_t pc, uint32_t lanes)
{
    const struct px_function *f = &w->cta->m->module->function[i->target];
    copy_frames(w, i, lanes, false);
    PX_EACH(l, lanes)
    {
        if (w->depth[l] == PX_CALLS)
            px_trap(w->cta->m, "calls nest deeper than %d", PX_CALLS);
        w->ret[w->depth[l]++][l] = pc + 1;
        w->pc[l] = f->begin;
    }
}

/* ret: to the caller, or the end of the lane. */
static void go_back(struct px_warp *w, uint32_t lanes)
{
    PX_EACH(l, lanes)
    {
        if (w->depth[l] == 0)
            leave(w, 1u << l);
        else
            w->pc[l] = w->ret[--w->depth[l]][l];
    }
}

static void jump_by_table(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    const uint32_t *table = w->cta->m->module->table + i->target;
    PX_EACH(l, lanes)
    {
        uint32_t k = px_get32(w, &i->o[0], l);
        if (k >= table[0])
            px_trap(w->cta->m, "lane %u: index %u of a table of %u", l, k, table[0]);
        w->pc[l] = table[1 + k];
    }
}

/* ---- A turn ---- */

/* An instruction that moves lanes apart or waits; lanes: those whose guard holds, at pc of `group`. Places of all lanes of
 * the group are written. Returns whether the turn goes on. */
static bool apart(struct px_warp *w, const struct px_instruction *i, uint32_t pc, uint32_t group, uint32_t lanes, enum px_stop *stop)
{
    put(w, group, pc + 1);
    if (lanes == 0)
        return true;
    switch (how[i->op].class) {
    case BRANCH: put(w, lanes, i->target); return true;
    case TABLE: jump_by_table(w, i, lanes); return true;
    case CALL: enter(w, i, pc, lanes); return true;
    case RESULTS: copy_frames(w, i, lanes, true); return true;
    case RETURN: go_back(w, lanes); return true;
    case EXIT: leave(w, lanes); return true;
    case TRAP: px_trap(w->cta->m, "the kernel traps in lanes %08x", lanes);
    case SLEEP: *stop = PX_STOP_POLL; return false;
    case TOGETHER: case BAR_WARP: case BARRIER: case CLUSTER:
        while (lanes) {
            uint32_t rest = 0, set = lanes;
            if (how[i->op].class == TOGETHER || how[i->op].class == BAR_WARP || i->full)
                set = gather(w, i, pc, lanes, &rest);
            lanes = rest;
            if (set == 0)
                continue;
            if (how[i->op].class == BAR_WARP) {
                PX_EACH(l, set)
                w->pc[l] += w->pc[l] == pc || w->cta->m->module->code[w->pc[l]].op == PX_BAR_WARP;
                put(w, set & group, pc + 1);
                px_release_clock(w, NULL);
                continue;
            }
            put(w, set, pc + 1);
            if (how[i->op].class == TOGETHER) {
                how[i->op].run(w, i, set);
                w->turn += set == w->live;
            } else if (how[i->op].class == BARRIER ? px_barrier_op(w, i, set) : px_cluster_op(w, i, set)) {
                *stop = PX_STOP_BLOCKED;
            }
        }
        return true;
    case MBARRIER:
        if (px_mbarrier_op(w, i, lanes)) {
            w->polls = 0;
            return true;
        }
        *stop = PX_STOP_POLL;
        return false;
    case WARPGROUP: {
        uint32_t rest = 0, set = gather(w, i, pc, lanes, &rest);
        if (set == 0)
            return true;
        put(w, set, pc + 1);
        if (px_wgmma_op(w, i))
            return true;
        put(w, set, pc);
        *stop = PX_STOP_POLL;
        return false;
    }
    case TENSOR: {
        uint32_t rest = 0, set = i->full ? gather(w, i, pc, lanes, &rest) : lanes;
        if (set == 0)
            return true;
        put(w, set, pc + 1);
        if (!px_tcgen05_op(w, i, set)) {
            put(w, set, pc);
            *stop = PX_STOP_POLL;
            return false;
        }
        return true;
    }
    case ASYNC:
        if (!px_async_op(w, i, lanes)) {
            put(w, lanes, pc);
            *stop = PX_STOP_POLL;
            return false;
        }
        return true;
    case GRID_WAIT: w->waited = true; return true;
    case NOTHING: case PLAIN: break;
    }
    return true;
}

/* Runs until the turn is over or lanes must wait for others than their own warp. */
enum px_stop px_warp_run(struct px_warp *w, uint32_t turn)
{
    struct px_machine           *m = w->cta->m;
    const struct px_instruction *code = m->module->code;
    enum px_stop                 stop = PX_STOP_TURN;
    uint32_t                     pc, ahead, done = 0, group;
    m->now = w;
    while ((group = choose(w, &pc, &ahead)) != 0) {
        set_base(w, pc);
        for (;;) {
            const struct px_instruction *i = &code[pc];
            uint32_t                     lanes = group;
            if (++done > turn) {
                put(w, group, pc);
                m->stats.steps += done;
                /* A loop that waits for a lane which is ahead must let it go on. */
                w->shuffle = px_random(m) % 4 == 0;
                return PX_STOP_TURN;
            }
            m->at = i;
            if (i->guarded) {
                uint32_t p = w->base[i->guard];
                lanes &= i->guard_not ? ~p : p;
            }
            enum class class = how[i->op].class;
            if (class == PLAIN) {
                if (lanes)
                    how[i->op].run(w, i, lanes);
                pc++;
            } else if (class == NOTHING) {
                pc++;
            } else if (class == BRANCH && (lanes == group || lanes == 0)) {
                pc = lanes ? i->target : pc + 1;
            } else if (class == TOGETHER && lanes == group && group == w->live && i->full) {
                how[i->op].run(w, i, lanes);
                w->turn++;
                pc++;
            } else {
                if (!apart(w, i, pc, group, lanes, &stop)) {
                    m->stats.steps += done;
                    w->shuffle = true;
                    return stop;
                }
                break;
            }
            if (pc >= ahead) {
                put(w, group, pc);
                break;
            }
        }
    }
    m->stats.steps += done;
    return w->live ? PX_STOP_BLOCKED : PX_STOP_EXITED;
}

/* ---- Start ---- */

static uint32_t special(const struct px_warp *w, enum px_special s, uint32_t thread, uint32_t lane)
{
    const struct px_cta    *c = w->cta;
    const struct px_launch *l = c->m->launch;
    const uint32_t block[3] = {l->block.x, l->block.y, l->block.z}, grid[3] = {l->grid.x, l->grid.y, l->grid.z};
    const uint32_t cluster[3] = {l->cluster.x ? l->cluster.x : 1, l->cluster.y ? l->cluster.y : 1, l->cluster.z ? l->cluster.z : 1};
    if (s < PX_NTID)
        return s == PX_TID ? thread % block[0] : s == PX_TID + 1 ? thread / block[0] % block[1] : thread / (block[0] * block[1]);
    if (s < PX_CTAID)
        return block[s - PX_NTID];
    if (s < PX_NCTAID)
        return c->id[s - PX_CTAID];
    if (s < PX_CLUSTERID)
        return grid[s - PX_NCTAID];
    if (s < PX_NCLUSTERID)
        return c->cluster->id[s - PX_CLUSTERID];
    if (s < PX_CLUSTER_CTAID)
        return grid[s - PX_NCLUSTERID] / cluster[s - PX_NCLUSTERID];
    if (s < PX_CLUSTER_NCTAID)
        return c->id[s - PX_CLUSTER_CTAID] % cluster[s - PX_CLUSTER_CTAID];
    if (s < PX_CLUSTER_CTARANK)
        return cluster[s - PX_CLUSTER_NCTAID];
    switch (s) {
    case PX_CLUSTER_CTARANK: return c->rank;
    case PX_CLUSTER_NCTARANK: return c->cluster->n_ctas;
    case PX_LANEID: return lane;
    case PX_WARPID: return w->id;
    case PX_NWARPID: return 64;
    case PX_SMID: return (uint32_t)((c->id[0] + c->id[1]) % 132);
    case PX_NSMID: return 132;
    case PX_GRIDID: return (uint32_t)c->m->launches;
    case PX_LANEMASK_EQ: return 1u << lane;
    case PX_LANEMASK_LT: return (1u << lane) - 1;
    case PX_LANEMASK_LE: return (2u << lane) - 1;
    case PX_LANEMASK_GT: return ~((2u << lane) - 1);
    case PX_LANEMASK_GE: return ~((1u << lane) - 1);
    case PX_DYNAMIC_SMEM: return l->shared_bytes;
    case PX_TOTAL_SMEM: return c->shared_end - PX_SHARED_FIRST;
    default: return (uint32_t)c->m->stats.steps; /* clocks */
    }
}

static void fill_one(struct px_warp *w, const struct px_function *f, const struct px_constant *c, uint32_t first)
{
    const struct px_machine  *m = w->cta->m;
    const struct px_function *entry = m->function;
    uint32_t                 *r = w->regs + f->base + c->slot;
    uint32_t static_end = PX_SHARED_FIRST + entry->shared_bytes, rank = w->cta->rank << PX_RANK_SHIFT;
    if (c->width == 0) {
        *r = (uint32_t)c->value;
        return;
    }
    for (uint32_t l = 0; l < PX_LANES; l++) {
        uint64_t v = c->value, align = c->value ? c->value : 1;
        switch (c->fill) {
        case PX_FILL_SPECIAL: v = special(w, (enum px_special)c->value, first + l, l); break;
        case PX_FILL_SHARED: v = rank | (uint32_t)(PX_SHARED_FIRST + c->value); break;
        case PX_FILL_DYNAMIC: v = rank | (uint32_t)((static_end + align - 1) / align * align); break;
        case PX_FILL_LOCAL: v = f->local_base + c->value; break;
        case PX_FILL_PARAM: v = (uint64_t)(uintptr_t)m->params + c->value; break;
        default: break;
        }
        if (c->width == 8)
            ((uint64_t *)(void *)r)[l] = v;
        else
            r[l] = (uint32_t)v;
    }
}

void px_warp_start(struct px_warp *w, uint32_t first_thread, uint32_t n_threads)
{
    const struct px_machine *m = w->cta->m;
    bool                     known = w->filled == m->function && w->filled_module == m->module;
    for (uint32_t k = 0; k < m->module->n_functions; k++) {
        const struct px_function *f = &m->module->function[k];
        if (f->entry && f != m->function)
            continue;
        for (uint32_t c = 0; c < f->n_constants; c++) {
            if (!known || f->constant[c].fill != PX_FILL_VALUE)
                fill_one(w, f, &f->constant[c], first_thread);
        }
    }
    w->filled = m->function;
    w->filled_module = m->module;
    w->live = n_threads >= 32 ? ~0u : (1u << n_threads) - 1;
    w->waiting = w->blocked = w->carry = w->polls = 0;
    w->cluster_arrived = w->cluster_waiting = w->cluster_phase_done = 0;
    w->shuffle = w->poll = w->waited = false;
    memset(w->depth, 0, sizeof w->depth);
    w->wgmma_group = 0;
    memset(w->copy_group, 0, sizeof w->copy_group);
    memset(w->bulk_group, 0, sizeof w->bulk_group);
    put(w, ~0u, m->function->begin);
}
