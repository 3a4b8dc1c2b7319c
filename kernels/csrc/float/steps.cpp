// Steps over the float kernels: pooling, means, sums, functions, and concatenation of any element size.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "common/float_function.h"
#include "common/step_capsule.h"
#include "float/kernels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

const float* in(std::byte* const* buffers, int i) { return reinterpret_cast<const float*>(buffers[i]); }
float* out(std::byte* const* buffers, int i) { return reinterpret_cast<float*>(buffers[i]); }

class PlanesPoolStep final : public Step {
  public:
    PlanesPoolStep(PlanesPool shape, std::int64_t planes, bool halves, int threads)
        : shape_(std::move(shape)),
          planes_(planes),
          halves_(halves),
          parts_(static_cast<int>(std::clamp<std::int64_t>(planes, 1, threads))) {}
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::int64_t begin = planes_ * part / parts_, end = planes_ * (part + 1) / parts_;
        const auto size = [](const auto& lengths) { return lengths[0] * lengths[1] * lengths[2]; };
        const auto pool = [&](auto kernel, const auto* x, auto* y) {
            kernel(x + begin * size(shape_.in), y + begin * size(shape_.out), shape_, end - begin);
        };
        if (halves_)
            pool(kernels_.pool_planes_of_halves, reinterpret_cast<const std::uint16_t*>(buffers[0]),
                 reinterpret_cast<std::uint16_t*>(buffers[1]));
        else
            pool(kernels_.pool_planes, in(buffers, 0), out(buffers, 1));
    }

  private:
    PlanesPool shape_;
    std::int64_t planes_;
    bool halves_;
    int parts_;
    const FloatKernels& kernels_ = active_float_kernels();
};

// Sums of the rows, or of the columns, of matrices.
class SumsStep final : public Step {
  public:
    SumsStep(std::int64_t n, std::int64_t rows, std::int64_t cols, float divisor, bool in_turn,
             bool of_columns, bool halves, int threads)
        : n_(n),
          rows_(rows),
          cols_(cols),
          divisor_(divisor),
          in_turn_(in_turn),
          of_columns_(of_columns),
          halves_(halves),
          parts_(static_cast<int>(std::clamp<std::int64_t>(of_columns ? n : n * rows, 1, threads))) {}
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::int64_t total = of_columns_ ? n_ : n_ * rows_;
        const std::int64_t begin = total * part / parts_, end = total * (part + 1) / parts_;
        if (halves_)
            f_.column_sum_of_halves(
                reinterpret_cast<const std::uint16_t*>(buffers[0]) + begin * rows_ * cols_,
                reinterpret_cast<std::uint16_t*>(buffers[1]) + begin * cols_, end - begin, rows_, cols_,
                divisor_);
        else if (of_columns_)
            f_.column_sum(in(buffers, 0) + begin * rows_ * cols_, out(buffers, 1) + begin * cols_,
                          end - begin, rows_, cols_, divisor_);
        else
            f_.row_sum(in(buffers, 0) + begin * cols_, out(buffers, 1) + begin, end - begin, cols_, divisor_,
                       in_turn_);
    }

  private:
    std::int64_t n_, rows_, cols_;
    float divisor_;
    bool in_turn_, of_columns_, halves_;
    int parts_;
    const FloatKernels& f_ = active_float_kernels();
};

template <class T>
class NeighbourMeanStep final : public Step {
  public:
    NeighbourMeanStep(std::int64_t rows, std::int64_t cols, std::int64_t window, std::int64_t before,
                      int threads)
        : rows_(rows),
          cols_(cols),
          window_(window),
          before_(before),
          parts_(static_cast<int>(std::clamp<std::int64_t>(rows, 1, threads))) {}
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        return static_cast<std::size_t>(mean_room(cols_, window_)) * sizeof(float);
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const std::int64_t begin = rows_ * part / parts_, count = rows_ * (part + 1) / parts_ - begin;
        const T* const x = reinterpret_cast<const T*>(buffers[0]) + begin * cols_;
        T* const y = reinterpret_cast<T*>(buffers[1]) + begin * cols_;
        auto* const room = reinterpret_cast<float*>(scratch);
        if constexpr (std::is_same_v<T, float>)
            active_.neighbour_mean(x, y, room, count, cols_, window_, before_);
        else
            active_.neighbour_mean_of_halves(x, y, room, count, cols_, window_, before_);
    }

  private:
    std::int64_t rows_, cols_, window_, before_;
    int parts_;
    const FloatKernels& active_ = active_float_kernels();
};

