/* Tensor maps and box copies against loops over elements that know nothing of rows or pieces. */
#include "ptxsim/tensor_rig.h"

static struct sim_fault fault;

/* ---- Memory ---- */

struct memory {
    uint8_t *bytes;
    uint64_t n;
};

static uint8_t *at(void *context, bool write, uint64_t address, uint64_t n)
{
    struct memory *m = context;
    uint64_t       first = (uint64_t)(uintptr_t)m->bytes;
    (void)write;
    return address >= first && n <= m->n && address - first <= m->n - n ? m->bytes + (address - first) : NULL;
}

static _Alignas(1024) uint8_t global_bytes[1 << 20], shared_bytes[1 << 17], before[1 << 17], stored[1 << 20];
static const uint32_t shared_base = 0x400;

static struct sim_shared shared_now(void)
{
    return (struct sim_shared){.bytes = shared_bytes, .base = shared_base, .size = sizeof shared_bytes};
}

struct shape {
    int      type, bits, rank, swizzle, fill;
    uint64_t dim[5], stride[4];
    uint32_t box[5], step[5];
    int32_t  at[5];
};

static int encode(const struct shape *s, struct sim_tensor_map *map)
{
    return sim_tensor_map_encode_tiled(map, s->type, (uint32_t)s->rank, global_bytes, s->dim, s->stride, s->box,
                                       s->step, 0, s->swizzle, 2, s->fill);
}

/* Bit address in global memory of element `i` of the box (coordinates), or -1 outside. */
static int64_t source_bit(const struct shape *s, const int *i, bool gather)
{
    int64_t bit = 0;
    for (int d = 0; d < s->rank; d++) {
        int64_t c =
            gather && d == 1 ? s->at[1 + i[1]] : (int64_t)s->at[d] + (d == 0 ? i[d] : i[d] * (int64_t)s->step[d]);
        if (c < 0 || c >= (int64_t)s->dim[d])
            return -1;
        bit += c * (d == 0 ? s->bits : (int64_t)s->stride[d - 1] * 8);
    }
    return bit;
}

/* Where element `i` of the box stands in shared memory, in bits, by the tables of swizzling: a line of 128 bytes
 * holds 8 pieces; line l of the pattern has piece p where p ^ (l mod span/16) stands. */
static uint64_t target_bit(const struct shape *s, const int *i, const uint32_t *n, uint32_t address)
{
    uint64_t index = 0, bit;
    for (int d = s->rank - 1; d > 0; d--)
        index = (index + (uint64_t)i[d]) * (d > 1 ? n[d - 1] : 1);
    uint64_t row = s->type == SIM_MAP_16U4_ALIGN16B ? s->box[0] * 8ull : s->box[0] * (uint64_t)s->bits;
    uint64_t in_row = s->type == SIM_MAP_16U4_ALIGN16B ? (uint64_t)i[0] / 16 * 128 + (uint64_t)i[0] % 16 * 4
                                                       : (uint64_t)i[0] * (uint64_t)s->bits;
    bit = (uint64_t)address * 8 + index * row + in_row;
    uint64_t byte = bit / 8, line = byte / 128, piece = byte % 128 / 16,
             pieces = s->swizzle == 0 ? 1 : 1ull << s->swizzle;
    piece ^= line % pieces;
    return (line * 128 + piece * 16 + byte % 16) * 8 + bit % 8;
}

static uint64_t bits_at(const uint8_t *p, uint64_t bit, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < (n + 7) / 8; i++)
        v |= (uint64_t)p[bit / 8 + (uint64_t)i] << 8 * i;
    v >>= bit % 8;
    return n == 64 ? v : v & ((1ull << n) - 1);
}

static uint64_t outside(const struct shape *s)
{
    if (!s->fill)
        return 0;
    return s->bits == 16 ? 0x7fff : s->bits == 32 ? 0x7fffffff : 0x7fffffffffffffff;
}

