// Matrix products by tiles: every block makes ROWS x COLUMNS sums, which are as many, of which each of its
// 256 threads keeps a square part in registers. A sum is one chain from the first place to the last, so its
// order is that of the places.
//
// What is multiplied comes from two sources, a left one for rows and a right one for columns. A source has
// types and functions `Line line(int)`, a row or column; `Place place(int)`, along the sum; `find(Line,
// Place)`, null outside. PLACES says that neighbours along the sum lie together in memory, else lines do:
// neighbouring threads read them. Macros: TYPE of elements, ACC of sums, ROWS and COLUMNS, both 64 or both
// 128.
#pragma once
#define TILE ROWS
constexpr int kThreads = 256, kPart = TILE / 16, kDepth = TILE == 128 ? 8 : 16, kStep = TILE + 4;
constexpr int kLoads = TILE * kDepth / kThreads;
constexpr int kBlocks = TILE == 128 || sizeof(ACC) == 8 ? 1 : 2;  // at once on a multiprocessor, at least

template <class T>
struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Four {
    T v[4];
};

// One side of the tiles: the elements that this thread moves to shared memory.
template <class S, bool PLACES>
struct Side {
    typename S::Line lines[PLACES ? kLoads : 1];
    ACC values[kLoads];
    COC_FN static int line_of(int e) {
        return PLACES ? threadIdx.x / kDepth + e * (kThreads / kDepth) : threadIdx.x % TILE;
    }
    COC_FN static int place_of(int e) {
        return PLACES ? threadIdx.x % kDepth : threadIdx.x / TILE + e * (kThreads / TILE);
    }
    COC_FN void begin(const S& source, int first) {
#pragma unroll
        for (int e = 0; e < (PLACES ? kLoads : 1); e++) lines[e] = source.line(first + line_of(e));
    }
    COC_FN void fetch(const S& source, int first) {
        typename S::Place place = source.place(first + place_of(0));
#pragma unroll
        for (int e = 0; e < kLoads; e++) {
            if (!PLACES && e) place = source.place(first + place_of(e));
            const TYPE* at = source.find(lines[PLACES ? e : 0], place);
            values[e] = at ? (ACC)widen(*at) : (ACC)0;
        }
    }
    template <class Tile>
    COC_FN void put(Tile& tile, int buffer) const {
#pragma unroll
        for (int e = 0; e < kLoads; e++)
            tile[(buffer * kDepth + place_of(e)) * kStep + line_of(e)] = values[e];
    }
};

// The row (or column) of a tile that number i of thread t of 16 keeps.
COC_FN int kept(int t, int i) { return t * 4 + i % 4 + i / 4 * 64; }

template <bool OF_LEFT, bool OF_RIGHT, class L, class R>
COC_FN void add_products(ACC (&sums)[kPart][kPart], const L& left, const R& right, int row, int column,
                         int first, int end) {
    SHARED(ACC, left_tile, 2 * kDepth * kStep);
    SHARED(ACC, right_tile, 2 * kDepth * kStep);
    Side<L, OF_LEFT> a;
    Side<R, OF_RIGHT> b;
#pragma unroll
    for (int i = 0; i < kPart; i++)
#pragma unroll
        for (int j = 0; j < kPart; j++) sums[i][j] = 0;
    a.begin(left, row), b.begin(right, column);
    a.fetch(left, first), b.fetch(right, first);
    __syncthreads();  // a block that makes several tiles still reads the last one
    a.put(left_tile, 0), b.put(right_tile, 0);
    __syncthreads();
    int buffer = 0;
    for (int k = first; k < end; k += kDepth) {
        const bool more = k + kDepth < end;
        if (more) a.fetch(left, k + kDepth), b.fetch(right, k + kDepth);
#pragma unroll
        for (int depth = 0; depth < kDepth; depth++) {
            Four<ACC> x[kPart / 4], y[kPart / 4];
            const int at = (buffer * kDepth + depth) * kStep;
#pragma unroll
            for (int p = 0; p < kPart / 4; p++) {
                x[p] = wide_load<Four<ACC>>(left_tile, at + p * 64 + threadIdx.x / 16 * 4);
                y[p] = wide_load<Four<ACC>>(right_tile, at + p * 64 + threadIdx.x % 16 * 4);
            }
#pragma unroll
            for (int i = 0; i < kPart; i++)
#pragma unroll
                for (int j = 0; j < kPart; j++)
                    sums[i][j] = sums[i][j] + x[i / 4].v[i % 4] * y[j / 4].v[j % 4];
        }
        if (more) {  // the other buffer was last read before the barrier of the round before
            buffer ^= 1;
            a.put(left_tile, buffer), b.put(right_tile, buffer);
            __syncthreads();
        }
    }
}

// Gives every sum to `out.put(line, column, sum)`; `out.row(int)` and `out.column(int)` say where a row and a
// column lie.
template <class Out>
COC_FN void put_sums(const ACC (&sums)[kPart][kPart], const Out& out, int row, int column) {
    typename Out::Column columns[kPart];
#pragma unroll
    for (int j = 0; j < kPart; j++) columns[j] = out.column(column + kept(threadIdx.x % 16, j));
#pragma unroll
    for (int i = 0; i < kPart; i++) {
        const typename Out::Row one = out.row(row + kept(threadIdx.x / 16, i));
#pragma unroll
        for (int j = 0; j < kPart; j++) out.put(one, columns[j], sums[i][j]);
    }
}
