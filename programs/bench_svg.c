/* Speed against context as a picture: a line for each batch size of decoding, and one for prompts. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "cli.h"

enum { WIDTH = 760, HEIGHT = 440, LEFT = 70, RIGHT = 150, TOP = 50, BOTTOM = 60 };
enum { N_COLOURS = 7, N_SERIES_MAX = BENCH_LIST_MAX + 1 };

/* Seen on white and on black alike. */
static const char *const colours[N_COLOURS] = {"#2f81d6", "#d9730d", "#2e9e5b", "#c2479d",
                                               "#8a6fd1", "#a88400", "#d1495b"};

struct series {
    enum bench_phase phase;
    int32_t          batch;
};

struct plot {
    FILE                      *file;
    const struct bench_result *result;
    struct series              series[N_SERIES_MAX];
    int                        n_series;
    int32_t                    context[BENCH_LIST_MAX]; /* ascending */
    int                        n_contexts;
    double                     low, high; /* powers of ten */
};

static bool is_drawn(const struct bench_row *r)
{
    return !r->op && r->part == BENCH_ALL && r->seconds > 0;
}

static double speed(const struct bench_row *r)
{
    return (double)r->n_tokens / r->seconds;
}

static void add_series(struct plot *p, const struct bench_row *r)
{
    for (int i = 0; i < p->n_series; i++)
        if (p->series[i].phase == r->phase && p->series[i].batch == r->batch)
            return;
    if (p->n_series < N_SERIES_MAX)
        p->series[p->n_series++] = (struct series){r->phase, r->batch};
}

static void add_context(struct plot *p, int32_t context)
{
    int at = 0;

    while (at < p->n_contexts && p->context[at] < context)
        at++;
    if ((at < p->n_contexts && p->context[at] == context) || p->n_contexts == BENCH_LIST_MAX)
        return;
    memmove(&p->context[at + 1], &p->context[at], (size_t)(p->n_contexts++ - at) * sizeof p->context[0]);
    p->context[at] = context;
}

static void gather(struct plot *p)
{
    double low = INFINITY, high = 0;

    for (int i = 0; i < p->result->n_rows; i++) {
        const struct bench_row *r = &p->result->row[i];
        if (!is_drawn(r))
            continue;
        add_series(p, r);
        add_context(p, r->context);
        low = fmin(low, speed(r));
        high = fmax(high, speed(r));
    }
    p->low = floor(log10(low));
    p->high = ceil(log10(high));
    if (p->high <= p->low)
        p->high = p->low + 1;
}

/* Contexts stand at equal distances: they are powers, and 0, which has no place among powers. */
static double x_of(const struct plot *p, int32_t context)
{
    int at = 0;

    while (p->context[at] != context)
        at++;
    return p->n_contexts < 2 ? (LEFT + WIDTH - RIGHT) / 2.0
                             : LEFT + (double)(WIDTH - LEFT - RIGHT) * at / (p->n_contexts - 1);
}

static double y_of(const struct plot *p, double value)
{
    return HEIGHT - BOTTOM - (double)(HEIGHT - TOP - BOTTOM) * (log10(value) - p->low) / (p->high - p->low);
}

static void escaped(FILE *f, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<': (void)fputs("&lt;", f); break;
        case '>': (void)fputs("&gt;", f); break;
        case '&': (void)fputs("&amp;", f); break;
        default: (void)fputc((unsigned char)*text < 32 ? ' ' : *text, f); break;
        }
    }
}

static void context_label(char out[32], int32_t tokens)
{
    const bool mega = tokens > 0 && tokens % (1 << 20) == 0, kilo = tokens > 0 && tokens % 1024 == 0;

    (void)snprintf(out, 32, "%d%s", mega ? tokens >> 20 : kilo ? tokens >> 10 : tokens, mega ? "M" : kilo ? "K" : "");
}

static void draw_axes(const struct plot *p)
{
    static const int steps[] = {1, 2, 5};
    char             label[32];
    FILE            *f = p->file;

    for (double power = p->low; power <= p->high; power++)
        for (int i = 0; i < 3; i++) {
            const double value = steps[i] * pow(10, power);
            if (power == p->high && i > 0)
                break;
            (void)fprintf(f, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", LEFT,
                          y_of(p, value), WIDTH - RIGHT, y_of(p, value));
            (void)fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, y_of(p, value) + 4,
                          value);
        }
    for (int i = 0; i < p->n_contexts; i++) {
        context_label(label, p->context[i]);
        (void)fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x_of(p, p->context[i]),
                      HEIGHT - BOTTOM + 20, label);
    }
    (void)fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">tokens of context before the step</text>\n",
                  (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16);
    (void)fprintf(f,
                  "<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">tokens per second</text>\n",
                  (TOP + HEIGHT - BOTTOM) / 2);
}

static void draw_series(const struct plot *p, int i)
{
    const struct series *s = &p->series[i];
    const char          *colour = colours[i % N_COLOURS];
    FILE                *f = p->file;

    (void)fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour);
    for (int k = 0; k < p->n_contexts; k++)
        for (int r = 0; r < p->result->n_rows; r++) {
            const struct bench_row *row = &p->result->row[r];
            if (is_drawn(row) && row->phase == s->phase && row->batch == s->batch && row->context == p->context[k])
                (void)fprintf(f, "%.1f,%.1f ", x_of(p, row->context), y_of(p, speed(row)));
        }
    (void)fprintf(f, "\"/>\n");
    for (int r = 0; r < p->result->n_rows; r++) {
        const struct bench_row *row = &p->result->row[r];
        if (is_drawn(row) && row->phase == s->phase && row->batch == s->batch)
            (void)fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x_of(p, row->context),
                          y_of(p, speed(row)), colour);
    }
    const int y = TOP + 10 + 22 * i;
    (void)fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"4\" fill=\"%s\"/>\n", WIDTH - RIGHT + 16, y - 4,
                  colour);
    if (s->phase == BENCH_PREFILL)
        (void)fprintf(f, "<text x=\"%d\" y=\"%d\">prefill</text>\n", WIDTH - RIGHT + 36, y + 2);
    else
        (void)fprintf(f, "<text x=\"%d\" y=\"%d\">decode, batch %d</text>\n", WIDTH - RIGHT + 36, y + 2, s->batch);
}

static void draw(const struct plot *p)
{
    FILE *f = p->file;

    (void)fprintf(f,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\">\n"
                  "<style>text { font: 12px sans-serif; fill: #333 } .title { font-size: 15px } .grid { stroke: #8888; "
                  "stroke-width: "
                  "0.5 }\n@media (prefers-color-scheme: dark) { text { fill: #ccc } }</style>\n"
                  "<text class=\"title\" x=\"%d\" y=\"24\">",
                  WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    escaped(f, p->result->model);
    (void)fprintf(f, "</text>\n");
    draw_axes(p);
    for (int i = 0; i < p->n_series; i++)
        draw_series(p, i);
    (void)fprintf(f, "</svg>\n");
}

int bench_write_svg(const struct bench_result *r, const char *path)
{
    struct plot p = {.result = r};

    gather(&p);
    errno = 0;
    p.file = fopen(path, "w");
    if (!p.file)
        return cli_fail("%s: %s", path, strerror(errno));
    draw(&p);
    const bool failed = ferror(p.file) != 0;
    if (fclose(p.file) != 0 || failed)
        return cli_fail("%s: %s", path, errno ? strerror(errno) : "not everything could be written");
    return CLI_OK;
}
