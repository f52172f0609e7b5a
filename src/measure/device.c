/* The limits of a card, by its backend. */
#include "backend/meter.h"
#include "base/status.h"

enum nib_status nib_device_measure(const char *backend, uint64_t read_bytes, struct nib_machine *m,
                                   struct nib_error *err)
{
    const struct nib_backend_api *api = nib_backend_find(backend);
    const struct nib_meter       *meter = api ? nib_meter_of(api) : NULL;
    if (!meter)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "backend '%s' has no card whose limits could be measured",
                             backend ? backend : "");
    return meter->limits(read_bytes, m, err);
}
