/* Two letters of options, then messages, tools and context, separated by zero bytes. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct nib_chat_options o;
    struct nib_error err = {0};
    struct nib_prompt p = {0};
    if (n < 2)
        return 0;
    nib_chat_options_init(&o);
    o.profile = data[0] & 1 ? NIB_CHAT_GA : NIB_CHAT_PREVIEW;
    o.thinking = data[0] & 2;
    o.drop_thinking = data[0] & 4;
    o.add_bos = data[0] & 8;
    o.add_generation_prompt = data[0] & 16;
    o.effort = (enum nib_effort)(data[1] % 4);
    data += 2;
    n -= 2;
    size_t n_messages, n_tools, n_context;
    char *messages = fuzz_part(&data, &n, &n_messages), *tools = fuzz_part(&data, &n, &n_tools), *context = fuzz_part(&data, &n, &n_context);
    const enum nib_status status = nib_chat_encode(&o, messages, n_tools ? tools : NULL, n_context ? context : NULL, &p,
                                                   &err);
    if (status != NIB_OK) {
        fuzz_check_error(status, &err);
        FUZZ_CHECK(!p.text.data && !p.content);
    } else {
        size_t end = 0;
        FUZZ_CHECK(strlen(p.text.data) <= p.text.n);
        for (size_t i = 0; i < p.n_content; i++) {
            FUZZ_CHECK(p.content[i].start >= end && p.content[i].end >= p.content[i].start &&
                       p.content[i].end <= p.text.n);
            end = p.content[i].end;
        }
    }
    nib_prompt_free(&p);
    free(messages);
    free(tools);
    free(context);
    return 0;
}
