/* model.safetensors.index.json beside two shards: the first holds "a" and "b", the second "b" and "c". Behind a zero
 * byte names of more files, one a line, which hold nothing. An empty index is none: then the folder decides. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "fuzz.h"

static void write_shard(const char *name, const char *first, const char *second)
{
    unsigned char file[256] = {0};
    const int n = snprintf((char *)file + 8, sizeof file - 8,
                           "{\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                           "\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
                           first, second);
    file[0] = (unsigned char)n;
    fuzz_dir_write(name, file, 8 + (size_t)n + 3);
}

/* Up to eight files, made or removed again. */
static void each_name(char *names, void (*act)(const char *name))
{
    char *rest = names;
    for (int i = 0; i < 8 && *rest; i++) {
        char name[64];
        const size_t n = strcspn(rest, "\n");
        if (n > 0 && n < sizeof name && !memchr(rest, '/', n) && rest[0] != '.') {
            (void)snprintf(name, sizeof name, "%.*s", (int)n, rest);
            if (strcmp(name, "x.safetensors") != 0 && strcmp(name, "y.safetensors") != 0 && strcmp(name, "model.safetensors.index.json") != 0)
                act(name);
        }
        rest += n + (rest[n] == '\n');
    }
}

static void make_file(const char *name)
{
    static const unsigned char empty[10] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    char path[192];
    (void)snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    FILE *f = fopen(path, "wb");
    if (f) { /* names of bytes that the file system refuses */
        FUZZ_CHECK(fwrite(empty, 1, sizeof empty, f) == sizeof empty);
        (void)fclose(f);
    }
}

static void check_open(void)
{
    struct nib_checkpoint *c = NULL;
    struct nib_error err = {0};
    const enum nib_status status = nib_checkpoint_open(fuzz_dir(), &c, &err);
    if (status != NIB_OK) {
        fuzz_check_error(status, &err);
        FUZZ_CHECK(c == NULL);
        return;
    }
    FUZZ_CHECK(nib_checkpoint_n_tensors(c) >= 1 && nib_checkpoint_n_tensors(c) <= 3);
    for (int64_t i = 0; i < nib_checkpoint_n_tensors(c); i++) {
        const struct nib_tensor_entry *e = nib_checkpoint_at(c, i);
        FUZZ_CHECK(nib_checkpoint_find(c, e->name) == e);
        FUZZ_CHECK(strcmp(e->file, "x.safetensors") == 0 || strcmp(e->file, "y.safetensors") == 0);
    }
    nib_checkpoint_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    size_t n_index, n_names;
    char *index = fuzz_part(&data, &n, &n_index), *names = fuzz_part(&data, &n, &n_names);
    write_shard("x.safetensors", "a", "b");
    write_shard("y.safetensors", "b", "c");
    if (n_index > 0)
        fuzz_dir_write("model.safetensors.index.json", index, n_index);
    else if (n_names > 0 && names[0] == '\n') /* no other file */
        fuzz_dir_remove("x.safetensors");
    each_name(names, make_file);
    check_open();
    each_name(names, fuzz_dir_remove);
    fuzz_dir_remove("model.safetensors.index.json");
    free(index);
    free(names);
    return 0;
}