template <class T>
class NormStep final : public Step {
  public:
    NormStep(std::int64_t rows, std::int64_t cols, float eps, bool centred, bool reciprocal, int factors,
             int threads)
        : rows_(rows),
          cols_(cols),
          eps_(eps),
          centred_(centred),
          reciprocal_(reciprocal),
          factors_(factors),
          parts_(static_cast<int>(std::clamp<std::int64_t>(rows, 1, threads))) {}
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        return std::is_same_v<T, float> ? 0
                                        : static_cast<std::size_t>((kNormedRows + 2) * cols_) * sizeof(float);
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const std::int64_t begin = rows_ * part / parts_, end = rows_ * (part + 1) / parts_;
        const auto at = [&](int i) { return reinterpret_cast<T*>(buffers[i]); };
        const T *x = at(0) + begin * cols_, *w = factors_ > 0 ? at(1) : nullptr,
                *b = factors_ > 1 ? at(2) : nullptr;
        T* const y = at(1 + factors_) + begin * cols_;
        if constexpr (std::is_same_v<T, float>)
            active_.norm(x, w, b, y, end - begin, cols_, eps_, centred_, reciprocal_);
        else
            active_.norm_halves(x, w, b, y, reinterpret_cast<float*>(scratch), end - begin, cols_, eps_,
                                centred_, reciprocal_);
    }

  private:
    std::int64_t rows_, cols_;
    float eps_;
    bool centred_, reciprocal_;
    int factors_, parts_;
    const FloatKernels& active_ = active_float_kernels();
};

class FunctionStep final : public Step {
  public:
    FunctionStep(std::int64_t size, Function function, float a, int threads)
        : size_(size), function_(function), a_(a), f_(active_float_kernels().apply), parts_(threads) {}
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::int64_t begin = size_ * part / parts_, end = size_ * (part + 1) / parts_;
        f_(in(buffers, 0) + begin, out(buffers, 1) + begin, end - begin, function_, a_);
    }

  private:
    std::int64_t size_;
    Function function_;
    float a_;
    decltype(FloatKernels::apply) f_;
    int parts_;
};

Function function_of(const std::string& name) {
    const auto* const found = std::find(kFunctionNames.begin(), kFunctionNames.end(), name);
    if (found == kFunctionNames.end()) throw nb::value_error(("no function " + name).c_str());
    return static_cast<Function>(found - kFunctionNames.begin());
}

// The function at the level that is active now, for steps of other modules.
nb::capsule float_function(const std::string& name, float a) {
    static constexpr auto kApply = [](const float* src, float* dst, std::int64_t size, int function,
                                      float a) {
        active_float_kernels().apply(src, dst, size, static_cast<Function>(function), a);
    };
    static constexpr auto kApplyHalves = [](const std::uint16_t* src, std::uint16_t* dst, std::int64_t size,
                                            int function, float a) {
        active_float_kernels().apply_halves(src, dst, size, static_cast<Function>(function), a);
    };
    auto made = std::make_unique<FloatFunction>(kApply, kApplyHalves, static_cast<int>(function_of(name)), a);
    return nb::capsule(made.release(), kFunctionCapsule,
                       [](void* p) noexcept { delete static_cast<FloatFunction*>(p); });
}

template <class T>
class SoftmaxStep final : public Step {
  public:
    SoftmaxStep(SoftmaxShape shape, int threads)
        : shape_(shape), parts_(static_cast<int>(std::clamp<std::int64_t>(shape.outer, 1, threads))) {}
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        return std::is_same_v<T, float>
                   ? 0
                   : static_cast<std::size_t>(2 * softmax_piece(shape_.n)) * sizeof(float);
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const std::int64_t begin = shape_.outer * part / parts_, end = shape_.outer * (part + 1) / parts_;
        const T* const x = reinterpret_cast<const T*>(buffers[0]);
        T* const y = reinterpret_cast<T*>(buffers[1]);
        if constexpr (std::is_same_v<T, float>)
            active_.softmax(x, y, shape_, begin, end);
        else
            active_.softmax_halves(x, y, reinterpret_cast<float*>(scratch), shape_, begin, end);
    }

  private:
    SoftmaxShape shape_;
    int parts_;
    const FloatKernels& active_ = active_float_kernels();
};

