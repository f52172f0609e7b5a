/* Which prompt rules a checkpoint folder wants, from folders made for the purpose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nibble.h"

static const char *const names[] = {"encoding/encoding_dsv4.py", "encoding/encoding.py", "config.json",
                                    "tokenizer.json"};

struct folder_case {
    const char           *text[4]; /* of the files above; NULL: absent */
    enum nib_status       status;
    enum nib_chat_profile profile;
    bool                  guessed;
};

#define GA_PY      "import re\nDEFAULT_REASONING_EFFORT = 'low'\n"
#define PREVIEW_PY "# not DEFAULT_REASONING_EFFORT = 1\nREASONING_EFFORT_MAX: str = (\n    'x'\n)\n"

static const struct folder_case cases[] = {
    {{GA_PY}, NIB_OK, NIB_CHAT_GA, false},
    {{PREVIEW_PY}, NIB_OK, NIB_CHAT_PREVIEW, false},
    {{"REASONING_EFFORT_MAX = 1\nDEFAULT_REASONING_EFFORT: str=2\n"}, NIB_OK, NIB_CHAT_GA, false},
    {{"REASONING_EFFORT_MAXIMUM = 1\nx = REASONING_EFFORT_MAX\n"}, NIB_E_UNSUPPORTED, NIB_CHAT_AUTO, false},
    {{""}, NIB_E_UNSUPPORTED, NIB_CHAT_AUTO, false},
    /* the encoder file outranks the configuration */
    {{PREVIEW_PY, NULL, "{\"dspark_layers\": 1}"}, NIB_OK, NIB_CHAT_PREVIEW, false},
    {{NULL, NULL, "{\"a\": 1, \"dspark_layers\": 1}"}, NIB_OK, NIB_CHAT_GA, false},
    {{NULL, NULL, "{\"a\": \"dspark_layers\"}"}, NIB_OK, NIB_CHAT_GA, true},
    {{NULL, NULL, "{"}, NIB_E_FORMAT, NIB_CHAT_AUTO, false},
    {{NULL}, NIB_OK, NIB_CHAT_GA, true},
    /* V4.1 */
    {{NULL, "x = 1\n"}, NIB_E_UNSUPPORTED, NIB_CHAT_AUTO, false},
    {{GA_PY, NULL, NULL, "{\"added_tokens\": [{\"id\": 5, \"content\": \"<｜System｜>\"}]}"}, NIB_E_UNSUPPORTED,
     NIB_CHAT_AUTO, false},
    {{GA_PY, NULL, NULL, "{\"added_tokens\": [{\"id\": 5, \"content\": \"<\\uff5cSystem\\uff5c>\"}]}"},
     NIB_E_UNSUPPORTED, NIB_CHAT_AUTO, false},
    {{GA_PY, NULL, NULL, "{\"added_tokens\": [{\"id\": 5, \"content\": \"<｜User｜>\"}]}"}, NIB_OK, NIB_CHAT_GA, false},
};

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void detects_profiles(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct folder_case *c = &cases[i];
        char dir[] = "/tmp/nibble-profile-XXXXXX", path[256];
        assert_non_null(mkdtemp(dir));
        (void)snprintf(path, sizeof path, "%s/encoding", dir);
        assert_int_equal(mkdir(path, 0700), 0);
        for (size_t k = 0; k < 4; k++)
            if (c->text[k])
                write_file(dir, names[k], c->text[k]);
        enum nib_chat_profile profile = NIB_CHAT_AUTO;
        bool guessed = false;
        struct nib_error err = {0};
        enum nib_status status = nib_chat_profile_detect(dir, &profile, &guessed, &err);
        if (status != c->status)
            fail_msg("case %zu: %s %s", i, nib_status_name(status), err.text);
        if (status == NIB_OK) {
            assert_int_equal(profile, c->profile);
            assert_int_equal(guessed, c->guessed);
        } else if (status == NIB_E_UNSUPPORTED) {
            assert_non_null(strstr(err.text, "unsupported prompt format"));
        }
        for (size_t k = 0; k < 4; k++) {
            (void)snprintf(path, sizeof path, "%s/%s", dir, names[k]);
            (void)unlink(path);
        }
        (void)snprintf(path, sizeof path, "%s/encoding", dir);
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(rmdir(dir), 0);
    }
}

static void the_bundled_model_has_none(void **state)
{
    (void)state;
    enum nib_chat_profile profile = NIB_CHAT_AUTO;
    bool guessed = false;
    assert_int_equal(nib_chat_profile_detect(NIB_SOURCE_DIR "/models/tiny-v4", &profile, &guessed, NULL), NIB_OK);
    assert_int_equal(profile, NIB_CHAT_GA);
    assert_true(guessed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(detects_profiles),
        cmocka_unit_test(the_bundled_model_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
