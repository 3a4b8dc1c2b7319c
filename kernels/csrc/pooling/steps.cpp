// Steps over the pooling kernels, split by rows of the result.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
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

// Rows of planes: Shape and the kernel that takes it, with a room of so many numbers.
template <class T, class Shape>
class PlanesStep final : public Step {
  public:
    using Pool = void (*)(const T* src, T* dst, const Shape& s, float* room, std::int64_t begin,
                          std::int64_t end);

    PlanesStep(const Shape& shape, Pool pool, std::int64_t rows, std::int64_t room, int threads)
        : shape_(shape),
          pool_(pool),
          rows_(rows),
          room_(room),
          parts_(static_cast<int>(std::clamp<std::int64_t>(rows, 1, threads))) {}
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override { return static_cast<std::size_t>(room_) * sizeof(float); }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        pool_(reinterpret_cast<const T*>(buffers[0]), reinterpret_cast<T*>(buffers[1]), shape_,
              reinterpret_cast<float*>(scratch), rows_ * part / parts_, rows_ * (part + 1) / parts_);
    }

  private:
    Shape shape_;
    Pool pool_;
    std::int64_t rows_, room_;
    int parts_;
};

template <class T, class Shape>
nb::object planes_step(const Shape& shape,
                       void (*pool)(const T*, T*, const Shape&, float*, std::int64_t, std::int64_t),
                       std::int64_t rows, std::int64_t room, int threads) {
    return capsule(std::make_unique<PlanesStep<T, Shape>>(shape, pool, rows, room, threads));
}

template <class T>
nb::object made(const PoolShape& shape, PoolRows<T> pool, int threads) {
    return capsule(std::make_unique<PoolStep<T>>(shape, pool, threads));
}

PoolShape shape_of(const std::vector<std::int64_t>& s, bool count_padding) {
    if (s.size() != 12) throw nb::value_error("pool_step: 12 lengths expected");
    return {s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], count_padding};
}

nb::object mean_planes_step(const std::vector<std::int64_t>& lengths, bool half, bool count_padding,
                            int threads) {
    const PoolShape shape = shape_of(lengths, count_padding);
    const PoolingKernels& k = active_pooling_kernels();
    const std::int64_t rows = shape.n * shape.c * shape.oh, room = (shape.h + 1) * planes_line(shape);
    return half ? planes_step(shape, k.mean_planes_bfloat16, rows, room, threads)
                : planes_step(shape, k.mean_planes, rows, room, threads);
}

// lengths: in, out, kernel, stride, dilation and padding before, each over three axes
nb::object max_planes_step(const std::array<std::array<std::int64_t, 3>, 6>& lengths, std::int64_t planes,
                           bool half, int threads) {
    constexpr std::int64_t kRoom = 1 << 15;  // numbers, if a row needs no more
    constexpr std::int64_t kMost = 8;        // rows
    PlaneWindows s{lengths[0], lengths[1], lengths[2], lengths[3], lengths[4], lengths[5], 0, 0};
    const std::int64_t reach = (s.out[2] - 1) * s.stride[2] + (s.kernel[2] - 1) * s.dilation[2] + 1;
    s.line = std::max(reach, s.before[2] + s.in[2]) + 64;
    s.lines = std::clamp<std::int64_t>(kRoom / s.line, 1, kMost);
    const PoolingKernels& k = active_pooling_kernels();
    const std::int64_t rows = planes * s.out[0] * s.out[1], room = s.lines * s.line;
    return half ? planes_step(s, k.max_planes_bfloat16, rows, room, threads)
                : planes_step(s, k.max_planes, rows, room, threads);
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
    m.def("mean_planes_step", &mean_planes_step, nb::arg("lengths"), nb::arg("half"),
          nb::arg("count_padding"), nb::arg("threads"));
    m.def("max_planes_step", &max_planes_step, nb::arg("lengths"), nb::arg("planes"), nb::arg("half"),
          nb::arg("threads"));
}

}  // namespace mge
