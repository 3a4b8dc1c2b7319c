// Softmax and its logarithm along rows, or along the middle axis of [outer, n, inner]. Macro: NUM, the type of elements.
// exp and log are those of the reference; sums have an order of their own.
#include "functions.cuh"
#include "rows.cuh"
typedef NUM T;
typedef wide_t<T> A;
#define WIDE (16 / (int)sizeof(T))
// Loads that a thread of a block keeps in registers: of halves fewer, whose conversions need some, too.
#define HELD(V) ((V == 1 ? 16 : (sizeof(T) == 2 ? 24 : 32) / V) / (sizeof(T) == 8 ? 4 : 1))

COC_FN double power_of_distance(double x) { return exp_of(x); }
COC_FN A lowest() { return (A)__uint_as_float(0xff800000u); }
COC_FN A result(A distance, A end, int log) { return log ? distance - end : power_of_distance(distance) / end; }

// The largest number so far, and the sum of exp(x - largest).
struct Online {
    A most, sum;
};
COC_FN Online joined(Online a, Online b) {
    if (b.most > a.most) {
        const Online c = a;
        a = b, b = c;
    }
    if (b.sum == (A)0) return a;  // of nothing, or of -inf
    return {a.most, a.sum + (a.most == b.most ? b.sum : b.sum * exp_of(b.most - a.most))};
}
struct Join {
    COC_FN Online operator()(Online a, Online b) const { return joined(a, b); }
};
COC_FN Online swapped(Online v, int by) {
    const A most = swapped(v.most, by), sum = swapped(v.sum, by);
    return {most, sum};
}
COC_FN void add(Online& o, A x) {
    if (x > o.most) {
        o.sum = o.sum == (A)0 ? (A)1 : o.sum * exp_of(o.most - x) + (A)1;
        o.most = x;
    } else if (x != lowest()) {
        o.sum += exp_of(x - o.most);
    }
}
// As the reference has it: infinity - infinity is not a number.
COC_FN Online ended(Online o) { return {o.most, o.most < -lowest() ? o.sum : o.most - o.most}; }

// A row in registers: `width` threads have K loads of V elements each.
template <int V, int K>
struct Held {
    A x[K * V];
    COC_FN void read(const T* p, int units, int first, int width) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int unit = first + k * width;
            Pack<T, V> pack;
            if (unit < units) pack.read(p + unit * V);
#pragma unroll
            for (int v = 0; v < V; v++) x[k * V + v] = unit < units ? pack.get(v) : lowest();
        }
    }
    COC_FN A most() const {
        A m = x[0];
#pragma unroll
        for (int i = 1; i < K * V; i++) m = Larger()(m, x[i]);
        return m;
    }
    // The sum of exp(x - m); elements become these powers, or the differences where the logarithm is wanted.
    COC_FN A powers(A m, int units, int first, int width, int log) {
        A sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            A part = 0;
#pragma unroll
            for (int v = 0; v < V; v++) {
                const A distance = x[k * V + v] - m, power = power_of_distance(distance);
                x[k * V + v] = log ? distance : power;
                part += power;
            }
            if (first + k * width < units) sum += part;
        }
        return sum;
    }
    COC_FN void write(T* p, A end, int units, int first, int width, int log) const {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int unit = first + k * width;
            if (unit >= units) continue;
            Pack<T, V> pack;
#pragma unroll
            for (int v = 0; v < V; v++) pack.put(v, log ? x[k * V + v] - end : x[k * V + v] / end);
            pack.write(p + unit * V);
        }
    }
};

// 1 << shift lanes a row.
template <int V, int K>
COC_FN void lanes(const T* x, T* y, i64 rows, i64 n, int shift, int log) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) >> shift;
    const int width = 1 << shift, lane = threadIdx.x & (width - 1);
    const int units = row < rows ? (int)n / V : 0;
    Held<V, K> held;
    held.read(x + row * n, units, lane, width);
    const A m = over_lanes(held.most(), width, Larger());
    const A sum = over_lanes(held.powers(m, units, lane, width, log), width, Add());
    held.write(y + row * n, log ? log_of(sum) : sum, units, lane, width, log);
}

