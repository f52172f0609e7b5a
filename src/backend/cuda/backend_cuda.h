/* The CUDA backend's table, for the list of backends. Needs no CUDA header. */
#ifndef NIB_BACKEND_CUDA_H
#define NIB_BACKEND_CUDA_H

#include "backend/backend.h"

extern const struct nib_backend_api nib_backend_cuda;

#endif
