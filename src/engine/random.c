/* Ten rounds of two multiplications each; the key is bumped by Weyl constants. */
#include "engine/random.h"

void nib_philox(uint64_t key, uint64_t counter, uint64_t stream, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        for (int i = 0; i < 4; i++)
            c[i] = next[i];
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}

float nib_uniform(uint64_t seed, uint64_t position, uint64_t stream)
{
    uint32_t word[4];
    nib_philox(seed, position, stream, word);
    return (float)(word[0] >> 8) * 0x1p-24f;
}
