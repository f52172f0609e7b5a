/* From PTX text to a module: variables, scopes, functions. One pass; labels and callees are put in place at the end of their scope and
 * of the module. The first fault ends parsing with its line. */
#include "ptxsim/ptx_parser.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Declarations ---- */

static enum px_type type_word(struct parser *p)
{
    struct token t = px_word(p);
    for (int k = 1; k < PX_N_TYPES; k++) {
        const char *name = px_type_name((enum px_type)k);
        if (t.n == strlen(name) + 1 && memcmp(t.s + 1, name, t.n - 1) == 0)
            return (enum px_type)k;
    }
    px_fail(p, "'%.*s' found, a type wanted", (int)t.n, t.s);
}

static void registers(struct parser *p)
{
    if (p->t.n > 2 && p->t.s[1] == 'v')
        px_fail(p, "vector registers are not supported");
    enum px_type type = type_word(p);
    uint32_t     bytes = px_type_bytes(type), width = type == PX_PRED ? 0 : bytes < 2 ? 2 : bytes;
    do {
        struct token   name = px_word(p);
        struct symbol *y = px_declare(p, name, SYM_REGISTERS);
        uint32_t       n = 1;
        if (px_accept(p, "<")) {
            n = (uint32_t)px_number(p, false);
            px_expect(p, ">");
            y->count = n;
        }
        y->width = width;
        y->slot = px_new_slot(p, width);
        y->stride = p->f->n_words - y->slot;
        for (uint32_t k = 1; k < n; k++)
            (void)px_new_slot(p, width);
    } while (px_accept(p, ","));
    px_expect(p, ";");
}

static uint32_t up(uint32_t v, uint32_t align)
{
    return (v + align - 1) / align * align;
}

struct variable { struct token name; uint32_t align, bytes, element; bool open; };

/* [.align n] .type name[count] */
static struct variable variable(struct parser *p)
{
    struct variable v = {.align = 0};
    uint32_t        lanes = 1;
    while (px_is(p, ".align") || px_is(p, ".v2") || px_is(p, ".v4") || px_is(p, ".ptr") || px_is(p, ".attribute")) {
        if (px_accept(p, ".align"))
            v.align = (uint32_t)px_number(p, false);
        else if (px_accept(p, ".v2"))
            lanes = 2;
        else if (px_accept(p, ".v4"))
            lanes = 4;
        else
            px_fail(p, "'%.*s' of variables is not supported", (int)p->t.n, p->t.s);
    }
    v.element = px_type_bytes(type_word(p));
    /* Pointers of entries may say where they point. */
    while (px_is(p, ".ptr") || px_is(p, ".global") || px_is(p, ".align") || px_is(p, ".shared") || px_is(p, ".const") || px_is(p, ".local")) {
        if (px_accept(p, ".align"))
            (void)px_number(p, false);
        else
            px_next(p);
    }
    v.name = px_word(p);
    uint64_t count = lanes;
    while (px_accept(p, "[")) {
        if (px_is(p, "]"))
            v.open = true;
        else
            count *= px_number(p, false);
        px_expect(p, "]");
    }
    if (count * v.element > 1u << 30)
        px_fail(p, "'%.*s' has %" PRIu64 " elements", (int)v.name.n, v.name.s, count);
    v.bytes = (uint32_t)(count * v.element);
    if (v.align == 0)
        v.align = v.element * lanes;
    return v;
}

static void initialise(struct parser *p, uint8_t *to, const struct variable *v)
{
    uint32_t at = 0;
    if (!px_is(p, "{")) {
        uint64_t one = px_number(p, v->element == 4);
        memcpy(to, &one, v->element);
        return;
    }
    int depth = 0;
    do {
        if (px_accept(p, "{")) {
            depth++;
        } else if (px_accept(p, "}")) {
            depth--;
            (void)px_accept(p, ",");
        } else {
            if (p->t.kind == 'w')
                px_fail(p, "addresses in initialisers are not supported");
            uint64_t x = px_number(p, v->element == 4);
            if (at + v->element > v->bytes)
                px_fail(p, "more values than '%.*s' holds", (int)v->name.n, v->name.s);
            memcpy(to + at, &x, v->element);
            at += v->element;
            (void)px_accept(p, ",");
        }
    } while (depth > 0);
}

