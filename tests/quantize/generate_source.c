/* generate KIND DIR: checkpoints that no repository could hold, as sparse files.
 *
 *   pro     headers and config of a 1.6T-parameter model in the official layout: 64 shards of holes
 *   large   20 GiB of BF16 experts in the Hugging Face layout, holes but for a stretch of values in every tensor
 *   files   the same, 1.3 GiB and all values */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct shape {
    int dim, inner, experts, layers, shards, heads, q_rank, vocab;
    int bf16; /* experts BF16 in HF names, nothing else but what a plan needs */
    uint64_t step; /* bytes from a stretch of values to the next */
};

struct shard {
    char    *header;
    size_t   n, room;
    uint64_t bytes;
};

static struct shard *g_shard;
static FILE         *g_index;
static const char   *g_dir;
static int           g_n_shards, g_first = 1;

static void put(int shard, const char *name, const char *dtype, int item, long rows, long cols)
{
    struct shard *s = &g_shard[shard];
    const uint64_t bytes = (uint64_t)rows * (uint64_t)(cols ? cols : 1) * (uint64_t)item;
    if (s->room - s->n < 512) {
        s->room = s->room ? 2 * s->room : 1 << 16;
        s->header = realloc(s->header, s->room);
    }
    char shape[64];
    (void)snprintf(shape, sizeof shape, cols ? "%ld,%ld" : "%ld", rows, cols);
    s->n += (size_t)sprintf(s->header + s->n,
                            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                            s->n ? "," : "{", name, dtype, shape, s->bytes, s->bytes + bytes);
    s->bytes += bytes;
    fprintf(g_index, "%s\n\"%s\":\"model-%05d-of-%05d.safetensors\"", g_first ? "" : ",", name, shard + 1, g_n_shards);
    g_first = 0;
}

static void put_fp8(int shard, const char *base, long rows, long cols)
{
    char name[300];
    (void)snprintf(name, sizeof name, "%s.weight", base);
    put(shard, name, "F8_E4M3", 1, rows, cols);
    (void)snprintf(name, sizeof name, "%s.scale", base);
    put(shard, name, "F8_E8M0", 1, (rows + 127) / 128, (cols + 127) / 128);
}

static void put_layer(const struct shape *m, int layer, int shard)
{
    char base[200], name[300];
    for (int e = 0; e < m->experts; e++)
        for (int w = 1; w <= 3; w++) {
            const long rows = w == 2 ? m->dim : m->inner, cols = w == 2 ? m->inner : m->dim;
            const char *hf = w == 1 ? "gate_proj" : w == 2 ? "down_proj" : "up_proj";
            if (m->bf16) {
                (void)snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, e, hf);
                put(shard, name, "BF16", 2, rows, cols);
                continue;
            }
            (void)snprintf(name, sizeof name, "layers.%d.ffn.experts.%d.w%d.weight", layer, e, w);
            put(shard, name, "I8", 1, rows, cols / 2);
            (void)snprintf(name, sizeof name, "layers.%d.ffn.experts.%d.w%d.scale", layer, e, w);
            put(shard, name, "F8_E8M0", 1, rows, cols / 32);
        }
    if (m->bf16)
        return;
    const struct {
        const char *base;
        long        rows, cols;
    } fp8[] = {{"attn.wq_a", m->q_rank, m->dim},
               {"attn.wq_b", m->heads * 512L, m->q_rank},
               {"attn.wkv", 512, m->dim},
               {"attn.wo_a", 16384, m->heads * 512L / 16},
               {"attn.wo_b", m->dim, 16384},
               {"ffn.shared_experts.w1", m->inner, m->dim},
               {"ffn.shared_experts.w2", m->dim, m->inner},
               {"ffn.shared_experts.w3", m->inner, m->dim}};
    for (size_t i = 0; i < sizeof fp8 / sizeof fp8[0]; i++) {
        (void)snprintf(base, sizeof base, "layers.%d.%s", layer, fp8[i].base);
        put_fp8(shard, base, fp8[i].rows, fp8[i].cols);
    }
    (void)snprintf(name, sizeof name, "layers.%d.attn_norm.weight", layer);
    put(shard, name, "BF16", 2, m->dim, 0);
    (void)snprintf(name, sizeof name, "layers.%d.ffn.gate.weight", layer);
    put(shard, name, "BF16", 2, m->experts, m->dim);
}

/* A stretch of values every so often, so that scales and errors have something to do. */
static void write_values(int fd, uint64_t begin, uint64_t bytes, uint64_t step)
{
    static uint16_t x[4096];
    uint32_t seed = 7;
    for (size_t i = 0; i < 4096; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (uint16_t)(0x3c00u + (seed >> 23) + (seed & 0x8000u));
    }
    for (uint64_t at = 0; at + sizeof x <= bytes; at += step)
        if (pwrite(fd, x, sizeof x, (off_t)(begin + at)) != (ssize_t)sizeof x)
            exit(1);
}

