/* A module from a file, what it tells about its entries, and its end. */
#include "ptxsim/ptx_module.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct px_module *px_module_read(const char *path, char *error, size_t error_bytes)
{
    FILE *f = fopen(path, "rb");
    long  n = -1;
    char *text = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0)
        text = malloc((size_t)n + 1);
    struct px_module *m = NULL;
    if (text && fread(text, 1, (size_t)n, f) == (size_t)n) {
        char why[512];
        m = px_module_parse(text, (size_t)n, why, sizeof why);
        if (!m)
            (void)snprintf(error, error_bytes, "%s, %s", path, why);
    } else {
        (void)snprintf(error, error_bytes, "%s cannot be read", path);
    }
    if (f)
        (void)fclose(f);
    free(text);
    return m;
}

void px_module_free(struct px_module *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->n_functions; i++) {
        free(m->function[i].name);
        free(m->function[i].constant);
    }
    for (uint32_t i = 0; i < m->n_variables; i++) {
        free(m->variable[i].name);
        free(m->variable[i].memory);
    }
    free(m->function);
    free(m->variable);
    free(m->table);
    free(m->operand);
    free(m->code);
    free(m->text);
    free(m);
}

static const struct px_function *entry_of(const struct px_module *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_functions; i++) {
        if (m->function[i].entry && m->function[i].defined && strcmp(m->function[i].name, name) == 0)
            return &m->function[i];
    }
    return NULL;
}

bool px_module_has(const struct px_module *m, const char *entry, int32_t *n_params)
{
    const struct px_function *f = entry_of(m, entry);
    if (f && n_params)
        *n_params = (int32_t)f->n_params;
    return f != NULL;
}

const char *px_module_entry(const struct px_module *m, int32_t i)
{
    for (uint32_t k = 0; k < m->n_functions; k++) {
        if (m->function[k].entry && m->function[k].defined && i-- == 0)
            return m->function[k].name;
    }
    return NULL;
}

size_t px_module_param_bytes(const struct px_module *m, const char *entry, int32_t i)
{
    const struct px_function *f = entry_of(m, entry);
    return f && i >= 0 && (uint32_t)i < f->n_params ? f->param[i].bytes : 0;
}

void px_module_line(const struct px_module *m, uint32_t line, char *out, size_t n)
{
    const char *s = m->text;
    while (line > 1 && (s = strchr(s, '\n')) != NULL) {
        line--;
        s++;
    }
    size_t length = 0;
    if (s) {
        s += strspn(s, " \t");
        length = strcspn(s, "\n");
    }
    length = length < n - 1 ? length : n - 1;
    memcpy(out, s ? s : "", length);
    out[length] = 0;
}
