// Python interface of the 8-bit kernels: makers of plan steps, and two direct calls. Shapes are checked by
// the Python side (kernels/int8.py), which knows the op.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>

#include "common/step_capsule.h"
#include "int8/steps.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {
using namespace int8;

template <class T>
using Array = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

// A storage type is 0 for u8, 1 for s8, 2 for s16.
std::uint8_t flip_of(int storage) { return storage == 1 ? 0x80 : 0; }
int unsigned_zero(int zero_point, int storage) { return zero_point + (storage == 1 ? 128 : 0); }
bool is_wide(int storage) { return storage == 2; }

// source: (n, h, w, c, zero point, storage), output: (oh, ow, o), window: (kh, kw, sh, sw, top, left, dh, dw,
// groups)
ConvShape shape_of(const std::vector<int>& source, const std::vector<int>& output,
                   const std::vector<int>& window) {
    ConvShape s{};
    s.n = source.at(0), s.h = source.at(1), s.w = source.at(2), s.c = source.at(3);
    s.zero_point = unsigned_zero(source.at(4), source.at(5));
    s.flip = flip_of(source.at(5));
    s.wide = is_wide(source.at(5));
    s.oh = output.at(0), s.ow = output.at(1), s.o = output.at(2);
    s.kh = window.at(0), s.kw = window.at(1), s.stride_h = window.at(2), s.stride_w = window.at(3);
    s.top = window.at(4), s.left = window.at(5), s.dilation_h = window.at(6), s.dilation_w = window.at(7);
    s.groups = window.at(8);
    return s;
}

// clamp: (lo, hi, zero point, storage or 3 for float32); residual: (zero point, storage) or None
Epilogue epilogue_of(const std::vector<int>& clamp, const std::optional<std::vector<int>>& residual,
                     float ratio) {
    Epilogue e;
    e.lo = static_cast<float>(clamp.at(0)), e.hi = static_cast<float>(clamp.at(1));
    e.zero_point = clamp.at(2), e.to_float = clamp.at(3) == 3, e.wide = is_wide(clamp.at(3));
    if (residual) {
        e.res_zero = unsigned_zero(residual->at(0), residual->at(1));
        e.res_flip = flip_of(residual->at(1));
        e.res_wide = is_wide(residual->at(1));
        e.ratio = ratio;
    }
    return e;
}

nb::capsule conv_step(const std::vector<int>& source, const std::vector<int>& output,
                      const std::vector<int>& window, Array<std::int8_t> w, Array<std::int32_t> b,
                      Array<float> m, Array<float> bias, const std::vector<int>& clamp,
                      const std::optional<std::vector<int>>& residual, float ratio, bool depthwise,
                      bool halved, int threads) {
    ConvOptions o;
    o.shape = shape_of(source, output, window);
    o.shape.halved = halved;
    o.epilogue = epilogue_of(clamp, residual, ratio);
    o.residual = residual.has_value();
    o.depthwise = depthwise;
    o.threads = threads;
    const std::size_t channels = static_cast<std::size_t>(o.shape.o);
    if (w.size() != channels * o.shape.depth() || b.size() != channels || m.size() != channels ||
        bias.size() != channels)
        throw nb::value_error("int8 convolution: sizes of w, b, M, B do not fit the shapes");
    return capsule(make_conv(o, w.data(), b.data(), m.data(), bias.data()));
}

// a, r: (zero point, storage); r is None for operations on one tensor
Elementwise elementwise_of(std::size_t size, const std::vector<int>& a,
                           const std::optional<std::vector<int>>& r, const std::vector<int>& clamp, float ra,
                           float rb) {
    Elementwise e;
    e.size = size;
    e.a_flip = flip_of(a.at(1)), e.a_zero = unsigned_zero(a.at(0), a.at(1));
    e.a_wide = is_wide(a.at(1)), e.y_wide = is_wide(clamp.at(3));
    if (r) {
        e.r_flip = flip_of(r->at(1)), e.r_zero = unsigned_zero(r->at(0), r->at(1));
        e.r_wide = is_wide(r->at(1));
    }
    e.a_ratio = ra, e.r_ratio = rb;
    e.lo = static_cast<float>(clamp.at(0)), e.hi = static_cast<float>(clamp.at(1)),
    e.zero_point = clamp.at(2);
    return e;
}

nb::capsule elementwise_step(int kind, std::size_t size, const std::vector<int>& a,
                             const std::optional<std::vector<int>>& r, const std::vector<int>& clamp,
                             float ra, float rb, int threads) {
    return capsule(
        make_elementwise(static_cast<Elementary>(kind), elementwise_of(size, a, r, clamp, ra, rb), threads));
}

