// Convolutions over two axes whose groups have few channels: float32, channels-last, constant weights.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/flush_subnormals.h"
#include "common/function_capsule.h"
#include "common/step_capsule.h"
#include "grouped/kernels.h"
#include "products/panels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Pair = std::array<std::int64_t, 2>;  // along rows, along columns

constexpr std::int64_t kRoom = 1 << 13;   // numbers of the input that lie ready for a strip of columns
constexpr std::int64_t kLeast = 1 << 15;  // products of a part that is worth a thread

struct GroupedShape {
    std::int64_t batch, channels, outputs, groups;
    Pair in, out, kernel, stride, dilation, before;

    std::int64_t taken() const { return channels / groups; }
    std::int64_t given() const { return outputs / groups; }
    std::int64_t reach(int axis) const { return (kernel[axis] - 1) * dilation[axis] + 1; }
};

// Some lines of one strip of one block of channels: `unit` counts them through all strips.
struct Strip {
    std::int64_t image, block, left, width;
};

class GroupedStep final : public Step {
  public:
    GroupedStep(const GroupedShape& shape, bool residual, int threads) : s_(shape), residual_(residual) {
        blocks_ = (s_.outputs + lanes() - 1) / lanes();
        const std::int64_t column = s_.reach(0) * s_.taken() * lanes() * s_.stride[1];
        width_ = std::clamp<std::int64_t>(kRoom / column, 1, s_.out[1]);
        strips_ = (s_.out[1] + width_ - 1) / width_;
        units_ = s_.batch * blocks_ * strips_ * s_.out[0];
        const std::int64_t products =
            units_ * width_ * lanes() * s_.taken() * s_.kernel[0] * s_.kernel[1] / kLeast;
        parts_ = static_cast<int>(
            std::min(units_, std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(1, products))));
        columns_ = (width_ - 1) * s_.stride[1] + s_.reach(1);
        find_places();
    }

    // weights [outputs, channels of a group, rows, columns]
    void pack(const float* weights, const float* bias) {
        const std::int64_t taken = s_.taken(), high = s_.kernel[0], wide = s_.kernel[1];
        weights_ = floats(blocks_ * weights_of_block());
        bias_ = floats(blocks_ * lanes());
        for (std::int64_t c = 0; c < blocks_ * lanes(); ++c) {
            const bool there = c < s_.outputs;
            bias_[c] = there ? bias[c] : 0.f;
            for (std::int64_t r = 0; r < high; ++r)
                for (std::int64_t p = 0; p < taken; ++p)
                    for (std::int64_t t = 0; t < wide; ++t)
                        weights_[c / lanes() * weights_of_block() + ((r * taken + p) * wide + t) * lanes() +
                                 c % lanes()] =
                            there ? weights[((c * taken + p) * high + r) * wide + t] : 0.f;
        }
    }

    Clamp clamp = Clamp::kNone;
    FloatFunction after{};  // none if it has no code

    int parts() const override { return parts_; }

    std::size_t scratch_bytes() const override {
        return static_cast<std::size_t>(s_.reach(0) * row_of_input() + width_ * lanes()) * sizeof(float) +
               static_cast<std::size_t>(s_.kernel[0]) * sizeof(float*);
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const FlushSubnormals flush;
        const auto* x = reinterpret_cast<const float*>(buffers[0]);
        auto* out = reinterpret_cast<float*>(buffers[residual_ ? 2 : 1]);
        std::int64_t ready = 0;  // rows of the strip up to here lie in the room
        for (std::int64_t u = units_ * part / parts_, end = units_ * (part + 1) / parts_; u < end; ++u) {
            const std::int64_t line = u % s_.out[0];
            const Strip strip = strip_of(u / s_.out[0]);
            if (line == 0 || u == units_ * part / parts_) ready = line * s_.stride[0];
            run_line(strip, line, ready, x, out, reinterpret_cast<float*>(scratch));
        }
    }

  private:
    std::int64_t lanes() const { return kernels_.lanes; }
    std::int64_t weights_of_block() const { return s_.kernel[0] * s_.kernel[1] * s_.taken() * lanes(); }
    std::int64_t row_of_input() const { return s_.taken() * columns_ * lanes(); }

    Strip strip_of(std::int64_t number) const {
        const std::int64_t left = number % strips_ * width_;
        return {number / strips_ / blocks_, number / strips_ % blocks_, left,
                std::min(width_, s_.out[1] - left)};
    }

    // The places that the lanes of each block read, from a first channel on that keeps whole vectors inside a
    // pixel.
    void find_places() {
        for (std::int64_t b = 0; b < blocks_; ++b) {
            const std::int64_t last = std::min((b + 1) * lanes(), s_.outputs) - 1;
            const std::int64_t first = b * lanes() / s_.given() * s_.taken();
            const std::int64_t span = (last / s_.given() + 1) * s_.taken() - first;
            const std::int64_t loads = (span + lanes() - 1) / lanes();
            const bool whole = loads <= 2 && loads * lanes() <= s_.channels;
            const std::int64_t base = whole ? std::min(first, s_.channels - loads * lanes()) : first;
            lanes_.push_back({nullptr, base, s_.taken(), whole ? static_cast<int>(loads) : 0});
            for (std::int64_t p = 0; p < s_.taken(); ++p)
                for (std::int64_t l = 0; l < lanes(); ++l)
                    places_.push_back(static_cast<std::int32_t>(
                        std::min(b * lanes() + l, last) / s_.given() * s_.taken() + p - base));
        }
        for (std::int64_t b = 0; b < blocks_; ++b)
            lanes_[static_cast<std::size_t>(b)].places = places_.data() + b * s_.taken() * lanes();
    }

    void run_line(const Strip& strip, std::int64_t line, std::int64_t& ready, const float* x, float* out,
                  float* room) const {
        const std::int64_t top = line * s_.stride[0], end = top + s_.reach(0);
        for (ready = std::max(ready, top); ready < end; ++ready)
            if ((ready - top) % s_.dilation[0] == 0 || s_.stride[0] % s_.dilation[0] != 0)
                spread_row(strip, ready, x, room + ready % s_.reach(0) * row_of_input());
        float* const sums = room + s_.reach(0) * row_of_input();
        auto* const rows = reinterpret_cast<const float**>(sums + width_ * lanes());
        for (std::int64_t r = 0; r < s_.kernel[0]; ++r)
            rows[r] = room + (top + r * s_.dilation[0]) % s_.reach(0) * row_of_input();
        kernels_.sum({.rows = rows,
                      .weights = weights_.get() + strip.block * weights_of_block(),
                      .bias = bias_.get() + strip.block * lanes(),
                      .dst = sums,
                      .width = strip.width,
                      .planes = s_.taken(),
                      .plane_step = columns_ * lanes(),
                      .high = s_.kernel[0],
                      .wide = s_.kernel[1],
                      .pixel_step = s_.stride[1] * lanes(),
                      .tap_step = s_.dilation[1] * lanes()});
        finish(strip, line, sums, out);
    }

    // A row of the padded input, as the lanes of a block read it.
    void spread_row(const Strip& strip, std::int64_t row, const float* x, float* dst) const {
        const std::int64_t y = row - s_.before[0], from = strip.left * s_.stride[1] - s_.before[1];
        const std::int64_t columns = (strip.width - 1) * s_.stride[1] + s_.reach(1);
        const bool inside = y >= 0 && y < s_.in[0];
        const std::int64_t begin = inside ? std::clamp<std::int64_t>(-from, 0, columns) : columns;
        const std::int64_t end = inside ? std::clamp(s_.in[1] - from, begin, columns) : columns;
        for (std::int64_t p = 0; p < s_.taken(); ++p) {
            float* const plane = dst + p * columns_ * lanes();
            std::fill_n(plane, begin * lanes(), 0.f);
            std::fill_n(plane + end * lanes(), (columns - end) * lanes(), 0.f);
        }
        if (begin == end) return;
        const float* source = x + ((strip.image * s_.in[0] + y) * s_.in[1] + from + begin) * s_.channels;
        kernels_.spread(source, s_.channels, end - begin, lanes_[static_cast<std::size_t>(strip.block)],
                        dst + begin * lanes(), columns_ * lanes());
    }

    void finish(const Strip& strip, std::int64_t line, float* sums, float* out) const {
        const std::int64_t first = strip.block * lanes(), count = std::min(lanes(), s_.outputs - first);
        out += ((strip.image * s_.out[0] + line) * s_.out[1] + strip.left) * s_.outputs + first;
        StoredLine stored{.sums = sums,
                          .dst = out,
                          .pixels = strip.width,
                          .count = count,
                          .step = s_.outputs,
                          .residual = residual_,
                          .clamp = clamp};
        if (after.apply) {
            for (std::int64_t i = 0; residual_ && i < strip.width; ++i)
                for (std::int64_t l = 0; l < count; ++l) sums[i * lanes() + l] += out[i * s_.outputs + l];
            after(sums, strip.width * lanes());
            stored.residual = false;
        }
        kernels_.store(stored);
    }

    GroupedShape s_;
    bool residual_;
    int parts_;
    std::int64_t blocks_, width_, strips_, units_, columns_;
    const GroupedKernels& kernels_ = active_grouped_kernels();
    std::vector<Lanes> lanes_;
    std::vector<std::int32_t> places_;
    Floats weights_, bias_;
};

