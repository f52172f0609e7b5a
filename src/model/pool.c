/* Sizes, allocation and page bookkeeping of the pool. */
#include "model/pool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum nib_row_format nib_kv_row_format(enum nib_kv kv)
{
    switch (kv) {
    case NIB_KV_F32: return NIB_ROW_F32;
    case NIB_KV_BF16: return NIB_ROW_BF16;
    case NIB_KV_FP8: return NIB_ROW_FP8;
    case NIB_KV_NVFP4: return NIB_ROW_NVFP4;
    }
    return NIB_ROW_F32;
}

enum nib_row_format nib_kv_index_format(enum nib_kv kv)
{
    return kv == NIB_KV_F32 ? NIB_ROW_F32 : kv == NIB_KV_BF16 ? NIB_ROW_BF16 : NIB_ROW_FP4;
}

static int32_t ceil_div(int32_t a, int32_t b)
{
    return a / b + (a % b != 0);
}

static int32_t n_layers_of(const struct nib_pool_config *c)
{
    return c->model->n_layers + (c->mtp ? 1 : 0);
}

/* Pages that a sequence keeps between steps to continue from any of its last n_rollback positions. */
static int32_t window_pages_kept(const struct nib_pool_config *c)
{
    return ceil_div(c->model->n_window - 1 + c->n_rollback, NIB_PAGE_TOKENS) + 1;
}

/* Besides those: one new page (or the copy of a shared one) for each sequence's first row, and the chunk's. */
static int32_t n_window_pages(const struct nib_pool_config *c)
{
    return c->n_seqs_max * (window_pages_kept(c) + 1) + ceil_div(c->n_rows_max, NIB_PAGE_TOKENS) + 1;
}

static int32_t n_entry_pages(const struct nib_pool_config *c)
{
    const int32_t all = c->n_seqs_max * ceil_div(c->n_ctx, NIB_PAGE_TOKENS);
    return c->n_pages > 0 && c->n_pages < all ? c->n_pages : all;
}

/* Raw rows that a window may still need, and n_rollback to spare. */
static int32_t ring_rows(int32_t ratio, int32_t n_rollback)
{
    return (ratio == 4 ? 8 : ratio) + n_rollback;
}

static struct nib_store make_store(enum nib_row_format f, int32_t d, int32_t n_rot, int32_t page_rows)
{
    return (struct nib_store){.format = f, .page_rows = page_rows, .row_bytes = nib_row_bytes(f, d, n_rot)};
}

static uint64_t page_bytes(const struct nib_store *s)
{
    return (uint64_t)s->page_rows * (uint64_t)s->row_bytes;
}

/* Formats and sizes of one layer's stores; no memory yet. */
static struct nib_layer_state layer_shape(const struct nib_pool_config *c, int32_t l)
{
    const struct nib_config *m = c->model;
    const int32_t ratio = m->ratio[l];
    struct nib_layer_state s;
    memset(&s, 0, sizeof s);
    s.window = make_store(nib_kv_row_format(c->kv), m->head_dim, m->n_rot, NIB_PAGE_TOKENS);
    if (ratio > 0) {
        s.entries = make_store(nib_kv_row_format(c->kv), m->head_dim, m->n_rot, NIB_PAGE_TOKENS / ratio);
        s.frontier.n_ring = ring_rows(ratio, c->n_rollback);
        s.frontier.slot_stride = (int64_t)s.frontier.n_ring * (ratio == 4 ? 2 : 1) * m->head_dim;
    }
    if (ratio == 4) {
        s.index = make_store(nib_kv_index_format(c->kv), m->index_dim, m->n_rot, NIB_PAGE_TOKENS / ratio);
        s.index_frontier.n_ring = ring_rows(ratio, c->n_rollback);
        s.index_frontier.slot_stride = (int64_t)s.index_frontier.n_ring * 2 * m->index_dim;
    }
    return s;
}

uint64_t nib_pool_bytes(const struct nib_pool_config *c, uint64_t *per_seq)
{
    uint64_t window = 0, entry = 0, slot = 0;
    for (int32_t l = 0; l < n_layers_of(c); l++) {
        const struct nib_layer_state s = layer_shape(c, l);
        window += page_bytes(&s.window);
        entry += page_bytes(&s.entries) + page_bytes(&s.index);
        slot += 8 * (uint64_t)(s.frontier.slot_stride + s.index_frontier.slot_stride);
    }
    if (c->mtp)
        slot += 4 * (uint64_t)(c->n_rollback + 1) * (uint64_t)c->model->n_hc * (uint64_t)c->model->dim;
    if (per_seq)
        *per_seq = (uint64_t)(window_pages_kept(c) + 1) * window + (uint64_t)ceil_div(c->n_ctx, NIB_PAGE_TOKENS) * entry + slot;
    return (uint64_t)n_window_pages(c) * window + (uint64_t)n_entry_pages(c) * entry + (uint64_t)c->n_seqs_max * slot;
}

