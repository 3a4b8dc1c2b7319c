// Normalised groups of channels that lie in rows, float32 or bfloat16, with what multiplies and shifts
// channels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "common/step_capsule.h"
#include "float/kernels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::ndim<2>, nb::device::cpu>;

template <class T>
class ChannelNormStep final : public Step {
  public:
    ChannelNormStep(std::int64_t samples, const ChannelNorm& shape, std::vector<float> factors, int threads)
        : s_(shape), factors_(std::move(factors)), rows_(samples * s_.groups) {
        s_.factors = factors_.data();
        parts_ = static_cast<int>(std::clamp<std::int64_t>(rows_, 1, threads));
    }
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        return std::is_same_v<T, float> ? 0 : static_cast<std::size_t>(kNormedRows * cols()) * sizeof(float);
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const std::int64_t begin = rows_ * part / parts_, end = rows_ * (part + 1) / parts_;
        const T* const x = reinterpret_cast<const T*>(buffers[0]);
        T* const y = reinterpret_cast<T*>(buffers[1]);
        if constexpr (std::is_same_v<T, float>) {
            active_.channel_norm(x + begin * cols(), y + begin * cols(), s_, begin, end);
        } else {
            active_.channel_norm_halves(x + begin * cols(), y + begin * cols(),
                                        reinterpret_cast<float*>(scratch), s_, begin, end);
        }
    }

  private:
    std::int64_t cols() const { return s_.parts * s_.inner; }

    ChannelNorm s_;
    std::vector<float> factors_;
    std::int64_t rows_;
    int parts_;
    const FloatKernels& active_ = active_float_kernels();
};

// factors: [2 or 4, channels], weights and biases in turns.
nb::object channel_norm_step(std::int64_t samples, std::int64_t groups, std::int64_t inner, float eps,
                             const F32& factors, bool half, int threads) {
    const auto channels = static_cast<std::int64_t>(factors.shape(1));
    if ((factors.shape(0) != 2 && factors.shape(0) != 4) || groups < 1 || channels % groups)
        throw nb::value_error("channel_norm_step: factors [2 or 4, channels], of whole groups");
    const ChannelNorm shape{groups, channels / groups, inner, eps, static_cast<int>(factors.shape(0)) / 2,
                            nullptr};
    std::vector<float> copied(factors.data(), factors.data() + factors.size());
    if (half)
        return capsule(
            std::make_unique<ChannelNormStep<std::uint16_t>>(samples, shape, std::move(copied), threads));
    return capsule(std::make_unique<ChannelNormStep<float>>(samples, shape, std::move(copied), threads));
}

}  // namespace

void bind_channel_norm(nb::module_& m) {
    using nb::arg;
    m.def("channel_norm_step", &channel_norm_step, arg("samples"), arg("groups"), arg("inner"), arg("eps"),
          arg("factors"), arg("half"), arg("threads"));
}

}  // namespace mge
