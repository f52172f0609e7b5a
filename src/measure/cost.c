/* The formulas, op by op. */
#include "measure/cost.h"

#include <string.h>

uint64_t nib_matrix_bytes(enum nib_weight_type type, int32_t n_out, int32_t n_in)
{
    const uint64_t rows = (uint64_t)n_out, cols = (uint64_t)n_in;
    switch (type) {
    case NIB_WEIGHT_F32: return 4 * rows * cols;
    case NIB_WEIGHT_BF16: return 2 * rows * cols;
    case NIB_WEIGHT_FP8: return rows * cols + (rows + 127) / 128 * ((cols + 127) / 128);
    case NIB_WEIGHT_MXFP4: return rows * (cols / 2) + rows * (cols / 32);
    case NIB_WEIGHT_NVFP4: return rows * (cols / 2) + rows * (cols / 16) + sizeof(float);
    }
    return 0;
}

/* A matrix times n_rows rows. Where both sides are small integers under block scales, the products are of bytes. FP8
 * rows meet weights of 8 or 4 bits. */
static void add_product(struct nib_cost *c, const struct nib_weight *w, uint64_t n_matrices, uint64_t n_rows)
{
    const uint64_t ops = 2 * n_rows * (uint64_t)w->n_out * (uint64_t)w->n_in;
    const bool fp4 = w->type == NIB_WEIGHT_NVFP4 || w->type == NIB_WEIGHT_MXFP4;
    const bool integers = w->act == NIB_ACT_INT8 || (w->act == NIB_ACT_NVFP4 && fp4);
    c->bytes += n_matrices * nib_matrix_bytes(w->type, w->n_out, w->n_in);
    *(integers ? &c->int8_ops : w->act == NIB_ACT_FP8 ? &c->fp8_ops : &c->fp32_ops) += ops;
}

static void add_floats(struct nib_cost *c, int64_t n)
{
    c->bytes += 4 * (uint64_t)n;
}

/* The rows of a step on the host. */
struct step_rows {
    int32_t        n, n_seqs, first_pos;
    const int32_t *pos, *seq_start;
};

static bool read_rows(const struct nib_reader *r, const struct nib_rows *rows, struct step_rows *out)
{
    *out = (struct step_rows){.n = rows->n_rows, .n_seqs = rows->n_seqs, .first_pos = rows->first_pos};
    out->pos = nib_read(r, rows->pos, (size_t)rows->n_rows * sizeof(int32_t));
    out->seq_start = nib_read(r, rows->seq_start, ((size_t)rows->n_seqs + 1) * sizeof(int32_t));
    return out->pos && out->seq_start;
}

