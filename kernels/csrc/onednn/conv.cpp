// Convolution and linear steps: dense channels-last activations, weights packed once, split over output rows.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "onednn/onednn_step.h"

namespace nb = nanobind;

namespace mge {
namespace {

using dims = dnnl::memory::dims;
using dim = dnnl::memory::dim;
using tag = dnnl::memory::format_tag;

struct ConvShape {
    dim n, c, h, w, o, kh, kw, groups, oh, ow;
    dims stride, dilation;  // oneDNN's dilation: 0 is none
    dim top, bottom, left, right;
};

// The rows [from, to) of the output as a convolution of its own.
struct Rows {
    dim in_from, in_rows, top, bottom, out_from, out_rows;
};

Rows rows_of(const ConvShape& s, dim from, dim to) {
    if (from == 0 && to == s.oh)
        return {0, s.h, s.top, s.bottom, 0, s.oh};  // whole images: their distance counts
    const dim span = (s.kh - 1) * (s.dilation[0] + 1) + 1;
    const dim first = from * s.stride[0] - s.top, last = (to - 1) * s.stride[0] - s.top + span;
    const dim begin = std::clamp<dim>(first, 0, s.h), end = std::clamp<dim>(last, begin, s.h);
    return {begin, end - begin, begin - first, last - end, from, to - from};
}

struct ConvArguments {
    dnnl::memory::data_type src, wei, dst;
    dnnl::primitive_attr attr;
    Packing weights;
    dnnl::memory bias, scales;
    bool has_scales;
};

dnnl::convolution_forward::primitive_desc describe(const ConvShape& s, const Rows& r, const ConvArguments& a,
                                                   const dnnl::memory::desc& weights, dim batch) {
    dnnl::memory::desc src({batch, s.c, r.in_rows, s.w}, a.src, tag::nhwc);
    dnnl::memory::desc dst({batch, s.o, r.out_rows, s.ow}, a.dst, tag::nhwc);
    dnnl::memory::desc bias({s.o}, dnnl::memory::data_type::f32, tag::x);
    return {cpu_engine(),
            dnnl::prop_kind::forward_inference,
            dnnl::algorithm::convolution_direct,
            src,
            weights,
            bias,
            dst,
            s.stride,
            s.dilation,
            {r.top, s.left},
            {r.bottom, s.right},
            a.attr};
}

Part make_part(const ConvShape& s, const Rows& r, ConvArguments& a, const void* w, dim image, dim batch) {
    const dims shape = s.groups > 1 ? dims{s.groups, s.o / s.groups, s.c / s.groups, s.kh, s.kw}
                                    : dims{s.o, s.c, s.kh, s.kw};
    auto pd = describe(s, r, a, dnnl::memory::desc(shape, a.wei, tag::any), batch);
    if (!a.weights.memory || a.weights.memory.get_desc() != pd.weights_desc())
        a.weights = packed({shape, a.wei, s.groups > 1 ? tag::goihw : tag::oihw}, w, pd.weights_desc());
    Part p;
    p.primitive = dnnl::convolution_forward(pd);
    p.src = dnnl::memory(pd.src_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.dst = dnnl::memory(pd.dst_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.scratch = dnnl::memory(pd.scratchpad_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.weights = a.weights.bytes;
    p.args = {{DNNL_ARG_SRC, p.src},
              {DNNL_ARG_WEIGHTS, a.weights.memory},
              {DNNL_ARG_BIAS, a.bias},
              {DNNL_ARG_DST, p.dst},
              {DNNL_ARG_SCRATCHPAD, p.scratch}};
    if (a.has_scales) p.args.insert({DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, a.scales});
    p.src_offset = static_cast<std::size_t>((image * s.h + r.in_from) * s.w * s.c) * size_of(a.src);
    p.dst_offset = static_cast<std::size_t>((image * s.oh + r.out_from) * s.ow * s.o) * size_of(a.dst);
    p.dst_size = batch * r.out_rows * s.ow * s.o;
    return p;
}

// True if every piece of the output rows reads rows of the source; oneDNN takes no convolution of padding
// alone.
bool rows_divide(const ConvShape& s, dim pieces) {
    for (dim i = 0; i < pieces; ++i)
        if (rows_of(s, s.oh * i / pieces, s.oh * (i + 1) / pieces).in_rows == 0) return false;
    return true;
}

// The piece of the output channels [from, to), which another convolution computes.
Part make_columns(const ConvShape& s, const ConvArguments& a, const std::byte* w, dim from, dim to) {
    ConvShape of_piece = s;
    of_piece.o = to - from;
    ConvArguments b = a;
    b.weights = {};
    b.bias = columns_of(a.bias, from, to);
    if (a.has_scales) b.scales = columns_of(a.scales, from, to);
    const auto filter = static_cast<std::size_t>(s.c * s.kh * s.kw * from) * size_of(a.wei);
    Part p = make_part(of_piece, rows_of(s, 0, s.oh), b, w + filter, 0, s.n);
    p.place(s.n * s.oh * s.ow, from, to, s.o, size_of(a.dst));
    return p;
}

// All in one part; several images by image, one image by output rows; all by output channels, first if that
// leaves the last thread less to do.
std::vector<Split> splits(const ConvShape& s, ConvArguments& a, const AnyWeights& w, int threads) {
    const auto* data = static_cast<const std::byte*>(w.data());
    const dim total = s.n > 1 ? s.n : s.oh, pieces = std::min<dim>(threads, s.n > 1 ? total : total / 2);
    std::vector<Split> ways;
    double largest = 1;
    if (pieces > 1 && (s.n > 1 || rows_divide(s, pieces))) {
        largest = static_cast<double>((total + pieces - 1) / pieces) / static_cast<double>(total);
        ways.push_back([=, &s, &a](PartsStep& step) {
            for (dim i = 0; i < pieces; ++i) {
                const dim from = total * i / pieces, to = total * (i + 1) / pieces;
                step.parts_list.push_back(s.n > 1
                                              ? make_part(s, rows_of(s, 0, s.oh), a, data, from, to - from)
                                              : make_part(s, rows_of(s, from, to), a, data, 0, 1));
            }
        });
    }
    constexpr double kCopying = 100;  // a result of columns takes as long as so many products more
    const dim depth = s.c * s.kh * s.kw;
    const Columns columns(s.o, threads, s.n * s.oh * s.ow * depth);
    const bool better = columns.largest() * (1 + kCopying / static_cast<double>(depth)) < largest;
    if (s.groups == 1 && columns.pieces > 1)
        ways.insert(better ? ways.begin() : ways.end(), [=, &s, &a](PartsStep& step) {
            for (dim i = 0; i < columns.pieces; ++i)
                step.parts_list.push_back(make_columns(s, a, data, columns.begin(i), columns.begin(i + 1)));
        });
    ways.push_back([=, &s, &a](PartsStep& step) {
        step.parts_list.push_back(make_part(s, rows_of(s, 0, s.oh), a, data, 0, s.n));
    });
    return ways;
}

nb::object conv_step(std::vector<dim> shape, std::vector<dim> geometry, std::string src, std::string dst,
                     AnyWeights weights, std::optional<F32> scales, F32 bias, std::string activation,
                     float lo, float hi, std::string sum_type, float sum_scale, int threads,
                     const nb::object& after) {
    if (shape.size() != 10 || geometry.size() != 8)
        throw std::invalid_argument("conv_step: wrong number of lengths");
    OneOmpThread one;
    ConvShape s{shape[0],
                shape[1],
                shape[2],
                shape[3],
                shape[4],
                shape[5],
                shape[6],
                shape[7],
                shape[8],
                shape[9],
                {geometry[0], geometry[1]},
                {geometry[2] - 1, geometry[3] - 1},
                geometry[4],
                geometry[5],
                geometry[6],
                geometry[7]};
    ConvArguments a;
    a.src = data_type(src);
    a.dst = data_type(dst);
    a.wei = weight_type(a.src);
    a.has_scales = scales.has_value();
    a.attr = make_attr({activation, lo, hi, sum_type, sum_scale}, a.has_scales ? (s.groups > 1 ? 3 : 1) : -1);
    a.bias = copied(bias);
    if (scales) a.scales = copied(*scales);
    return parts_step(splits(s, a, weights, threads), !sum_type.empty(), after,
                      {a.src, static_cast<std::size_t>(s.n * s.c * s.h * s.w)},
                      {a.dst, static_cast<std::size_t>(s.n * s.o * s.oh * s.ow)});
}

struct LinearArguments {
    dim k, n;
    dnnl::memory::data_type src, dst;
    dnnl::primitive_attr attr;
    const std::byte* weights;
    dnnl::memory bias, scales;
    bool has_scales;
};

// The rows [begin, end) of the result, of them the columns [from, to). `packing`: the packed weights, of the
// first part.
Part make_product(const LinearArguments& a, dim begin, dim end, dim from, dim to, Packing& packing) {
    const dim m = end - begin, n = to - from;
    const auto wt = weight_type(a.src);
    dnnl::inner_product_forward::primitive_desc pd(
        cpu_engine(), dnnl::prop_kind::forward_inference, dnnl::memory::desc({m, a.k}, a.src, tag::ab),
        dnnl::memory::desc({n, a.k}, wt, tag::any),
        dnnl::memory::desc({n}, dnnl::memory::data_type::f32, tag::x),
        dnnl::memory::desc({m, n}, a.dst, tag::ab), a.attr);
    const auto* weights = a.weights + static_cast<std::size_t>(from * a.k) * size_of(wt);
    if (!packing.memory || packing.memory.get_desc() != pd.weights_desc())
        packing = packed({{n, a.k}, wt, tag::ab}, weights, pd.weights_desc());
    Part p;
    p.primitive = dnnl::inner_product_forward(pd);
    p.src = dnnl::memory(pd.src_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.dst = dnnl::memory(pd.dst_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.scratch = dnnl::memory(pd.scratchpad_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.weights = packing.bytes;
    p.dst_size = m * n;
    p.args = {{DNNL_ARG_SRC, p.src},
              {DNNL_ARG_WEIGHTS, packing.memory},
              {DNNL_ARG_BIAS, columns_of(a.bias, from, to)},
              {DNNL_ARG_DST, p.dst},
              {DNNL_ARG_SCRATCHPAD, p.scratch}};
    if (a.has_scales)
        p.args.insert({DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, columns_of(a.scales, from, to)});
    p.place(m, from, to, a.n, size_of(a.dst));
    p.src_offset = static_cast<std::size_t>(begin * a.k) * size_of(a.src);
    p.dst_offset += static_cast<std::size_t>(begin * a.n) * size_of(a.dst);
    return p;
}

// Many rows by rows, few by columns, for each of which the weights are read once; all in one part.
std::vector<Split> splits(const LinearArguments& a, dim m, dim threads) {
    constexpr dim kRows = 32;
    const Columns columns(a.n, threads, m * a.k);
    std::vector<Split> ways;
    if (columns.pieces > 1 && m >= kRows * threads)
        ways.push_back([=, &a](PartsStep& step) {
            Packing packing;
            for (dim i = 0; i < threads; ++i)
                step.parts_list.push_back(
                    make_product(a, m * i / threads, m * (i + 1) / threads, 0, a.n, packing));
        });
    else if (columns.pieces > 1)
        ways.push_back([=, &a](PartsStep& step) {
            for (dim i = 0; i < columns.pieces; ++i) {
                Packing packing;
                step.parts_list.push_back(
                    make_product(a, 0, m, columns.begin(i), columns.begin(i + 1), packing));
            }
        });
    ways.push_back([=, &a](PartsStep& step) {
        Packing packing;
        step.parts_list.push_back(make_product(a, 0, m, 0, a.n, packing));
    });
    return ways;
}

nb::object linear_step(dim m, dim k, dim n, std::string src, std::string dst, AnyWeights weights,
                       std::optional<F32> scales, F32 bias, std::string activation, float lo, float hi,
                       std::string sum_type, float sum_scale, int threads, const nb::object& after) {
    OneOmpThread one;
    LinearArguments a{k, n, data_type(src), data_type(dst)};
    a.attr = make_attr({activation, lo, hi, sum_type, sum_scale}, scales ? 1 : -1);
    a.weights = static_cast<const std::byte*>(weights.data());
    a.bias = copied(bias);
    a.has_scales = scales.has_value();
    if (scales) a.scales = copied(*scales);
    return parts_step(splits(a, m, threads), !sum_type.empty(), after,
                      {a.src, static_cast<std::size_t>(m * k)}, {a.dst, static_cast<std::size_t>(m * n)});
}

}  // namespace

void bind_conv(nb::module_& m) {
    using nb::arg;
    m.def("conv_step", &conv_step, arg("shape"), arg("geometry"), arg("src"), arg("dst"), arg("weights"),
          arg("scales").none(), arg("bias"), arg("activation"), arg("lo"), arg("hi"), arg("sum_type"),
          arg("sum_scale"), arg("threads"), arg("after") = nb::none());
    m.def("linear_step", &linear_step, arg("m"), arg("k"), arg("n"), arg("src"), arg("dst"), arg("weights"),
          arg("scales").none(), arg("bias"), arg("activation"), arg("lo"), arg("hi"), arg("sum_type"),
          arg("sum_scale"), arg("threads"), arg("after") = nb::none());
}

}  // namespace mge
