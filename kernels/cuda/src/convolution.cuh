// Convolutions as products whose one side is read out of windows (no matrix of windows is made), up to three
// axes of space, for the kernels of convolution.cu and tensor_convolution.cu. One form is that of
// convolutions, their gradients for the input, and transposed convolutions:
//
//   y[n, o, start + q * y_axis] = sum over taps t, channels c of x[n, c, q * stride + first + t * step] *
//   w[o, c, t]
//
// with places q. A transposed convolution is made by phases: places that lie alike between the elements of
// its input. TYPE: that of an element; ACC: of a sum; INDEX: of places in an array, int or i64; LAST 1 where
// channels are columns of the product, else 0 and places are; BY_TAPS 1 where a sum takes all channels of a
// tap before the next tap, else 0.
#pragma once
#include "finishing.cuh"

// n / by for n < 2^31, without a division
struct Divisor {
    unsigned magic, shift, by;
};
COC_FN int quotient(int n, const Divisor& d) { return (__umulhi(n, d.magic) + n) >> d.shift; }

constexpr int kFar = 1 << 29;  // a coordinate outside every array, also after steps
constexpr int kWhole = 8;  // elements that lie together: channels are padded to a multiple where it matters

struct Window {
    int groups, taken, given, kept;  // channels of one group; those taken of which weights have gradients
    int places, sums, part, parts;  // batch times places of an image; places along a sum, and of a part of it
    int size[3], stride[3], first[3], step[3];
    Divisor of_image, of_plane, of_line;  // places of an image, of a plane and of a line of the result
    Divisor channels, taps, plane_taps, line_taps;
    i64 x_group, y_group, w_group, w_start,
        y_start;  // steps to the next group; first tap and place that take part
    INDEX x_image, x_channel, x_axis[3], y_image, y_channel, y_axis[3], w_given, w_taken, w_axis[3];
};

struct At3 {
    int z, y, x;
};
COC_FN At3 spread(int i, const Divisor& plane, const Divisor& line) {
    const int z = quotient(i, plane), rest = i - z * (int)plane.by, y = quotient(rest, line);
    return {z, y, rest - y * (int)line.by};
}

// A place of the result as a corner of a window in x, and a tap of a channel as a step from there.
struct Corner {
    INDEX at;
    At3 p;
};
struct Windows {
    const Window& g;
    const TYPE* x;
    COC_FN Corner corner(int i, int end) const {
        if (i >= end) return {0, {-kFar, 0, 0}};
        const int n = quotient(i, g.of_image);
        const At3 q = spread(i - n * (int)g.of_image.by, g.of_plane, g.of_line);
        const At3 p = {q.z * g.stride[0] + g.first[0], q.y * g.stride[1] + g.first[1],
                       q.x * g.stride[2] + g.first[2]};
        return {n * g.x_image + p.z * g.x_axis[0] + p.y * g.x_axis[1] + p.x * g.x_axis[2], p};
    }
    COC_FN Corner tap(int channel, int tap) const {
        const At3 t = spread(tap, g.plane_taps, g.line_taps);
        const At3 p = {t.z * g.step[0], t.y * g.step[1], t.x * g.step[2]};
        return {channel * g.x_channel + p.z * g.x_axis[0] + p.y * g.x_axis[1] + p.x * g.x_axis[2], p};
    }
    COC_FN bool inside(const Corner& corner, const Corner& tap) const {
        return (unsigned)(corner.p.z + tap.p.z) < (unsigned)g.size[0] &&
               (unsigned)(corner.p.y + tap.p.y) < (unsigned)g.size[1] &&
               (unsigned)(corner.p.x + tap.p.x) < (unsigned)g.size[2];
    }
    COC_FN const TYPE* find(const Corner& corner, const Corner& tap) const {
        return inside(corner, tap) ? x + corner.at + tap.at : nullptr;
    }
    COC_FN const TYPE* any() const { return x; }
    COC_FN int places_from(int) const { return kWhole; }
    COC_FN int lines_from(int) const { return kWhole; }
};

