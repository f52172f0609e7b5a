/* Opening a checkpoint folder and the facts about it. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

/* Weights of one source that a decoded token multiplies: all of a matrix, but only top_k of the experts, and one
 * embedding row. */
static double share_used(const struct nib_source *s, const struct nib_config *c)
{
    if (nib_source_kind(s) == NIB_FIELD_EXPERTS)
        return (double)c->top_k / (double)c->n_experts;
    if (strcmp(nib_source_family(s), "embed") == 0 || nib_source_kind(s) == NIB_FIELD_IDS)
        return 1.0 / (double)c->vocab;
    return 1.0;
}

static void count_weights(struct nib_model *m)
{
    struct nib_model_info *info = &m->info;
    double active = 0, bytes = 0;
    for (int32_t i = 0; i < m->sources.n; i++) {
        const struct nib_source *s = &m->sources.source[i];
        const uint64_t n = (uint64_t)s->n_stack * (uint64_t)s->n_out * (uint64_t)s->n_in;
        info->stored_bytes += s->bytes;
        if (nib_source_kind(s) != NIB_FIELD_IDS)
            info->n_params += n;
        if (s->layer == m->config.n_layers)
            continue; /* MTP */
        bytes += (double)s->bytes * share_used(s, &m->config);
        if (nib_source_kind(s) != NIB_FIELD_IDS && strcmp(nib_source_family(s), "embed") != 0)
            active += (double)n * share_used(s, &m->config);
    }
    info->n_params_active = (uint64_t)(active + 0.5);
    info->bytes_per_token = (uint64_t)(bytes + 0.5);
}

static void fill_info(struct nib_model *m)
{
    const struct nib_config *c = &m->config;
    m->info = (struct nib_model_info){
        .dir = m->dir, .layout = m->sources.layout, .dim = c->dim, .n_layers = c->n_layers, .n_heads = c->n_heads,
        .head_dim = c->head_dim, .n_rot = c->n_rot, .q_rank = c->q_rank, .n_groups = c->n_groups, .o_rank = c->o_rank,
        .n_window = c->n_window, .n_hc = c->n_hc, .n_experts = c->n_experts, .top_k = c->top_k, .n_inner = c->n_inner,
        .n_hash_layers = c->n_hash_layers, .n_index_heads = c->n_index_heads, .index_dim = c->index_dim,
        .index_top_k = c->index_top_k, .vocab = c->vocab, .n_ctx_max = c->n_ctx_max, .bos_id = c->bos_id, .eos_id = c->eos_id,
        .has_mtp = m->sources.has_mtp, .temperature = c->temperature, .top_p = c->top_p, .greedy = c->greedy,
        .n_tensors = nib_checkpoint_n_tensors(m->checkpoint), .n_tensors_used = m->sources.n_tensors_used};
    for (int32_t l = 0; l < c->n_layers; l++) {
        m->info.n_swa_layers += c->ratio[l] == 0;
        m->info.n_csa_layers += c->ratio[l] == 4;
        m->info.n_hca_layers += c->ratio[l] == 128;
    }
    count_weights(m);
}

enum nib_status nib_model_make(const char *dir, const struct nib_config *config, struct nib_checkpoint *checkpoint,
                               struct nib_model **out, struct nib_error *err)
{
    *out = NULL;
    struct nib_model *m = calloc(1, sizeof *m);
    const size_t n = strlen(dir) + 1;
    if (m)
        m->dir = malloc(n);
    if (!m || !m->dir) {
        free(m);
        return nib_error_set(err, NIB_E_MEMORY, "no memory to open '%s'", dir);
    }
    memcpy(m->dir, dir, n);
    m->config = *config;
    enum nib_status status = nib_sources_resolve(checkpoint, &m->config, &m->sources, err);
    if (status == NIB_OK && m->sources.has_mtp && m->config.ratio[m->config.n_layers] != 0)
        status = nib_error_set(err, NIB_E_UNSUPPORTED, "%s: the MTP block has compress ratio %d, wanted 0", dir,
                               (int)m->config.ratio[m->config.n_layers]);
    if (status != NIB_OK) {
        nib_model_close(m);
        return status;
    }
    m->checkpoint = checkpoint;
    fill_info(m);
    *out = m;
    return NIB_OK;
}

enum nib_status nib_model_open(const char *dir, struct nib_model **out, struct nib_error *err)
{
    struct nib_config config;
    struct nib_checkpoint *checkpoint = NULL;
    *out = NULL;
    NIB_TRY(nib_config_read(dir, &config, err));
    NIB_TRY(nib_checkpoint_open(dir, &checkpoint, err));
    const enum nib_status status = nib_model_make(dir, &config, checkpoint, out, err);
    if (status != NIB_OK)
        nib_checkpoint_close(checkpoint);
    return status;
}

void nib_model_close(struct nib_model *m)
{
    if (!m)
        return;
    nib_sources_deinit(&m->sources);
    nib_checkpoint_close(m->checkpoint);
    free(m->dir);
    free(m);
}

const struct nib_model_info *nib_model_get_info(const struct nib_model *m)
{
    return &m->info;
}

/* Tensors are counted with their scales; each expert is its own, a stacked tensor's experts too. */
int64_t nib_model_n_tensors(const struct nib_model *m)
{
    int64_t n = 0;
    for (int32_t i = 0; i < m->sources.n; i++)
        n += m->sources.source[i].n_stack;
    return n;
}

bool nib_model_get_tensor(const struct nib_model *m, int64_t i, struct nib_tensor_info *out)
{
    const struct nib_source *s = m->sources.source;
    const struct nib_source *const end = s + m->sources.n;
    while (s < end && i >= s->n_stack)
        i -= (s++)->n_stack;
    if (s == end || i < 0)
        return false;
    *out = (struct nib_tensor_info){
        .name = s->part_name ? s->part_name[i] : s->name, .file = s->entry->file,
        .family = s->layer == m->config.n_layers ? "mtp" : nib_source_family(s), .format = nib_source_format(s),
        .shape = {s->n_out, s->n_in}, .n_dims = s->part || s->n_in > 1 ? 2 : 1, .bytes = s->bytes / (uint64_t)s->n_stack};
    return true;
}
