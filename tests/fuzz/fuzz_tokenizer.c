/* tokenizer.json and, behind a zero byte, text. Ids of the text must decode to the text where it is valid UTF-8. */
#include <stdlib.h>
#include <string.h>

#include "base/text_buf.h"
#include "fuzz.h"
#include "text/utf8.h"

static int is_utf8(const char *text, size_t n)
{
    while (n > 0) {
        uint32_t c;
        const size_t length = nib_utf8_decode(text, n, &c);
        if (length == 0)
            return 0;
        text += length;
        n -= length;
    }
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct nib_tokenizer *t = NULL;
    struct nib_error err = {0};
    struct nib_ids ids = {0};
    struct nib_text text = {0};
    size_t n_json;
    char *json = fuzz_part(&data, &n, &n_json);
    enum nib_status status = nib_tokenizer_open(fuzz_file(json, n_json), &t, &err);
    free(json);
    if (status != NIB_OK) {
        fuzz_check_error(status, &err);
        FUZZ_CHECK(t == NULL);
        return 0;
    }
    const char *in = n ? (const char *)data : "";
    const struct nib_range literal = {n / 4, n / 2};
    status = nib_tokenizer_encode(t, in, n, n > 3 && in[0] == 'l' ? &literal : NULL, n > 3 && in[0] == 'l', &ids, &err);
    if (status == NIB_OK) {
        for (size_t i = 0; i < ids.n; i++)
            FUZZ_CHECK(ids.id[i] >= 0 && ids.id[i] < nib_tokenizer_n_ids(t));
        FUZZ_CHECK(nib_tokenizer_decode(t, ids.id, ids.n, false, &text, &err) == NIB_OK);
        if (is_utf8(in, n))
            FUZZ_CHECK(text.n == n && memcmp(text.data, in, n) == 0);
        nib_text_free(&text);
        FUZZ_CHECK(nib_tokenizer_decode(t, ids.id, ids.n, true, &text, &err) == NIB_OK);
    } else {
        fuzz_check_error(status, &err);
    }
    nib_text_free(&text);
    nib_ids_free(&ids);
    nib_tokenizer_close(t);
    return 0;
}
