/* FP8 and NVFP4 rows for many queries of few sequences: every row that one of them may attend to is decoded to BF16
 * once, which is exact, into scratch; attention then reads it as if it were stored so. The row scale of an NVFP4 row
 * stands behind it and multiplies scores and weights.
 *
 * There a sequence's window rows are pages of their own from the first needed one on, and its entries follow one
 * another.
 * Page tables of the same form as the step's name them. */
#include "backend/cuda/attend_cuda.h"
#include "backend/cuda/device/attended.cuh"
#include "backend/cuda/device/launch.cuh"

constexpr int kWarps = 8, kThreads = 32 * kWarps, kUnit = 32; /* rows of a block */
/* With fewer rows, all and of a sequence, or more entries for each row than this, decoding in place is faster: decoding
 * ahead saves 0.4 us a row, and an entry takes 0.4 ns. */
constexpr int kRowsLeast = 128, kRowsEach = 64, kEntriesMost = 1024;
static __host__ __device__ __forceinline__ int64_t decoded_bytes(enum nib_row_format f)
{
    return 2 * kAttendDim + (f == NIB_ROW_NVFP4 ? 16 : 0);
}

/* Scratch of the call. */
struct decoded {
    int32_t *window_page, *entry_page; /* [n_seqs][page_stride] */
    uint8_t *window, *entries;
    int32_t  n_window_units; /* of a sequence at most */
};

/* The window of n rows spans at most n / 128 pages and these. */
static __host__ __device__ __forceinline__ int32_t pages_beside(const struct nib_attend_args &a)
{
    return (a.n_window + NIB_PAGE_TOKENS - 1) / NIB_PAGE_TOKENS + 2;
}

/* The page in scratch of a sequence's first window page. */
NIB_DEVICE int32_t first_window_page(const struct nib_attend_args &a, const struct nib_rows &rows, int32_t seq)
{
    return rows.seq_start[seq] / NIB_PAGE_TOKENS + pages_beside(a) * seq;
}

/* Grid (units of window rows, then of entries; sequences). */
static __global__ void __launch_bounds__(kThreads)
    attend_decode(const struct nib_attend_args a, const struct nib_rows rows, const struct decoded to)
{
    nib_grid_start();
    int32_t seq = (int32_t)blockIdx.y, unit = (int32_t)blockIdx.x, end, first;
    int64_t pages = seq * rows.page_stride, base;
    if (rows.seq_start[seq] == rows.seq_start[seq + 1])
        return;
    int32_t low = max(rows.first_pos, rows.pos[rows.seq_start[seq]] - a.n_window + 1),
            high = rows.pos[rows.seq_start[seq + 1] - 1] + 1;
    bool                    window = unit < to.n_window_units;
    const struct nib_store &store = window ? a.window : a.entries;
    const int32_t          *page = (window ? rows.window_page : rows.entry_page) + pages;
    int32_t                *named = (window ? to.window_page : to.entry_page) + pages;
    uint8_t                *out = window ? to.window : to.entries;
    if (window) { /* positions, from the first one of the first needed page on */
        int32_t own = low / NIB_PAGE_TOKENS;
        first = own * NIB_PAGE_TOKENS + unit * kUnit;
        end = min(high, first + kUnit);
        base = ((int64_t)first_window_page(a, rows, seq) - own) * NIB_PAGE_TOKENS;
    } else {
        first = (unit - to.n_window_units) * kUnit;
        end = min(high / a.ratio, first + kUnit);
        base = pages * store.page_rows;
        low = 0;
    }
    for (int32_t i = first + (int32_t)threadIdx.x; i < end; i += kThreads)
        if (i % store.page_rows == 0)
            named[i / store.page_rows] = (int32_t)((base + i) / store.page_rows);
    for (int32_t i = max(low, first) + (int32_t)threadIdx.x / 32; i < end; i += kWarps) {
        const uint8_t *row = nib_store_at(store, page, i);
        uint16_t      *into = (uint16_t *)(out + (base + i) * decoded_bytes(store.format));
        if (store.format == NIB_ROW_FP8)
            nib_attend_load_fp8(row, into, threadIdx.x % 32);
        else
            nib_attend_load_nvfp4(row, into, (float *)(into + kAttendDim), threadIdx.x % 32);
    }
}

/* Lays out the scratch; false where there is too little. */
static bool lay_out(const struct nib_stream *s, const struct nib_attend_args *a, struct decoded *to)
{
    int64_t n_seqs = a->rows->n_seqs, table = n_seqs * a->rows->page_stride,
            window = (a->rows->n_rows / NIB_PAGE_TOKENS + pages_beside(*a) * n_seqs) * NIB_PAGE_TOKENS,
            entries = a->ratio ? table * a->entries.page_rows : 0, at = (2 * table * 4 + 255) / 256 * 256,
            row_bytes = decoded_bytes(a->window.format);
    to->window_page = (int32_t *)s->attend;
    to->entry_page = to->window_page + table;
    to->window = (uint8_t *)s->attend + at;
    to->entries = to->window + window * row_bytes;
    to->n_window_units = (a->rows->n_rows / NIB_PAGE_TOKENS + pages_beside(*a)) * (NIB_PAGE_TOKENS / kUnit);
    return at + (window + entries) * row_bytes <= s->n_attend_max * (int64_t)sizeof *s->attend;
}

bool nib_cuda_attend_decode(struct nib_stream *s, const struct nib_attend_args *a, struct nib_attend_args *plain,
                            struct nib_rows *rows)
{
    struct decoded to;
    int32_t        n_rows = a->rows->n_rows, n_seqs = a->rows->n_seqs;
    int64_t        entries = a->ratio ? (int64_t)s->dims.n_ctx_max / a->ratio : 0; /* of a sequence at most */
    enum nib_row_format f = a->window.format;
    if ((f != NIB_ROW_FP8 && f != NIB_ROW_NVFP4) || n_rows < kRowsLeast || n_rows < n_seqs * kRowsEach ||
        n_rows < n_seqs * entries / kEntriesMost || !lay_out(s, a, &to))
        return false;
    dim3 grid((unsigned)(to.n_window_units + (entries + kUnit - 1) / kUnit), (unsigned)n_seqs);
    nib_launch(s, attend_decode, grid, kThreads, 0, *a, *a->rows, to);
    *plain = *a;
    *rows = *a->rows;
    rows->window_page = to.window_page;
    rows->entry_page = to.entry_page;
    plain->rows = rows;
    plain->window.base = to.window;
    plain->entries.base = to.entries;
    plain->window.format = plain->entries.format = NIB_ROW_BF16;
    plain->window.row_bytes = plain->entries.row_bytes = decoded_bytes(f);
    return true;
}
