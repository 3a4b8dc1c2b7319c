// What kernels of rows share: loads and stores of V elements at once, and reductions that every thread gets to know.
#pragma once
#include "words.cuh"

// V neighbours as one load or store; the address is a multiple of their size.
template <class T, int V>
struct Pack {
    using W = typename Words<V * sizeof(T)>::type;
    W words;
    COC_FN void read(const T* p) { words = *reinterpret_cast<const W*>(p); }
    COC_FN void write(T* p) const { *reinterpret_cast<W*>(p) = words; }
    COC_FN wide_t<T> get(int v) const { return widen(reinterpret_cast<const T*>(&words)[v]); }
    COC_FN void put(int v, wide_t<T> value) { reinterpret_cast<T*>(&words)[v] = narrow<T>(value); }
};

struct Add {
    template <class A>
    COC_FN A operator()(A a, A b) const {
        return a + b;
    }
};
struct Larger {  // NaN where one is
    template <class A>
    COC_FN A operator()(A a, A b) const {
        return a > b || a != a ? a : b;
    }
};

// What the lane by `by` has; types of several numbers have overloads of their own.
template <class A>
COC_FN A swapped(A v, int by) {
    return __shfl_xor_sync(~0u, v, by);
}
// Over `width` neighbouring lanes, a power of two up to 32.
template <class A, class Join>
COC_FN A over_lanes(A v, int width, Join join) {
    for (int by = width / 2; by; by /= 2) v = join(v, swapped(v, by));
    return v;
}
// Over a block of whole warps. May be called several times.
template <class A, class Join>
COC_FN A over_block(A v, A empty, Join join) {
    SHARED(A, parts, 32);
    v = over_lanes(v, 32, join);
    const int lane = threadIdx.x & 31;
    if (lane == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = lane < blockDim.x / 32 ? (A)parts[lane] : empty;
    __syncthreads();  // the next call writes
    return over_lanes(v, 32, join);
}