static void memory_variable(struct parser *p, bool is_constant)
{
    struct variable   v = variable(p);
    struct px_module *m = p->m;
    m->variable = px_grow(p, m->variable, m->n_variables, &m->max_variables, sizeof *m->variable);
    struct px_variable *x = &m->variable[m->n_variables++];
    x->name = strndup(v.name.s, v.name.n);
    x->bytes = v.bytes;
    x->constant = is_constant;
    x->memory = aligned_alloc(256, up(v.bytes ? v.bytes : 1, 256));
    if (!x->memory || !x->name)
        px_fail(p, "no memory for '%.*s'", (int)v.name.n, v.name.s);
    memset(x->memory, 0, v.bytes);
    if (px_accept(p, "="))
        initialise(p, x->memory, &v);
    px_expect(p, ";");
    px_declare(p, v.name, SYM_MEMORY)->value = (uint64_t)(uintptr_t)x->memory;
}

/* A variable of a space, in a function or outside; the word for the space has been read. */
static void space_variable(struct parser *p, struct token space, bool external)
{
    if (space.n == 7 && memcmp(space.s, ".shared", 7) == 0) {
        struct variable v = variable(p);
        px_expect(p, ";");
        if (external && v.open) {
            px_declare(p, v.name, SYM_DYNAMIC)->value = v.align;
            return;
        }
        uint32_t *bytes = p->f ? &p->f->shared_bytes : &p->module_shared;
        uint32_t *align = p->f ? &p->f->shared_align : &p->module_shared_align;
        *bytes = up(*bytes, v.align);
        *align = v.align > *align ? v.align : *align;
        px_declare(p, v.name, SYM_SHARED)->value = *bytes;
        *bytes += v.bytes;
    } else if (p->f && space.n == 6 && memcmp(space.s, ".local", 6) == 0) {
        struct variable v = variable(p);
        px_expect(p, ";");
        p->f->local_bytes = up(p->f->local_bytes, v.align < 16 ? 16 : v.align);
        px_declare(p, v.name, SYM_LOCAL)->value = p->f->local_bytes;
        p->f->local_bytes += v.bytes;
    } else if (p->f && space.n == 6 && memcmp(space.s, ".param", 6) == 0) {
        struct variable v = variable(p);
        px_expect(p, ";");
        p->f->frame_bytes = up(p->f->frame_bytes, 16);
        px_declare(p, v.name, SYM_FRAME)->value = p->f->frame_bytes;
        p->f->frame_bytes += v.bytes;
    } else if (space.n == 7 && memcmp(space.s, ".global", 7) == 0) {
        memory_variable(p, false);
    } else if (space.n == 6 && memcmp(space.s, ".const", 6) == 0) {
        memory_variable(p, true);
    } else {
        px_fail(p, "'%.*s' is not supported here", (int)space.n, space.s);
    }
}

/* ---- Bodies ---- */

/* Labels of the scope that ends here take the branches to them; other branches go on to the scope around. */
static void close_scope(struct parser *p)
{
    uint32_t kept = 0;
    for (uint32_t k = 0; k < p->n_fixups; k++) {
        struct fixup f = p->fixup[k];
        uint32_t     index;
        if (f.depth == p->depth) {
            struct symbol *y = px_find(p, f.s, f.n, &index);
            if (y && y->depth == p->depth && (y->kind == SYM_LABEL || y->kind == SYM_TABLE)) {
                if (f.table == UINT32_MAX)
                    p->m->code[f.instruction].target = (uint32_t)y->value;
                else
                    p->m->table[f.table] = (uint32_t)y->value;
                continue;
            }
            f.depth--;
        }
        if (f.depth == 0)
            px_fail(p, "no label '%.*s'", (int)f.n, f.s);
        p->fixup[kept++] = f;
    }
    p->n_fixups = kept;
    while (p->n_symbols > 0 && p->symbol[p->n_symbols - 1].depth == p->depth)
        p->n_symbols--;
    p->depth--;
}

static void branch_targets(struct parser *p, struct token name)
{
    struct px_module *m = p->m;
    m->table = px_grow(p, m->table, m->n_table, &m->max_table, sizeof *m->table);
    uint32_t first = m->n_table++;
    px_declare(p, name, SYM_TABLE)->value = first;
    do {
        m->table = px_grow(p, m->table, m->n_table, &m->max_table, sizeof *m->table);
        m->table[first]++;
        px_add_fixup(p, 0, m->n_table, px_word(p));
        m->n_table++;
    } while (px_accept(p, ","));
    px_expect(p, ";");
}

