/* nibble inspect: what a checkpoint holds, and whether it would fit, from headers alone. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arguments.h"
#include "cli.h"
#include "nibble.h"
#include "output.h"
#include "session.h"

struct inspect_options {
    struct cli_engine_options engine;
    bool                      tensors, json;
};

/* Tensors of one family in one format. Both are short closed lists in nibble.h, with fewer than 100 pairs. */
struct format_sum {
    const char *family, *format;
    int64_t     n_tensors;
    uint64_t    bytes;
};
#define N_SUMS_MAX 128

/* Where the sum is, or would have to go so that a family stays together. */
static int place_of(const struct format_sum *sums, int n, const struct nib_tensor_info *t, bool *found)
{
    int place = n;

    *found = false;
    for (int k = 0; k < n && !*found; k++)
        if (strcmp(sums[k].family, t->family) == 0) {
            *found = strcmp(sums[k].format, t->format) == 0;
            place = *found ? k : k + 1;
        }
    return place;
}

static int sum_formats(const struct nib_model *m, struct format_sum *sums)
{
    struct nib_tensor_info t;
    bool                   found;
    int                    n = 0;

    for (int64_t i = 0; nib_model_get_tensor(m, i, &t); i++) {
        int k = place_of(sums, n, &t, &found);
        if (!found) {
            assert(n < N_SUMS_MAX);
            memmove(&sums[k + 1], &sums[k], (size_t)(n - k) * sizeof *sums);
            sums[k] = (struct format_sum){.family = t.family, .format = t.format};
            n++;
        }
        sums[k].n_tensors++;
        sums[k].bytes += t.bytes;
    }
    return n;
}

/* A backend that can plan a model is in this build. */
static bool has_backend(const struct nib_model *m, const struct nib_options *options, const char *name)
{
    struct nib_options     o = *options;
    struct nib_memory_plan plan;

    o.backend = name;
    return nib_model_plan(m, &o, &plan, NULL) == NIB_OK;
}

/* ---- Text ---- */

static const char *shape_text(char out[64], const struct nib_tensor_info *t)
{
    size_t used = 0;

    out[0] = '\0';
    for (int32_t i = 0; i < t->n_dims && used < 64; i++)
        used += (size_t)snprintf(out + used, 64 - used, i ? " x %" PRId64 : "%" PRId64, t->shape[i]);
    return out;
}

static void print_tensors(const struct nib_model *m)
{
    struct nib_tensor_info t;
    char                   shape[64], bytes[32];

    (void)printf("\ntensors:\n");
    for (int64_t i = 0; nib_model_get_tensor(m, i, &t); i++)
        (void)printf("  %-10s %-6s %-18s %11s  %s  (%s)\n", t.family, t.format, shape_text(shape, &t),
                     output_bytes(bytes, t.bytes), t.name, t.file);
}

static void print_facts(const struct nib_model_info *i)
{
    char params[32], active[32], stored[32], per_token[32];

    (void)printf("%s\n", i->dir);
    (void)printf("  layout        %s names\n", i->layout);
    (void)printf("  layers        %d: %d sliding window, %d compressed 4:1, %d compressed 128:1%s\n", i->n_layers,
                 i->n_swa_layers, i->n_csa_layers, i->n_hca_layers, i->has_mtp ? "; and an MTP block" : "");
    (void)printf("  width         %d, %d residual streams\n", i->dim, i->n_hc);
    (void)printf("  attention     %d heads of %d (%d rotary), query rank %d, output %d groups of rank %d, window %d\n",
                 i->n_heads, i->head_dim, i->n_rot, i->q_rank, i->n_groups, i->o_rank, i->n_window);
    (void)printf("  indexer       %d heads of %d, best %d entries\n", i->n_index_heads, i->index_dim, i->index_top_k);
    (void)printf("  experts       %d, %d a token, width %d; the first %d layers route by hash\n", i->n_experts,
                 i->top_k, i->n_inner, i->n_hash_layers);
    (void)printf("  vocabulary    %d, begin %d, end %d\n", i->vocab, i->bos_id, i->eos_id);
    (void)printf("  context       up to %d tokens\n", i->n_ctx_max);
    (void)printf("  sampling      %s, temperature %g, top-p %g\n", i->greedy ? "greedy" : "random",
                 (double)i->temperature, (double)i->top_p);
    (void)printf("  parameters    %s, %s active a token\n", output_count(params, i->n_params),
                 output_count(active, i->n_params_active));
    (void)printf("  stored        %s; %s read a decoded token\n", output_bytes(stored, i->stored_bytes),
                 output_bytes(per_token, i->bytes_per_token));
}