static enum nib_status page_set_init(struct nib_page_set *s, int32_t n)
{
    s->n = n;
    s->n_free = n;
    s->free_page = malloc((size_t)n * sizeof *s->free_page);
    s->n_refs = calloc((size_t)n, sizeof *s->n_refs);
    if (!s->free_page || !s->n_refs)
        return NIB_E_MEMORY;
    for (int32_t i = 0; i < n; i++)
        s->free_page[i] = n - 1 - i;
    return NIB_OK;
}

static int32_t page_take(struct nib_page_set *s)
{
    const int32_t page = s->free_page[--s->n_free];
    s->n_refs[page] = 1;
    return page;
}

static void page_drop(struct nib_page_set *s, int32_t *page)
{
    if (*page >= 0 && --s->n_refs[*page] == 0)
        s->free_page[s->n_free++] = *page;
    *page = -1;
}

static enum nib_status store_alloc(struct nib_pool *p, struct nib_store *s, int32_t n_pages)
{
    if (s->row_bytes == 0)
        return NIB_OK;
    s->base = p->api->alloc(p->backend, (size_t)n_pages * page_bytes(s));
    return s->base ? NIB_OK : NIB_E_MEMORY;
}

static enum nib_status frontier_alloc(struct nib_pool *p, struct nib_frontier *f)
{
    if (f->n_ring == 0)
        return NIB_OK;
    const size_t bytes = (size_t)p->config.n_seqs_max * (size_t)f->slot_stride * sizeof(float);
    f->kv = p->api->alloc(p->backend, bytes);
    f->score = p->api->alloc(p->backend, bytes);
    return f->kv && f->score ? NIB_OK : NIB_E_MEMORY;
}

static enum nib_status alloc_all(struct nib_pool *p)
{
    const struct nib_pool_config *c = &p->config;
    NIB_TRY(page_set_init(&p->window, n_window_pages(c)));
    NIB_TRY(page_set_init(&p->entry, n_entry_pages(c)));
    p->slot_used = calloc((size_t)c->n_seqs_max, sizeof *p->slot_used);
    p->layer = calloc((size_t)p->n_layers, sizeof *p->layer);
    if (!p->slot_used || !p->layer)
        return NIB_E_MEMORY;
    for (int32_t l = 0; l < p->n_layers; l++) {
        struct nib_layer_state *s = &p->layer[l];
        *s = layer_shape(c, l);
        NIB_TRY(store_alloc(p, &s->window, p->window.n));
        NIB_TRY(store_alloc(p, &s->entries, p->entry.n));
        NIB_TRY(store_alloc(p, &s->index, p->entry.n));
        NIB_TRY(frontier_alloc(p, &s->frontier));
        NIB_TRY(frontier_alloc(p, &s->index_frontier));
    }
    if (c->mtp) {
        const size_t item = p->streams_dtype == NIB_DTYPE_F32 ? 4 : 2;
        p->n_streams = c->n_rollback + 1;
        p->streams = p->api->alloc(p->backend, (size_t)c->n_seqs_max * (size_t)p->n_streams * (size_t)c->model->n_hc *
                                                   (size_t)c->model->dim * item);
        if (!p->streams)
            return NIB_E_MEMORY;
    }
    return NIB_OK;
}

enum nib_status nib_pool_init(struct nib_pool *p, const struct nib_pool_config *c, const struct nib_backend_api *api,
                              struct nib_backend *b, enum nib_dtype streams_dtype, struct nib_error *err)
{
    memset(p, 0, sizeof *p);
    p->config = *c;
    p->api = api;
    p->backend = b;
    p->n_layers = n_layers_of(c);
    p->page_stride = ceil_div(c->n_ctx, NIB_PAGE_TOKENS);
    p->streams_dtype = streams_dtype;
    const enum nib_status status = alloc_all(p);
    if (status != NIB_OK) {
        nib_pool_deinit(p);
        return nib_error_set(err, status, "no memory for the state of %" PRId32 " sequences of %" PRId32 " tokens (%" PRIu64 " bytes)",
                             c->n_seqs_max, c->n_ctx, nib_pool_bytes(c, NULL));
    }
    return NIB_OK;
}

void nib_pool_deinit(struct nib_pool *p)
{
    for (int32_t l = 0; p->layer && l < p->n_layers; l++) {
        const struct nib_layer_state *s = &p->layer[l];
        void *const owned[] = {s->window.base,     s->entries.base,          s->index.base,           s->frontier.kv,
                               s->frontier.score,  s->index_frontier.kv,     s->index_frontier.score};
        for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
            p->api->release(p->backend, owned[i]);
    }
    if (p->streams)
        p->api->release(p->backend, p->streams);
    free(p->layer);
    free(p->slot_used);
    free(p->window.free_page);
    free(p->window.n_refs);
    free(p->entry.free_page);
    free(p->entry.n_refs);
    memset(p, 0, sizeof *p);
}

