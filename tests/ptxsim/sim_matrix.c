/* Products of a warp (mma.sync; with block scales: sim_matrix_scaled.c), and moves of 8 x 8 matrices. The fragments are those
 * of the ISA: with p values in a register, lane (g, t) = (lane / 4, lane % 4) holds of A rows g and g + 8 at k = t p .. and
 * t p + 4 p .., of B column g at the same k, of C and D rows g and g + 8 at columns 2 t and 2 t + 1. */
#include "ptxsim/sim_tcgen05.h"
#include "ptxsim/sim_number.h"

#include <string.h>

enum { ROWS = 16, COLS = 8, DEPTH = 64 };

struct product {
    double  a[ROWS][DEPTH], b[COLS][DEPTH]; /* b by columns */
    int32_t ia[ROWS][DEPTH], ib[COLS][DEPTH];
    int     k, per;                         /* values in a register */
    uint8_t a_type, b_type, d_type;
    bool    integers;
};

static bool shape_of(const struct px_instruction *i, struct product *p)
{
    static const struct { enum px_mod mod; int k; } shapes[] = {
        {PX_M_M16N8K4, 4}, {PX_M_M16N8K8, 8}, {PX_M_M16N8K16, 16}, {PX_M_M16N8K32, 32}, {PX_M_M16N8K64, 64}};
    p->k = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        if (px_has(i, shapes[s].mod))
            p->k = shapes[s].k;
    }
    p->d_type = i->type[0];
    p->a_type = i->type[1];
    p->b_type = i->type[2];
    uint32_t bytes = px_type_bytes((enum px_type)p->a_type);
    p->integers = p->a_type == PX_S8 || p->a_type == PX_U8;
    p->per = bytes ? (int)(4 / bytes) : 0;
    return p->k > 0 && bytes > 0 && p->k <= 8 * p->per && p->k >= 4 * p->per;
}

static double value_of(uint8_t type, uint32_t reg, int place)
{
    if (type == PX_BF16) {
        uint32_t bits = place ? reg & 0xffff0000u : reg << 16;
        float    f;
        memcpy(&f, &bits, 4);
        return f;
    }
    uint32_t bits = 8 * px_type_bytes((enum px_type)type);
    return px_decode_float(type, reg >> ((uint32_t)place * bits) & (bits == 32 ? ~0u : (1u << bits) - 1));
}

static int32_t integer_of(uint8_t type, uint32_t reg, int place)
{
    uint32_t v = reg >> (8 * place) & 0xff;
    return type == PX_S8 ? (int32_t)(int8_t)v : (int32_t)v;
}

static void gather(struct px_warp *w, const struct px_operand *a, const struct px_operand *b, struct product *p)
{
    int halves = p->k / (4 * p->per);
    for (int l = 0; l < PX_LANES; l++) {
        int g = l / 4, t = l % 4;
        for (int h = 0; h < halves; h++) {
            for (int e = 0; e < p->per; e++) {
                int      k = t * p->per + h * 4 * p->per + e;
                uint32_t low = px_r32(w, &a[2 * h])[l], high = px_r32(w, &a[2 * h + 1])[l], col = px_r32(w, &b[h])[l];
                if (p->integers) {
                    p->ia[g][k] = integer_of(p->a_type, low, e);
                    p->ia[g + 8][k] = integer_of(p->a_type, high, e);
                    p->ib[g][k] = integer_of(p->b_type, col, e);
                } else {
                    p->a[g][k] = value_of(p->a_type, low, e);
                    p->a[g + 8][k] = value_of(p->a_type, high, e);
                    p->b[g][k] = value_of(p->b_type, col, e);
                }
            }
        }
    }
}

static double dot(const struct product *p, int row, int col, double c, bool by_steps)
{
    double sum = 0;
    if (!by_steps) {
        for (int k = 0; k < p->k; k++)
            sum += p->a[row][k] * p->b[col][k];
        return sum + c;
    }
    for (int k = 0; k < p->k; k += 4) {
        double part = 0;
        for (int e = 0; e < 4; e++)
            part += p->a[row][k + e] * p->b[col][k + e];
        c = (double)(float)(c + part);
    }
    return c;
}

static int32_t dot_integers(const struct product *p, int row, int col, int32_t c, bool finite)
{
    int64_t sum = c;
    for (int k = 0; k < p->k; k++)
        sum += (int64_t)p->ia[row][k] * p->ib[col][k];
    if (finite)
        return (int32_t)(sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum);
    return (int32_t)(uint32_t)(uint64_t)sum;
}

/* Registers of C or D: fp32 and integers one value each, fp16 pairs. */
static uint32_t accumulators(const struct px_instruction *i)
{
    return i->type[0] == PX_F16 ? 2 : 4;
}