static void print_formats(const struct format_sum *sums, int n)
{
    char bytes[32];

    (void)printf("\nformats:\n");
    for (int i = 0; i < n; i++)
        (void)printf("  %-13s %-6s %8" PRId64 " tensors %11s\n", sums[i].family, sums[i].format, sums[i].n_tensors,
                     output_bytes(bytes, sums[i].bytes));
}

static void print_plan(const struct nib_memory_plan *p, const char *backend)
{
    char a[32], b[32];

    (void)printf("\nmemory on %s for %d tokens of context:\n", backend, p->n_ctx);
    (void)printf("  weights       %s\n", output_bytes(a, p->weights_bytes));
    (void)printf("  context       %s\n", output_bytes(a, p->kv_bytes));
    (void)printf("  workspace     %s\n", output_bytes(a, p->workspace_bytes));
    (void)printf("  total         %s; ", output_bytes(a, p->total_bytes));
    if (p->available_bytes == 0)
        (void)printf("how much is available is not known\n");
    else
        (void)printf("%s: %s available\n", p->total_bytes <= p->available_bytes ? "fits" : "does not fit",
                     output_bytes(b, p->available_bytes));
}

static void print_devices(const char *backend)
{
    struct nib_device_info d;
    struct nib_error       err = {0};
    char                   total[32], available[32];
    int32_t                i = 0;

    for (; nib_device_get(backend, i, &d, &err) == NIB_OK; i++)
        (void)printf("  %-5s %" PRId32 "  %s, %s, %s free%s%s%s%s\n", backend, i, d.name[0] ? d.name : "unnamed",
                     output_bytes(total, d.total_bytes), output_bytes(available, d.available_bytes),
                     d.usable ? "" : "; not usable: ", d.why_not, d.note[0] ? "; " : "", d.note);
    if (i == 0)
        (void)printf("  %-5s -  %s\n", backend, err.text);
}

static void print_backends(const struct nib_model *m, const struct nib_options *options)
{
    (void)printf("\nbackends in this build, and what they can run on:\n");
    for (int i = 1; cli_backend_names[i]; i++)
        if (has_backend(m, options, cli_backend_names[i]))
            print_devices(cli_backend_names[i]);
    if (!has_backend(m, options, "cuda"))
        (void)printf("  none for GPUs (make cuda builds one)\n");
}

/* ---- JSON ---- */

static json_t *json_u64(uint64_t v)
{
    return json_integer((json_int_t)v);
}

static json_t *facts_json(const struct nib_model_info *i)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i,"
                     " s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:o, s:o}",
                     "dim", i->dim, "n_layers", i->n_layers, "n_swa_layers", i->n_swa_layers, "n_csa_layers",
                     i->n_csa_layers, "n_hca_layers", i->n_hca_layers, "n_heads", i->n_heads, "head_dim", i->head_dim,
                     "n_rot", i->n_rot, "q_rank", i->q_rank, "n_groups", i->n_groups, "o_rank", i->o_rank, "n_window",
                     i->n_window, "n_hc", i->n_hc, "n_experts", i->n_experts, "top_k", i->top_k, "n_inner", i->n_inner,
                     "n_hash_layers", i->n_hash_layers, "n_index_heads", i->n_index_heads, "index_dim", i->index_dim,
                     "index_top_k", i->index_top_k, "vocab", i->vocab, "n_ctx_max", i->n_ctx_max, "bos_id", i->bos_id,
                     "eos_id", i->eos_id, "has_mtp", i->has_mtp, "greedy", i->greedy, "temperature",
                     output_real((double)i->temperature), "top_p", output_real((double)i->top_p));
}

static json_t *formats_json(const struct format_sum *sums, int n)
{
    json_t *families = json_object();

    for (int i = 0; i < n; i++) {
        json_t *family = json_object_get(families, sums[i].family);
        if (!family) {
            family = json_object();
            (void)json_object_set_new(families, sums[i].family, family);
        }
        (void)json_object_set_new(family, sums[i].format,
                                  json_pack("{s:I, s:o}", "tensors", (json_int_t)sums[i].n_tensors, "bytes",
                                            json_u64(sums[i].bytes)));
    }
    return families;
}

static json_t *plan_json(const struct nib_memory_plan *p, const char *backend)
{
    bool known = p->available_bytes > 0;

    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "backend", backend, "n_ctx", p->n_ctx,
                     "weights_bytes", json_u64(p->weights_bytes), "kv_bytes", json_u64(p->kv_bytes),
                     "kv_bytes_per_seq", json_u64(p->kv_bytes_per_seq), "workspace_bytes", json_u64(p->workspace_bytes),
                     "total_bytes", json_u64(p->total_bytes), "available_bytes",
                     known ? json_u64(p->available_bytes) : json_null(), "fits",
                     known ? json_boolean(p->total_bytes <= p->available_bytes) : json_null());
}

