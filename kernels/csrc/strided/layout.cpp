// Copies and changes between NCHW and channels-last.
#include <nanobind/nanobind.h>

#include <cstring>

#include "common/step_capsule.h"
#include "runtime/bind.h"
#include "strided/transpose.h"

namespace nb = nanobind;

namespace mge {
namespace {

class CopyStep final : public Step {
  public:
    explicit CopyStep(std::size_t bytes) : bytes_(bytes) {}
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        std::memcpy(buffers[1], buffers[0], bytes_);
    }

  private:
    std::size_t bytes_;
};

// Transposes every image's matrix of rows x cols elements.
template <typename T>
class TransposeStep final : public Step {
  public:
    TransposeStep(std::int64_t n, std::int64_t rows, std::int64_t cols) : n_(n), rows_(rows), cols_(cols) {}
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        constexpr std::int64_t size = sizeof(T);
        for (std::int64_t i = 0; i < n_; ++i) {
            const std::int64_t at = i * rows_ * cols_ * size;
            turn<T>(buffers[1] + at, buffers[0] + at, rows_, cols_, rows_ * size, cols_ * size);
        }
    }

  private:
    std::int64_t n_, rows_, cols_;
};

nb::object layout_step(int item, std::int64_t n, std::int64_t c, std::int64_t hw, bool to_channels_last) {
    const std::int64_t rows = to_channels_last ? c : hw, cols = to_channels_last ? hw : c;
    switch (item) {
        case 1:
            return capsule(std::make_unique<TransposeStep<std::uint8_t>>(n, rows, cols));
        case 2:
            return capsule(std::make_unique<TransposeStep<std::uint16_t>>(n, rows, cols));
        case 4:
            return capsule(std::make_unique<TransposeStep<std::uint32_t>>(n, rows, cols));
        case 8:
            return capsule(std::make_unique<TransposeStep<std::uint64_t>>(n, rows, cols));
        default:
            throw nb::value_error("layout_step: elements of 1, 2, 4 or 8 bytes expected");
    }
}

}  // namespace

void bind_layout(nb::module_& m) {
    m.def(
        "copy_step", [](std::size_t bytes) { return capsule(std::make_unique<CopyStep>(bytes)); },
        nb::arg("bytes"));
    m.def("layout_step", &layout_step, nb::arg("item"), nb::arg("n"), nb::arg("c"), nb::arg("hw"),
          nb::arg("to_channels_last"));
}

}  // namespace mge
