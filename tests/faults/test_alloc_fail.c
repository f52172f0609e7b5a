/* Every path that opens something, with every allocation failing in turn:
 *
 *   test_alloc_fail        long runs of allocations are thinned, evenly
 *   test_alloc_fail all    none is */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "faults/alloc_fail.h"
#include "support/model_support.h"

static long g_n_runs = 240;

static void check(const char *name, enum nib_status (*run)(void *, struct nib_error *), void *user)
{
    if (!alloc_fail_works()) {
        print_message("skip: failing allocations need glibc\n");
        skip();
    }
    alloc_fail_check(&(struct alloc_fail_case){.name = name, .run = run, .user = user}, g_n_runs);
}

static enum nib_status open_checkpoint(void *dir, struct nib_error *err)
{
    struct nib_checkpoint *c = NULL;
    const enum nib_status status = nib_checkpoint_open(dir, &c, err);
    assert_int_equal(c != NULL, status == NIB_OK);
    if (c)
        assert_true(nib_checkpoint_n_tensors(c) > 900);
    nib_checkpoint_close(c);
    return status;
}

static enum nib_status open_model(void *dir, struct nib_error *err)
{
    struct nib_model *m = NULL;
    const enum nib_status status = nib_model_open(dir, &m, err);
    assert_int_equal(m != NULL, status == NIB_OK);
    if (m)
        assert_true(nib_model_get_info(m)->has_mtp && nib_model_get_info(m)->n_params > 14000000);
    nib_model_close(m);
    return status;
}

static enum nib_status open_tokenizer(void *dir, struct nib_error *err)
{
    struct nib_tokenizer *t = NULL;
    const enum nib_status status = nib_tokenizer_open(dir, &t, err);
    assert_int_equal(t != NULL, status == NIB_OK);
    if (t)
        assert_int_equal(nib_tokenizer_n_ids(t), 2048);
    nib_tokenizer_close(t);
    return status;
}

static enum nib_status encode_text(void *tokenizer, struct nib_error *err)
{
    static const char text[] = "The quick brown fox jumps over 12345 lazy dogs.\r\n\xe4\xbd\xa0\xe5\xa5\xbd <think>done</think>";
    struct nib_ids ids = {0};
    struct nib_text back = {0};
    enum nib_status status = nib_tokenizer_encode(tokenizer, text, sizeof text - 1, NULL, 0, &ids, err);
    if (status == NIB_OK)
        status = nib_tokenizer_decode(tokenizer, ids.id, ids.n, false, &back, err);
    if (status == NIB_OK)
        assert_string_equal(back.data, text);
    nib_ids_free(&ids);
    nib_text_free(&back);
    return status;
}

static enum nib_status encode_chat(void *state, struct nib_error *err)
{
    static const char messages[] =
        "[{\"role\":\"system\",\"content\":\"Be short.\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Weather?\"}]},"
        "{\"role\":\"assistant\",\"reasoning_content\":\"Ask.\",\"content\":\"\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\","
        "\"function\":{\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\": \\\"Paris\\\", \\\"n\\\": [1, 2.5, null]}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"sunny\"},{\"role\":\"user\",\"content\":\"Thanks\"}]";
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"d\",\"parameters\":"
                                "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}]";
    struct nib_text *whole = state;
    struct nib_chat_options o;
    struct nib_prompt p = {0};
    nib_chat_options_init(&o);
    o.profile = NIB_CHAT_GA;
    o.thinking = true;
    o.effort = NIB_EFFORT_HIGH;
    const enum nib_status status = nib_chat_encode(&o, messages, tools, NULL, &p, err);
    if (status == NIB_OK && !whole->data) {
        *whole = p.text;
        p.text = (struct nib_text){0};
    } else if (status == NIB_OK) {
        assert_int_equal(p.text.n, whole->n);
        assert_memory_equal(p.text.data, whole->data, whole->n);
    } else {
        assert_null(p.text.data);
    }
    nib_prompt_free(&p);
    return status;
}

static enum nib_status parse_reply(void *state, struct nib_error *err)
{
    static const char text[] =
        "Hm.</think>Sure.\n\n<\xef\xbd\x9c" "DSML\xef\xbd\x9ctool_calls>\n<\xef\xbd\x9c" "DSML\xef\xbd\x9cinvoke name=\"f\">\n"
        "<\xef\xbd\x9c" "DSML\xef\xbd\x9cparameter name=\"a\" string=\"true\">x\"y</\xef\xbd\x9c" "DSML\xef\xbd\x9cparameter>\n"
        "<\xef\xbd\x9c" "DSML\xef\xbd\x9cparameter name=\"b\" string=\"false\">[1, {\"c\": 2}]</\xef\xbd\x9c" "DSML\xef\xbd\x9cparameter>\n"
        "</\xef\xbd\x9c" "DSML\xef\xbd\x9cinvoke>\n</\xef\xbd\x9c" "DSML\xef\xbd\x9ctool_calls>";
    struct nib_chat_parser_options o;
    struct nib_reply reply = {0};
    (void)state;
    nib_chat_parser_options_init(&o);
    o.thinking = true;
    o.tools = true;
    const enum nib_status status = nib_chat_parse(&o, text, sizeof text - 1, NIB_CHAT_END_STOP, &reply, err);
    if (status == NIB_OK) {
        assert_int_equal(reply.n_calls, 1);
        assert_string_equal(reply.call[0].name.data, "f");
        assert_string_equal(reply.content.data, "Sure.");
    }
    nib_reply_free(&reply);
    return status;
}

