/* The shards of a folder: from model.safetensors.index.json, or else from the directory. Here an incomplete download is
 * found out, before any header is read. */
#include "checkpoint/shard_list.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "checkpoint/json_file.h"

#define INDEX_NAME "model.safetensors.index.json"
#define INDEX_BYTES_MAX ((size_t)256 << 20)
#define SUFFIX ".safetensors"
/* Of the 1024 bytes of an error text, what a list of shard names may take. */
#define MISSING_BYTES 760

static bool has_suffix(const char *name)
{
    size_t n = strlen(name), n_suffix = strlen(SUFFIX);
    return n > n_suffix && strcmp(name + n - n_suffix, SUFFIX) == 0;
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum nib_status list_add(struct nib_shard_list *l, size_t *room, const char *name, struct nib_error *err)
{
    if (l->n == *room) {
        size_t grown = *room ? 2 * *room : 64;
        char **p = realloc(l->name, grown * sizeof *p);
        if (!p)
            return nib_error_set(err, NIB_E_MEMORY, "no memory for %zu shard names", grown);
        l->name = p;
        *room = grown;
    }
    l->name[l->n] = strdup(name);
    if (!l->name[l->n])
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a shard name");
    l->n++;
    return NIB_OK;
}

static void list_sort_unique(struct nib_shard_list *l)
{
    size_t kept = 0;
    if (l->n > 0)
        qsort(l->name, l->n, sizeof *l->name, name_compare);
    for (size_t i = 0; i < l->n; i++) {
        if (kept > 0 && strcmp(l->name[kept - 1], l->name[i]) == 0)
            free(l->name[i]);
        else
            l->name[kept++] = l->name[i];
    }
    l->n = kept;
}

/* PREFIX-00007-of-00095.safetensors */
struct numbered {
    int prefix_bytes, width;
    int number, total;
};

static bool parse_numbered(const char *name, struct numbered *out)
{
    const char *of = NULL;
    for (const char *p = strstr(name, "-of-"); p; p = strstr(p + 1, "-of-"))
        of = p;
    if (!of)
        return false;
    const char *digits = of;
    while (digits > name && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    int end = 0;
    out->width = (int)(of - digits);
    out->prefix_bytes = (int)(digits - name);
    return out->width >= 1 && out->width <= 6 && out->prefix_bytes >= 1 && digits[-1] == '-' && of[4] >= '0' &&
           of[4] <= '9' && sscanf(digits, "%6d-of-%6d%n", &out->number, &out->total, &end) == 2 &&
           strcmp(digits + end, SUFFIX) == 0 && out->number >= 1 && out->number <= out->total;
}

/* Names of one series, as PREFIX-{00003-00007,00009}-of-00095.safetensors; false if they are not one, or too long. */
static bool join_numbered(const struct nib_shard_list *l, char *text, size_t text_bytes)
{
    struct numbered first, a, b;
    if (l->n < 2 || !parse_numbered(l->name[0], &first))
        return false;
    size_t used = (size_t)snprintf(text, text_bytes, "%.*s{", first.prefix_bytes, l->name[0]);
    for (size_t i = 0, end; i < l->n; i = end) {
        if (!parse_numbered(l->name[i], &a))
            return false;
        for (end = i + 1; end < l->n && parse_numbered(l->name[end], &b) && b.number == a.number + (int)(end - i);
             end++)
            ;
        if (a.total != first.total || a.width != first.width || a.prefix_bytes != first.prefix_bytes ||
            memcmp(l->name[i], l->name[0], (size_t)a.prefix_bytes) != 0 || used + 32 > text_bytes) {
            return false;
        }
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%0*d", i ? "," : "", a.width, a.number);
        if (end - i > 1)
            used += (size_t)snprintf(text + used, text_bytes - used, "-%0*d", a.width, a.number + (int)(end - i) - 1);
    }
    size_t tail =
        (size_t)snprintf(text + used, text_bytes - used, "}%s", l->name[0] + first.prefix_bytes + first.width);
    return used + tail < text_bytes;
}

/* Every name if they fit one message, else as a series of numbers, else as many as fit. */
static void join_names(const struct nib_shard_list *l, char *text, size_t text_bytes)
{
    size_t total = 1;
    for (size_t i = 0; i < l->n; i++)
        total += strlen(l->name[i]) + 2;
    if (total > text_bytes && join_numbered(l, text, text_bytes))
        return;
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (used + strlen(l->name[i]) + 32 > text_bytes && total > text_bytes) {
            (void)snprintf(text + used, text_bytes - used, " and %zu more", l->n - i);
            return;
        }
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", i ? ", " : "", l->name[i]);
    }
}

/* Refuse if any of the names does not lead to a file; a dangling link does not. */
static enum nib_status check_missing(const char *dir, const struct nib_shard_list *wanted, const char *by_whom,
                                     struct nib_error *err)
{
    struct nib_shard_list missing = { 0 };
    size_t room = 0;
    enum nib_status status = NIB_OK;
    for (size_t i = 0; i < wanted->n && status == NIB_OK; i++) {
        struct stat st;
        char reason[128];
        char *path = nib_path_join(dir, wanted->name[i]);
        if (!path)
            status = nib_error_set(err, NIB_E_MEMORY, "no memory for a path");
        else if (stat(path, &st) != 0 && (errno == ENOENT || errno == ELOOP || errno == ENOTDIR))
            status = list_add(&missing, &room, wanted->name[i], err);
        else if (stat(path, &st) != 0)
            status = nib_error_set(err, NIB_E_IO, "cannot read '%.600s': %s", path,
                                   nib_errno_text(errno, reason, sizeof reason));
        free(path);
    }
    if (status == NIB_OK && missing.n > 0) {
        char names[MISSING_BYTES];
        join_names(&missing, names, sizeof names);
        status = nib_error_set(err, NIB_E_IO,
                               "%.100s: %zu of %zu shards %s are missing (the download may be incomplete): %s", dir,
                               missing.n, wanted->n, by_whom, names);
    }
    nib_shard_list_close(&missing);
    return status;
}

/* A shard's name must not lead out of the folder, whoever wrote the index. */
static enum nib_status check_index_name(const char *path, const char *tensor, const json_t *v, struct nib_error *err)
{
    const char *name = json_string_value(v);
    if (!name) {
        return nib_error_set(err, NIB_E_FORMAT, "%s: weight_map: tensor '%.200s' has %s, wanted the name of a shard",
                             path, tensor, nib_json_type_name(v));
    }
    if (strchr(name, '/') || strchr(name, '\\') || name[0] == '.' || strlen(name) > 255) {
        return nib_error_set(
            err, NIB_E_FORMAT,
            "%s: weight_map: tensor '%.200s': shard name '%.200s' is unsafe, wanted a plain file name in "
            "the same folder",
            path, tensor, name);
    }
    if (!has_suffix(name)) {
        return nib_error_set(err, NIB_E_FORMAT,
                             "%s: weight_map: tensor '%.200s': shard '%.200s' does not end in " SUFFIX, path, tensor,
                             name);
    }
    return NIB_OK;
}

static enum nib_status read_index(const char *dir, const char *path, struct nib_shard_list *l, struct nib_error *err)
{
    json_t *root;
    NIB_TRY(nib_json_file_read(path, INDEX_BYTES_MAX, &root, err));
    enum nib_status status = NIB_OK;
    size_t room = 0;
    const char *tensor, *last = "";
    json_t *v, *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        status =
            nib_error_set(err, NIB_E_FORMAT, "%s: weight_map is %s, wanted an object with a shard for every tensor",
                          path, json_is_object(map) ? "empty" : nib_json_type_name(map));
        goto end;
    }
    json_object_foreach(map, tensor, v)
    {
        status = check_index_name(path, tensor, v, err);
        /* Tensors of one shard mostly stand together, so this keeps the list short. */
        if (status == NIB_OK && strcmp(json_string_value(v), last) != 0) {
            last = json_string_value(v);
            status = list_add(l, &room, last, err);
        }
        if (status != NIB_OK)
            goto end;
    }
    list_sort_unique(l);
    status = check_missing(dir, l, "named by " INDEX_NAME, err);
    if (status == NIB_OK)
        l->weight_map = json_incref(map);
end:
    json_decref(root);
    return status;
}

