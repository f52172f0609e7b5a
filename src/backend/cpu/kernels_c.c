/* The portable rung: vectors of 16 bytes, which every 64-bit machine has. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

/* 16 lanes are 4 registers: a register tile of 2 rows by 1 output leaves room for the operands in 16 registers. */
#define VEC_BYTES 16
#define DOT_ROWS  2
#define DOT_OUTS  1

#include "backend/cpu/body_vector.h"
#include "backend/cpu/body_decode.h"
#include "backend/cpu/body_quantise.h"
#include "backend/cpu/body_dot.h"
#include "backend/cpu/body_fill.h"

void nib_cpu_kernels_fill_c(struct nib_cpu_kernels *k)
{
    fill_all(k);
    k->name = "c";
}
