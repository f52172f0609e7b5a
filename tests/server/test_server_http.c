/* nibble serve over raw sockets: answers, streams, errors, limits, clients that behave badly. After every blow a known
 * request gets its known answer. Known faults B69, B71, B81 and B85. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server_rig.h"

static const char *g_program;
static struct rig  g;

/* ---- Answers ---- */

static void test_answer(void **state)
{
    (void)state;
    json_t *v = rig_post(&g, CHAT, "{" PLAIN "}", 200);
    assert_string_equal(text_at(v, "object"), "chat.completion");
    assert_string_equal(text_at(v, "choices.0.message.content"), ANSWER);
    assert_null(at(v, "choices.0.message.reasoning_content"));
    assert_string_equal(text_at(v, "choices.0.finish_reason"), "stop");
    assert_int_equal(json_integer_value(at(v, "usage.completion_tokens_details.reasoning_tokens")), 0);
    json_decref(v);
    v = rig_post(&g, CHAT, "{" QUESTION "}", 200); /* thinking is on by default */
    assert_string_equal(text_at(v, "choices.0.message.content"), ANSWER);
    assert_true(strlen(text_at(v, "choices.0.message.reasoning_content")) > 0);
    assert_true(json_integer_value(at(v, "usage.completion_tokens_details.reasoning_tokens")) > 2);
    json_decref(v);
}

static void add_text(json_t *into, const char *key, json_t *piece)
{
    char *text;
    const char *before = json_string_value(json_object_get(into, key));
    if (!json_is_string(piece))
        return;
    const size_t n = strlen(before ? before : "") + json_string_length(piece) + 1;
    text = malloc(n);
    assert_non_null(text);
    (void)snprintf(text, n, "%s%s", before ? before : "", json_string_value(piece));
    json_object_set_new(into, key, json_string(text));
    free(text);
}

/* What a client makes of a stream: {"content", "reasoning_content", "calls": [{"name", "arguments"}], "finish_reason",
 * "usage"}. */
static json_t *join_stream(const char *body)
{
    json_t *joined = json_pack("{s:[]}", "calls");
    bool done = false;
    for (const char *s = body; *s;) {
        const char *end = strstr(s, "\n\n");
        assert_non_null(end);
        if (strncmp(s, "data: [DONE]", 12) == 0) {
            done = true;
        } else if (*s != ':') {
            assert_false(done);
            assert_memory_equal(s, "data: ", 6);
            json_t *v = json_loadb(s + 6, (size_t)(end - s - 6), 0, NULL);
            assert_non_null(v);
            json_t *delta = at(v, "choices.0.delta"), *call = at(delta, "tool_calls.0");
            add_text(joined, "content", at(delta, "content"));
            add_text(joined, "reasoning_content", at(delta, "reasoning_content"));
            if (call && at(call, "id")) {
                assert_int_equal(json_integer_value(at(call, "index")), json_array_size(at(joined, "calls")));
                json_array_append_new(at(joined, "calls"), json_pack("{s:s, s:s}", "name", text_at(call, "function.name"), "arguments", ""));
            } else if (call) {
                assert_null(at(call, "function.name"));
                add_text(json_array_get(at(joined, "calls"), (size_t)json_integer_value(at(call, "index"))), "arguments",
                         at(call, "function.arguments"));
            }
            if (json_is_string(at(v, "choices.0.finish_reason"))) {
                assert_int_equal(json_object_size(delta), 0); /* the last chunk holds no text */
                json_object_set(joined, "finish_reason", at(v, "choices.0.finish_reason"));
            }
            if (json_is_object(at(v, "usage")))
                json_object_set(joined, "usage", at(v, "usage"));
            json_decref(v);
        }
        s = end + 2;
    }
    assert_true(done);
    return joined;
}