using Lengths = std::vector<std::int64_t>;

// strides: of the result, a and r, in bytes
nb::capsule broadcast_step(int kind, const Lengths& shape, const std::vector<Lengths>& strides,
                           const std::vector<int>& a, const std::vector<int>& r,
                           const std::vector<int>& clamp, float ra, float rb, int threads) {
    return capsule(make_broadcast(static_cast<Elementary>(kind), elementwise_of(0, a, r, clamp, ra, rb),
                                  Nest(shape, strides), threads));
}

// shape: (rows, depth, cols, a turned, b turned); a, b: (zero point, storage); places: where each pair begins
nb::capsule product_step(const std::vector<int>& shape, const std::vector<int>& a, const std::vector<int>& b,
                         Lengths a_places, Lengths b_places, float m, const std::vector<int>& clamp,
                         int threads) {
    ProductOptions o;
    o.shape = {shape.at(0),
               shape.at(1),
               shape.at(2),
               shape.at(3) != 0,
               shape.at(4) != 0,
               flip_of(a.at(1)),
               flip_of(b.at(1)),
               unsigned_zero(a.at(0), a.at(1)),
               unsigned_zero(b.at(0), b.at(1))};
    if (a_places.empty() || a_places.size() != b_places.size())
        throw nb::value_error("int8 product: as many places of a as of b expected, at least one");
    o.epilogue = epilogue_of(clamp, std::nullopt, 0);
    o.m = m, o.a = std::move(a_places), o.b = std::move(b_places), o.threads = threads;
    return capsule(make_product(o));
}

RowArgs row_of(int length, const std::vector<int>& x, const std::vector<int>& clamp) {
    RowArgs r;
    r.length = length;
    r.flip = flip_of(x.at(1)), r.x_zero = unsigned_zero(x.at(0), x.at(1));
    r.lo = static_cast<float>(clamp.at(0)), r.hi = static_cast<float>(clamp.at(1)),
    r.zero_point = clamp.at(2);
    return r;
}

// shape: (outer, length, inner)
nb::capsule softmax_step(const std::vector<int>& shape, const std::vector<int>& x, Array<std::int32_t> table,
                         float one, const std::vector<int>& clamp, int threads) {
    if (table.size() != 256) throw nb::value_error("int8 softmax: a table of 256 numbers expected");
    SoftmaxOptions o;
    o.rows = row_of(shape.at(1), x, clamp);
    o.rows.one = one;
    o.outer = shape.at(0), o.inner = shape.at(2), o.threads = threads;
    o.table.assign(table.data(), table.data() + table.size());
    return capsule(make_softmax(o));
}

nb::capsule normalize_step(int rows, int length, const std::vector<int>& x, double shift, bool centred,
                           const std::vector<int>& clamp, int threads) {
    RowArgs r = row_of(length, x, clamp);
    r.shift = shift, r.centred = centred;
    r.x_wide = is_wide(x.at(1)), r.y_wide = is_wide(clamp.at(3));
    return capsule(make_normalize(r, rows, threads));
}

// shape: (outer, length, inner)
nb::capsule mean_step(const std::vector<int>& shape, const std::vector<int>& x, float m,
                      const std::vector<int>& clamp, int threads) {
    const RowArgs r = row_of(shape.at(1), x, clamp);
    MeanArgs a;
    a.length = r.length, a.inner = shape.at(2), a.flip = r.flip, a.x_zero = r.x_zero;
    a.m = m, a.lo = r.lo, a.hi = r.hi, a.zero_point = r.zero_point;
    return capsule(make_mean(a, shape.at(0), threads));
}

// shape: (pictures, pixels, channels)
nb::capsule gate_step(const std::vector<int>& shape, const std::vector<int>& a, const std::vector<int>& r,
                      bool gate_first, const std::vector<int>& clamp, float m, int threads) {
    GateOptions o;
    o.e = elementwise_of(0, a, r, clamp, m, 0);
    o.images = shape.at(0), o.pixels = shape.at(1), o.channels = shape.at(2);
    o.gate_first = gate_first, o.threads = threads;
    return capsule(make_gate(o));
}

nb::capsule planes_step(int images, int channels, int pixels, float scale, const std::vector<int>& clamp,
                        int threads) {
    Planes p;
    p.channels = channels, p.pixels = pixels, p.scale = scale;
    p.lo = static_cast<float>(clamp.at(0)), p.hi = static_cast<float>(clamp.at(1)),
    p.zero_point = clamp.at(2);
    return capsule(make_planes(p, images, threads));
}