static void statement(struct parser *p)
{
    if (p->t.kind != 'w') {
        px_parse_instruction(p); /* with a guard, or refused there */
        return;
    }
    if (*p->t.s != '.') {
        const char  *at = p->at;
        struct token t = p->t;
        uint32_t     line = p->line;
        px_next(p);
        if (px_accept(p, ":")) {
            if (px_accept(p, ".branchtargets"))
                branch_targets(p, t);
            else
                px_declare(p, t, SYM_LABEL)->value = p->m->n_code;
            return;
        }
        p->at = at;
        p->t = t;
        p->line = line;
        px_parse_instruction(p);
        return;
    }
    struct token t = px_word(p);
    p->t.line = t.line;
    if (t.n == 4 && memcmp(t.s, ".reg", 4) == 0) {
        registers(p);
    } else if (t.n == 7 && memcmp(t.s, ".pragma", 7) == 0) {
        while (!px_accept(p, ";"))
            px_next(p);
    } else if (t.n == 4 && memcmp(t.s, ".loc", 4) == 0) {
        px_skip_line(p);
    } else {
        space_variable(p, t, false);
    }
}

static void body(struct parser *p)
{
    px_expect(p, "{");
    uint32_t outer = p->depth;
    for (;;) {
        if (p->t.kind == 0)
            px_fail(p, "the file ends inside a function");
        if (px_accept(p, "{")) {
            p->depth++;
        } else if (px_is(p, "}")) {
            close_scope(p);
            px_next(p);
            if (p->depth < outer)
                return;
        } else {
            statement(p);
        }
    }
}

static void parameters(struct parser *p, struct px_function *f, bool results)
{
    uint32_t n = 0, at = 0;
    px_expect(p, "(");
    while (!px_accept(p, ")")) {
        px_expect(p, ".param");
        struct variable v = variable(p);
        if (n >= (results ? 4u : 64u))
            px_fail(p, "more than %u parameters of '%s'", results ? 4u : 64u, f->name);
        if (f->entry) {
            at = up(at, v.align);
            f->param[n] = (struct px_param){at, v.bytes};
            px_declare(p, v.name, SYM_PARAM)->value = at;
            at += v.bytes;
            f->param_bytes = at;
        } else {
            f->frame_bytes = up(f->frame_bytes, 16);
            (results ? f->result : f->param)[n] = (struct px_param){f->frame_bytes, v.bytes};
            px_declare(p, v.name, SYM_FRAME)->value = f->frame_bytes;
            f->frame_bytes += v.bytes;
        }
        n++;
        (void)px_accept(p, ",");
    }
    *(results ? &f->n_returns : &f->n_params) = n;
}

static uint32_t launch_numbers(struct parser *p, uint32_t out[3])
{
    uint32_t n = 0, product = 1;
    do {
        out[n] = (uint32_t)px_number(p, false);
        product *= out[n++];
    } while (n < 3 && px_accept(p, ","));
    return product;
}

/* A function's results stand before its name. They are read twice: once to be skipped. */
static void function(struct parser *p, bool entry)
{
    const char  *at = p->at;
    struct token t = p->t;
    uint32_t     line = p->line, numbers[3] = {1, 1, 1};
    bool         results = px_is(p, "(");
    if (results) {
        while (!px_accept(p, ")"))
            px_next(p);
    }
    struct token name = px_word(p);
    struct token behind = p->t;
    const char  *behind_at = p->at;
    uint32_t     behind_line = p->line;
    p->f = px_function_of(p, name.s, name.n);
    struct px_function *f = p->f;
    if (f->defined)
        px_fail(p, "'%s' is defined twice", f->name);
    f->entry = entry;
    f->frame_bytes = f->n_params = 0;
    f->shared_bytes = p->module_shared;
    f->shared_align = p->module_shared_align ? p->module_shared_align : 16;
    p->depth++;
    if (results) {
        p->t = t;
        p->at = at;
        p->line = line;
        parameters(p, f, true);
        p->t = behind;
        p->at = behind_at;
        p->line = behind_line;
    }
    if (px_is(p, "("))
        parameters(p, f, false);
    while (p->t.kind == 'w') {
        if (px_accept(p, ".maxntid")) {
            f->max_threads = launch_numbers(p, numbers);
        } else if (px_accept(p, ".minnctapersm") || px_accept(p, ".maxnreg") || px_accept(p, ".reqntid")) {
            (void)launch_numbers(p, numbers);
        } else if (px_accept(p, ".reqnctapercluster")) {
            numbers[1] = numbers[2] = 1;
            (void)launch_numbers(p, numbers);
            memcpy(f->cluster, numbers, sizeof numbers);
        } else if (!px_accept(p, ".explicitcluster") && !px_accept(p, ".noreturn") && !px_accept(p, ".blocksareclusters")) {
            px_fail(p, "'%.*s' of functions is not supported", (int)p->t.n, p->t.s);
        }
    }
    if (px_accept(p, ";")) {
        close_scope(p);
        f->frame_bytes = 0;
    } else {
        memset(p->seen, 0, SEEN * sizeof *p->seen);
        f->defined = true;
        f->begin = p->m->n_code;
        body(p);
        f = p->f;
        f->end = p->m->n_code;
        struct px_instruction last = {.op = PX_RET, .line = p->t.line, .first_operand = p->m->n_operands};
        (void)px_emit(p, &last);
        f->end = p->m->n_code;
    }
    p->f = NULL;
}

