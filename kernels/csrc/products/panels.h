// Matrices in panels: columns of a vector's or a few vectors' width that lie together.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/weights.h"
#include "products/kernels.h"

namespace mge {

using Floats = std::unique_ptr<float[], GiveWeights>;  // aligned to lines of the cache

Floats floats(std::int64_t count);  // throws std::bad_alloc

inline std::int64_t rounded_up(std::int64_t count, std::int64_t unit) {
    return (count + unit - 1) / unit * unit;
}

// The columns [from, from + count) of a matrix whose element [k, c] is matrix[k * along + c * across], of
// which one step is 1, as [depth, width]; zeros behind the last column.
void pack_panel(const float* matrix, std::int64_t along, std::int64_t across, std::int64_t depth,
                std::int64_t from, std::int64_t count, std::int64_t width, float* out);

}  // namespace mge
