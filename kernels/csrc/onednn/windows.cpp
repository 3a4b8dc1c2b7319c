// Convolutions over three axes and transposed ones over two or three, with packed weights, and all
// convolutions whose weights are computed, which every run packs. Values with five axes lie in rows; the
// primitive may need another layout: they are reordered.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "onednn/onednn_step.h"
#include "strided/transpose.h"

namespace nb = nanobind;

namespace mge {
namespace {

using dims = dnnl::memory::dims;
using dim = dnnl::memory::dim;
using tag = dnnl::memory::format_tag;
using desc = dnnl::memory::desc;
using Type = dnnl::memory::data_type;
constexpr auto kFloat = Type::f32;

desc in_rows(const dims& shape, Type type) {
    return {shape, type, shape.size() == 4 ? tag::abcd : shape.size() == 5 ? tag::abcde : tag::abcdef};
}

// The layout in plans.
desc as_given(const dims& shape, Type type) {
    return shape.size() == 4 ? desc(shape, type, tag::nhwc) : in_rows(shape, type);
}

// Layouts in which the primitive may take its operands.
struct Forms {
    desc src, dst;
};

// The library's choice is last. Beside few products values take longer to be brought into it than from rows
// into blocks of channels, and its first kernel reads pictures of up to three channels in rows.
std::vector<Forms> forms(const std::vector<dims>& shapes, const dims& weights, Type type) {
    const dims &src = shapes[0], &dst = shapes[1], &kernel = shapes[2];
    if (src.size() == 4) return {{desc(src, type, tag::nhwc), desc(dst, type, tag::nhwc)}};
    std::vector<Forms> all;
    constexpr dim kBlock = 16, kFew = 3;
    if (src.size() == 5 && type == kFloat && weights.size() == 5 && dst[1] % kBlock == 0) {
        const desc blocks(dst, type, tag::nCdhw16c);
        if (src[1] <= kFew)
            all.push_back({in_rows(src, type), blocks});
        else if (src[1] % kBlock == 0 && kernel[0] * kernel[1] * kernel[2] <= kFew)
            all.push_back({desc(src, type, tag::nCdhw16c), blocks});
    }
    all.push_back({desc(src, type, tag::any), desc(dst, type, tag::any)});
    return all;
}

// Channels before the other axes, or behind them: a matrix of each image is transposed, by own code, which
// takes a third of the time of the library's reorder.
struct Turned {
    dim images = 0, rows = 0, cols = 0;
    std::size_t item = 0;

    Turned() = default;
    Turned(const desc& from, const desc& to) {
        const dims shape = from.get_dims();
        const Type type = from.get_data_type();
        if (shape.size() != 5 || (size_of(type) != 2 && size_of(type) != 4)) return;
        const desc before(shape, type, tag::abcde), behind(shape, type, tag::acdeb);
        const dim places = shape[2] * shape[3] * shape[4];
        if (from == before && to == behind) rows = shape[1], cols = places;
        if (from == behind && to == before) rows = places, cols = shape[1];
        if (rows) images = shape[0], item = size_of(type);
    }

    void run(const std::byte* source, std::byte* target) const {
        const dim across = rows * static_cast<dim>(item), along = cols * static_cast<dim>(item);
        for (dim i = 0; i < images; ++i, source += rows * along, target += rows * along)
            (item == 2 ? turn<std::uint16_t> : turn<float>)(target, source, rows, cols, across, along);
    }
};

// A reorder that runs if the two differ.
struct Move {
    desc from, to, scratch;
    Turned turned;
    dnnl::reorder primitive;

    Move(const desc& from, const desc& to, const dnnl::primitive_attr& attr)
        : from(from), to(to), turned(from != to ? Turned(from, to) : Turned()) {
        if (!needed() || turned.images) return;
        const dnnl::reorder::primitive_desc pd(cpu_engine(), from, cpu_engine(), to, attr);
        primitive = dnnl::reorder(pd);
        scratch = pd.scratchpad_desc();
    }

    bool needed() const { return from != to; }
    void run(std::byte* source, std::byte* target, std::byte* pad) const {
        if (turned.images) return turned.run(source, target);
        primitive.execute(this_thread_stream(),
                          {{DNNL_ARG_FROM, dnnl::memory(from, cpu_engine(), source)},
                           {DNNL_ARG_TO, dnnl::memory(to, cpu_engine(), target)},
                           {DNNL_ARG_SCRATCHPAD, dnnl::memory(scratch, cpu_engine(), pad)}});
    }
};

using Arguments = std::unordered_map<int, dnnl::memory>;

// Weights or a bias from a buffer.
struct Computed {
    int argument;
    Move move;

