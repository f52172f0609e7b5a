/* Small pieces of PTX for tests: a body between a prelude that names parameters and registers, run in blocks of a machine.
 *
 * The body finds %in and %out (64-bit addresses of global memory), %t (thread of the block), %b (block), and may use
 * %r<64> (32 bits), %d<32> (64), %h<32> (16), %f<64>, %g<32> (f64), %p<16>. It may declare variables of its own. */
#ifndef PTX_RIG_H
#define PTX_RIG_H

#include "ptxsim/ptxsim.h"

struct rig {
    const char      *body;
    struct px_config config;
    struct px_dim    grid, block, cluster; /* zeros: one block of 32 */
    uint32_t         shared_bytes;
    const void      *in;
    size_t           in_bytes;
    void            *out; /* comes back if all went well; starts unwritten */
    size_t           out_bytes;
    bool             out_starts; /* with the bytes in `out` */
};

/* NULL, or the sentence with which the parser or the machine stopped (valid until the next call). */
const char *rig_run(const struct rig *r);
/* Fails the test unless it ran. */
void rig_good(const struct rig *r);
/* Fails the test unless it stopped with a sentence that holds `text`. */
void rig_stops(const struct rig *r, const char *text);

#endif
