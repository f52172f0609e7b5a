/* The compressor: the closed form and the classical state machine against the op, over many ways to cut a prompt. */
#include "number/kv_rows.h"
#include "unit/ref_rig.h"

enum { WIDTH = 32, LENGTH = 61 };

struct compressor {
    int               ratio;
    bool              overlap, hadamard, bf16;
    int               n_ring, cols;
    struct nib_rope   rope;
    float            *ape, *norm;
    struct nib_mat    kv, gate; /* all sequences, see rig_home */
};

static struct compressor make_compressor(struct rig *r, int ratio, bool overlap, bool hadamard, bool bf16)
{
    struct compressor c = {.ratio = ratio, .overlap = overlap, .hadamard = hadamard, .bf16 = bf16};
    c.cols = overlap ? 2 * WIDTH : WIDTH;
    c.n_ring = (overlap ? 2 : 1) * ratio;
    c.rope = rig_rope(r);
    c.ape = rig_random_floats(r, ratio * c.cols, -1, 1);
    c.norm = rig_random_floats(r, WIDTH, -2, 2);
    c.kv = rig_random_mat(r, NIB_DTYPE_F32, RIG_ROWS, c.cols);
    c.gate = rig_random_mat(r, NIB_DTYPE_F32, RIG_ROWS, c.cols);
    return c;
}

struct memory {
    struct nib_frontier frontier;
    struct nib_store    entries;
};

static struct memory make_memory(struct rig *r, const struct compressor *c, enum nib_row_format format)
{
    struct memory m;
    int64_t       slot = c->n_ring * c->cols + 5;
    m.frontier = (struct nib_frontier){rig_random_floats(r, (int)(RIG_SEQS * slot), -9, 9),
                                       rig_random_floats(r, (int)(RIG_SEQS * slot), -9, 9), c->n_ring, slot};
    m.entries = rig_store(r, format, 128 / c->ratio, WIDTH, RIG_ROT);
    return m;
}

/* Run rows of each sequence through the op. */
static void step(struct rig *r, const struct compressor *c, const struct memory *m, const int *first, const int *count)
{
    struct rig_step st;
    rig_step(&st, first, count);
    struct nib_mat kv = rig_mat(r, NIB_DTYPE_F32, st.rows.n_rows, c->cols);
    struct nib_mat gate = rig_mat(r, NIB_DTYPE_F32, st.rows.n_rows, c->cols);
    for (int i = 0, t = 0; i < RIG_SEQS; i++) {
        for (int k = 0; k < count[i]; k++, t++) {
            for (int j = 0; j < c->cols; j++) {
                rig_set(&kv, t, j, (float)rig_get(&c->kv, rig_home(i, first[i] + k), j));
                rig_set(&gate, t, j, (float)rig_get(&c->gate, rig_home(i, first[i] + k), j));
            }
        }
    }
    assert_int_equal(r->ops->compress(r->s, &(struct nib_compress_args){kv, gate, c->ape, c->norm, 1e-6f, c->ratio,
                                                                        WIDTH, c->overlap, c->hadamard, c->bf16,
                                                                        &st.rows, c->rope, m->frontier, m->entries}),
                     NIB_OK);
    for (int i = 0; i < 2; i++) /* a step's matrices go at once: there are many steps */
        nib_backend_ref.release(r->b, r->memory[--r->n_memory]);
}

static const uint8_t *entry_at(const struct memory *m, int seq, int e)
{
    struct rig_step st;
    rig_step(&st, (int[]){0, 0, 0}, (int[]){1, 1, 1});
    int page = st.entry_page[seq * 8 + e / m->entries.page_rows];
    return m->entries.base + (page * m->entries.page_rows + e % m->entries.page_rows) * m->entries.row_bytes;
}

static double score(const struct compressor *c, int row, int pos, int j)
{
    return (double)((float)rig_get(&c->gate, row, j) + c->ape[pos % c->ratio * c->cols + j]);
}

/* The pooled value by the classical state machine: `rows` and `scores` hold two windows (overlap) or one. */
struct machine {
    double kv[256][2 * WIDTH], score[256][2 * WIDTH];
};

static void machine_init(struct machine *s, const struct compressor *c)
{
    for (int i = 0; i < c->n_ring; i++) {
        for (int j = 0; j < c->cols; j++) {
            s->kv[i][j] = 0;
            s->score[i][j] = -INFINITY;
        }
    }
}

