/* Which shards a checkpoint folder consists of, and by whose word. */
#ifndef NIB_SHARD_LIST_H
#define NIB_SHARD_LIST_H

#include <jansson.h>

#include "base/status.h"

struct nib_shard_list {
    char  **name; /* base names, sorted; every one exists */
    size_t  n;
    json_t *weight_map; /* tensor name -> shard name, all checked; NULL: the folder has no index */
};

/* Read the folder's index, or list its *.safetensors. Refuses (NIB_E_IO) with every missing shard's name. On failure
 * the list is empty. */
enum nib_status nib_shard_list_open(const char *dir, struct nib_shard_list *out, struct nib_error *err);
void            nib_shard_list_close(struct nib_shard_list *l);

#endif
