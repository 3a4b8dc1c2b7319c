// Inverses and determinants of square matrices [n, n], a block for each matrix. TYPE: that of elements. All is computed
// in float64, in `work`, which holds a copy of each.
#define THREADS 256

// Sets rows[0] to the row from `step` on with the largest element in column `step`, the first of several.
#define FIND_PIVOT(a, n, step)                                                        \
    {                                                                                 \
        double best = -1;                                                             \
        int where = step;                                                             \
        for (int i = step + threadIdx.x; i < n; i += THREADS) {                       \
            const double size = fabs(a[(i64)i * n + step]);                           \
            if (size > best || (size != size && best == best)) best = size, where = i; \
        }                                                                             \
        sizes[threadIdx.x] = best;                                                    \
        rows[threadIdx.x] = where;                                                    \
        __syncthreads();                                                              \
        for (int half = THREADS / 2; half; half /= 2) {                               \
            if (threadIdx.x < half) {                                                 \
                const double mine = sizes[threadIdx.x], other = sizes[threadIdx.x + half]; \
                const int own = rows[threadIdx.x], from = rows[threadIdx.x + half];   \
                const bool later = other > mine || (other == mine && from < own);     \
                if (mine == mine && (later || other != other)) {                      \
                    sizes[threadIdx.x] = other;                                       \
                    rows[threadIdx.x] = from;                                         \
                }                                                                     \
            }                                                                         \
            __syncthreads();                                                          \
        }                                                                             \
    }

COC_FN void copy_and_swap(double* a, int n, int one, int other) {
    for (int j = threadIdx.x; j < n && one != other; j += THREADS) {
        const double v = a[(i64)one * n + j];
        a[(i64)one * n + j] = a[(i64)other * n + j];
        a[(i64)other * n + j] = v;
    }
}

// out = the inverse, by Gauss-Jordan elimination in place; swaps [matrices, n]: the rows that were exchanged.
KERNEL_BOUNDS(invert, THREADS, TYPE* out, double* work, int* swaps, const TYPE* x, int n, int* refused) {
    SHARED(double, sizes, THREADS);
    SHARED(int, rows, THREADS);
    const i64 first = (i64)blockIdx.x * n * n;
    double* a = work + first;
    int* swap = swaps + (i64)blockIdx.x * n;
    for (int i = threadIdx.x; i < n * n; i += THREADS) a[i] = (double)x[first + i];
    __syncthreads();
    for (int step = 0; step < n; step++) {
        FIND_PIVOT(a, n, step)
        const int row = rows[0];
        const double pivot = sizes[0];
        if (threadIdx.x == 0) {
            swap[step] = row;
            if (pivot == 0) atomicCAS(refused, 0, 1);
        }
        copy_and_swap(a, n, step, row);
        __syncthreads();
        const double scale = 1 / a[(i64)step * n + step];
        __syncthreads();
        for (int j = threadIdx.x; j < n; j += THREADS) {
            double* at = a + (i64)step * n + j;
            *at = j == step ? scale : *at * scale;
        }
        __syncthreads();
        // Rows by warps, columns by lanes; the column of the step is read before anyone writes it
        for (int i = threadIdx.x / 32; i < n; i += THREADS / 32) {
            if (i == step) continue;
            const double factor = a[(i64)i * n + step];
            __syncwarp();
            for (int j = threadIdx.x % 32; j < n; j += 32) {
                double* at = a + (i64)i * n + j;
                const double above = a[(i64)step * n + j];
                *at = (j == step ? 0.0 : *at) - factor * above;
            }
            __syncwarp();
        }
        __syncthreads();
    }
    // exchanged rows of the matrix are columns of its inverse, in the reverse order
    for (int i = threadIdx.x; i < n; i += THREADS) {
        double* line = a + (i64)i * n;
        for (int step = n - 1; step >= 0; step--) {
            const double v = line[step];
            line[step] = line[swap[step]];
            line[swap[step]] = v;
        }
        for (int j = 0; j < n; j++) out[first + (i64)i * n + j] = (TYPE)line[j];
    }
}

// out = the determinant, by elimination.
KERNEL_BOUNDS(determinant, THREADS, TYPE* out, double* work, const TYPE* x, int n) {
    SHARED(double, sizes, THREADS);
    SHARED(int, rows, THREADS);
    const i64 first = (i64)blockIdx.x * n * n;
    double* a = work + first;
    for (int i = threadIdx.x; i < n * n; i += THREADS) a[i] = (double)x[first + i];
    __syncthreads();
    double product = 1;
    for (int step = 0; step < n; step++) {
        FIND_PIVOT(a, n, step)
        const int row = rows[0];
        copy_and_swap(a, n, step, row);
        __syncthreads();
        const double pivot = a[(i64)step * n + step];
        product *= row == step ? pivot : -pivot;
        if (pivot == 0) break;
        for (int i = step + 1 + threadIdx.x / 32; i < n; i += THREADS / 32) {
            const double factor = a[(i64)i * n + step] / pivot;
            for (int j = step + 1 + threadIdx.x % 32; j < n; j += 32) a[(i64)i * n + j] -= factor * a[(i64)step * n + j];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = (TYPE)product;
}
