/* The parts of calibrate_sm90a that its files share. */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include "backend/cuda/cuda.h"

/* Numbers from the case's seed, and their values. */
void     calibrate_seed(uint64_t seed);
uint32_t calibrate_next(void);
uint16_t calibrate_bf16(bool exact); /* an integer from -4 to 4, or a number of 1/128 to 2 */
double   calibrate_bf16_value(uint16_t h);
uint8_t  calibrate_e4m3(bool exact); /* an integer from -4 to 4, or any number */
double   calibrate_e4m3_value(uint8_t c);
double   calibrate_e2m1_value(uint32_t c);
float    calibrate_to_bf16(double v); /* rounded */

void *calibrate_host(size_t bytes);
/* On the device, until the next case; aligned to 256 bytes. */
void  *calibrate_room(size_t bytes);
void  *calibrate_up(const void *from, size_t bytes);
float *calibrate_down(const struct nib_mat *y); /* waits; freed by the caller */

/* n results of a case, held to plain C and to the file. bound NULL: every bit counts, want being exact. */
void calibrate_judge(const char *name, const float *got, const double *want, const double *bound, int64_t n);

/* Attention (calibrate_attend.c): number of cases, and one of them. */
int  calibrate_attend_cases(void);
void calibrate_attend(struct nib_stream *s, int i);

#endif
