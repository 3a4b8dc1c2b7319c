// Packing, compiled for the baseline alone: every instruction set reads the same panels.
#include "ordered/panels.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mge {

std::int64_t padded_columns(std::int64_t columns) { return (columns + kPanel - 1) / kPanel * kPanel; }

void pack_columns(const float* from, std::int64_t along, std::int64_t across, std::int64_t depth,
                  std::int64_t columns, float* out) {
    for (std::int64_t first = 0; first < columns; first += kPanel) {
        const std::int64_t width = std::min(kPanel, columns - first);
        const float* corner = from + first * across;
        for (std::int64_t k = 0; k < depth; ++k, out += kPanel, corner += along) {
            if (across == 1 && width == kPanel) {
                std::memcpy(out, corner, kPanel * sizeof(float));
                continue;
            }
            for (std::int64_t c = 0; c < width; ++c) out[c] = corner[c * across];
            std::fill(out + width, out + kPanel, 0.f);
        }
    }
}

Numbers columns_packed(const float* rows, std::int64_t count, std::int64_t depth) {
    Numbers out(static_cast<std::size_t>(padded_columns(count) * depth));
    pack_columns(rows, 1, depth, depth, count, out.data());
    return out;
}

Halves columns_of_halves(const float* rows, std::int64_t count, std::int64_t depth) {
    const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
    if (std::any_of(rows, rows + count * depth, [&](float x) { return bits(x) & 0xffffu; })) return {};
    const Numbers panels = columns_packed(rows, count, depth);
    const std::int64_t panel = depth * kPanel, all = padded_columns(count) / kPanel;
    Halves out(static_cast<std::size_t>((all + 1) / 2 * panel));
    for (std::int64_t p = 0; p < all; ++p)
        for (std::int64_t i = 0; i < panel; ++i)
            out[static_cast<std::size_t>(p / 2 * panel + i)] |=
                p % 2 ? bits(panels[static_cast<std::size_t>(p * panel + i)])
                      : bits(panels[static_cast<std::size_t>(p * panel + i)]) >> 16;
    return out;
}

}  // namespace mge
