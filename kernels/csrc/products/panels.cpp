#include "products/panels.h"

#include <algorithm>
#include <cstring>

#include "strided/transpose.h"

namespace mge {

Floats floats(std::int64_t count) {
    constexpr std::int64_t kLine = 16;
    const std::int64_t whole = rounded_up(std::max<std::int64_t>(count, 1), kLine);
    return Floats(static_cast<float*>(take_weights(static_cast<std::size_t>(whole) * sizeof(float))));
}

void pack_panel(const float* matrix, std::int64_t along, std::int64_t across, std::int64_t depth,
                std::int64_t from, std::int64_t count, std::int64_t width, float* out) {
    constexpr std::int64_t kSize = sizeof(float);
    const float* corner = matrix + from * across;
    if (count < width)
        for (std::int64_t k = 0; k < depth; ++k)
            std::fill(out + k * width + count, out + (k + 1) * width, 0.f);
    if (across == 1)
        for (std::int64_t k = 0; k < depth; ++k)
            std::memcpy(out + k * width, corner + k * along, static_cast<std::size_t>(count) * sizeof(float));
    else
        turn<float>(reinterpret_cast<std::byte*>(out), reinterpret_cast<const std::byte*>(corner), count,
                    depth, width * kSize, across * kSize);
}

}  // namespace mge
