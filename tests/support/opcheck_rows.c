/* Sequences, their pages, and pages of stored rows for the op checker. */
#include "support/opcheck.h"

#include <math.h>
#include <string.h>

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* A first position near something that can go wrong. */
static int32_t start_position(struct oc_case *c, int32_t pos_end)
{
    static const int32_t edges[] = {0, 4, 8, 124, 128, 132, 252, 256, 384};
    if (pos_end > 1000)
        return oc_range(c, pos_end / 2, pos_end - 1);
    int32_t p = oc_chance(c, 0.7) ? oc_pick(c, 9, edges) + oc_range(c, -3, 3) : oc_range(c, 0, pos_end - 1);
    return p;
}

struct oc_seqs oc_seqs_new(struct oc_case *c, int32_t n_rows_most, int32_t pos_end, int32_t first_pos)
{
    struct oc_seqs q = {.first_pos = first_pos, .page_stride = (pos_end + NIB_PAGE_TOKENS - 1) / NIB_PAGE_TOKENS + 1};
    size_t         n = (size_t)n_rows_most;
    int32_t        n_seqs = oc_range(c, 1, 4);
    q.token = oc_new(c, n * 4);
    q.pos = oc_new(c, n * 4);
    q.seq = oc_new(c, n * 4);
    q.slot = oc_new(c, 8 * 4);
    q.n_pages = n_seqs * (int32_t)q.page_stride;
    q.window_page = oc_new(c, (size_t)q.n_pages * 4);
    q.entry_page = oc_new(c, (size_t)q.n_pages * 4);
    for (int32_t i = 0; i < q.n_pages; i++) {
        /* Inside-out shuffle: pages belong to anyone, in any order. */
        int32_t j = oc_range(c, 0, i), k = oc_range(c, 0, i);
        q.window_page[i] = q.window_page[j];
        q.window_page[j] = i;
        q.entry_page[i] = q.entry_page[k];
        q.entry_page[k] = i;
    }
    int32_t slot = oc_range(c, 0, 7);
    for (; q.n_seqs < n_seqs && q.n_rows < n_rows_most; q.n_seqs++) {
        int32_t most = least(n_rows_most - q.n_rows, oc_chance(c, 0.5) ? 1 : n_rows_most);
        int32_t start = start_position(c, pos_end);
        start = start < first_pos ? first_pos : start >= pos_end ? pos_end - 1 : start;
        int32_t count = oc_range(c, 1, least(most, pos_end - start));
        for (int32_t i = 0; i < count; i++) {
            q.pos[q.n_rows] = start + i;
            q.seq[q.n_rows] = q.n_seqs;
            q.token[q.n_rows++] = oc_range(c, 0, 99);
        }
        /* Pages that hold nothing a row may read do not exist. */
        for (int32_t i = 0; i < q.page_stride; i++) {
            int32_t at = q.n_seqs * (int32_t)q.page_stride + i, first = i * NIB_PAGE_TOKENS;
            if (first > start + count - 1 || first + NIB_PAGE_TOKENS <= start - 127)
                q.window_page[at] = -1;
            if (first > start + count - 1)
                q.entry_page[at] = -1;
        }
        q.slot[q.n_seqs] = slot++ % 8;
    }
    oc_shape(c, "%d rows, %d sequences, first pos %d, ", q.n_rows, q.n_seqs, q.pos[0]);
    return q;
}

const struct nib_rows *oc_put_rows(struct oc_run *r, const struct oc_seqs *q, int32_t row0, int32_t n)
{
    struct nib_rows *rows = oc_new(r->c, sizeof *rows);
    int32_t          s0 = q->seq[row0], n_seqs = q->seq[row0 + n - 1] - s0 + 1;
    int32_t         *seq = oc_new(r->c, (size_t)n * 4), *seq_start = oc_new(r->c, (size_t)(n_seqs + 1) * 4);
    size_t           pages = (size_t)(n_seqs * q->page_stride) * 4;
    for (int32_t i = 0; i < n; i++) {
        seq[i] = q->seq[row0 + i] - s0;
        seq_start[seq[i] + 1] = i + 1;
    }
    *rows = (struct nib_rows){
        .n_rows = n,
        .n_seqs = n_seqs,
        .token = oc_put(r, q->token + row0, (size_t)n * 4),
        .pos = oc_put(r, q->pos + row0, (size_t)n * 4),
        .seq = oc_put(r, seq, (size_t)n * 4),
        .seq_start = oc_put(r, seq_start, (size_t)(n_seqs + 1) * 4),
        .slot = oc_put(r, q->slot + s0, (size_t)n_seqs * 4),
        .window_page = oc_put(r, q->window_page + s0 * q->page_stride, pages),
        .entry_page = oc_put(r, q->entry_page + s0 * q->page_stride, pages),
        .page_stride = q->page_stride,
        .first_pos = q->first_pos,
    };
    return rows;
}

