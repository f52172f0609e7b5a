/* mma.sync with block scales: operands from registers to tensor.h's sim_mma_sync and back. */
#include "ptxsim/sim_tcgen05.h"

#include <string.h>

static enum sim_element element_of(const struct px_warp *w, uint8_t type)
{
    switch (type) {
    case PX_E2M1: return SIM_E2M1;
    case PX_E2M3: return SIM_E2M3;
    case PX_E3M2: return SIM_E3M2;
    case PX_E4M3: return SIM_E4M3;
    case PX_E5M2: return SIM_E5M2;
    case PX_UE8M0: return SIM_UE8M0;
    case PX_UE4M3: return SIM_UE4M3;
    default: px_trap(w->cta->m, "type %s in mma.sync with block scales", px_type_name((enum px_type)type));
    }
}

/* Selectors are the same in all lanes. */
static uint32_t selector(struct px_warp *w, const struct px_operand *o)
{
    uint32_t v = px_get32(w, o, 0);
    for (uint32_t l = 1; l < PX_LANES; l++) {
        if (px_get32(w, o, l) != v)
            px_trap(w->cta->m, "scale selectors of mma.sync differ: %u in lane 0, %u in lane %u", v, px_get32(w, o, l),
                    l);
    }
    return v;
}

void px_mma_scaled(struct px_warp *w, const struct px_instruction *i, uint32_t lanes)
{
    struct px_machine  *m = w->cta->m;
    uint32_t            a[PX_LANES][4], b[PX_LANES][2], scale_a[PX_LANES], scale_b[PX_LANES];
    float               d[PX_LANES][4];
    struct sim_choices  choices = {.group_sums_in_f32 = m->config.mma_by_steps};
    struct sim_fault    fault;
    struct sim_mma_sync s = {.packed = px_has(i, PX_M_M16N8K64),
                             .a = (const uint32_t(*)[4])a,
                             .b = (const uint32_t(*)[2])b,
                             .scale_a = scale_a,
                             .scale_b = scale_b,
                             .d = d};
    bool                four = px_has(i, PX_M_SCALE_4X) || px_has(i, PX_M_BLOCK16);
    if (lanes != ~0u)
        px_trap(m, "mma.sync by lanes %08x of a warp", lanes);
    if (i->n_groups != 8 || i->n_operands != 20 || i->type[0] != PX_F32 || i->type[3] != PX_F32)
        px_trap(m, "this form of mma.sync with block scales is missing");
    s.a_type = element_of(w, i->type[1]);
    s.b_type = element_of(w, i->type[2]);
    s.scale_type = element_of(w, i->type[4]);
    s.scale = four ? SIM_SCALE_4X : px_has(i, PX_M_SCALE_2X) || px_has(i, PX_M_KIND_MXF4) ? SIM_SCALE_2X : SIM_SCALE_1X;
    const struct px_operand *o = i->o; /* d, a, b, c, scales and selectors of a, of b */
    for (uint32_t l = 0; l < PX_LANES; l++) {
        for (int r = 0; r < 4; r++) {
            uint32_t c = px_get32(w, &o[10 + r], l);
            a[l][r] = px_get32(w, &o[4 + r], l);
            memcpy(&d[l][r], &c, 4);
        }
        for (int r = 0; r < 2; r++)
            b[l][r] = px_get32(w, &o[8 + r], l);
        scale_a[l] = px_get32(w, &o[14], l);
        scale_b[l] = px_get32(w, &o[17], l);
    }
    s.byte_a = selector(w, &o[15]);
    s.thread_a = selector(w, &o[16]);
    s.byte_b = selector(w, &o[18]);
    s.thread_b = selector(w, &o[19]);
    if (!sim_mma_sync(&s, &choices, &fault))
        px_trap(m, "%s", fault.text);
    for (uint32_t l = 0; l < PX_LANES; l++) {
        for (int r = 0; r < 4; r++) {
            uint32_t u;
            memcpy(&u, &d[l][r], 4);
            px_set(w, &o[r], l, u);
        }
    }
    m->stats.products++;
}
