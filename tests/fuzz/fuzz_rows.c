/* What a user hands to the program: behind a letter a file of ids ('i'), a list of them ('l'), text ('u'), rows to be
 * scored ('s'), or a calibration text. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "programs/cli.h"
#include "programs/input.h"
#include "programs/score_rows.h"
#include "quantize/calibration_text.h"

#define MODEL NIB_SOURCE_DIR "/models/tiny-v4"

/* The program's messages, formatted but not printed. */
static char g_message[4096];

static int message(int code, const char *fmt, va_list ap)
{
    FUZZ_CHECK(vsnprintf(g_message, sizeof g_message, fmt, ap) > 0);
    return code;
}

int cli_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int code = message(CLI_FAILED, fmt, ap);
    va_end(ap);
    return code;
}

int cli_fail_memory(void)
{
    return cli_fail("no memory");
}

int session_fail(enum nib_status status, const struct nib_error *err)
{
    fuzz_check_error(status, err);
    return cli_fail("%s", err->text);
}

int session_open_tokenizer(struct session *s)
{
    return nib_tokenizer_open(MODEL, &s->tokenizer, NULL) == NIB_OK ? CLI_OK : CLI_FAILED;
}

static void read_ids(const char *list_or_path)
{
    int32_t *ids = NULL, n_ids = 0;
    if (strcmp(list_or_path, "-") == 0)
        return; /* standard input */
    if (input_ids("--ids", list_or_path, 2048, &ids, &n_ids) != CLI_OK) {
        FUZZ_CHECK(ids == NULL && g_message[0] != '\0');
        return;
    }
    FUZZ_CHECK(n_ids > 0);
    for (int32_t i = 0; i < n_ids; i++)
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < 2048);
    free(ids);
}

static void read_score_rows(const uint8_t *data, size_t n)
{
    static const struct nib_model_info info = {.vocab = 2048};
    static struct session s = {.info = &info};
    struct score_rows rows;
    const int code = score_rows_load(&rows, fuzz_file(data, n), &s, 0, 2);
    FUZZ_CHECK((code == CLI_OK) == (g_message[0] == '\0'));
    for (size_t i = 0; code == CLI_OK && i < rows.n; i++)
        FUZZ_CHECK(rows.row[i].n_prompt > 0 && rows.row[i].category < rows.n_categories);
    score_rows_deinit(&rows);
}

static void read_calibration(const uint8_t *data, size_t n)
{
    static const struct nib_config config = {.vocab = 2048, .n_ctx_max = 4096};
    struct nib_quant_text text;
    struct nib_error err = {0};
    const enum nib_status status = nib_quant_text_read(fuzz_file(data, n), MODEL, &config, &text, &err);
    if (status != NIB_OK)
        fuzz_check_error(status, &err);
    for (int64_t i = 0; status == NIB_OK && i < text.n; i++)
        FUZZ_CHECK(text.id[i] >= 0 && text.id[i] < 2048);
    nib_quant_text_free(&text); /* the caller's also after a failure */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    g_message[0] = '\0';
    char *text = malloc(n);
    FUZZ_CHECK(text != NULL);
    memcpy(text, data + 1, n - 1);
    text[n - 1] = '\0';
    if (data[0] == 'i')
        read_ids(fuzz_file(data + 1, n - 1));
    else if (data[0] == 'l')
        read_ids(text);
    else if (data[0] == 'u')
        FUZZ_CHECK(input_utf8_valid_bytes(text, n - 1) <= n - 1);
    else if (data[0] == 's')
        read_score_rows(data + 1, n - 1);
    else
        read_calibration(data + 1, n - 1);
    free(text);
    return 0;
}
