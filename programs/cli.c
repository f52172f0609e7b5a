/* The one place that writes to standard error, apart from the progress bar. */
#include "cli.h"

#include <stdarg.h>
#include <stdio.h>

static void say(const char *fmt, va_list ap)
{
    char text[2048];

    (void)vsnprintf(text, sizeof text, fmt, ap);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = ' ';
    (void)fprintf(stderr, "nibble: %s\n", text);
}

int cli_fail(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
    return CLI_FAILED;
}

int cli_usage(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
    return CLI_USAGE;
}

void cli_note(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

int cli_fail_memory(void)
{
    return cli_fail("memory is used up");
}
