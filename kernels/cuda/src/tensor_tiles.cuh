// Matrix products by tensor cores: every block makes ROWS x COLUMNS sums of float32. TYPE is f16 or bf16, or
// float, of which tensor cores read the 10 bits behind the point that TF32 has.
//
// Sources are those of tiles.cuh, read 16 bytes (kWide elements) at once: along the sum where PLACES is true,
// else along lines; places and lines begin at multiples of kWide, where 16 bytes lie aligned. `run(first,
// lines or places)` says how many of kWide elements there are. Tiles of shared memory are [line][place] or
// [place][line], STAGES of them in a row. Macros: TYPE, ROWS and COLUMNS (64, 128 or 256), STAGES.
#pragma once
constexpr int kWide = 16 / sizeof(TYPE), kDepth = 4 * kWide, kStep = 2 * kWide;  // kStep: places of one mma
constexpr int kWarpsDown =
    ROWS > COLUMNS || (ROWS == 64 && COLUMNS == 64) ? ROWS / 32 > 4 ? 4 : ROWS / 32 : 2;
constexpr int kWarpsAcross = (ROWS == 64 && COLUMNS == 64 ? 4 : 8) / kWarpsDown;
constexpr int kThreads = 32 * kWarpsDown * kWarpsAcross;
constexpr int kDown = ROWS / kWarpsDown / 16, kAcross = COLUMNS / kWarpsAcross / 8;  // mma of a warp

// Elements of a tile of shared memory; 16 bytes beside each row keep rows out of each other's banks.
template <int LINES, bool PLACES>
struct Room {
    static constexpr int row = (PLACES ? kDepth : LINES) + kWide, all = row * (PLACES ? LINES : kDepth);
};

// One side of the tiles: the 16 bytes that this thread copies, kCopies times.
template <class S, int LINES, bool PLACES>
struct Copies {
    static constexpr int kCount = LINES * kDepth / kWide / kThreads, kRow = Room<LINES, PLACES>::row;
    static constexpr int kRuns = PLACES ? kDepth / kWide : LINES / kWide;  // of a row
    static_assert(LINES * kDepth / kWide % kThreads == 0 && kThreads % kRuns == 0,
                  "threads share the copies evenly");
    typename S::Line lines[PLACES ? kCount : 1];
    COC_FN static int row_of(int e) { return threadIdx.x / kRuns + e * (kThreads / kRuns); }
    COC_FN static int run_of() { return threadIdx.x % kRuns * kWide; }
    COC_FN void begin(const S& source, int first) {
#pragma unroll
        for (int e = 0; e < (PLACES ? kCount : 1); e++)
            lines[e] = source.line(first + (PLACES ? row_of(e) : run_of()));
    }
    template <class Tile>
    COC_FN void copy(const S& source, int line, int place, Tile& tile, int at) const {
        typename S::Place one = source.place(place + (PLACES ? run_of() : row_of(0)));
        const int count = PLACES ? source.places_from(place + run_of()) : source.lines_from(line + run_of());
#pragma unroll
        for (int e = 0; e < kCount; e++) {
            if (!PLACES && e) one = source.place(place + row_of(e));
            const TYPE* from = source.find(lines[PLACES ? e : 0], one);
            const int bytes = from ? min(count, kWide) * (int)sizeof(TYPE) : 0;
            cp_async16_part(tile, at + row_of(e) * kRow + run_of(), from ? from : source.any(), bytes);
        }
    }
};

// Fragments of mma: 16 lines of the left or twice 8 of the right, from a tile that begins at `at`.
template <class T, int LINES, bool PLACES, bool RIGHT, class Tile>
COC_FN void fragment(unsigned (&r)[4], Tile& tile, int at, int line, int place) {
    constexpr int row = Room<LINES, PLACES>::row;
    const int lane = threadIdx.x % 32, matrix = lane / 8;
    const int far_line = (RIGHT ? matrix / 2 : matrix % 2) * 8,
              far_place = (RIGHT ? matrix % 2 : matrix / 2) * kWide;
    if constexpr (PLACES)
        ldmatrix_x4(r, tile, at + (line + far_line + lane % 8) * row + place + far_place);
    else if constexpr (sizeof(T) == 2)
        ldmatrix_x4_turned(r, tile, at + (place + far_place + lane % 8) * row + line + far_line);
    else {
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int l = line + (RIGHT ? m / 2 : m % 2) * 8 + lane / 4,
                      p = place + (RIGHT ? m % 2 : m / 2) * 4 + lane % 4;
            const T v = tile[at + p * row + l];
            r[m] = __float_as_uint(v);
        }
    }
}

struct Sums {
    float v[kDown][kAcross][4];
    // Where number i of a fragment lies in the block's tile.
    COC_FN static int row(int down, int i) {
        return threadIdx.x / 32 / kWarpsAcross * (16 * kDown) + down * 16 + i / 2 * 8 + threadIdx.x % 32 / 4;
    }
    COC_FN static int column(int across, int i) {
        return threadIdx.x / 32 % kWarpsAcross * (8 * kAcross) + across * 8 + threadIdx.x % 4 * 2 + i % 2;
    }
};

