/* A functional simulator of the PTX that nvcc emits for nibble's kernels. docs/kernels/ptxsim.md says what it covers.
 *
 * A module is parsed text. A machine holds global memory and runs entries of modules, one launch after the other. What a
 * kernel must not do (out-of-bounds, unaligned or unwritten memory, races in shared memory, lanes missing at an aligned
 * instruction, barriers misused, deadlock) ends the launch with a sentence that names the line of PTX. Everything here is
 * for one thread; machines are independent. */
#ifndef PTXSIM_H
#define PTXSIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct px_module;
struct px_machine;

/* How a run is scheduled, and where the ISA leaves a choice. Zeros are good defaults. */
struct px_config {
    uint64_t seed;         /* order of warps, blocks and asynchronous completions; 0: a fixed order in long turns */
    int32_t  resident;     /* clusters that run side by side; 0: 1 */
    uint64_t max_steps;    /* warp instructions of one launch before it is called stuck; 0: 4e9 */
    bool     mma_by_steps; /* matrix products round to fp32 after every 4 terms, in order, instead of once */
    bool     no_races;     /* do not look for races (faster) */
    bool     copies_wait_for_products; /* tcgen05.cp follows earlier tcgen05.mma of its thread; no promise of the ISA */
    bool     elect_high;   /* elect.sync chooses the highest lane instead of the lowest */
    uint32_t shared_most;  /* bytes that a block may have, static and dynamic; 0: 227 KiB */
    uint32_t cluster_most; /* blocks of a cluster; 0: 16 */
};

struct px_dim { uint32_t x, y, z; };

struct px_launch {
    struct px_dim grid, block, cluster; /* cluster: zeros mean 1 */
    uint32_t      shared_bytes;         /* dynamic */
    const void  **params;               /* as cudaLaunchKernel takes them: the address of each parameter's value */
    bool          overlaps;             /* programmatic serialisation: memory that earlier kernels write needs griddepcontrol.wait */
};

struct px_stats {
    uint64_t steps;    /* warp instructions */
    uint64_t products; /* matrix instructions */
};

/* Parse PTX text. NULL on failure with a sentence in `error`. Names and text are copied. */
struct px_module *px_module_parse(const char *text, size_t bytes, char *error, size_t error_bytes);
struct px_module *px_module_read(const char *path, char *error, size_t error_bytes);
void              px_module_free(struct px_module *m);
/* Whether the module has this entry; n_params may be NULL. */
bool              px_module_has(const struct px_module *m, const char *entry, int32_t *n_params);
/* Name of entry i, NULL behind the last. */
const char       *px_module_entry(const struct px_module *m, int32_t i);
/* Bytes of parameter i of an entry. */
size_t            px_module_param_bytes(const struct px_module *m, const char *entry, int32_t i);

struct px_machine *px_machine_new(const struct px_config *config);
void               px_machine_free(struct px_machine *m);

/* Global memory: addresses of the host, with guard bands; unwritten until px_wrote(). NULL when there is no memory. */
void *px_alloc(struct px_machine *m, size_t bytes);
/* False if p is not the start of a live allocation. */
bool  px_release(struct px_machine *m, void *p);
/* The host wrote bytes. False if they are not all inside one allocation. */
bool  px_wrote(struct px_machine *m, const void *p, size_t bytes);
/* Whether bytes lie inside one allocation, and have all been written. */
bool  px_inside(const struct px_machine *m, const void *p, size_t bytes);
bool  px_written(const struct px_machine *m, const void *p, size_t bytes);
/* The host waited for all work: later launches need not wait for earlier ones. */
void  px_synchronised(struct px_machine *m);

/* Run an entry to its end. False on misuse or an unknown entry: px_error() says what. */
bool        px_run(struct px_machine *m, struct px_module *module, const char *entry, const struct px_launch *l);
const char *px_error(const struct px_machine *m);
struct px_stats px_stats_of(const struct px_machine *m);

#endif