    std::size_t bytes() const { return move.needed() ? aligned(move.to.get_size()) : 0; }
};

// Buffers: the source, what is computed, the result. Scratch memory: of the primitives, then the operands in
// their own form.
class WindowStep final : public Step {
  public:
    template <class PrimitiveDesc>
    WindowStep(const PrimitiveDesc& pd, const dnnl::primitive& primitive, const dims& src, const dims& dst,
               Type type, const dnnl::primitive_attr& moves, FloatFunction after)
        : primitive_(primitive),
          in_(as_given(src, type), pd.src_desc(), moves),
          out_(pd.dst_desc(), as_given(dst, type), moves),
          scratch_(pd.scratchpad_desc()),
          after_(after),
          halves_(type == Type::bf16),
          size_(static_cast<std::int64_t>(as_given(dst, kFloat).get_size() / sizeof(float))),
          pad_(aligned(std::max({scratch_.get_size(), in_.scratch.get_size(), out_.scratch.get_size()}))),
          source_(in_.needed() ? aligned(in_.to.get_size()) : 0),
          result_(out_.needed() ? aligned(out_.from.get_size()) : 0) {}

    void set(Packing weights, const dnnl::memory& bias) {
        fixed_ = {{DNNL_ARG_WEIGHTS, weights.memory}, {DNNL_ARG_BIAS, bias}};
        weights_ = std::move(weights.bytes);
    }

    void set(std::vector<Computed> computed) {
        computed_ = std::move(computed);
        for (const Computed& c : computed_) pad_ = std::max(pad_, aligned(c.move.scratch.get_size()));
    }

    void fix(int argument, const dnnl::memory& values) { fixed_[argument] = values; }

    std::size_t scratch_bytes() const override {
        std::size_t all = pad_ + source_ + result_;
        for (const Computed& c : computed_) all += c.bytes();
        return all;
    }

    void run(int, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        run_primitive([&] {
            std::byte* const target = buffers[1 + computed_.size()];
            std::byte* source = source_ ? scratch + pad_ : buffers[0];
            std::byte* result = result_ ? scratch + pad_ + source_ : target;
            if (source_) in_.run(buffers[0], source, scratch);
            Arguments arguments = fixed_;
            std::byte* place = scratch + pad_ + source_ + result_;
            for (std::size_t i = 0; i < computed_.size(); ++i) {
                const auto& [argument, move] = computed_[i];
                if (move.needed()) move.run(buffers[1 + i], place, scratch);
                std::byte* const values = move.needed() ? place : buffers[1 + i];
                arguments[argument] = dnnl::memory(move.to, cpu_engine(), values);
                place += computed_[i].bytes();
            }
            arguments[DNNL_ARG_SRC] = dnnl::memory(in_.to, cpu_engine(), source);
            arguments[DNNL_ARG_DST] = dnnl::memory(out_.from, cpu_engine(), result);
            arguments[DNNL_ARG_SCRATCHPAD] = dnnl::memory(scratch_, cpu_engine(), scratch);
            {
                const FlushSubnormals flush;
                primitive_.execute(this_thread_stream(), arguments);
            }
            if (result_) out_.run(result, target, scratch);
            if (after_.apply) after_(target, size_, halves_);
        });
    }

  private:
    dnnl::primitive primitive_;
    Move in_, out_;
    desc scratch_;
    Arguments fixed_;
    std::shared_ptr<void> weights_;
    std::vector<Computed> computed_;
    FloatFunction after_;  // of the results; none if it has no code
    bool halves_;          // the result is bfloat16
    std::int64_t size_;    // of the result, in numbers
    std::size_t pad_, source_, result_;
};

struct Geometry {
    dims stride, dilation, before, behind;
};

// Weights as they are stored: [O, I / groups, ...], of a transposed convolution [I, O / groups, ...]; as the
// library counts them: [groups, O / groups, I / groups, ...]. Computed ones lie as plans lay them.
struct Weights {
    dims shape;
    desc stored;

