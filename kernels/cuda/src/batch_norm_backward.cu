// The gradient of batch normalisation by the statistics of the batch, over [N, C, S]. With r = 1 / sqrt(var + eps) and
// h = (x - mean) r: dbias = sum(ct), dscale = sum(ct h), dx = (ct - dbias / count - h dscale / count) scale r.
#include "planes.cuh"

struct Sums {
    A total, moment;
};
COC_FN Sums swapped(Sums s, int by) {
    const A total = swapped(s.total, by), moment = swapped(s.moment, by);
    return {total, moment};
}

struct Channel {
    A mean, r, scale;
};
COC_FN Channel channel_of(const PAR* scale, const PAR* mean, const PAR* var, A eps, unsigned channel) {
    return {(A)widen(mean[channel]), (A)1 / sqrt((A)widen(var[channel]) + eps), (A)widen(scale[channel])};
}
struct Join {
    COC_FN Sums operator()(Sums a, Sums b) const { return {a.total + b.total, a.moment + b.moment}; }
};
// What dx is made of, from the sums of a channel.
struct Apply {
    Channel c;
    A total, moment, factor;  // both divided by the count
    COC_FN Apply(Channel channel, Sums s, A count)
        : c(channel), total(s.total / count), moment(s.moment / count), factor(channel.scale * channel.r) {}
    COC_FN A operator()(A x, A ct) const { return (ct - total - (x - c.mean) * c.r * moment) * factor; }
};
COC_FN void store(PAR* dscale, PAR* dbias, Sums s, unsigned channel) {
    dscale[channel] = narrow<PAR>(s.moment), dbias[channel] = narrow<PAR>(s.total);
}

template <int COUNT>
COC_FN Sums sums_of(const A (&x)[COUNT], const A (&ct)[COUNT], Channel c) {
    A moments[COUNT];  // zeros of ct stand where nothing is
#pragma unroll
    for (int i = 0; i < COUNT; i++) moments[i] = ct[i] * ((x[i] - c.mean) * c.r);
    return {sum_of(ct), sum_of(moments)};
}

template <int V, int K>
COC_FN void held(const NUM* x, const NUM* ct, const PAR* scale, const PAR* mean, const PAR* var, NUM* dx, PAR* dscale, PAR* dbias,
                 int channels, int units, int all, A count, A eps) {
    const Planes planes = {blockIdx.x, (unsigned)channels, (unsigned)units};
    const Channel c = channel_of(scale, mean, var, eps, blockIdx.x);
    A xs[K * V], cts[K * V];
    const int there = read_units<V, K>(xs, x, planes, threadIdx.x, all, blockDim.x);
    read_units<V, K>(cts, ct, planes, threadIdx.x, all, blockDim.x);
    const Sums s = over_block(sums_of(xs, cts, c), Sums{0, 0}, Join());
    const Apply apply(c, s, count);
#pragma unroll
    for (int i = 0; i < K * V; i++) xs[i] = apply(xs[i], cts[i]);
    write_units<V, K>(dx, xs, planes, threadIdx.x, there, blockDim.x);
    if (threadIdx.x == 0) store(dscale, dbias, s, blockIdx.x);
}

// Sums of a part of a channel: [C, splits, 2].
template <int V, int K>
COC_FN void sums(const NUM* x, const NUM* ct, const PAR* scale, const PAR* mean, const PAR* var, A* parts, int channels,
                 int units, int all, int splits, int chunk, A eps) {
    const unsigned channel = blockIdx.x / splits, split = blockIdx.x - channel * splits;
    const Planes planes = {channel, (unsigned)channels, (unsigned)units};
    const Channel c = channel_of(scale, mean, var, eps, channel);
    const Part part = part_of(split, chunk, all);
    Sums mine = {0, 0};
    for (unsigned first = part.first + threadIdx.x; first < part.last; first += K * blockDim.x) {
        A xs[K * V], cts[K * V];
        read_units<V, K>(xs, x, planes, first, part.last, blockDim.x);
        read_units<V, K>(cts, ct, planes, first, part.last, blockDim.x);
        mine = Join()(mine, sums_of(xs, cts, c));
    }
    mine = over_block(mine, Sums{0, 0}, Join());
    if (threadIdx.x == 0) parts[(i64)blockIdx.x * 2] = mine.total, parts[(i64)blockIdx.x * 2 + 1] = mine.moment;
}
template <int V>
COC_FN void joined(const NUM* x, const NUM* ct, const PAR* scale, const PAR* mean, const PAR* var, const A* parts, NUM* dx,
                   PAR* dscale, PAR* dbias, int channels, int units, int all, int splits, int chunk, A count, A eps) {
    const unsigned channel = blockIdx.x / splits, split = blockIdx.x - channel * splits;
    Sums mine = {0, 0};
    for (int i = threadIdx.x & 31; i < splits; i += 32) {
        const A* from = parts + ((i64)channel * splits + i) * 2;
        mine = Join()(mine, {from[0], from[1]});
    }
    mine = over_lanes(mine, 32, Join());
    if (split == 0 && threadIdx.x == 0) store(dscale, dbias, mine, channel);
    const Apply apply(channel_of(scale, mean, var, eps, channel), mine, count);
    const Planes planes = {channel, (unsigned)channels, (unsigned)units};
    const Part part = part_of(split, chunk, all);
    for (unsigned i = part.first + threadIdx.x; i < part.last; i += blockDim.x) {
        const i64 at = planes.at(i) * V;
        Pack<NUM, V> xs, cts;
        xs.read(x + at), cts.read(ct + at);
#pragma unroll
        for (int v = 0; v < V; v++) xs.put(v, apply(xs.get(v), cts.get(v)));
        xs.write(dx + at);
    }
}