static json_t *backends_json(const struct nib_model *m, const struct nib_options *options)
{
    json_t *names = json_array();

    for (int i = 1; cli_backend_names[i]; i++)
        if (has_backend(m, options, cli_backend_names[i]))
            (void)json_array_append_new(names, json_string(cli_backend_names[i]));
    return names;
}

static json_t *devices_json(const struct nib_model *m, const struct nib_options *options)
{
    struct nib_device_info d;
    json_t                *list = json_array();

    for (int k = 1; cli_backend_names[k]; k++)
        if (has_backend(m, options, cli_backend_names[k]))
            for (int32_t i = 0; nib_device_get(cli_backend_names[k], i, &d, NULL) == NIB_OK; i++)
                (void)json_array_append_new(list, json_pack("{s:s, s:i, s:s, s:o, s:o, s:b, s:s, s:s}", "backend", cli_backend_names[k],
                                                            "index", i, "name", d.name, "total_bytes", json_u64(d.total_bytes),
                                                            "available_bytes", json_u64(d.available_bytes), "usable", d.usable,
                                                            "why_not", d.why_not, "note", d.note));
    return list;
}

static json_t *tensors_json(const struct nib_model *m)
{
    json_t                *list = json_array();
    struct nib_tensor_info t;

    for (int64_t i = 0; nib_model_get_tensor(m, i, &t); i++) {
        json_t *shape = json_array();
        for (int32_t d = 0; d < t.n_dims; d++)
            (void)json_array_append_new(shape, json_integer(t.shape[d]));
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "name", t.name, "file", t.file,
                                                    "family", t.family, "format", t.format, "shape", shape, "bytes",
                                                    json_u64(t.bytes)));
    }
    return list;
}

/* ---- Command ---- */

static int inspect(const struct session *s, const struct inspect_options *o)
{
    const struct nib_model_info *info = s->info;
    struct nib_options           options;
    struct nib_memory_plan       plan;
    struct nib_error             err = {0};
    struct format_sum            sums[N_SUMS_MAX];

    int code = session_engine_options(s, 0, false, &options);
    if (code != CLI_OK)
        return code;
    enum nib_status status = nib_model_plan(s->model, &options, &plan, &err);
    if (status != NIB_OK)
        return session_fail(status, &err);

    int n = sum_formats(s->model, sums);
    if (!o->json) {
        print_facts(info);
        print_formats(sums, n);
        print_plan(&plan, plan.backend);
        print_backends(s->model, &options);
        if (o->tensors)
            print_tensors(s->model);
        return CLI_OK;
    }
    json_t *all = json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "dir", info->dir, "layout",
                            info->layout, "model", facts_json(info), "n_params", json_u64(info->n_params),
                            "n_params_active", json_u64(info->n_params_active), "stored_bytes",
                            json_u64(info->stored_bytes), "bytes_per_token", json_u64(info->bytes_per_token), "formats",
                            formats_json(sums, n), "memory", plan_json(&plan, plan.backend), "backends",
                            backends_json(s->model, &options), "devices", devices_json(s->model, &options));
    if (all && o->tensors)
        (void)json_object_set_new(all, "tensors", tensors_json(s->model));
    return output_json(all);
}

int cmd_inspect(int argc, char **argv)
{
    struct inspect_options o = {0};
    struct session         s;
    int                    code;

    cli_engine_options_init(&o.engine);
    const struct cli_option own[] = {
        {.name = "--tensors", .kind = CLI_KIND_FLAG, .value = &o.tensors, .help = "list every tensor"},
        {.name = "--json", .kind = CLI_KIND_FLAG, .value = &o.json, .help = "print as JSON"},
    };
    const struct cli_group groups[] = {
        {"Options", own, sizeof own / sizeof own[0]},
        {"Engine", o.engine.table, o.engine.n_table},
    };
    const struct cli_syntax syntax = {
        .command = "inspect",
        .usage = "[-m DIR] [options]",
        .about = "Shows what a checkpoint holds: the model's shape, formats by family of tensors, parameters, bytes\n"
                 "read for each decoded token, and the memory that the engine options given here would take.\n"
                 "Everything is checked; no weights are loaded.",
        .groups = groups,
        .n_groups = 2,
    };
    if (!cli_parse(&syntax, argc, argv, &code))
        return code;
    code = session_open(&s, &o.engine);
    if (code == CLI_OK)
        code = inspect(&s, &o);
    session_close(&s);
    return code;
}
