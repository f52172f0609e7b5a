/* Random numbers, memory and reports of one case of the op checker. */
#include "support/opcheck.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Random ---- */

static uint64_t next(struct oc_case *c)
{
    uint64_t z = c->rng += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double oc_uniform(struct oc_case *c)
{
    return (double)(next(c) >> 11) * 0x1p-53;
}

int32_t oc_range(struct oc_case *c, int32_t low, int32_t high)
{
    return low + (int32_t)(next(c) % (uint64_t)(high - low + 1));
}

bool oc_chance(struct oc_case *c, double p)
{
    return oc_uniform(c) < p;
}

double oc_normal(struct oc_case *c)
{
    double u = oc_uniform(c) + 0x1p-60, v = oc_uniform(c);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

int32_t oc_pick(struct oc_case *c, int32_t n, const int32_t *choices)
{
    return choices[oc_range(c, 0, n - 1)];
}

/* ---- Memory ---- */

struct oc_block {
    struct oc_block *next;
    max_align_t      data[];
};

void *oc_new(struct oc_case *c, size_t bytes)
{
    struct oc_block *b = calloc(1, sizeof *b + bytes);
    if (!b) {
        fprintf(stderr, "opcheck: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    b->next = c->memory;
    c->memory = b;
    return b->data;
}

void oc_case_free(struct oc_case *c)
{
    while (c->memory) {
        struct oc_block *b = c->memory;
        c->memory = b->next;
        free(b);
    }
}

/* ---- Reports ---- */

void oc_shape(struct oc_case *c, const char *fmt, ...)
{
    size_t  n = strlen(c->shape);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->shape + n, sizeof c->shape - n, fmt, ap);
    va_end(ap);
}

void oc_fail(struct oc_case *c, const char *fmt, ...)
{
    if (c->failed)
        return;
    c->failed = true;
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "FAIL %s on %s [%s], case %d of --seed %llu: ", c->op, c->variant ? c->variant : "-", c->shape,
            c->index, (unsigned long long)c->seed);
    (void)vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

bool oc_expect(struct oc_case *c, bool ok, const char *what)
{
    ++*c->n_checks;
    if (!ok)
        oc_fail(c, "%s", what);
    return ok;
}