// A block a row of up to HELD(V) loads a thread.
template <int V>
COC_FN void block(const T* x, T* y, i64 n, int log) {
    const i64 at = blockIdx.x * n;
    const int units = (int)n / V;
    Held<V, HELD(V)> held;
    held.read(x + at, units, threadIdx.x, blockDim.x);
    const A m = over_block(held.most(), lowest(), Larger());
    const A sum = over_block(held.powers(m, units, threadIdx.x, blockDim.x, log), (A)0, Add());
    held.write(y + at, log ? log_of(sum) : sum, units, threadIdx.x, blockDim.x, log);
}

// A block a row of any length, which is read twice.
template <int V>
COC_FN void long_row(const T* x, T* y, i64 n, int log) {
    const i64 at = blockIdx.x * n, units = n / V;
    Online mine[V];
#pragma unroll
    for (int v = 0; v < V; v++) mine[v] = {lowest(), (A)0};
    for (i64 unit = threadIdx.x; unit < units; unit += blockDim.x) {
        Pack<T, V> pack;
        pack.read(x + at + unit * V);
#pragma unroll
        for (int v = 0; v < V; v++) add(mine[v], pack.get(v));
    }
#pragma unroll
    for (int v = V - 1; v; v--) mine[(v - 1) / 2] = joined(mine[(v - 1) / 2], mine[v]);
    const Online all = ended(over_block(mine[0], Online{lowest(), (A)0}, Join()));
    const A end = log ? log_of(all.sum) : all.sum;
    for (i64 unit = threadIdx.x; unit < units; unit += blockDim.x) {
        Pack<T, V> pack;
        pack.read(x + at + unit * V);
#pragma unroll
        for (int v = 0; v < V; v++) pack.put(v, result(pack.get(v) - all.most, end, log));
        pack.write(y + at + unit * V);
    }
}

#define ROWS(name, V)                                                                                            \
    KERNEL_BOUNDS(cuda_softmax_block##name, 512, const T* x, T* y, i64 n, int log) { block<V>(x, y, n, log); } \
    KERNEL_BOUNDS(cuda_softmax_long##name, 512, const T* x, T* y, i64 n, int log) { long_row<V>(x, y, n, log); }
#define LANES(name, V, K)                                                                               \
    KERNEL_BOUNDS(cuda_softmax_lanes##name##_##K, 256, const T* x, T* y, i64 rows, i64 n, int shift, int log) { \
        lanes<V, K>(x, y, rows, n, shift, log);                                                         \
    }
ROWS(, 1)
ROWS(_wide, WIDE)
LANES(, 1, 1)
LANES(, 1, 4)
LANES(, 1, 16)
LANES(_wide, WIDE, 1)
LANES(_wide, WIDE, 4)

// A column of [outer, n, inner] by blockDim.y threads, blockDim.x columns a block: two powers of two.
KERNEL_BOUNDS(cuda_softmax_columns, 256, const T* x, T* y, i64 columns, i64 n, i64 inner, int log) {
    SHARED(Online, parts, 256);
    const i64 column = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const i64 outer = columns >> 32 ? column / inner : (unsigned)column / (unsigned)inner;
    const i64 at = outer * n * inner + (column - outer * inner), last = column < columns ? n : 0;
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    Online mine = {lowest(), (A)0};
    for (i64 i = threadIdx.y; i < last; i += blockDim.y) add(mine, (A)widen(x[at + i * inner]));
    if (blockDim.y > 1) {
        parts[thread] = mine;
        for (int by = blockDim.y / 2; by; by /= 2) {
            __syncthreads();
            if (threadIdx.y < by) parts[thread] = mine = joined(mine, (Online)parts[thread + by * blockDim.x]);
        }
        __syncthreads();
        mine = parts[threadIdx.x];
    }
    mine = ended(mine);
    const A end = log ? log_of(mine.sum) : mine.sum;
    for (i64 i = threadIdx.y; i < last; i += blockDim.y)
        y[at + i * inner] = narrow<T>(result((A)widen(x[at + i * inner]) - mine.most, end, log));
}
