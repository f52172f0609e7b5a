/* Small pieces of PTX for tests. */
#include "ptxsim/ptx_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char prelude[] =
    ".version 9.0\n.target sm_90a\n.address_size 64\n"
    ".visible .entry rig(.param .u64 rig_in, .param .u64 rig_out)\n{\n"
    ".reg .b32 %r<64>, %t, %b;\n.reg .b64 %d<32>, %in, %out;\n.reg .b16 %h<32>;\n.reg .f32 %f<64>;\n.reg .f64 %g<32>;\n"
    ".reg .pred %p<16>;\nld.param.u64 %in, [rig_in];\nld.param.u64 %out, [rig_out];\nmov.u32 %t, %tid.x;\nmov.u32 %b, %ctaid.x;\n";

static char said[1200];

static const char *run(struct px_machine *m, struct px_module *module, const struct rig *r)
{
    void *in = px_alloc(m, r->in_bytes), *out = px_alloc(m, r->out_bytes);
    if (!in || !out)
        return "no memory";
    if (r->in_bytes)
        memcpy(in, r->in, r->in_bytes);
    (void)px_wrote(m, in, r->in_bytes);
    if (r->out_starts) {
        memcpy(out, r->out, r->out_bytes);
        (void)px_wrote(m, out, r->out_bytes);
    }
    const void      *params[] = {&in, &out};
    struct px_launch l = {r->grid, r->block, r->cluster, r->shared_bytes, params, false};
    if (l.grid.x == 0)
        l.grid = (struct px_dim){1, 1, 1};
    if (l.block.x == 0)
        l.block = (struct px_dim){32, 1, 1};
    if (!px_run(m, module, "rig", &l)) {
        (void)snprintf(said, sizeof said, "%s", px_error(m));
        return said;
    }
    if (!px_written(m, out, r->out_bytes))
        return "not all of the output was written";
    if (r->out_bytes)
        memcpy(r->out, out, r->out_bytes);
    return NULL;
}

const char *rig_run(const struct rig *r)
{
    size_t n = sizeof prelude + strlen(r->body) + 16;
    char  *text = malloc(n);
    if (!text)
        return "no memory";
    (void)snprintf(text, n, "%s%s\nret;\n}\n", prelude, r->body);
    struct px_module  *module = px_module_parse(text, strlen(text), said, sizeof said);
    struct px_machine *m = px_machine_new(&r->config);
    const char        *why = !module ? said : m ? run(m, module, r) : "no memory";
    px_machine_free(m);
    px_module_free(module);
    free(text);
    return why;
}

void rig_good(const struct rig *r)
{
    const char *why = rig_run(r);
    if (why) {
        fprintf(stderr, "should have run:\n%s\nbut: %s\n", r->body, why);
        exit(1);
    }
}

void rig_stops(const struct rig *r, const char *text)
{
    const char *why = rig_run(r);
    if (!why || !strstr(why, text)) {
        fprintf(stderr, "should have stopped with '%s':\n%s\nbut: %s\n", text, r->body, why ? why : "it ran");
        exit(1);
    }
}
