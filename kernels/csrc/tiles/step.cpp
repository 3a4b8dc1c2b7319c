// Convolutions of bfloat16 in tiles of AMX: constant weights; in rows, or channels-last.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/flush_subnormals.h"
#include "common/function_capsule.h"
#include "common/step_capsule.h"
#include "products/panels.h"
#include "runtime/bind.h"
#include "runtime/isa.h"
#include "strided/transpose.h"
#include "tiles/conv.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using U16 = nb::ndarray<const std::uint16_t, nb::c_contig, nb::device::cpu>;

constexpr std::int64_t kLeast = 1 << 19;   // products of a part that is worth a thread
constexpr std::int64_t kBudget = 1 << 16;  // numbers of a copy, if a line needs no more

std::int64_t divided(std::int64_t count, std::int64_t unit) { return (count + unit - 1) / unit; }

// What `count` results along an axis read.
std::int64_t reach(const TiledConv& s, std::size_t axis, std::int64_t count) {
    return (count - 1) * s.stride[axis] + (s.kernel[axis] - 1) * s.dilation[axis] + 1;
}

std::int64_t rows_of_kernel(const TiledConv& s) { return s.kernel[0] * s.kernel[1]; }
std::int64_t neighbours(const TiledConv& s) { return s.kernel[2] * s.channels; }

// The shape with what follows from it.
TiledConv planned(TiledConv s) {
    s.parts = divided(neighbours(s), 2 * kTilePairs);
    s.pairs = divided(neighbours(s), 2 * s.parts);
    s.tiles = divided(s.out[2], kTileRows);
    s.rows = divided(s.out[2], s.tiles);
    s.blocks = divided(s.outputs, kTileLanes);
    s.weights = rows_of_kernel(s) * s.parts * s.pairs * 2 * (2 * kTileLanes);
    s.line = reach(s, 2, s.out[2]) * s.channels;
    const std::int64_t slice = reach(s, 1, s.out[1]) * s.line;
    while (s.slices < s.out[0] && reach(s, 0, s.slices + 1) * slice <= kBudget) ++s.slices;
    s.lines = 1;
    while (s.lines < s.out[1] && reach(s, 0, 1) * reach(s, 1, s.lines + 1) * s.line <= kBudget) ++s.lines;
    const std::int64_t laid =
        s.slices ? reach(s, 0, s.slices) * slice : reach(s, 0, 1) * reach(s, 1, s.lines) * s.line;
    s.tail = kTileRows * s.stride[2] * s.channels + 2 * kTilePairs * s.parts;
    s.copy = rounded_up(laid + s.tail, 32);
    return s;
}

class TiledConvStep final : public Step {
  public:
    TiledConvStep(const TiledConv& shape, Clamp clamp, FloatFunction after, int threads)
        : s_(planned(shape)), clamp_(clamp), after_(after) {
        const std::int64_t lines = s_.batch * s_.out[0] * s_.out[1];
        const std::int64_t products =
            lines * s_.out[2] * s_.outputs * rows_of_kernel(s_) * neighbours(s_) / kLeast;
        parts_ = static_cast<int>(
            std::min(lines, std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(1, products))));
    }

    // weights [outputs, channels, depth, rows, columns]: bits of bfloat16
    void pack(const std::uint16_t* weights, const float* bias) {
        const std::int64_t pairs = divided(s_.blocks, 2), each = s_.weights;
        weights_ = floats(divided(pairs * each, 2));
        bias_ = floats(s_.blocks * kTileLanes);
        std::fill_n(bias_.get(), s_.blocks * kTileLanes, 0.f);
        std::copy_n(bias, s_.outputs, bias_.get());
        for (std::int64_t p = 0; p < pairs; ++p) pack_blocks(weights, p, packed() + p * each);
    }

    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        const std::int64_t held = s_.in_rows ? s_.out[2] * 2 * kTileLanes : 0;
        return static_cast<std::size_t>(s_.copy + held) * sizeof(std::uint16_t);
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const FlushSubnormals flush;
        const std::int64_t lines = s_.batch * s_.out[0] * s_.out[1];
        auto* const copy = reinterpret_cast<std::uint16_t*>(scratch);
