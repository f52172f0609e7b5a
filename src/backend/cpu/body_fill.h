/* Body of a rung, the table; VEC_STORE_PAST(p, v) is a store past the caches, if the rung has one. */

/* Only whole lines go past the caches: a part of one would be read first. The fence is for whoever reads them next. */
static void rows_past(const float *src, int64_t src_stride, int32_t n_rows, int32_t n, float *dst, int64_t dst_stride)
{
#ifdef VEC_STORE_PAST
    if ((uintptr_t)dst % 64 == 0 && dst_stride % 16 == 0 && n % 16 == 0) {
        for (int32_t r = 0; r < n_rows; r++)
            for (int32_t i = 0; i < n; i += VEC_FLOATS)
                VEC_STORE_PAST(dst + r * dst_stride + i, *(const vec *)(const void *)(src + r * src_stride + i));
        _mm_sfence();
        return;
    }
#endif
    for (int32_t r = 0; r < n_rows; r++)
        memcpy(dst + r * dst_stride, src + r * src_stride, sizeof(float) * (size_t)n);
}

static void fill_all(struct nib_cpu_kernels *k)
{
    for (int32_t out = 0; out < NIB_CPU_PANEL; out++)
        for (int32_t i = 0; i < NIB_CPU_OCTET; i++) {
            k->order.fp4[fp4_place(out, i / 2)] = (uint8_t)(4 * out + i / 2);
            k->order.fp8[fp8_place(out, i)] = (uint8_t)(8 * out + i);
            k->order.bf16[bf16_place(out, i)] = (uint8_t)(8 * out + i);
        }
    k->tile_plain = tile_plain;
    k->tile_codes = tile_codes;
    k->tile_bf16 = NULL;
    k->bf16_take = NULL;
    k->codes_open = codes_open;
    k->dot_rows = dot_rows;
    k->add_weighted = add_weighted;
    k->dot_bf16 = dot_bf16;
    k->add_bf16 = add_bf16;
    k->rotary_angles = rotary_angles;
    k->rotate = rotate;
    k->hadamard = hadamard;
    k->select_top = select_top;
    k->choose_top = choose_top;
    k->route_scores = route_scores;
    k->largest = largest;
    k->sum_doubles = sum_doubles;
    k->fp4_dots = fp4_dots;
    k->fp4_scores = fp4_scores;
    k->fp4_query_open = fp4_query_open;
    k->add_positive = add_positive;
    k->sum_squares = sum_squares;
    k->scale_by = scale_by;
    k->exp_shifted = exp_shifted;
    k->softmax_scores = softmax_scores;
    k->swiglu = swiglu;
    k->rows_past = rows_past;
    k->bf16_decode = bf16_decode;
    k->bf16_encode = bf16_encode;
    k->bf16_round = bf16_round;
    k->fp8_encode = fp8_encode;
    k->fp8_decode = fp8_decode;
    k->nvfp4_encode = nvfp4_encode;
    k->nvfp4_decode = nvfp4_decode;
    k->fp4_encode = fp4_encode;
    k->fp4_decode = fp4_decode;
    k->int8_encode = int8_encode;
    k->int8_decode = int8_decode;
}