// Takes images and weights as they are, rows first, and packs nothing: for eager calls.
class ConvStep final : public Step {
  public:
    ConvStep(ConvShape shape, bool bias) : shape_(shape), bias_(bias), f_(active_float_kernels().conv) {}
    std::size_t scratch_bytes() const override {
        return static_cast<std::size_t>(shape_.c * shape_.rows() * shape_.cols() + kConvTail) * sizeof(float);
    }
    void run(int, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        f_(in(buffers, 0), in(buffers, 1), bias_ ? in(buffers, 2) : nullptr, out(buffers, bias_ ? 3 : 2),
           reinterpret_cast<float*>(scratch), shape_);
    }

  private:
    ConvShape shape_;
    bool bias_;
    decltype(FloatKernels::conv) f_;
};

// Rows of all inputs side by side: a concatenation along the last axis in memory.
class ConcatStep final : public Step {
  public:
    ConcatStep(std::int64_t rows, std::vector<std::int64_t> bytes, int threads)
        : rows_(rows), bytes_(std::move(bytes)) {
        for (const std::int64_t each : bytes_) row_ += each;
        const std::int64_t worth = std::max<std::int64_t>(1, std::min(rows_, rows_ * row_ / kLeastBytes));
        parts_ = static_cast<int>(std::clamp<std::int64_t>(threads, 1, worth));
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::int64_t begin = rows_ * part / parts_, end = rows_ * (part + 1) / parts_;
        std::int64_t at = 0;
        for (std::size_t i = 0; i < bytes_.size(); at += bytes_[i++]) {
            const std::int64_t each = bytes_[i];
            const auto copy = each >= 64   ? copy_rows<64>
                              : each >= 32 ? copy_rows<32>
                              : each >= 16 ? copy_rows<16>
                              : each >= 8  ? copy_rows<8>
                              : each >= 4  ? copy_rows<4>
                              : each >= 2  ? copy_rows<2>
                                           : copy_rows<1>;
            if (each > 0)
                copy(buffers[i] + begin * each, each, buffers[bytes_.size()] + begin * row_ + at, row_,
                     end - begin);
        }
    }

    // Rows of so many bytes, at least as many as a piece has: the last piece repeats some of the one before.
    template <std::int64_t Piece>
    static void copy_rows(const std::byte* from, std::int64_t bytes, std::byte* to, std::int64_t step,
                          std::int64_t rows) {
        for (std::int64_t r = 0; r < rows; ++r, from += bytes, to += step) {
            for (std::int64_t i = 0; i + Piece < bytes; i += Piece) std::memcpy(to + i, from + i, Piece);
            std::memcpy(to + bytes - Piece, from + bytes - Piece, Piece);
        }
    }

  private:
    static constexpr std::int64_t kLeastBytes = 1 << 16;  // of a part that is worth a thread
    std::int64_t rows_, row_ = 0;
    std::vector<std::int64_t> bytes_;
    int parts_;
};

// in, out, kernel, stride, dilation and padding before, each over three axes
nb::object planes_pool_step(const std::array<std::array<std::int64_t, 3>, 6>& s, std::int64_t planes,
                            bool count_padding, bool half, int threads) {
    if (half && std::max(s[0][2], s[1][2]) > kLongestPooledRow)
        throw nb::value_error("planes_pool_step: shorter rows of halves expected");
    PlanesPool shape{s[0], s[1], s[2], s[3], s[4], s[5], count_padding, {}, {}};
    shape.inside.assign(static_cast<std::size_t>(shape.out[2]),
                        count_padding ? static_cast<float>(shape.kernel[2]) : 0.f);
    const std::int64_t step = shape.stride[2];
    for (std::int64_t k = 0; k < shape.kernel[2]; ++k) {
        const std::int64_t shift = shape.before[2] - k * shape.dilation[2];
        const std::int64_t first = shift > 0 ? (shift + step - 1) / step : 0;
        const std::int64_t end = std::min(shape.out[2], (shape.in[2] + shift + step - 1) / step);
        if (first < end) shape.columns.push_back({first, end - first, first * step - shift});
        for (std::int64_t w = first; w < end && !count_padding; ++w)
            ++shape.inside[static_cast<std::size_t>(w)];
    }
    return capsule(std::make_unique<PlanesPoolStep>(std::move(shape), planes, half, threads));
}

