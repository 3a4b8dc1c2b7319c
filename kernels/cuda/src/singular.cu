// Singular values and vectors of matrices [m, n], a block for each, by one-sided Jacobi rotations (Hestenes 1958). TYPE:
// that of elements. All is computed in float64, in `work`.
//
// The shorter side gives `count` vectors of `length`: columns of x, or rows where there are fewer of those. Rotations
// make them orthogonal. Their lengths are the singular values, their directions are P [total, length], and the rotations
// themselves are Q [count, count]; one is U, the other V. P is completed to `total` vectors.
#define THREADS 256
#define WARPS 8
#define SWEEPS 60

COC_FN double summed(double v) {  // over the lanes of a warp; the same for all
#pragma unroll
    for (int apart = 16; apart; apart /= 2) v += __shfl_xor_sync(~0u, v, apart);
    return v;
}
COC_FN double product_of(const double* a, const double* b, int n) {
    double sum = 0;
    for (int k = threadIdx.x % 32; k < n; k += 32) sum += a[k] * b[k];
    return summed(sum);
}
COC_FN void turn(double* x, double* y, int n, double c, double s) {
    for (int k = threadIdx.x % 32; k < n; k += 32) {
        const double u = x[k], w = y[k];
        x[k] = c * u - s * w;
        y[k] = s * u + c * w;
    }
}
// Two vectors orthogonal to each other, by a warp; false if they are.
COC_FN bool rotate(double* p, double* q, int count, int length, int i, int j) {
    double *x = p + (i64)i * length, *y = p + (i64)j * length;
    const double xx = product_of(x, x, length), yy = product_of(y, y, length), xy = product_of(x, y, length);
    if (fabs(xy) <= 1e-15 * sqrt(xx) * sqrt(yy)) return false;
    const double zeta = (yy - xx) / (2 * xy), t = (zeta < 0 ? -1 : 1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
    const double c = 1 / sqrt(1 + t * t), s = c * t;
    turn(x, y, length, c, s);
    turn(q + (i64)i * count, q + (i64)j * count, count, c, s);
    return true;
}

// Row `at` of p a unit vector orthogonal to all rows before, by one warp: the axis that they hold least of, less them.
COC_FN void complete(double* p, int length, int at) {
    const int lane = threadIdx.x % 32;
    double* own = p + (i64)at * length;
    double least = 2;
    int axis = 0;
    for (int k = lane; k < length; k += 32) {
        double held = 0;
        for (int row = 0; row < at; row++) held += p[(i64)row * length + k] * p[(i64)row * length + k];
        if (held < least) least = held, axis = k;
    }
#pragma unroll
    for (int apart = 16; apart; apart /= 2) {
        const double other = __shfl_xor_sync(~0u, least, apart);
        const int there = __shfl_xor_sync(~0u, axis, apart);
        if (other < least || (other == least && there < axis)) least = other, axis = there;
    }
    for (int k = lane; k < length; k += 32) own[k] = k == axis;
    __syncwarp();
    for (int pass = 0; pass < 2; pass++)
        for (int row = 0; row < at; row++) {
            const double* other = p + (i64)row * length;
            const double share = product_of(own, other, length);
            for (int k = lane; k < length; k += 32) own[k] -= share * other[k];
            __syncwarp();
        }
    const double scale = 1 / sqrt(product_of(own, own, length));
    for (int k = lane; k < length; k += 32) own[k] *= scale;
    __syncwarp();
}

// The largest element in size, for all threads; what is not finite is refused and counts as 0.
#define FIND_LARGEST(x, size)                                                                          \
    {                                                                                                  \
        double most = 0;                                                                               \
        for (int i = threadIdx.x; i < size; i += THREADS) {                                            \
            const double v = fabs((double)x[i]);                                                       \
            if (!(v <= 1.7976931348623157e308)) atomicCAS(refused, 0, 1);                              \
            else if (v > most) most = v;                                                               \
        }                                                                                              \
        largest[threadIdx.x] = most;                                                                   \
        __syncthreads();                                                                               \
        for (int half = THREADS / 2; half; half /= 2) {                                                \
            if (threadIdx.x < half && largest[threadIdx.x + half] > largest[threadIdx.x])              \
                largest[threadIdx.x] = (double)largest[threadIdx.x + half];                            \
            __syncthreads();                                                                           \
        }                                                                                              \
    }

// work of each matrix: the vectors [count, length], P [total, length], Q [count, count], lengths [count]. order [count]:
// by length. by_columns: the vectors are columns of x.
KERNEL_BOUNDS(decompose, THREADS, TYPE* u, TYPE* values, TYPE* v, double* work, int* orders, const TYPE* all, int m, int n,
              int total, int* refused) {
    SHARED(double, largest, THREADS);
    SHARED(int, turned, 1);
    const bool by_columns = m >= n;
    const int count = min(m, n), length = max(m, n), warp = threadIdx.x / 32;
    const TYPE* x = all + (i64)blockIdx.x * m * n;
    double* vectors = work + (i64)blockIdx.x * ((i64)(count + total) * length + (i64)count * count + count);
    double *p = vectors + (i64)count * length, *q = p + (i64)total * length, *lengths = q + (i64)count * count;
    int* order = orders + (i64)blockIdx.x * count;

    FIND_LARGEST(x, m * n)
    const double scale = largest[0] > 0 ? largest[0] : 1.0;
    for (int i = threadIdx.x; i < m * n; i += THREADS) {
        const double value = (double)x[i];
        vectors[by_columns ? i % n * m + i / n : i] = fabs(value) <= 1.7976931348623157e308 ? value / scale : 0;
    }
    for (int i = threadIdx.x; i < count * count; i += THREADS) q[i] = i / count == i % count;
    __syncthreads();

    const int even = (count + 1) / 2 * 2;
    for (int sweep = 0; sweep < SWEEPS && count > 1; sweep++) {
        if (threadIdx.x == 0) turned[0] = 0;
        __syncthreads();
        for (int round = 0; round < even - 1; round++) {  // every pair once, disjoint ones together
            for (int pair = warp; pair < even / 2; pair += WARPS) {
                const int other = even - 1 - pair;
                const int i = pair ? 1 + (pair - 1 + round) % (even - 1) : 0, j = 1 + (other - 1 + round) % (even - 1);
                if (i >= count || j >= count) continue;
                if (rotate(vectors, q, count, length, min(i, j), max(i, j)) && threadIdx.x % 32 == 0) atomicOr(&turned[0], 1);
            }
            __syncthreads();
        }
        const int more = turned[0];
        __syncthreads();
        if (!more) break;
    }

    for (int i = warp; i < count; i += WARPS) {
        const double squares = product_of(vectors + (i64)i * length, vectors + (i64)i * length, length);
        if (threadIdx.x % 32 == 0) lengths[i] = sqrt(squares);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        int rank = 0;
        for (int j = 0; j < count; j++) rank += lengths[j] > lengths[i] || (lengths[j] == lengths[i] && j < i);
        order[rank] = i;
        values[(i64)blockIdx.x * count + rank] = (TYPE)(lengths[i] * scale);
    }
    __syncthreads();
    const double least = count ? 1e-14 * lengths[order[0]] : 0;  // directions of shorter ones are not known
    if (warp == 0)
        for (int i = 0; i < total; i++) {
            const double own = i < count ? lengths[order[i]] : 0;
            if (own > least) {
                for (int k = threadIdx.x; k < length; k += 32) p[(i64)i * length + k] = vectors[(i64)order[i] * length + k] / own;
                __syncwarp();
            } else {
                complete(p, length, i);
            }
        }
    __syncthreads();
    const int across = by_columns ? total : count;  // columns of u
    for (int i = threadIdx.x; i < m * across; i += THREADS) {
        const int row = i / across, column = i % across;
        u[(i64)blockIdx.x * m * across + i] =
            (TYPE)(by_columns ? p[(i64)column * length + row] : q[(i64)order[column] * count + row]);
    }
    const int down = by_columns ? count : total;  // rows of v
    for (int i = threadIdx.x; i < down * n; i += THREADS) {
        const int row = i / n, column = i % n;
        v[(i64)blockIdx.x * down * n + i] =
            (TYPE)(by_columns ? q[(i64)order[row] * count + column] : p[(i64)row * length + column]);
    }
}