static bool machine_push(struct machine *s, const struct compressor *c, int row, int pos, double *pooled)
{
    int base = c->overlap ? c->ratio : 0, at = base + pos % c->ratio;
    for (int j = 0; j < c->cols; j++) {
        s->kv[at][j] = rig_get(&c->kv, row, j);
        s->score[at][j] = score(c, row, pos, j);
    }
    if ((pos + 1) % c->ratio != 0)
        return false;
    for (int j = 0; j < WIDTH; j++) {
        double sum = 0, top = 0;
        for (int i = 0; i < c->n_ring; i++) {
            int k = c->overlap && i >= base ? WIDTH + j : j;
            sum += exp(s->score[i][k]);
            top += exp(s->score[i][k]) * s->kv[i][k];
        }
        pooled[j] = top / sum;
    }
    for (int i = 0; c->overlap && i < base; i++) {
        memcpy(s->kv[i], s->kv[base + i], sizeof s->kv[i]);
        memcpy(s->score[i], s->score[base + i], sizeof s->score[i]);
    }
    return true;
}

/* What follows pooling, in double; `row` is what a reader of an F32 store finds. */
static void finish(const struct compressor *c, int e, const double *pooled, double *row)
{
    double sum = 0;
    float  f[WIDTH];
    for (int j = 0; j < WIDTH; j++) {
        row[j] = c->bf16 ? (double)model_bf16((float)pooled[j]) : pooled[j];
        sum += row[j] * row[j];
    }
    for (int j = 0; j < WIDTH; j++) {
        row[j] = row[j] / sqrt(sum / WIDTH + 1e-6) * (double)c->norm[j];
        row[j] = c->bf16 ? (double)model_bf16((float)row[j]) : row[j];
    }
    rig_rotate(&c->rope, row, WIDTH, e * c->ratio, 1);
    for (int j = 0; j < WIDTH; j++)
        f[j] = c->bf16 ? model_bf16((float)row[j]) : (float)row[j];
    if (c->hadamard)
        model_hadamard(f, WIDTH);
    for (int j = 0; j < WIDTH && c->hadamard; j++)
        row[j] = (double)(c->bf16 ? model_bf16(f[j]) : f[j]);
    for (int j = 0; j < WIDTH && !c->hadamard; j++)
        row[j] = (double)f[j];
}

/* Entries of one sequence in one pass against the machine. Values are up to 2 * sqrt(32); each of the steps rounds to
 * fp32 once (and Hadamard six times): 32 ulps of 8. */
static void check_entries(const struct compressor *c, const struct memory *m, int seq, int length)
{
    struct machine s;
    double         pooled[WIDTH], wanted[WIDTH];
    float          got[WIDTH];
    machine_init(&s, c);
    for (int pos = 0; pos < length; pos++) {
        if (!machine_push(&s, c, rig_home(seq, pos), pos, pooled))
            continue;
        finish(c, pos / c->ratio, pooled, wanted);
        nib_kv_f32_decode(entry_at(m, seq, pos / c->ratio), WIDTH, got);
        for (int j = 0; j < WIDTH; j++)
            assert_true(fabs((double)got[j] - wanted[j]) <= 8 * 32 * 0x1p-24);
    }
}

static const struct {
    int  ratio;
    bool overlap, hadamard;
} kinds[] = {{4, true, false}, {4, true, true},     {8, false, false},
             {2, true, false}, {128, false, false}, {4, false, true}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void equals_the_state_machine(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct rig r;
        rig_open(&r, 2);
        struct compressor c = make_compressor(&r, kinds[k].ratio, kinds[k].overlap, kinds[k].hadamard, false);
        struct memory     m = make_memory(&r, &c, NIB_ROW_F32);
        step(&r, &c, &m, (int[]){0, 0, 0}, (int[]){290, 130, 37});
        check_entries(&c, &m, 0, 290);
        check_entries(&c, &m, 1, 130);
        check_entries(&c, &m, 2, 37);
        rig_close(&r);
    }
}

/* Release numerics: a rounding to bf16 after each of the four steps. The same roundings are made here of values that
 * differ in the 24th bit, so nearly all agree exactly and none by more than two bf16 steps of the largest value. */
