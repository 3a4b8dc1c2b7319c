// Tensors of indices as steps read them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mge {

// `count` places in an axis of `length`, of 4 or 8 bytes; places below 0 count from the end.
struct Index {
    std::int64_t item, length, count;

    std::int64_t raw(const std::byte* buffer, std::int64_t element) const {
        if (item == 4) return reinterpret_cast<const std::int32_t*>(buffer)[element];
        return reinterpret_cast<const std::int64_t*>(buffer)[element];
    }
    std::int64_t place(const std::byte* buffer, std::int64_t element) const {
        const std::int64_t value = raw(buffer, element);
        return value < 0 ? value + length : value;
    }
    // f(indices) for the type that they have.
    template <class F>
    auto typed(const std::byte* buffer, F f) const {
        return item == 4 ? f(reinterpret_cast<const std::int32_t*>(buffer))
                         : f(reinterpret_cast<const std::int64_t*>(buffer));
    }
    bool all_inside(const std::byte* buffer) const {
        return typed(buffer, [&](const auto* values) {
            bool outside = false;
            for (std::int64_t i = 0; i < count; ++i) outside |= values[i] < -length || values[i] >= length;
            return !outside;
        });
    }
};

}  // namespace mge
