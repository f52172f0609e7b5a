/* Reading messages, and the reference encoder's steps before rendering: merge, sort, drop. */
#include "text/chat_message.h"

#include <stdlib.h>
#include <string.h>

static bool is_zero(const struct nib_tree *number)
{
    for (size_t i = 0; i < number->n; i++) {
        char c = number->as.text[i];
        if (c == 'e' || c == 'E')
            break;
        if (c >= '1' && c <= '9')
            return false;
    }
    return true;
}

bool nib_chat_is_true(const struct nib_tree *v)
{
    if (!v)
        return false;
    switch (v->type) {
    case NIB_TREE_NULL:
    case NIB_TREE_FALSE: return false;
    case NIB_TREE_TRUE: return true;
    case NIB_TREE_NUMBER: return !is_zero(v);
    case NIB_TREE_STRING:
    case NIB_TREE_ARRAY:
    case NIB_TREE_OBJECT: return v->n > 0;
    }
    return false;
}

/* The beginning of a client's text, fit for one line of an error. */
static void quote(const struct nib_tree *text, char out[68])
{
    size_t n = text->n < 60 ? text->n : 60;
    while (n < text->n && n > 0 && ((unsigned char)text->as.text[n] & 0xC0) == 0x80)
        n--; /* not in the middle of a character */
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text->as.text[i];
        out[i] = c < 0x20 || c == 0x7F ? '?' : (char)c;
    }
    memcpy(out + n, n < text->n ? "..." : "", n < text->n ? 4 : 1);
}

enum nib_status nib_chat_bad_value(const struct nib_chat_message *m, const char *key, const struct nib_tree *found,
                                   const char *wanted, struct nib_error *err)
{
    if (found && found->type == NIB_TREE_STRING) {
        char text[68];
        quote(found, text);
        return nib_error_set(err, NIB_E_ARGUMENT, "%s[%zu].%s: found \"%s\", wanted %s", m->list, m->index, key, text,
                             wanted);
    }
    return nib_error_set(err, NIB_E_ARGUMENT, "%s[%zu].%s: found %s, wanted %s", m->list, m->index, key,
                         nib_tree_type_name(found), wanted);
}

static enum nib_chat_role role_of(const struct nib_tree *v)
{
    static const struct {
        const char        *name;
        enum nib_chat_role role;
    } roles[] = {
        {"system", NIB_CHAT_SYSTEM}, {"developer", NIB_CHAT_DEVELOPER}, {"user", NIB_CHAT_USER},
        {"assistant", NIB_CHAT_ASSISTANT}, {"tool", NIB_CHAT_TOOL}, {"latest_reminder", NIB_CHAT_LATEST_REMINDER},
        {"function", NIB_CHAT_FUNCTION},
    };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (nib_tree_is_text(v, roles[i].name))
            return roles[i].role;
    return NIB_CHAT_OTHER_ROLE;
}

static void read_message(const struct nib_tree *v, struct nib_chat_message *m)
{
    m->role_text = nib_tree_get(v, "role");
    m->role = role_of(m->role_text);
    m->content = nib_tree_get(v, "content");
    m->reasoning = nib_tree_get(v, "reasoning_content");
    m->tool_calls = nib_tree_get(v, "tool_calls");
    m->call_id = nib_tree_get(v, "tool_call_id");
    m->tools = nib_tree_get(v, "tools");
    m->response_format = nib_tree_get(v, "response_format");
    m->task = nib_tree_get(v, "task");
    if (m->task && m->task->type == NIB_TREE_NULL)
        m->task = NULL;
    m->without_eos = nib_chat_is_true(nib_tree_get(v, "wo_eos"));
    m->prefix = nib_chat_is_true(nib_tree_get(v, "prefix"));
    m->reasoning_alias = nib_tree_get(v, "reasoning");
}

