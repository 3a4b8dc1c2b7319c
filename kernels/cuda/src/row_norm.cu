// Normalisation of rows: y = (x - mean) / sqrt(mean of squares + eps), times a factor and plus another of each place.
// Macro: NUM, the type of elements. Each operation rounds once; sums have an order of their own.
#include "rows.cuh"
typedef NUM T;
typedef wide_t<NUM> A;
#define WIDE (16 / (int)sizeof(T))

struct Options {
    int centred, reciprocal;  // whether the mean is subtracted; whether the result is a product with 1 / root
    A n, eps;
};

// `width` threads have K loads of V elements each; `there` of them are inside the row.
template <int V, int K>
struct Held {
    A x[K * V];
    int there;
    COC_FN void read(const T* p, int units, int first, int width) {
        there = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int unit = first + k * width;
            Pack<T, V> pack;
            if (unit < units) pack.read(p + unit * V), there++;
#pragma unroll
            for (int v = 0; v < V; v++) x[k * V + v] = unit < units ? pack.get(v) : (A)0;
        }
    }
    COC_FN A sum() const {
        A sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            A part = x[k * V];
#pragma unroll
            for (int v = 1; v < V; v++) part += x[k * V + v];
            sum += part;
        }
        return sum;
    }
    COC_FN A squares(A mean, int centred) {
        A sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            A part = 0;
#pragma unroll
            for (int v = 0; v < V; v++) {
                if (centred) x[k * V + v] -= mean;
                part += x[k * V + v] * x[k * V + v];
            }
            if (k < there) sum += part;
        }
        return sum;
    }
    COC_FN void write(T* p, const T* factor, const T* shift, A root, int reciprocal, int first, int width) const {
        const A inverse = (A)1 / root;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (k >= there) continue;
            const int at = (first + k * width) * V;
            Pack<T, V> pack, factors, shifts;
            if (factor) factors.read(factor + at);
            if (shift) shifts.read(shift + at);
#pragma unroll
            for (int v = 0; v < V; v++) {
                A y = reciprocal ? x[k * V + v] * inverse : x[k * V + v] / root;
                if (factor) y = y * factors.get(v);
                if (shift) y = y + shifts.get(v);
                pack.put(v, y);
            }
            pack.write(p + at);
        }
    }
};

// 1 << shift lanes a row.
template <int V, int K>
COC_FN void lanes(const T* x, const T* factor, const T* shift, T* y, i64 rows, i64 n, int power, Options o) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) >> power;
    const int width = 1 << power, lane = threadIdx.x & (width - 1);
    Held<V, K> held;
    held.read(x + row * n, row < rows ? (int)n / V : 0, lane, width);
    const A mean = over_lanes(held.sum(), width, Add()) / o.n;
    const A root = sqrt(over_lanes(held.squares(mean, o.centred), width, Add()) / o.n + o.eps);
    held.write(y + row * n, factor, shift, root, o.reciprocal, lane, width);
}
template <int V, int K>
COC_FN void block(const T* x, const T* factor, const T* shift, T* y, i64 n, Options o) {
    Held<V, K> held;
    held.read(x + blockIdx.x * n, (int)n / V, threadIdx.x, blockDim.x);
    const A mean = over_block(held.sum(), (A)0, Add()) / o.n;
    const A root = sqrt(over_block(held.squares(mean, o.centred), (A)0, Add()) / o.n + o.eps);
    held.write(y + blockIdx.x * n, factor, shift, root, o.reciprocal, threadIdx.x, blockDim.x);
}

