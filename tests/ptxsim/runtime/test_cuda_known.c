/* The self-test of Blackwell's kernels runs once for a card, driver and program where there is a file for it, in the
 * simulator's 10.0: launches are counted, and where a weight is packed for says whose kernels multiply it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/cuda.h"
#include "ptxsim/runtime/runtime_stub.h"
#include "ptxsim/runtime/small_dims.h"

enum { OUT = 16, IN = SMALL_COLS };

static const struct nib_backend_api *const api = &nib_backend_cuda;

static char path[] = "/tmp/nibble-known-XXXXXX";

/* Opens an engine's backend and packs a weight of NVFP4 rows. ran: whether the self-test did; own: whether the weight is
 * for the card's own kernels. failed: as nib_device_info has it. */
static void open_once(const char *file, bool *ran, bool *own, char *failed, size_t failed_bytes)
{
    const struct nib_backend_config config = {.selftest_file = file, .dims = SMALL_DIMS};
    uint8_t                codes[OUT * IN / 2] = {0}, scales[OUT * IN / 16] = {0};
    struct nib_weight_part part = {codes, scales, 1};
    struct nib_weight_desc desc = {NIB_WEIGHT_NVFP4, NIB_ACT_NVFP4, 1, OUT, IN, &part, NIB_USE_ANY};
    struct nib_device_info info;
    struct nib_error       err = {0};
    struct nib_backend    *b = NULL;
    struct nib_weight     *w = NULL;
    int                    before = ptxsim_launches("nib_sm100a_norm") + ptxsim_launches("nib_sm100a_linear_one");
    if (api->open(&config, &b, &err) != NIB_OK || api->weight_pack(b, &desc, &w, &err) != NIB_OK)
        fail_msg("%s", err.text);
    *ran = ptxsim_launches("nib_sm100a_norm") + ptxsim_launches("nib_sm100a_linear_one") > before;
    *own = ((const struct nib_cuda_weight *)(const void *)w)->m.layout == NIB_CUDA_ATOMS;
    assert_int_equal(api->device(0, &info, &err), NIB_OK);
    (void)snprintf(failed, failed_bytes, "%s", info.failed);
    api->weight_free(b, w);
    api->close(b);
}

static void expect(const char *file, bool runs, bool own, const char *failed)
{
    char text[sizeof ((struct nib_device_info *)0)->failed];
    bool ran, is_own;
    open_once(file, &ran, &is_own, text, sizeof text);
    assert_int_equal(ran, runs);
    assert_int_equal(is_own, own);
    if (failed ? !strstr(text, failed) : text[0] != 0)
        fail_msg("the device says '%s', wanted '%s'", text, failed ? failed : "");
}

static void once(void **state)
{
    (void)state;
    expect(path, true, true, NULL);
    expect(path, false, true, NULL);
    (void)setenv("NIB_PTXSIM_DRIVER", "13010", 1); /* another driver; what was found under the first one stays */
    expect(path, true, true, NULL);
    expect(path, false, true, NULL);
    (void)unsetenv("NIB_PTXSIM_DRIVER");
    expect(path, false, true, NULL);
}

static void damaged(void **state)
{
    (void)state;
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    for (int c = 0; (c = fgetc(f)) != EOF;)
        if (c == '\n') { /* the first byte of every line */
            (void)fseek(f, 0, SEEK_CUR);
            (void)fputc('x', f);
            (void)fseek(f, 0, SEEK_CUR);
        }
    assert_int_equal(fclose(f), 0);
    expect(path, true, true, NULL);
    expect(path, false, true, NULL);
}

/* What failed once is not tried again: the generic kernels go on, and the reason is still said. */
static void failure(void **state)
{
    (void)state;
    (void)unlink(path);
    (void)setenv("NIB_PTXSIM_SKIP", "nib_sm100a_linear_one", 1);
    expect(path, true, false, "sm100a linear_one");
    (void)unsetenv("NIB_PTXSIM_SKIP");
    expect(path, false, false, "sm100a linear_one");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(once), cmocka_unit_test(damaged), cmocka_unit_test(failure)};
    (void)setenv("NIB_PTXSIM_CARD", "100", 1);
    (void)setenv("NIB_PTXSIM_RACES", "0", 1); /* other tests look for them in these kernels */
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    (void)close(fd);
    (void)unlink(path);
    int code = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return code;
}
