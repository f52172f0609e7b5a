/* Tensor maps and the copies they describe: a box of a tensor in global memory to and from shared memory. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ptxsim/tensor_parts.h"

/* Words of a map: mark, address, properties, five sizes, four strides, box, element strides, unused, sum. */
#define MAP_MARK 0x31705f7270616d6eull
enum {
    AT_MARK,
    AT_ADDRESS,
    AT_PROPERTIES,
    AT_DIM,
    AT_STRIDE = AT_DIM + 5,
    AT_BOX = AT_STRIDE + 4,
    AT_STEP,
    AT_FREE,
    AT_SUM
};

static _Thread_local char reason[240];

struct map {
    uint64_t address, dim[5], stride[5];
    uint32_t box[5], step[5];
    int      type, rank, swizzle, fill;
};

const char *sim_tensor_map_reason(void)
{
    return reason;
}

static int element_bits(int type)
{
    static const int bits[16] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
    return bits[type];
}

static bool is_float(int type)
{
    return type >= SIM_MAP_F16 && type <= SIM_MAP_TF32_FTZ;
}

static uint64_t sum_of(const struct sim_tensor_map *m)
{
    uint64_t sum = 0;
    for (int i = 0; i < AT_SUM; i++)
        sum = (sum << 7 | sum >> 57) ^ m->word[i];
    return sum;
}

/* ---- Encoding ---- */

static bool refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool refuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return false;
}

static bool check_whole(int type, uint32_t rank, const void *address, int interleave, int swizzle, int l2, int fill)
{
    bool wide = type == SIM_MAP_16U4_ALIGN16B;
    if (type < 0 || type > SIM_MAP_16U6_ALIGN16B || l2 < 0 || l2 > 3 || fill < 0 || fill > 1)
        return refuse("type %d, L2 promotion %d or fill %d is none of the enumerated values", type, l2, fill);
    if (type == SIM_MAP_16U6_ALIGN16B || interleave != 0 || swizzle < 0 || swizzle > SIM_MAP_SWIZZLE_128B)
        return refuse("type %d, interleave %d, swizzle %d: not modelled", type, interleave, swizzle);
    if (rank < 1 || rank > 5)
        return refuse("rank %u: wants 1 to 5", rank);
    if ((uintptr_t)address % (wide ? 32 : 16) != 0)
        return refuse("the tensor's address %p is no multiple of %d", address, wide ? 32 : 16);
    if (wide && swizzle != SIM_MAP_SWIZZLE_NONE && swizzle != SIM_MAP_SWIZZLE_128B)
        return refuse("16U4_ALIGN16B allows no swizzle or 128 bytes");
    if (fill == 1 && !is_float(type))
        return refuse("NaN fill with type %d, which is no floating-point type", type);
    return true;
}

static bool check_dims(int type, uint32_t rank, const uint64_t *dim, const uint64_t *stride, const uint32_t *box,
                       const uint32_t *step, int swizzle)
{
    bool     wide = type == SIM_MAP_16U4_ALIGN16B;
    uint64_t inner = (uint64_t)box[0] * (uint64_t)(wide ? 8 : element_bits(type)) / 8;
    for (uint32_t i = 0; i < rank; i++) {
        if (dim[i] < 1 || dim[i] > 1ull << 32)
            return refuse("size %llu of dimension %u: wants 1 to 2^32", (unsigned long long)dim[i], i);
        if (box[i] < 1 || box[i] > 256)
            return refuse("box size %u of dimension %u: wants 1 to 256", box[i], i);
        if (step[i] < 1 || step[i] > 8)
            return refuse("element stride %u of dimension %u: wants 1 to 8", step[i], i);
    }
    if ((wide && (dim[0] % 128 != 0 || box[0] != 128)) || (type == SIM_MAP_16U4_ALIGN8B && dim[0] % 2 != 0))
        return refuse("packed type: size %llu, box %u of dimension 0", (unsigned long long)dim[0], box[0]);
    if (inner % 16 != 0 || (uint64_t)box[0] * (uint64_t)element_bits(type) % 8 != 0)
        return refuse("the box is %llu bytes wide: wants a multiple of 16", (unsigned long long)inner);
    if (swizzle != SIM_MAP_SWIZZLE_NONE && inner > 16ull << swizzle)
        return refuse("the box is %llu bytes wide under a swizzle of %u", (unsigned long long)inner, 16u << swizzle);
    uint64_t least = (dim[0] * (uint64_t)element_bits(type) + 7) / 8;
    for (uint32_t i = 0; i + 1 < rank; i++) {
        if (stride[i] % (wide ? 32 : 16) != 0 || stride[i] >= 1ull << 40 || stride[i] < least)
            return refuse("stride %llu of dimension %u: wants a multiple of %d below 2^40, at least %llu",
                          (unsigned long long)stride[i], i + 1, wide ? 32 : 16, (unsigned long long)least);
        least = stride[i];
    }
    return true;
}

