// The largest number of each window, or the mean. PACK numbers of neighbouring channels a thread. MEAN: 0, or 1 for means.
#include "rows.cuh"
#include "pooling.cuh"

// What numbers are added in, and what sums are divided in.
template <class T>
struct Sum {
    typedef T type;
    typedef T quotient;
};
#define SUMS_OF(T, wide)          \
    template <>                   \
    struct Sum<T> {               \
        typedef wide type;        \
        typedef double quotient;  \
    };
SUMS_OF(s8, i64)
SUMS_OF(short, i64)
SUMS_OF(int, i64)
SUMS_OF(i64, i64)
SUMS_OF(u8, unsigned long long)
SUMS_OF(unsigned short, unsigned long long)
SUMS_OF(unsigned, unsigned long long)
SUMS_OF(unsigned long long, unsigned long long)

using Number = wide_t<TYPE>;

#if MEAN
// rounded: whether means of integers go to the nearest, halves away from zero; else towards zero. padded: whether places
// outside count.
struct State {
    using S = Sum<Number>::type;
    using Q = Sum<Number>::quotient;
    S sum[PACK];
    COC_FN State() {
#pragma unroll
        for (int k = 0; k < PACK; k++) sum[k] = 0;
    }
    COC_FN void take(int k, Number v, bool inside) { sum[k] = sum[k] + (inside ? (S)v : (S)0); }
    COC_FN Number result(int k, Q count, int rounded) const {
        const Q mean = (Q)sum[k] / count;
        if constexpr (sizeof(Q) == sizeof(double) && (Number)0.5f == (Number)0) return (Number)(rounded ? mean + (mean < 0 ? -0.5 : 0.5) : mean);
        return (Number)mean;
    }
};
#else
struct State {
    Number best[PACK];
    COC_FN State() {
#pragma unroll
        for (int k = 0; k < PACK; k++) best[k] = Lowest<Number>::value();
    }
    COC_FN void take(int k, Number v, bool) { best[k] = v > best[k] || v != v ? v : best[k]; }
    template <class Q>
    COC_FN Number result(int k, Q, int) const {
        return best[k];
    }
};
#endif

KERNEL_BLOCKS(cuda_pool, 256, PACK > 8 ? 2 : 3, const TYPE* x, TYPE* y, Windows w, int channels, i64 planes, int padded, int rounded) {
    const unsigned packs = channels / PACK, place = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned pixel = packs == 1 ? place : place / packs, first = (place - pixel * packs) * PACK;
    const i64 inputs = volume(w.size) * channels, outputs = volume(w.count) * channels;
    if (pixel >= volume(w.count)) return;
    const Window at(w, pixel);
    const int counted = padded ? w.kernel[0] * w.kernel[1] * w.kernel[2] : at.inside();
    EACH_PLANE(plane, planes) {
        const TYPE* from = x + plane * inputs + first;
        State state;
        each_tap(w, at, [&](int there, int, bool inside) {
            Pack<TYPE, PACK> pack;
            pack.read(from + (i64)there * channels);
#pragma unroll
            for (int k = 0; k < PACK; k++) state.take(k, pack.get(k), inside);
        });
        Pack<TYPE, PACK> out;
#pragma unroll
        for (int k = 0; k < PACK; k++) out.put(k, state.result(k, counted, rounded));
        out.write(y + plane * outputs + (i64)pixel * channels + first);
    }
}
