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
    dnnl::memory weights, bias, scales;
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

Part make_part(const ConvShape& s, const Rows& r, ConvArguments& a, const AnyWeights& w, dim image,
               dim batch) {
    const dims shape = s.groups > 1 ? dims{s.groups, s.o / s.groups, s.c / s.groups, s.kh, s.kw}
                                    : dims{s.o, s.c, s.kh, s.kw};
    auto pd = describe(s, r, a, dnnl::memory::desc(shape, a.wei, tag::any), batch);
    if (!a.weights || a.weights.get_desc() != pd.weights_desc())
        a.weights =
            packed({shape, a.wei, s.groups > 1 ? tag::goihw : tag::oihw}, w.data(), pd.weights_desc());
    Part p;
    p.primitive = dnnl::convolution_forward(pd);
    p.src = dnnl::memory(pd.src_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.dst = dnnl::memory(pd.dst_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.scratch = dnnl::memory(pd.scratchpad_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.args = {{DNNL_ARG_SRC, p.src},
              {DNNL_ARG_WEIGHTS, a.weights},
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
    if (s.oh < 2 * pieces) return false;
    for (dim i = 0; i < pieces; ++i)
        if (rows_of(s, s.oh * i / pieces, s.oh * (i + 1) / pieces).in_rows == 0) return false;
    return true;
}

// Several images are split by image, one image by output rows.
void split(PartsStep& step, const ConvShape& s, ConvArguments& a, const AnyWeights& w, int threads) {
    const dim pieces = std::max<dim>(1, threads);
    if (pieces == 1 || (s.n == 1 && !rows_divide(s, pieces))) {
        step.parts_list.push_back(make_part(s, rows_of(s, 0, s.oh), a, w, 0, s.n));
        return;
    }
    const dim total = s.n > 1 ? s.n : s.oh;
    for (dim i = 0; i < pieces; ++i) {
        const dim from = total * i / pieces, to = total * (i + 1) / pieces;
        if (from == to) continue;
        if (s.n > 1)
            step.parts_list.push_back(make_part(s, rows_of(s, 0, s.oh), a, w, from, to - from));
        else
            step.parts_list.push_back(make_part(s, rows_of(s, from, to), a, w, 0, 1));
    }
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
    auto step = std::make_unique<PartsStep>();
    step->dst_index = sum_type.empty() ? 1 : 2;
    step->after = function_in(after);
    try {
        split(*step, s, a, weights, threads);
    } catch (const dnnl::error& e) {
        throw std::runtime_error(std::string("oneDNN: ") + e.what());
    }
    return capsule(std::move(step));
}

nb::object linear_step(dim m, dim k, dim n, std::string src, std::string dst, AnyWeights weights,
                       std::optional<F32> scales, F32 bias, std::string activation, float lo, float hi,
                       std::string sum_type, float sum_scale, const nb::object& after) {
    OneOmpThread one;
    const auto st = data_type(src), dt = data_type(dst);
    const auto wt = weight_type(st);
    auto attr = make_attr({activation, lo, hi, sum_type, sum_scale}, scales ? 1 : -1);
    auto step = std::make_unique<PartsStep>();
    step->dst_index = sum_type.empty() ? 1 : 2;
    step->after = function_in(after);
    try {
        dnnl::inner_product_forward::primitive_desc pd(
            cpu_engine(), dnnl::prop_kind::forward_inference, dnnl::memory::desc({m, k}, st, tag::ab),
            dnnl::memory::desc({n, k}, wt, tag::any),
            dnnl::memory::desc({n}, dnnl::memory::data_type::f32, tag::x),
            dnnl::memory::desc({m, n}, dt, tag::ab), attr);
        Part p;
        p.primitive = dnnl::inner_product_forward(pd);
        p.src = dnnl::memory(pd.src_desc(), cpu_engine(), DNNL_MEMORY_NONE);
        p.dst = dnnl::memory(pd.dst_desc(), cpu_engine(), DNNL_MEMORY_NONE);
        p.scratch = dnnl::memory(pd.scratchpad_desc(), cpu_engine(), DNNL_MEMORY_NONE);
        p.dst_size = m * n;
        auto packed_weights = packed({{n, k}, wt, tag::ab}, weights.data(), pd.weights_desc());
        p.args = {{DNNL_ARG_SRC, p.src},
                  {DNNL_ARG_WEIGHTS, packed_weights},
                  {DNNL_ARG_BIAS, copied(bias)},
                  {DNNL_ARG_DST, p.dst},
                  {DNNL_ARG_SCRATCHPAD, p.scratch}};
        if (scales) p.args.insert({DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, copied(*scales)});
        step->parts_list.push_back(std::move(p));
    } catch (const dnnl::error& e) {
        throw std::runtime_error(std::string("oneDNN: ") + e.what());
    }
    return capsule(std::move(step));
}

}  // namespace

void bind_conv(nb::module_& m) {
    using nb::arg;
    m.def("conv_step", &conv_step, arg("shape"), arg("geometry"), arg("src"), arg("dst"), arg("weights"),
          arg("scales").none(), arg("bias"), arg("activation"), arg("lo"), arg("hi"), arg("sum_type"),
          arg("sum_scale"), arg("threads"), arg("after") = nb::none());
    m.def("linear_step", &linear_step, arg("m"), arg("k"), arg("n"), arg("src"), arg("dst"), arg("weights"),
          arg("scales").none(), arg("bias"), arg("activation"), arg("lo"), arg("hi"), arg("sum_type"),
          arg("sum_scale"), arg("after") = nb::none());
}

}  // namespace mge