struct engine_case {
    struct nib_model  *model;
    struct nib_options options;
    struct nib_engine *engine;
    struct nib_seq    *seq;
};

static enum nib_status open_engine(void *user, struct nib_error *err)
{
    struct engine_case *c = user;
    struct nib_engine *e = NULL;
    const enum nib_status status = nib_engine_open(c->model, &c->options, &e, err);
    assert_int_equal(e != NULL, status == NIB_OK);
    nib_engine_close(e);
    return status;
}

static enum nib_status open_seq(void *user, struct nib_error *err)
{
    struct engine_case *c = user;
    struct nib_seq *s = NULL;
    const enum nib_status status = nib_seq_open(c->engine, &s, err);
    assert_int_equal(s != NULL, status == NIB_OK);
    if (s)
        assert_int_equal(nib_seq_length(s), 0);
    nib_seq_close(s);
    return status;
}

/* A fork, and one more token on it, so that pages are copied. */
static enum nib_status fork_seq(void *user, struct nib_error *err)
{
    struct engine_case *c = user;
    struct nib_seq *s = NULL;
    const int32_t token = 7, start[2] = {0, 1};
    enum nib_status status = nib_seq_fork(c->seq, &s, err);
    assert_int_equal(s != NULL, status == NIB_OK);
    if (s) {
        assert_int_equal(nib_seq_length(s), 5);
        const struct nib_batch b = {.n_rows = 1, .n_seqs = 1, .token = &token, .seq_start = start, .seq = &s};
        status = nib_step(c->engine, &b, NULL, NULL, err);
        assert_int_equal(nib_seq_length(s), status == NIB_OK ? 6 : 5);
    }
    nib_seq_close(s);
    assert_int_equal(nib_seq_length(c->seq), 5);
    return status;
}

static void checkpoints(void **state)
{
    (void)state;
    check("nib_checkpoint_open, index", open_checkpoint, (void *)(uintptr_t)MODEL_OFFICIAL);
    check("nib_checkpoint_open, one file", open_checkpoint, (void *)(uintptr_t)MODEL_NVFP4);
}

static void models(void **state)
{
    (void)state;
    check("nib_model_open", open_model, (void *)(uintptr_t)MODEL_OFFICIAL);
}

static void texts(void **state)
{
    struct nib_tokenizer *t = NULL;
    struct nib_text whole = {0};
    (void)state;
    check("nib_tokenizer_open", open_tokenizer, (void *)(uintptr_t)MODEL_NVFP4);
    assert_int_equal(nib_tokenizer_open(MODEL_NVFP4, &t, NULL), NIB_OK);
    check("nib_tokenizer_encode and decode", encode_text, t);
    nib_tokenizer_close(t);
    check("nib_chat_encode", encode_chat, &whole);
    nib_text_free(&whole);
    check("nib_chat_parse", parse_reply, NULL);
}

static void engines(void **state)
{
    struct engine_case c = {0};
    struct nib_error err = {0};
    const int32_t token[5] = {0, 5, 6, 7, 8}, start[2] = {0, 5};
    assert_int_equal(nib_model_open(MODEL_OFFICIAL, &c.model, &err), NIB_OK);
    nib_options_init(&c.options);
    c.options.backend = *state;
    c.options.n_threads = 1; /* so that the order of allocations is the same each time */
    c.options.n_ctx = 256;
    c.options.n_seqs_max = 3;
    c.options.n_rows_max = 8;
    c.options.mtp = true;
    check("nib_engine_open", open_engine, &c);
    assert_int_equal(nib_engine_open(c.model, &c.options, &c.engine, &err), NIB_OK);
    assert_int_equal(nib_seq_open(c.engine, &c.seq, &err), NIB_OK);
    const struct nib_batch b = {.n_rows = 5, .n_seqs = 1, .token = token, .seq_start = start, .seq = &c.seq};
    assert_int_equal(nib_step(c.engine, &b, NULL, NULL, &err), NIB_OK);
    check("nib_seq_open", open_seq, &c);
    check("nib_seq_fork and nib_step", fork_seq, &c);
    nib_seq_close(c.seq);
    nib_engine_close(c.engine);
    nib_model_close(c.model);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "all") == 0)
        g_n_runs = 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(models),
        cmocka_unit_test(texts),
        cmocka_unit_test_prestate(engines, (void *)(uintptr_t)"cpu"),
        cmocka_unit_test_prestate(engines, (void *)(uintptr_t)"ref"),
    };
    return cmocka_run_group_tests_name("alloc_fail", tests, NULL, NULL);
}