/* B69: a stream joined together is the answer that comes whole. */
static void test_stream_equals_whole(void **state)
{
    (void)state;
    static const char *const requests[] = {
        PLAIN, QUESTION, PLAIN ",\"stop\":[\"is Pa\"]", PLAIN ",\"max_tokens\":3", QUESTION ",\"max_tokens\":4",
        "\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in Rome?\"}],\"temperature\":0," TOOLS,
        "\"messages\":[{\"role\":\"user\",\"content\":\"Write something.\"}],\"temperature\":1,\"seed\":5,\"max_tokens\":40," TOOLS,
        "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"temperature\":0,\"reasoning_effort\":\"none\",\"tool_choice\":\"required\"," TOOLS,
    };
    char body[2048];
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        (void)snprintf(body, sizeof body, "{%s}", requests[i]);
        json_t *whole = rig_post(&g, CHAT, body, 200);
        (void)snprintf(body, sizeof body, "{%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", requests[i]);
        struct reply r = rig_request(&g, "POST", CHAT, "", body);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.headers, "text/event-stream"));
        json_t *joined = join_stream(r.body), *message = at(whole, "choices.0.message");
        assert_string_equal(text_at(joined, "content"), text_at(message, "content"));
        assert_string_equal(text_at(joined, "reasoning_content"), text_at(message, "reasoning_content"));
        assert_string_equal(text_at(joined, "finish_reason"), text_at(whole, "choices.0.finish_reason"));
        /* A call that a limit cuts has begun in the stream; the whole answer leaves it out. */
        const size_t n_calls = json_array_size(at(message, "tool_calls")), n_begun = json_array_size(at(joined, "calls"));
        assert_true(n_begun == n_calls || (n_begun == n_calls + 1 && strcmp(text_at(joined, "finish_reason"), "length") == 0));
        for (size_t k = 0; k < n_calls; k++) {
            json_t *a = json_array_get(at(joined, "calls"), k), *b = at(json_array_get(at(message, "tool_calls"), k), "function");
            assert_string_equal(text_at(a, "name"), text_at(b, "name"));
            assert_string_equal(text_at(a, "arguments"), text_at(b, "arguments"));
        }
        assert_int_equal(json_integer_value(at(joined, "usage.completion_tokens")), json_integer_value(at(whole, "usage.completion_tokens")));
        assert_null(strstr(text_at(joined, "content"), "<｜"));
        json_decref(joined);
        json_decref(whole);
        reply_free(&r);
    }
}

static void test_tools(void **state)
{
    (void)state;
    json_t *v = rig_post(&g, CHAT,
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello there\"}],\"temperature\":0,\"tool_choice\":{\"type\":\"function\","
                         "\"function\":{\"name\":\"get_time\"}}," TOOLS ",\"max_tokens\":200}", 200);
    assert_string_equal(text_at(v, "choices.0.message.tool_calls.0.function.name"), "get_time");
    assert_int_equal(strlen(text_at(v, "choices.0.message.tool_calls.0.id")), 29);
    json_decref(v);
    v = rig_post(&g, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in Rome?\"}],\"temperature\":0,"
                           "\"tool_choice\":\"none\",\"max_tokens\":60," TOOLS "}", 200);
    assert_null(at(v, "choices.0.message.tool_calls"));
    json_decref(v);
}

/* A call that comes back in history is read as it was written: its conversation goes on where it stood, to the last
 * token. An edited one is read anew. B101. */
