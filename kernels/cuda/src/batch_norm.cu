// Batch normalisation of [N, C, S]: y = (x - mean) * factor + bias with factor = scale / sqrt(var + eps), one rounding for
// each operation. Statistics of a batch are those of all elements of a channel, the variance the mean of squares.
#include "planes.cuh"

// Statistics of some numbers: joined as their weighted mean, and squares around it (Chan et al. 1979).
struct Moments {
    A count, mean, squares;
};
COC_FN Moments swapped(Moments m, int by) {
    const A count = swapped(m.count, by), mean = swapped(m.mean, by), squares = swapped(m.squares, by);
    return {count, mean, squares};
}
struct Join {
    COC_FN Moments operator()(Moments a, Moments b) const {
        const A count = a.count + b.count;
        if (count == (A)0) return a;
        if (a.count == (A)0) return b;
        if (b.count == (A)0) return a;
        const A d = a.mean - b.mean;
        return {count, (a.mean * a.count + b.mean * b.count) / count,
                a.squares + b.squares + d * d * (a.count * b.count / count)};
    }
};

COC_FN A root_of(A x) { return sqrt(x); }
struct Factors {
    A mean, factor, bias;
    COC_FN A operator()(A x) const { return (x - mean) * factor + bias; }
};
COC_FN Factors factors_of(const PAR* scale, const PAR* bias, A mean, A var, A eps, unsigned channel) {
    return {mean, (A)widen(scale[channel]) / root_of(var + eps), (A)widen(bias[channel])};
}

// A block a channel, whose numbers stay in registers: K units of V a thread.
template <int V, int K>
COC_FN void held(const NUM* x, const PAR* scale, const PAR* bias, NUM* y, PAR* mean, PAR* var, int channels, int units, int all,
                 A count, A eps) {
    const Planes planes = {blockIdx.x, (unsigned)channels, (unsigned)units};
    A values[K * V], squares[K * V];
    const int there = read_units<V, K>(values, x, planes, threadIdx.x, all, blockDim.x);
    const A m = over_block(sum_of(values), (A)0, Add()) / count;
#pragma unroll
    for (int i = 0; i < K * V; i++) squares[i] = i / V < there ? (values[i] - m) * (values[i] - m) : (A)0;
    const A v = over_block(sum_of(squares), (A)0, Add()) / count;
    const Factors f = factors_of(scale, bias, m, v, eps, blockIdx.x);
#pragma unroll
    for (int i = 0; i < K * V; i++) values[i] = f(values[i]);
    write_units<V, K>(y, values, planes, threadIdx.x, there, blockDim.x);
    if (threadIdx.x == 0) mean[blockIdx.x] = narrow<PAR>(m), var[blockIdx.x] = narrow<PAR>(v);
}

// Statistics of a part of a channel: [C, splits, 3].
template <int V, int K>
COC_FN void moments(const NUM* x, A* parts, int channels, int units, int all, int splits, int chunk) {
    const unsigned channel = blockIdx.x / splits, split = blockIdx.x - channel * splits;
    const Planes planes = {channel, (unsigned)channels, (unsigned)units};
    const Part part = part_of(split, chunk, all);
    Moments mine = {0, 0, 0};
    for (unsigned first = part.first + threadIdx.x; first < part.last; first += K * blockDim.x) {
        A values[K * V];
        const int there = read_units<V, K>(values, x, planes, first, part.last, blockDim.x);
        const A count = (A)(there * V), mean = sum_of(values) / count;
#pragma unroll
        for (int i = 0; i < K * V; i++) values[i] = i / V < there ? (values[i] - mean) * (values[i] - mean) : (A)0;
        mine = Join()(mine, {count, mean, sum_of(values)});
    }
    mine = over_block(mine, Moments{0, 0, 0}, Join());
    if (threadIdx.x == 0) {
        A* to = parts + (i64)blockIdx.x * 3;
        to[0] = mine.count, to[1] = mine.mean, to[2] = mine.squares;
    }
}

template <int V>
COC_FN void normalise(const NUM* x, NUM* y, Factors f, Planes planes, Part part) {
    for (unsigned i = part.first + threadIdx.x; i < part.last; i += blockDim.x) {
        const i64 at = planes.at(i) * V;
        Pack<NUM, V> pack;
        pack.read(x + at);
#pragma unroll
        for (int v = 0; v < V; v++) pack.put(v, f(pack.get(v)));
        pack.write(y + at);
    }
}
// The result from those statistics, which every warp joins.
template <int V>
COC_FN void joined(const NUM* x, const PAR* scale, const PAR* bias, const A* parts, NUM* y, PAR* mean, PAR* var, int channels,
                   int units, int all, int splits, int chunk, A eps) {
    const unsigned channel = blockIdx.x / splits, split = blockIdx.x - channel * splits;
    Moments mine = {0, 0, 0};
    for (int i = threadIdx.x & 31; i < splits; i += 32) {
        const A* from = parts + ((i64)channel * splits + i) * 3;
        mine = Join()(mine, {from[0], from[1], from[2]});
    }
    mine = over_lanes(mine, 32, Join());
    const A v = mine.squares / mine.count;
    if (split == 0 && threadIdx.x == 0) mean[channel] = narrow<PAR>(mine.mean), var[channel] = narrow<PAR>(v);
    normalise<V>(x, y, factors_of(scale, bias, mine.mean, v, eps, channel), {channel, (unsigned)channels, (unsigned)units},
                 part_of(split, chunk, all));
}
// The result from given statistics.
template <int V>
COC_FN void given(const NUM* x, const PAR* scale, const PAR* bias, const PAR* mean, const PAR* var, NUM* y, int channels,
                  int units, int all, int splits, int chunk, A eps) {
    const unsigned channel = blockIdx.x / splits, split = blockIdx.x - channel * splits;
    const Factors f = factors_of(scale, bias, (A)widen(mean[channel]), (A)widen(var[channel]), eps, channel);
    normalise<V>(x, y, f, {channel, (unsigned)channels, (unsigned)units}, part_of(split, chunk, all));
}

