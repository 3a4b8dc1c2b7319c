// Reductions. Macros: SRC, ACC and DST, the types of elements, of what is accumulated and of results; MERGE, how two are
// joined, by its number below; EMPTY, the result of no elements. Reductions that name places keep the place beside the
// value: `from` are the places of x's elements, or null where an element's place is its index; results go to `where`,
// and values to y where it is not null. Other reductions have null for both.
//
// `divisor` is 0, or what a mean divides by. Each value has a fixed order of additions, of which at most 64 follow one
// another before they join others, so that rounding errors grow as little as in pairwise sums.
#include "words.cuh"
#define SUM 0
#define PRODUCT 1
#define LARGEST 2
#define SMALLEST 3
#define PLACE_OF_LARGEST 4
#define PLACE_OF_SMALLEST 5
#define BLOCK 256
#define BATCH 4  // loads that are under way at once
#define WIDE (sizeof(SRC) == 1 ? 8 : 16 / (int)sizeof(SRC))  // more than 8 sums would not fit into registers

#if MERGE >= PLACE_OF_LARGEST
struct State {
    ACC value;
    int place;
};
COC_FN State nothing() { return {(ACC)(EMPTY), 0x7fffffff}; }
COC_FN State made(ACC value, int place) { return {value, place}; }
COC_FN State joined(const State a, const State b) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value, first = a.place < b.place;
    if (a_nan || b_nan) return a_nan && (!b_nan || first) ? a : b;
#if MERGE == PLACE_OF_LARGEST
    return a.value > b.value || (a.value == b.value && first) ? a : b;
#else
    return a.value < b.value || (a.value == b.value && first) ? a : b;
#endif
}
COC_FN State from_lane(State s, int by) {
    const ACC value = __shfl_xor_sync(~0u, s.value, by);
    const int place = __shfl_xor_sync(~0u, s.place, by);
    return {value, place};
}
COC_FN void store(State s, i64 at, DST* y, int* where, i64 divisor) {
    where[at] = s.place;
    if (y) y[at] = narrow<DST>(s.value);
}
#else
typedef ACC State;
COC_FN State nothing() { return (ACC)(EMPTY); }
COC_FN State made(ACC value, int place) { return value; }
COC_FN State joined(const State a, const State b) {
#if MERGE == SUM
    return a + b;
#elif MERGE == PRODUCT
    return a * b;
#elif MERGE == LARGEST
    return a > b || a != a ? a : b;
#else
    return a < b || a != a ? a : b;
#endif
}
COC_FN State from_lane(State s, int by) { return __shfl_xor_sync(~0u, s, by); }
COC_FN double quotient(i64 a, i64 b) { return (double)a / (double)b; }
COC_FN double quotient(unsigned long long a, i64 b) { return (double)a / (double)b; }
COC_FN double quotient(double a, i64 b) { return a / (double)b; }
COC_FN float quotient(float a, i64 b) { return a / (float)b; }
COC_FN void store(State s, i64 at, DST* y, int* where, i64 divisor) {
#if MERGE == SUM && MEANS
    if (divisor >= 0) {
        y[at] = narrow<DST>(quotient(s, divisor));
        return;
    }
#endif
    y[at] = narrow<DST>(s);
}
#endif

// V neighbours as one load.
template <int V>
struct Load {
    using W = typename Words<V * sizeof(SRC)>::type;
    W words;
    COC_FN void read(const SRC* p) { words = *reinterpret_cast<const W*>(p); }
    COC_FN ACC get(int v) const { return (ACC)widen(reinterpret_cast<const SRC*>(&words)[v]); }
};
template <>
struct Load<1> {
    SRC one;
    COC_FN void read(const SRC* p) { one = *p; }
    COC_FN ACC get(int) const { return (ACC)widen(one); }
};
COC_FN int place_of(const int* from, i64 at, i64 index) { return from ? from[at] : (int)index; }

