/* config.json of a checkpoint, in either spelling, as numbers that everything below may trust.
 *
 * Every limit is checked once, here. Both the published file (DeepseekV4ForCausalLM keys) and the release's
 * inference/config.json names are read, and HF's normalised spelling (layer_types, rope_parameters, ...). */
#ifndef NIB_CONFIG_H
#define NIB_CONFIG_H

#include "base/status.h"

#define NIB_LAYERS_MAX 256

struct nib_config {
    int32_t dim, n_layers, n_hash_layers, n_mtp_layers; /* mtp: 0 or 1 */
    int32_t n_heads, head_dim, n_rot, q_rank, n_groups, o_rank, n_window;
    int32_t n_index_heads, index_dim, index_top_k;
    int32_t n_experts, n_shared, top_k, n_inner; /* shared expert: n_shared * n_inner wide */
    int32_t n_hc, n_sinkhorn;
    int32_t vocab, n_ctx_max, bos_id, eos_id;
    float   norm_eps, hc_eps, route_scale, swiglu_limit;
    float   rope_theta, compress_rope_theta;
    bool    yarn; /* on compressed layers */
    float   yarn_factor, yarn_beta_fast, yarn_beta_slow;
    int32_t yarn_original;
    int32_t ratio[NIB_LAYERS_MAX + 1]; /* 0, 4 or 128 by layer; [n_layers] is the MTP block's */
    /* generation_config.json */
    float   temperature, top_p;
    bool    greedy;
};

/* Read dir/config.json (and generation_config.json and hf_quant_config.json if present). */
enum nib_status nib_config_read(const char *dir, struct nib_config *out, struct nib_error *err);

/* The same from text; `what` names it in errors. */
enum nib_status nib_config_parse(const char *text, size_t n, const char *what, struct nib_config *out,
                                 struct nib_error *err);

/* Rotary frequencies, fp32 [n_rot / 2], of ratio-0 layers or of compressed ones (YaRN). */
void nib_rope_freq(const struct nib_config *c, bool compressed, float *freq);

#endif