#define FORMS(suffix, V, K)                                                                                                 \
    KERNEL_BLOCKS(cuda_batch_norm_back_held##suffix, 512, 1, const NUM* x, const NUM* ct, const PAR* scale, const PAR* mean,   \
                  const PAR* var, NUM* dx, PAR* dscale, PAR* dbias, int channels, int units, int all, A count, A eps) {     \
        held<V, K>(x, ct, scale, mean, var, dx, dscale, dbias, channels, units, all, count, eps);                           \
    }                                                                                                                       \
    KERNEL_BOUNDS(cuda_batch_norm_back_sums##suffix, 256, const NUM* x, const NUM* ct, const PAR* scale, const PAR* mean,   \
                  const PAR* var, A* parts, int channels, int units, int all, int splits, int chunk, A eps) {               \
        sums<V, K / 2>(x, ct, scale, mean, var, parts, channels, units, all, splits, chunk, eps);                           \
    }                                                                                                                       \
    KERNEL_BOUNDS(cuda_batch_norm_back_joined##suffix, 256, const NUM* x, const NUM* ct, const PAR* scale, const PAR* mean, \
                  const PAR* var, const A* parts, NUM* dx, PAR* dscale, PAR* dbias, int channels, int units, int all,       \
                  int splits, int chunk, A count, A eps) {                                                                  \
        joined<V>(x, ct, scale, mean, var, parts, dx, dscale, dbias, channels, units, all, splits, chunk, count, eps);      \
    }
FORMS(, 1, 8)
FORMS(_wide, WIDE, 16 / WIDE)
#if NUM_BYTES == 2
FORMS(_four, 4, 4)  // halves in planes like 14 x 14
#endif

// [N, C]: blockDim.x channels a block, the rows over blockDim.y threads, a power of two.
KERNEL_BOUNDS(cuda_batch_norm_back_columns, 256, const NUM* x, const NUM* ct, const PAR* scale, const PAR* mean, const PAR* var,
              NUM* dx, PAR* dscale, PAR* dbias, int n, int channels, A eps) {
    SHARED(Sums, parts, 256);
    const int channel = blockIdx.x * blockDim.x + threadIdx.x, thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int rows = channel < channels ? n : 0;
    Channel c = {0, 0, 0};
    if (rows) c = channel_of(scale, mean, var, eps, channel);
    Sums mine = {0, 0};
    for (int i = threadIdx.y; i < rows; i += blockDim.y) {
        const i64 at = (i64)i * channels + channel;
        const A g = (A)widen(ct[at]);
        mine = Join()(mine, {g, g * (((A)widen(x[at]) - c.mean) * c.r)});
    }
    parts[thread] = mine;
    for (int by = blockDim.y / 2; by; by /= 2) {
        __syncthreads();
        if (threadIdx.y < by) parts[thread] = mine = Join()(mine, (Sums)parts[thread + by * blockDim.x]);
    }
    __syncthreads();
    if (rows == 0) return;
    mine = parts[threadIdx.x];
    const Apply apply(c, mine, (A)n);
    for (int i = threadIdx.y; i < rows; i += blockDim.y) {
        const i64 at = (i64)i * channels + channel;
        dx[at] = narrow<NUM>(apply((A)widen(x[at]), (A)widen(ct[at])));
    }
    if (threadIdx.y == 0) store(dscale, dbias, mine, channel);
}