#if defined(MGE_X86)
        tiled_lines({.shape = s_,
                     .x = reinterpret_cast<const std::uint16_t*>(buffers[0]),
                     .weights = packed(),
                     .bias = bias_.get(),
                     .clamp = clamp_,
                     .after = after_,
                     .turn = turn<std::uint16_t>,
                     .out = reinterpret_cast<std::uint16_t*>(buffers[1]),
                     .copy = copy,
                     .held = copy + s_.copy,
                     .begin = lines * part / parts_,
                     .end = lines * (part + 1) / parts_});
#endif
    }

  private:
    std::uint16_t* packed() const { return reinterpret_cast<std::uint16_t*>(weights_.get()); }

    // Two blocks of channels, or the last one by itself. Behind the last neighbour are zeros.
    void pack_blocks(const std::uint16_t* weights, std::int64_t p, std::uint16_t* out) const {
        const std::int64_t width = std::min<std::int64_t>(2, s_.blocks - 2 * p) * kTileLanes;
        const std::int64_t columns = s_.kernel[2], taps = rows_of_kernel(s_) * columns;
        for (std::int64_t row = 0; row < rows_of_kernel(s_); ++row)
            for (std::int64_t unit = 0; unit < s_.parts * s_.pairs; ++unit)
                for (std::int64_t l = 0; l < width; ++l)
                    for (std::int64_t k = 2 * unit; k < 2 * unit + 2; ++k, ++out) {
                        const std::int64_t o = 2 * p * kTileLanes + l;
                        *out = 0;
                        if (o < s_.outputs && k < neighbours(s_))
                            *out = weights[(o * s_.channels + k % s_.channels) * taps + row * columns +
                                           k / s_.channels];
                    }
    }

    TiledConv s_;
    Clamp clamp_;
    FloatFunction after_;
    int parts_;
    Floats weights_, bias_;
};

// sizes: images, channels, channels of the result.
nb::object tiled_conv_step(const Lengths3& sizes, const Lengths3& in, const Lengths3& out,
                           const Lengths3& stride, const Lengths3& dilation, const Lengths3& before,
                           const U16& weights, const F32& bias, const std::string& clamp,
                           const nb::object& after, bool in_rows, int threads) {
    if (active_isa() < Isa::kAmx || weights.ndim() != 5 || std::min({sizes[0], sizes[1], sizes[2]}) < 1 ||
        static_cast<std::int64_t>(weights.shape(0)) != sizes[2] ||
        static_cast<std::int64_t>(weights.shape(1)) != sizes[1] ||
        static_cast<std::int64_t>(bias.size()) != sizes[2] || dilation[2] != 1)
        throw nb::value_error(
            "tiled_conv_step: weights [outputs, channels, depth, rows, columns], a bias [outputs], and no "
            "dilation along columns; all with AMX");
    Lengths3 kernel;
    for (std::size_t i = 0; i < 3; ++i) kernel[i] = static_cast<std::int64_t>(weights.shape(i + 2));
    const TiledConv shape{sizes[0], sizes[1], sizes[2], in, out, kernel, stride, dilation, before, in_rows};
    auto step = std::make_unique<TiledConvStep>(shape, clamp_of(clamp), function_in(after), threads);
    step->pack(weights.data(), bias.data());
    return capsule(std::move(step));
}

}  // namespace

void bind_tiled_conv(nb::module_& m) {
    using nb::arg;
    m.def("tiled_conv_step", &tiled_conv_step, arg("sizes"), arg("in_size"), arg("out_size"), arg("stride"),
          arg("dilation"), arg("before"), arg("weights"), arg("bias"), arg("clamp"), arg("after").none(),
          arg("in_rows"), arg("threads"));
}

}  // namespace mge