struct Step {
    INDEX at;
    bool inside;
};
// Place i along a sum as channel and tap: a channel's taps together where channels are planes, else the other
// way.
struct Factor {
    int channel, tap;
};
COC_FN Factor factor(int i, const Window& g) {
    const int high = quotient(i, BY_TAPS ? g.channels : g.taps);
    const int low = i - high * (int)(BY_TAPS ? g.channels : g.taps).by;
    return BY_TAPS ? Factor{low, high} : Factor{high, low};
}

struct Pixels : Windows {  // places of the result by factors
    int end;
    using Line = Corner;
    using Place = Corner;
    COC_FN Line line(int i) const { return corner(i, g.places); }
    COC_FN Place place(int i) const {
        if (i >= end) return {0, {-kFar, 0, 0}};
        const Factor f = factor(i, g);
        return tap(f.channel, f.tap);
    }
};

struct Weights {  // channels of the result by factors
    const Window& g;
    const TYPE* w;
    int end;
    using Line = Step;
    using Place = Step;
    COC_FN Line line(int i) const { return {i * g.w_given, i < g.given}; }
    COC_FN Place place(int i) const {
        if (i >= end) return {0, false};
        const Factor f = factor(i, g);
        const At3 t = spread(f.tap, g.plane_taps, g.line_taps);
        return {f.channel * g.w_taken + t.z * g.w_axis[0] + t.y * g.w_axis[1] + t.x * g.w_axis[2], true};
    }
    COC_FN const TYPE* find(const Line& line, const Place& place) const {
        return line.inside && place.inside ? w + line.at + place.at : nullptr;
    }
    COC_FN const TYPE* any() const { return w; }
    COC_FN int places_from(int) const { return kWhole; }
    COC_FN int lines_from(int) const { return kWhole; }
};

struct Channel {
    INDEX at;
    ACC bias;
    bool inside;
};
struct Image {
    const Window& g;
    TYPE* y;
    const TYPE *bias, *residual;
    COC_FN Channel channel(int i) const {
        return {i * g.y_channel, bias_of(bias, i, i < g.given), i < g.given};
    }
    COC_FN Step pixel(int i) const {
        if (i >= g.places) return {0, false};
        const int n = quotient(i, g.of_image);
        const At3 q = spread(i - n * (int)g.of_image.by, g.of_plane, g.of_line);
        return {n * g.y_image + q.z * g.y_axis[0] + q.y * g.y_axis[1] + q.x * g.y_axis[2], true};
    }
    COC_FN TYPE* find(const Channel& channel, const Step& pixel) const {
        return channel.inside && pixel.inside ? y + channel.at + pixel.at : nullptr;
    }
    COC_FN TYPE made(const Channel& channel, const Step& pixel, ACC sum) const {
        const bool inside = channel.inside && pixel.inside;
        return finished(sum, channel.bias, inside ? residual : nullptr, channel.at + pixel.at);
    }
};
#if LAST
struct Out : Image {  // neighbouring columns are neighbours in memory
    using Row = Step;
    using Column = Channel;
    COC_FN Row row(int i) const { return pixel(i); }
    COC_FN Column column(int i) const { return channel(i); }
    COC_FN TYPE* at(const Row& row, const Column& column) const { return find(column, row); }
    COC_FN TYPE value(const Row& row, const Column& column, ACC sum) const { return made(column, row, sum); }
#else
struct Out : Image {
    using Row = Channel;
    using Column = Step;
    COC_FN Row row(int i) const { return channel(i); }
    COC_FN Column column(int i) const { return pixel(i); }
    COC_FN TYPE* at(const Row& row, const Column& column) const { return find(row, column); }
    COC_FN TYPE value(const Row& row, const Column& column, ACC sum) const { return made(row, column, sum); }
#endif
    COC_FN void put(const Row& row, const Column& column, ACC sum) const {
        TYPE* to = at(row, column);
        if (to) *to = value(row, column, sum);
    }
};

COC_FN Out out_of(const Window& g, int group, const TYPE* bias, const TYPE* residual, TYPE* y) {
    const i64 first = g.y_start + group * g.y_group;
    return {{g, y + first, bias ? bias + group * g.given : bias, residual ? residual + first : residual}};
}
COC_FN const TYPE* of_group(const TYPE* x, const Window& g, int group) { return x + group * g.x_group; }
