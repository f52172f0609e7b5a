/* The sizes of the published models, and of the bundled one, as configurations. */
#include "measure/shape.h"

#include <inttypes.h>
#include <string.h>

/* What all three have in common. Contexts reach as far as the published ones, the bundled sizes too: nothing here was
 * trained. */
static struct nib_config common(void)
{
    return (struct nib_config){.head_dim = 512, .n_rot = 64, .n_window = 128, .index_dim = 128, .n_shared = 1,
                               .n_hc = 4, .n_sinkhorn = 20, .n_ctx_max = 1 << 20, .eos_id = 1, .norm_eps = 1e-6f,
                               .hc_eps = 1e-6f, .swiglu_limit = 10, .rope_theta = 10000, .compress_rope_theta = 160000,
                               .yarn = true, .yarn_factor = 16, .yarn_beta_fast = 32, .yarn_beta_slow = 1, .yarn_original = 65536,
                               .temperature = 1, .top_p = 1};
}

/* The body is 4:1 and 128:1 in turn, beginning and ending with 4:1. */
static void alternate(struct nib_config *c, int32_t first)
{
    for (int32_t l = first; l < c->n_layers; l++)
        c->ratio[l] = (l - first) % 2 == 0 ? 4 : 128;
}

static struct nib_config pro(void)
{
    struct nib_config c = common();
    c.dim = 7168;
    c.n_layers = 61;
    c.n_hash_layers = 3;
    c.n_heads = 128;
    c.q_rank = 1536;
    c.n_groups = 16;
    c.o_rank = 1024;
    c.n_index_heads = 64;
    c.index_top_k = 1024;
    c.n_experts = 384;
    c.top_k = 6;
    c.n_inner = 3072;
    c.vocab = 129280;
    c.route_scale = 2.5f;
    alternate(&c, 2);
    c.ratio[0] = c.ratio[1] = 128;
    return c;
}

static struct nib_config flash(void)
{
    struct nib_config c = common();
    c.dim = 4096;
    c.n_layers = 43;
    c.n_hash_layers = 3;
    c.n_heads = 64;
    c.q_rank = 1024;
    c.n_groups = 8;
    c.o_rank = 1024;
    c.n_index_heads = 64;
    c.index_top_k = 512;
    c.n_experts = 256;
    c.top_k = 6;
    c.n_inner = 2048;
    c.vocab = 129280;
    c.route_scale = 1.5f;
    alternate(&c, 2);
    return c;
}

static struct nib_config tiny(void)
{
    struct nib_config c = common();
    c.dim = 256;
    c.n_layers = 6;
    c.n_hash_layers = 2;
    c.n_heads = 4;
    c.q_rank = 128;
    c.n_groups = 2;
    c.o_rank = 64;
    c.n_index_heads = 8;
    c.index_top_k = 64;
    c.n_experts = 16;
    c.top_k = 4;
    c.n_inner = 64;
    c.vocab = 2048;
    c.route_scale = 1.5f;
    c.yarn_factor = 4;
    c.yarn_original = 4096;
    alternate(&c, 1);
    return c;
}

static enum nib_status find_format(const char *name, enum nib_shape_format *out, struct nib_error *err)
{
    static const char *const names[NIB_N_SHAPE_FORMATS] = {"nvfp4", "fp8", "mxfp4", "bf16", "official"};
    *out = NIB_SHAPE_NVFP4;
    if (!name)
        return NIB_OK;
    for (int32_t i = 0; i < NIB_N_SHAPE_FORMATS; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum nib_shape_format)i;
            return NIB_OK;
        }
    }
    return nib_error_set(err, NIB_E_ARGUMENT,
                         "format '%s' of a shape is not known, wanted nvfp4, fp8, mxfp4, bf16 or official", name);
}

enum nib_status nib_shape_config(const struct nib_shape *shape, struct nib_config *out, enum nib_shape_format *format,
                                 struct nib_error *err)
{
    static const struct {
        const char *name;
        struct nib_config (*make)(void);
    } shapes[] = {{"pro", pro}, {"flash", flash}, {"tiny", tiny}};
    const size_t n = sizeof shapes / sizeof shapes[0];
    size_t i = 0;
    while (i < n && (!shape->name || strcmp(shape->name, shapes[i].name) != 0))
        i++;
    if (i == n)
        return nib_error_set(err, NIB_E_ARGUMENT, "shape '%s' is not known, wanted pro, flash or tiny",
                             shape->name ? shape->name : "(none)");
    NIB_TRY(find_format(shape->format, format, err));
    *out = shapes[i].make();
    if (shape->n_layers < 0 || shape->n_layers > out->n_layers)
        return nib_error_set(err, NIB_E_ARGUMENT, "shape %s with %" PRId32 " layers, wanted 1 to %" PRId32, shape->name,
                             shape->n_layers, out->n_layers);
    if (shape->n_experts < 0 || shape->n_experts > out->n_experts ||
        (shape->n_experts > 0 && shape->n_experts < out->top_k))
        return nib_error_set(err, NIB_E_ARGUMENT, "shape %s with %" PRId32 " experts, wanted %" PRId32 " to %" PRId32,
                             shape->name, shape->n_experts, out->top_k, out->n_experts);
    if (shape->n_layers > 0 && shape->n_layers < out->n_layers) {
        out->n_layers = shape->n_layers;
        out->n_hash_layers = 0;
        alternate(out, 0);
        out->ratio[out->n_layers] = 0;
    }
    if (shape->n_experts > 0)
        out->n_experts = shape->n_experts;
    return NIB_OK;
}

enum nib_weight_type nib_shape_weight_type(enum nib_shape_format format, const struct nib_field *f)
{
    const bool experts = f->kind == NIB_FIELD_EXPERTS;
    const bool o_a = f->offset == offsetof(struct nib_layer, wo_a) && f->scope == NIB_SCOPE_LAYER;
    const bool pools = f->rows == NIB_DIM_COMPRESS || f->rows == NIB_DIM_INDEX_COMPRESS;
    switch (format) {
    case NIB_SHAPE_NVFP4: return f->quantised_input ? NIB_WEIGHT_NVFP4 : NIB_WEIGHT_BF16;
    case NIB_SHAPE_MXFP4: return f->quantised_input ? NIB_WEIGHT_MXFP4 : NIB_WEIGHT_BF16;
    case NIB_SHAPE_FP8:
    case NIB_SHAPE_OFFICIAL:
        if (experts && format == NIB_SHAPE_OFFICIAL)
            return NIB_WEIGHT_MXFP4;
        return (f->quantised_input && !pools) || o_a ? NIB_WEIGHT_FP8 : NIB_WEIGHT_BF16;
    case NIB_SHAPE_BF16:
    case NIB_N_SHAPE_FORMATS: break;
    }
    return NIB_WEIGHT_BF16;
}
