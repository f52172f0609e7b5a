/* Inside of `nibble bench`: what is asked for, what came out, and the parts that measure and print. */
#ifndef NIB_BENCH_H
#define NIB_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "arguments.h"
#include "nibble.h"

enum { BENCH_LIST_MAX = 32, BENCH_ROWS_TO_ROLL_BACK = 1024 };

enum bench_phase { BENCH_DECODE, BENCH_PREFILL, BENCH_BOTH };
enum bench_part { BENCH_LAYERS, BENCH_HEAD, BENCH_ALL, BENCH_EVERY_PART };
extern const char *const bench_phase_names[]; /* "decode", "prefill", "both" */
extern const char *const bench_part_names[];  /* "layers", "head", "all", "every" */

struct bench_list {
    int32_t value[BENCH_LIST_MAX];
    int     n;
};

struct bench_options {
    struct cli_engine_options engine;
    const char               *shape, *svg, *contexts, *batches, *serve, *predict;
    struct nib_shape          sizes; /* of --shape */
    char                      shape_text[128];
    struct bench_list         context, batch;
    bool                      context_given, csv, json, ops;
    int32_t                   phase, part, rows, repeat;
};

/* A measured line. op is NULL but for single ops. */
struct bench_row {
    enum bench_phase phase;
    enum bench_part  part;
    const char      *op;
    int32_t          context, batch;
    int32_t          n_tokens, n_calls; /* of the step; of the op */
    double           seconds;           /* the best */
    uint64_t         bytes, fp32_ops, fp8_ops, int8_ops;
};

/* A share of a whole step that no op accounts for. */
struct bench_outside {
    enum bench_phase phase;
    int32_t          context, batch;
    double           share;
};

struct bench_skipped {
    enum bench_phase phase;
    int32_t          context, batch;
    char             why[160];
};

struct bench_result {
    const char           *model; /* what was measured */
    struct nib_options    engine; /* as resolved */
    struct nib_machine    machine;
    bool                  raised; /* the machine's limits, to what a step did */
    bool                  is_device; /* a card: steps run there as a whole, and ops are timed apart from them */
    struct bench_row     *row;
    int                   n_rows;
    struct bench_outside *outside;
    int                   n_outside;
    struct bench_skipped *skipped;
    int                   n_skipped;
};
void bench_result_free(struct bench_result *r);

/* Read "0,1K,64K" or "pro,layers=2,format=fp8"; report what is wrong and return an exit code. */
int bench_read_list(const char *option, const char *text, int32_t low, int32_t high, struct bench_list *out);
int bench_read_shape(struct bench_options *o);

/* One step to measure. */
struct bench_case {
    enum bench_phase phase;
    int32_t context, batch, n_rows; /* rows of the step, of all sequences */
    int32_t n_held;                 /* tokens before it: the context, or less where the model's would be exceeded */
};

/* The cases that an engine has memory for, and the options to open it with; the others go to `skipped`. Returns an exit
 * code. */
int bench_plan(const struct bench_options *o, const struct nib_model *m, struct nib_options *engine,
               struct bench_case *cases, int *n_cases, struct bench_result *result);
#define BENCH_CASES_MAX (BENCH_LIST_MAX * (BENCH_LIST_MAX + 1))

/* Measure one case into result->row and result->outside. Returns an exit code. */
int bench_measure(const struct bench_options *o, struct nib_engine *e, int32_t vocab, const struct bench_case *c,
                  struct bench_result *result);

/* All kinds of operations. */
uint64_t bench_ops(const struct bench_row *r);

/* How near a row came to what the machine can do, at most 1: the time that the limiting one of bytes and operations
 * takes at least, over the time it took. */
double bench_share(const struct nib_machine *m, const struct bench_row *r, bool *by_bytes);

/* Better result->machine by what the processor, or with is_device the card, does at most. read_bytes: as
 * nib_machine_measure() has them. Returns an exit code. */
int bench_measure_machine(struct bench_result *result, int32_t n_threads, uint64_t read_bytes);

/* Make sure that no share is above 1: measure the machine again where one is, and if that does not help, believe the
 * step. */
int bench_settle(struct bench_result *result);

/* `nibble bench --predict CARDS`. argv[0] is the command's name, the rest its whole command line; returns the exit
 * code. */
int bench_predict(int argc, char **argv);

int bench_print_text(const struct bench_result *r);
int bench_print_csv(const struct bench_result *r);
int bench_print_json(const struct bench_result *r);
int bench_write_svg(const struct bench_result *r, const char *path);

#endif
