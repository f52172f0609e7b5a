/* The router's choice: scores of its sums, and the experts of a row. */
#ifndef NIB_CUDA_ROUTING_CUH
#define NIB_CUDA_ROUTING_CUH

#include "backend/cuda/device/numbers.cuh"

/* Orders floats as integers above 0; NaN is 0, passed over while a number is left. */
NIB_DEVICE uint32_t nib_order_key(float v)
{
    uint32_t u = __float_as_uint(v == 0 ? 0.0f : v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The square root of softplus; a function of its own, as products that store scores have few registers to spare. */
static __device__ __noinline__ float nib_route_score(float z)
{
    double v = (double)z;
    return (float)sqrt(v > 20 ? v : log1p(exp(v)));
}

/* One row's: all pointers of global memory. Scores are read from the L2, as a kernel may do so before the one between it
 * and the router is complete. */
struct nib_routing {
    const float   *score, *bias; /* [n_experts] */
    const int32_t *tid2eid;      /* [..][top_k], or NULL: by score */
    const int32_t *token;
    int32_t        n_experts, top_k;
    float          scale;
    int32_t       *chosen;       /* [top_k], for whom it may interest, or NULL */
    float         *weight;
};

constexpr int kChooseKeys = 16, kChooseMost = 32 * kChooseKeys; /* experts that a warp holds */

/* By one warp: the experts in descending order of score + bias, of equal ones the lowest first. */
NIB_DEVICE void nib_choose_warp(const struct nib_routing &r, int32_t *chosen)
{
    int lane = threadIdx.x % 32;
    if (r.tid2eid) {
        if (lane < r.top_k)
            chosen[lane] = r.tid2eid[(int64_t)*r.token * r.top_k + lane];
        return;
    }
    uint32_t key[kChooseKeys], left = 0;
#pragma unroll
    for (int j = 0; j < kChooseKeys; j++) {
        int e = j * 32 + lane;
        key[j] = e < r.n_experts ? nib_order_key(__ldcg(r.score + e) + r.bias[e]) : 0;
        left |= (e < r.n_experts ? 1u : 0u) << j;
    }
    for (int i = 0; i < r.top_k; i++) {
        uint32_t most = 0, lowest = ~0u;
#pragma unroll
        for (int j = 0; j < kChooseKeys; j++)
            most = left >> j & 1u ? max(most, key[j]) : most;
        most = __reduce_max_sync(~0u, most);
#pragma unroll
        for (int j = kChooseKeys - 1; j >= 0; j--)
            lowest = (left >> j & 1u) && key[j] == most ? (uint32_t)(j * 32 + lane) : lowest;
        lowest = __reduce_min_sync(~0u, lowest);
        if (lowest % 32 == (uint32_t)lane)
            left &= ~(1u << lowest / 32);
        if (lane == 0)
            chosen[i] = (int32_t)lowest;
    }
}

/* The weight of choice i. */
NIB_DEVICE float nib_choice_weight(const struct nib_routing &r, const int32_t *chosen, int i)
{
    double sum = 0;
    for (int k = 0; k < r.top_k; k++)
        sum += (double)__ldcg(r.score + chosen[k]);
    return sum == 0 ? 0 : (float)((double)__ldcg(r.score + chosen[i]) / sum * (double)r.scale);
}

#endif