static void test_replay(void **state)
{
    (void)state;
    static const char start[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in Rome?\"}";
    static const char end[] = "],\"temperature\":0,\"reasoning_effort\":\"low\"," TOOLS;
    char body[4096];
    (void)snprintf(body, sizeof body, "%s%s}", start, end);
    json_t *v = rig_post(&g, CHAT, body, 200), *call = at(v, "choices.0.message.tool_calls.0");
    assert_string_equal(text_at(call, "function.name"), "get_weather");
    assert_string_equal(text_at(call, "function.arguments"), "{\"city\": \"Rome\"}");
    const json_int_t n_first = json_integer_value(at(v, "usage.prompt_tokens")), n_out = json_integer_value(at(v, "usage.completion_tokens"));
    json_t *reasoning = at(v, "choices.0.message.reasoning_content");
    char *thought = json_dumps(reasoning, JSON_ENCODE_ANY);
    for (int edited = 0; edited < 2; edited++) {
        (void)snprintf(body, sizeof body,
                       "%s,{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":%s,\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\","
                       "\"function\":{\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\": \\\"%s\\\"}\"}}]}],%s}",
                       start, thought, text_at(call, "id"), edited ? "Oslo" : "Rome", end + 2);
        struct reply r = rig_request(&g, "POST", "/tokenize", "", body);
        assert_int_equal(r.status, 200);
        json_t *tokens = json_loads(r.body, 0, NULL);
        /* The whole conversation so far, the end token, and what opens the next turn. */
        if (!edited)
            assert_int_equal(json_integer_value(at(tokens, "count")), n_first + n_out + 3);
        json_decref(tokens);
        reply_free(&r);
    }
    free(thought);
    json_decref(v);
}

/* B71: every spelling of the switch. */
static void test_thinking_switches(void **state)
{
    (void)state;
    static const struct {
        const char *field;
        bool        thinks;
    } cases[] = {
        {"\"thinking\":{\"type\":\"disabled\"}", false}, {"\"thinking\":{\"type\":\"enabled\"}", true},
        {"\"chat_template_kwargs\":{\"thinking\":false}", false}, {"\"chat_template_kwargs\":{\"enable_thinking\":true}", true},
        {"\"reasoning_effort\":\"none\"", false}, {"\"reasoning_effort\":\"low\"", true}, {"\"reasoning_effort\":\"max\"", true},
        {"\"model\":\"deepseek-chat\"", false}, {"\"thinking\":false", false},
        {"\"reasoning_effort\":\"none\",\"thinking\":{\"type\":\"enabled\"}", true},
    };
    char body[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(body, sizeof body, "{" QUESTION ",\"max_tokens\":3,%s}", cases[i].field);
        json_t *v = rig_post(&g, CHAT, body, 200);
        assert_string_equal(text_at(v, "choices.0.finish_reason"), "length");
        if ((at(v, "choices.0.message.reasoning_content") != NULL) != cases[i].thinks)
            fail_msg("%s: thinks: %d", cases[i].field, !cases[i].thinks);
        json_decref(v);
    }
}

/* B81: halves of characters in log-probabilities; bytes joined are the text. */
static void test_logprobs(void **state)
{
    (void)state;
    json_t *v = rig_post(&g, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xF0\x9F\x98\x80 \xE4\xBD\xA0\"}],\"temperature\":2,\"seed\":1,"
                                   "\"logprobs\":true,\"top_logprobs\":20,\"max_tokens\":30,\"reasoning_effort\":\"none\"}", 200);
    json_t *list = at(v, "choices.0.logprobs.content");
    assert_int_equal(json_array_size(list), json_integer_value(at(v, "usage.completion_tokens")));
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *top = at(json_array_get(list, i), "top_logprobs");
        assert_int_equal(json_array_size(top), 20);
        for (size_t k = 1; k < 20; k++)
            assert_true(json_real_value(at(json_array_get(top, k), "logprob")) <= json_real_value(at(json_array_get(top, k - 1), "logprob")));
    }
    json_decref(v);
    v = rig_post(&g, CHAT, "{" PLAIN ",\"logprobs\":true}", 200);
    char text[256] = "";
    size_t n = 0;
    list = at(v, "choices.0.logprobs.content");
    for (size_t i = 0; i + 1 < json_array_size(list); i++) /* the last is the end token */
        for (size_t k = 0; k < json_array_size(at(json_array_get(list, i), "bytes")); k++)
            text[n++] = (char)json_integer_value(json_array_get(at(json_array_get(list, i), "bytes"), k));
    assert_string_equal(text, ANSWER);
    json_decref(v);
}

/* B85: exactly n, each with its own end; the prompt counts once. */
static void test_choices(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 8};
    char body[512];
    for (size_t c = 0; c < 3; c++) {
        (void)snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"Say a word.\"}],\"n\":%d,\"seed\":9,\"max_tokens\":12,"
                                          "\"temperature\":1.5,\"reasoning_effort\":\"none\",\"stop\":\"e\"}", counts[c]);
        json_t *v = rig_post(&g, CHAT, body, 200), *again = rig_post(&g, CHAT, body, 200);
        assert_int_equal(json_array_size(at(v, "choices")), counts[c]);
        assert_true(json_equal(at(v, "choices"), at(again, "choices")));
        for (int i = 0; i < counts[c]; i++)
            assert_int_equal(json_integer_value(at(json_array_get(at(v, "choices"), (size_t)i), "index")), i);
        assert_true(json_integer_value(at(v, "usage.prompt_tokens")) < 40);
        json_decref(v);
        json_decref(again);
    }
}