nb::object small_conv_step(std::vector<std::int64_t> s, bool bias) {
    if (s.size() != 16) throw nb::value_error("small_conv_step: 16 lengths expected");
    const ConvShape shape{s[0], s[1], s[2],  s[3],  s[4],  s[5],  s[6],  s[7],
                          s[8], s[9], s[10], s[11], s[12], s[13], s[14], s[15]};
    if (shape.sw > kConvTail / 8) throw nb::value_error("small_conv_step: strides of at most 8 expected");
    return capsule(std::make_unique<ConvStep>(shape, bias));
}

}  // namespace

void bind_float(nb::module_& m) {
    m.def("planes_pool_step", &planes_pool_step, nb::arg("lengths"), nb::arg("planes"),
          nb::arg("count_padding"), nb::arg("half"), nb::arg("threads"));
    m.attr("longest_pooled_row") = kLongestPooledRow;
    m.def("small_conv_step", &small_conv_step, nb::arg("lengths"), nb::arg("bias"));
    m.def(
        "sums_step",
        [](std::int64_t n, std::int64_t rows, std::int64_t cols, float divisor, bool in_turn, bool of_columns,
           bool halves, int threads) {
            if (halves && !of_columns) throw nb::value_error("sums_step: of halves columns alone are summed");
            return capsule(
                std::make_unique<SumsStep>(n, rows, cols, divisor, in_turn, of_columns, halves, threads));
        },
        nb::arg("n"), nb::arg("rows"), nb::arg("cols"), nb::arg("divisor"), nb::arg("in_turn"),
        nb::arg("of_columns"), nb::arg("halves"), nb::arg("threads"));
    m.def(
        "neighbour_mean_step",
        [](std::int64_t rows, std::int64_t cols, std::int64_t window, std::int64_t before, bool half,
           int threads) {
            const auto made = [&]<class T>(T) {
                return capsule(std::make_unique<NeighbourMeanStep<T>>(rows, cols, window, before, threads));
            };
            return half ? made(std::uint16_t{}) : made(float{});
        },
        nb::arg("rows"), nb::arg("cols"), nb::arg("window"), nb::arg("before"), nb::arg("half"),
        nb::arg("threads"));
    m.def(
        "norm_step",
        [](std::int64_t rows, std::int64_t cols, float eps, bool centred, bool reciprocal, int factors,
           bool half, int threads) {
            const auto made = [&]<class T>(T) {
                return capsule(
                    std::make_unique<NormStep<T>>(rows, cols, eps, centred, reciprocal, factors, threads));
            };
            return half ? made(std::uint16_t{}) : made(0.f);
        },
        nb::arg("rows"), nb::arg("cols"), nb::arg("eps"), nb::arg("centred"), nb::arg("reciprocal"),
        nb::arg("factors"), nb::arg("half"), nb::arg("threads"));
    m.def("function_step", [](std::int64_t size, const std::string& name, float a, int threads) {
        return capsule(std::make_unique<FunctionStep>(size, function_of(name), a, threads));
    });
    m.def("float_function", &float_function, nb::arg("name"), nb::arg("a"));
    m.def(
        "softmax_step",
        [](std::int64_t outer, std::int64_t n, std::int64_t inner, bool in_turn, bool log, bool half,
           int threads) {
            if (half && inner != 1) throw nb::value_error("softmax_step: of halves rows alone are taken");
            const SoftmaxShape shape{outer, n, inner, in_turn, log};
            return half ? capsule(std::make_unique<SoftmaxStep<std::uint16_t>>(shape, threads))
                        : capsule(std::make_unique<SoftmaxStep<float>>(shape, threads));
        },
        nb::arg("outer"), nb::arg("n"), nb::arg("inner"), nb::arg("in_turn"), nb::arg("log"), nb::arg("half"),
        nb::arg("threads"));
    m.def("concat_step", [](std::int64_t rows, std::vector<std::int64_t> bytes, int threads) {
        return capsule(std::make_unique<ConcatStep>(rows, std::move(bytes), threads));
    });
}

}  // namespace mge
