/* A mixture of experts whose router scores, gates and ups are given numbers: x is (1, 0, ...), so that column 0 of
 * every weight is what the product gives. All weights are plain F32. */
#ifndef MOE_RIG_H
#define MOE_RIG_H

#include "faults/both_backends.h"

struct moe_rig {
    struct rig          r;
    struct rig_step     st;
    struct nib_moe_args a;
};

/* n_stack matrices; only column 0 is not zero: value[stack][out], or the same for all if `each` is false. */
static inline struct nib_weight *moe_column(struct rig *r, int n_stack, int n_out, const float *value, bool each)
{
    struct nib_weight_part *part = rig_alloc(r, (size_t)n_stack * sizeof *part);
    for (int e = 0; e < n_stack; e++) {
        float *w = rig_random_floats(r, n_out * RIG_DIM, 0, 0);
        for (int o = 0; o < n_out; o++)
            w[o * RIG_DIM] = value[(each ? e * n_out : 0) + o];
        part[e] = (struct nib_weight_part){w, NULL, 1};
    }
    const struct nib_weight_desc d = {NIB_WEIGHT_F32, NIB_ACT_PLAIN, n_stack, n_out, RIG_DIM, part, NIB_USE_ANY};
    struct nib_weight *w = NULL;
    assert_int_equal(RIG_API.weight_pack(r->b, &d, &w, NULL), NIB_OK);
    r->weight[r->n_weight++] = w;
    return w;
}

/* n_stack matrices [dim, inner] that put the first dim of inner values where they are (or nowhere). */
static inline struct nib_weight *moe_down(struct rig *r, int n_stack, int inner, float value)
{
    struct nib_weight_part *part = rig_alloc(r, (size_t)n_stack * sizeof *part);
    float *w = rig_random_floats(r, RIG_DIM * inner, 0, 0);
    for (int i = 0; i < inner && i < RIG_DIM; i++)
        w[i * inner + i] = value;
    for (int e = 0; e < n_stack; e++)
        part[e] = (struct nib_weight_part){w, NULL, 1};
    const struct nib_weight_desc d = {NIB_WEIGHT_F32, NIB_ACT_PLAIN, n_stack, RIG_DIM, inner, part, NIB_USE_ANY};
    struct nib_weight *packed = NULL;
    assert_int_equal(RIG_API.weight_pack(r->b, &d, &packed, NULL), NIB_OK);
    r->weight[r->n_weight++] = packed;
    return packed;
}

/* logit[RIG_EXPERTS] of the router, bias or NULL, table or NULL: n rows of one sequence. Gates and ups of every expert:
 * gate[RIG_INNER], up[RIG_INNER]; routed and shared parts of the output are weighed by the last two. */
static inline void moe_open(struct moe_rig *m, int n, const float *logit, float *bias, int32_t *table,
                            const float *gate, const float *up, float routed, float shared)
{
    rig_open(&m->r, 1);
    struct rig *r = &m->r;
    float wide[2][RIG_SHARED] = {{0}};
    memcpy(wide[0], gate, RIG_INNER * sizeof *gate);
    memcpy(wide[1], up, RIG_INNER * sizeof *up);
    rig_step(&m->st, (int[]){0, 0, 0}, (int[]){n, 0, 0});
    struct nib_act x = rig_act_mat(r, NIB_DTYPE_F32, NIB_ACT_PLAIN, true, n, RIG_DIM);
    for (int t = 0; t < n; t++)
        for (int i = 0; i < RIG_DIM; i++)
            rig_set(&x.plain, t, i, i == 0);
    m->a = (struct nib_moe_args){
        .x = x, .rows = &m->st.rows, .router = moe_column(r, 1, RIG_EXPERTS, logit, false), .bias = bias, .tid2eid = table,
        .n_experts = RIG_EXPERTS, .top_k = RIG_TOP_K, .route_scale = 1.5f, .limit = 10, .weight_before_w2 = false,
        .w1 = moe_column(r, RIG_EXPERTS, RIG_INNER, gate, false), .w2 = moe_down(r, RIG_EXPERTS, RIG_INNER, routed),
        .w3 = moe_column(r, RIG_EXPERTS, RIG_INNER, up, false), .sw1 = moe_column(r, 1, RIG_SHARED, wide[0], false),
        .sw2 = moe_down(r, 1, RIG_SHARED, shared), .sw3 = moe_column(r, 1, RIG_SHARED, wide[1], false),
        .y = rig_mat(r, NIB_DTYPE_F32, n, RIG_DIM), .chosen = rig_alloc(r, (size_t)n * RIG_TOP_K * sizeof(int32_t)),
        .weights = rig_alloc(r, (size_t)n * RIG_TOP_K * sizeof(float))};
    assert_int_equal(r->ops->moe(r->s, &m->a), NIB_OK);
}

#endif
