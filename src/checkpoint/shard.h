/* One safetensors file: mapped, its header parsed and checked. */
#ifndef NIB_SHARD_H
#define NIB_SHARD_H

#include "checkpoint/checkpoint.h"

/* Longest header that is read; the format's reference reader allows 100 MB. */
#define NIB_SHARD_HEADER_MAX (256u << 20)

struct nib_shard {
    char                    *name; /* base name; owned */
    void                    *map;  /* the whole file */
    size_t                   map_bytes;
    struct nib_tensor_entry *entry; /* in the header's order; names owned */
    int64_t                  n_entries;
};

/* Open dir/name. On failure the shard is empty and needs no close. */
enum nib_status nib_shard_open(const char *dir, const char *name, struct nib_shard *out, struct nib_error *err);
void            nib_shard_close(struct nib_shard *s);

#endif
