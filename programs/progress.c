/* Drawing one line over itself: bar, share, rate and time left. */
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>

#include "output.h"

#define QUIET_S  1.0 /* tasks shorter than this show nothing */
#define REDRAW_S 0.1

double progress_clock_s(void)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_start(struct progress *p, const char *what, const char *unit)
{
    *p = (struct progress){.what = what, .unit = unit, .start_s = progress_clock_s(), .enabled = output_is_screen(2)};
}

static int terminal_columns(void)
{
    struct winsize size = {0};

    return ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? (int)size.ws_col : 80;
}

static void format_amount(char *out, size_t out_bytes, double amount, const char *unit)
{
    static const char *const scales[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t                   i = 0;

    if (unit[0] != 'B' || unit[1] != '\0') {
        (void)snprintf(out, out_bytes, "%.*f %s", amount < 10 ? 1 : 0, amount, unit);
        return;
    }
    for (; amount >= 1024 && i + 1 < sizeof scales / sizeof scales[0]; i++)
        amount /= 1024;
    (void)snprintf(out, out_bytes, "%.1f %s", amount, scales[i]);
}

void progress_update(struct progress *p, uint64_t done, uint64_t total)
{
    double now, elapsed, rate;
    char   bar[21], per_second[32], line[160];
    int    filled;

    if (!p->enabled || total == 0)
        return;
    now = progress_clock_s();
    elapsed = now - p->start_s;
    if (elapsed < QUIET_S || now - p->drawn_s < REDRAW_S)
        return;
    p->drawn_s = now;
    p->drawn = true;

    if (done > total)
        done = total;
    filled = (int)(20.0 * (double)done / (double)total);
    for (int i = 0; i < 20; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[20] = '\0';
    rate = (double)done / elapsed;
    format_amount(per_second, sizeof per_second, rate, p->unit);
    int used = snprintf(line, sizeof line, "%s [%s] %3.0f %%  %s/s", p->what, bar,
                        100.0 * (double)done / (double)total, per_second);
    if (done > 0 && used > 0 && (size_t)used < sizeof line) {
        double left_s = ceil((double)(total - done) / rate);
        (void)snprintf(line + used, sizeof line - (size_t)used, "  ETA %.0f:%02.0f", floor(left_s / 60),
                       fmod(left_s, 60));
    }
    /* A line as wide as the terminal would wrap and could not be drawn over. */
    (void)fprintf(stderr, "\r\033[K%.*s", terminal_columns() - 1, line);
    (void)fflush(stderr);
}

void progress_finish(struct progress *p)
{
    if (p->drawn) {
        (void)fputs("\r\033[K", stderr);
        (void)fflush(stderr);
    }
    p->drawn = false;
}