// The next `step` rows of V columns, `apart` elements from one row to the next.
template <int V>
COC_FN void down(State (&sums)[V], const SRC* x, const int* from, i64 at, i64 apart, i64 first, i64 last, int step) {
    i64 i = first;
    at += first * apart;
    const i64 stride = step * apart;
    for (; i + (BATCH - 1) * (i64)step < last; i += BATCH * (i64)step) {
        Load<V> loads[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) loads[b].read(x + at + b * stride);
#pragma unroll
        for (int v = 0; v < V; v++) {
            State part[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                part[b] = made(loads[b].get(v), place_of(from, at + b * stride + v, i + b * (i64)step));
            sums[v] = joined(sums[v], joined(joined(part[0], part[1]), joined(part[2], part[3])));
        }
        at += BATCH * stride;
    }
    for (; i < last; i += step, at += stride) {
        Load<V> load;
        load.read(x + at);
#pragma unroll
        for (int v = 0; v < V; v++) sums[v] = joined(sums[v], made(load.get(v), place_of(from, at + v, i)));
    }
}

// Units of V elements of a row: from `first` on each `step`-th. A row is pieces of n units, `apart` units from one to the next.
template <int V>
COC_FN State along(const SRC* x, const int* from, i64 start, bool several, i64 n, i64 apart, i64 first, i64 last,
                   int step) {
    State sums[V];
#pragma unroll
    for (int v = 0; v < V; v++) sums[v] = nothing();
    i64 i = first, at = start + first, move = step, more = 0;
    const i64 wrap = apart - n;
    if (several) {  // a row of several pieces has less than 2^31 units
        const int piece = (int)first / (int)n, pieces = step / (int)n;
        i -= piece * n, more = step - pieces * n;
        at += piece * wrap, move += pieces * wrap;
    }
    i64 k = first;
    for (; k + (BATCH - 1) * (i64)step < last; k += BATCH * (i64)step) {
        Load<V> loads[BATCH];
        i64 places[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            places[b] = at * V;
            loads[b].read(x + at * V);
            at += move, i += more;
            if (several && i >= n) i -= n, at += wrap;
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
            State part[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                part[b] = made(loads[b].get(v), place_of(from, places[b] + v, (k + b * (i64)step) * V + v));
            sums[v] = joined(sums[v], joined(joined(part[0], part[1]), joined(part[2], part[3])));
        }
    }
    for (; k < last; k += step) {
        Load<V> load;
        load.read(x + at * V);
#pragma unroll
        for (int v = 0; v < V; v++) sums[v] = joined(sums[v], made(load.get(v), place_of(from, at * V + v, k * V + v)));
        at += move, i += more;
        if (several && i >= n) i -= n, at += wrap;
    }
#pragma unroll
    for (int v = V - 1; v; v--) sums[(v - 1) / 2] = joined(sums[(v - 1) / 2], sums[v]);
    return sums[0];
}

// Short rows: 1 << shift neighbouring lanes a row, up to 32.
template <int V>
COC_FN void groups(const SRC* x, const int* from, DST* y, int* where, i64 rows, i64 pieces, i64 n, int shift, i64 divisor) {
    const i64 row = ((i64)blockIdx.x * BLOCK + threadIdx.x) >> shift;
    const int width = 1 << shift, lane = threadIdx.x & (width - 1);
    State s = nothing();
    if (row < rows) s = along<V>(x, from, row * n, pieces > 1, n, rows * n, lane, pieces * n, width);
    for (int by = width / 2; by; by /= 2) s = joined(s, from_lane(s, by));
    if (lane == 0 && row < rows) store(s, row, y, where, divisor);
}

// A block a row, or `splits` blocks of `chunk` units each: results are [rows, splits].
template <int V>
COC_FN void block_rows(const SRC* x, const int* from, DST* y, int* where, i64 rows, i64 pieces, i64 n, int splits, i64 chunk,
                       i64 divisor) {
    SHARED(State, sums, BLOCK / 32);
    const i64 row = blockIdx.x / splits, first = (blockIdx.x - row * splits) * chunk, all = pieces * n;
    const i64 last = first + chunk < all ? first + chunk : all;
    State s = along<V>(x, from, row * n, pieces > 1, n, rows * n, first + threadIdx.x, last, BLOCK);
#pragma unroll
    for (int by = 16; by; by /= 2) s = joined(s, from_lane(s, by));
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    s = threadIdx.x < BLOCK / 32 ? (State)sums[threadIdx.x] : nothing();
#pragma unroll
    for (int by = BLOCK / 64; by; by /= 2) s = joined(s, from_lane(s, by));
    if (threadIdx.x == 0) store(s, blockIdx.x, y, where, divisor);
}

// Columns of [outer, n, inner]: a block has blockDim.x columns of V elements and blockDim.y rows at a time, both powers
// of two; `splits` blocks of `chunk` rows share a column. Results are [outer, splits, inner].
template <int V>
COC_FN void columns(const SRC* x, const int* from, DST* y, int* where, i64 n, i64 inner, int tiles, int splits, i64 chunk,
                    i64 divisor) {
    SHARED(State, sums, BLOCK * V);
    const unsigned group = blockIdx.x / tiles, o = group / splits;
    const i64 first = (group - o * splits) * chunk, last = first + chunk < n ? first + chunk : n;
    const i64 column = ((blockIdx.x - group * tiles) * (i64)blockDim.x + threadIdx.x) * V;
    State mine[V];
#pragma unroll
    for (int v = 0; v < V; v++) mine[v] = nothing();
    if (column < inner) down<V>(mine, x, from, (i64)o * n * inner + column, inner, first + threadIdx.y, last, blockDim.y);
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int v = 0; v < V; v++) sums[v * BLOCK + thread] = mine[v];
    for (int by = blockDim.y / 2; by; by /= 2) {
        __syncthreads();
        if (threadIdx.y < by) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                mine[v] = joined(mine[v], (State)sums[v * BLOCK + thread + by * blockDim.x]);
                sums[v * BLOCK + thread] = mine[v];
            }
        }
    }
    if (threadIdx.y == 0 && column < inner) {
#pragma unroll
        for (int v = 0; v < V; v++) store(mine[v], group * inner + column + v, y, where, divisor);
    }
}

