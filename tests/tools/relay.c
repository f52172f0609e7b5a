/* relay KIND SRC DST: write checkpoint folder SRC again as DST in another layout. See support/relay.h. */
#include "support/relay.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    struct nib_error err = { NIB_OK, "" };
    if (argc != 4) {
        fprintf(stderr, "usage: relay KIND SRC DST\n");
        for (int i = 0; relay_kind(i); i++)
            fprintf(stderr, "  %s\n", relay_kind(i));
        return 2;
    }
    if (relay_checkpoint(argv[1], argv[2], argv[3], &err) != NIB_OK) {
        fprintf(stderr, "relay: %s\n", err.text);
        return 1;
    }
    return 0;
}
