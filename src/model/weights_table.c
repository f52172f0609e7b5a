/* Every tensor of a DeepSeek-V4 checkpoint in the official and in the Hugging Face spelling. */
#include "model/weights_table.h"

#define IN_WEIGHTS(f) offsetof(struct nib_weights, f)
#define IN_LAYER(f)   offsetof(struct nib_layer, f)
#define IN_MTP(f)     offsetof(struct nib_mtp, f)

const struct nib_field nib_fields[] = {
    {NIB_SCOPE_GLOBAL, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_WEIGHTS(embed),
     "embed", "model.embed_tokens",
     NIB_DIM_VOCAB, NIB_DIM_DIM, "embed", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(attn_norm),
     "attn_norm.weight", "input_layernorm.weight",
     NIB_DIM_DIM, NIB_DIM_1, "norm", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(attn_hc.fn),
     "hc_attn_fn", "attn_hc.fn",
     NIB_DIM_HC_MIX, NIB_DIM_HC_DIM, "hc", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(attn_hc.base),
     "hc_attn_base", "attn_hc.base",
     NIB_DIM_HC_MIX, NIB_DIM_1, "hc", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(attn_hc.scale),
     "hc_attn_scale", "attn_hc.scale",
     NIB_DIM_3, NIB_DIM_1, "hc", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_LAYER(wq_a),
     "attn.wq_a", "self_attn.q_a_proj",
     NIB_DIM_Q_RANK, NIB_DIM_DIM, "attention", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(q_norm),
     "attn.q_norm.weight", "self_attn.q_a_norm.weight",
     NIB_DIM_Q_RANK, NIB_DIM_1, "norm", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_LAYER(wq_b),
     "attn.wq_b", "self_attn.q_b_proj",
     NIB_DIM_Q_OUT, NIB_DIM_Q_RANK, "attention", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_LAYER(wkv),
     "attn.wkv", "self_attn.kv_proj",
     NIB_DIM_HEAD_DIM, NIB_DIM_DIM, "attention", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(kv_norm),
     "attn.kv_norm.weight", "self_attn.kv_norm.weight",
     NIB_DIM_HEAD_DIM, NIB_DIM_1, "norm", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(sink),
     "attn.attn_sink", "self_attn.sinks",
     NIB_DIM_HEADS, NIB_DIM_1, "attention", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_LAYER(wo_a),
     "attn.wo_a", "self_attn.o_a_proj",
     NIB_DIM_O_OUT, NIB_DIM_O_IN, "attention", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_LAYER(wo_b),
     "attn.wo_b", "self_attn.o_b_proj",
     NIB_DIM_DIM, NIB_DIM_O_OUT, "attention", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_COMPRESSED, IN_LAYER(compress.wkv),
     "attn.compressor.wkv", "self_attn.compressor.kv_proj",
     NIB_DIM_COMPRESS, NIB_DIM_DIM, "compressor", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_COMPRESSED, IN_LAYER(compress.wgate),
     "attn.compressor.wgate", "self_attn.compressor.gate_proj",
     NIB_DIM_COMPRESS, NIB_DIM_DIM, "compressor", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_COMPRESSED, IN_LAYER(compress.ape),
     "attn.compressor.ape", "self_attn.compressor.position_bias",
     NIB_DIM_RATIO, NIB_DIM_COMPRESS, "compressor", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_COMPRESSED, IN_LAYER(compress.norm),
     "attn.compressor.norm.weight", "self_attn.compressor.kv_norm.weight",
     NIB_DIM_HEAD_DIM, NIB_DIM_1, "norm", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_CSA, IN_LAYER(index_wq_b),
     "attn.indexer.wq_b", "self_attn.compressor.indexer.q_b_proj",
     NIB_DIM_INDEX_Q, NIB_DIM_Q_RANK, "indexer", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_CSA, IN_LAYER(index_weights),
     "attn.indexer.weights_proj", "self_attn.compressor.indexer.scorer.weights_proj|self_attn.compressor.indexer.weights_proj",
     NIB_DIM_INDEX_HEADS, NIB_DIM_DIM, "indexer", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_CSA, IN_LAYER(index.wkv),
     "attn.indexer.compressor.wkv", "self_attn.compressor.indexer.kv_proj",
     NIB_DIM_INDEX_COMPRESS, NIB_DIM_DIM, "indexer", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_CSA, IN_LAYER(index.wgate),
     "attn.indexer.compressor.wgate", "self_attn.compressor.indexer.gate_proj",
     NIB_DIM_INDEX_COMPRESS, NIB_DIM_DIM, "indexer", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_CSA, IN_LAYER(index.ape),
     "attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias",
     NIB_DIM_RATIO, NIB_DIM_INDEX_COMPRESS, "indexer", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_CSA, IN_LAYER(index.norm),
     "attn.indexer.compressor.norm.weight", "self_attn.compressor.indexer.kv_norm.weight",
     NIB_DIM_INDEX_DIM, NIB_DIM_1, "norm", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(ffn_norm),
     "ffn_norm.weight", "post_attention_layernorm.weight",
     NIB_DIM_DIM, NIB_DIM_1, "norm", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(ffn_hc.fn),
     "hc_ffn_fn", "ffn_hc.fn",
     NIB_DIM_HC_MIX, NIB_DIM_HC_DIM, "hc", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(ffn_hc.base),
     "hc_ffn_base", "ffn_hc.base",
     NIB_DIM_HC_MIX, NIB_DIM_1, "hc", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_LAYER(ffn_hc.scale),
     "hc_ffn_scale", "ffn_hc.scale",
     NIB_DIM_3, NIB_DIM_1, "hc", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_LAYER(router),
     "ffn.gate", "mlp.gate",
     NIB_DIM_EXPERTS, NIB_DIM_DIM, "router", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_VECTOR, NIB_WHEN_SCORED, IN_LAYER(bias),
     "ffn.gate.bias", "mlp.gate.e_score_correction_bias",
     NIB_DIM_EXPERTS, NIB_DIM_1, "router", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_IDS, NIB_WHEN_HASH, IN_LAYER(tid2eid),
     "ffn.gate.tid2eid", "mlp.gate.tid2eid",
     NIB_DIM_VOCAB, NIB_DIM_TOP_K, "router", false, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_EXPERTS, NIB_WHEN_ALWAYS, IN_LAYER(w1),
     "ffn.experts.%d.w1", "mlp.experts.%d.gate_proj",
     NIB_DIM_INNER, NIB_DIM_DIM, "experts", true, "mlp.experts.gate_up_proj", 0, 2},
    {NIB_SCOPE_LAYER, NIB_FIELD_EXPERTS, NIB_WHEN_ALWAYS, IN_LAYER(w3),
     "ffn.experts.%d.w3", "mlp.experts.%d.up_proj",
     NIB_DIM_INNER, NIB_DIM_DIM, "experts", true, "mlp.experts.gate_up_proj", 1, 2},
    {NIB_SCOPE_LAYER, NIB_FIELD_EXPERTS, NIB_WHEN_ALWAYS, IN_LAYER(w2),
     "ffn.experts.%d.w2", "mlp.experts.%d.down_proj",
     NIB_DIM_DIM, NIB_DIM_INNER, "experts", true, "mlp.experts.down_proj", 0, 1},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_LAYER(sw1),
     "ffn.shared_experts.w1", "mlp.shared_experts.gate_proj",
     NIB_DIM_INNER_SHARED, NIB_DIM_DIM, "shared", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_LAYER(sw3),
     "ffn.shared_experts.w3", "mlp.shared_experts.up_proj",
     NIB_DIM_INNER_SHARED, NIB_DIM_DIM, "shared", true, NULL, 0, 0},
    {NIB_SCOPE_LAYER, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_LAYER(sw2),
     "ffn.shared_experts.w2", "mlp.shared_experts.down_proj",
     NIB_DIM_DIM, NIB_DIM_INNER_SHARED, "shared", true, NULL, 0, 0},
    {NIB_SCOPE_MTP, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_MTP(enorm),
     "enorm.weight", "enorm.weight",
     NIB_DIM_DIM, NIB_DIM_1, "mtp", false, NULL, 0, 0},
    {NIB_SCOPE_MTP, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_MTP(hnorm),
     "hnorm.weight", "hnorm.weight",
     NIB_DIM_DIM, NIB_DIM_1, "mtp", false, NULL, 0, 0},
    {NIB_SCOPE_MTP, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_MTP(norm),
     "norm.weight", "norm.weight",
     NIB_DIM_DIM, NIB_DIM_1, "mtp", false, NULL, 0, 0},
    {NIB_SCOPE_MTP, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_MTP(e_proj),
     "e_proj", "e_proj",
     NIB_DIM_DIM, NIB_DIM_DIM, "mtp", true, NULL, 0, 0},
    {NIB_SCOPE_MTP, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_MTP(h_proj),
     "h_proj", "h_proj",
     NIB_DIM_DIM, NIB_DIM_DIM, "mtp", true, NULL, 0, 0},
    {NIB_SCOPE_MTP, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_MTP(hc_head.fn),
     "hc_head_fn", "hc_head.hc_fn",
     NIB_DIM_HC, NIB_DIM_HC_DIM, "mtp", false, NULL, 0, 0},
    {NIB_SCOPE_MTP, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_MTP(hc_head.base),
     "hc_head_base", "hc_head.hc_base",
     NIB_DIM_HC, NIB_DIM_1, "mtp", false, NULL, 0, 0},
    {NIB_SCOPE_MTP, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_MTP(hc_head.scale),
     "hc_head_scale", "hc_head.hc_scale",
     NIB_DIM_1, NIB_DIM_1, "mtp", false, NULL, 0, 0},
    {NIB_SCOPE_GLOBAL, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_WEIGHTS(norm),
     "norm.weight", "model.norm.weight",
     NIB_DIM_DIM, NIB_DIM_1, "norm", false, NULL, 0, 0},
    {NIB_SCOPE_GLOBAL, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_WEIGHTS(hc_head.fn),
     "hc_head_fn", "model.hc_head.hc_fn",
     NIB_DIM_HC, NIB_DIM_HC_DIM, "hc", false, NULL, 0, 0},
    {NIB_SCOPE_GLOBAL, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_WEIGHTS(hc_head.base),
     "hc_head_base", "model.hc_head.hc_base",
     NIB_DIM_HC, NIB_DIM_1, "hc", false, NULL, 0, 0},
    {NIB_SCOPE_GLOBAL, NIB_FIELD_VECTOR, NIB_WHEN_ALWAYS, IN_WEIGHTS(hc_head.scale),
     "hc_head_scale", "model.hc_head.hc_scale",
     NIB_DIM_1, NIB_DIM_1, "hc", false, NULL, 0, 0},
    {NIB_SCOPE_GLOBAL, NIB_FIELD_LINEAR, NIB_WHEN_ALWAYS, IN_WEIGHTS(head),
     "head", "lm_head",
     NIB_DIM_VOCAB, NIB_DIM_DIM, "head", false, NULL, 0, 0},
};

