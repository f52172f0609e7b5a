/* The reference device itself: its place in the list, refusals, memory, copies, and weights. */
#include <string.h>

#include "unit/ref_rig.h"

static void is_in_the_list(void **state)
{
    (void)state;
    const struct nib_backend_api *const *all = nib_backends();
    int                                  n = 0;
    for (; all[n]; n++)
        assert_ptr_equal(nib_backend_find(all[n]->name), all[n]);
    assert_true(n >= 2);
    assert_ptr_equal(nib_backend_find("ref"), &nib_backend_ref);
    assert_null(nib_backend_find("abacus"));
    assert_null(nib_backend_find(NULL));
    const void *const *slot = (const void *const *)(const void *)nib_backend_ref.ops;
    for (size_t i = 0; i < sizeof(struct nib_ops) / sizeof *slot; i++)
        assert_non_null(slot[i]);
}

/* Each of these must fail with its name in the text. */
static void refuses_nonsense(void **state)
{
    (void)state;
    const struct nib_backend_config good = rig_config(1);
    struct nib_backend             *b;
    struct nib_error                err;
    const struct {
        size_t      offset;
        const char *name;
    } field[] = {
        {offsetof(struct nib_dims, n_rows_max), "n_rows_max"}, {offsetof(struct nib_dims, n_seqs_max), "n_seqs_max"},
        {offsetof(struct nib_dims, n_ctx_max), "n_ctx_max"},   {offsetof(struct nib_dims, dim), "dim"},
        {offsetof(struct nib_dims, n_hc), "n_hc"},             {offsetof(struct nib_dims, n_heads), "n_heads"},
        {offsetof(struct nib_dims, head_dim), "head_dim"},     {offsetof(struct nib_dims, n_rot), "n_rot"},
        {offsetof(struct nib_dims, n_window), "n_window"},     {offsetof(struct nib_dims, top_k), "top_k"},
        {offsetof(struct nib_dims, n_inner), "n_inner"},       {offsetof(struct nib_dims, vocab), "vocab"},
    };
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        const int32_t bad[2] = {-1, INT32_MAX};
        for (int k = 0; k < 2; k++) {
            struct nib_backend_config c = good;
            memcpy((char *)&c.dims + field[i].offset, &bad[k], sizeof bad[k]);
            b = (struct nib_backend *)&c;
            assert_int_equal(nib_backend_ref.open(&c, &b, &err), NIB_E_ARGUMENT);
            assert_null(b);
            assert_non_null(strstr(err.text, field[i].name));
            assert_int_equal(nib_backend_ref.scratch_bytes(&c), 0);
        }
    }
    struct nib_backend_config c = good;
    c.dims.n_rot = 15;
    assert_int_equal(nib_backend_ref.open(&c, &b, NULL), NIB_E_ARGUMENT);
    c = good;
    c.n_threads = -1;
    assert_int_equal(nib_backend_ref.open(&c, &b, NULL), NIB_E_ARGUMENT);
    nib_backend_ref.close(NULL);
}

static void memory_and_copies(void **state)
{
    (void)state;
    static const unsigned char zero[1000];
    struct rig                 r;
    char                       text[16] = "nibble", back[16] = "";
    rig_open(&r, 0);
    unsigned char *p = rig_alloc(&r, 1000), *q = rig_alloc(&r, 1000);
    assert_int_equal((uintptr_t)p % 256, 0);
    assert_memory_equal(p, zero, sizeof zero);
    assert_non_null(rig_alloc(&r, 0));
    assert_null(nib_backend_ref.alloc(r.b, SIZE_MAX));
    nib_backend_ref.release(r.b, NULL);
    assert_int_equal(nib_backend_ref.upload(r.s, p, text, sizeof text), NIB_OK);
    assert_int_equal(nib_backend_ref.copy(r.s, q, p, sizeof text), NIB_OK);
    assert_int_equal(nib_backend_ref.download(r.s, back, q, sizeof back), NIB_OK);
    assert_int_equal(nib_backend_ref.synchronise(r.s), NIB_OK);
    assert_string_equal(back, "nibble");
    struct nib_backend_config c = rig_config(2), wide = c;
    wide.dims.n_rows_max *= 2;
    assert_true(nib_backend_ref.scratch_bytes(&c) > 0);
    assert_true(nib_backend_ref.scratch_bytes(&wide) > nib_backend_ref.scratch_bytes(&c));
    rig_close(&r);
}

static void weight_sizes_and_refusals(void **state)
{
    (void)state;
    struct rig             r;
    struct nib_weight     *w;
    struct nib_error       err;
    uint8_t                bytes[64] = {0};
    struct nib_weight_part part[2] = {{bytes, bytes, 1}, {bytes, bytes, 1}};
    struct nib_weight_desc d = {NIB_WEIGHT_NVFP4, NIB_ACT_PLAIN, 2, 130, 4096, part, NIB_USE_ANY};
    rig_open(&r, 1);
    assert_int_equal(nib_backend_ref.weight_bytes(&d), 2 * (130 * (2048 + 256) + 4));
    d.type = NIB_WEIGHT_MXFP4;
    assert_int_equal(nib_backend_ref.weight_bytes(&d), 2 * 130 * (2048 + 128));
    d.type = NIB_WEIGHT_FP8;
    assert_int_equal(nib_backend_ref.weight_bytes(&d), 2 * (130 * 4096 + 2 * 32));
    d.type = NIB_WEIGHT_BF16;
    assert_int_equal(nib_backend_ref.weight_bytes(&d), 2 * 130 * 4096 * 2);
    d = (struct nib_weight_desc){NIB_WEIGHT_NVFP4, NIB_ACT_PLAIN, 1, 1, 24, part, NIB_USE_ANY};
    assert_int_equal(nib_backend_ref.weight_pack(r.b, &d, &w, &err), NIB_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "24 columns"));
    assert_null(w);
    d.type = NIB_WEIGHT_MXFP4;
    d.n_in = 48;
    assert_int_equal(nib_backend_ref.weight_pack(r.b, &d, &w, &err), NIB_E_UNSUPPORTED);
    d.n_in = 32;
    d.n_stack = 0;
    assert_int_equal(nib_backend_ref.weight_pack(r.b, &d, &w, &err), NIB_E_ARGUMENT);
    d.n_stack = 2;
    part[1].scales = NULL;
    assert_int_equal(nib_backend_ref.weight_pack(r.b, &d, &w, &err), NIB_E_ARGUMENT);
    part[1] = (struct nib_weight_part){NULL, bytes, 1};
    assert_int_equal(nib_backend_ref.weight_pack(r.b, &d, &w, NULL), NIB_E_ARGUMENT);
    nib_backend_ref.weight_free(r.b, NULL);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_in_the_list),
        cmocka_unit_test(refuses_nonsense),
        cmocka_unit_test(memory_and_copies),
        cmocka_unit_test(weight_sizes_and_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