nb::capsule pool_step(const std::vector<int>& source, const std::vector<int>& output,
                      const std::vector<int>& window, float scale, const std::vector<int>& clamp,
                      bool average, bool count_include_pad, int threads) {
    PoolArgs p;
    p.s = shape_of(source, output, window);
    p.scale = scale, p.count_include_pad = count_include_pad;
    p.lo = static_cast<float>(clamp.at(0)), p.hi = static_cast<float>(clamp.at(1)),
    p.zero_point = clamp.at(2), p.wide = is_wide(clamp.at(3));
    return capsule(make_pool(p, average, threads));
}

// tables: those of `inner` neighbours each, in turns
nb::capsule lookup_step(AnyArray tables, bool is_signed, std::size_t size, std::size_t inner, int threads) {
    if (tables.nbytes() == 0 || tables.nbytes() % 256 || inner == 0)
        throw nb::value_error("int8 table: expected tables of 256 bytes");
    return capsule(make_lookup(static_cast<const std::uint8_t*>(tables.data()), tables.nbytes() / 256, inner,
                               flip_of(is_signed), size, threads));
}

// channels and signs of the values that lie side by side in the result
nb::capsule channel_lookup_step(AnyArray tables, const std::vector<int>& channels,
                                const std::vector<bool>& is_signed, int pixels, int threads) {
    std::vector<ChannelSource> sources;
    std::size_t count = 0;
    for (std::size_t i = 0; i < std::min(channels.size(), is_signed.size()); ++i) {
        sources.push_back({channels[i], flip_of(is_signed[i])});
        count += static_cast<std::size_t>(channels[i]);
    }
    if (count == 0 || tables.nbytes() != 256 * count || channels.size() != is_signed.size())
        throw nb::value_error("int8 tables: expected one of 256 bytes for each channel");
    return capsule(
        make_channel_lookup(static_cast<const std::uint8_t*>(tables.data()), sources, pixels, threads));
}

// indices and weights of each axis in rows of `taps`
nb::capsule resize_step(std::int64_t outer, std::int64_t inner, const Lengths& lengths, const Lengths& taps,
                        std::vector<Lengths> indices, std::vector<std::vector<std::int32_t>> weights,
                        int shift, const std::vector<int>& x, const std::vector<int>& clamp, int threads) {
    std::vector<ResizeAxis> axes;
    for (std::size_t k = 0; k < lengths.size(); ++k) {
        const auto count = static_cast<std::int64_t>(indices.at(k).size());
        for (const std::int64_t i : indices[k])
            if (i < 0 || i >= lengths[k])
                throw nb::value_error("int8 resize: an index is outside of its axis");
        if (count != static_cast<std::int64_t>(weights.at(k).size()) || taps.at(k) < 1 || count % taps[k])
            throw nb::value_error("int8 resize: as many weights as indices expected");
        axes.push_back({lengths[k], count / taps[k], taps[k], std::move(indices[k]), std::move(weights[k])});
    }
    if (axes.empty()) throw nb::value_error("int8 resize: at least one axis expected");
    const BlendEnd end{shift, clamp.at(0), clamp.at(1), clamp.at(2)};
    return capsule(make_resize(end, std::move(axes), outer, inner, flip_of(x.at(1)),
                               unsigned_zero(x.at(0), x.at(1)), threads));
}

int step_parts(nb::capsule capsule) { return static_cast<const Step*>(capsule.data(kStepCapsule))->parts(); }

// y is written with the fake-quantized x; the result is (smallest, largest) of x
nb::tuple fake_quant(Array<float> x, nb::ndarray<float, nb::c_contig, nb::device::cpu> y, float scale,
                     const std::vector<int>& clamp) {
    Elementwise e;
    e.a = x.data(), e.y = y.data(), e.size = x.size();
    e.a_ratio = scale, e.lo = static_cast<float>(clamp.at(0)), e.hi = static_cast<float>(clamp.at(1));
    float least = std::numeric_limits<float>::infinity(), most = -least;
    {
        nb::gil_scoped_release released;
        active_table().fake_quant(e, &least, &most);
    }
    return nb::make_tuple(least, most);
}