enum nib_status nib_seq_state_init(struct nib_pool *p, struct nib_seq_state *s)
{
    memset(s, 0, sizeof *s);
    s->slot = -1;
    for (int32_t i = 0; i < p->config.n_seqs_max && s->slot < 0; i++)
        if (!p->slot_used[i])
            s->slot = i;
    if (s->slot < 0)
        return NIB_E_LIMIT;
    s->window_page = malloc((size_t)p->page_stride * sizeof *s->window_page);
    s->entry_page = malloc((size_t)p->page_stride * sizeof *s->entry_page);
    if (!s->window_page || !s->entry_page) {
        free(s->window_page);
        free(s->entry_page);
        memset(s, 0, sizeof *s);
        return NIB_E_MEMORY;
    }
    for (int32_t i = 0; i < p->page_stride; i++)
        s->window_page[i] = s->entry_page[i] = -1;
    p->slot_used[s->slot] = true;
    p->n_slots_used++;
    return NIB_OK;
}

/* Give back the window pages before `first` and every page from `end` on. */
static void drop_pages(struct nib_pool *p, struct nib_seq_state *s, int32_t first, int32_t end)
{
    for (int32_t i = 0; i < p->page_stride; i++) {
        if (i < first || i >= end)
            page_drop(&p->window, &s->window_page[i]);
        if (i >= end)
            page_drop(&p->entry, &s->entry_page[i]);
    }
}

void nib_seq_state_deinit(struct nib_pool *p, struct nib_seq_state *s)
{
    if (!s->window_page)
        return;
    drop_pages(p, s, 0, 0);
    p->slot_used[s->slot] = false;
    p->n_slots_used--;
    free(s->window_page);
    free(s->entry_page);
    memset(s, 0, sizeof *s);
}

static enum nib_status copy_slot(struct nib_pool *p, void *base, size_t slot_bytes, int32_t to, int32_t from)
{
    unsigned char *b = base;
    if (!b)
        return NIB_OK;
    return p->api->copy(p->api->stream(p->backend), b + (size_t)to * slot_bytes, b + (size_t)from * slot_bytes,
                        slot_bytes);
}

enum nib_status nib_seq_state_copy(struct nib_pool *p, struct nib_seq_state *to, const struct nib_seq_state *from)
{
    for (int32_t l = 0; l < p->n_layers; l++) {
        const struct nib_frontier *f[] = {&p->layer[l].frontier, &p->layer[l].index_frontier};
        for (int i = 0; i < 2; i++) {
            const size_t bytes = (size_t)f[i]->slot_stride * sizeof(float);
            NIB_TRY(copy_slot(p, f[i]->kv, bytes, to->slot, from->slot));
            NIB_TRY(copy_slot(p, f[i]->score, bytes, to->slot, from->slot));
        }
    }
    const size_t item = p->streams_dtype == NIB_DTYPE_F32 ? 4 : 2;
    NIB_TRY(copy_slot(p, p->streams, (size_t)p->n_streams * (size_t)p->config.model->n_hc * (size_t)p->config.model->dim * item,
                      to->slot, from->slot));
    for (int32_t i = 0; i < p->page_stride; i++) {
        to->window_page[i] = from->window_page[i];
        to->entry_page[i] = from->entry_page[i];
        if (to->window_page[i] >= 0)
            p->window.n_refs[to->window_page[i]]++;
        if (to->entry_page[i] >= 0)
            p->entry.n_refs[to->entry_page[i]]++;
    }
    to->length = from->length;
    to->high = from->high;
    to->low = from->low;
    return NIB_OK;
}

int32_t nib_first_raw_row(int32_t ratio, int32_t length)
{
    const int32_t start = length / ratio * ratio - (ratio == 4 ? 4 : 0);
    return start > 0 ? start : 0;
}

static int32_t first_window_page(const struct nib_pool *p, int32_t length)
{
    const int32_t first = length - (p->config.model->n_window - 1);
    return (first > 0 ? first : 0) / NIB_PAGE_TOKENS;
}

bool nib_seq_state_can_truncate(const struct nib_pool *p, const struct nib_seq_state *s, int32_t length)
{
    if (length == s->length)
        return true;
    if (length < s->low)
        return false;
    for (int32_t l = 0; l < p->n_layers; l++) {
        const int32_t ratio = p->config.model->ratio[l];
        if (ratio > 0) {
            const int32_t first = nib_first_raw_row(ratio, length);
            if (first < length && first < s->high - p->layer[l].frontier.n_ring)
                return false;
        }
    }
    if (p->config.mtp && length - 1 < s->high - p->n_streams)
        return false;
    for (int32_t i = first_window_page(p, length); i <= (length - 1) / NIB_PAGE_TOKENS; i++)
        if (s->window_page[i] < 0)
            return false;
    return true;
}

