/* Runs a command while the card's memory is taken but for LEFT MiB, and exits as it does.
 *
 *   hold_memory LEFT COMMAND ARGUMENTS... */
#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    size_t free_bytes, total, left;
    void  *held = NULL;
    int    status = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: hold_memory LEFT_MIB COMMAND ARGUMENTS...\n");
        return 99;
    }
    left = (size_t)strtoull(argv[1], NULL, 10) << 20;
    /* The command's own context takes part of what is left. */
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess || free_bytes <= left ||
        cudaMalloc(&held, free_bytes - left) != cudaSuccess) {
        fprintf(stderr, "hold_memory: the card's memory cannot be taken\n");
        return 99;
    }
    const pid_t child = fork();
    if (child == 0) {
        (void)execvp(argv[2], argv + 2);
        _exit(98);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 99;
    (void)cudaFree(held);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 97;
}
