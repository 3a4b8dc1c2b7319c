// Steps of eager calls over small C-contiguous arrays: sums along axes, products of matrices, relu.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/step_capsule.h"
#include "float/kernels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

using Lengths = std::vector<std::int64_t>;

// The sum of neighbours in the order in which NumPy adds them, so that it rounds as NumPy's.
float pairwise(const float* x, std::int64_t n) {
    constexpr std::int64_t kBlock = 128, kSums = 8;
    if (n > kBlock) {
        const std::int64_t half = n / 2 / kSums * kSums;
        return pairwise(x, half) + pairwise(x + half, n - half);
    }
    std::int64_t i = 0;
    float total = -0.f;  // nothing is added to it, not even to a zero
    if (n >= kSums) {
        float r[kSums];
        std::copy_n(x, kSums, r);
        for (i = kSums; i + kSums <= n; i += kSums)
            for (std::int64_t k = 0; k < kSums; ++k) r[k] += x[i + k];
        total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    }
    for (; i < n; ++i) total += x[i];
    return total;
}

// Sums along axes, divided by a number (1: not at all). `lengths` are those of runs of axes, in turns summed
// up and kept; the last one is summed up if `last_summed`.
class SumStep final : public Step {
  public:
    SumStep(Lengths lengths, bool last_summed, float divisor)
        : lengths_(std::move(lengths)), divisor_(divisor), strides_(lengths_.size(), 0) {
        bool summed = last_summed;
        for (std::size_t d = lengths_.size(); d-- > 0; summed = !summed) {
            if (summed) continue;
            strides_[d] = size_;
            size_ *= lengths_[d];
        }
    }

    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        const auto* x = reinterpret_cast<const float*>(buffers[0]);
        auto* y = reinterpret_cast<float*>(buffers[1]);
        std::fill_n(y, size_, 0.f);
        walk(0, x, y);
        if (divisor_ != 1.f)
            for (std::int64_t i = 0; i < size_; ++i) y[i] /= divisor_;
    }

  private:
    // Adds what lies from x on to y; the position behind it.
    const float* walk(std::size_t d, const float* x, float* y) const {
        const std::int64_t n = lengths_[d];
        if (d + 1 == lengths_.size()) {
            if (strides_[d] == 0)
                *y += pairwise(x, n);
            else
                for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
            return x + n;
        }
        for (std::int64_t i = 0; i < n; ++i, y += strides_[d]) x = walk(d + 1, x, y);
        return x;
    }

    Lengths lengths_;
    float divisor_;
    Lengths strides_;  // of the result; 0 where it is summed up
    std::int64_t size_ = 1;
};

nb::object sum_step(Lengths lengths, bool last_summed, float divisor) {
    if (lengths.empty()) throw nb::value_error("sum_step: at least one length expected");
    return capsule(std::make_unique<SumStep>(std::move(lengths), last_summed, divisor));
}

// A product of two matrices for each pair of places, in elements from the beginning of a and b.
class MatmulStep final : public Step {
  public:
    using Places = std::vector<std::pair<std::int64_t, std::int64_t>>;

    MatmulStep(MatmulShape shape, Places places)
        : shape_(shape), places_(std::move(places)), f_(active_float_kernels().matmul) {}
    std::size_t scratch_bytes() const override {
        return static_cast<std::size_t>(shape_.depth * kMatmulLanes) * sizeof(float);
    }
    void run(int, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const auto *a = reinterpret_cast<const float*>(buffers[0]),
                   *b = reinterpret_cast<const float*>(buffers[1]);
        auto* y = reinterpret_cast<float*>(buffers[2]);
        for (const auto& [from_a, from_b] : places_) {
            f_(a + from_a, b + from_b, y, reinterpret_cast<float*>(scratch), shape_);
            y += shape_.rows * shape_.cols;
        }
    }

  private:
    MatmulShape shape_;
    Places places_;
    decltype(FloatKernels::matmul) f_;
};

nb::object small_matmul_step(std::int64_t rows, std::int64_t depth, std::int64_t cols, bool transpose_a,
                             bool transpose_b, MatmulStep::Places places) {
    const MatmulShape shape{rows,
                            depth,
                            cols,
                            transpose_a ? 1 : depth,
                            transpose_a ? rows : 1,
                            transpose_b ? 1 : cols,
                            transpose_b ? depth : 1};
    return capsule(std::make_unique<MatmulStep>(shape, std::move(places)));
}

// max(x, 0), where NaN stays and a zero is positive, as in NumPy; or the gradient of that: of two inputs,
// the first where the second is above 0.
class ReluStep final : public Step {
  public:
    ReluStep(std::int64_t size, bool backward) : size_(size), backward_(backward) {}
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        const auto* x = reinterpret_cast<const float*>(buffers[0]);
        auto* y = reinterpret_cast<float*>(buffers[backward_ ? 2 : 1]);
        if (backward_) {
            const auto* of = reinterpret_cast<const float*>(buffers[1]);
            for (std::int64_t i = 0; i < size_; ++i) y[i] = of[i] > 0.f ? x[i] : 0.f;
        } else {
            for (std::int64_t i = 0; i < size_; ++i) y[i] = x[i] <= 0.f ? 0.f : x[i];
        }
    }

  private:
    std::int64_t size_;
    bool backward_;
};

}  // namespace

void bind_flat(nb::module_& m) {
    m.def("sum_step", &sum_step, nb::arg("lengths"), nb::arg("last_summed"), nb::arg("divisor"));
    m.def(
        "small_relu_step",
        [](std::int64_t size, bool backward) { return capsule(std::make_unique<ReluStep>(size, backward)); },
        nb::arg("size"), nb::arg("backward"));
    m.def("small_matmul_step", &small_matmul_step, nb::arg("rows"), nb::arg("depth"), nb::arg("cols"),
          nb::arg("transpose_a"), nb::arg("transpose_b"), nb::arg("places"));
}

}  // namespace mge
