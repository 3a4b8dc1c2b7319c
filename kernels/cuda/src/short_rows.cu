// Rows of up to CAPACITY elements of TYPE in stable order, one block a row: a bitonic sort of keys, ties by position.
#include "ordered.cuh"
typedef Ordered<TYPE>::Key Key;

// values and order [rows, kept]: the first `kept` of each row of x [rows, length] in order, and where they stood.
KERNEL_BOUNDS(sort_rows, 512, TYPE* values, int* order, const TYPE* x, int rows, int length, int padded, int kept,
              int descending) {
    SHARED(Key, keys, CAPACITY);
    SHARED(int, places, CAPACITY);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const TYPE* line = x + (i64)row * length;
        for (int i = threadIdx.x; i < padded; i += blockDim.x) {
            keys[i] = i < length ? Ordered<TYPE>::of(line[i], descending) : ~(Key)0;
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
        for (int i = threadIdx.x; i < kept; i += blockDim.x) {
            const int at = places[i];
            order[(i64)row * kept + i] = at;
            if (values) values[(i64)row * kept + i] = line[at];
        }
        __syncthreads();
    }
}
