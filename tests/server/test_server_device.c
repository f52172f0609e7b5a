/* nibble serve whose device fails while requests run: every client is told, the log says what failed, and the server ends
 * with exit code 1, so that whoever watches over it starts a new one.
 *
 *   test_server_device PROGRAM      a nibble built with failing_step.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server_rig.h"

static const char *g_program;

#define COMPLETIONS "/v1/completions"
#define ENDLESS     "{\"prompt\":[0,500,600],\"ignore_eos\":true,\"max_tokens\":4000,\"temperature\":0%s}"

/* The server's standard error goes to the file until *kept is put back. */
static int redirect(const char *path, int *kept)
{
    (void)fflush(stderr);
    *kept = dup(2);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(*kept >= 0 && fd >= 0);
    return dup2(fd, 2) < 0 ? -1 : close(fd);
}

static void check_log(const char *path)
{
    char  text[8192];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    (void)fclose(f);
    if (!strstr(text, "the device failed: cuda: a kernel: unspecified launch failure"))
        fail_msg("the log does not say what failed:\n%s", text);
}

/* A question asked after the device is lost, on a connection that was there before. For half a second nobody has looked
 * yet, and then the server is shutting down; it says one of both, unless this test was held up until all was over. */
static void check_late_question(int fd)
{
    static const char question[] =
        "POST " COMPLETIONS " HTTP/1.1\r\nHost: x\r\nContent-Length: 33\r\n\r\n{\"prompt\":[0,500],\"max_tokens\":4}";
    struct reply      reply;
    rig_send(fd, question, sizeof question - 1);
    const bool answered = rig_read(fd, &reply);
    (void)close(fd);
    if (!answered) {
        print_message("the server was gone before it was asked again\n");
        return;
    }
    const bool failed = reply.status == 500 && strstr(reply.body, "\"code\":\"device_failed\"") &&
                        strstr(reply.body, "unspecified launch failure");
    if (!failed && (reply.status != 503 || !strstr(reply.body, "\"code\":\"shutting_down\"")))
        fail_msg("a request after the failure: %d %s", reply.status, reply.body);
    reply_free(&reply);
}

static void check_answers(const struct rig *r)
{
    enum { N = 3 };
    int fd[N], late = rig_connect(r);
    for (int i = 0; i < N; i++) {
        char body[256];
        (void)snprintf(body, sizeof body, ENDLESS, i < 2 ? ",\"stream\":true" : "");
        fd[i] = rig_begin(r, COMPLETIONS, body);
    }
    for (int i = 0; i < N; i++) {
        struct reply reply;
        if (!rig_read(fd[i], &reply))
            fail_msg("request %d got no whole answer", i);
        assert_non_null(strstr(reply.body, "\"code\":\"device_failed\""));
        if (i == 2)
            assert_int_equal(reply.status, 500);
        reply_free(&reply);
        (void)close(fd[i]);
        if (i == 0)
            check_late_question(late);
    }
}

static void test_device_fails(void **state)
{
    (void)state;
    char path[] = "/tmp/nibble-device-XXXXXX";
    int  kept, status = 0, fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(redirect(path, &kept), 0);
    struct rig r = rig_start(g_program, (const char *[]){"--ctx", "4096", "--max-seqs", "2", NULL});
    assert_true(dup2(kept, 2) >= 0);
    (void)close(kept);
    check_answers(&r); /* the third one waits when it happens */
    assert_int_equal(waitpid(r.pid, &status, 0), r.pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    check_log(path);
    (void)unlink(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_device_fails)};
    if (argc != 2) {
        (void)fprintf(stderr, "usage: test_server_device PROGRAM\n");
        return 2;
    }
    g_program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