struct nib_rope oc_rope_new(struct oc_case *c, int32_t n_rot)
{
    float *freq = oc_new(c, sizeof(float) * (size_t)n_rot);
    for (int32_t i = 0; i < n_rot / 2; i++)
        freq[i] = (float)pow(10000, -2.0 * i / n_rot);
    return (struct nib_rope){freq, n_rot};
}

struct nib_rope oc_put_rope(struct oc_run *r, const struct nib_rope *rope)
{
    return (struct nib_rope){oc_put(r, rope->freq, sizeof(float) * (size_t)(rope->n_rot / 2)), rope->n_rot};
}

/* ---- Stored rows ---- */

/* Random codes and sensible scales, written where oc_row_decode reads them: by encoding a template row of ones for its
 * layout of scales, then replacing the codes. */
static void random_row(struct oc_case *c, const struct oc_store *st, double scale, float *x, uint8_t *row)
{
    for (int32_t i = 0; i < st->d; i++)
        x[i] = (float)(scale * oc_normal(c));
    if (st->format == NIB_ROW_F32 || st->format == NIB_ROW_BF16) {
        oc_row_encode(st->format, x, st->d, st->n_rot, row);
        return;
    }
    int32_t n_codes = st->format == NIB_ROW_FP8 ? st->d - st->n_rot
                      : st->format == NIB_ROW_NVFP4 ? (st->d - st->n_rot) / 2 : st->d / 2;
    for (int32_t i = 0; i < st->d - (st->format == NIB_ROW_FP4 ? 0 : st->n_rot); i++)
        x[i] = (float)scale;
    oc_row_encode(st->format, x, st->d, st->n_rot, row);
    for (int32_t i = 0; i < n_codes; i++) {
        row[i] = (uint8_t)oc_range(c, 0, 255);
        if (st->format == NIB_ROW_FP8 && (row[i] & 0x7f) == 0x7f)
            row[i] = 0;
    }
}

struct oc_store oc_store_new(struct oc_case *c, enum nib_row_format f, int32_t page_rows, int32_t n_pages, int32_t d,
                             int32_t n_rot, double scale)
{
    struct oc_store st = {f, page_rows, n_pages, d, n_rot, nib_row_bytes(f, d, n_rot), NULL, NULL};
    int64_t         n = (int64_t)page_rows * n_pages;
    float          *x = oc_new(c, sizeof(float) * (size_t)d);
    st.data = oc_new(c, (size_t)(n * st.row_bytes));
    st.value = oc_new(c, sizeof(double) * (size_t)(n * d));
    for (int64_t i = 0; i < n; i++) {
        random_row(c, &st, scale, x, st.data + i * st.row_bytes);
        oc_row_decode(f, st.data + i * st.row_bytes, d, n_rot, st.value + i * d);
    }
    return st;
}

struct nib_store oc_put_store(struct oc_run *r, const struct oc_store *st)
{
    void *dev = oc_put(r, st->data, (size_t)(st->n_pages * st->page_rows * st->row_bytes));
    return (struct nib_store){dev, st->format, st->page_rows, st->row_bytes};
}

struct nib_store oc_out_store(struct oc_run *r, const struct oc_store *st)
{
    void *dev = oc_out(r, "store", OC_BYTES, st->n_pages * st->page_rows, (int32_t)st->row_bytes, st->data);
    return (struct nib_store){dev, st->format, st->page_rows, st->row_bytes};
}

int64_t oc_store_row(const struct oc_store *st, const struct oc_seqs *q, const int32_t *page, int32_t seq, int32_t i)
{
    return (int64_t)page[seq * q->page_stride + i / st->page_rows] * st->page_rows + i % st->page_rows;
}