// The epilogue alone: acc [rows, channels] -> y.
void epilogue(Array<std::int32_t> acc, std::optional<AnyArray> res, AnyArray y, Array<std::int32_t> b,
              Array<float> m, Array<float> bias, const std::vector<int>& clamp,
              const std::optional<std::vector<int>>& residual, float ratio) {
    const int rows = static_cast<int>(acc.shape(0)), channels = static_cast<int>(acc.shape(1));
    Channels c{{b.data(), b.data() + channels},
               {m.data(), m.data() + channels},
               {bias.data(), bias.data() + channels}};
    c.b.resize(channels + 64), c.m.resize(channels + 64), c.bias.resize(channels + 64);
    std::vector<std::int32_t> sums(acc.data(), acc.data() + acc.size());
    sums.resize(sums.size() + 64);
    Epilogue e = epilogue_of(clamp, residual, ratio);
    e.b = c.b.data(), e.m = c.m.data(), e.bias = c.bias.data();
    const auto* r = res ? static_cast<const std::uint8_t*>(res->data()) : nullptr;
    auto* out = static_cast<std::uint8_t*>(const_cast<void*>(y.data()));
    active_table().epilogue(sums.data(), r, out, rows, channels, e);
}

}  // namespace

void bind_int8(nb::module_& m) {
    m.def("make_int8_conv_step", conv_step, nb::arg("source"), nb::arg("output"), nb::arg("window"),
          nb::arg("w"), nb::arg("b"), nb::arg("m"), nb::arg("bias"), nb::arg("clamp"),
          nb::arg("residual").none(), nb::arg("ratio"), nb::arg("depthwise"), nb::arg("halved"),
          nb::arg("threads"));
    m.def("make_int8_elementwise_step", elementwise_step, nb::arg("kind"), nb::arg("size"), nb::arg("a"),
          nb::arg("r").none(), nb::arg("clamp"), nb::arg("ra"), nb::arg("rb"), nb::arg("threads"));
    m.def("make_int8_broadcast_step", broadcast_step, nb::arg("kind"), nb::arg("shape"), nb::arg("strides"),
          nb::arg("a"), nb::arg("r"), nb::arg("clamp"), nb::arg("ra"), nb::arg("rb"), nb::arg("threads"));
    m.def("make_int8_product_step", product_step, nb::arg("shape"), nb::arg("a"), nb::arg("b"),
          nb::arg("a_places"), nb::arg("b_places"), nb::arg("m"), nb::arg("clamp"), nb::arg("threads"));
    m.def("make_int8_softmax_step", softmax_step, nb::arg("shape"), nb::arg("x"), nb::arg("table"),
          nb::arg("one"), nb::arg("clamp"), nb::arg("threads"));
    m.def("make_int8_normalize_step", normalize_step, nb::arg("rows"), nb::arg("length"), nb::arg("x"),
          nb::arg("shift"), nb::arg("centred"), nb::arg("clamp"), nb::arg("threads"));
    m.def("make_int8_mean_step", mean_step, nb::arg("shape"), nb::arg("x"), nb::arg("m"), nb::arg("clamp"),
          nb::arg("threads"));
    m.def("make_int8_gate_step", gate_step, nb::arg("shape"), nb::arg("a"), nb::arg("r"),
          nb::arg("gate_first"), nb::arg("clamp"), nb::arg("m"), nb::arg("threads"));
    m.def("make_int8_planes_step", planes_step, nb::arg("images"), nb::arg("channels"), nb::arg("pixels"),
          nb::arg("scale"), nb::arg("clamp"), nb::arg("threads"));
    m.def("make_int8_pool_step", pool_step, nb::arg("source"), nb::arg("output"), nb::arg("window"),
          nb::arg("scale"), nb::arg("clamp"), nb::arg("average"), nb::arg("count_include_pad"),
          nb::arg("threads"));
    m.def("make_int8_lookup_step", lookup_step, nb::arg("tables"), nb::arg("is_signed"), nb::arg("size"),
          nb::arg("inner"), nb::arg("threads"));
    m.def("make_int8_channel_lookup_step", channel_lookup_step, nb::arg("tables"), nb::arg("channels"),
          nb::arg("is_signed"), nb::arg("pixels"), nb::arg("threads"));
    m.def("has_fast_channel_lookup", has_fast_channel_lookup);
    m.def("make_int8_resize_step", resize_step, nb::arg("outer"), nb::arg("inner"), nb::arg("lengths"),
          nb::arg("taps"), nb::arg("indices"), nb::arg("weights"), nb::arg("shift"), nb::arg("x"),
          nb::arg("clamp"), nb::arg("threads"));
    m.def("int8_step_parts", step_parts, nb::arg("step"));
    m.def("int8_fake_quant", fake_quant, nb::arg("x"), nb::arg("y"), nb::arg("scale"), nb::arg("clamp"));
    m.def("int8_epilogue", epilogue, nb::arg("acc"), nb::arg("res").none(), nb::arg("y"), nb::arg("b"),
          nb::arg("m"), nb::arg("bias"), nb::arg("clamp"), nb::arg("residual").none(), nb::arg("ratio"));
}

}  // namespace mge
