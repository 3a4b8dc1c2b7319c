// Products of stacks of matrices. TYPE: that of an element; ACC: of a sum; INDEX: of places in a matrix, int or i64;
// LEFT_PLACES, RIGHT_PLACES: see tiles.cuh.
#include "epilogue.cuh"
#include "tiles.cuh"

constexpr int kAxes = 8;

struct Product {
    int rows, columns, depth, part;  // part: places of a split, all of them where there is one
    INDEX left_line, left_place, right_line, right_place, out_row, out_column;
    int stack, axes;
    int sizes[kAxes];
    i64 left_step[kAxes], right_step[kAxes], out_step[kAxes];
    double scale;
};

struct Matrix {
    const TYPE* values;
    INDEX line_step, place_step;
    int lines, places;
    struct Line {
        INDEX at;
        bool inside;
    };
    using Place = Line;
    COC_FN Line line(int i) const { return {(INDEX)i * line_step, i < lines}; }
    COC_FN Place place(int i) const { return {(INDEX)i * place_step, i < places}; }
    COC_FN ACC at(const Line& line, const Place& place) const {
        return line.inside && place.inside ? (ACC)widen(values[line.at + place.at]) : (ACC)0;
    }
};

struct Starts {
    i64 left, right, out;
};
COC_FN Starts starts_of(const Product& p, int number) {
    Starts s = {0, 0, 0};
    for (int axis = p.axes - 1; axis >= 0; axis--) {
        const int i = number % p.sizes[axis];
        number /= p.sizes[axis];
        s.left += i * p.left_step[axis], s.right += i * p.right_step[axis], s.out += i * p.out_step[axis];
    }
    return s;
}

COC_FN ACC scaled(ACC sum, const Product& p) {
#if FUSED
    return sum * (ACC)p.scale;
#else
    return sum;
#endif
}

struct Whole {
    const Product& p;
    TYPE* out;
    const TYPE *bias, *residual;
    using Row = Matrix::Line;
    struct Column {
        INDEX at;
        int number;
        bool inside;
    };
    COC_FN Row row(int i) const { return {(INDEX)i * p.out_row, i < p.rows}; }
    COC_FN Column column(int i) const { return {(INDEX)i * p.out_column, i, i < p.columns}; }
    COC_FN void put(const Row& row, const Column& column, ACC sum) const {
        if (!row.inside || !column.inside) return;
        const INDEX at = row.at + column.at;
        out[at] = finished(scaled(sum, p), bias, column.number, residual, at);
    }
};

// The sum of a part of the places: [rows, columns]
struct Partial {
    const Product& p;
    ACC* sums;
    using Row = Matrix::Line;
    using Column = Matrix::Line;
    COC_FN Row row(int i) const { return {(INDEX)i * p.columns, i < p.rows}; }
    COC_FN Column column(int i) const { return {(INDEX)i, i < p.columns}; }
    COC_FN void put(const Row& row, const Column& column, ACC sum) const {
        if (row.inside && column.inside) sums[(i64)row.at + column.at] = sum;
    }
};

// Grid: tiles, parts of the places, matrices of the stack. `parts` [part, matrix, row, column] is given where there are
// several; `finish` adds them.
KERNEL_BOUNDS(multiply, 256, const TYPE* left, const TYPE* right, const TYPE* bias, const TYPE* residual, TYPE* out,
              ACC* parts, Product p) {
    const int across = (p.columns + TILE - 1) / TILE;
    const int row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    const int first = blockIdx.y * p.part, end = min(p.depth, first + p.part);
    for (int matrix = blockIdx.z; matrix < p.stack; matrix += gridDim.z) {
        const Starts s = starts_of(p, matrix);
        const Matrix a = {left + s.left, p.left_line, p.left_place, p.rows, end};
        const Matrix b = {right + s.right, p.right_line, p.right_place, p.columns, end};
        ACC sums[kPart][kPart];
        add_products<LEFT_PLACES, RIGHT_PLACES>(sums, a, b, row, column, first, end);
        if (parts)
            put_sums(sums, Partial{p, parts + ((i64)blockIdx.y * p.stack + matrix) * p.rows * p.columns}, row, column);
        else
            put_sums(sums, Whole{p, out + s.out, bias, residual ? residual + s.out : residual}, row, column);
    }
}

KERNEL(finish, const ACC* parts, const TYPE* bias, const TYPE* residual, TYPE* out, int count, Product p) {
    const i64 each = (i64)p.rows * p.columns, n = each * p.stack;
    FOR_EACH(i, n) {
        ACC sum = 0;
        for (int part = 0; part < count; part++) sum = sum + parts[part * n + i];
        const int matrix = (int)(i / each), row = (int)(i % each / p.columns), column = (int)(i % p.columns);
        const i64 at = starts_of(p, matrix).out + (i64)row * p.out_row + (i64)column * p.out_column;
        out[at] = finished(scaled(sum, p), bias, column, residual, at);
    }
}
