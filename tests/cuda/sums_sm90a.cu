/* What Hopper's FP8 products keep of a sum: one warpgroup multiplies chosen e4m3 operands, and the program prints which
 * small terms survive beside a large one. docs/kernels/cuda.md has what an H200 printed.
 *
 *   sums_sm90a
 *
 * Every row of A is the same, every column of B is one experiment: A holds 2^8. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/sm90a/wgmma.cuh"

constexpr int kSteps = 4, kTests = 32; /* products one behind another; columns */

struct operands {
    uint8_t a[kSteps][32], b[kTests][kSteps][32];
};

/* d += a . b, or d = a . b: a of 64 x 32 codes from registers, b of 32 x 32 in shared memory. */
template <bool first> NIB_DEVICE void product(float (&d)[16], const uint32_t a[4], uint64_t b)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(first ? 1 : 0));
}

static __global__ void multiply(const struct operands *x, float *out)
{
    __shared__ __align__(128) uint8_t b[kSteps][kTests / 8][2][8][16];
    int lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < kSteps * kTests * 32; i += blockDim.x) {
        int s = i / (kTests * 32), n = i / 32 % kTests, k = i % 32;
        b[s][n / 8][k / 16][n % 8][k % 16] = x->b[n][s][k];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float    d[16];
    uint32_t a[kSteps][4];
    for (int s = 0; s < kSteps; s++)
        for (int r = 0; r < 4; r++)
            a[s][r] = *(const uint32_t *)&x->a[s][lane % 4 * 4 + r / 2 * 16];
    nib_wgmma_fence();
    product<true>(d, a[0], nib_wgmma_descriptor(nib_shared_address(b[0]), 128, 256));
    product<false>(d, a[1], nib_wgmma_descriptor(nib_shared_address(b[1]), 128, 256));
    product<false>(d, a[2], nib_wgmma_descriptor(nib_shared_address(b[2]), 128, 256));
    product<false>(d, a[3], nib_wgmma_descriptor(nib_shared_address(b[3]), 128, 256));
    nib_wgmma_commit();
    nib_wgmma_wait();
    if (threadIdx.x < 4)
        for (int i = 0; i < 16; i += 4) {
            out[i * 2 + 2 * lane] = d[i];
            out[i * 2 + 2 * lane + 1] = d[i + 1];
        }
}

static double value(uint8_t c)
{
    double v = (c & 0x78) == 0 ? ldexp(c & 7, -9) : ldexp(8 + (c & 7), (c >> 3 & 15) - 10);
    return c & 0x80 ? -v : v;
}

static uint8_t power(int e) /* 2^e as e4m3, -9 to 8 */
{
    return (uint8_t)(e < -6 ? 1 << (e + 9) : (e + 7) << 3);
}

static struct operands x;
static struct operands *x_on;
static float           *out_on, out[kTests];

/* Term k of step s of column n: sign * 2^e. */
static void term(int n, int s, int k, int sign, int e)
{
    x.a[s][k] = power(8);
    x.b[n][s][k] = (uint8_t)(power(e - 8) | (sign < 0 ? 0x80 : 0));
}

static void run(void)
{
    cudaMemcpy(x_on, &x, sizeof x, cudaMemcpyHostToDevice);
    multiply<<<1, 128>>>(x_on, out_on);
    cudaError_t e = cudaMemcpy(out, out_on, sizeof out, cudaMemcpyDeviceToHost);
    if (e != cudaSuccess)
        printf("failed: %s\n", cudaGetErrorString(e));
    memset(&x, 0, sizeof x);
}

/* What is left of result minus `large`, in units of 2^(large's exponent - i), for columns i. */
static void show(const char *what, double large, const double *exact)
{
    printf("%-66s", what);
    for (int i = 0; i < 18; i++)
        printf(" %g", ((double)out[i] - large) / exact[i]);
    puts("");
}

