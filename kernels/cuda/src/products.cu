// Products of stacks of matrices. TYPE: that of an element; ACC: of a sum; INDEX: of places in a matrix, int or i64;
// LEFT_PLACES, RIGHT_PLACES: see tiles.cuh.
#include "tiles.cuh"

#include "products.cuh"

COC_FN void add_matrix(ACC (&sums)[kPart][kPart], const TYPE* left, const TYPE* right, const Product& p,
                       const Work& work) {
    const int first = work.part * p.part, end = min(p.depth, first + p.part);
    const Matrix a = {left, p.left_line, p.left_place, p.rows, end};
    const Matrix b = {right, p.right_line, p.right_place, p.columns, end};
    add_products<LEFT_PLACES, RIGHT_PLACES>(sums, a, b, work.row, work.column, first, end);
}

KERNEL_BOUNDS(multiply, 256, const TYPE* left, const TYPE* right, const TYPE* bias, const TYPE* residual, TYPE* out, Product p) {
    const Work work = work_of(p);
    if (work.matrix >= p.stack) return;
    const Starts s = starts_of(p, work.matrix);
    ACC sums[kPart][kPart];
    add_matrix(sums, left + s.left, right + s.right, p, work);
    put_sums(sums, Whole{p, out + s.out, bias, residual ? residual + s.out : residual}, work.row, work.column);
}

// Sums of parts of the places: [part, matrix, row, column], which `finish` adds.
KERNEL_BOUNDS(multiply_parts, 256, const TYPE* left, const TYPE* right, ACC* parts, Product p) {
    const Work work = work_of(p);
    if (work.matrix >= p.stack) return;
    const Starts s = starts_of(p, work.matrix);
    ACC sums[kPart][kPart];
    add_matrix(sums, left + s.left, right + s.right, p, work);
    const Partial out = {p, parts + ((i64)work.part * p.stack + work.matrix) * p.rows * p.columns};
    put_sums(sums, out, work.row, work.column);
}
