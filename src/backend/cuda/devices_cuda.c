/* The cards of this machine: what they are, what is free on them, and whether this build can use them. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda.h"

/* Of device 0, for every engine of the process: cards do not change, and neither does what they get wrong. */
static pthread_mutex_t failed_lock = PTHREAD_MUTEX_INITIALIZER;
static char            failed_text[sizeof ((struct nib_device_info *)0)->failed];

void nib_cuda_device_failed(const char *fmt, ...)
{
    char    text[sizeof failed_text];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)pthread_mutex_lock(&failed_lock);
    size_t used = strlen(failed_text);
    /* Engine after engine finds the same; what does not fit any more is cut off. */
    if (!strstr(failed_text, text) && snprintf(failed_text + used, sizeof failed_text - used, "%s%s", used ? "; and " : "", text) < 0)
        failed_text[used] = 0;
    (void)pthread_mutex_unlock(&failed_lock);
}

/* NIB_OK and the number of cards, at least 1; otherwise why there is none. */
static enum nib_status count_devices(int *n, struct nib_error *err)
{
    *n = 0;
    cudaError_t e = cudaGetDeviceCount(n);
    (void)cudaGetLastError();
    if (e == cudaErrorInsufficientDriver)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "cuda: no NVIDIA driver, or one older than CUDA %d.%d needs", CUDART_VERSION / 1000,
                             CUDART_VERSION % 1000 / 10);
    if (e != cudaSuccess)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "cuda: no usable device: %s", cudaGetErrorString(e));
    if (*n < 1)
        return nib_error_set(err, NIB_E_UNSUPPORTED, "cuda: no usable device: none is installed");
    return NIB_OK;
}

enum nib_status nib_cuda_device(int32_t i, struct nib_device_info *out, struct nib_error *err)
{
    struct cudaDeviceProp prop;
    int                   n, current = 0;
    size_t                available = 0, total = 0;
    memset(out, 0, sizeof *out);
    NIB_TRY(count_devices(&n, err));
    if (i < 0 || i >= n)
        return nib_error_set(err, NIB_E_ARGUMENT, "cuda: device %d is asked for, there are %d", i, n);
    cudaError_t e = cudaGetDevice(&current);
    if (e == cudaSuccess)
        e = cudaSetDevice(i);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&prop, i);
    if (e == cudaSuccess)
        e = cudaMemGetInfo(&available, &total);
    if (e == cudaSuccess) {
        out->usable = nib_cuda_runs_here();
        (void)snprintf(out->name, sizeof out->name, "%.*s (compute capability %d.%d)", 90, prop.name, prop.major, prop.minor);
        out->total_bytes = total;
        out->available_bytes = available;
        out->exact = true;
        if (i == 0) {
            (void)pthread_mutex_lock(&failed_lock);
            memcpy(out->failed, failed_text, sizeof failed_text);
            (void)pthread_mutex_unlock(&failed_lock);
        }
        if (!out->usable)
            (void)snprintf(out->why_not, sizeof out->why_not, "this build holds kernels for %s", NIB_CUDA_TARGET_NAMES);
        else if (prop.major == 10 || prop.major == 12)
            (void)snprintf(out->note, sizeof out->note,
                           "kernels for it are compiled and simulated, not yet run on such a card; those for "
                           "quantised activations are tested on it before use");
    }
    (void)cudaSetDevice(current);
    (void)cudaGetLastError();
    if (e != cudaSuccess)
        return nib_error_set(err, NIB_E_DEVICE, "cuda: device %d: %s%s", i, cudaGetErrorString(e),
                             e == cudaErrorDevicesUnavailable ? " (its memory is taken, or another process has it for itself)" : "");
    return NIB_OK;
}
