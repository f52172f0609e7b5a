/* Shared by the tensor_*.c files. */
#ifndef SIM_TENSOR_PARTS_H
#define SIM_TENSOR_PARTS_H

#include "ptxsim/tensor.h"

/* Bytes [address, address + n) of a CTA's shared memory, announced; NULL with a fault if they are not all inside. */
uint8_t *sim_shared_at(const struct sim_shared *s, bool write, uint32_t address, uint32_t n, struct sim_fault *fault);

/* A rectangle of tensor memory is allocated, and written before it is read; announces the access. A write marks it. */
bool sim_tmem_use(struct sim_tmem *t, bool write, uint32_t lane, uint32_t n_lanes, uint32_t column, uint32_t n_columns,
                  const char *what, struct sim_fault *fault);

/* Bytes along k of every operand of one instruction: two pieces of 16. */
#define SIM_STEP_BYTES 32

/* Rows of a matrix of one instruction's depth, as values: x[row * k + i]. `packed`: E2M1 pairs without padding;
 * types of 4 and 6 bits are otherwise 16 to 16 bytes with padding behind. MN-major takes types of 8 and 16 bits. */
bool sim_matrix_read(const struct sim_matrix *m, bool k_major, enum sim_element type, bool packed, int rows, int k,
                     const struct sim_shared *shared, const struct sim_choices *choices, float *x,
                     struct sim_fault *fault);

/* The k values in SIM_STEP_BYTES of a row. */
void sim_row_decode(const uint8_t *bytes, enum sim_element type, bool packed, int k, float *x);

/* d[j] += sum_k a[k] * scale_a[k / group] * b[j][k] * scale_b[j][k / group] for j < n; d is fp32 in, rounded once
 * out. bt is b transposed, [k][n]; scale_b [groups][n]. Scales NULL: none. group: values that share a scale. */
void sim_row_multiply(const float *a, const float *bt, const float *scale_a, const float *scale_b, int n, int k,
                      int group, bool accumulate, const struct sim_choices *choices, float *d);

/* Whether a UE4M3 or UE8M0 byte is a legal scale; its value under the choices. */
bool sim_scale_value(enum sim_element type, uint8_t byte, const struct sim_choices *choices, float *value,
                     struct sim_fault *fault);

#endif