int sim_tensor_map_encode_tiled(void *out, int type, uint32_t rank, void *address, const uint64_t *dim,
                                const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride,
                                int interleave, int swizzle, int l2, int fill)
{
    struct sim_tensor_map m;
    if ((uintptr_t)out % 64 != 0)
        return refuse("the map's address is no multiple of 64") ? 0 : 1;
    if (!check_whole(type, rank, address, interleave, swizzle, l2, fill) ||
        !check_dims(type, rank, dim, stride_bytes, box, element_stride, swizzle))
        return 1;
    memset(&m, 0, sizeof m);
    m.word[AT_MARK] = MAP_MARK;
    m.word[AT_ADDRESS] = (uintptr_t)address;
    m.word[AT_PROPERTIES] = (uint64_t)type | (uint64_t)rank << 8 | (uint64_t)swizzle << 16 | (uint64_t)fill << 24;
    for (uint32_t i = 0; i < rank; i++) {
        m.word[AT_DIM + i] = dim[i];
        if (i + 1 < rank)
            m.word[AT_STRIDE + i] = stride_bytes[i];
        m.word[AT_BOX] |= (uint64_t)box[i] << 12 * i;
        m.word[AT_STEP] |= (uint64_t)(i == 0 ? 1 : element_stride[i]) << 12 * i; /* ignored for dimension 0 */
    }
    m.word[AT_SUM] = sum_of(&m);
    memcpy(out, &m, sizeof m);
    return 0;
}

static bool decode(const struct sim_tensor_map *from, struct map *m)
{
    if (from->word[AT_MARK] != MAP_MARK || from->word[AT_SUM] != sum_of(from))
        return false;
    memset(m, 0, sizeof *m);
    m->address = from->word[AT_ADDRESS];
    m->type = (int)(from->word[AT_PROPERTIES] & 255);
    m->rank = (int)(from->word[AT_PROPERTIES] >> 8 & 255);
    m->swizzle = (int)(from->word[AT_PROPERTIES] >> 16 & 255);
    m->fill = (int)(from->word[AT_PROPERTIES] >> 24 & 255);
    for (int i = 0; i < 5; i++) {
        m->dim[i] = i < m->rank ? from->word[AT_DIM + i] : 1;
        m->stride[i] = i == 0 ? 0 : from->word[AT_STRIDE + i - 1];
        m->box[i] = i < m->rank ? (uint32_t)(from->word[AT_BOX] >> 12 * i & 0xfff) : 1;
        m->step[i] = i < m->rank ? (uint32_t)(from->word[AT_STEP] >> 12 * i & 0xfff) : 1;
    }
    return true;
}

/* ---- Copies ---- */

/* Rows of the box along dimension i as they stand in shared memory. */
static uint32_t extent(const struct map *m, int i)
{
    return (m->box[i] + m->step[i] - 1) / m->step[i];
}

static uint32_t row_bytes(const struct map *m)
{
    return m->type == SIM_MAP_16U4_ALIGN16B ? m->box[0] : m->box[0] * (uint32_t)element_bits(m->type) / 8;
}

uint32_t sim_tensor_bytes(const struct sim_tensor_map *map, bool gather4)
{
    struct map m;
    if (!decode(map, &m))
        return 0;
    uint32_t n = row_bytes(&m);
    if (gather4)
        return 4 * n;
    for (int i = 1; i < m.rank; i++)
        n *= extent(&m, i);
    return n;
}

/* Where byte `offset` of an unswizzled box at `shared` stands: 16-byte pieces of a line of 128 bytes are permuted
 * by the number of the line, both counted from address 0. */
static uint32_t swizzled(const struct map *m, uint32_t address)
{
    uint32_t mask = m->swizzle == SIM_MAP_SWIZZLE_NONE ? 0 : (1u << m->swizzle) - 1;
    return address ^ (address >> 7 & mask) << 4;
}

static bool begin(const struct sim_tensor_copy *c, struct map *m, struct sim_fault *fault)
{
    if (!decode(c->map, m))
        return sim_fault_set(fault, "tensor copy through something that is no tensor map");
    if (c->n_dims != m->rank)
        return sim_fault_set(fault, "tensor copy of %d dimensions through a map of %d", c->n_dims, m->rank);
    if (c->gather4 && (m->rank != 2 || m->box[1] != 1))
        return sim_fault_set(fault, "gather4 through a map of rank %d, box height %u: wants 2 and 1", m->rank,
                             m->box[1]);
    if (c->shared % 128 != 0)
        return sim_fault_set(fault, "tensor copy at shared address 0x%x: wants a multiple of 128", c->shared);
    if (m->type == SIM_MAP_16U4_ALIGN16B && c->coordinate[0] % 128 != 0)
        return sim_fault_set(fault, "tensor copy of padded 4-bit values at %d: wants a multiple of 128",
                             c->coordinate[0]);
    if (m->type == SIM_MAP_16U4_ALIGN8B && c->coordinate[0] % 2 != 0)
        return sim_fault_set(fault, "tensor copy of 4-bit values at odd %d", c->coordinate[0]);
    return true;
}

