/* nibble bench: so far, a running server measured from outside. */
#include "bench_serve.h"
#include "cli.h"

int cmd_bench(int argc, char **argv)
{
    return bench_serve(argc, argv);
}
