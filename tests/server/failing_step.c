/* A device that fails in the middle of serving: linked into a nibble of its own (-Wl,--wrap=nib_step_run), in which the
 * step of number NIBBLE_FAILS_AT, from 1 on, ends as one does whose kernel did not come back. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/engine.h"

enum nib_status __real_nib_step_run(struct nib_engine *e, const struct nib_batch *b, bool mtp, struct nib_error *err);
enum nib_status __wrap_nib_step_run(struct nib_engine *e, const struct nib_batch *b, bool mtp, struct nib_error *err);

enum nib_status __wrap_nib_step_run(struct nib_engine *e, const struct nib_batch *b, bool mtp, struct nib_error *err)
{
    static int  n; /* steps are one thread's */
    const char *at = getenv("NIBBLE_FAILS_AT");
    if (!at || ++n != atoi(at))
        return __real_nib_step_run(e, b, mtp, err);
    (void)snprintf(e->op_error.text, sizeof e->op_error.text, "cuda: a kernel: unspecified launch failure");
    return nib_engine_failed(e, NIB_E_DEVICE, "run", err);
}
