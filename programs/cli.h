/* What all subcommands share: exit codes, messages on standard error, and the list of commands. */
#ifndef NIB_CLI_H
#define NIB_CLI_H

#include <stdbool.h>

/* Exit codes. A usage mistake is one that another command line would fix; all else is a failure. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

struct cli_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit code */
};

int cmd_run(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_selftest(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_serve(int argc, char **argv); /* only in builds with NIB_SERVER */

/* Write one line "nibble: ..." to standard error; control characters in it become spaces, so it stays one line.
 * The first two return the exit code that goes with them. */
#if defined(__GNUC__)
#define CLI_PRINTF __attribute__((format(printf, 1, 2)))
#else
#define CLI_PRINTF
#endif
CLI_PRINTF int  cli_fail(const char *fmt, ...);
CLI_PRINTF int  cli_usage(const char *fmt, ...);
CLI_PRINTF void cli_note(const char *fmt, ...);

/* Say that memory is used up; returns CLI_FAILED. */
int cli_fail_memory(void);

#endif
