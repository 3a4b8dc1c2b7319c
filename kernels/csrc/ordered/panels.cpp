// Packing, compiled for the baseline alone: every instruction set reads the same panels.
#include "ordered/panels.h"

#include <algorithm>
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

}  // namespace mge
