/* Rounding with error feedback (GPTQ, arXiv 2210.17323), under block scales that are fixed before.
 *
 * With H the mean of x x^T over calibration inputs, rounding column i by e costs least when the columns still to come
 * move by -e * U[i][j] / U[i][i], where inverse(H) = U^T U and U is upper triangular. U is the inverse of the upper R
 * in H = R R^T, so one factorisation and one triangular inverse do; both run along rows. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/e2m1.h"
#include "number/e4m3.h"
#include "quantize/quant.h"

/* Added to H's diagonal, as a share of its mean: keeps rare inputs from being trusted too far. */
#define DAMPING 0.01

struct key {
    double  weight;
    int64_t column;
};

static int key_compare(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->column < y->column ? -1 : x->column > y->column;
}

static bool find_order(struct nib_quant_gptq *q, const double *h)
{
    struct key *key = malloc((size_t)q->n * sizeof *key);
    for (int64_t i = 0; key && i < q->n; i++)
        key[i] = (struct key){.weight = h[i * q->n + i], .column = i};
    if (key)
        qsort(key, (size_t)q->n, sizeof *key, key_compare);
    for (int64_t i = 0; key && i < q->n; i++)
        q->order[i] = key[i].column;
    free(key);
    return key != NULL;
}

/* R in place of the upper triangle of a; false if a is not positive definite. */
static bool factorise(double *a, int64_t n, int32_t n_threads)
{
    for (int64_t j = n - 1; j >= 0; j--) {
        const double *rj = a + j * n;
        double        sum = rj[j];
        for (int64_t k = j + 1; k < n; k++)
            sum -= rj[k] * rj[k];
        if (!(sum > 0))
            return false;
        a[j * n + j] = sqrt(sum);
#pragma omp parallel for schedule(static) num_threads(j * (n - j) < 1 << 16 ? 1 : n_threads)
        for (int64_t i = 0; i < j; i++) {
            double *ri = a + i * n, s = ri[j];
            for (int64_t k = j + 1; k < n; k++)
                s -= ri[k] * rj[k];
            ri[j] = s / rj[j];
        }
    }
    return true;
}

/* The inverse of the upper triangle r into u (zeroed before), from the last row up. */
static void invert(const double *r, double *u, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--) {
        double *ui = u + i * n;
        for (int64_t k = i + 1; k < n; k++) {
            const double f = r[i * n + k], *uk = u + k * n;
            for (int64_t j = k; j < n; j++)
                ui[j] -= f * uk[j];
        }
        for (int64_t j = i + 1; j < n; j++)
            ui[j] /= r[i * n + i];
        ui[i] = 1.0 / r[i * n + i];
    }
}

enum nib_status nib_quant_gptq_init(struct nib_quant_gptq *q, const double *hessian, int64_t n, int32_t n_threads,
                                    struct nib_error *err)
{
    const size_t n2 = (size_t)n * (size_t)n;
    double      *a = malloc(n2 * sizeof *a), *u = calloc(n2, sizeof *u), mean = 0;
    *q = (struct nib_quant_gptq){
        .n = n, .order = malloc((size_t)n * sizeof *q->order), .factor = calloc(n2, sizeof *q->factor)};
    enum nib_status status = NIB_OK;
    if (!a || !u || !q->order || !q->factor || !find_order(q, hessian)) {
        status = nib_error_set(err, NIB_E_MEMORY, "no memory for error feedback over %" PRId64 " channels", n);
        goto end;
    }
    for (int64_t i = 0; i < n; i++)
        mean += hessian[i * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++)
            a[i * n + j] = hessian[q->order[i] * n + q->order[j]];
        a[i * n + i] += mean > 0 ? DAMPING * mean : 1;
    }
    if (!factorise(a, n, n_threads)) {
        status = nib_error_set(err, NIB_E_NUMERIC, "the inputs' second moments are not positive definite");
        goto end;
    }
    invert(a, u, n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++)
            q->factor[i * n + j] = (float)(u[i * n + j] / u[i * n + i]);
end:
    free(a);
    free(u);
    if (status != NIB_OK)
        nib_quant_gptq_deinit(q);
    return status;
}

void nib_quant_gptq_deinit(struct nib_quant_gptq *q)
{
    free(q->order);
    free(q->factor);
    memset(q, 0, sizeof *q);
}

int64_t nib_quant_gptq_row(const struct nib_quant_gptq *q, float *x, float g, const uint8_t *scales, uint8_t *codes)
{
    int64_t saturated = 0;
    memset(codes, 0, (size_t)q->n / 2);
    for (int64_t i = 0; i < q->n; i++) {
        const int64_t column = q->order[i];
        const float   d = nib_e4m3_to_f32(scales[column / NIB_QUANT_BLOCK]) * g;
        float         error = x[column];
        if (d > 0) {
            const float   y = x[column] / d;
            const uint8_t code = nib_e2m1_from_f32(y);
            codes[column / 2] |= (uint8_t)(code << (column % 2 * 4));
            saturated += fabsf(y) > NIB_E2M1_MAX;
            error -= nib_e2m1_to_f32(code) * d;
        }
        const float *f = q->factor + i * q->n;
        for (int64_t j = i + 1; j < q->n; j++)
            x[q->order[j]] -= error * f[j];
    }
    return saturated;
}
