/* Which rows those are. The numbers mirror nib_seq_state_truncate(), which needs them to be there. */
#include "model/state_parts.h"

#define N_KINDS (NIB_PART_INDEX_RAW_GATE + 1)

int32_t nib_state_n_parts(const struct nib_pool *p)
{
    return p->n_layers * N_KINDS + (p->config.mtp ? 1 : 0);
}

static struct nib_state_part paged(const struct nib_store *st, const int32_t *page, int32_t first, int32_t end)
{
    return (struct nib_state_part){.first = first < end ? first : end, .end = end, .row_bytes = st->row_bytes, .base = st->base,
                                   .page = page, .page_rows = st->page_rows};
}

static struct nib_state_part ring(void *base, int32_t n_ring, int64_t slot_bytes, int32_t slot, int32_t first, int32_t end)
{
    return (struct nib_state_part){.first = first, .end = end, .row_bytes = slot_bytes / n_ring,
                                   .base = (unsigned char *)base + slot * slot_bytes, .page_rows = n_ring};
}

static struct nib_state_part raw(const struct nib_frontier *f, bool gate, const struct nib_seq_state *s, int32_t first)
{
    return ring(gate ? f->score : f->kv, f->n_ring, f->slot_stride * (int64_t)sizeof(float), s->slot, first, s->length);
}

static struct nib_state_part streams(const struct nib_pool *p, const struct nib_seq_state *s, int32_t floor)
{
    const int64_t item = p->streams_dtype == NIB_DTYPE_F32 ? 4 : 2;
    const int64_t bytes = (int64_t)p->n_streams * p->config.model->n_hc * p->config.model->dim * item;
    struct nib_state_part part = ring(p->streams, p->n_streams, bytes, s->slot, floor > 0 ? floor - 1 : 0, s->length);
    part.kind = NIB_PART_STREAMS;
    part.layer = p->n_layers - 1;
    return part;
}

struct nib_state_part nib_state_part(const struct nib_pool *p, const struct nib_seq_state *s, int32_t floor, int32_t i)
{
    if (i == p->n_layers * N_KINDS)
        return streams(p, s, floor);
    const int32_t layer = i / N_KINDS, ratio = p->config.model->ratio[layer];
    const enum nib_part_kind kind = (enum nib_part_kind)(i % N_KINDS);
    const struct nib_layer_state *l = &p->layer[layer];
    /* The MTP block has no row at position 0. */
    const int32_t lowest = p->config.mtp && layer == p->n_layers - 1 ? 1 : 0;
    const int32_t window = floor - (p->config.model->n_window - 1);
    const int32_t first_raw = ratio > 0 ? nib_first_raw_row(ratio, floor) : 0;
    const bool selective = ratio == 4;
    struct nib_state_part part = {0};

    switch (kind) {
    case NIB_PART_WINDOW: part = paged(&l->window, s->window_page, window > lowest ? window : lowest, s->length); break;
    case NIB_PART_ENTRIES: if (ratio > 0) part = paged(&l->entries, s->entry_page, 0, s->length / ratio); break;
    case NIB_PART_INDEX: if (selective) part = paged(&l->index, s->entry_page, 0, s->length / ratio); break;
    case NIB_PART_RAW: if (ratio > 0) part = raw(&l->frontier, false, s, first_raw); break;
    case NIB_PART_RAW_GATE: if (ratio > 0) part = raw(&l->frontier, true, s, first_raw); break;
    case NIB_PART_INDEX_RAW: if (selective) part = raw(&l->index_frontier, false, s, first_raw); break;
    case NIB_PART_INDEX_RAW_GATE: if (selective) part = raw(&l->index_frontier, true, s, first_raw); break;
    case NIB_PART_STREAMS: break;
    }
    part.kind = kind;
    part.layer = layer;
    return part;
}

unsigned char *nib_state_part_rows(const struct nib_state_part *part, int32_t row, int32_t *n)
{
    const int32_t in_page = row % part->page_rows;
    const int32_t here = part->page_rows - in_page, left = part->end - row;
    const int64_t index = part->page ? (int64_t)part->page[row / part->page_rows] * part->page_rows + in_page : in_page;
    *n = here < left ? here : left;
    return part->base + index * part->row_bytes;
}