void px_mma(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct product p;
    bool           steps = w->cta->m->config.mma_by_steps;
    uint32_t       n = accumulators(i), n_a, n_b, result[PX_LANES][4];
    if (px_has(i, PX_M_BLOCK_SCALE)) {
        px_mma_scaled(w, i, lanes);
        return;
    }
    if (!shape_of(i, &p))
        px_trap(w->cta->m, "this shape of mma.sync is missing");
    if (lanes != ~0u)
        px_trap(w->cta->m, "mma.sync by lanes %08x of a warp", lanes);
    n_a = (uint32_t)(p.k / (2 * p.per));
    n_b = (uint32_t)(p.k / (4 * p.per));
    if (i->n_operands != 2 * n + n_a + n_b)
        px_trap(w->cta->m, "mma.sync with %u registers, wanted %u", i->n_operands, 2 * n + n_a + n_b);
    const struct px_operand *d = i->o, *a = d + n, *b = a + n_a, *c = b + n_b;
    gather(w, a, b, &p);
    for (int l = 0; l < PX_LANES; l++) {
        for (int e = 0; e < 4; e++) {
            int      row = l / 4 + (e >= 2 ? 8 : 0), col = l % 4 * 2 + (e & 1);
            uint32_t old = n == 4 ? px_r32(w, &c[e])[l] : px_r32(w, &c[e / 2])[l] >> (16 * (e & 1)) & 0xffff;
            if (p.integers)
                result[l][e] = (uint32_t)dot_integers(&p, row, col, (int32_t)old, px_has(i, PX_M_SATFINITE));
            else
                result[l][e] = (uint32_t)px_encode_float(p.d_type, dot(&p, row, col, px_decode_float(p.d_type, old), steps),
                                                         PX_TO_NEAREST, false);
        }
    }
    for (uint32_t l = 0; l < PX_LANES; l++) {
        for (uint32_t r = 0; r < n; r++)
            px_set(w, &d[r], l, n == 4 ? result[l][r] : result[l][2 * r] | result[l][2 * r + 1] << 16);
    }
    w->cta->m->stats.products++;
}

/* ---- ldmatrix, stmatrix, movmatrix ---- */

/* What lane l holds of an 8 x 8 matrix of 16-bit values, or of its transpose. */
static uint32_t fragment(const uint16_t m[8][8], int l, bool transposed)
{
    int r = l / 4, c = l % 4 * 2;
    return transposed ? m[c][r] | (uint32_t)m[c + 1][r] << 16 : m[r][c] | (uint32_t)m[r][c + 1] << 16;
}

static void unfragment(uint16_t m[8][8], int l, uint32_t v, bool transposed)
{
    int r = l / 4, c = l % 4 * 2;
    *(transposed ? &m[c][r] : &m[r][c]) = (uint16_t)v;
    *(transposed ? &m[c + 1][r] : &m[r][c + 1]) = (uint16_t)(v >> 16);
}

void px_matrix_move(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    bool     transposed = px_has(i, PX_M_TRANS), load = i->op == PX_LDMATRIX;
    uint32_t n = px_has(i, PX_M_X4) ? 4 : px_has(i, PX_M_X2) ? 2 : 1;
    uint16_t m[4][8][8];
    if (lanes != ~0u || !px_has(i, PX_M_M8N8) || px_type_bytes((enum px_type)i->type[0]) != 2)
        px_trap(w->cta->m, "this form of '%s' is missing, or lanes are", px_op_name((enum px_op)i->op));
    if (i->op == PX_MOVMATRIX) {
        uint32_t out[PX_LANES];
        for (int l = 0; l < PX_LANES; l++)
            unfragment(m[0], l, px_r32(w, &i->o[1])[l], false);
        for (int l = 0; l < PX_LANES; l++)
            out[l] = fragment((const uint16_t(*)[8])m[0], l, true);
        for (uint32_t l = 0; l < PX_LANES; l++)
            px_set(w, &i->o[0], l, out[l]);
        return;
    }
    const struct px_operand *address = load ? &i->o[n] : &i->o[0], *r = load ? &i->o[0] : &i->o[1];
    if (!load) {
        for (uint32_t k = 0; k < n; k++) {
            for (int l = 0; l < PX_LANES; l++)
                unfragment(m[k], l, px_r32(w, &r[k])[l], transposed);
        }
    }
    for (uint32_t l = 0; l < 8 * n; l++) {
        uint8_t *p = px_place(w, i, address, l, 16, i->space, !load, false);
        if (load)
            memcpy(m[l / 8][l % 8], p, 16);
        else
            memcpy(p, m[l / 8][l % 8], 16);
    }
    for (uint32_t k = 0; load && k < n; k++) {
        for (uint32_t l = 0; l < PX_LANES; l++)
            px_set(w, &r[k], l, fragment((const uint16_t(*)[8])m[k], (int)l, transposed));
    }
}
