/* When a part of the pass is recorded, replayed or run, with a recorder that only remembers keys; and that a key tells
 * apart whatever the arguments depend on. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "model/record.h"

/* Takes the place of a device's: keeps one key, and counts. */
static struct {
    struct nib_record_key kept;
    bool                  have, refuse, recording;
    int                   n_replays, n_begins, n_ends, n_failed, n_runs;
    enum nib_status       work;
} g;

static enum nib_status fake_replay(struct nib_stream *s, const struct nib_record_key *key, bool *found)
{
    (void)s;
    *found = g.have && g.kept.n == key->n && memcmp(g.kept.word, key->word, (size_t)key->n * sizeof key->word[0]) == 0;
    g.n_replays += *found;
    return NIB_OK;
}

static bool fake_begin(struct nib_stream *s, const struct nib_record_key *key)
{
    (void)s, (void)key;
    g.n_begins++;
    g.recording = !g.refuse;
    return g.recording;
}

static enum nib_status fake_end(struct nib_stream *s, const struct nib_record_key *key, bool ok)
{
    (void)s;
    assert_true(g.recording);
    g.recording = false;
    g.n_ends++;
    g.n_failed += !ok;
    g.have = ok;
    g.kept = *key;
    return NIB_OK;
}

static const struct nib_recorder    k_recorder = {fake_replay, fake_begin, fake_end};
static const struct nib_ops         k_ops, k_wrapped;
static const struct nib_backend_api k_api = {.name = "fake", .ops = &k_ops, .recorder = &k_recorder};

static enum nib_status work(struct nib_rank *rk, const void *args)
{
    (void)rk;
    assert_string_equal(args, "args");
    g.n_runs++;
    return g.work;
}

static enum nib_status run(const struct nib_ops *ops, const struct nib_record_key *key, int32_t n_rows)
{
    struct nib_rank rk = {.api = &k_api, .ops = ops};
    return nib_record_run(&rk, key, n_rows, work, "args");
}

static struct nib_record_key key_of(int32_t number)
{
    struct nib_record_key key;
    nib_record_key_init(&key, NIB_RECORD_TRUNK);
    nib_record_key_add(&key, (uint64_t)(uint32_t)number);
    return key;
}

static void test_recorded_then_replayed(void **state)
{
    (void)state;
    memset(&g, 0, sizeof g);
    const struct nib_record_key a = key_of(1), b = key_of(2);
    assert_int_equal(run(&k_ops, &a, 1), NIB_OK);
    assert_int_equal(g.n_runs, 1);
    assert_int_equal(g.n_ends, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(run(&k_ops, &a, 1), NIB_OK);
    assert_int_equal(g.n_replays, 3);
    assert_int_equal(g.n_runs, 1);
    assert_int_equal(run(&k_ops, &b, 1), NIB_OK);
    assert_int_equal(g.n_runs, 2);
}

static void test_left_alone(void **state)
{
    (void)state;
    memset(&g, 0, sizeof g);
    const struct nib_record_key a = key_of(1);
    assert_int_equal(run(&k_wrapped, &a, 1), NIB_OK); /* someone watches the ops */
    assert_int_equal(run(&k_ops, &a, 4096), NIB_OK);  /* a prompt */
    assert_int_equal(g.n_begins, 0);
    g.refuse = true;
    assert_int_equal(run(&k_ops, &a, 1), NIB_OK);
    assert_int_equal(g.n_begins, 1);
    assert_int_equal(g.n_ends, 0);
    assert_int_equal(g.n_runs, 3);
}

static void test_failed_op(void **state)
{
    (void)state;
    memset(&g, 0, sizeof g);
    const struct nib_record_key a = key_of(1);
    g.work = NIB_E_MEMORY;
    assert_int_equal(run(&k_ops, &a, 1), NIB_E_MEMORY);
    assert_int_equal(g.n_failed, 1);
    assert_false(g.recording);
    g.work = NIB_OK;
    assert_int_equal(run(&k_ops, &a, 1), NIB_OK);
    assert_int_equal(g.n_runs, 2);
}

static void expect_another(const struct nib_rows *a, const struct nib_rows *b)
{
    struct nib_record_key ka, kb;
    nib_record_key_init(&ka, NIB_RECORD_TRUNK);
    nib_record_key_init(&kb, NIB_RECORD_TRUNK);
    nib_record_key_add_rows(&ka, a);
    nib_record_key_add_rows(&kb, b);
    assert_int_equal(ka.n, kb.n);
    assert_memory_not_equal(ka.word, kb.word, (size_t)ka.n * sizeof ka.word[0]);
}

static void test_rows_are_told_apart(void **state)
{
    (void)state;
    const int32_t         memory[8] = {0};
    const struct nib_rows rows = {.n_rows = 2, .n_seqs = 1, .token = memory, .pos = memory, .seq = memory, .seq_start = memory,
                                  .slot = memory, .window_page = memory, .entry_page = memory, .page_stride = 4};
    struct nib_rows       other[11];
    for (int i = 0; i < 11; i++)
        other[i] = rows;
    other[0].n_rows = 3;
    other[1].n_seqs = 2;
    other[2].token++;
    other[3].pos++;
    other[4].seq++;
    other[5].seq_start++;
    other[6].slot++;
    other[7].window_page++;
    other[8].entry_page++;
    other[9].page_stride++;
    other[10].first_pos++;
    for (int i = 0; i < 11; i++)
        expect_another(&rows, &other[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_then_replayed),
        cmocka_unit_test(test_left_alone),
        cmocka_unit_test(test_failed_op),
        cmocka_unit_test(test_rows_are_told_apart),
    };
    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
