/* A folder's shards put together: sorted entries and a hash table of their names. */
#include "checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/shard.h"
#include "checkpoint/shard_list.h"

struct nib_checkpoint {
    struct nib_shard *shard;
    size_t n_shards;
    struct nib_tensor_entry *entry; /* sorted by name; names belong to the shards */
    int64_t n_entries;
    uint32_t *slot; /* entry number + 1, 0 = free; linear probing, at most half full */
    uint64_t slot_mask;
    void (*release)(void *owner); /* of tensors that are no file's; NULL without */
    void *owner;
};

static int entry_compare(const void *a, const void *b)
{
    const struct nib_tensor_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static uint64_t name_hash(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* By name, each of which may stand there once. */
static enum nib_status sort_entries(struct nib_checkpoint *c, struct nib_error *err)
{
    qsort(c->entry, (size_t)c->n_entries, sizeof *c->entry, entry_compare);
    for (int64_t i = 1; i < c->n_entries; i++) {
        const struct nib_tensor_entry *e = &c->entry[i];
        if (strcmp(e[-1].name, e->name) == 0) {
            return nib_error_set(err, NIB_E_FORMAT,
                                 "tensor '%.200s' is in both '%.200s' and '%.200s', and no index says which one counts",
                                 e->name, e[-1].file, e->file);
        }
    }
    return NIB_OK;
}

/* Entries of all shards that count: with an index, those that it assigns to the shard in which they stand. */
static enum nib_status collect(struct nib_checkpoint *c, const struct nib_shard_list *list, struct nib_error *err)
{
    int64_t n = 0;
    for (size_t i = 0; i < c->n_shards; i++)
        n += c->shard[i].n_entries;
    c->entry = calloc((size_t)n + 1, sizeof *c->entry);
    if (!c->entry || n >= INT32_MAX)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for %lld tensors", (long long)n);
    for (size_t i = 0; i < c->n_shards; i++) {
        const struct nib_shard *s = &c->shard[i];
        for (int64_t k = 0; k < s->n_entries; k++) {
            if (list->weight_map) {
                const char *file = json_string_value(json_object_get(list->weight_map, s->entry[k].name));
                if (!file || strcmp(file, s->name) != 0)
                    continue;
            }
            c->entry[c->n_entries++] = s->entry[k];
        }
    }
    return sort_entries(c, err);
}

static enum nib_status build_slots(struct nib_checkpoint *c, struct nib_error *err)
{
    uint64_t n = 4;
    while (n < 2 * (uint64_t)c->n_entries)
        n *= 2;
    c->slot = calloc(n, sizeof *c->slot);
    if (!c->slot)
        return nib_error_set(err, NIB_E_MEMORY, "no memory for %lld tensors", (long long)c->n_entries);
    c->slot_mask = n - 1;
    for (int64_t i = 0; i < c->n_entries; i++) {
        uint64_t at = name_hash(c->entry[i].name) & c->slot_mask;
        while (c->slot[at] != 0)
            at = (at + 1) & c->slot_mask;
        c->slot[at] = (uint32_t)i + 1;
    }
    return NIB_OK;
}

/* Every tensor of the index was found where it says. */
static enum nib_status check_index(const struct nib_checkpoint *c, json_t *weight_map, struct nib_error *err)
{
    const char *name, *first = NULL, *first_file = NULL;
    json_t *file;
    size_t n_missing = json_object_size(weight_map) - (size_t)c->n_entries;
    if (n_missing == 0)
        return NIB_OK;
    json_object_foreach(weight_map, name, file)
    {
        if (!nib_checkpoint_find(c, name)) {
            first = name;
            first_file = json_string_value(file);
            break;
        }
    }
    return nib_error_set(err, NIB_E_FORMAT,
                         "the index assigns tensor '%.200s' to shard '%.200s', whose header does not have it (%zu such "
                         "tensors in all)",
                         first, first_file, n_missing);
}

enum nib_status nib_checkpoint_open(const char *dir, struct nib_checkpoint **out, struct nib_error *err)
{
    *out = NULL;
    struct nib_shard_list list;
    NIB_TRY(nib_shard_list_open(dir, &list, err));
    enum nib_status status = NIB_OK;
    struct nib_checkpoint *c = calloc(1, sizeof *c);
    if (c)
        c->shard = calloc(list.n, sizeof *c->shard);
    if (!c || !c->shard) {
        status = nib_error_set(err, NIB_E_MEMORY, "no memory for %zu shards", list.n);
        goto end;
    }
    for (; c->n_shards < list.n; c->n_shards++) {
        status = nib_shard_open(dir, list.name[c->n_shards], &c->shard[c->n_shards], err);
        if (status != NIB_OK)
            goto end;
    }
    status = collect(c, &list, err);
    if (status == NIB_OK)
        status = build_slots(c, err);
    if (status == NIB_OK && list.weight_map)
        status = check_index(c, list.weight_map, err);
end:
    nib_shard_list_close(&list);
    if (status == NIB_OK)
        *out = c;
    else
        nib_checkpoint_close(c);
    return status;
}

enum nib_status nib_checkpoint_make(const struct nib_tensor_entry *entry, int64_t n, void (*release)(void *owner),
                                    void *owner, struct nib_checkpoint **out, struct nib_error *err)
{
    *out = NULL;
    struct nib_checkpoint *c = calloc(1, sizeof *c);
    if (c)
        c->entry = calloc((size_t)n + 1, sizeof *c->entry);
    if (!c || !c->entry) {
        nib_checkpoint_close(c);
        return nib_error_set(err, NIB_E_MEMORY, "no memory for %lld tensors", (long long)n);
    }
    memcpy(c->entry, entry, (size_t)n * sizeof *entry);
    c->n_entries = n;
    enum nib_status status = sort_entries(c, err);
    if (status == NIB_OK)
        status = build_slots(c, err);
    if (status != NIB_OK) {
        nib_checkpoint_close(c);
        return status;
    }
    c->release = release;
    c->owner = owner;
    *out = c;
    return NIB_OK;
}

void nib_checkpoint_close(struct nib_checkpoint *c)
{
    if (!c)
        return;
    if (c->release)
        c->release(c->owner);
    for (size_t i = 0; i < c->n_shards; i++)
        nib_shard_close(&c->shard[i]);
    free(c->shard);
    free(c->entry);
    free(c->slot);
    free(c);
}

const struct nib_tensor_entry *nib_checkpoint_find(const struct nib_checkpoint *c, const char *name)
{
    for (uint64_t at = name_hash(name) & c->slot_mask; c->slot[at] != 0; at = (at + 1) & c->slot_mask) {
        const struct nib_tensor_entry *e = &c->entry[c->slot[at] - 1];
        if (strcmp(e->name, name) == 0)
            return e;
    }
    return NULL;
}

int64_t nib_checkpoint_n_tensors(const struct nib_checkpoint *c)
{
    return c->n_entries;
}

const struct nib_tensor_entry *nib_checkpoint_at(const struct nib_checkpoint *c, int64_t i)
{
    return &c->entry[i];
}
