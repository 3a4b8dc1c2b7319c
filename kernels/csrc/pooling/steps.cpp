// Steps over the pooling kernels, split by rows of the result.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/step_capsule.h"
#include "pooling/kernels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

template <class T>
class PoolStep final : public Step {
  public:
    PoolStep(const PoolShape& shape, PoolRows<T> pool, int threads)
        : shape_(shape),
          pool_(pool),
          parts_(static_cast<int>(std::clamp<std::int64_t>(shape.n * shape.oh, 1, threads))) {}
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::int64_t rows = shape_.n * shape_.oh;
        pool_(reinterpret_cast<const T*>(buffers[0]), reinterpret_cast<T*>(buffers[1]), shape_,
              rows * part / parts_, rows * (part + 1) / parts_);
    }

  private:
    PoolShape shape_;
    PoolRows<T> pool_;
    int parts_;
};

template <class T>
class PlanesStep final : public Step {
  public:
    PlanesStep(const PoolShape& shape, PoolPlanes<T> pool, std::int64_t lines, int threads)
        : shape_(shape),
          lines_(lines),
          pool_(pool),
          parts_(static_cast<int>(std::clamp<std::int64_t>(shape.n * shape.c * shape.oh, 1, threads))) {}
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        return static_cast<std::size_t>(lines_ * planes_line(shape_)) * sizeof(float);
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const std::int64_t rows = shape_.n * shape_.c * shape_.oh;
        pool_(reinterpret_cast<const T*>(buffers[0]), reinterpret_cast<T*>(buffers[1]), shape_,
              reinterpret_cast<float*>(scratch), rows * part / parts_, rows * (part + 1) / parts_);
    }

  private:
    PoolShape shape_;
    std::int64_t lines_;  // of the room
    PoolPlanes<T> pool_;
    int parts_;
};

template <class T>
nb::object made(const PoolShape& shape, PoolRows<T> pool, int threads) {
    return capsule(std::make_unique<PoolStep<T>>(shape, pool, threads));
}

PoolShape shape_of(const std::vector<std::int64_t>& s, bool count_padding) {
    if (s.size() != 12) throw nb::value_error("pool_step: 12 lengths expected");
    return {s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], count_padding};
}

nb::object pool_rows_step(const std::vector<std::int64_t>& lengths, bool half, bool max, bool count_padding,
                          int threads) {
    const PoolShape shape = shape_of(lengths, count_padding);
    const PoolingKernels& k = active_pooling_kernels();
    const std::int64_t lines = max ? kPlanesRows : shape.h + 1;
    if (half)
        return capsule(std::make_unique<PlanesStep<std::uint16_t>>(
            shape, max ? k.max_planes_bfloat16 : k.mean_planes_bfloat16, lines, threads));
    return capsule(
        std::make_unique<PlanesStep<float>>(shape, max ? k.max_planes : k.mean_planes, lines, threads));
}

nb::object pool_step(const std::vector<std::int64_t>& lengths, const std::string& dtype, bool max,
                     bool count_padding, int threads) {
    const PoolShape shape = shape_of(lengths, count_padding);
    const PoolingKernels& k = active_pooling_kernels();
    if (dtype == "float32") return made(shape, max ? k.max_float : k.mean_float, threads);
    if (dtype == "bfloat16") return made(shape, max ? k.max_bfloat16 : k.mean_bfloat16, threads);
    if (dtype == "float16" && max) return made(shape, k.max_float16, threads);
    throw nb::value_error(("pool_step: no pooling of " + dtype).c_str());
}

}  // namespace

void bind_pooling(nb::module_& m) {
    m.def("pool_step", &pool_step, nb::arg("lengths"), nb::arg("dtype"), nb::arg("max"),
          nb::arg("count_padding"), nb::arg("threads"));
    m.def("pool_rows_step", &pool_rows_step, nb::arg("lengths"), nb::arg("half"), nb::arg("max"),
          nb::arg("count_padding"), nb::arg("threads"));
}

}  // namespace mge
