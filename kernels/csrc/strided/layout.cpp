// Copies and changes between NCHW and channels-last.
#include <nanobind/nanobind.h>

#include <algorithm>
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
    TransposeStep(std::int64_t n, std::int64_t rows, std::int64_t cols, int threads)
        : n_(n), rows_(rows), cols_(cols), blocks_((cols + kBlock - 1) / kBlock) {
        parts_ = static_cast<int>(std::clamp<std::int64_t>(n * rows * cols / kLeast, 1, threads));
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        constexpr std::int64_t size = sizeof(T);
        const std::int64_t end = n_ * blocks_ * (part + 1) / parts_;
        for (std::int64_t next, i = n_ * blocks_ * part / parts_; i < end; i = next) {
            next = std::min(end, (i / blocks_ + 1) * blocks_);  // of one image
            const std::int64_t from = i % blocks_ * kBlock, to = std::min(cols_, from + (next - i) * kBlock);
            const std::int64_t image = i / blocks_ * rows_ * cols_;
            turn<T>(buffers[1] + (image + from * rows_) * size, buffers[0] + (image + from) * size, rows_,
                    to - from, rows_ * size, cols_ * size);
        }
    }

  private:
    static constexpr std::int64_t kBlock = 64, kLeast = 1 << 13;  // columns; elements of a part
    std::int64_t n_, rows_, cols_, blocks_;
    int parts_;
};

nb::object layout_step(int item, std::int64_t n, std::int64_t c, std::int64_t hw, bool to_channels_last,
                       int threads) {
    const std::int64_t rows = to_channels_last ? c : hw, cols = to_channels_last ? hw : c;
    switch (item) {
        case 1:
            return capsule(std::make_unique<TransposeStep<std::uint8_t>>(n, rows, cols, threads));
        case 2:
            return capsule(std::make_unique<TransposeStep<std::uint16_t>>(n, rows, cols, threads));
        case 4:
            return capsule(std::make_unique<TransposeStep<std::uint32_t>>(n, rows, cols, threads));
        case 8:
            return capsule(std::make_unique<TransposeStep<std::uint64_t>>(n, rows, cols, threads));
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
          nb::arg("to_channels_last"), nb::arg("threads"));
}

}  // namespace mge
