/* The `nibble` program: finds the subcommand and hands over. Each subcommand lives in cmd_<name>.c; arguments.h
 * describes options, session.h opens a model. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "complete.h"
#include "nibble.h"

static const struct cli_command commands[] = {
    {"run", "answer a prompt, or hold a conversation", cmd_run},
    {"logits", "print the logits after given token ids", cmd_logits},
    {"score", "exact match and likelihood on a file of prompts, perplexity on a text", cmd_score},
    {"tokenize", "text or a conversation to token ids, and back", cmd_tokenize},
    {"inspect", "show what a checkpoint holds and the memory it needs", cmd_inspect},
    {"selftest", "hold this machine's kernels to the reference", cmd_selftest},
    {"quantize", "write a checkpoint again in NVFP4", cmd_quantize},
    {"bench", "how fast steps are, and how near the machine's limits; or a server", cmd_bench},
#ifdef NIB_SERVER
    {"serve", "answer OpenAI-style requests over HTTP", cmd_serve},
#endif
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const struct cli_command *find_command(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void print_help(FILE *f)
{
    (void)fprintf(f, "Usage: nibble COMMAND [options]\n\n"
                     "Runs DeepSeek-V4 models. Without -m, the small model that comes with nibble is used.\n\n"
                     "Commands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        (void)fprintf(f, "  %-9s %s\n", commands[i].name, commands[i].summary);
    (void)fprintf(f, "  %-9s %s\n\n", "help", "show this, or the help of a command: nibble help run");
    (void)fprintf(f, "Try: nibble run -p \"What is the capital of France?\"\n\n"
                     "Exit codes: 0 done, 1 failed, 2 the command line is wrong.\n");
}

static int unknown_command(const char *name)
{
    char   all[128] = "";
    size_t used = 0;

    for (int i = 0; i < N_COMMANDS && used < sizeof all; i++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s, ", commands[i].name);
    return cli_usage("'%s' is not a command; there are %shelp", name, all);
}

static int help(int argc, char **argv)
{
    char  option[] = "--help";
    char *with_help[3];

    if (argc > 3)
        return cli_usage("help: '%s' is one argument too many; wanted one command", argv[3]);
    if (argc < 3) {
        print_help(stdout);
        return CLI_OK;
    }
    const struct cli_command *c = find_command(argv[2]);
    if (!c)
        return unknown_command(argv[2]);
    with_help[0] = argv[2];
    with_help[1] = option;
    with_help[2] = NULL;
    return c->run(2, with_help);
}

/* The words behind --complete: at least one, which may be empty. */
static int complete(int argc, char **argv)
{
    static char        empty[] = "";
    static char       *nothing[] = {empty};
    const bool         is_help = argc == 2 && strcmp(argv[0], "help") == 0;
    const char        *word = argc > 0 ? argv[argc - 1] : empty;

    cli_completing = argc > 0 ? (struct cli_words){argc, argv} : (struct cli_words){1, nothing};
    if (argc > 1 && !is_help) {
        const struct cli_command *c = find_command(argv[0]);
        return c ? c->run(argc, argv) : CLI_OK;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        cli_candidate(word, commands[i].name, commands[i].summary);
    if (!is_help) {
        cli_candidate(word, "help", "show the help of a command");
        cli_candidate(word, "version", "print the version");
    }
    return CLI_OK;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return help(argc, argv);
    if (strcmp(name, "version") == 0 || strcmp(name, "--version") == 0) {
        (void)printf("nibble %s\n", nib_version());
        return CLI_OK;
    }
    if (strcmp(name, "--complete") == 0)
        return complete(argc - 2, argv + 2);
    const struct cli_command *c = find_command(name);
    return c ? c->run(argc - 1, argv + 1) : unknown_command(name);
}

int main(int argc, char **argv)
{
    int code = dispatch(argc, argv);

    /* A result that never reached the disk is a failure too. */
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_OK)
        code = cli_fail("standard output: %s", errno ? strerror(errno) : "not everything could be written");
    return code;
}