static void rounds_to_bf16_between_steps(void **state)
{
    (void)state;
    struct rig     r;
    struct machine s;
    double         pooled[WIDTH], wanted[WIDTH];
    float          got[WIDTH];
    int            n = 0, n_equal = 0;
    rig_open(&r, 2);
    struct compressor c = make_compressor(&r, 4, true, true, true);
    struct memory     m = make_memory(&r, &c, NIB_ROW_F32);
    step(&r, &c, &m, (int[]){0, 0, 0}, (int[]){290, 0, 0});
    machine_init(&s, &c);
    for (int pos = 0; pos < 290; pos++) {
        if (!machine_push(&s, &c, rig_home(0, pos), pos, pooled))
            continue;
        finish(&c, pos / 4, pooled, wanted);
        nib_kv_f32_decode(entry_at(&m, 0, pos / 4), WIDTH, got);
        for (int j = 0; j < WIDTH; j++, n++) {
            assert_true(got[j] == model_bf16(got[j]));
            n_equal += (double)got[j] == wanted[j];
            assert_true(fabs((double)got[j] - wanted[j]) <= 2 * 8 * 0x1p-8);
        }
    }
    assert_true(n_equal >= n * 98 / 100);
    rig_close(&r);
}

/* Entry 0 pools the four rows it has, entry 1 eight. */
static void first_entry_is_a_four_row_softmax(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 1);
    struct compressor c = make_compressor(&r, 4, true, false, false);
    struct memory     m = make_memory(&r, &c, NIB_ROW_F32);
    step(&r, &c, &m, (int[]){0, 0, 0}, (int[]){8, 0, 0});
    for (int e = 0; e < 2; e++) {
        double pooled[WIDTH], wanted[WIDTH];
        float  got[WIDTH];
        for (int j = 0; j < WIDTH; j++) {
            double w[8], v[8], sum = 0, top = 0;
            int    n = 0;
            for (int p = 0; e == 1 && p < 4; p++, n++) {
                w[n] = exp(score(&c, p, p, j));
                v[n] = rig_get(&c.kv, p, j);
            }
            for (int p = 4 * e; p < 4 * e + 4; p++, n++) {
                w[n] = exp(score(&c, p, p, WIDTH + j));
                v[n] = rig_get(&c.kv, p, WIDTH + j);
            }
            assert_int_equal(n, e == 0 ? 4 : 8);
            for (int i = 0; i < n; i++) {
                sum += w[i];
                top += w[i] * v[i];
            }
            pooled[j] = top / sum;
        }
        finish(&c, e, pooled, wanted);
        nib_kv_f32_decode(entry_at(&m, 0, e), WIDTH, got);
        for (int j = 0; j < WIDTH; j++)
            assert_true(fabs((double)got[j] - wanted[j]) <= 8 * 32 * 0x1p-24);
    }
    rig_close(&r);
}

/* Feed three sequences in the given pieces, with gaps where one of them takes no part, and compare all bytes. */
static void run_cut(struct rig *r, const struct compressor *c, const struct memory *m, const int *length,
                    const int *piece, int n_pieces)
{
    int at[RIG_SEQS] = {0, 0, 0};
    for (int i = 0; at[0] < length[0] || at[1] < length[1] || at[2] < length[2]; i++) {
        int count[RIG_SEQS];
        for (int q = 0; q < RIG_SEQS; q++) {
            int n = piece[(i + q) % n_pieces], left = length[q] - at[q];
            count[q] = (i + q) % 4 == 3 ? 0 : n < left ? n : left;
        }
        step(r, c, m, at, count);
        for (int q = 0; q < RIG_SEQS; q++)
            at[q] += count[q];
    }
}

