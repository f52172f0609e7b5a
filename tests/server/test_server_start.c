/* How nibble serve comes up: a port that another server has, keys from a file, names for the model, among them that of
 * a folder whose name no JSON can hold, and options that are texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server_rig.h"

static const char *g_program;

/* Run serve with these words and require its exit code, and a line on standard error that begins with `nibble: ` and
 * holds `text`. A server that comes up in spite of them is ended after a minute, and the exit code is another one. */
static void refuses(int code, const char *text, const char *arguments)
{
    char command[1024], output[4096], line[300];

    (void)snprintf(command, sizeof command, "timeout 60 '%s' serve %s 2>&1", g_program, arguments);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    output[fread(output, 1, sizeof output - 1, f)] = '\0';
    const int status = pclose(f);
    (void)snprintf(line, sizeof line, "nibble: %s", text);
    if (status != code << 8 || !strstr(output, line))
        fail_msg("serve %s: status %d, wanted exit code %d and '%s' in: %s", arguments, status, code, line, output);
}

static void test_texts(void **state)
{
    (void)state;
    refuses(2, "--api-key: '' is no key; wanted", "--api-key ''");
    refuses(2, "--api-key: ' x' is no key; wanted", "--api-key ' x'");
    refuses(2, "--cors: '' is no origin; wanted", "--cors ''");
    refuses(2, "--served-name: '' holds an empty name; wanted", "--served-name ''");
    refuses(2, "--served-name: 'a,,b' holds an empty name; wanted", "--served-name a,,b");
    refuses(2, "--served-name: 'a,' holds an empty name; wanted", "--served-name a,");
    refuses(2, "--served-name: byte 0x0a at offset 1 is", "--served-name \"$(printf 'a\\nb')\"");
    refuses(2, "--served-name: 'a\xff' is not UTF-8", "--served-name 'a\xff'");
    refuses(2, "--served-name has 1024 bytes; wanted less than 1024", "--served-name \"$(printf %1024d 0)\"");
    refuses(2, "--host: 'nowhere' is not an address; wanted", "--host nowhere");
    refuses(2, "--host: '' is not an address; wanted", "--host ''");
}

/* Two servers on one port would each get a part of the requests. */
static void test_port_in_use(void **state)
{
    (void)state;
    const char *arguments[] = {"--ctx", "128", "--log-level", "quiet", NULL};
    struct rig  r = rig_start(g_program, arguments);
    char        words[64], text[64];
    (void)snprintf(words, sizeof words, "--ctx 128 --port %d", r.port);
    (void)snprintf(text, sizeof text, "cannot listen on 127.0.0.1 port %d: ", r.port);
    refuses(1, text, words);
    rig_check_alive(&r);
    assert_int_equal(rig_stop(&r), 0);
}

