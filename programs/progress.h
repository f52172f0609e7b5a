/* A progress bar on standard error: only on a terminal, only once a task has taken more than a second. */
#ifndef NIB_PROGRESS_H
#define NIB_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "loading" */
    const char *unit; /* "tok"; "B" prints as KiB, MiB, GiB */
    double      start_s, drawn_s;
    bool        enabled, drawn;
};

/* Seconds on a clock that only moves forward. */
double progress_clock_s(void);

void progress_start(struct progress *p, const char *what, const char *unit);
void progress_update(struct progress *p, uint64_t done, uint64_t total);
void progress_finish(struct progress *p); /* takes the bar off the screen; calling it again does nothing */

#endif