enum nib_status nib_chat_read(const struct nib_tree *array, const char *list, struct nib_arena *arena,
                              struct nib_chat_list *out, struct nib_error *err)
{
    if (array->type != NIB_TREE_ARRAY)
        return nib_error_set(err, NIB_E_ARGUMENT, "%s: found %s, wanted an array of messages", list,
                             nib_tree_type_name(array));
    struct nib_chat_message *all = nib_arena_array(arena, array->n + 1, sizeof *all);
    if (!all)
        return NIB_E_MEMORY;
    *out = (struct nib_chat_list){.message = all + 1, .n = array->n};
    for (size_t i = 0; i < array->n; i++) {
        if (array->as.item[i].type != NIB_TREE_OBJECT)
            return nib_error_set(err, NIB_E_ARGUMENT, "%s[%zu]: found %s, wanted a message object", list, i,
                                 nib_tree_type_name(&array->as.item[i]));
        out->message[i].list = list;
        out->message[i].index = i;
        read_message(&array->as.item[i], &out->message[i]);
    }
    return NIB_OK;
}

enum nib_status nib_chat_attach_tools(struct nib_chat_list *list, const struct nib_tree *tools, struct nib_error *err)
{
    if (tools->type == NIB_TREE_NULL)
        return NIB_OK;
    if (tools->type != NIB_TREE_ARRAY)
        return nib_error_set(err, NIB_E_ARGUMENT, "tools: found %s, wanted an array of tools",
                             nib_tree_type_name(tools));
    if (!tools->n)
        return NIB_OK;
    bool leads = list->n && (list->message->role == NIB_CHAT_SYSTEM || list->message->role == NIB_CHAT_DEVELOPER);
    if (!leads) {
        list->message--;
        list->n++;
        *list->message = (struct nib_chat_message){.role = NIB_CHAT_SYSTEM, .list = "messages"};
    }
    list->message->tools = tools;
    return NIB_OK;
}

enum nib_status nib_chat_merge(struct nib_chat_list *list, struct nib_arena *arena)
{
    /* Only the last turn built ever grows, so the blocks of all turns fit behind one another in one array. */
    struct nib_chat_block *block = nib_arena_array(arena, list->n, sizeof *block);
    if (!block)
        return NIB_E_MEMORY;
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        struct nib_chat_message m = list->message[i];
        struct nib_chat_message *last = n ? &list->message[n - 1] : NULL;
        if (m.role != NIB_CHAT_USER && m.role != NIB_CHAT_TOOL) {
            list->message[n++] = m;
            continue;
        }
        *block = (struct nib_chat_block){.is_result = m.role == NIB_CHAT_TOOL, .content = m.content,
                                         .call_id = m.call_id, .index = m.index};
        if (last && last->role == NIB_CHAT_USER && (m.role == NIB_CHAT_TOOL || !last->task)) {
            last->n_blocks++;
        } else {
            list->message[n++] = (struct nib_chat_message){
                .role = NIB_CHAT_USER, .list = m.list, .index = m.index, .block = block, .n_blocks = 1,
                .task = m.role == NIB_CHAT_USER ? m.task : NULL};
        }
        block++;
    }
    list->n = n;
    return NIB_OK;
}

enum nib_status nib_chat_join(const struct nib_chat_list *a, const struct nib_chat_list *b, struct nib_arena *arena,
                              struct nib_chat_list *out)
{
    out->n = a->n + b->n;
    out->message = nib_arena_array(arena, out->n, sizeof *out->message);
    if (!out->message)
        return NIB_E_MEMORY;
    if (a->n)
        memcpy(out->message, a->message, a->n * sizeof *out->message);
    if (b->n)
        memcpy(out->message + a->n, b->message, b->n * sizeof *out->message);
    return NIB_OK;
}

/* A call's id and its place in the message; or a result, its call's place, and its own place in the turn. */
struct ranked {
    const struct nib_tree *id;
    struct nib_chat_block  block;
    size_t                 rank, place;
};

static int compare_ids(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->id->n != y->id->n)
        return x->id->n < y->id->n ? -1 : 1;
    return memcmp(x->id->as.text, y->id->as.text, x->id->n);
}

static int compare_calls(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    int c = compare_ids(a, b);
    return c ? c : (x->rank > y->rank) - (x->rank < y->rank);
}