// Few rows of many columns, [outer, n, inner]: a thread for V columns.
template <int V>
COC_FN void threads(const SRC* x, const int* from, DST* y, int* where, i64 outer, i64 n, i64 inner, i64 divisor) {
    const i64 column = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (column >= inner) return;
    for (i64 o = (i64)blockIdx.y * blockDim.y + threadIdx.y; o < outer; o += gridDim.y * blockDim.y) {
        State mine[V];
#pragma unroll
        for (int v = 0; v < V; v++) mine[v] = nothing();
        down<V>(mine, x, from, o * n * inner + column, inner, 0, n, 1);
#pragma unroll
        for (int v = 0; v < V; v++) store(mine[v], o * inner + column + v, y, where, divisor);
    }
}

#define ARRAYS const SRC *x, const int *from, DST *y, int *where
#define WAYS(suffix, V)                                                                                                       \
    KERNEL_BLOCKS(cuda_reduce_groups##suffix, BLOCK, 1, ARRAYS, i64 rows, i64 pieces, i64 n, int shift, i64 divisor) {           \
        groups<V>(x, from, y, where, rows, pieces, n, shift, divisor);                                                        \
    }                                                                                                                         \
    KERNEL_BLOCKS(cuda_reduce_rows##suffix, BLOCK, 1, ARRAYS, i64 rows, i64 pieces, i64 n, int splits, i64 chunk, i64 divisor) { \
        block_rows<V>(x, from, y, where, rows, pieces, n, splits, chunk, divisor);                                            \
    }                                                                                                                         \
    KERNEL_BLOCKS(cuda_reduce_columns##suffix, BLOCK, 1, ARRAYS, i64 n, i64 inner, int tiles, int splits, i64 chunk,             \
                  i64 divisor) {                                                                                              \
        columns<V>(x, from, y, where, n, inner, tiles, splits, chunk, divisor);                                               \
    }                                                                                                                         \
    KERNEL_BLOCKS(cuda_reduce_threads##suffix, BLOCK, 1, ARRAYS, i64 outer, i64 n, i64 inner, i64 divisor) {                     \
        threads<V>(x, from, y, where, outer, n, inner, divisor);                                                              \
    }
WAYS(, 1)
WAYS(_wide, WIDE)
