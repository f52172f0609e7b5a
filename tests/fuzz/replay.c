/* Every file of a folder through a fuzz target, without a fuzz engine:
 *
 *   replay DIR             each file, cut short at a few places, and with single bits changed
 *   replay DIR --plain     each file as it is
 *   replay DIR --verbose   the same as the first, and each name on standard error, to find the one that ends the program */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

static unsigned char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    unsigned char *data = malloc(1 << 20);
    if (f && data)
        *n = fread(data, 1, 1 << 20, f);
    if (f)
        (void)fclose(f);
    if (f && data)
        return data;
    free(data);
    return NULL;
}

/* A copy of just that size, so that reads beyond the end are seen. */
static void run(const unsigned char *data, size_t n)
{
    unsigned char *copy = malloc(n ? n : 1);
    FUZZ_CHECK(copy != NULL);
    memcpy(copy, data, n);
    (void)LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static void run_neighbours(unsigned char *data, size_t n)
{
    for (size_t i = 1; i < 8; i++)
        run(data, n * i / 8);
    for (size_t i = 0; i < 8 && n > 0; i++) {
        const size_t at = (n - 1) * i / 7;
        const unsigned char kept = data[at];
        data[at] ^= (unsigned char)(1u << i);
        run(data, n);
        data[at] = kept;
    }
}

int main(int argc, char **argv)
{
    int n_files = 0;
    const int plain = argc > 2 && strcmp(argv[2], "--plain") == 0, verbose = argc > 2 && strcmp(argv[2], "--verbose") == 0;
    DIR *d = argc >= 2 ? opendir(argv[1]) : NULL;
    if (!d) {
        fprintf(stderr, "usage: replay DIR [--plain | --verbose]\n");
        return 2;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[4096];
        size_t n = 0;
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        if (verbose)
            fprintf(stderr, "%s\n", path);
        unsigned char *data = read_file(path, &n);
        FUZZ_CHECK(data != NULL);
        run(data, n);
        if (!plain)
            run_neighbours(data, n);
        free(data);
        n_files++;
    }
    (void)closedir(d);
    printf("%d files\n", n_files);
    return n_files > 0 ? 0 : 1;
}
