// Sums of parts of products, [part, matrix, row, column], become the result. Macros: those of products.cuh.
#include "products.cuh"

KERNEL(finish, const ACC* parts, const TYPE* bias, const TYPE* residual, TYPE* out, int count, Product p) {
    const i64 each = (i64)p.rows * p.columns, n = each * p.stack;
    FOR_EACH(i, n) {
        ACC sum = 0;
        for (int part = 0; part < count; part++) sum = sum + parts[part * n + i];
        const int matrix = (int)(i / each), row = (int)(i % each / p.columns), column = (int)(i % p.columns);
        const i64 at = starts_of(p, matrix).out + (i64)row * p.out_row + (i64)column * p.out_column;
        out[at] = finished(scaled(sum, p), bias_of(bias, column, true), residual, at);
    }
}