#define FORMS(suffix, V, K)                                                                                                \
    KERNEL_BLOCKS(cuda_batch_norm_held##suffix, 512, 1, const NUM* x, const PAR* scale, const PAR* bias, NUM* y, PAR* mean,   \
                  PAR* var, int channels, int units, int all, A count, A eps) {                                            \
        held<V, K>(x, scale, bias, y, mean, var, channels, units, all, count, eps);                                        \
    }                                                                                                                      \
    KERNEL_BOUNDS(cuda_batch_norm_moments##suffix, 256, const NUM* x, A* parts, int channels, int units, int all,          \
                  int splits, int chunk) {                                                                                 \
        moments<V, K / 2>(x, parts, channels, units, all, splits, chunk);                                                  \
    }                                                                                                                      \
    KERNEL_BOUNDS(cuda_batch_norm_joined##suffix, 256, const NUM* x, const PAR* scale, const PAR* bias, const A* parts,    \
                  NUM* y, PAR* mean, PAR* var, int channels, int units, int all, int splits, int chunk, A eps) {           \
        joined<V>(x, scale, bias, parts, y, mean, var, channels, units, all, splits, chunk, eps);                          \
    }                                                                                                                      \
    KERNEL_BOUNDS(cuda_batch_norm_given##suffix, 256, const NUM* x, const PAR* scale, const PAR* bias, const PAR* mean,    \
                  const PAR* var, NUM* y, int channels, int units, int all, int splits, int chunk, A eps) {                \
        given<V>(x, scale, bias, mean, var, y, channels, units, all, splits, chunk, eps);                                  \
    }
FORMS(, 1, 16)
FORMS(_wide, WIDE, 32 / WIDE)
#if NUM_BYTES == 2
FORMS(_four, 4, 8)  // halves in planes like 14 x 14
#endif

// [N, C]: blockDim.x channels a block, the rows over blockDim.y threads, a power of two.
KERNEL_BOUNDS(cuda_batch_norm_columns, 256, const NUM* x, const PAR* scale, const PAR* bias, NUM* y, PAR* mean, PAR* var, int n,
              int channels, A eps) {
    SHARED(Moments, parts, 256);
    const int channel = blockIdx.x * blockDim.x + threadIdx.x, thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int rows = channel < channels ? n : 0;
    Moments mine = {0, 0, 0};
    for (int i = threadIdx.y; i < rows; i += blockDim.y)
        mine = Join()(mine, {1, (A)widen(x[(i64)i * channels + channel]), 0});
    parts[thread] = mine;
    for (int by = blockDim.y / 2; by; by /= 2) {
        __syncthreads();
        if (threadIdx.y < by) parts[thread] = mine = Join()(mine, (Moments)parts[thread + by * blockDim.x]);
    }
    __syncthreads();
    if (rows == 0) return;
    mine = parts[threadIdx.x];
    const A v = mine.squares / mine.count;
    const Factors f = factors_of(scale, bias, mine.mean, v, eps, channel);
    for (int i = threadIdx.y; i < rows; i += blockDim.y) {
        const i64 at = (i64)i * channels + channel;
        y[at] = narrow<NUM>(f((A)widen(x[at])));
    }
    if (threadIdx.y == 0) mean[channel] = narrow<PAR>(mine.mean), var[channel] = narrow<PAR>(v);
}
// [N, C] with given statistics.
KERNEL(cuda_batch_norm_given_columns, const NUM* x, const PAR* scale, const PAR* bias, const PAR* mean, const PAR* var, NUM* y,
       i64 size, int channels, A eps) {
    FOR_EACH(i, size) {
        const unsigned channel = size >> 32 ? (unsigned)(i % channels) : (unsigned)i % (unsigned)channels;
        const Factors f = factors_of(scale, bias, (A)widen(mean[channel]), (A)widen(var[channel]), eps, channel);
        y[i] = narrow<NUM>(f((A)widen(x[i])));
    }
}

// The next running statistics, of which each gets a part `taken` of those of a batch.
KERNEL(cuda_running_statistics, const PAR* mean, const PAR* var, const PAR* of_batch, const PAR* spread, PAR* next_mean,
       PAR* next_var, i64 channels, A kept, A taken, A correction) {
    FOR_EACH(i, channels) {
        next_mean[i] = narrow<PAR>((A)widen(mean[i]) * kept + (A)widen(of_batch[i]) * taken);
        next_var[i] = narrow<PAR>((A)widen(var[i]) * kept + (A)widen(spread[i]) * correction * taken);
    }
}
