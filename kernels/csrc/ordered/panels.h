// Packed weights of products whose sums have one order: columns in panels, those of a panel side by side.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/weights.h"

namespace mge {

using Numbers = std::vector<float, WeightAllocator<float>>;
using Halves = std::vector<std::uint32_t, WeightAllocator<std::uint32_t>>;

inline constexpr std::int64_t kPanel = 16;  // columns that lie together

// Columns with those that fill the last panel.
std::int64_t padded_columns(std::int64_t columns);

// A matrix [depth, columns] whose elements lie `along` and `across` apart as [columns /
// kPanel][depth][kPanel], zeros in the last panel. `out` takes depth * padded_columns(columns) numbers.
void pack_columns(const float* from, std::int64_t along, std::int64_t across, std::int64_t depth,
                  std::int64_t columns, float* out);

// Rows of a matrix [rows, depth] as columns of panels.
Numbers columns_packed(const float* rows, std::int64_t count, std::int64_t depth);

// The same of bfloat16 numbers, two panels in one: [pairs of panels][depth][kPanel], the first panel in the
// low halves of the words. Empty if not all numbers are of this type.
Halves columns_of_halves(const float* rows, std::int64_t count, std::int64_t depth);

}  // namespace mge
