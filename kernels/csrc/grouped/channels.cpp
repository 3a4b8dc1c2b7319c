// Convolutions over two axes of channels by themselves, and of small groups: bfloat16, channels-last,
// constant weights.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "common/flush_subnormals.h"
#include "common/function_capsule.h"
#include "common/step_capsule.h"
#include "grouped/channel_weights.h"
#include "grouped/kernels.h"
#include "products/panels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Pair = std::array<std::int64_t, 2>;  // along rows, along columns

constexpr std::int64_t kLeast = 1 << 15;  // products of a part that is worth a thread

struct ChannelShape {
    std::int64_t batch, channels, group;
    Pair in, out, kernel, stride, before;
};

class ChannelStep final : public Step {
  public:
    ChannelStep(const ChannelShape& shape, int threads)
        : s_(shape), room_(rounded_up(s_.channels, kLeastOfBoth)) {
        const std::int64_t lines = s_.batch * s_.out[0];
        const std::int64_t taps = s_.kernel[0] * s_.kernel[1];
        const std::int64_t products = lines * s_.out[1] * s_.channels * s_.group * taps / kLeast;
        parts_ = static_cast<int>(
            std::min(lines, std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(1, products))));
    }

    // weights [channels, group, rows, columns]
    void pack(const float* weights, const float* bias) {
        packed_.pack(weights, bias, s_.channels, s_.group, s_.kernel[0] * s_.kernel[1], room_,
                     s_.group == 1 && s_.channels >= kLeastOfBoth);
    }

    Clamp clamp = Clamp::kNone;
    FloatFunction after{};  // none if it has no code

    int parts() const override { return parts_; }

    std::size_t scratch_bytes() const override {
        const std::size_t sums = after.apply ? static_cast<std::size_t>(line()) * sizeof(float) : 0;
        return sums + 2 * static_cast<std::size_t>(s_.kernel[0]) * sizeof(void*);
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const FlushSubnormals flush;
        const auto* x = reinterpret_cast<const std::uint16_t*>(buffers[0]);
        auto* out = reinterpret_cast<std::uint16_t*>(buffers[1]);
        auto* const rows = reinterpret_cast<const std::uint16_t**>(scratch);
        auto* const weights = reinterpret_cast<const float**>(rows + s_.kernel[0]);
        float* const sums = after.apply ? reinterpret_cast<float*>(weights + s_.kernel[0]) : nullptr;
        const std::int64_t lines = s_.batch * s_.out[0], row = s_.in[1] * s_.channels;
        for (std::int64_t i = lines * part / parts_; i < lines * (part + 1) / parts_; ++i) {
            const std::int64_t top = i % s_.out[0] * s_.stride[0] - s_.before[0];
            std::int64_t high = 0;
            for (std::int64_t t = std::max<std::int64_t>(0, -top); t < s_.kernel[0] && top + t < s_.in[0];
                 ++t) {
                rows[high] = x + (i / s_.out[0] * s_.in[0] + top + t) * row;
                weights[high++] = packed_.weights.get() + t * s_.kernel[1] * s_.group * room_;
            }
            std::uint16_t* const dst = out + i * line();
            kernels_.channels({.rows = rows,
                               .weights = weights,
                               .high = high,
                               .bias = packed_.bias.get(),
                               .dst = dst,
                               .sums = sums,
                               .width = s_.out[1],
                               .in_width = s_.in[1],
                               .channels = s_.channels,
                               .group = s_.group,
                               .room = room_,
                               .wide = s_.kernel[1],
                               .stride = s_.stride[1],
                               .before = s_.before[1],
                               .clamp = clamp});
            if (!sums) continue;
            after(sums, line());
            kernels_.narrow(sums, 0, dst, 0, 1, line());
        }
    }

  private:
    std::int64_t line() const { return s_.out[1] * s_.channels; }

    ChannelShape s_;
    const GroupedKernels& kernels_ = active_grouped_kernels();
    std::int64_t room_;  // of the channels
    int parts_;
    ChannelWeights packed_;
};

// sizes: images, channels.
nb::object channel_step(const Pair& sizes, const Pair& in, const Pair& out, const Pair& stride,
                        const Pair& before, const F32& weights, const F32& bias, const std::string& clamp,
                        const nb::object& after, int threads) {
    const GroupedKernels& kernels = active_grouped_kernels();
    const std::int64_t group = weights.ndim() == 4 ? static_cast<std::int64_t>(weights.shape(1)) : 0;
    const bool known = kernels.channels && (group == 1 || group == 4 || group == 8);
    if (!known || sizes[0] < 1 || sizes[1] < kernels.lanes || sizes[1] % group ||
        (weights.shape(3) != 3 && weights.shape(3) != 5) || stride[1] < 1 || stride[1] > 2 ||
        static_cast<std::int64_t>(weights.shape(0)) != sizes[1] ||
        static_cast<std::int64_t>(bias.size()) != sizes[1])
        throw nb::value_error(
            "channel_step: weights [channels, 1, rows, 3 or 5], a bias [channels], a stride of 1 or 2 along "
            "columns, and at least as many channels as a vector has lanes; groups of 4 or 8; all with "
            "AVX512-BF16");
    const ChannelShape shape{
        sizes[0], sizes[1],
        group,    in,
        out,      {static_cast<std::int64_t>(weights.shape(2)), static_cast<std::int64_t>(weights.shape(3))},
        stride,   before};
    auto step = std::make_unique<ChannelStep>(shape, threads);
    step->clamp = clamp_of(clamp);
    step->after = function_in(after);
    step->pack(weights.data(), bias.data());
    return capsule(std::move(step));
}

}  // namespace

void bind_channels(nb::module_& m) {
    using nb::arg;
    m.def("channel_step", &channel_step, arg("sizes"), arg("in_size"), arg("out_size"), arg("stride"),
          arg("before"), arg("weights"), arg("bias"), arg("clamp"), arg("after").none(), arg("threads"));
}

}  // namespace mge
