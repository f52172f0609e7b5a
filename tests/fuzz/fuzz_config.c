/* config.json, generation_config.json and hf_quant_config.json, separated by zero bytes; the last two may be left
 * out. */
#include <math.h>
#include <stdlib.h>

#include "fuzz.h"
#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {"config.json", "generation_config.json", "hf_quant_config.json"};
    struct nib_config c;
    struct nib_error err = {0};
    for (int i = 0; i < 3; i++) {
        size_t n_part;
        char *part = fuzz_part(&data, &n, &n_part);
        if (i == 0 || n_part > 0)
            fuzz_dir_write(names[i], part, n_part);
        else
            fuzz_dir_remove(names[i]);
        free(part);
    }
    const enum nib_status status = nib_config_read(fuzz_dir(), &c, &err);
    if (status != NIB_OK) {
        fuzz_check_error(status, &err);
        return 0;
    }
    FUZZ_CHECK(c.n_layers >= 1 && c.n_layers <= NIB_LAYERS_MAX && c.n_heads % c.n_groups == 0 &&
               c.top_k <= c.n_experts);
    FUZZ_CHECK(c.bos_id < c.vocab && c.eos_id < c.vocab && c.n_rot <= c.head_dim && c.temperature >= 0);
    float freq[4096];
    for (int compressed = 0; compressed < 2; compressed++) {
        nib_rope_freq(&c, compressed != 0, freq);
        for (int32_t i = 0; i < c.n_rot / 2; i++)
            FUZZ_CHECK(isfinite(freq[i]) && freq[i] >= 0 && freq[i] <= 1);
    }
    return 0;
}
