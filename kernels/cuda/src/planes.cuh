// Channels of [N, C, S]: each has N planes of S elements, taken as units of V. Macros: NUM, the type of elements, NUM_BYTES,
// the size of one, and PAR, the type of scales, biases and statistics.
#pragma once
#include "rows.cuh"
typedef wide_t<NUM> A;
#define WIDE (16 / NUM_BYTES)

// Where the units of a channel lie: `units` side by side in each plane.
struct Planes {
    unsigned channel, channels, units;
    COC_FN i64 at(unsigned i) const {
        const unsigned plane = i / units;
        return ((i64)plane * channels + channel) * units + (i - plane * units);
    }
};

// The numbers of K units from `first` on, each `step`-th; zeros from `last` on. The number of units that are there.
template <int V, int K>
COC_FN int read_units(A (&x)[K * V], const NUM* p, Planes planes, unsigned first, unsigned last, unsigned step) {
    int there = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const unsigned i = first + k * step;
        Pack<NUM, V> pack;
        if (i < last) pack.read(p + planes.at(i) * V), there++;
#pragma unroll
        for (int v = 0; v < V; v++) x[k * V + v] = i < last ? pack.get(v) : (A)0;
    }
    return there;
}
template <int V, int K>
COC_FN void write_units(NUM* p, const A (&y)[K * V], Planes planes, unsigned first, int there, unsigned step) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (k >= there) continue;
        Pack<NUM, V> pack;
#pragma unroll
        for (int v = 0; v < V; v++) pack.put(v, y[k * V + v]);
        pack.write(p + planes.at(first + k * step) * V);
    }
}

// The sum of `count` numbers, of which those behind are zeros, as a tree.
template <int COUNT>
COC_FN A sum_of(const A (&x)[COUNT]) {
    A sums[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) sums[i] = x[i];
#pragma unroll
    for (int i = COUNT - 1; i; i--) sums[(i - 1) / 2] += sums[i];
    return sums[0];
}
// The part [first, last) of a channel's units that a block of `splits` has.
struct Part {
    unsigned first, last;
};
COC_FN Part part_of(unsigned split, unsigned chunk, unsigned all) {
    const unsigned first = split * chunk;
    return {first, first + chunk < all ? first + chunk : all};
}
