/* Machines: global memory, launches, and which warp runs next. */
#include "ptxsim/sim_tcgen05.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, PARAM_BYTES = 32768, TURN = 100000 };

/* ---- Faults ---- */

void px_trap(struct px_machine *m, const char *fmt, ...)
{
    char    line[160] = "", what[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (m->at)
        px_module_line(m->module, m->at->line, line, sizeof line);
    if (m->now && m->at)
        (void)snprintf(m->error, sizeof m->error, "%s, block (%u,%u,%u), warp %u, line %u: %s\n    %s", m->function->name, m->now->cta->id[0],
                       m->now->cta->id[1], m->now->cta->id[2], m->now->id, m->at->line, what, line);
    else
        (void)snprintf(m->error, sizeof m->error, "%s: %s", m->function ? m->function->name : "?", what);
    longjmp(m->out, 1);
}

const char *px_error(const struct px_machine *m)
{
    return m->error;
}

struct px_stats px_stats_of(const struct px_machine *m)
{
    return m->stats;
}

uint64_t px_random(struct px_machine *m)
{
    m->random += 0x9e3779b97f4a7c15ull;
    uint64_t z = m->random;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* ---- Global memory ---- */

struct px_machine *px_machine_new(const struct px_config *config)
{
    struct px_machine *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->config = *config;
    m->random = config->seed;
    m->params = aligned_alloc(GUARD, PARAM_BYTES);
    if (!m->params) {
        free(m);
        return NULL;
    }
    return m;
}

static bool add_region(struct px_machine *m, struct px_region r)
{
    if (m->n_regions == m->max_regions) {
        uint32_t          more = m->max_regions ? 2 * m->max_regions : 64;
        struct px_region *a = realloc(m->region, more * sizeof *a);
        if (!a)
            return false;
        m->region = a;
        m->max_regions = more;
    }
    uint32_t at = m->n_regions++;
    while (at > 0 && m->region[at - 1].start > r.start) {
        m->region[at] = m->region[at - 1];
        at--;
    }
    m->region[at] = r;
    return true;
}

static struct px_region *region_starting(struct px_machine *m, const void *p)
{
    for (uint32_t k = 0; k < m->n_regions; k++) {
        if (m->region[k].start == p)
            return &m->region[k];
    }
    return NULL;
}

static void drop_region(struct px_machine *m, const void *p)
{
    struct px_region *r = region_starting(m, p);
    if (!r)
        return;
    free(r->block);
    free(r->written);
    uint32_t at = (uint32_t)(r - m->region);
    memmove(r, r + 1, (m->n_regions - at - 1) * sizeof *r);
    m->n_regions--;
}

void *px_alloc(struct px_machine *m, size_t bytes)
{
    size_t           all = (bytes + 2 * GUARD + GUARD - 1) / GUARD * GUARD;
    struct px_region r = {.bytes = bytes, .block = aligned_alloc(GUARD, all), .written = calloc(1, bytes + 1)};
    if (r.block && r.written) {
        r.start = (uint8_t *)r.block + GUARD;
        memset(r.block, 0xff, all < ((size_t)64 << 20) ? all : GUARD);
        if (add_region(m, r))
            return r.start;
    }
    free(r.block);
    free(r.written);
    return NULL;
}

bool px_release(struct px_machine *m, void *p)
{
    struct px_region *r = region_starting(m, p);
    if (!r || !r->block)
        return false;
    drop_region(m, p);
    return true;
}

static const struct px_region *holder(const struct px_machine *m, const void *p, size_t bytes)
{
    const uint8_t *s = p;
    for (uint32_t k = 0; k < m->n_regions; k++) {
        const struct px_region *r = &m->region[k];
        if (s >= r->start && (size_t)(s - r->start) <= r->bytes && bytes <= r->bytes - (size_t)(s - r->start))
            return r;
    }
    return NULL;
}

bool px_inside(const struct px_machine *m, const void *p, size_t bytes)
{
    return holder(m, p, bytes) != NULL;
}

bool px_wrote(struct px_machine *m, const void *p, size_t bytes)
{
    const struct px_region *r = holder(m, p, bytes);
    if (!r)
        return false;
    if (r->written)
        memset(r->written + ((const uint8_t *)p - r->start), 1, bytes);
    return true;
}

bool px_written(const struct px_machine *m, const void *p, size_t bytes)
{
    const struct px_region *r = holder(m, p, bytes);
    if (!r)
        return false;
    for (size_t k = 0; k < bytes && r->written; k++) {
        if (!r->written[(size_t)((const uint8_t *)p - r->start) + k])
            return false;
    }
    return true;
}

void px_synchronised(struct px_machine *m)
{
    m->synchronised = m->launches;
}

/* ---- Blocks ---- */

static void *need(struct px_machine *m, size_t n, size_t bytes)
{
    void *p = calloc(n ? n : 1, bytes);
    if (!p)
        px_trap(m, "no memory for the simulator's own state");
    return p;
}

static uint32_t volume(struct px_dim d)
{
    return (d.x ? d.x : 1) * (d.y ? d.y : 1) * (d.z ? d.z : 1);
}

static uint32_t *registers_of(struct px_machine *m, uint32_t index, struct px_warp *w)
{
    if (index >= m->n_pool) {
        struct px_pool *p = realloc(m->pool, (index + 1) * sizeof *p);
        if (!p)
            px_trap(m, "no memory for registers");
        memset(p + m->n_pool, 0, (index + 1 - m->n_pool) * sizeof *p);
        m->pool = p;
        m->n_pool = index + 1;
    }
    struct px_pool *p = &m->pool[index];
    size_t          words = m->module->n_words + 64;
    if (p->words < words) {
        free(p->regs);
        p->regs = need(m, words, sizeof *p->regs);
        p->words = words;
        p->filled = NULL;
    }
    w->filled = p->filled;
    w->filled_module = p->module;
    p->filled = m->function;
    p->module = m->module;
    return p->regs;
}

/* Memory of the blocks of one cluster, kept for all clusters that run in its place. */
static void build_cluster(struct px_machine *m, struct px_cluster *k, uint32_t *next_warp)
{
    const struct px_launch *l = m->launch;
    uint32_t threads = volume(l->block), n_warps = (threads + PX_LANES - 1) / PX_LANES;
    uint32_t align = 1024, end = PX_SHARED_FIRST + (m->function->shared_bytes + align - 1) / 16 * 16 + 64 + l->shared_bytes;
    k->n_ctas = volume(l->cluster);
    k->n_warps = n_warps * k->n_ctas;
    k->n_actors = k->n_warps + (m->uses_mbarriers ? k->n_ctas * PX_MBARRIERS : 0);
    k->cta = need(m, k->n_ctas, sizeof *k->cta);
    k->clock = need(m, 2 * k->n_actors, sizeof *k->clock);
    k->done = need(m, 2 * k->n_actors, sizeof *k->done);
    k->flags = need(m, 2 * k->n_actors, sizeof *k->flags);
    for (uint32_t r = 0; r < k->n_ctas; r++) {
        struct px_cta *c = &k->cta[r];
        c->m = m;
        c->cluster = k;
        c->rank = r;
        c->n_warps = n_warps;
        c->shared = need(m, end + 2048, 1);
        c->shared_written = need(m, end + 2048, 1);
        if (!m->config.no_races) {
            c->cell = need(m, end / 4 + 512, sizeof *c->cell);
            c->read_clock = need(m, (size_t)(end / 4 + 512) * k->n_warps, sizeof *c->read_clock);
        }
        for (uint32_t b = 0; b < PX_BARRIERS; b++)
            c->barrier[b].clock = need(m, 2 * k->n_actors, sizeof *k->clock);
        for (uint32_t b = 0; b < PX_MBARRIERS && m->uses_mbarriers; b++) {
            c->mbarrier[b].clock = need(m, 2 * k->n_actors, sizeof *k->clock);
            c->mbarrier[b].done = need(m, 2 * k->n_actors, sizeof *k->clock);
        }
        c->warp = need(m, n_warps, sizeof *c->warp);
        for (uint32_t x = 0; x < n_warps; x++) {
            struct px_warp *w = &c->warp[x];
            w->cta = c;
            w->id = x;
            w->actor = r * n_warps + x;
            w->regs = w->base = registers_of(m, (*next_warp)++, w);
            w->clock = need(m, 2 * k->n_actors, sizeof *w->clock);
            w->local = need(m, PX_LANES, m->module->local_bytes + 16);
            w->local_written = need(m, PX_LANES, m->module->local_bytes + 16);
            w->frame = need(m, PX_LANES, m->module->frame_bytes + 16);
        }
    }
}

static void free_cluster(struct px_cluster *k)
{
    for (uint32_t r = 0; k->cta && r < k->n_ctas; r++) {
        struct px_cta *c = &k->cta[r];
        for (uint32_t x = 0; c->warp && x < c->n_warps; x++) {
            px_wgmma_end(&c->warp[x], false);
            free(c->warp[x].clock);
            free(c->warp[x].local);
            free(c->warp[x].local_written);
            free(c->warp[x].frame);
        }
        for (uint32_t b = 0; b < PX_BARRIERS; b++)
            free(c->barrier[b].clock);
        for (uint32_t b = 0; b < PX_MBARRIERS; b++) {
            free(c->mbarrier[b].clock);
            free(c->mbarrier[b].done);
        }
        px_tcgen05_free(c);
        free(c->warp);
        free(c->shared);
        free(c->shared_written);
        free(c->cell);
        free(c->read_clock);
    }
    free(k->cta);
    free(k->clock);
    free(k->done);
    free(k->flags);
}

static uint32_t shared_end(const struct px_machine *m)
{
    uint32_t end = PX_SHARED_FIRST + m->function->shared_bytes, align = 16;
    for (uint32_t k = 0; k < m->function->n_constants; k++) {
        if (m->function->constant[k].fill == PX_FILL_DYNAMIC && m->function->constant[k].value > align)
            align = (uint32_t)m->function->constant[k].value;
    }
    return m->launch->shared_bytes ? (end + align - 1) / align * align + m->launch->shared_bytes : end;
}

static void reset_clock(uint32_t *clock, uint32_t n)
{
    if (clock)
        memset(clock, 0, 2 * n * sizeof *clock);
}

static void start_block(struct px_cta *c)
{
    struct px_machine *m = c->m;
    uint32_t           n = c->cluster->n_actors, threads = volume(m->launch->block);
    c->shared_end = shared_end(m);
    memset(c->shared, 0xff, c->shared_end);
    memset(c->shared_written, 0, c->shared_end);
    for (uint32_t k = 0; c->cell && k < (c->shared_end + 3) / 4; k++)
        c->cell[k] = (struct px_cell){.actor = PX_NO_ACTOR, .read_warp = PX_NO_ACTOR};
    if (c->read_clock)
        memset(c->read_clock, 0, (size_t)(c->shared_end + 3) / 4 * c->cluster->n_warps * sizeof *c->read_clock);
    for (uint32_t b = 0; b < PX_BARRIERS; b++) {
        uint32_t *clock = c->barrier[b].clock;
        memset(&c->barrier[b], 0, sizeof c->barrier[b]);
        c->barrier[b].clock = clock;
        reset_clock(clock, n);
    }
    for (uint32_t b = 0; b < PX_MBARRIERS && m->uses_mbarriers; b++) {
        c->mbarrier[b].address = c->mbarrier[b].phase = 0;
        reset_clock(c->mbarrier[b].done, n);
    }
    c->n_live = c->n_warps;
    for (uint32_t x = 0; x < c->n_warps; x++) {
        struct px_warp *w = &c->warp[x];
        reset_clock(w->clock, n);
        w->clock[w->actor] = 1;
        memset(w->local_written, 0, (size_t)PX_LANES * (m->module->local_bytes + 16));
        memset(w->frame, 0xff, (size_t)PX_LANES * (m->module->frame_bytes + 16));
        px_warp_start(w, x * PX_LANES, threads - x * PX_LANES);
    }
}

static void start_cluster(struct px_machine *m, struct px_cluster *k, uint32_t index)
{
    const struct px_launch *l = m->launch;
    uint32_t size[3] = {l->cluster.x ? l->cluster.x : 1, l->cluster.y ? l->cluster.y : 1, l->cluster.z ? l->cluster.z : 1};
    uint32_t n[2] = {(l->grid.x ? l->grid.x : 1) / size[0], (l->grid.y ? l->grid.y : 1) / size[1]};
    k->id[0] = index % n[0];
    k->id[1] = index / n[0] % n[1];
    k->id[2] = index / n[0] / n[1];
    k->arrived = 0;
    reset_clock(k->clock, k->n_actors);
    reset_clock(k->done, k->n_actors);
    reset_clock(k->flags, k->n_actors);
    k->active = true;
    for (uint32_t r = 0; r < k->n_ctas; r++) {
        struct px_cta *c = &k->cta[r];
        c->id[0] = k->id[0] * size[0] + r % size[0];
        c->id[1] = k->id[1] * size[1] + r / size[0] % size[1];
        c->id[2] = k->id[2] * size[2] + r / size[0] / size[1];
        start_block(c);
    }
}

/* ---- Scheduling ---- */

static void end_warp(struct px_warp *w)
{
    struct px_cta *c = w->cta;
    for (uint32_t b = 0; b < PX_BARRIERS; b++) {
        if (c->barrier[b].lanes[w->id])
            px_trap(c->m, "a warp ended while its lanes wait at barrier %u", b);
    }
    px_wgmma_end(w, true);
    c->n_live--;
    c->m->events++;
    px_barrier_exit(c);
    px_cluster_exit(c->cluster);
    if (c->n_live > 0)
        return;
    bool any = false;
    for (uint32_t r = 0; r < c->cluster->n_ctas; r++)
        any = any || c->cluster->cta[r].n_live > 0;
    c->cluster->active = any;
    px_async_end(c);
    px_tensor_end(c);
    px_tcgen05_end(c);
}

/* Whether the warp might get on: it can run, and if it only polls, something happened since. */
static bool may_run(const struct px_warp *w)
{
    uint32_t can = w->live & ~w->blocked & ~w->waiting;
    return can != 0 && !(w->polls > 100 && w->poll_event == w->cta->m->events);
}

static __attribute__((noreturn)) void deadlock(struct px_machine *m)
{
    char   text[700] = "";
    size_t at = 0;
    for (uint32_t n = 0; n < m->n_clusters; n++) {
        for (uint32_t r = 0; m->cluster[n].active && r < m->cluster[n].n_ctas; r++) {
            struct px_cta *c = &m->cluster[n].cta[r];
            for (uint32_t x = 0; x < c->n_warps && at < sizeof text - 100; x++) {
                struct px_warp *w = &c->warp[x];
                if (!w->live)
                    continue;
                uint32_t lane = (uint32_t)__builtin_ctz(w->live), pc = w->pc[lane];
                uint32_t behind = w->blocked >> lane & 1 ? 1 : 0;
                at += (size_t)snprintf(text + at, sizeof text - at, "%s block %u warp %u %s line %u (lanes %08x)", at ? ";" : "", r, x,
                                       w->blocked ? "waits at" : w->waiting ? "waits for lanes at" : "polls near",
                                       m->module->code[pc - (pc > 0 ? behind : 0)].line, w->live);
            }
        }
    }
    m->now = NULL;
    px_trap(m, "deadlock:%s", text);
}

static uint32_t turn_of(struct px_machine *m)
{
    if (m->config.seed == 0)
        return TURN;
    uint32_t shift = (uint32_t)(px_random(m) % 12);
    return 1 + (uint32_t)(px_random(m) & ((1u << shift) - 1));
}

static void one_turn(struct px_warp *w)
{
    struct px_machine *m = w->cta->m;
    enum px_stop       stop = px_warp_run(w, turn_of(m));
    if (!w->live) {
        end_warp(w);
        w->polls = 0;
    } else if (stop == PX_STOP_POLL) {
        w->polls = w->poll_event == m->events ? w->polls + 1 : 0;
        w->poll_event = m->events;
    } else if (stop == PX_STOP_TURN) {
        w->polls = 0;
    }
    uint64_t most = m->config.max_steps ? m->config.max_steps : 4000000000ull;
    if (m->stats.steps > most)
        px_trap(m, "%" PRIu64 " warp instructions and no end", most);
}

/* One asynchronous thing takes effect, if any can. */
static bool go_on(struct px_machine *m)
{
    if (m->config.seed && px_random(m) % 2)
        return px_tcgen05_step(m) || px_tensor_step(m) || px_async_step(m);
    return px_async_step(m) || px_tensor_step(m) || px_tcgen05_step(m);
}

/* One pass over all warps, or as many random choices. False when nobody could run. */
static bool pass(struct px_machine *m)
{
    bool ran = false;
    for (uint32_t n = 0; n < m->n_clusters; n++) {
        struct px_cluster *k = &m->cluster[n];
        uint32_t           count = k->n_warps, per = k->cta[0].n_warps;
        uint32_t           shift = m->config.seed ? (uint32_t)(px_random(m) % count) : 0;
        for (uint32_t x = 0; x < count && k->active; x++) {
            uint32_t        at = m->config.seed && px_random(m) % 2 ? (uint32_t)(px_random(m) % count) : (x + shift) % count;
            struct px_warp *w = &k->cta[at / per].warp[at % per];
            if (!may_run(w))
                continue;
            one_turn(w);
            ran = true;
            if (m->config.seed == 0 || px_random(m) % 4 == 0)
                (void)go_on(m);
        }
    }
    return ran;
}

static void run_all(struct px_machine *m, uint32_t total)
{
    for (;;) {
        bool any = false;
        for (uint32_t n = 0; n < m->n_clusters; n++) {
            struct px_cluster *k = &m->cluster[n];
            if (!k->active && m->next_cluster < total)
                start_cluster(m, k, m->order[m->next_cluster++]);
            any = any || k->active;
        }
        if (!any)
            break;
        if (!pass(m)) {
            /* Random choices may have passed over those who can run. */
            bool could = false;
            for (uint32_t n = 0; n < m->n_clusters && !could; n++) {
                for (uint32_t x = 0; m->cluster[n].active && x < m->cluster[n].n_warps; x++)
                    could = could || may_run(&m->cluster[n].cta[x / m->cluster[n].cta[0].n_warps].warp[x % m->cluster[n].cta[0].n_warps]);
            }
            if (!could && !go_on(m))
                deadlock(m);
        }
    }
    /* Stores to global memory may outlive their block. */
    while (go_on(m))
        ;
}

/* ---- Launches ---- */

static void check_launch(struct px_machine *m, const struct px_function *f, const struct px_launch *l)
{
    uint32_t threads = volume(l->block), cluster = volume(l->cluster);
    uint32_t sizes[3] = {l->cluster.x ? l->cluster.x : 1, l->cluster.y ? l->cluster.y : 1, l->cluster.z ? l->cluster.z : 1};
    uint32_t shared_most = m->config.shared_most ? m->config.shared_most : 227 * 1024;
    uint32_t cluster_most = m->config.cluster_most ? m->config.cluster_most : 16;
    if (l->grid.x == 0 || l->grid.y == 0 || l->grid.z == 0 || l->block.x == 0 || l->block.y == 0 || l->block.z == 0)
        px_trap(m, "a launch without blocks or threads");
    if (l->grid.y > 65535 || l->grid.z > 65535 || l->grid.x > 0x7fffffff)
        px_trap(m, "a grid of %u x %u x %u blocks", l->grid.x, l->grid.y, l->grid.z);
    if (threads > 1024 || (f->max_threads && threads > f->max_threads))
        px_trap(m, "%u threads in a block, at most %u are allowed", threads, f->max_threads ? f->max_threads : 1024);
    if (cluster > cluster_most)
        px_trap(m, "a cluster of %u blocks, at most %u on this card", cluster, cluster_most);
    if (l->grid.x % sizes[0] || l->grid.y % sizes[1] || l->grid.z % sizes[2])
        px_trap(m, "clusters of %u blocks do not fit the grid", cluster);
    if (f->cluster[0] && (f->cluster[0] != sizes[0] || f->cluster[1] != sizes[1] || f->cluster[2] != sizes[2]))
        px_trap(m, "the kernel wants clusters of %u x %u x %u", f->cluster[0], f->cluster[1], f->cluster[2]);
    if (shared_end(m) - PX_SHARED_FIRST > shared_most)
        px_trap(m, "%u bytes of shared memory, at most %u", shared_end(m) - PX_SHARED_FIRST, shared_most);
    if (f->param_bytes > PARAM_BYTES)
        px_trap(m, "%u bytes of parameters, at most %d", f->param_bytes, PARAM_BYTES);
}

static void enter_module(struct px_machine *m)
{
    for (uint32_t k = 0; k < m->module->n_variables; k++) {
        const struct px_variable *v = &m->module->variable[k];
        (void)add_region(m, (struct px_region){.start = v->memory, .bytes = v->bytes, .read_only = v->constant});
    }
    (void)add_region(m, (struct px_region){.start = m->params, .bytes = m->function->param_bytes, .read_only = true});
    m->uses_mbarriers = false;
    for (uint32_t k = 0; k < m->module->n_code; k++)
        m->uses_mbarriers = m->uses_mbarriers || m->module->code[k].op == PX_MBAR_INIT;
}

static void leave_module(struct px_machine *m)
{
    for (uint32_t k = 0; k < m->module->n_variables; k++)
        drop_region(m, m->module->variable[k].memory);
    drop_region(m, m->params);
}

static void prepare(struct px_machine *m, uint32_t total)
{
    uint32_t next_warp = 0, side = m->config.resident > 0 ? (uint32_t)m->config.resident : 1;
    m->n_clusters = side < total ? side : total;
    m->cluster = need(m, m->n_clusters, sizeof *m->cluster);
    for (uint32_t n = 0; n < m->n_clusters; n++)
        build_cluster(m, &m->cluster[n], &next_warp);
    m->order = need(m, total, sizeof *m->order);
    for (uint32_t k = 0; k < total; k++) {
        uint32_t other = m->config.seed ? (uint32_t)(px_random(m) % (k + 1)) : k;
        m->order[k] = m->order[other];
        m->order[other] = k;
    }
}

bool px_run(struct px_machine *m, struct px_module *module, const char *entry, const struct px_launch *l)
{
    m->module = module;
    m->function = NULL;
    m->launch = l;
    m->now = NULL;
    m->at = NULL;
    m->next_cluster = 0;
    m->launches++;
    for (uint32_t k = 0; k < module->n_functions; k++) {
        if (module->function[k].entry && module->function[k].defined && strcmp(module->function[k].name, entry) == 0)
            m->function = &module->function[k];
    }
    if (!m->function) {
        (void)snprintf(m->error, sizeof m->error, "the module has no entry '%s'", entry);
        return false;
    }
    enter_module(m);
    bool good = setjmp(m->out) == 0;
    if (good) {
        check_launch(m, m->function, l);
        for (uint32_t k = 0; k < m->function->n_params; k++)
            memcpy(m->params + m->function->param[k].offset, l->params[k], m->function->param[k].bytes);
        uint32_t total = volume(l->grid) / volume(l->cluster);
        prepare(m, total);
        run_all(m, total);
    }
    px_async_free(m);
    for (uint32_t n = 0; m->cluster && n < m->n_clusters; n++)
        free_cluster(&m->cluster[n]);
    free(m->cluster);
    free(m->order);
    m->cluster = NULL;
    m->order = NULL;
    m->n_clusters = 0;
    leave_module(m);
    return good;
}

void px_machine_free(struct px_machine *m)
{
    if (!m)
        return;
    for (uint32_t k = 0; k < m->n_regions; k++) {
        free(m->region[k].block);
        free(m->region[k].written);
    }
    for (uint32_t k = 0; k < m->n_pool; k++)
        free(m->pool[k].regs);
    free(m->pool);
    free(m->region);
    free(m->params);
    free(m);
}
