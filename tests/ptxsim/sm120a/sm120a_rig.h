/* For tests of the sm_120a kernels: a product as a problem, its operands, its run in the simulator, what must come
 * out. */
#ifndef SM120A_RIG_H
#define SM120A_RIG_H

#include "backend/cuda/sm120a/sm120a.h"
#include "ptxsim/blackwell/kernel_rig.h"

/* How a test goes wrong on purpose, by what the kernel is given. */
enum rig_wrong { RIG_RIGHT, RIG_SCALES_SWAPPED, RIG_UNITS_SWAPPED, RIG_PARTS_SWAPPED };

struct rig_product {
    struct nib_sm120a_linear p; /* sizes, alpha, parts and so on; pointers are filled in */
    struct px_config         config;
    uint64_t                 seed;
    bool                     hostile; /* all scale bytes; row scales of NaN and near fp32's ends */
    bool                     gather;  /* rows through pairs, top_k 3 */
    const int32_t           *count;   /* [n_experts] rows of each */
    enum rig_wrong           wrong;
    struct px_module        *module;  /* instead of the one that `kernel` names */
    /* Made by the run. */
    struct px_machine       *machine;
    uint8_t                 *x_codes, *x_scales, *w_codes, *w_scales; /* rows on end; weights [stack][part][n_out] */
    float                   *row_scale, *alphas; /* alphas [part][n_experts] */
    int32_t                 *expert_of, *source; /* of each row */
    int32_t                  n_sources;
    struct nib_blackwell_launch launch;
    struct px_stats          stats;
    char                     error[1200];
};

/* False: the kernel stopped, for the reason in r->error. */
bool rig_product_run(struct rig_product *r);
/* False: a result is wrong, described in text. */
bool rig_product_right(const struct rig_product *r, char *text, size_t bytes);
/* Runs, checks, frees. */
void rig_product_check(struct rig_product *r);
void rig_product_free(struct rig_product *r);

#endif
