/* One safetensors file. What is accepted must lie inside the file, and each tensor's bytes must be readable. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/shard.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct nib_shard s;
    struct nib_error err = {0};
    const char *path = fuzz_file(data, n), *name = strrchr(path, '/') + 1;
    char dir[64] = "";
    memcpy(dir, path, (size_t)(name - path));
    const enum nib_status status = nib_shard_open(dir, name, &s, &err);
    if (status != NIB_OK) {
        fuzz_check_error(status, &err);
        FUZZ_CHECK(!s.map && !s.entry && !s.name);
        return 0;
    }
    unsigned sum = 0;
    for (int64_t i = 0; i < s.n_entries; i++) {
        const unsigned char *p = s.entry[i].data;
        uint64_t bytes;
        FUZZ_CHECK(s.entry[i].name[0] != '\0');
        FUZZ_CHECK(nib_st_tensor_bytes(s.entry[i].dtype, s.entry[i].n_dims, s.entry[i].shape, &bytes) &&
                   bytes == s.entry[i].bytes);
        FUZZ_CHECK(bytes <= n && p >= (unsigned char *)s.map + 8 && p + bytes <= (unsigned char *)s.map + n);
        for (uint64_t k = 0; k < bytes; k++)
            sum += p[k];
    }
    nib_shard_close(&s);
    volatile unsigned keep = sum; /* the reads must happen */
    (void)keep;
    return 0;
}
