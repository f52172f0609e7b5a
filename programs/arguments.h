/* Command line options as tables: one description both parses an option and prints its help. */
#ifndef NIB_ARGUMENTS_H
#define NIB_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

enum cli_kind {
    CLI_KIND_FLAG,   /* bool */
    CLI_KIND_TEXT,   /* const char *, points into argv */
    CLI_KIND_COUNT,  /* int32_t in low..high */
    CLI_KIND_NUMBER, /* float in low..high, low itself excluded with above_low; never NaN or infinite */
    CLI_KIND_SEED,   /* uint64_t */
    CLI_KIND_CHOICE  /* int32_t, index into choices */
};

struct cli_option {
    const char        *name;  /* "--temp" */
    const char        *alias; /* "-n" or NULL */
    enum cli_kind      kind;
    void              *value; /* of the kind's type; left alone when the option does not appear */
    bool              *given; /* set when it appears; may be NULL */
    double             low, high;
    bool               above_low;
    const char *const *choices; /* NULL-terminated */
    const char        *metavar; /* "N"; choices print themselves */
    const char        *help;    /* one or more lines */
};

struct cli_group {
    const char              *title;
    const struct cli_option *options;
    int                      n;
};

struct cli_syntax {
    const char             *command;
    const char             *usage; /* "[-m DIR] FILE.jsonl [options]" */
    const char             *about; /* paragraphs of the help, before the options */
    const struct cli_group *groups;
    int                     n_groups;
    const char            **operand; /* where the first operand goes; NULL if the command takes none */
    const char             *operand_name;
    bool                    operand_optional;
    const char            **second; /* where a second one goes, which is needed too; NULL: there is but one */
    const char             *second_name;
    const char             *help_words; /* the command line that shows this help; NULL: "nibble help COMMAND" */
};

/* Parse argv[1..]. True: go on. False: help was printed, the line completed (complete.h), or a mistake reported;
 * return *exit_code. Values may be written "--name value" or "--name=value"; of a repeated option the last one counts;
 * "--" ends the options. */
bool cli_parse(const struct cli_syntax *s, int argc, char **argv, int *exit_code);

/* The options that every command using an engine takes, and the values they were given. */
struct cli_engine_options {
    const char       *model; /* NULL: the bundled model */
    int32_t           backend, threads, ctx, act_quant, kv, numerics;
    bool              act_quant_given, kv_given, verbose, selftest_again;
    int32_t           cpu;     /* index into cli_cpu_names; 0: the machine's best */
    const char       *trace;   /* NULL: none */
    int32_t           compare; /* 1: with ref */
    int32_t           drafts;  /* index into cli_draft_names; only run has the option */
    struct cli_option table[12];
    int               n_table;
};
void cli_engine_options_init(struct cli_engine_options *e);

/* Values of --drafts: 0 to 8, and CLI_DRAFTS_AUTO. NULL-terminated. */
#define CLI_DRAFTS_MAX  8
#define CLI_DRAFTS_AUTO (CLI_DRAFTS_MAX + 1)
extern const char *const cli_draft_names[];

/* Values of --cpu; NULL-terminated. */
extern const char *const cli_cpu_names[];

/* Indexed by enum nib_numerics. */
extern const char *const cli_numerics_names[];

/* Names for --backend, as the library knows them, whether or not this build has them; NULL-terminated. */
extern const char *const cli_backend_names[]; /* "auto" first */

#endif
