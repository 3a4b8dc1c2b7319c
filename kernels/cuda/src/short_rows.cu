// Rows of up to CAPACITY elements of TYPE in stable order, one block a row: a bitonic sort of keys, ties by position.
#include "ordered.cuh"
typedef Ordered<TYPE>::Key Key;

// values and order [rows, total]: the first `kept` of each chunk of each row of x [rows, length] in order, and where they
// stood, or what `given` [rows, length] says of that. A block sorts a chunk, which has at most `chunk` elements.
KERNEL_BOUNDS(sort_rows, 512, TYPE* values, int* order, const TYPE* x, const int* given, int rows, int length, int chunks,
              int chunk, int padded, int kept, int total, int descending) {
    SHARED(Key, keys, CAPACITY);
    SHARED(int, places, CAPACITY);
    for (i64 number = blockIdx.x; number < (i64)rows * chunks; number += gridDim.x) {
        const i64 row = number / chunks;
        const int part = (int)(number % chunks), first = part * chunk, count = min(chunk, length - first);
        const TYPE* line = x + row * length + first;
        for (int i = threadIdx.x; i < padded; i += blockDim.x) {
            keys[i] = i < count ? Ordered<TYPE>::of(line[i], descending) : ~(Key)0;
            places[i] = i;
        }
        __syncthreads();
        for (int run = 2; run <= padded; run *= 2)
            for (int gap = run / 2; gap; gap /= 2) {
                for (int pair = threadIdx.x; pair < padded / 2; pair += blockDim.x) {
                    const int i = pair / gap * gap * 2 + pair % gap, j = i + gap;
                    const Key a = keys[i], b = keys[j];
                    const int at = places[i], bt = places[j];
                    const bool after = a > b || (a == b && at > bt);
                    if (after == ((i & run) == 0)) {
                        keys[i] = b, keys[j] = a;
                        places[i] = bt, places[j] = at;
                    }
                }
                __syncthreads();
            }
        for (int i = threadIdx.x; i < min(kept, count); i += blockDim.x) {
            const int at = places[i];
            const i64 to = row * total + part * kept + i;
            order[to] = given ? given[row * length + first + at] : first + at;
            if (values) values[to] = line[at];
        }
    }  // no barrier: a thread writes next what it alone has read
}
