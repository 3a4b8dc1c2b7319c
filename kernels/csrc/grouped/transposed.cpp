// Transposed convolutions over two axes, each channel by itself: float32 and bfloat16, channels-last,
// constant weights.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/flush_subnormals.h"
#include "common/step_capsule.h"
#include "grouped/channel_weights.h"
#include "grouped/kernels.h"
#include "runtime/bind.h"
#include "strided/transpose.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Pair = std::array<std::int64_t, 2>;  // along rows, along columns

struct TransposedShape {
    std::int64_t batch, channels;
    Pair in, out, kernel, stride, dilation, before;

    // The place along an axis that meets tap t for result `at`; -1 if there is none.
    std::int64_t place(std::size_t axis, std::int64_t at, std::int64_t t) const {
        const std::int64_t from = at + before[axis] - t * dilation[axis];
        return from < 0 || from % stride[axis] || from / stride[axis] >= in[axis] ? -1 : from / stride[axis];
    }
};

template <class T>
class TransposedStep final : public Step {
  public:
    TransposedStep(const TransposedShape& shape, bool in_rows, int threads)
        : s_(shape),
          in_rows_(in_rows),
          ring_(((s_.kernel[0] - 1) * s_.dilation[0]) / s_.stride[0] + 1),
          room_(s_.channels + kernels_.lanes),
          parts_(static_cast<int>(std::clamp<std::int64_t>(threads, 1, s_.batch * s_.out[0]))) {
        for (std::int64_t x = 0; x < s_.out[1]; ++x) {
            starts_.push_back(static_cast<std::int64_t>(taps_.size()));
            for (std::int64_t t = 0; t < s_.kernel[1]; ++t)
                if (const std::int64_t from = s_.place(1, x, t); from >= 0)
                    taps_.push_back({from * s_.channels, t * room_});
        }
        starts_.push_back(static_cast<std::int64_t>(taps_.size()));
    }

