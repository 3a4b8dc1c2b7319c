// Gradients of convolutions. Activations with four axes are dense channels-last; weights and their gradients
// lie as [O, C/groups, kh, kw] and are changed into the form the primitive wants at every run, because a
// training step gives new ones.
#include <nanobind/stl/vector.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "onednn/onednn_step.h"

namespace nb = nanobind;

namespace mge {
namespace {

using dims = dnnl::memory::dims;
using dim = dnnl::memory::dim;
using tag = dnnl::memory::format_tag;
constexpr auto kFloat = dnnl::memory::data_type::f32;

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// A convolution over two axes, whose activations are channels-last, or three, whose lie in rows.
struct Descriptions {
    dnnl::memory::desc src, dst, any_weights, plain_weights;
    dims stride, dilation, before, after;
    dnnl::primitive_attr attr;

    // shapes: of x, of the result, of the kernel; geometry: stride, dilation, padding before, behind
    Descriptions(const std::vector<dims>& shapes, dim groups, const std::vector<dims>& geometry)
        : src(shapes[0], kFloat, shapes[0].size() == 4 ? tag::nhwc : tag::ncdhw),
          dst(shapes[1], kFloat, shapes[1].size() == 4 ? tag::nhwc : tag::ncdhw),
          stride(geometry[0]),
          dilation(geometry[1]),
          before(geometry[2]),
          after(geometry[3]) {
        for (dim& d : dilation) --d;
        const dim out = shapes[1][1], in = shapes[0][1];
        dims w = groups > 1 ? dims{groups, out / groups, in / groups} : dims{out, in};
        w.insert(w.end(), shapes[2].begin(), shapes[2].end());
        any_weights = {w, kFloat, tag::any};
        plain_weights = {w, kFloat, w.size() == 4 ? tag::abcd : w.size() == 5 ? tag::abcde : tag::abcdef};
        attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    }

    dnnl::convolution_forward::primitive_desc forward() const {
        return {cpu_engine(),
                dnnl::prop_kind::forward_training,
                dnnl::algorithm::convolution_direct,
                src,
                any_weights,
                dst,
                stride,
                dilation,
                before,
                after,
                attr};
    }
    // P: convolution_backward_data or convolution_backward_weights
    template <class P>
    typename P::primitive_desc backward() const {
        return {cpu_engine(), dnnl::algorithm::convolution_direct,
                src,          any_weights,
                dst,          stride,
                dilation,     before,
                after,        forward(),
                attr};
    }
};

// Buffers: the two inputs, then the output. One of the first (gradient of the data) or the last (of the
// weights) are weights.
class BackwardStep final : public Step {
  public:
    BackwardStep(const std::vector<dims>& shapes, dim groups, const std::vector<dims>& geometry,
                 bool of_weights)
        : of_weights_(of_weights), d_(shapes, groups, geometry) {
        if (of_weights) {
            const auto pd = d_.backward<dnnl::convolution_backward_weights>();
            primitive_ = dnnl::convolution_backward_weights(pd);
            scratch_ = pd.scratchpad_desc(), blocked_ = pd.diff_weights_desc();
        } else {
            const auto pd = d_.backward<dnnl::convolution_backward_data>();
            primitive_ = dnnl::convolution_backward_data(pd);
            scratch_ = pd.scratchpad_desc(), blocked_ = pd.weights_desc();
        }
        if (blocked_ == d_.plain_weights) return;
        const auto& from = of_weights ? blocked_ : d_.plain_weights;
        const auto& to = of_weights ? d_.plain_weights : blocked_;
        const dnnl::reorder::primitive_desc pd(cpu_engine(), from, cpu_engine(), to, d_.attr);
        reorder_ = dnnl::reorder(pd);
        reorder_scratch_ = pd.scratchpad_desc();
    }

    // That of the primitive, that of the reorder, and the weights in the form that the primitive wants.
    std::size_t scratch_bytes() const override {
        return blocked_at() + (reorder_ ? aligned(blocked_.get_size()) : 0);
    }

    void run(int, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        try {
            OneOmpThread one;
            auto& stream = this_thread_stream();
            std::byte* plain = buffers[of_weights_ ? 2 : 1];
            std::byte* blocked = reorder_ ? scratch + blocked_at() : plain;
            const dnnl::memory mine(blocked_, cpu_engine(), blocked),
                theirs(d_.plain_weights, cpu_engine(), plain);
            const auto change = [&](const dnnl::memory& from, const dnnl::memory& to) {
                const dnnl::memory pad(reorder_scratch_, cpu_engine(),
                                       scratch + aligned(scratch_.get_size()));
                reorder_.execute(stream,
                                 {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, pad}});
            };
            if (reorder_ && !of_weights_) change(theirs, mine);
            primitive_.execute(stream, arguments(buffers, mine, scratch));
            if (reorder_ && of_weights_) change(mine, theirs);
        } catch (const dnnl::error& e) {  // does not happen for a primitive that was created
            std::fprintf(stderr, "megengine: oneDNN step failed: %s\n", e.what());
        }
    }

  private:
    std::size_t blocked_at() const {
        return aligned(scratch_.get_size()) + (reorder_ ? aligned(reorder_scratch_.get_size()) : 0);
    }

    std::unordered_map<int, dnnl::memory> arguments(std::byte* const* buffers, const dnnl::memory& weights,
                                                    std::byte* scratch) const {
        const dnnl::memory pad(scratch_, cpu_engine(), scratch);
        if (of_weights_)
            return {{DNNL_ARG_SRC, dnnl::memory(d_.src, cpu_engine(), buffers[0])},
                    {DNNL_ARG_DIFF_DST, dnnl::memory(d_.dst, cpu_engine(), buffers[1])},
                    {DNNL_ARG_DIFF_WEIGHTS, weights},
                    {DNNL_ARG_SCRATCHPAD, pad}};
        return {{DNNL_ARG_DIFF_DST, dnnl::memory(d_.dst, cpu_engine(), buffers[0])},
                {DNNL_ARG_WEIGHTS, weights},
                {DNNL_ARG_DIFF_SRC, dnnl::memory(d_.src, cpu_engine(), buffers[2])},
                {DNNL_ARG_SCRATCHPAD, pad}};
    }

    bool of_weights_;
    Descriptions d_;
    dnnl::primitive primitive_;
    dnnl::reorder reorder_;
    dnnl::memory::desc scratch_, reorder_scratch_, blocked_;
};

nb::object conv_backward_step(const std::vector<dims>& shapes, dim groups, const std::vector<dims>& geometry,
                              bool of_weights) {
    if (shapes.size() != 3 || geometry.size() != 4)
        throw std::invalid_argument("conv_backward_step: wrong number of lengths");
    OneOmpThread one;
    try {
        return capsule(std::make_unique<BackwardStep>(shapes, groups, geometry, of_weights));
    } catch (const dnnl::error& e) {
        throw std::runtime_error(std::string("oneDNN: ") + e.what());
    }
}

}  // namespace

void bind_conv_backward(nb::module_& m) {
    using nb::arg;
    m.def("conv_backward_step", &conv_backward_step, arg("shapes"), arg("groups"), arg("geometry"),
          arg("of_weights"));
}

}  // namespace mge