static void cutting_changes_no_bit(void **state)
{
    (void)state;
    const int piece[][4] = {{1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}, {4, 4, 4, 4}, {5, 5, 5, 5}, {7, 1, 13, 2},
                            {8, 9, 31, 4}, {64, 100, 127, 128}, {129, 1, 2, 3}};
    for (int k = 0; k < N_KINDS; k++) {
        for (size_t cut = 0; cut < sizeof piece / sizeof *piece; cut++) {
            struct rig r;
            rig_open(&r, 1 + (int)cut % 3);
            const int         length[RIG_SEQS] = {137, 61, kinds[k].ratio == 128 ? 133 : 44};
            struct compressor c = make_compressor(&r, kinds[k].ratio, kinds[k].overlap, kinds[k].hadamard, false);
            enum nib_row_format format = (enum nib_row_format)(cut % 5);
            struct memory       whole = make_memory(&r, &c, format), parts = make_memory(&r, &c, format);
            step(&r, &c, &whole, (int[]){0, 0, 0}, length);
            run_cut(&r, &c, &parts, length, piece[cut], 4);
            assert_memory_equal(whole.entries.base, parts.entries.base,
                                (size_t)(RIG_PAGES * whole.entries.page_rows * whole.entries.row_bytes));
            /* The rings hold the same rows, as far as the sequences reach. */
            for (int q = 0; q < RIG_SEQS; q++) {
                for (int p = length[q] - c.n_ring < 0 ? 0 : length[q] - c.n_ring; p < length[q]; p++) {
                    int64_t at = (q + 1) % RIG_SEQS * whole.frontier.slot_stride + (int64_t)(p % c.n_ring) * c.cols;
                    size_t  bytes = (size_t)c.cols * sizeof(float);
                    assert_memory_equal(whole.frontier.kv + at, parts.frontier.kv + at, bytes);
                    assert_memory_equal(whole.frontier.score + at, parts.frontier.score + at, bytes);
                }
            }
            rig_close(&r);
        }
    }
}

/* Every split of a stream in two. */
static void every_split_point(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct rig r;
        rig_open(&r, 1);
        struct compressor c = make_compressor(&r, kinds[k].ratio, kinds[k].overlap, kinds[k].hadamard, false);
        struct memory     whole = make_memory(&r, &c, NIB_ROW_F32), parts = make_memory(&r, &c, NIB_ROW_F32);
        size_t bytes = (size_t)(RIG_PAGES * whole.entries.page_rows * whole.entries.row_bytes);
        step(&r, &c, &whole, (int[]){0, 0, 0}, (int[]){37, 0, 0});
        for (int split = 1; split < 37; split++) {
            memset(parts.entries.base, 0, bytes);
            step(&r, &c, &parts, (int[]){0, 0, 0}, (int[]){split, 0, 0});
            step(&r, &c, &parts, (int[]){split, 0, 0}, (int[]){37 - split, 0, 0});
            assert_memory_equal(whole.entries.base, parts.entries.base, bytes);
        }
        rig_close(&r);
    }
}

/* A NaN row shows in the entries that pool it and in no other entry or sequence. */
static void poison_reaches_its_entries_only(void **state)
{
    (void)state;
    for (int format = NIB_ROW_F32; format <= NIB_ROW_FP4; format++) {
        struct rig r;
        rig_open(&r, 2);
        struct compressor c = make_compressor(&r, 4, true, format == NIB_ROW_FP4, false);
        struct memory     m = make_memory(&r, &c, (enum nib_row_format)format);
        for (int j = 0; j < c.cols; j++)
            rig_set(format % 2 ? &c.gate : &c.kv, rig_home(0, 9), j, NAN);
        step(&r, &c, &m, (int[]){0, 0, 0}, (int[]){24, 24, 0});
        for (int seq = 0; seq < 2; seq++) {
            for (int e = 0; e < 6; e++) {
                float          got[WIDTH];
                const uint8_t *row = entry_at(&m, seq, e);
                switch (format) {
                case NIB_ROW_F32: nib_kv_f32_decode(row, WIDTH, got); break;
                case NIB_ROW_BF16: nib_kv_bf16_decode(row, WIDTH, got); break;
                case NIB_ROW_FP8: nib_kv_fp8_decode(row, WIDTH, RIG_ROT, got); break;
                case NIB_ROW_NVFP4: nib_kv_nvfp4_decode(row, WIDTH, RIG_ROT, got); break;
                default: nib_kv_fp4_decode(row, WIDTH, got); break;
                }
                for (int j = 0; j < WIDTH; j++)
                    assert_int_equal(isnan(got[j]) != 0, seq == 0 && (e == 2 || e == 3));
            }
        }
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_state_machine),
        cmocka_unit_test(rounds_to_bf16_between_steps),
        cmocka_unit_test(first_entry_is_a_four_row_softmax),
        cmocka_unit_test(cutting_changes_no_bit),
        cmocka_unit_test(every_split_point),
        cmocka_unit_test(poison_reaches_its_entries_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