static int32_t min_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t max_of(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Position biases of the step's phases; raw rows of earlier steps for the entries that are completed, two halves of a
 * row each. */
static bool compress_cost(const struct nib_reader *r, const struct nib_compress_args *a, struct nib_cost *c)
{
    struct step_rows rows;
    bool *phase = nib_arena_array(r->arena, (size_t)a->ratio, sizeof *phase);
    if (!phase || !read_rows(r, a->rows, &rows))
        return false;
    bool any = false;
    for (int32_t i = 0; i < rows.n; i++)
        phase[rows.pos[i] % a->ratio] = true;
    for (int32_t i = 0; i < a->ratio; i++)
        if (phase[i])
            add_floats(c, a->kv.cols);
    for (int32_t s = 0; s < rows.n_seqs; s++) {
        const int32_t first = rows.n > 0 ? rows.pos[rows.seq_start[s]] : 0;
        for (int32_t i = rows.seq_start[s]; i < rows.seq_start[s + 1]; i++) {
            const int32_t end = rows.pos[i] + 1, start = end - a->ratio * (a->overlap ? 2 : 1);
            if (end % a->ratio != 0)
                continue;
            any = true;
            if (first > start)
                add_floats(c, 2 * (int64_t)a->width * (min_of(first, end) - max_of(start, 0)));
        }
    }
    if (any)
        add_floats(c, a->width);
    return true;
}

/* Every key that some query of a sequence scores, once. Where a query takes all entries it scores none. Queries of FP4
 * keys are FP4 too, so their products are of bytes. */
static bool index_cost(const struct nib_reader *r, const struct nib_index_select_args *a, struct nib_cost *c)
{
    struct step_rows rows;
    if (!read_rows(r, a->rows, &rows))
        return false;
    for (int32_t s = 0; s < rows.n_seqs; s++) {
        int32_t most = 0;
        for (int32_t i = rows.seq_start[s]; i < rows.seq_start[s + 1]; i++) {
            const int32_t visible = (rows.pos[i] + 1) / a->ratio;
            if (visible <= a->top_k)
                continue;
            most = max_of(most, visible);
            *(a->keys.format == NIB_ROW_FP4 ? &c->int8_ops : &c->fp32_ops) +=
                2 * (uint64_t)a->n_heads * (uint64_t)a->dim * (uint64_t)visible;
        }
        c->bytes += (uint64_t)most * (uint64_t)a->keys.row_bytes;
    }
    return true;
}

/* Entries that one sequence's queries attend to: how many there are altogether, and how many pairs of query and entry.
 */
static bool seen_entries(const struct nib_reader *r, const struct nib_attend_args *a, const struct step_rows *rows,
                         int32_t s, const int32_t *selected, const int32_t *n_selected, uint64_t *n_different,
                         uint64_t *n_pairs)
{
    const int32_t begin = rows->seq_start[s], end = rows->seq_start[s + 1];
    const int32_t visible = (rows->pos[end - 1] + 1) / a->ratio;
    *n_different = *n_pairs = 0;
    if (!selected) {
        *n_different = (uint64_t)visible;
        for (int32_t i = begin; i < end; i++)
            *n_pairs += (uint64_t)((rows->pos[i] + 1) / a->ratio);
        return true;
    }
    bool *seen = nib_arena_array(r->arena, (size_t)visible + 1, sizeof *seen);
    if (!seen)
        return false;
    for (int32_t i = begin; i < end; i++) {
        *n_pairs += (uint64_t)n_selected[i];
        for (int32_t k = 0; k < n_selected[i]; k++) {
            bool *one = &seen[selected[(int64_t)i * a->top_k + k]];
            *n_different += !*one;
            *one = true;
        }
    }
    return true;
}

static bool attend_cost(const struct nib_reader *r, const struct nib_attend_args *a, struct nib_cost *c)
{
    struct step_rows rows;
    const int32_t *selected = NULL, *n_selected = NULL;
    if (!read_rows(r, a->rows, &rows))
        return false;
    if (a->ratio > 0 && a->selected) {
        selected = nib_read(r, a->selected, (size_t)rows.n * (size_t)a->top_k * sizeof *selected);
        n_selected = nib_read(r, a->n_selected, (size_t)rows.n * sizeof *n_selected);
        if (!selected || !n_selected)
            return false;
    }
    add_floats(c, a->n_heads);
    uint64_t pairs = 0;
    for (int32_t s = 0; s < rows.n_seqs; s++) {
        const int32_t begin = rows.seq_start[s], end = rows.seq_start[s + 1];
        const int32_t low = max_of(rows.pos[begin] - a->n_window + 1, rows.first_pos);
        c->bytes += (uint64_t)(rows.pos[end - 1] + 1 - low) * (uint64_t)a->window.row_bytes;
        for (int32_t i = begin; i < end; i++)
            pairs += (uint64_t)min_of(rows.pos[i] + 1 - rows.first_pos, a->n_window);
        uint64_t n_different, n_pairs;
        if (a->ratio == 0)
            continue;
        if (!seen_entries(r, a, &rows, s, selected, n_selected, &n_different, &n_pairs))
            return false;
        c->bytes += n_different * (uint64_t)a->entries.row_bytes;
        pairs += n_pairs;
    }
    /* A query's product with a row, and the row's share of the result. */
    c->fp32_ops += 4 * pairs * (uint64_t)a->n_heads * (uint64_t)a->head_dim;
    return true;
}

static bool moe_cost(const struct nib_reader *r, const struct nib_moe_args *a, struct nib_cost *c)
{
    const uint64_t n = (uint64_t)a->x.rows;
    const size_t n_pairs = (size_t)a->x.rows * (size_t)a->top_k;
    const int32_t *chosen = nib_read(r, a->chosen, n_pairs * sizeof *chosen);
    bool *seen = nib_arena_array(r->arena, (size_t)a->n_experts, sizeof *seen);
    uint64_t n_different = 0;
    if (!chosen || !seen)
        return false;
    for (size_t i = 0; i < n_pairs; i++) {
        n_different += !seen[chosen[i]];
        seen[chosen[i]] = true;
    }
    add_product(c, a->router, 1, n);
    if (a->tid2eid)
        add_floats(c, (int64_t)n_pairs);
    else if (a->bias)
        add_floats(c, a->n_experts);
    const struct nib_weight *const routed[] = {a->w1, a->w2, a->w3}, *const shared[] = {a->sw1, a->sw2, a->sw3};
    for (int i = 0; i < 3; i++) {
        add_product(c, routed[i], n_different, (uint64_t)n_pairs);
        if (shared[i])
            add_product(c, shared[i], 1, n);
    }
    return true;
}

/* fn is multiplied by all streams; the mixing matrices by each channel. */
static void hc_cost(struct nib_cost *c, int64_t n, int64_t n_mix, int64_t n_hc, int64_t cols, int64_t n_scale)
{
    add_floats(c, n_mix * cols + n_mix + n_scale + cols / n_hc);
    c->fp32_ops += (uint64_t)(2 * n * (n_mix * cols + cols));
}

bool nib_op_cost(const struct nib_reader *r, enum nib_op op, const void *args, struct nib_cost *out)
{
    *out = (struct nib_cost){0};
    switch (op) {
    case NIB_OP_EMBED: {
        const struct nib_embed_args *a = args;
        out->bytes = (uint64_t)a->n_rows * nib_matrix_bytes(a->w->type, 1, a->w->n_in);
        return true;
    }
    case NIB_OP_NORM: {
        const struct nib_norm_args *a = args;
        add_floats(out, a->x.cols);
        return true;
    }
    case NIB_OP_LINEAR: {
        const struct nib_linear_args *a = args;
        for (int32_t i = 0; i < a->n_weights; i++)
            add_product(out, a->w[i], 1, (uint64_t)a->y[i].rows);
        return true;
    }
    case NIB_OP_KV_INSERT: {
        const struct nib_kv_insert_args *a = args;
        add_floats(out, a->kv.cols);
        return true;
    }
    case NIB_OP_COMPRESS: return compress_cost(r, args, out);
    case NIB_OP_INDEX_SELECT: return index_cost(r, args, out);
    case NIB_OP_ATTEND: return attend_cost(r, args, out);
    case NIB_OP_O_A: {
        const struct nib_o_a_args *a = args;
        add_product(out, a->w, 1, (uint64_t)a->x.rows);
        return true;
    }
    case NIB_OP_MOE: return moe_cost(r, args, out);
    case NIB_OP_HC_PRE: {
        const struct nib_hc_pre_args *a = args;
        hc_cost(out, a->streams.rows, (2 + a->n_hc) * a->n_hc, a->n_hc, a->streams.cols, 3);
        return true;
    }
    case NIB_OP_HC_POST: {
        const struct nib_hc_post_args *a = args;
        out->fp32_ops = 2 * (uint64_t)a->streams.rows * (uint64_t)(a->n_hc + 1) * (uint64_t)a->streams.cols;
        return true;
    }
    case NIB_OP_HC_HEAD: {
        const struct nib_hc_head_args *a = args;
        hc_cost(out, a->n, a->n_hc, a->n_hc, a->streams.cols, 1);
        return true;
    }
    case NIB_OP_HEAD: {
        const struct nib_head_args *a = args;
        add_product(out, a->w, 1, (uint64_t)a->x.rows);
        return true;
    }
    case NIB_OP_Q_ROPE: {
        const struct nib_q_rope_args *a = args;
        out->fp32_ops = 4 * (uint64_t)a->q.rows * (uint64_t)a->q.cols; /* squares, and the scale */
        return true;
    }
    case NIB_OP_MTP_JOIN:
    case NIB_OP_COPY_ROWS:
    case NIB_OP_SAMPLE:
    case NIB_N_OPS: break;
    }
    return true;
}