    // weights [channels, 1, rows, columns]
    void pack(const float* weights, const float* bias) {
        packed_.pack(weights, bias, s_.channels, 1, s_.kernel[0] * s_.kernel[1], room_);
    }

    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        const std::size_t pointers = 2 * static_cast<std::size_t>(s_.kernel[0]) * sizeof(void*);
        if (!in_rows_)
            return pointers + (few() ? static_cast<std::size_t>(end() + kernels_.lanes) * sizeof(T) : 0);
        return pointers + static_cast<std::size_t>((ring_ * s_.in[1] + s_.out[1]) * s_.channels) * sizeof(T);
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const FlushSubnormals flush;
        const auto* x = reinterpret_cast<const T*>(buffers[0]);
        auto* out = reinterpret_cast<T*>(buffers[1]);
        auto* const rows = reinterpret_cast<const T**>(scratch);
        auto* const weights = reinterpret_cast<const float**>(rows + s_.kernel[0]);
        T* const ring = reinterpret_cast<T*>(weights + s_.kernel[0]);
        const std::int64_t lines = s_.batch * s_.out[0], size = s_.in[0] * row();
        const T* const last = x + s_.batch * size - end();
        if (!in_rows_ && few()) std::copy_n(last, end(), ring);
        std::int64_t ready = 0;  // rows of the image up to here lie in the ring
        for (std::int64_t i = lines * part / parts_; i < lines * (part + 1) / parts_; ++i) {
            const T* const image = x + i / s_.out[0] * size;
            const std::int64_t line = i % s_.out[0];
            if (line == 0) ready = 0;
            std::int64_t high = 0;
            if (in_rows_) ready = lay_for(line, image, ready, ring);
            for (std::int64_t t = 0; t < s_.kernel[0]; ++t) {
                const std::int64_t y = s_.place(0, line, t);
                if (y < 0) continue;
                const T* const there = image + y * row();
                rows[high] = in_rows_                 ? ring + y % ring_ * row()
                             : few() && there >= last ? ring + (there - last)
                                                      : there;
                weights[high++] = packed_.weights.get() + t * s_.kernel[1] * room_;
            }
            T* const made =
                in_rows_ ? ring + ring_ * s_.in[1] * s_.channels : out + i * s_.out[1] * s_.channels;
            compute({.rows = rows,
                     .weights = weights,
                     .high = high,
                     .starts = starts_.data(),
                     .taps = taps_.data(),
                     .bias = packed_.bias.get(),
                     .dst = made,
                     .width = s_.out[1],
                     .channels = s_.channels});
            if (in_rows_) give(made, i / s_.out[0], line, out);
        }
    }

  private:
    std::int64_t row() const { return s_.in[1] * s_.channels; }
    bool few() const { return s_.channels < kernels_.lanes; }
    // Numbers of the last rows, from which vectors of few channels would reach behind the input: they are
    // copied.
    std::int64_t end() const {
        return std::min(s_.batch * s_.in[0], 1 + (kernels_.lanes + row() - 1) / row()) * row();
    }

    void compute(const TransposedLine<T>& line) const {
        if constexpr (std::is_same_v<T, float>)
            kernels_.transposed(line);
        else
            kernels_.transposed_halves(line);
    }

    // Lets the rows of an image that a line reaches lie in the ring; the end of those that do.
    std::int64_t lay_for(std::int64_t line, const T* image, std::int64_t ready, T* ring) const {
        std::int64_t last = -1;
        for (std::int64_t t = 0; t < s_.kernel[0]; ++t) last = std::max(last, s_.place(0, line, t));
        for (std::int64_t y = std::max(ready, last + 1 - ring_); y <= last; ++y) lay(image, y, ring);
        return std::max(ready, last + 1);
    }

    // A row of an image that lies in rows, channels-last.
    void lay(const T* image, std::int64_t y, T* ring) const {
        turn<T>(reinterpret_cast<std::byte*>(ring + y % ring_ * s_.in[1] * s_.channels),
                reinterpret_cast<const std::byte*>(image + y * s_.in[1]), s_.channels, s_.in[1],
                s_.channels * kBytes, s_.in[0] * s_.in[1] * kBytes);
    }

    // The channels of a line, each to its own place.
    void give(const T* made, std::int64_t image, std::int64_t line, T* out) const {
        const std::int64_t plane = s_.out[0] * s_.out[1];
        turn<T>(reinterpret_cast<std::byte*>(out + image * s_.channels * plane + line * s_.out[1]),
                reinterpret_cast<const std::byte*>(made), s_.out[1], s_.channels, plane * kBytes,
                s_.channels * kBytes);
    }

    static constexpr std::int64_t kBytes = sizeof(T);
    TransposedShape s_;
    bool in_rows_;
    std::int64_t ring_;  // rows of the input that one line may reach
    const GroupedKernels& kernels_ = active_grouped_kernels();
    std::int64_t room_;  // of the weights of a tap
    int parts_;
    std::vector<std::int64_t> starts_;
    std::vector<TransposedTap> taps_;
    ChannelWeights packed_;
};

template <class T>
nb::object made(const TransposedShape& shape, const F32& weights, const F32& bias, bool in_rows,
                int threads) {
    auto step = std::make_unique<TransposedStep<T>>(shape, in_rows, threads);
    step->pack(weights.data(), bias.data());
    return capsule(std::move(step));
}

// sizes: images, channels.
nb::object transposed_step(const Pair& sizes, const Pair& in, const Pair& out, const Pair& stride,
                           const Pair& dilation, const Pair& before, const F32& weights, const F32& bias,
                           bool half, bool in_rows, int threads) {
    if (weights.ndim() != 4 || std::min(sizes[0], sizes[1]) < 1 || weights.shape(1) != 1 ||
        static_cast<std::int64_t>(weights.shape(0)) != sizes[1] ||
        static_cast<std::int64_t>(bias.size()) != sizes[1])
        throw nb::value_error("transposed_step: weights [channels, 1, rows, columns] and a bias [channels]");
    const TransposedShape shape{
        sizes[0],
        sizes[1],
        in,
        out,
        {static_cast<std::int64_t>(weights.shape(2)), static_cast<std::int64_t>(weights.shape(3))},
        stride,
        dilation,
        before};
    return (half ? made<std::uint16_t> : made<float>)(shape, weights, bias, in_rows, threads);
}

}  // namespace

void bind_transposed(nb::module_& m) {
    using nb::arg;
    m.def("transposed_step", &transposed_step, arg("sizes"), arg("in_size"), arg("out_size"), arg("stride"),
          arg("dilation"), arg("before"), arg("weights"), arg("bias"), arg("half"), arg("in_rows"),
          arg("threads"));
}

}  // namespace mge