    Weights(dim in, dim out, const dims& kernel, dim groups, Type type, bool transposed, bool computed) {
        dims lying = {groups, (transposed ? in : out) / groups, (transposed ? out : in) / groups};
        lying.insert(lying.end(), kernel.begin(), kernel.end());
        const bool channels_last = computed && kernel.size() == 2;
        stored = channels_last ? desc(lying, type, tag::abdec) : in_rows(lying, type);
        if (transposed) {
            std::vector<int> perm(lying.size());
            for (std::size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int>(i);
            std::swap(perm[1], perm[2]);
            stored = stored.permute_axes(perm);
        }
        shape = stored.get_dims();
        if (groups > 1) return;
        shape.erase(shape.begin());
        stored = stored.reshape(shape);
    }
};

// `weights`: nothing where they are computed; `bias`: nothing where it is.
template <class Primitive>
std::unique_ptr<Step> made(dnnl::algorithm algorithm, const std::vector<dims>& shapes, const Geometry& g,
                           const Weights& w, const std::optional<AnyWeights>& weights,
                           const std::optional<F32>& bias, const std::string& activation,
                           FloatFunction after) {
    const Type type = w.stored.get_data_type();
    const dims &src = shapes[0], &dst = shapes[1];
    Epilogue epilogue;
    const dnnl::primitive_attr moves = make_attr(epilogue, -1);
    epilogue.activation = activation;
    const dnnl::primitive_attr attr = make_attr(epilogue, -1);
    typename Primitive::primitive_desc pd;
    for (const Forms& form : forms(shapes, w.shape, type)) {
        pd = {cpu_engine(),
              dnnl::prop_kind::forward_inference,
              algorithm,
              form.src,
              desc(w.shape, type, tag::any),
              desc({dst[1]}, kFloat, tag::a),
              form.dst,
              g.stride,
              g.dilation,
              g.before,
              g.behind,
              attr};
        if (std::string(pd.impl_info_str()).starts_with("jit")) break;
    }
    auto step = std::make_unique<WindowStep>(pd, Primitive(pd), src, dst, type, moves, after);
    if (weights) {
        step->set(packed(w.stored, weights->data(), pd.weights_desc()), copied(*bias));
        return step;
    }
    std::vector<Computed> computed{{DNNL_ARG_WEIGHTS, Move(w.stored, pd.weights_desc(), moves)}};
    if (bias)
        step->fix(DNNL_ARG_BIAS, copied(*bias));
    else
        computed.push_back({DNNL_ARG_BIAS, Move(desc({dst[1]}, type, tag::a), pd.bias_desc(), moves)});
    step->set(std::move(computed));
    return step;
}

Geometry geometry_of(const std::vector<dims>& shapes, const std::vector<dims>& geometry) {
    if (shapes.size() != 3 || geometry.size() != 4)
        throw std::invalid_argument("windows: three shapes and four lists of lengths expected");
    Geometry g{geometry[0], geometry[1], geometry[2], geometry[3]};
    for (dim& d : g.dilation) --d;
    return g;
}

template <typename F>
nb::object guarded(F make) {
    OneOmpThread one;
    try {
        return capsule(make());
    } catch (const dnnl::error& e) {
        throw std::runtime_error(std::string("oneDNN: ") + e.what());
    }
}

// shapes: of x, of the result, of the kernel; geometry: stride, dilation, padding before, behind; weights:
// none where they are computed; bias: none where it is
nb::object window_step(const std::vector<dims>& shapes, dim groups, const std::vector<dims>& geometry,
                       const std::string& dtype, const std::optional<AnyWeights>& weights,
                       const std::optional<F32>& bias, bool transposed, const std::string& activation,
                       const nb::object& after) {
    const Geometry g = geometry_of(shapes, geometry);
    if (weights && !bias) throw std::invalid_argument("window_step: a bias beside weights expected");
    return guarded([&] {
        const Weights w(shapes[0][1], shapes[1][1], shapes[2], groups, data_type(dtype), transposed,
                        !weights);
        return (transposed
                    ? made<dnnl::deconvolution_forward>
                    : made<dnnl::convolution_forward>)(transposed ? dnnl::algorithm::deconvolution_direct
                                                                  : dnnl::algorithm::convolution_direct,
                                                       shapes, g, w, weights, bias, activation,
                                                       function_in(after));
    });
}

}  // namespace

void bind_windows(nb::module_& m) {
    using nb::arg;
    m.def("window_step", &window_step, arg("shapes"), arg("groups"), arg("geometry"), arg("dtype"),
          arg("weights").none(), arg("bias").none(), arg("transposed"), arg("activation") = "none",
          arg("after") = nb::none());
}

}  // namespace mge