/* Without an index, a name like -00002-of-00005 still tells how many there must be. */
static enum nib_status check_series(const char *dir, const struct nib_shard_list *l, struct nib_error *err)
{
    enum nib_status status = NIB_OK;
    struct nib_shard_list wanted = { 0 };
    size_t room = 0;
    for (size_t i = 0; i < l->n && status == NIB_OK; i++) {
        struct numbered s, before;
        char name[300];
        if (!parse_numbered(l->name[i], &s))
            continue;
        /* Sorted, so one series stands together and is expanded at its first member. */
        if (i > 0 && parse_numbered(l->name[i - 1], &before) && before.total == s.total &&
            before.prefix_bytes == s.prefix_bytes && memcmp(l->name[i], l->name[i - 1], (size_t)s.prefix_bytes) == 0) {
            continue;
        }
        for (int k = 1; k <= s.total && status == NIB_OK; k++) {
            (void)snprintf(name, sizeof name, "%.*s%0*d%s", s.prefix_bytes, l->name[i], s.width, k,
                           l->name[i] + s.prefix_bytes + s.width);
            status = list_add(&wanted, &room, name, err);
        }
    }
    if (status == NIB_OK)
        status = check_missing(dir, &wanted, "by the numbers in their names", err);
    nib_shard_list_close(&wanted);
    return status;
}

