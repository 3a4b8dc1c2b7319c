// Products of stacks of matrices by tensor cores. Macros: those of products.cuh, with ACC float, and of
// tensor_tiles.cuh; LEFT_PLACES, RIGHT_PLACES and PARTS as in products.cu.
#include "products.cuh"
#include "spots.cuh"
#include "tensor_tiles.cuh"

// What a block makes. Grid: tiles for each part of the places; matrices of the stack along y and z.
struct Work : Spot {
    int matrix;
};
COC_FN Work work_of(const Product& p) {
    return {spot_of(p.rows, p.columns), (int)(blockIdx.z * gridDim.y + blockIdx.y)};
}

template <class Tile>
COC_FN void add_matrix(Sums& sums, const TYPE* left, const TYPE* right, const Product& p, const Work& work,
                       Tile& tile) {
    const int first = work.part * p.part, end = min(p.depth, first + p.part);
    const Matrix a = {left, p.left_line, p.left_place, p.rows, end};
    const Matrix b = {right, p.right_line, p.right_place, p.columns, end};
    add_products<LEFT_PLACES, RIGHT_PLACES>(sums, a, b, work.row, work.column, first, end, tile);
}

#if PARTS
// parts: [part, matrix, row, column]
KERNEL_BOUNDS(multiply_parts, kThreads, const TYPE* left, const TYPE* right, float* parts, Product p) {
    SHARED_DYNAMIC(TYPE, tile);
    const Work work = work_of(p);
    if (work.matrix >= p.stack) return;
    const Starts s = starts_of(p, work.matrix);
    Sums sums;
    add_matrix(sums, left + s.left, right + s.right, p, work, tile);
    const Partial out = {p, parts + ((i64)work.part * p.stack + work.matrix) * p.rows * p.columns};
    put_sums(sums, out, work.row, work.column);
}
#else
KERNEL_BOUNDS(multiply, kThreads, const TYPE* left, const TYPE* right, const TYPE* bias, const TYPE* residual,
              TYPE* out, Product p) {
    SHARED_DYNAMIC(TYPE, tile);
    const Work work = work_of(p);
    if (work.matrix >= p.stack) return;
    const Starts s = starts_of(p, work.matrix);
    Sums sums;
    add_matrix(sums, left + s.left, right + s.right, p, work, tile);
    const Whole whole = {p, out + s.out, bias, residual ? residual + s.out : residual};
    put_together(sums, whole, work.row, work.column, tile);
}
#endif
