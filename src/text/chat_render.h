/* From an ordered conversation to the prompt text. */
#ifndef NIB_CHAT_RENDER_H
#define NIB_CHAT_RENDER_H

#include "text/chat_message.h"

/* Append messages [first, n) of the list, which is merged, sorted and, if `drop` and thinking, dropped. `drop` is what
 * holds after tools were looked for. Errors name the message; NIB_E_MEMORY may come without text. */
enum nib_status nib_chat_render(const struct nib_chat_list *list, size_t first, bool drop,
                                const struct nib_chat_options *o, struct nib_arena *arena, struct nib_prompt *out,
                                struct nib_error *err);

/* Append fixed text. */
enum nib_status nib_chat_put(struct nib_prompt *out, const char *text);

#endif
