// Convolutions over three axes whose groups have few channels: float32 and bfloat16, in rows, constant
// weights.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <string>
#include <type_traits>
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
using Triple = std::array<std::int64_t, 3>;  // along depth, rows, columns

struct VolumeShape {
    std::int64_t batch, channels, outputs, groups;
    Triple in, out, kernel, stride, dilation, before;

    std::int64_t taken() const { return channels / groups; }
    std::int64_t given() const { return outputs / groups; }
    std::int64_t reach(std::size_t axis) const { return (kernel[axis] - 1) * dilation[axis] + 1; }
    std::int64_t taps() const { return taken() * kernel[0] * kernel[1] * kernel[2]; }
};

float number(float x) { return x; }
float number(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// A slice of the padded input along depth lies in phases, one for each remainder of row and column by the
// strides. So the numbers that one weight meets lie side by side, for all results of a slice: with some
// between the rows that are no results.
template <typename T>
class VolumeStep final : public Step {
  public:
    VolumeStep(const VolumeShape& shape, int threads) : s_(shape) {
        rows_ = s_.out[1] + (s_.reach(1) - 1) / s_.stride[1];
        columns_ = s_.out[2] + (s_.reach(2) - 1) / s_.stride[2];
        phase_ = rows_ * columns_;
        slice_ = rounded_up(phase_ * s_.stride[1] * s_.stride[2] + kTapsTail, 16);
        sums_ = rounded_up(s_.out[1] * columns_ + kTapsTail, 16);
        parts_ = static_cast<int>(std::clamp<std::int64_t>(threads, 1, s_.batch * s_.groups));
        find_places();
    }

    // weights [outputs, channels of a group, depth, rows, columns]
    void pack(const float* weights, const float* bias) {
        weights_ = floats(s_.outputs * s_.taps());
        bias_ = floats(s_.outputs);
        std::copy_n(weights, s_.outputs * s_.taps(), weights_.get());
        std::copy_n(bias, s_.outputs, bias_.get());
    }

    Clamp clamp = Clamp::kNone;
    FloatFunction after{};  // none if it has no code

    int parts() const override { return parts_; }

    std::size_t scratch_bytes() const override {
        return static_cast<std::size_t>(room() + sums_) * sizeof(float) +
               static_cast<std::size_t>(s_.taps()) * sizeof(float*);
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const FlushSubnormals flush;
        const auto* x = reinterpret_cast<const T*>(buffers[0]);
        auto* out = reinterpret_cast<T*>(buffers[1]);
        auto* const ring = reinterpret_cast<float*>(scratch);
        std::fill_n(ring, room(), 0.f);  // the padding in rows and columns stays
        const std::int64_t units = s_.batch * s_.groups, volume = s_.in[0] * s_.in[1] * s_.in[2];
        for (std::int64_t u = units * part / parts_; u < units * (part + 1) / parts_; ++u)
            run_group(x + u * s_.taken() * volume, u % s_.groups,
                      out + u * s_.given() * s_.out[0] * s_.out[1] * s_.out[2], ring);
    }

  private:
    std::int64_t room() const { return s_.reach(0) * s_.taken() * slice_; }

    void run_group(const T* x, std::int64_t group, T* out, float* ring) const {
        float* const sums = ring + room();
        auto* const taps = reinterpret_cast<const float**>(sums + sums_);
        const std::int64_t size = s_.out[1] * s_.out[2];
        std::int64_t ready = 0;  // slices up to here lie in the ring
        for (std::int64_t z = 0; z < s_.out[0]; ++z) {
            const std::int64_t front = z * s_.stride[0];
            for (ready = std::max(ready, front); ready < front + s_.reach(0); ++ready)
                for (std::int64_t c = 0; c < s_.taken(); ++c)
                    lay_slice(x, c, ready - s_.before[0],
                              ring + (ready % s_.reach(0) * s_.taken() + c) * slice_);
            find_taps(front, ring, taps);
            for (std::int64_t o = 0; o < s_.given(); ++o) {
                const std::int64_t output = group * s_.given() + o;
                sum(taps, output, sums);
                store(sums, out + (o * s_.out[0] + z) * size);
            }
        }
    }

    void sum(const float* const* taps, std::int64_t output, float* sums) const {
        const float* const weights = weights_.get() + output * s_.taps();
        if (square_)
            active_.sum_square({.src = taps[0],
                                .weights = weights,
                                .bias = bias_[output],
                                .dst = sums,
                                .pitch = columns_,
                                .high = s_.out[1],
                                .wide = s_.out[2],
                                .side = s_.kernel[1],
                                .down = s_.dilation[1],
                                .right = s_.dilation[2],
                                .clamp = clamp});
        else
            active_.sum_taps({.taps = taps,
                              .weights = weights,
                              .bias = bias_[output],
                              .dst = sums,
                              .width = (s_.out[1] - 1) * columns_ + s_.out[2],
                              .count = s_.taps(),
                              .clamp = clamp});
    }

    // One plane and a kernel that the kernel of squares has code for.
    bool is_square() const {
        const std::int64_t side = s_.kernel[1];
        return s_.taken() == 1 && s_.kernel[0] == 1 && s_.stride[1] == 1 && s_.stride[2] == 1 &&
               s_.kernel[2] == side && (side == 3 || side == 5 || side == 7) && s_.out[2] >= active_.lanes;
    }

    void lay_slice(const T* x, std::int64_t channel, std::int64_t z, float* slice) const {
        if (z < 0 || z >= s_.in[0]) {
            std::fill_n(slice, slice_, 0.f);
            return;
        }
        const auto [down, right] = std::pair{s_.stride[1], s_.stride[2]};
        const std::int64_t high = std::min(s_.in[1], rows_ * down - s_.before[1]);
        const std::int64_t wide = std::min(s_.in[2], columns_ * right - s_.before[2]);
        const T* row = x + (channel * s_.in[0] + z) * s_.in[1] * s_.in[2];
        if (down == 1 && right == 1)
            return lay_rows(row, wide, high, slice + s_.before[1] * columns_ + s_.before[2]);
        for (std::int64_t y = 0; y < high; ++y, row += s_.in[2]) {
            const std::int64_t to = y + s_.before[1];
            float* const line = slice + to % down * right * phase_ + to / down * columns_;
            if (right == 1) {
                lay_rows(row, wide, 1, line + s_.before[2]);
                continue;
            }
            for (std::int64_t phase = 0; phase < right; ++phase) {
                const std::int64_t behind =
                    s_.before[2] - phase;  // the first column of the phase with a number
                const std::int64_t first = behind > 0 ? (behind + right - 1) / right : 0;
                float* const dst = line + phase * phase_ + first;
                const T* src = row + first * right - behind;
                const std::int64_t count = (wide - (first * right - behind) + right - 1) / right;
                for (std::int64_t i = 0; i < count; ++i) dst[i] = number(src[i * right]);
            }
        }
    }

    void lay_rows(const T* row, std::int64_t count, std::int64_t lines, float* line) const {
        if constexpr (std::is_same_v<T, float>)
            active_.copy(row, s_.in[2], line, columns_, lines, count);
        else
            active_.widen(row, s_.in[2], line, columns_, lines, count);
    }

    // Where the numbers begin that each weight meets.
    void find_taps(std::int64_t front, const float* ring, const float** taps) const {
        for (std::int64_t c = 0; c < s_.taken(); ++c)
            for (std::int64_t z = 0; z < s_.kernel[0]; ++z) {
                const std::int64_t slot = (front + z * s_.dilation[0]) % s_.reach(0);
                const float* const slice = ring + (slot * s_.taken() + c) * slice_;
                for (const std::int64_t place : places_) *taps++ = slice + place;
            }
    }

    // The same in a slice.
    void find_places() {
        for (std::int64_t y = 0; y < s_.kernel[1]; ++y)
            for (std::int64_t x = 0; x < s_.kernel[2]; ++x) {
                const std::int64_t down = y * s_.dilation[1], right = x * s_.dilation[2];
                places_.push_back((down % s_.stride[1] * s_.stride[2] + right % s_.stride[2]) * phase_ +
                                  down / s_.stride[1] * columns_ + right / s_.stride[2]);
            }
    }

    void store(float* sums, T* out) const {
        if (after.apply) after(sums, (s_.out[1] - 1) * columns_ + s_.out[2]);
        if constexpr (std::is_same_v<T, float>)
            active_.copy(sums, columns_, out, s_.out[2], s_.out[1], s_.out[2]);
        else
            active_.narrow(sums, columns_, out, s_.out[2], s_.out[1], s_.out[2]);
    }

    VolumeShape s_;
    int parts_;
    std::int64_t rows_, columns_, phase_, slice_, sums_;  // sizes of the phases, of slices, of results of one
    const GroupedKernels& active_ = active_grouped_kernels();
    bool square_ = is_square();
    std::vector<std::int64_t> places_;
    Floats weights_, bias_;
};

template <typename T>
nb::object made(const VolumeShape& shape, const F32& weights, const F32& bias, const std::string& clamp,
                const nb::object& after, int threads) {
    auto step = std::make_unique<VolumeStep<T>>(shape, threads);
    step->clamp = clamp_of(clamp);
    step->after = function_in(after);
    step->pack(weights.data(), bias.data());
    return capsule(std::move(step));
}

// sizes: samples, channels, channels of the result, groups.
nb::object volume_step(const std::array<std::int64_t, 4>& sizes, const Triple& in, const Triple& out,
                       const Triple& stride, const Triple& dilation, const Triple& before, const F32& weights,
                       const F32& bias, const std::string& clamp, const nb::object& after, bool half,
                       int threads) {
    if (weights.ndim() != 5 || std::min({sizes[0], sizes[1], sizes[2], sizes[3]}) < 1 ||
        static_cast<std::int64_t>(weights.shape(0)) != sizes[2] ||
        static_cast<std::int64_t>(weights.shape(1)) != sizes[1] / sizes[3] ||
        static_cast<std::int64_t>(bias.size()) != sizes[2])
        throw nb::value_error(
            "volume_step: weights [outputs, channels / groups, depth, rows, columns] and a bias [outputs]");
    Triple kernel;
    for (std::size_t i = 0; i < 3; ++i) kernel[i] = static_cast<std::int64_t>(weights.shape(i + 2));
    const VolumeShape shape{sizes[0], sizes[1], sizes[2], sizes[3], in,
                            out,      kernel,   stride,   dilation, before};
    return (half ? made<std::uint16_t> : made<float>)(shape, weights, bias, clamp, after, threads);
}

}  // namespace

void bind_volumes(nb::module_& m) {
    using nb::arg;
    m.def("volume_step", &volume_step, arg("sizes"), arg("in_size"), arg("out_size"), arg("stride"),
          arg("dilation"), arg("before"), arg("weights"), arg("bias"), arg("clamp"), arg("after").none(),
          arg("half"), arg("threads"));
}

}  // namespace mge