/* One number in several spellings is one seed. */
static void test_seed_spellings(void **state)
{
    (void)state;
    static const char *const seeds[] = {"1000", "1e3", "1000.0", "10.0E+2", "1"};
    json_t *first = NULL;
    char body[512];
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"Say a word.\"}],\"seed\":%s,\"max_tokens\":12,"
                                          "\"temperature\":2,\"reasoning_effort\":\"none\"}", seeds[i]);
        json_t *v = rig_post(&g, CHAT, body, 200);
        if (!first)
            first = json_incref(v);
        if (json_equal(at(v, "choices"), at(first, "choices")) != (i + 1 < sizeof seeds / sizeof seeds[0]))
            fail_msg("seed %s and 1000", seeds[i]);
        json_decref(v);
    }
    json_decref(first);
    /* -1 is no seed: two texts of 24 tokens, drawn from nearly even distributions of 2048, are not the same. */
    static const char none[] = "{\"prompt\":[0,500],\"seed\":-1,\"max_tokens\":24,\"temperature\":2,\"ignore_eos\":true}";
    first = rig_post(&g, "/v1/completions", none, 200);
    json_t *second = rig_post(&g, "/v1/completions", none, 200);
    assert_false(json_equal(at(first, "choices"), at(second, "choices")));
    json_decref(first);
    json_decref(second);
}

static void test_completions_and_tokens(void **state)
{
    (void)state;
    json_t *v = rig_post(&g, "/v1/completions", "{\"prompt\":[\"Once upon\",[0,500,600]],\"max_tokens\":4,\"temperature\":0,\"logprobs\":2}", 200);
    assert_string_equal(text_at(v, "object"), "text_completion");
    assert_int_equal(json_array_size(at(v, "choices")), 2);
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.tokens")), 4);
    json_decref(v);
    v = rig_post(&g, "/tokenize", "{\"prompt\":\"Hello </think> \\ud800 world\"}", 200);
    char body[1024], *tokens = json_dumps(at(v, "tokens"), JSON_COMPACT);
    (void)snprintf(body, sizeof body, "{\"tokens\":%s}", tokens);
    free(tokens);
    json_t *back = rig_post(&g, "/detokenize", body, 200);
    assert_string_equal(text_at(back, "prompt") + strlen("<｜begin▁of▁sentence｜>"), "Hello </think> \xEF\xBF\xBD world");
    json_decref(back);
    json_decref(v);
    v = rig_post(&g, "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 200);
    assert_true(json_integer_value(at(v, "count")) > 3);
    json_decref(v);
    v = rig_post(&g, "/tokenize", "{\"content\":\"Hello\",\"with_pieces\":true}", 200);
    assert_true(strlen(text_at(v, "tokens.0.piece")) > 0);
    json_decref(v);
}

/* What is in front of an answer: the prompt itself, whole and streamed, and the two sides of a gap. */
static void test_echo_and_suffix(void **state)
{
    (void)state;
    static const char prompt[] = "Once upon a time";
    json_t *plain = rig_post(&g, "/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":5,\"temperature\":0,\"stop\":\"upon\"}", 200);
    json_t *v = rig_post(&g, "/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":5,\"temperature\":0,\"stop\":\"upon\","
                                                "\"echo\":true}", 200);
    const char *text = text_at(v, "choices.0.text");
    assert_memory_equal(text, prompt, sizeof prompt - 1);
    assert_string_equal(text + sizeof prompt - 1, text_at(plain, "choices.0.text"));
    struct reply r = rig_request(&g, "POST", "/v1/completions", "",
                                 "{\"prompt\":\"Once upon a time\",\"max_tokens\":5,\"temperature\":0,\"echo\":true,\"stream\":true}");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "\"text\":\"Once upon a time\""));
    reply_free(&r);
    json_decref(v);
    json_decref(plain);
    v = rig_post(&g, "/beta/completions", "{\"prompt\":\"ab\",\"suffix\":\"cd\",\"max_tokens\":1}", 200);
    json_t *same = rig_post(&g, "/tokenize", "{\"prompt\":\"<｜fim▁begin｜>ab<｜fim▁hole｜>cd<｜fim▁end｜>\"}", 200);
    assert_int_equal(json_integer_value(at(v, "usage.prompt_tokens")), json_integer_value(at(same, "count")));
    json_decref(same);
    json_decref(v);
}

