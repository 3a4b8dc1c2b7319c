// The gradient of a convolution for w: sums over all places of y, in parts. Macros: those of convolution.cuh.
#pragma once
#include "convolution.cuh"

struct Results {  // channels of y by places
    const Window& g;
    const TYPE* y;
    int end;
    using Line = Step;
    using Place = Step;
    COC_FN Line line(int i) const { return {i * g.y_channel, i < g.given}; }
    COC_FN Place place(int i) const {
        if (i >= end) return {0, false};
        const int n = quotient(i, g.of_image);
        const At3 q = spread(i - n * (int)g.of_image.by, g.of_plane, g.of_line);
        return {n * g.y_image + q.z * g.y_axis[0] + q.y * g.y_axis[1] + q.x * g.y_axis[2], true};
    }
    COC_FN const TYPE* find(const Line& line, const Place& place) const {
        return line.inside && place.inside ? y + line.at + place.at : nullptr;
    }
    COC_FN const TYPE* any() const { return y; }
    COC_FN int places_from(int) const { return kWhole; }
    COC_FN int lines_from(int) const { return kWhole; }
};
struct Factors : Windows {  // factors by places of y
    int end;
    using Line = Corner;
    using Place = Corner;
    COC_FN Line line(int i) const {
        if (i >= g.sums) return {0, {-kFar, 0, 0}};
        const Factor f = factor(i, g);
        return tap(f.channel, f.tap);
    }
    COC_FN Place place(int i) const { return corner(i, end); }
};

struct Parts {
    const Window& g;
    ACC* sums;
    using Row = int;
    using Column = int;
    COC_FN int row(int i) const { return i; }
    COC_FN int column(int i) const { return i; }
    COC_FN void put(int row, int column, ACC sum) const {
        if (row < g.given && column < g.sums) sums[(i64)row * g.sums + column] = sum;
    }
};