// sizes: images, channels, channels of the result, groups. With a residual the buffers are x, the residual
// and the result, which is in its memory.
nb::object grouped_step(const std::array<std::int64_t, 4>& sizes, const Pair& in, const Pair& out,
                        const Pair& stride, const Pair& dilation, const Pair& before, const F32& weights,
                        const F32& bias, bool residual, const std::string& clamp, const nb::object& after,
                        int threads) {
    if (weights.ndim() != 4 || std::min({sizes[0], sizes[1], sizes[2], sizes[3]}) < 1 ||
        static_cast<std::int64_t>(weights.shape(0)) != sizes[2] ||
        static_cast<std::int64_t>(weights.shape(1)) != sizes[1] / sizes[3] ||
        static_cast<std::int64_t>(bias.size()) != sizes[2])
        throw nb::value_error(
            "grouped_step: weights [outputs, channels / groups, rows, columns] and a bias [outputs]");
    const Pair kernel{static_cast<std::int64_t>(weights.shape(2)),
                      static_cast<std::int64_t>(weights.shape(3))};
    auto step = std::make_unique<GroupedStep>(
        GroupedShape{sizes[0], sizes[1], sizes[2], sizes[3], in, out, kernel, stride, dilation, before},
        residual, threads);
    step->clamp = clamp_of(clamp);
    step->after = function_in(after);
    step->pack(weights.data(), bias.data());
    return capsule(std::move(step));
}

}  // namespace

void bind_grouped(nb::module_& m) {
    using nb::arg;
    m.def("grouped_step", &grouped_step, arg("sizes"), arg("in_size"), arg("out_size"), arg("stride"),
          arg("dilation"), arg("before"), arg("weights"), arg("bias"), arg("residual"), arg("clamp"),
          arg("after").none(), arg("threads"));
}

}  // namespace mge
