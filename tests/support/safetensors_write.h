/* Folders and files for tests of the reader, right or deliberately wrong. A failure of the machine (no room in /tmp)
 * fails the running cmocka test. */
#ifndef SAFETENSORS_WRITE_H
#define SAFETENSORS_WRITE_H

#include <stddef.h>
#include <stdint.h>

struct test_dir {
    char path[64];
};

/* A fresh folder under /tmp; close removes it with everything inside. */
void test_dir_open(struct test_dir *d);
void test_dir_close(struct test_dir *d);

/* "folder/name"; valid until the next call. */
const char *test_dir_path(const struct test_dir *d, const char *name);

void test_dir_write(const struct test_dir *d, const char *name, const void *data, size_t n);

/* A safetensors file: the header's length, the header as given, then n_data bytes, byte i being test_data_byte(i). */
void    test_dir_write_shard(const struct test_dir *d, const char *name, const char *header, size_t n_data);
uint8_t test_data_byte(size_t i);

#endif