/* Loads the box and checks every element and that nothing else changed; stores it back over other bytes. */
static void check(const struct shape *s, bool gather)
{
    struct sim_tensor_map  map;
    struct memory          m = {global_bytes, sizeof global_bytes};
    struct sim_global      global = {at, &m};
    struct sim_shared      shared = shared_now();
    struct sim_tensor_copy copy = {.map = &map, .n_dims = s->rank, .gather4 = gather, .shared = shared_base + 0x2080};
    uint64_t               seed = 77, n_bytes = 1;
    uint32_t               n[5] = {1, 1, 1, 1, 1};
    static uint8_t         hit[sizeof shared_bytes];
    if (s->swizzle == 3)
        copy.shared = shared_base + 0x2400;
    memcpy(copy.coordinate, s->at, sizeof copy.coordinate);
    for (size_t i = 0; i < sizeof shared_bytes; i++)
        before[i] = shared_bytes[i] = (uint8_t)rig_random(&seed);
    if (encode(s, &map) != 0)
        fail_msg("%s", sim_tensor_map_reason());
    for (int d = 0; d < s->rank; d++) {
        n[d] = gather && d == 1 ? 4 : d == 0 ? s->box[0] : (s->box[d] + s->step[d] - 1) / s->step[d];
        n_bytes *= n[d];
    }
    n_bytes = s->type == SIM_MAP_16U4_ALIGN16B ? n_bytes : n_bytes * (uint64_t)s->bits / 8;
    assert_int_equal(sim_tensor_bytes(&map, gather), n_bytes);
    RIG_OK(sim_tensor_load(&copy, &global, &shared, &fault));

    memset(hit, 0, sizeof hit);
    memcpy(stored, global_bytes, sizeof stored);
    int i[5] = {0};
    for (uint64_t e = 0, total = (uint64_t)n[0] * n[1] * n[2] * n[3] * n[4]; e < total; e++) {
        int64_t  from = source_bit(s, i, gather);
        uint64_t to = target_bit(s, i, n, copy.shared) - shared_base * 8ull;
        assert_true(bits_at(shared_bytes, to, s->bits) ==
                    (from < 0 ? outside(s) : bits_at(global_bytes, (uint64_t)from, s->bits)));
        for (uint64_t b = to / 8; b <= (to + (uint64_t)s->bits - 1) / 8; b++)
            hit[b] = 1;
        if (from >= 0) /* what the store of inverted bytes will leave */
            for (int b = 0; b < s->bits; b++)
                stored[(from + b) / 8] ^= (uint8_t)(1 << (from + b) % 8);
        for (int d = 0; d < 5 && ++i[d] == (int)n[d]; d++)
            i[d] = 0;
    }
    if (s->type == SIM_MAP_16U4_ALIGN16B) {
        RIG_FAULT(sim_tensor_store(&copy, &shared, &global, &fault), "loads only");
        return;
    }
    for (size_t b = 0; b < sizeof shared_bytes; b++) {
        assert_true(hit[b] || shared_bytes[b] == before[b]);
        shared_bytes[b] = (uint8_t)~shared_bytes[b];
    }
    RIG_OK(sim_tensor_store(&copy, &shared, &global, &fault));
    assert_memory_equal(global_bytes, stored, sizeof stored);
}

static void fill_global(void)
{
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof global_bytes; i++)
        global_bytes[i] = (uint8_t)rig_random(&seed);
}

/* ---- Tests ---- */

static void boxes_of_every_kind(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        /* codes of NVFP4 as bytes: 128-byte rows, ragged right and below */
        {SIM_MAP_U8, 8, 2, 3, 0, {1000, 61}, {1008}, {128, 32}, {1, 1}, {896, 40}},
        {SIM_MAP_U8, 8, 2, 3, 0, {1000, 61}, {1008}, {128, 32}, {1, 1}, {0, 0}},
        {SIM_MAP_U8, 8, 2, 2, 0, {1000, 61}, {1008}, {64, 64}, {1, 1}, {-16, -3}},
        {SIM_MAP_U8, 8, 2, 1, 0, {999, 61}, {1008}, {32, 64}, {1, 1}, {990, 1}},
        {SIM_MAP_U8, 8, 2, 0, 0, {1000, 61}, {1008}, {256, 16}, {1, 1}, {2000, 3}},
        {SIM_MAP_16U4_ALIGN8B, 4, 2, 3, 0, {2000, 61}, {1008}, {256, 32}, {1, 1}, {1792, 40}},
        {SIM_MAP_16U4_ALIGN16B, 4, 2, 3, 0, {1920, 61}, {1024}, {128, 32}, {1, 1}, {1792, 40}},
        {SIM_MAP_BF16, 16, 2, 3, 0, {500, 61}, {1008}, {64, 40}, {1, 1}, {460, 30}},
        {SIM_MAP_BF16, 16, 2, 2, 1, {500, 61}, {1008}, {32, 40}, {1, 1}, {-7, 30}},
        {SIM_MAP_F32, 32, 3, 0, 1, {33, 20, 12}, {144, 3024}, {16, 5, 4}, {1, 1, 1}, {24, 17, 10}},
        {SIM_MAP_F64, 64, 2, 3, 1, {50, 61}, {1008}, {16, 7}, {1, 1}, {44, 58}},
        {SIM_MAP_F16, 16, 4, 1, 0, {40, 9, 7, 5}, {96, 960, 7680}, {16, 4, 3, 2}, {1, 1, 2, 1}, {32, 6, 3, 4}},
        {SIM_MAP_U16,
         16,
         5,
         0,
         0,
         {40, 9, 7, 3, 2},
         {96, 960, 7680, 30720},
         {8, 6, 7, 2, 2},
         {1, 3, 8, 1, 1},
         {3, -2, -1, 2, 0}},
        {SIM_MAP_U32, 32, 1, 0, 0, {1001}, {0}, {64}, {1}, {960}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        fill_global();
        check(&shapes[i], false);
    }
}

