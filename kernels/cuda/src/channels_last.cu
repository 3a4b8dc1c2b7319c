// Pooling of arrays [N,H,W,C]. TYPE: that of an element; PACK: neighbouring channels that a thread pools; MAXIMUM: 1 for the
// largest of a window, 0 for the mean.
struct alignas(PACK * sizeof(TYPE)) Packed {
    TYPE v[PACK];
};
struct Windows {
    int height, width, packs, rows, columns, tall, wide, down, across, top, left, all;  // all: borders count in a mean
};

KERNEL(cuda_pool_last, const TYPE* x, TYPE* y, i64 count, Windows s) {
    FOR_EACH(at, count) {
        const int pack = (int)(at % s.packs);
        const i64 pixel = at / s.packs;
        const int column = (int)(pixel % s.columns), row = (int)(pixel / s.columns % s.rows);
        const i64 image = pixel / s.columns / s.rows * s.height;
        const int top = row * s.down - s.top, left = column * s.across - s.left;
        const int first = top > 0 ? top : 0, begin = left > 0 ? left : 0;
        const int last = min(top + s.tall, s.height), end = min(left + s.wide, s.width);
        wide_t<TYPE> found[PACK];
#pragma unroll
        for (int k = 0; k < PACK; k++) found[k] = MAXIMUM ? -__uint_as_float(0x7f800000) : 0;
        for (int i = first; i < last; i++)
            for (int j = begin; j < end; j++) {
                const Packed one = *(const Packed*)(x + (((image + i) * s.width + j) * s.packs + pack) * PACK);
#pragma unroll
                for (int k = 0; k < PACK; k++) {
                    const wide_t<TYPE> v = widen(one.v[k]);
                    if (MAXIMUM)
                        found[k] = v > found[k] || v != v ? v : found[k];
                    else
                        found[k] += v;
                }
            }
        const int taken = s.all ? s.tall * s.wide : max((last - first) * (end - begin), 1);
        Packed out;
#pragma unroll
        for (int k = 0; k < PACK; k++) out.v[k] = narrow<TYPE>(MAXIMUM ? found[k] : found[k] / taken);
        *(Packed*)(y + at * PACK) = out;
    }
}