/* The standard error of a serve with these arguments, from its beginning. */
static FILE *start_listened(const char *const *arguments, pid_t *pid)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    *pid = fork();
    if (*pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(ends[1], 2);
        (void)close(ends[0]);
        (void)close(ends[1]);
        (void)execv(g_program, (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    (void)close(ends[1]);
    FILE *f = fdopen(ends[0], "r");
    assert_non_null(f);
    return f;
}

/* An IPv6 address has brackets where it is part of a URL. */
static void test_ipv6(void **state)
{
    (void)state;
    char        port[16], wanted[64], line[1024];
    bool        said = false, refused = false;
    pid_t       pid;
    struct rig  other = rig_start(g_program, (const char *[]){"--ctx", "128", "--log-level", "quiet", NULL});
    const char *arguments[] = {g_program, "serve", "--ctx", "128", "--threads", "1",
                               "--host", "::1", "--port", port, NULL};
    /* Nobody has the same port at ::1, since the other server has it at 127.0.0.1 only. */
    (void)snprintf(port, sizeof port, "%d", other.port);
    (void)snprintf(wanted, sizeof wanted, "nibble: listening on http://[::1]:%d\n", other.port);
    FILE *f = start_listened(arguments, &pid);
    while (!said && !refused && fgets(line, sizeof line, f)) {
        said = strstr(line, "listening on") != NULL;
        refused = strstr(line, "cannot listen on ::1") != NULL;
    }
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)fclose(f);
    assert_int_equal(rig_stop(&other), 0);
    if (refused) {
        print_message("skipped: no server can listen on ::1 here: %s", line);
        skip();
    }
    assert_string_equal(line, wanted);
}

static int status_with(const struct rig *r, const char *header)
{
    struct reply reply = rig_request(r, "GET", "/v1/models", header, NULL);
    const int    status = reply.status;
    reply_free(&reply);
    return status;
}

static void write_file(char *path, const char *text)
{
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

/* Several keys, with blanks around them, empty lines and ends of lines of both kinds. */
static void test_key_file(void **state)
{
    (void)state;
    char path[] = "/tmp/nibble-keys-XXXXXX", empty[] = "/tmp/nibble-keys-XXXXXX", words[64];
    write_file(path, "\n  first\t\r\n \n\nsecond one\r\nlast");
    const char *arguments[] = {"--api-key-file", path, "--ctx", "128", "--log-level", "quiet", NULL};
    struct rig  r = rig_start(g_program, arguments);
    static const struct {
        const char *header;
        int         status;
    } cases[] = {
        {"", 401}, {"x-api-key: first\r\n", 200}, {"x-api-key: second one\r\n", 200}, {"x-api-key: second\r\n", 401},
        {"Authorization: Bearer last\r\n", 200}, {"x-api-key: \r\n", 401}, {"Authorization: Bearer \r\n", 401},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (status_with(&r, cases[i].header) != cases[i].status)
            fail_msg("%s: status %d, wanted %d", cases[i].header, status_with(&r, cases[i].header), cases[i].status);
    assert_int_equal(rig_stop(&r), 0);
    (void)unlink(path);
    write_file(empty, " \r\n\t\n");
    (void)snprintf(words, sizeof words, "--api-key-file %s", empty);
    refuses(1, "--api-key-file: ", words);
    (void)unlink(empty);
}

/* A folder may be called anything. What JSON cannot hold, and commas, become '_' in the model's name. */
static void test_folder_name(void **state)
{
    (void)state;
    char dir[] = "/tmp/nibble-names-XXXXXX", path[128], question[512];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/a,\xff\"b", dir);
    /* A folder of links, because the name is that of the real folder. */
    (void)snprintf(question, sizeof question, "mkdir '%s' && ln -s '" NIB_SOURCE_DIR "'/models/tiny-v4/* '%s'", path,
                   path);
    assert_int_equal(system(question), 0);
    const char  *arguments[] = {"-m", path, "--ctx", "256", "--log-level", "quiet", NULL};
    struct rig   r = rig_start(g_program, arguments);
    struct reply reply = rig_request(&r, "GET", "/v1/models", "", NULL);
    json_t      *v = json_loads(reply.body, 0, NULL);
    assert_string_equal(text_at(v, "data.0.id"), "a__\"b");
    json_decref(v);
    reply_free(&reply);
    v = rig_post(&r, CHAT, "{" PLAIN ",\"model\":\"a__\\\"b\"}", 200);
    assert_string_equal(text_at(v, "model"), "a__\"b");
    assert_string_equal(text_at(v, "choices.0.message.content"), ANSWER);
    json_decref(v);
    reply = rig_request(&r, "GET", "/metrics", "", NULL);
    assert_non_null(strstr(reply.body, "model_name=\"a__\\\"b\""));
    reply_free(&reply);
    assert_int_equal(rig_stop(&r), 0);
    (void)snprintf(question, sizeof question, "rm -r '%s'", dir);
    assert_int_equal(system(question), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_key_file),
        cmocka_unit_test(test_folder_name),
    };
    if (argc < 2)
        return 2;
    g_program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
