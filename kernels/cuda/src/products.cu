// Products of stacks of matrices. TYPE: that of an element; ACC: of a sum; INDEX: of places in a matrix, int
// or i64; LEFT_PLACES, RIGHT_PLACES: see tiles.cuh; PARTS 1 for sums of parts of the places, else 0.
#include "products.cuh"
#include "spots.cuh"
#include "tiles.cuh"

// What a block makes. Grid: tiles for each part of the places; matrices of the stack along y and z.
struct Work : Spot {
    int matrix;
};
COC_FN Work work_of(const Product& p) {
    return {spot_of(p.rows, p.columns), (int)(blockIdx.z * gridDim.y + blockIdx.y)};
}

COC_FN void add_matrix(ACC (&sums)[kPart][kPart], const TYPE* left, const TYPE* right, const Product& p,
                       const Work& work) {
    const int first = work.part * p.part, end = min(p.depth, first + p.part);
    const Matrix a = {left, p.left_line, p.left_place, p.rows, end};
    const Matrix b = {right, p.right_line, p.right_place, p.columns, end};
    add_products<LEFT_PLACES, RIGHT_PLACES>(sums, a, b, work.row, work.column, first, end);
}

#if PARTS
// parts: [part, matrix, row, column]
KERNEL_BLOCKS(multiply_parts, 256, kBlocks, const TYPE* left, const TYPE* right, ACC* parts, Product p) {
    const Work work = work_of(p);
    if (work.matrix >= p.stack) return;
    const Starts s = starts_of(p, work.matrix);
    ACC sums[kPart][kPart];
    add_matrix(sums, left + s.left, right + s.right, p, work);
    const Partial out = {p, parts + ((i64)work.part * p.stack + work.matrix) * p.rows * p.columns};
    put_sums(sums, out, work.row, work.column);
}
#else
KERNEL_BLOCKS(multiply, 256, kBlocks, const TYPE* left, const TYPE* right, const TYPE* bias,
              const TYPE* residual, TYPE* out, Product p) {
    const Work work = work_of(p);
    if (work.matrix >= p.stack) return;
    const Starts s = starts_of(p, work.matrix);
    ACC sums[kPart][kPart];
    add_matrix(sums, left + s.left, right + s.right, p, work);
    put_sums(sums, Whole{p, out + s.out, bias, residual ? residual + s.out : residual}, work.row,
             work.column);
}
#endif