// A block a row of any length, which is read three times: K * V elements of a thread at once.
template <int V, int K>
COC_FN void long_row(const T* x, const T* factor, const T* shift, T* y, i64 n, Options o) {
    const i64 at = blockIdx.x * n, step = (i64)K * V * blockDim.x;
    A sum = 0, squares = 0;
    for (i64 first = 0; o.centred && first < n; first += step) {
        Held<V, K> held;
        held.read(x + at + first, (int)((n - first < step ? n - first : step) / V), threadIdx.x, blockDim.x);
        sum += held.sum();
    }
    const A mean = over_block(sum, (A)0, Add()) / o.n;
    for (i64 first = 0; first < n; first += step) {
        Held<V, K> held;
        held.read(x + at + first, (int)((n - first < step ? n - first : step) / V), threadIdx.x, blockDim.x);
        squares += held.squares(mean, o.centred);
    }
    const A root = sqrt(over_block(squares, (A)0, Add()) / o.n + o.eps);
    for (i64 first = 0; first < n; first += step) {
        Held<V, K> held;
        held.read(x + at + first, (int)((n - first < step ? n - first : step) / V), threadIdx.x, blockDim.x);
        held.squares(mean, o.centred);
        held.write(y + at + first, factor ? factor + first : factor, shift ? shift + first : shift, root, o.reciprocal,
                   threadIdx.x, blockDim.x);
    }
}

#define ARRAYS const T *x, const T *factor, const T *shift, T *y
#define OPTIONS int centred, int reciprocal, A count, A eps
#define LANES(suffix, V, K)                                                                        \
    KERNEL_BOUNDS(cuda_row_norm_lanes##suffix, 256, ARRAYS, i64 rows, i64 n, int power, OPTIONS) { \
        lanes<V, K>(x, factor, shift, y, rows, n, power, {centred, reciprocal, count, eps});       \
    }
#define BLOCKS(suffix, V, K)                                                             \
    KERNEL_BLOCKS(cuda_row_norm_block##suffix, 512, 1, ARRAYS, i64 n, OPTIONS) {         \
        block<V, K>(x, factor, shift, y, n, {centred, reciprocal, count, eps});          \
    }                                                                                    \
    KERNEL_BOUNDS(cuda_row_norm_long##suffix, 512, ARRAYS, i64 n, OPTIONS) {             \
        long_row<V, (sizeof(T) == 8 ? 1 : K < 4 ? K : 4)>(x, factor, shift, y, n, {centred, reciprocal, count, eps}); \
    }
LANES(_4, 1, 4)
LANES(_8, 1, 8)
LANES(_wide_1, WIDE, 1)
LANES(_wide_4, WIDE, 4)
BLOCKS(, 1, (sizeof(T) == 8 ? 8 : 16))
BLOCKS(_wide, WIDE, ((sizeof(T) == 8 ? 8 : 32) / WIDE))

// The mean over `window` neighbouring channels of [N, C, S], from c - before on; there are zeros beyond the channels.
KERNEL(cuda_channel_mean, const T* x, T* y, i64 n, int channels, i64 inner, int window, int before) {
    const i64 column = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= inner) return;
    for (i64 plane = blockIdx.y; plane < n * channels; plane += gridDim.y) {
        const int c = (int)(plane % channels), first = c - before;
        A sum = 0;
        for (int k = first < 0 ? 0 : first; k < first + window && k < channels; k++)
            sum += (A)widen(x[(plane - c + k) * inner + column]);
        y[plane * inner + column] = narrow<T>(sum / (A)window);
    }
}

// A block a group of `each` channels of [N, C, S]: normalised, then times the weights of the channels, plus the biases,
// `pairs` times. Factors are rows of C; the result is rounded once.
KERNEL_BOUNDS(cuda_channel_norm, 256, const T* x, const T* factors, T* y, int groups, int each, i64 inner, int pairs,
              A count, A eps) {
    const i64 n = each * inner, at = blockIdx.x * n;
    const int first = (int)(blockIdx.x % groups) * each, channels = groups * each;
    A sum = 0, squares = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) sum += widen(x[at + i]);
    const A mean = over_block(sum, (A)0, Add()) / count;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
        const A v = widen(x[at + i]) - mean;
        squares += v * v;
    }
    const A root = sqrt(over_block(squares, (A)0, Add()) / count + eps);
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
        const int c = first + (int)(i / inner);
        A v = (widen(x[at + i]) - mean) / root;
        for (int k = 0; k < 2 * pairs; k += 2)
            v = v * widen(factors[(i64)k * channels + c]) + widen(factors[(i64)(k + 1) * channels + c]);
        y[at + i] = narrow<T>(v);
    }
}
