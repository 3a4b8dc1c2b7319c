// A stack of products of matrices: where its operands and its results lie, for the kernels of products.cu and
// tensor_products.cu. Macros: TYPE, ACC, INDEX (of places in a matrix, int or i64).
#pragma once
#include "finishing.cuh"

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
    COC_FN const TYPE* find(const Line& line, const Place& place) const {
        return line.inside && place.inside ? values + line.at + place.at : nullptr;
    }
    COC_FN const TYPE* any() const { return values; }
    COC_FN int places_from(int place) const { return places - place; }
    COC_FN int lines_from(int line) const { return lines - line; }
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
        ACC bias;
        bool inside;
    };
    COC_FN Row row(int i) const { return {(INDEX)i * p.out_row, i < p.rows}; }
    COC_FN Column column(int i) const {
        return {(INDEX)i * p.out_column, bias_of(bias, i, i < p.columns), i < p.columns};
    }
    COC_FN TYPE* at(const Row& row, const Column& column) const {
        return row.inside && column.inside ? out + row.at + column.at : nullptr;
    }
    COC_FN TYPE value(const Row& row, const Column& column, ACC sum) const {
        const bool inside = row.inside && column.inside;
        return finished(scaled(sum, p), column.bias, inside ? residual : nullptr, row.at + column.at);
    }
    COC_FN void put(const Row& row, const Column& column, ACC sum) const {
        if (row.inside && column.inside) out[row.at + column.at] = value(row, column, sum);
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