static int compare_results(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

static bool is_id(const struct nib_tree *v)
{
    return v && v->type == NIB_TREE_STRING && v->n > 0;
}

/* The calls of an assistant message that have an id, sorted by it; of two with the same id the later one. */
static enum nib_status rank_calls(const struct nib_tree *calls, struct nib_arena *arena, struct ranked **out,
                                  size_t *n_out)
{
    struct ranked *call = nib_arena_array(arena, calls->n, sizeof *call);
    size_t n = 0, kept = 0;
    if (!call)
        return NIB_E_MEMORY;
    for (size_t i = 0; i < calls->n; i++) {
        const struct nib_tree *id = nib_tree_get(&calls->as.item[i], "id");
        if (!nib_chat_is_true(id))
            id = nib_tree_get(nib_tree_get(&calls->as.item[i], "function"), "id");
        if (is_id(id))
            call[n++] = (struct ranked){.id = id, .rank = i};
    }
    if (n)
        qsort(call, n, sizeof *call, compare_calls);
    for (size_t i = 0; i < n; i++)
        if (i + 1 == n || compare_ids(&call[i], &call[i + 1]))
            call[kept++] = call[i];
    *out = call;
    *n_out = kept;
    return NIB_OK;
}

static enum nib_status sort_turn(struct nib_chat_message *m, const struct ranked *call, size_t n_calls,
                                 struct nib_arena *arena)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n_blocks; i++)
        n += m->block[i].is_result;
    if (n < 2 || !n_calls)
        return NIB_OK;
    struct ranked *result = nib_arena_array(arena, n, sizeof *result);
    if (!result)
        return NIB_E_MEMORY;
    n = 0;
    for (size_t i = 0; i < m->n_blocks; i++) {
        if (!m->block[i].is_result)
            continue;
        struct ranked *r = &result[n];
        *r = (struct ranked){.id = m->block[i].call_id, .block = m->block[i], .place = n};
        const struct ranked *found = is_id(r->id) ? bsearch(r, call, n_calls, sizeof *call, compare_ids) : NULL;
        r->rank = found ? found->rank : 0; /* results of unknown calls come first, as in the reference */
        n++;
    }
    qsort(result, n, sizeof *result, compare_results);
    n = 0;
    for (size_t i = 0; i < m->n_blocks; i++)
        if (m->block[i].is_result)
            m->block[i] = result[n++].block;
    return NIB_OK;
}

enum nib_status nib_chat_sort_results(struct nib_chat_list *list, struct nib_arena *arena)
{
    struct ranked *call = NULL;
    size_t n_calls = 0;
    for (size_t i = 0; i < list->n; i++) {
        struct nib_chat_message *m = &list->message[i];
        if (m->role == NIB_CHAT_ASSISTANT && m->tool_calls && m->tool_calls->type == NIB_TREE_ARRAY && m->tool_calls->n)
            NIB_TRY(rank_calls(m->tool_calls, arena, &call, &n_calls));
        else if (m->role == NIB_CHAT_USER)
            NIB_TRY(sort_turn(m, call, n_calls, arena));
    }
    return NIB_OK;
}

ptrdiff_t nib_chat_last_user(const struct nib_chat_list *list)
{
    ptrdiff_t i = (ptrdiff_t)list->n - 1;
    while (i >= 0 && list->message[i].role != NIB_CHAT_USER && list->message[i].role != NIB_CHAT_DEVELOPER)
        i--;
    return i;
}

/* Reasoning before the last user message needs no stripping here: rendering leaves it out by its place. */
void nib_chat_drop(struct nib_chat_list *list)
{
    ptrdiff_t last_user = nib_chat_last_user(list);
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        enum nib_chat_role role = list->message[i].role;
        bool kept = role != NIB_CHAT_DEVELOPER && role != NIB_CHAT_FUNCTION && role != NIB_CHAT_OTHER_ROLE;
        if (kept || (ptrdiff_t)i >= last_user)
            list->message[n++] = list->message[i];
    }
    list->n = n;
}
