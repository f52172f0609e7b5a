#include "quantize/quant.h"
enum nib_status nib_quant_calibration_open(const struct nib_quant_plan *p, int32_t n_threads, struct nib_quant_calibration **out,
                                           struct nib_error *err)
{
    (void)p; (void)n_threads; *out = NULL;
    return nib_error_set(err, NIB_E_UNSUPPORTED, "calibration");
}
void nib_quant_calibration_close(struct nib_quant_calibration *c) { (void)c; }
enum nib_status nib_quant_calibration_inputs(struct nib_quant_calibration *c, const struct nib_quant_unit *u, bool *found,
                                             struct nib_quant_inputs *out, struct nib_error *err)
{ (void)c; (void)u; (void)found; (void)out; (void)err; return NIB_E_STATE; }
enum nib_status nib_quant_gptq_init(struct nib_quant_gptq *q, const double *hessian, int64_t n, int32_t n_threads, struct nib_error *err)
{ (void)q; (void)hessian; (void)n; (void)n_threads; (void)err; return NIB_E_STATE; }
void nib_quant_gptq_deinit(struct nib_quant_gptq *q) { (void)q; }
int64_t nib_quant_gptq_row(const struct nib_quant_gptq *q, float *x, float g, const uint8_t *scales, uint8_t *codes)
{ (void)q; (void)x; (void)g; (void)scales; (void)codes; return 0; }
