/* JSON through jansson, and rounding for people. */
#include "output.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

json_t *output_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

int output_json(json_t *object)
{
    if (!object)
        return cli_fail_memory();
    int failed = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(object);
    (void)putchar('\n');
    return failed ? cli_fail("the result cannot be printed as JSON") : CLI_OK;
}

bool output_is_screen(int fd)
{
    const char *terminal = getenv("TERM");

    return isatty(fd) == 1 && terminal && *terminal && strcmp(terminal, "dumb") != 0;
}

bool output_has_colour(int fd)
{
    const char *unwanted = getenv("NO_COLOR");

    return output_is_screen(fd) && !(unwanted && *unwanted);
}

void output_plain(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        /* U+0080 to U+009F are two bytes in UTF-8, and terminals obey some of them. */
        const bool two = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        (void)putchar(two || *c < 0x20 || *c == 0x7f ? ' ' : *c);
        c += two;
    }
}

static const char *scaled(char out[32], double value, double step, const char *const *units, size_t n_units)
{
    size_t i = 0;

    for (; value >= step && i + 1 < n_units; i++)
        value /= step;
    (void)snprintf(out, 32, i == 0 ? "%.0f%s%s" : "%.1f%s%s", value, units[i][0] ? " " : "", units[i]);
    return out;
}

const char *output_bytes(char out[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};

    return scaled(out, (double)bytes, 1024, units, sizeof units / sizeof units[0]);
}

const char *output_count(char out[32], uint64_t count)
{
    static const char *const units[] = {"", "thousand", "M", "B"};

    return scaled(out, (double)count, 1000, units, sizeof units / sizeof units[0]);
}
