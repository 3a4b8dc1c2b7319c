// Normalisation of rows of float32 whose sums have NumPy's order, and so the bits of the reference: as row_norm.cu.
#include "pairwise.cuh"

struct Options {
    int centred, reciprocal;
    float count, eps;
};
struct Number {
    const float* x;
    COC_FN float operator()(int i) const { return x[i]; }
};
struct Square {
    const float* x;
    float mean;
    int centred;
    COC_FN float centre(int i) const { return centred ? x[i] - mean : x[i]; }
    COC_FN float operator()(int i) const {
        const float d = centre(i);
        return d * d;
    }
};
COC_FN void write(Square row, float* y, const float* factor, const float* shift, float squares, Options o, int n, int first, int step) {
    const float root = sqrtf((0.f + squares) / o.count + o.eps), inverse = 1.f / root;
    for (int i = first; i < n; i += step) {
        float v = o.reciprocal ? row.centre(i) * inverse : row.centre(i) / root;
        if (factor) v = v * factor[i];
        if (shift) v = v + shift[i];
        y[i] = v;
    }
}

#define ARRAYS const float *x, const float *factor, const float *shift, float *y
// Rows of up to 128 numbers: eight lanes a row.
KERNEL_BOUNDS(cuda_row_norm_short, 256, ARRAYS, i64 rows, int n, int centred, int reciprocal, float count, float eps) {
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    const int size = row < rows ? n : 0;
    const float* from = x + (row < rows ? row : 0) * n;
    const float mean = (0.f + leaf_sum<float>({0, size}, Number{from})) / count;
    const Square squares = {from, mean, centred};
    write(squares, y + row * n, factor, shift, leaf_sum<float>({0, size}, squares), {centred, reciprocal, count, eps}, size,
          threadIdx.x & 7, 8);
}
// A block a row.
KERNEL_BOUNDS(cuda_row_norm_rows, 256, ARRAYS, int n, int centred, int reciprocal, float count, float eps) {
    const float* from = x + (i64)blockIdx.x * n;
    const float mean = centred ? (0.f + pairwise<float>(n, Number{from})) / count : 0.f;
    const Square squares = {from, mean, centred};
    write(squares, y + (i64)blockIdx.x * n, factor, shift, pairwise<float>(n, squares), {centred, reciprocal, count, eps}, n,
          threadIdx.x, blockDim.x);
}
