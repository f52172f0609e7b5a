/* ref_rig.h for each backend in turn: define a test as static void name(void), and list it with ON_BOTH(name). */
#ifndef BOTH_BACKENDS_H
#define BOTH_BACKENDS_H

#include "backend/backend.h"

static const struct nib_backend_api *g_api;
#define RIG_API (*g_api)

#include "unit/ref_rig.h"

#define BOTH(name)                            \
    static void name##_on_both(void **state)  \
    {                                         \
        (void)state;                          \
        g_api = &nib_backend_ref;             \
        name();                               \
        g_api = &nib_backend_cpu;             \
        name();                               \
    }
#define ON_BOTH(name) { #name, name##_on_both, NULL, NULL, NULL }

#endif
