/* Measuring a device that the host's clock and loops cannot: what it does at most, and how long single ops take there.
 * Apart from the backends' tables, since nothing that runs a model needs it. */
#ifndef NIB_METER_H
#define NIB_METER_H

#include "backend/backend.h"

struct nib_meter {
    /* nib_device_measure() of device 0, with memory and a queue of its own. */
    enum nib_status (*limits)(uint64_t read_bytes, struct nib_machine *m, struct nib_error *err);
    /* Runs what work() enqueues to its end; *seconds: on the device, without the host's part. */
    enum nib_status (*time)(struct nib_stream *s, enum nib_status (*work)(struct nib_stream *s, void *data), void *data,
                            double *seconds);
};

extern const struct nib_meter nib_cuda_meter; /* of builds with CUDA */

/* NULL where ops run on the host. */
const struct nib_meter *nib_meter_of(const struct nib_backend_api *api);

#endif