static void write_shards(const struct shape *m)
{
    for (int i = 0; i < g_n_shards; i++) {
        struct shard *s = &g_shard[i];
        char path[600];
        (void)snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", g_dir, i + 1, g_n_shards);
        const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        s->header[s->n++] = '}';
        while (s->n % 8)
            s->header[s->n++] = ' ';
        const uint64_t n = s->n;
        if (fd < 0 || pwrite(fd, &n, 8, 0) != 8 || pwrite(fd, s->header, s->n, 8) != (ssize_t)s->n ||
            ftruncate(fd, (off_t)(8 + n + s->bytes)) != 0) {
            perror(path);
            exit(1);
        }
        if (m->bf16)
            write_values(fd, 8 + n, s->bytes, m->step);
        (void)close(fd);
    }
}

static void write_config(const struct shape *m)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/config.json", g_dir);
    FILE *f = fopen(path, "w");
    if (!f)
        exit(1);
    fprintf(f, "{\"architectures\":[\"DeepseekV4ForCausalLM\"],\"model_type\":\"deepseek_v4\",\"bos_token_id\":0,");
    fprintf(f, "\"eos_token_id\":1,\"hc_eps\":1e-06,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"head_dim\":512,");
    fprintf(f, "\"hidden_act\":\"silu\",\"hidden_size\":%d,\"index_head_dim\":128,\"index_n_heads\":64,", m->dim);
    fprintf(f, "\"index_topk\":512,\"max_position_embeddings\":65536,\"moe_intermediate_size\":%d,", m->inner);
    fprintf(f, "\"n_routed_experts\":%d,\"n_shared_experts\":1,\"norm_topk_prob\":true,", m->experts);
    fprintf(f, "\"num_attention_heads\":%d,\"num_experts_per_tok\":2,\"num_hidden_layers\":%d,", m->heads, m->layers);
    fprintf(f, "\"num_hash_layers\":0,\"num_key_value_heads\":1,\"num_nextn_predict_layers\":0,\"o_groups\":16,");
    fprintf(f, "\"o_lora_rank\":1024,\"q_lora_rank\":%d,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,", m->q_rank);
    fprintf(f, "\"rope_theta\":10000,\"compress_rope_theta\":160000,\"routed_scaling_factor\":1.5,");
    fprintf(f, "\"scoring_func\":\"sqrtsoftplus\",\"sliding_window\":128,\"swiglu_limit\":10.0,");
    fprintf(f, "\"tie_word_embeddings\":false,\"topk_method\":\"noaux_tc\",\"vocab_size\":%d,", m->vocab);
    fprintf(f, "\"compress_ratios\":[");
    for (int i = 0; i < m->layers; i++)
        fprintf(f, "%s0", i ? "," : "");
    fprintf(f, "]");
    if (!m->bf16)
        fprintf(f, ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
                   "\"weight_block_size\":[128,128]}");
    fprintf(f, "}\n");
    (void)fclose(f);
}

int main(int argc, char **argv)
{
    static const struct shape pro = {7168, 3072, 384, 61, 64, 128, 1536, 129280, 0, 0};
    /* 14 * 30 * 3 * 16 MiB = 19.7 GiB */
    static const struct shape large = {4096, 2048, 14, 30, 10, 64, 1024, 2048, 1, 64 << 20};
    static const struct shape files = {4096, 2048, 14, 2, 1, 64, 1024, 2048, 1, 8192};
    if (argc != 3) {
        fprintf(stderr, "usage: generate pro|large|files DIR\n");
        return 2;
    }
    const struct shape *m = strcmp(argv[1], "pro") == 0 ? &pro : strcmp(argv[1], "files") == 0 ? &files : &large;
    char path[600];
    g_dir = argv[2];
    g_n_shards = m->shards;
    g_shard = calloc((size_t)m->shards, sizeof *g_shard);
    (void)mkdir(g_dir, 0777);
    (void)snprintf(path, sizeof path, "%s/model.safetensors.index.json", g_dir);
    g_index = fopen(path, "w");
    if (!g_shard || !g_index)
        return 1;
    fprintf(g_index, "{\"weight_map\":{");
    put(0, m->bf16 ? "model.embed_tokens.weight" : "embed.weight", "BF16", 2, m->vocab, m->dim);
    put(0, m->bf16 ? "lm_head.weight" : "head.weight", "BF16", 2, m->vocab, m->dim);
    for (int l = 0; l < m->layers; l++)
        put_layer(m, l, l * m->shards / m->layers);
    for (int i = 0; i < m->shards; i++) { /* a shard may not be empty */
        char name[64];
        if (g_shard[i].n == 0) {
            (void)snprintf(name, sizeof name, "padding.%d", i);
            put(i, name, "F32", 4, 1, 0);
        }
    }
    fprintf(g_index, "}}\n");
    (void)fclose(g_index);
    write_shards(m);
    write_config(m);
    return 0;
}