/* The same long prompt again is not read again. */
static void test_cached_tokens(void **state)
{
    (void)state;
    char body[4096] = "{\"max_tokens\":4,\"temperature\":0,\"prompt\":[0";
    for (int i = 0; i < 300; i++)
        (void)snprintf(body + strlen(body), sizeof body - strlen(body), ",%d", 400 + i * 3);
    (void)strncat(body, "]}", 3);
    json_t *first = rig_post(&g, "/v1/completions", body, 200), *second = rig_post(&g, "/v1/completions", body, 200);
    assert_int_equal(json_integer_value(at(first, "usage.prompt_tokens_details.cached_tokens")), 0);
    assert_int_equal(json_integer_value(at(second, "usage.prompt_tokens_details.cached_tokens")), 256);
    assert_true(json_equal(at(first, "choices"), at(second, "choices")));
    json_decref(first);
    json_decref(second);
    /* Salts that differ share nothing, wherever they differ; the same one does. */
    static const char *const salts[] = {"a\\u0000b", "a\\u0000c", "a", "", "a\\u0000c"};
    const size_t             n = strlen(body);
    for (size_t i = 0; i < sizeof salts / sizeof salts[0]; i++) {
        (void)snprintf(body + n - 1, sizeof body - n, ",\"cache_salt\":\"%s\"}", salts[i]);
        json_t *v = rig_post(&g, "/v1/completions", body, 200);
        assert_int_equal(json_integer_value(at(v, "usage.prompt_tokens_details.cached_tokens")), i == 4 ? 256 : 0);
        json_decref(v);
    }
}

/* ---- Bad manners ---- */