enum nib_status nib_seq_state_truncate(struct nib_pool *p, struct nib_seq_state *s, int32_t length)
{
    if (length < 0 || length > s->length)
        return NIB_E_ARGUMENT;
    if (length == s->length)
        return NIB_OK;
    if (length == 0) {
        drop_pages(p, s, 0, 0);
        s->length = s->high = s->low = 0;
        return NIB_OK;
    }
    if (!nib_seq_state_can_truncate(p, s, length))
        return NIB_E_STATE;
    drop_pages(p, s, 0, ceil_div(length, NIB_PAGE_TOKENS));
    s->length = length;
    return NIB_OK;
}

enum nib_status nib_seq_state_restore(struct nib_pool *p, struct nib_seq_state *s, int32_t length, int32_t low)
{
    const int32_t n = ceil_div(length, NIB_PAGE_TOKENS), first = first_window_page(p, low);
    if (length > p->config.n_ctx || n - first > p->window.n_free || n > p->entry.n_free)
        return NIB_E_LIMIT;
    for (int32_t i = 0; i < n; i++) {
        if (i >= first)
            s->window_page[i] = page_take(&p->window);
        s->entry_page[i] = page_take(&p->entry);
    }
    s->length = s->high = length;
    s->low = low;
    return NIB_OK;
}

/* Pages that must be taken to write n positions from the sequence's end: new ones, and copies of shared ones. */
static int32_t pages_needed(const struct nib_page_set *set, const int32_t *page, int32_t length, int32_t n)
{
    int32_t needed = 0;
    for (int32_t i = length / NIB_PAGE_TOKENS; i <= (length + n - 1) / NIB_PAGE_TOKENS; i++)
        needed += page[i] < 0 || set->n_refs[page[i]] > 1;
    return needed;
}

static enum nib_status copy_page(struct nib_pool *p, const struct nib_store *s, int32_t to, int32_t from)
{
    if (!s->base)
        return NIB_OK;
    const size_t bytes = page_bytes(s);
    return p->api->copy(p->api->stream(p->backend), s->base + (size_t)to * bytes, s->base + (size_t)from * bytes,
                        bytes);
}

static enum nib_status own_page(struct nib_pool *p, struct nib_page_set *set, int32_t *page, bool window)
{
    if (*page >= 0 && set->n_refs[*page] == 1)
        return NIB_OK;
    const int32_t taken = page_take(set);
    for (int32_t l = 0; *page >= 0 && l < p->n_layers; l++) {
        const struct nib_layer_state *s = &p->layer[l];
        if (window) {
            NIB_TRY(copy_page(p, &s->window, taken, *page));
        } else {
            NIB_TRY(copy_page(p, &s->entries, taken, *page));
            NIB_TRY(copy_page(p, &s->index, taken, *page));
        }
    }
    page_drop(set, page);
    *page = taken;
    return NIB_OK;
}

enum nib_status nib_pool_reserve(struct nib_pool *p, struct nib_seq_state *const *seq, const int32_t *n, int32_t n_seqs)
{
    int32_t window = 0, entry = 0;
    for (int32_t i = 0; i < n_seqs; i++) {
        if (n[i] <= 0 || n[i] > p->config.n_ctx - seq[i]->length)
            return NIB_E_LIMIT;
        window += pages_needed(&p->window, seq[i]->window_page, seq[i]->length, n[i]);
        entry += pages_needed(&p->entry, seq[i]->entry_page, seq[i]->length, n[i]);
    }
    if (window > p->window.n_free || entry > p->entry.n_free)
        return NIB_E_LIMIT;
    for (int32_t i = 0; i < n_seqs; i++) {
        struct nib_seq_state *s = seq[i];
        for (int32_t k = s->length / NIB_PAGE_TOKENS; k <= (s->length + n[i] - 1) / NIB_PAGE_TOKENS; k++) {
            NIB_TRY(own_page(p, &p->window, &s->window_page[k], true));
            NIB_TRY(own_page(p, &p->entry, &s->entry_page[k], false));
        }
        /* Rows from here on count as overwritten even if the step fails. */
        if (s->high < s->length + n[i])
            s->high = s->length + n[i];
    }
    return NIB_OK;
}

void nib_seq_state_advance(struct nib_pool *p, struct nib_seq_state *s, int32_t n)
{
    s->length += n;
    const int32_t first = s->length - p->config.n_rollback - (p->config.model->n_window - 1);
    drop_pages(p, s, (first > 0 ? first : 0) / NIB_PAGE_TOKENS, ceil_div(s->length, NIB_PAGE_TOKENS));
}