static void gathered_rows(void **state)
{
    (void)state;
    static const struct shape rows = {SIM_MAP_U8, 8,      2,        3,      0,
                                      {1000, 61}, {1008}, {128, 1}, {1, 1}, {896, 60, 3, 61, -1}};
    fill_global();
    check(&rows, true);
    struct shape tall = rows;
    tall.box[1] = 4;
    struct sim_tensor_map  map;
    struct memory          m = {global_bytes, sizeof global_bytes};
    struct sim_global      global = {at, &m};
    struct sim_shared      shared = shared_now();
    struct sim_tensor_copy copy = {.map = &map, .n_dims = 2, .gather4 = true, .shared = shared_base};
    assert_int_equal(encode(&tall, &map), 0);
    RIG_FAULT(sim_tensor_load(&copy, &global, &shared, &fault), "gather4");
}

static void misuse_is_a_fault(void **state)
{
    (void)state;
    static const struct shape good = {SIM_MAP_U8, 8, 2, 3, 0, {1024, 64}, {1024}, {128, 32}, {1, 1}, {0, 0}};
    struct sim_tensor_map     map;
    struct memory             m = {global_bytes, 1024 * 63};
    struct sim_global         global = {at, &m};
    struct sim_shared         shared = shared_now();
    struct sim_tensor_copy    copy = {.map = &map, .n_dims = 2, .coordinate = {0, 32}, .shared = shared_base};
    assert_int_equal(encode(&good, &map), 0);
    RIG_FAULT(sim_tensor_load(&copy, &global, &shared, &fault), "not memory of the kernel"); /* the map says 64 rows */
    copy.coordinate[1] = 0;
    RIG_OK(sim_tensor_load(&copy, &global, &shared, &fault));
    copy.shared += 64;
    RIG_FAULT(sim_tensor_load(&copy, &global, &shared, &fault), "multiple of 128");
    copy.shared = shared_base + sizeof shared_bytes - 1024;
    RIG_FAULT(sim_tensor_load(&copy, &global, &shared, &fault), "outside");
    copy.shared = shared_base;
    copy.n_dims = 3;
    RIG_FAULT(sim_tensor_load(&copy, &global, &shared, &fault), "3 dimensions");
    map.word[5] ^= 1;
    RIG_FAULT(sim_tensor_load(&copy, &global, &shared, &fault), "no tensor map");
    assert_int_equal(sim_tensor_bytes(&map, false), 0);

    static const struct {
        struct shape s;
        const char  *part;
    } wrong[] = {
        {{SIM_MAP_U8, 8, 2, 3, 0, {1024, 64}, {1000}, {128, 32}, {1, 1}, {0}}, "stride 1000"},
        {{SIM_MAP_U8, 8, 2, 3, 0, {1024, 64}, {512}, {128, 32}, {1, 1}, {0}}, "at least 1024"},
        {{SIM_MAP_U8, 8, 2, 3, 0, {1024, 64}, {1024}, {144, 32}, {1, 1}, {0}}, "swizzle"},
        {{SIM_MAP_U8, 8, 2, 0, 0, {1024, 64}, {1024}, {120, 32}, {1, 1}, {0}}, "multiple of 16"},
        {{SIM_MAP_U8, 8, 2, 3, 0, {1024, 64}, {1024}, {128, 257}, {1, 1}, {0}}, "box size 257"},
        {{SIM_MAP_U8, 8, 2, 3, 0, {1024, 64}, {1024}, {128, 32}, {1, 9}, {0}}, "element stride 9"},
        {{SIM_MAP_U8, 8, 2, 3, 0, {1024, 0}, {1024}, {128, 32}, {1, 1}, {0}}, "size 0"},
        {{SIM_MAP_U8, 8, 6, 3, 0, {1024, 64}, {1024}, {128, 32}, {1, 1}, {0}}, "rank 6"},
        {{SIM_MAP_U8, 8, 2, 3, 1, {1024, 64}, {1024}, {128, 32}, {1, 1}, {0}}, "NaN fill"},
        {{SIM_MAP_16U4_ALIGN16B, 4, 2, 3, 0, {2000, 64}, {1024}, {128, 32}, {1, 1}, {0}}, "packed type"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(encode(&wrong[i].s, &map), 1);
        if (!strstr(sim_tensor_map_reason(), wrong[i].part))
            fail_msg("the reason is '%s' and should mention '%s'", sim_tensor_map_reason(), wrong[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_of_every_kind),
        cmocka_unit_test(gathered_rows),
        cmocka_unit_test(misuse_is_a_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