static void module(struct parser *p)
{
    px_next(p);
    while (p->t.kind) {
        struct token t = px_word(p);
        bool         external = false;
        while ((t.n == 8 && memcmp(t.s, ".visible", 8) == 0) || (t.n == 7 && memcmp(t.s, ".extern", 7) == 0) ||
               (t.n == 5 && memcmp(t.s, ".weak", 5) == 0) || (t.n == 7 && memcmp(t.s, ".common", 7) == 0)) {
            external = t.s[1] == 'e';
            t = px_word(p);
        }
        if ((t.n == 8 && memcmp(t.s, ".version", 8) == 0) || (t.n == 7 && memcmp(t.s, ".target", 7) == 0) ||
            (t.n == 13 && memcmp(t.s, ".address_size", 13) == 0) || (t.n == 5 && memcmp(t.s, ".file", 5) == 0)) {
            while (p->t.kind && p->t.line == t.line)
                px_next(p);
        } else if (t.n == 8 && memcmp(t.s, ".section", 8) == 0) {
            while (p->t.kind && !px_accept(p, "}"))
                px_next(p);
        } else if (t.n == 7 && memcmp(t.s, ".pragma", 7) == 0) {
            while (p->t.kind && !px_accept(p, ";"))
                px_next(p);
        } else if (t.n == 6 && memcmp(t.s, ".entry", 6) == 0) {
            function(p, true);
        } else if (t.n == 5 && memcmp(t.s, ".func", 5) == 0) {
            function(p, false);
        } else {
            space_variable(p, t, external);
        }
    }
}

/* Registers, local memory and frames of functions follow the largest entry's: nothing recurses. */
static void place_functions(struct parser *p)
{
    struct px_module *m = p->m;
    for (uint32_t i = 0; i < m->n_functions; i++) {
        const struct px_function *f = &m->function[i];
        if (f->entry && f->n_words > m->n_words)
            m->n_words = f->n_words;
        if (f->entry && f->local_bytes > m->local_bytes)
            m->local_bytes = f->local_bytes;
        if (f->entry && f->frame_bytes > m->frame_bytes)
            m->frame_bytes = f->frame_bytes;
    }
    m->local_bytes = up(m->local_bytes, 16);
    m->frame_bytes = up(m->frame_bytes, 16);
    for (uint32_t i = 0; i < m->n_functions; i++) {
        struct px_function *f = &m->function[i];
        if (f->entry)
            continue;
        f->base = m->n_words;
        f->local_base = m->local_bytes;
        f->frame_base = m->frame_bytes;
        m->n_words += f->n_words;
        m->local_bytes += up(f->local_bytes, 16);
        m->frame_bytes += up(f->frame_bytes, 16);
    }
    for (uint32_t i = 0; i < m->n_code; i++)
        m->code[i].o = m->operand + m->code[i].first_operand;
}

/* False with the sentence written. */
static bool parse_guarded(struct parser *p)
{
    if (setjmp(p->out) != 0)
        return false;
    module(p);
    place_functions(p);
    return true;
}

struct px_module *px_module_parse(const char *text, size_t bytes, char *error, size_t error_bytes)
{
    struct parser    *p = calloc(1, sizeof *p);
    struct px_module *m = calloc(1, sizeof *m);
    bool              good = p && m && (p->seen = calloc(SEEN, sizeof *p->seen)) != NULL && (m->text = malloc(bytes + 1)) != NULL;
    if (!good) {
        (void)snprintf(error, error_bytes, "no memory");
    } else {
        memcpy(m->text, text, bytes);
        m->text[bytes] = 0;
        m->bytes = bytes;
        p->m = m;
        p->at = m->text;
        p->end = m->text + bytes;
        p->line = 1;
        p->error = error;
        p->error_bytes = error_bytes;
        good = parse_guarded(p);
    }
    if (p) {
        free(p->symbol);
        free(p->fixup);
        free(p->seen);
    }
    free(p);
    if (good)
        return m;
    px_module_free(m);
    return NULL;
}
