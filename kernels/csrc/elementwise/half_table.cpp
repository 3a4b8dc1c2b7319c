// Numbers of 16 or 32 bits that a table gives for the bits of halves.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "common/step_capsule.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

// Buffers: the numbers, the table of all 2^16, the result.
template <class T>
class HalfTableStep final : public Step {
  public:
    HalfTableStep(std::int64_t size, int threads)
        : size_(size),
          parts_(static_cast<int>(
              std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(1, size / kLeast)))) {}

    int parts() const override { return parts_; }

    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const auto* const x = reinterpret_cast<const std::uint16_t*>(buffers[0]);
        const auto* const table = reinterpret_cast<const T*>(buffers[1]);
        auto* const out = reinterpret_cast<T*>(buffers[2]);
        std::int64_t i = size_ * part / parts_;
        const std::int64_t end = size_ * (part + 1) / parts_;
        for (; i + 4 <= end; i += 4) {  // four are read and written at once
            std::uint64_t bits;
            std::memcpy(&bits, x + i, sizeof bits);
            const T found[4] = {table[bits & 0xffff], table[bits >> 16 & 0xffff], table[bits >> 32 & 0xffff],
                                table[bits >> 48]};
            std::memcpy(out + i, found, sizeof found);
        }
        for (; i < end; ++i) out[i] = table[x[i]];
    }

  private:
    static constexpr std::int64_t kLeast = 1 << 14;  // numbers of a part that is worth a thread
    std::int64_t size_;
    int parts_;
};

}  // namespace

void bind_half_table(nb::module_& m) {
    m.def(
        "half_table_step",
        [](std::int64_t size, bool wide, int threads) -> nb::object {
            if (wide) return capsule(std::make_unique<HalfTableStep<std::uint32_t>>(size, threads));
            return capsule(std::make_unique<HalfTableStep<std::uint16_t>>(size, threads));
        },
        nb::arg("size"), nb::arg("wide"), nb::arg("threads"));
}

}  // namespace mge
