/* The official names in Hugging Face's spelling. */
#include "support/relay_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct rule {
    const char *official, *hf;
};

static const struct rule whole[] = {
    { "embed.weight", "model.embed_tokens.weight" }, { "head.weight", "lm_head.weight" },
    { "norm.weight", "model.norm.weight" },          { "hc_head_fn", "model.hc_head.hc_fn" },
    { "hc_head_base", "model.hc_head.hc_base" },     { "hc_head_scale", "model.hc_head.hc_scale" },
};

/* Beginnings of what follows "layers.N." or "mtp.0.". */
static const struct rule in_layer[] = {
    { "attn_norm.", "input_layernorm." },
    { "ffn_norm.", "post_attention_layernorm." },
    { "hc_attn_", "attn_hc." },
    { "hc_ffn_", "ffn_hc." },
    { "hc_head_", "hc_head.hc_" },
    { "attn.wq_a.", "self_attn.q_a_proj." },
    { "attn.q_norm.", "self_attn.q_a_norm." },
    { "attn.wq_b.", "self_attn.q_b_proj." },
    { "attn.wkv.", "self_attn.kv_proj." },
    { "attn.kv_norm.", "self_attn.kv_norm." },
    { "attn.wo_a.", "self_attn.o_a_proj." },
    { "attn.wo_b.", "self_attn.o_b_proj." },
    { "attn.attn_sink", "self_attn.sinks" },
    { "attn.compressor.wkv.", "self_attn.compressor.kv_proj." },
    { "attn.compressor.wgate.", "self_attn.compressor.gate_proj." },
    { "attn.compressor.ape", "self_attn.compressor.position_bias" },
    { "attn.compressor.norm.", "self_attn.compressor.kv_norm." },
    { "attn.indexer.wq_b.", "self_attn.compressor.indexer.q_b_proj." },
    { "attn.indexer.weights_proj.", "self_attn.compressor.indexer.scorer.weights_proj." },
    { "attn.indexer.compressor.wkv.", "self_attn.compressor.indexer.kv_proj." },
    { "attn.indexer.compressor.wgate.", "self_attn.compressor.indexer.gate_proj." },
    { "attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias" },
    { "attn.indexer.compressor.norm.", "self_attn.compressor.indexer.kv_norm." },
    { "ffn.gate.bias", "mlp.gate.e_score_correction_bias" },
    { "ffn.gate.", "mlp.gate." },
    { "ffn.shared_experts.w1.", "mlp.shared_experts.gate_proj." },
    { "ffn.shared_experts.w3.", "mlp.shared_experts.up_proj." },
    { "ffn.shared_experts.w2.", "mlp.shared_experts.down_proj." },
};

static const char *after(const char *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : NULL;
}

/* Skip "N."; NULL if there is no number. */
static const char *after_number(const char *s)
{
    const char *p = s;
    while (isdigit((unsigned char)*p))
        p++;
    return p > s && *p == '.' ? p + 1 : NULL;
}

bool relay_hf_name(const char *official, char *out, size_t n)
{
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        if (strcmp(official, whole[i].official) == 0)
            return (size_t)snprintf(out, n, "%s", whole[i].hf) < n;
    }
    const char *number = after(official, "layers."), *rest;
    if (!number)
        number = after(official, "mtp.");
    if (!number || !(rest = after_number(number)))
        return false;
    int head = (int)(rest - official);
    const char *expert = after(rest, "ffn.experts."), *matrix;
    if (expert && (matrix = after_number(expert)) != NULL) {
        static const struct rule in_expert[] = { { "w1.", "gate_proj." },
                                                 { "w3.", "up_proj." },
                                                 { "w2.", "down_proj." } };
        for (size_t i = 0; i < 3; i++) {
            const char *tail = after(matrix, in_expert[i].official);
            if (tail) {
                return (size_t)snprintf(out, n, "model.%.*smlp.experts.%.*s%s%s", head, official,
                                        (int)(matrix - expert), expert, in_expert[i].hf, tail) < n;
            }
        }
        return false;
    }
    for (size_t i = 0; i < sizeof in_layer / sizeof in_layer[0]; i++) {
        const char *tail = after(rest, in_layer[i].official);
        if (tail)
            return (size_t)snprintf(out, n, "model.%.*s%s%s", head, official, in_layer[i].hf, tail) < n;
    }
    /* enorm, hnorm, norm, e_proj and h_proj of the MTP block keep their names. */
    return (size_t)snprintf(out, n, "model.%s", official) < n;
}
