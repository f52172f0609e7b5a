/* The pools' file, and views of it that are longer than the file. */
#include "measure/random_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

uint64_t nib_random_next(uint64_t *state)
{
    /* Steps of an odd constant, mixed until every bit depends on all. */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint16_t small_bf16(uint64_t r)
{
    return (uint16_t)((r & 0x8000u) | (0x3c00u + (r & 0xffu)));
}

static uint16_t bf16_near_one(uint64_t r)
{
    return (uint16_t)(0x3f80u + (r & 0x0fu));
}

static void fill(enum nib_random_kind kind, unsigned char *p, uint64_t *state)
{
    for (size_t i = 0; i < NIB_RANDOM_SIZE; i += 8) {
        const uint64_t r = nib_random_next(state);
        uint16_t half[4] = {0};
        for (size_t k = 0; k < 8; k++) {
            const unsigned byte = (unsigned)(r >> 8 * k & 0xffu);
            switch (kind) {
            case NIB_RANDOM_E4M3: p[i + k] = (unsigned char)((byte & 0x80u) | (0x28u + (byte & 0x1fu))); break;
            case NIB_RANDOM_UE4M3: p[i + k] = (unsigned char)(0x30u + (byte & 0x0fu)); break;
            case NIB_RANDOM_UE8M0: p[i + k] = (unsigned char)(118u + (byte & 3u)); break;
            default: p[i + k] = (unsigned char)byte; break;
            }
        }
        const bool wide = kind == NIB_RANDOM_F32 || kind == NIB_RANDOM_F32_ONES;
        if (!wide && kind != NIB_RANDOM_BF16 && kind != NIB_RANDOM_BF16_ONES)
            continue;
        for (size_t k = 0; k < 4; k++) {
            const uint64_t mine = r >> 16 * k & 0xffffu;
            const bool ones = kind == NIB_RANDOM_BF16_ONES || kind == NIB_RANDOM_F32_ONES;
            /* A bf16 is the upper half of an fp32: the lower ones stay 0. */
            if (!wide || k % 2 == 1)
                half[k] = ones ? bf16_near_one(mine) : small_bf16(mine);
        }
        memcpy(p + i, half, 8);
    }
}

enum nib_status nib_random_pools_open(struct nib_random_pools *p, size_t bytes, struct nib_error *err)
{
    uint64_t state = 1;
    *p = (struct nib_random_pools){.view_bytes = (bytes / NIB_RANDOM_SIZE + 2) * NIB_RANDOM_SIZE};
    unsigned char *data = malloc(NIB_RANDOM_SIZE);
    FILE *f = data ? tmpfile() : NULL;
    bool ok = f != NULL;
    for (int kind = 0; ok && kind < NIB_N_RANDOM; kind++) {
        fill((enum nib_random_kind)kind, data, &state);
        ok = fwrite(data, NIB_RANDOM_SIZE, 1, f) == 1;
    }
    free(data);
    p->file = f;
    if (ok && fflush(f) == 0)
        return NIB_OK;
    nib_random_pools_close(p);
    return nib_error_set(err, NIB_E_IO, "no temporary file of %zu bytes for random weights",
                         NIB_N_RANDOM * NIB_RANDOM_SIZE);
}

void nib_random_pools_close(struct nib_random_pools *p)
{
    for (int kind = 0; kind < NIB_N_RANDOM; kind++)
        if (p->view[kind])
            (void)munmap((void *)(uintptr_t)p->view[kind], p->view_bytes);
    if (p->file)
        (void)fclose(p->file);
    *p = (struct nib_random_pools){0};
}

/* Address space for the whole view first, then the pool over it, piece by piece. */
static unsigned char *map_view(const struct nib_random_pools *p, enum nib_random_kind kind)
{
    unsigned char *view = mmap(NULL, p->view_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (view == MAP_FAILED)
        return NULL;
    for (size_t at = 0; at < p->view_bytes; at += NIB_RANDOM_SIZE) {
        const void *piece = mmap(view + at, NIB_RANDOM_SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(p->file),
                                 (off_t)((size_t)kind * NIB_RANDOM_SIZE));
        if (piece == MAP_FAILED) {
            (void)munmap(view, p->view_bytes);
            return NULL;
        }
    }
    return view;
}

const void *nib_random_take(struct nib_random_pools *p, enum nib_random_kind kind, size_t bytes)
{
    if (bytes > p->view_bytes - NIB_RANDOM_SIZE)
        return NULL;
    if (!p->view[kind])
        p->view[kind] = map_view(p, kind);
    if (!p->view[kind])
        return NULL;
    return p->view[kind] + nib_random_next(&p->draws) % (NIB_RANDOM_SIZE / 64) * 64;
}
