/* A nibble serve of its own for tests, and raw HTTP to it: what goes over the socket is the test's to say. */
#ifndef SERVER_RIG_H
#define SERVER_RIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The question that every test may ask, its answer by the bundled model, and two tools to go with it. */
#define CHAT     "/v1/chat/completions"
#define QUESTION "\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}],\"temperature\":0"
#define PLAIN    QUESTION ",\"reasoning_effort\":\"none\""
#define ANSWER   "The capital of France is Paris."
#define TOOLS                                                                                                          \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\"," \
    "\"properties\":{\"city\":{\"type\":\"string\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"parameters\":{}}}]"

struct rig {
    pid_t pid;
    int   port;
};

/* Start PROGRAM serve with these further arguments (NULL-terminated) and wait until it is ready; fails the test if it
 * does not come up. */
struct rig rig_start(const char *program, const char *const *arguments);

/* SIGTERM; the exit code, which is 0 only if nothing went wrong (sanitizers included). */
int rig_stop(struct rig *r);

int  rig_connect(const struct rig *r); /* a socket */
void rig_send(int fd, const char *bytes, size_t n);

struct reply {
    int    status;
    char  *headers, *body; /* owned; chunks joined; NUL behind */
    size_t n_body;
};
void reply_free(struct reply *r);

/* Read one reply; false if the connection ends before it is whole, or nothing comes for 60 s. */
bool rig_read(int fd, struct reply *out);

/* One request on a connection of its own. extra: header lines ("Name: value\r\n") or "". */
struct reply rig_request(const struct rig *r, const char *method, const char *path, const char *extra, const char *body);

/* POST that must answer `status`, as JSON. */
json_t *rig_post(const struct rig *r, const char *path, const char *body, int status);

/* The question is answered as ever; fails the test if not. */
void rig_check_alive(const struct rig *r);

void rig_nap(long ms);

/* A value by path of keys and indexes ("choices.0.message.content"); NULL if absent. Borrowed. */
json_t     *at(json_t *v, const char *path);
const char *text_at(json_t *v, const char *path); /* "" if it is no string */

/* A POST whose reply is not read yet, on a connection of its own. */
int rig_begin(const struct rig *r, const char *path, const char *body);

/* Wait until such a number is at least (at most) that; fails the test after a minute. */
void rig_wait_metric(const struct rig *r, const char *name, double low, double high);

/* A number from /metrics by the beginning of its line. */
double rig_metric(const struct rig *r, const char *name);

#endif
