/* What kernels with emulated tensor memory (backend/cuda/device/tcgen05.cuh) and the program that launches them tell
 * each other, by way of the card's memory. */
#ifndef EMULATED_SM100A_H
#define EMULATED_SM100A_H

#include <stdint.h>

#define NIB_EMULATED_BLOCKS 32 /* of a grid, at most */

struct nib_emulated_card {
    struct {
        uint64_t map[16]; /* a tensor map's 128 bytes */
        uint32_t bytes;   /* of its box in shared memory */
    } box[8];
    uint32_t n_boxes;
    int32_t  held; /* columns that are allocated; 0 when no kernel runs */
};

#ifdef __cplusplus
extern "C"
#endif
/* A file of kernels has its emulated_card under this handle of the runtime. */
void nib_emulated_add(const void *card);

#ifdef __cplusplus
struct nib_emulated_place {
    explicit nib_emulated_place(const void *card)
    {
        nib_emulated_add(card);
    }
};
#endif

#endif