static void test_manners(void **state)
{
    (void)state;
    struct reply r;
    const char *body = "{" PLAIN "}";
    char head[512];
    /* Two requests in one piece: two replies, in order. */
    int fd = rig_connect(&g);
    (void)snprintf(head, sizeof head, "GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    rig_send(fd, head, strlen(head));
    assert_true(rig_read(fd, &r) && r.status == 200 && strstr(r.body, "version"));
    reply_free(&r);
    assert_true(rig_read(fd, &r) && r.status == 200 && strstr(r.body, "ok"));
    reply_free(&r);
    /* The same connection, a chunked body in small pieces, 100-continue. */
    (void)snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
    rig_send(fd, head, strlen(head));
    for (const char *c = body; *c; c++) {
        (void)snprintf(head, sizeof head, "1\r\n%c\r\n", *c);
        rig_send(fd, head, strlen(head));
        if ((c - body) % 40 == 0)
            rig_nap(20);
    }
    rig_send(fd, "0\r\n\r\n", 5);
    assert_true(rig_read(fd, &r) && r.status == 200 && strstr(r.body, ANSWER));
    reply_free(&r);
    (void)close(fd);
    /* Half a request, then silence; a header without end; a body far too large, told before it is sent. */
    int half = rig_connect(&g), endless = rig_connect(&g);
    rig_send(half, "POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", 60);
    rig_send(endless, "GET /health HTTP/1.1\r\nX: ", 25);
    char *junk = malloc(10 << 20);
    assert_non_null(junk);
    memset(junk, 'x', 10 << 20);
    rig_send(endless, junk, 10 << 20);
    free(junk);
    fd = rig_connect(&g);
    (void)snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n");
    rig_send(fd, head, strlen(head));
    assert_true(rig_read(fd, &r) && r.status == 413 && strstr(r.body, "request_too_large"));
    reply_free(&r);
    (void)close(fd);
    rig_check_alive(&g);
    (void)close(half);
    (void)close(endless);
}

/* A client that leaves is noticed while its answer is made, streamed or not. */
/* Wait until the one request there is has been admitted: how long that takes is the machine's affair. */
static void wait_running(const struct rig *server)
{
    for (int k = 0; k < 600 && rig_metric(server, "vllm:num_requests_running") < 1; k++)
        rig_nap(50);
    assert_true(rig_metric(server, "vllm:num_requests_running") >= 1);
}

static void test_disconnect(void **state)
{
    (void)state;
    static const char *const ends[] = {"", ",\"stream\":true"};
    char head[1024], body[512];
    for (size_t i = 0; i < 2; i++) {
        const double before = rig_metric(&g, "vllm:request_success_total{model_name=\"tiny-v4\",engine=\"0\",finished_reason=\"abort\"}");
        (void)snprintf(body, sizeof body, "{" PLAIN ",\"ignore_eos\":true,\"max_tokens\":900%s}", ends[i]);
        (void)snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
        int fd = rig_connect(&g);
        rig_send(fd, head, strlen(head));
        wait_running(&g);
        (void)close(fd);
        double after = before;
        for (int k = 0; k < 600 && after == before; k++) {
            rig_nap(50);
            after = rig_metric(&g, "vllm:request_success_total{model_name=\"tiny-v4\",engine=\"0\",finished_reason=\"abort\"}");
        }
        assert_true(after == before + 1);
        rig_wait_metric(&g, "vllm:num_requests_running", 0, 0); /* counted a moment later */
    }
    rig_check_alive(&g);
}

/* ---- Settings ---- */

static void test_keys(void **state)
{
    (void)state;
    const char *arguments[] = {"--any-model", "--default-effort", "none", "--reasoning-field", "both", "--api-key", "sesame", "--cors", "http://a.example", "--max-body-mb", "1", "--ctx", "256", "--log-level", "quiet", NULL};
    struct rig own = rig_start(g_program, arguments);
    struct reply r = rig_request(&own, "GET", "/v1/models", "", NULL);
    assert_int_equal(r.status, 401);
    assert_non_null(strstr(r.headers, "WWW-Authenticate: Bearer"));
    assert_non_null(strstr(r.body, "invalid_api_key"));
    reply_free(&r);
    static const struct {
        const char *header;
        int         status;
    } cases[] = {{"Authorization: Bearer sesame\r\n", 200}, {"x-api-key: sesame\r\n", 200}, {"Authorization: Bearer sesam\r\n", 401},
                 {"Authorization: Bearer \r\n", 401}, {"Authorization: sesame\r\n", 401}, {"Authorization: Bearer sesamesesame\r\n", 401}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r = rig_request(&own, "GET", "/v1/models", cases[i].header, NULL);
        assert_int_equal(r.status, cases[i].status);
        assert_non_null(strstr(r.headers, "Access-Control-Allow-Origin: http://a.example"));
        reply_free(&r);
    }
    /* Any model, no thinking unless it is asked for, and both names for it then. */
    static const char *const thinks[] = {"", ",\"reasoning_effort\":\"low\""};
    for (int i = 0; i < 2; i++) {
        char body[512];
        (void)snprintf(body, sizeof body, "{" QUESTION ",\"model\":\"gpt-4\",\"max_tokens\":40%s}", thinks[i]);
        r = rig_request(&own, "POST", CHAT, "x-api-key: sesame\r\n", body);
        assert_int_equal(r.status, 200);
        json_t *v = json_loads(r.body, 0, NULL);
        assert_string_equal(text_at(v, "model"), "gpt-4");
        assert_int_equal(at(v, "choices.0.message.reasoning") != NULL, i);
        assert_string_equal(text_at(v, "choices.0.message.reasoning"), text_at(v, "choices.0.message.reasoning_content"));
        json_decref(v);
        reply_free(&r);
    }
    r = rig_request(&own, "OPTIONS", "/v1/models", "Access-Control-Request-Headers: x-a\r\n", NULL);
    assert_int_equal(r.status, 204);
    reply_free(&r);
    assert_int_equal(rig_stop(&own), 0);
}

/* Told to end, the server lets a running answer end and takes no other. */
static void test_drain(void **state)
{
    (void)state;
    const char *arguments[] = {"--ctx", "1024", "--log-level", "quiet", NULL};
    struct rig own = rig_start(g_program, arguments);
    const char *body = "{" PLAIN ",\"ignore_eos\":true,\"max_tokens\":300}";
    char head[1024];
    struct reply r;
    int fd = rig_connect(&own);
    (void)snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    rig_send(fd, head, strlen(head));
    wait_running(&own);
    const int code = rig_stop(&own);
    assert_true(rig_read(fd, &r));
    assert_int_equal(r.status, 200);
    json_t *v = json_loads(r.body, 0, NULL);
    assert_int_equal(json_integer_value(at(v, "usage.completion_tokens")), 300);
    json_decref(v);
    reply_free(&r);
    (void)close(fd);
    assert_int_equal(code, 0);
}

static int start(void **state)
{
    (void)state;
    const char *arguments[] = {"--ctx", "1024", "--log-level", "quiet", "--served-name", "tiny-v4", "--cache-memory", "0.05", NULL};
    g = rig_start(g_program, arguments);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return rig_stop(&g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer), cmocka_unit_test(test_stream_equals_whole), cmocka_unit_test(test_tools),
        cmocka_unit_test(test_replay), cmocka_unit_test(test_thinking_switches), cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_choices), cmocka_unit_test(test_seed_spellings), cmocka_unit_test(test_completions_and_tokens),
        cmocka_unit_test(test_cached_tokens), cmocka_unit_test(test_echo_and_suffix), cmocka_unit_test(test_manners), cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_keys), cmocka_unit_test(test_drain),
    };
    if (argc < 2)
        return 2;
    g_program = argv[1];
    return cmocka_run_group_tests(tests, start, stop);
}
