#include "tiles/product.h"

#include <algorithm>

namespace mge {

namespace {
constexpr std::int64_t kBlock = 16, kDepth = 32;  // columns and numbers of a tile
}

std::int64_t tiled_depth(std::int64_t depth) { return (depth + kDepth - 1) / kDepth * kDepth; }

TiledNumbers columns_tiled(const std::uint16_t* rows, std::int64_t count, std::int64_t depth) {
    const std::int64_t whole = tiled_depth(depth);
    TiledNumbers numbers(static_cast<std::size_t>((count + kBlock - 1) / kBlock * kBlock * whole));
    auto* out = numbers.data();
    for (std::int64_t first = 0; first < count; first += 2 * kBlock) {
        const std::int64_t width = count - first > kBlock ? 2 * kBlock : kBlock;
        for (std::int64_t pair = 0; pair < whole; pair += 2)
            for (std::int64_t c = first; c < first + width; ++c)
                for (std::int64_t k = pair; k < pair + 2; ++k)
                    *out++ = c < count && k < depth ? rows[c * depth + k] : std::uint16_t{0};
    }
    return numbers;
}

}  // namespace mge