int main()
{
    double small[kTests];
    cudaMalloc(&x_on, sizeof x);
    cudaMalloc(&out_on, sizeof out);
    puts("share that is left of terms 2^-i beside 1 (times 2^16), i = 0 to 17:");
    for (int i = 0; i < kTests; i++)
        small[i] = ldexp(1, 16 - i);
    for (int sign = 1; sign >= -1; sign -= 2) {
        for (int place = 1; place < 32; place += 15) {
            for (int i = 0; i < 18; i++)
                term(i, 0, 0, 1, 16), term(i, 0, place, sign, 16 - i);
            run();
            printf("sign %2d, place %2d ", sign, place);
            show("in one product", 65536, small);
        }
        for (int i = 0; i < 18; i++)
            for (int k = 1; k < 32; k++)
                term(i, 0, 0, 1, 16), term(i, 0, k, sign, 16 - i);
        run();
        printf("sign %2d ", sign);
        show("31 of them in one product (whole: 31)", 65536, small);
        for (int i = 0; i < 18; i++)
            term(i, 0, 0, 1, 16), term(i, 1, 0, sign, 16 - i);
        run();
        printf("sign %2d ", sign);
        show("1 in the first product, 2^-i in the second", 65536, small);
        for (int i = 0; i < 18; i++)
            term(i, 0, 0, sign, 16 - i), term(i, 1, 0, 1, 16);
        run();
        printf("sign %2d ", sign);
        show("2^-i in the first product, 1 in the second", 65536, small);
        for (int i = 0; i < 18; i++)
            term(i, 0, 0, 1, 16), term(i, 1, 0, sign, 16 - i), term(i, 2, 0, -1, 16);
        run();
        printf("sign %2d ", sign);
        show("1, then 2^-i, then -1, product by product", 0, small);
        for (int i = 0; i < 18; i++)
            term(i, 0, 0, 1, 16), term(i, 0, 1, sign, 16 - i), term(i, 0, 2, -1, 16);
        run();
        printf("sign %2d ", sign);
        show("1, 2^-i and -1 in one product", 0, small);
    }
    /* Bits that an accumulator keeps: 1 and 2^-i in one product, then products of zeros, or of what is far smaller. */
    for (int i = 0; i < 18; i++)
        term(i, 0, 0, 1, 16), term(i, 0, 1, 1, 16 - i), term(i, 1, 0, 1, 0), term(i, 2, 0, 1, 0);
    run();
    show("1 and 2^-i in one product, then 2^-16 twice", 65536, small);
    /* The mantissas' products: 15/8 * 15/8 = 225/64 beside 2^i. */
    for (int i = 0; i < 10; i++) {
        term(i, 0, 0, 1, i + 3);
        x.a[0][1] = 0x3f, x.b[i][0][1] = 0x3f;
    }
    run();
    printf("225/64 beside 2^(i+3), less it, i = 0 to 9:");
    for (int i = 0; i < 10; i++)
        printf(" %g", ((double)out[i] - ldexp(1, i + 3)) * 64);
    puts("");
    /* Random operands against the exact sum: the largest and the mean square error in units of 2^-13 of the largest
     * term. */
    uint32_t state = 1;
    double   worst = 0, squares = 0, bias = 0;
    int      count = 0;
    for (int round = 0; round < 200; round++) {
        double exact[kTests] = {}, most[kTests] = {};
        for (int s = 0; s < kSteps; s++)
            for (int k = 0; k < 32; k++) {
                state = state * 1664525u + 1013904223u;
                x.a[s][k] = (uint8_t)(0x20 + (state >> 24) % 0x20 + ((state >> 9) & 0x80));
                for (int n = 0; n < kTests; n++) {
                    state = state * 1664525u + 1013904223u;
                    x.b[n][s][k] = (uint8_t)(0x20 + (state >> 24) % 0x20 + ((state >> 9) & 0x80));
                    double v = value(x.a[s][k]) * value(x.b[n][s][k]);
                    exact[n] += v;
                    most[n] = fmax(most[n], fabs(v));
                }
            }
        run();
        for (int n = 0; n < kTests; n++) {
            double off = ((double)out[n] - exact[n]) / ldexp(most[n], -13);
            worst = fmax(worst, fabs(off));
            squares += off * off;
            bias += off * (exact[n] > 0 ? 1 : -1);
            count++;
        }
    }
    printf("128 random terms: error in units of 2^-13 of the largest term: largest %.2f, rms %.3f, mean along the sum "
           "%.3f\n",
           worst, sqrt(squares / count), bias / count);
    return 0;
}
