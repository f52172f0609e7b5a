/* In the simulator's place on a card (stand_in.h): memory, and modules that are nothing. */
#include "stand_in.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptxsim/ptx_module.h"

enum { KEPT = 64 };

static void *kept[KEPT];
static int   n_kept;

bool stand_in_keep(void *managed)
{
    if (n_kept == KEPT)
        return false;
    kept[n_kept++] = managed;
    return true;
}

struct px_machine *px_machine_new(const struct px_config *config)
{
    (void)config;
    return calloc(1, sizeof(struct px_machine));
}

void px_machine_free(struct px_machine *m)
{
    for (int i = 0; i < m->n; i++)
        (void)cudaFree(m->taken[i]);
    while (n_kept > 0)
        (void)cudaFree(kept[--n_kept]);
    free(m);
}

void *px_alloc(struct px_machine *m, size_t bytes)
{
    void *p = NULL;
    if (m->n == 64 || cudaMallocManaged(&p, bytes + 1, cudaMemAttachGlobal) != cudaSuccess)
        return NULL;
    m->taken[m->n++] = p;
    memset(p, 0xff, bytes); /* NaN, which no result may be left as */
    return p;
}

bool px_wrote(struct px_machine *m, const void *p, size_t bytes)
{
    (void)m, (void)p, (void)bytes;
    return true;
}

bool px_written(const struct px_machine *m, const void *p, size_t bytes)
{
    const uint8_t *at = p;
    (void)m;
    while (bytes > 0 && *at == 0xff)
        at++, bytes--;
    return bytes > 0;
}

const char *px_error(const struct px_machine *m)
{
    return m->error;
}

struct px_stats px_stats_of(const struct px_machine *m)
{
    (void)m;
    return (struct px_stats){.steps = 0};
}

struct px_module *px_module_read(const char *path, char *error, size_t error_bytes)
{
    static int nothing;
    (void)path, (void)error, (void)error_bytes;
    return (struct px_module *)(void *)&nothing;
}

/* Tests that break PTX have no place here: they are not called. */
struct px_module *px_module_parse(const char *text, size_t bytes, char *error, size_t error_bytes)
{
    (void)text, (void)bytes;
    (void)snprintf(error, error_bytes, "no PTX here");
    return NULL;
}

void px_module_free(struct px_module *module)
{
    (void)module;
}