template <class T>
COC_FN void multiply_fragments(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (sizeof(T) == 4)
        mma_16x8x8(d, a, b);
    else
        mma_16x8x16<T>(d, a, b);
}

template <bool OF_LEFT, bool OF_RIGHT, class L, class R, class Tile>
COC_FN void add_products(Sums& sums, const L& left, const R& right, int row, int column, int first, int end,
                         Tile& tile) {
    constexpr int left_room = Room<ROWS, OF_LEFT>::all, stage = left_room + Room<COLUMNS, OF_RIGHT>::all;
    Copies<L, ROWS, OF_LEFT> a;
    Copies<R, COLUMNS, OF_RIGHT> b;
#pragma unroll
    for (int i = 0; i < kDown; i++)
#pragma unroll
        for (int j = 0; j < kAcross; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums.v[i][j][e] = 0;
    a.begin(left, row), b.begin(right, column);
    const int rounds = (end - first + kDepth - 1) / kDepth;
#pragma unroll
    for (int round = 0; round < STAGES - 1; round++) {
        if (round < rounds) {
            a.copy(left, row, first + round * kDepth, tile, round * stage);
            b.copy(right, column, first + round * kDepth, tile, round * stage + left_room);
        }
        cp_async_commit();
    }
    int slot = 0, next = STAGES - 1;
    for (int round = 0; round < rounds; round++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // all copies of this round are there, and nobody reads the stage that is written
                          // next
        if (round + STAGES - 1 < rounds) {
            const int place = first + (round + STAGES - 1) * kDepth;
            a.copy(left, row, place, tile, next * stage);
            b.copy(right, column, place, tile, next * stage + left_room);
        }
        cp_async_commit();
#pragma unroll
        for (int place = 0; place < kDepth; place += kStep) {
            unsigned x[kDown][4], y[kAcross / 2][4];
#pragma unroll
            for (int i = 0; i < kDown; i++)
                fragment<TYPE, ROWS, OF_LEFT, false>(x[i], tile, slot * stage,
                                                     Sums::row(i, 0) - threadIdx.x % 32 / 4, place);
#pragma unroll
            for (int j = 0; j < kAcross / 2; j++)
                fragment<TYPE, COLUMNS, OF_RIGHT, true>(y[j], tile, slot * stage + left_room,
                                                        Sums::column(2 * j, 0) - threadIdx.x % 4 * 2, place);
#pragma unroll
            for (int i = 0; i < kDown; i++)
#pragma unroll
                for (int j = 0; j < kAcross; j++) {
                    const unsigned half[2] = {y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]};
                    multiply_fragments<TYPE>(sums.v[i][j], x[i], half);
                }
        }
        slot = slot + 1 == STAGES ? 0 : slot + 1, next = next + 1 == STAGES ? 0 : next + 1;
    }
    cp_async_wait<0>();
}

// Gives every sum to `out.put(row, column, sum)`, like put_sums of tiles.cuh.
template <class Out>
COC_FN void put_sums(const Sums& sums, const Out& out, int row, int column) {
    typename Out::Column columns[kAcross][2];
#pragma unroll
    for (int j = 0; j < kAcross; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) columns[j][e] = out.column(column + Sums::column(j, e));
#pragma unroll
    for (int i = 0; i < kDown; i++)
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
            const typename Out::Row one = out.row(row + Sums::row(i, half));
#pragma unroll
            for (int j = 0; j < kAcross; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) out.put(one, columns[j][e], sums.v[i][j][half + e]);
        }
}

// The same through shared memory, so that neighbouring results are written together: 16 bytes by one thread
// where they lie together and aligned. `out.value(row, column, sum)` is what `out.at(row, column)` points to,
// null outside.
template <class Out, class Tile>
COC_FN void put_together(const Sums& sums, const Out& out, int row, int column, Tile& tile) {
    constexpr int step = COLUMNS + kWide, runs = COLUMNS / kWide;
    typename Out::Column columns[kAcross][2];
#pragma unroll
    for (int j = 0; j < kAcross; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) columns[j][e] = out.column(column + Sums::column(j, e));
    __syncthreads();  // the last products are made
#pragma unroll
    for (int i = 0; i < kDown; i++)
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
            const typename Out::Row one = out.row(row + Sums::row(i, half));
#pragma unroll
            for (int j = 0; j < kAcross; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    tile[Sums::row(i, half) * step + Sums::column(j, e)] =
                        out.value(one, columns[j][e], sums.v[i][j][half + e]);
        }
    __syncthreads();
    const int run = threadIdx.x % runs * kWide;
    const typename Out::Column first = out.column(column + run), last = out.column(column + run + kWide - 1);
    for (int r = threadIdx.x / runs; r < ROWS; r += kThreads / runs) {
        const typename Out::Row one = out.row(row + r);
        TYPE *begin = out.at(one, first), *end = out.at(one, last);
        if (begin && end == begin + kWide - 1 && (size_t)begin % 16 == 0)
            *reinterpret_cast<int4*>(begin) = wide_load<int4>(tile, r * step + run);
        else if (begin)
            for (int e = 0; e < kWide; e++) {
                TYPE* to = out.at(one, out.column(column + run + e));
                if (to) *to = tile[r * step + run + e];
            }
    }
}
