// Rows of any length in stable order: keys of TYPE, then passes over 8 bits each, of tiles of 2048 elements.
#include "dividing.cuh"
#include "ordered.cuh"
typedef Ordered<TYPE>::Key Key;
#define TILE 2048
#define WARPS 8

KERNEL(make_keys, Key* keys, const TYPE* x, int descending, i64 n) {
    FOR_EACH(i, n) keys[i] = Ordered<TYPE>::of(x[i], descending);
}

// counts[row][digit][tile]: how often each tile of a row has a digit.
KERNEL_BOUNDS(count_digits, 256, int* counts, const Key* keys, int length, int tiles, int shift) {
    SHARED(int, found, 256);
    const int row = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    found[threadIdx.x] = 0;
    __syncthreads();
    for (int i = tile * TILE + threadIdx.x; i < min(length, (tile + 1) * TILE); i += 256)
        atomicAdd(&found[(int)(keys[(i64)row * length + i] >> shift & 255)], 1);
    __syncthreads();
    counts[((i64)row * 256 + threadIdx.x) * tiles + tile] = found[threadIdx.x];
}

// The lanes whose element has the same digit as this one's; none where there is no element.
COC_FN unsigned equals(int digit, bool there) {
    unsigned same = __ballot_sync(~0u, there);
#pragma unroll
    for (int bit = 0; bit < 8; bit++) {
        const unsigned set = __ballot_sync(~0u, digit >> bit & 1);
        same &= digit >> bit & 1 ? set : ~set;
    }
    return same;
}

// Each element to its place: sums[row][digit][tile] counts the elements of the row up to there, in that order. The
// elements of a warp stand side by side and are taken in their order, so equal digits keep it.
KERNEL_BOUNDS(place_digits, 256, Key* keys_out, int* order_out, const Key* keys, const int* order, const int* sums,
              int length, int tiles, int shift) {
    SHARED(int, next, WARPS * 256);
    const int row = blockIdx.x / tiles, tile = blockIdx.x % tiles, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = tile * TILE + warp * (TILE / WARPS) + lane;
    const i64 start = (i64)row * length;
    for (int i = threadIdx.x; i < WARPS * 256; i += 256) next[i] = 0;
    __syncthreads();
    for (int round = 0; round < TILE / WARPS / 32; round++) {
        const int i = first + round * 32;
        const int digit = i < length ? (int)(keys[start + i] >> shift & 255) : 0;
        const unsigned same = equals(digit, i < length);
        if (i < length && (same & ((1u << lane) - 1)) == 0) atomicAdd(&next[warp * 256 + digit], __popc(same));
    }
    __syncthreads();
    const i64 cell = ((i64)row * 256 + threadIdx.x) * tiles + tile;
    int place = cell == (i64)row * 256 * tiles ? 0 : sums[cell - 1];
    for (int w = 0; w < WARPS; w++) {
        const int count = next[w * 256 + threadIdx.x];
        next[w * 256 + threadIdx.x] = place;
        place += count;
    }
    __syncthreads();
    for (int round = 0; round < TILE / WARPS / 32; round++) {
        const int i = first + round * 32;
        const Key key = i < length ? keys[start + i] : 0;
        const int digit = (int)(key >> shift & 255);
        const unsigned same = equals(digit, i < length), before = same & ((1u << lane) - 1);
        int at = 0;
        if (i < length) at = next[warp * 256 + digit];
        __syncwarp();
        if (i < length) {
            if (!before) next[warp * 256 + digit] = at + __popc(same);
            at += __popc(before);
            keys_out[start + at] = key;
            order_out[start + at] = order ? order[start + i] : i;
        }
        __syncwarp();
    }
}

// The first `kept` of each row: their places, and the elements.
KERNEL(pick, TYPE* values, int* kept_order, const TYPE* x, const int* order, i64 length, i64 kept, i64 n) {
    FOR_EACH(i, n) {
        i64 row = i;
        const unsigned place = split_off(row, (unsigned)kept);
        const int at = order[row * length + place];
        kept_order[i] = at;
        if (values) values[i] = x[row * length + at];
    }
}