static enum nib_status list_folder(const char *dir, struct nib_shard_list *l, struct nib_error *err)
{
    char text[128];
    size_t room = 0;
    enum nib_status status = NIB_OK;
    DIR *d = opendir(dir);
    if (!d) {
        return nib_error_set(err, errno == ENOMEM ? NIB_E_MEMORY : NIB_E_IO, "cannot open folder '%.600s': %s", dir,
                             nib_errno_text(errno, text, sizeof text));
    }
    errno = 0;
    for (struct dirent *e; status == NIB_OK && (e = readdir(d)) != NULL; errno = 0) {
        if (e->d_name[0] != '.' && has_suffix(e->d_name))
            status = list_add(l, &room, e->d_name, err);
    }
    if (status == NIB_OK && errno != 0) {
        status = nib_error_set(err, NIB_E_IO, "cannot read folder '%.600s': %s", dir,
                               nib_errno_text(errno, text, sizeof text));
    }
    (void)closedir(d);
    NIB_TRY(status);
    list_sort_unique(l);
    if (l->n == 0)
        return nib_error_set(err, NIB_E_IO, "%.600s: no file ending in " SUFFIX " in this folder", dir);
    NIB_TRY(check_series(dir, l, err));
    return check_missing(dir, l, "in the folder", err);
}

enum nib_status nib_shard_list_open(const char *dir, struct nib_shard_list *out, struct nib_error *err)
{
    struct stat st;
    memset(out, 0, sizeof *out);
    char *path = nib_path_join(dir, INDEX_NAME);
    if (!path)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for a path");
    /* A dangling link is an index that should be there: not following it makes reading it fail. */
    enum nib_status status = lstat(path, &st) == 0 ? read_index(dir, path, out, err) : list_folder(dir, out, err);
    free(path);
    if (status != NIB_OK)
        nib_shard_list_close(out);
    return status;
}

void nib_shard_list_close(struct nib_shard_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->name[i]);
    free(l->name);
    json_decref(l->weight_map);
    memset(l, 0, sizeof *l);
}
