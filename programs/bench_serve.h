/* `nibble bench --serve URL`: a running server, measured from outside. */
#ifndef NIB_BENCH_SERVE_H
#define NIB_BENCH_SERVE_H

/* argv[0] is the command's name, the rest its whole command line; returns the exit code. */
int bench_serve(int argc, char **argv);

#endif