/* Row r of the box: its coordinates beyond the first, and whether they are inside. */
static bool row_inside(const struct sim_tensor_copy *c, const struct map *m, uint32_t r, uint64_t *address)
{
    bool inside = true;
    *address = m->address;
    for (int i = 1; i < m->rank; i++) {
        uint32_t n = c->gather4 ? 4 : extent(m, i);
        int64_t  at =
            c->gather4 ? (int64_t)c->coordinate[1 + r] : (int64_t)c->coordinate[i] + (int64_t)(r % n) * m->step[i];
        inside = inside && at >= 0 && (uint64_t)at < m->dim[i];
        *address += (uint64_t)at * m->stride[i];
        r /= n;
    }
    return inside;
}

/* Bytes of the row that the tensor holds: [first, last) of the box's row as it stands in global memory. */
static void inside_bytes(const struct sim_tensor_copy *c, const struct map *m, int64_t *first, int64_t *last)
{
    int64_t bits = element_bits(m->type), x = c->coordinate[0], n = m->box[0], dim = (int64_t)m->dim[0];
    int64_t from = x < 0 ? -x : 0, to = dim - x < n ? dim - x : n;
    *first = from * bits / 8;
    *last = (to < from ? from : to) * bits / 8;
}

static void fill_row(const struct map *m, uint8_t *row, uint32_t n)
{
    static const uint8_t nan16[2] = {0xff, 0x7f}, nan_bf16[2] = {0xff, 0x7f};
    memset(row, 0, n);
    if (!m->fill)
        return;
    size_t size = (size_t)element_bits(m->type) / 8;
    for (uint32_t i = 0; i < n; i++) {
        size_t at = i % size;
        row[i] = size == 2 ? (m->type == SIM_MAP_BF16 ? nan_bf16 : nan16)[at] : at + 1 == size ? 0x7f : 0xff;
    }
}

bool sim_tensor_load(const struct sim_tensor_copy *c, const struct sim_global *from, const struct sim_shared *to,
                     struct sim_fault *fault)
{
    struct map m;
    uint8_t    row[8 * 256], wide[8 * 256];
    if (!begin(c, &m, fault))
        return false;
    uint32_t width = row_bytes(&m), n_rows = sim_tensor_bytes(c->map, c->gather4) / width;
    int64_t  first, last;
    inside_bytes(c, &m, &first, &last);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint64_t address;
        bool     inside = row_inside(c, &m, r, &address);
        fill_row(&m, row, sizeof row);
        if (inside && last > first) {
            address += (uint64_t)((int64_t)c->coordinate[0] * element_bits(m.type) / 8 + first);
            const uint8_t *bytes = from->at(from->context, false, address, (uint64_t)(last - first));
            if (!bytes)
                return sim_fault_set(fault,
                                     "tensor copy reads global [0x%llx, +%lld), which is not memory of the kernel",
                                     (unsigned long long)address, (long long)(last - first));
            memcpy(row + first, bytes, (size_t)(last - first));
        }
        if (m.type == SIM_MAP_16U4_ALIGN16B) { /* 8 bytes, then 8 that nobody may read: poison */
            memset(wide, 0xa5, sizeof wide);
            for (uint32_t i = 0; i < width / 16; i++)
                memcpy(wide + 16 * (size_t)i, row + 8 * (size_t)i, 8);
            memcpy(row, wide, width);
        }
        for (uint32_t i = 0; i < width; i += 16) {
            uint8_t *at = sim_shared_at(to, true, swizzled(&m, c->shared + r * width + i), 16, fault);
            if (!at)
                return false;
            memcpy(at, row + i, 16);
        }
    }
    return true;
}

bool sim_tensor_store(const struct sim_tensor_copy *c, const struct sim_shared *from, const struct sim_global *to,
                      struct sim_fault *fault)
{
    struct map m;
    uint8_t    row[8 * 256];
    if (!begin(c, &m, fault))
        return false;
    if (m.type == SIM_MAP_16U4_ALIGN16B)
        return sim_fault_set(fault, "tensor store of padded 4-bit values: loads only");
    uint32_t width = row_bytes(&m), n_rows = sim_tensor_bytes(c->map, c->gather4) / width;
    int64_t  first, last;
    inside_bytes(c, &m, &first, &last);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint64_t address;
        bool     inside = row_inside(c, &m, r, &address);
        for (uint32_t i = 0; i < width; i += 16) {
            const uint8_t *at = sim_shared_at(from, false, swizzled(&m, c->shared + r * width + i), 16, fault);
            if (!at)
                return false;
            memcpy(row + i, at, 16);
        }
        if (!inside || last <= first)
            continue;
        address += (uint64_t)((int64_t)c->coordinate[0] * element_bits(m.type) / 8 + first);
        uint8_t *bytes = to->at(to->context, true, address, (uint64_t)(last - first));
        if (!bytes)
            return sim_fault_set(fault, "tensor copy writes global [0x%llx, +%lld), which is not memory of the kernel",
                                 (unsigned long long)address, (long long)(last - first));
        memcpy(bytes, row + first, (size_t)(last - first));
    }
    return true;
}