const int32_t nib_n_fields = (int32_t)(sizeof nib_fields / sizeof nib_fields[0]);

int32_t nib_dim_value(const struct nib_config *c, enum nib_dim_name d, int32_t ratio)
{
    switch (d) {
    case NIB_DIM_1: return 1;
    case NIB_DIM_3: return 3;
    case NIB_DIM_DIM: return c->dim;
    case NIB_DIM_Q_RANK: return c->q_rank;
    case NIB_DIM_Q_OUT: return c->n_heads * c->head_dim;
    case NIB_DIM_HEAD_DIM: return c->head_dim;
    case NIB_DIM_HEADS: return c->n_heads;
    case NIB_DIM_O_OUT: return c->n_groups * c->o_rank;
    case NIB_DIM_O_IN: return c->n_heads * c->head_dim / c->n_groups;
    case NIB_DIM_COMPRESS: return (ratio == 4 ? 2 : 1) * c->head_dim;
    case NIB_DIM_INDEX_COMPRESS: return 2 * c->index_dim;
    case NIB_DIM_RATIO: return ratio;
    case NIB_DIM_INDEX_Q: return c->n_index_heads * c->index_dim;
    case NIB_DIM_INDEX_HEADS: return c->n_index_heads;
    case NIB_DIM_INDEX_DIM: return c->index_dim;
    case NIB_DIM_EXPERTS: return c->n_experts;
    case NIB_DIM_TOP_K: return c->top_k;
    case NIB_DIM_INNER: return c->n_inner;
    case NIB_DIM_INNER_SHARED: return c->n_inner * c->n_shared;
    case NIB_DIM_VOCAB: return c->vocab;
    case NIB_DIM_HC: return c->n_hc;
    case NIB_DIM_HC_MIX: return (2 + c->n_hc) * c->n_hc;
    case NIB_DIM_HC_DIM: return c->n_hc * c->dim;
    }
    return 0;
}

bool nib_field_applies(const struct nib_field *f, int32_t ratio, bool hash)
{
    switch (f->when) {
    case NIB_WHEN_ALWAYS: return true;
    case NIB_WHEN_COMPRESSED: return ratio > 0;
    case NIB_WHEN_CSA: return ratio == 4;
    case NIB_WHEN_HASH: return hash;
    case NIB_WHEN_SCORED: return !hash;
    }
    return false;
}
