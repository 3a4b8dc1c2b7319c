// Products of rows of bfloat16 with packed columns in tiles of AMX. Sums are float32.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/weights.h"

namespace mge {

inline constexpr std::int64_t kTiledRows = 32;  // that are multiplied at once

using TiledNumbers = std::vector<std::uint16_t, WeightAllocator<std::uint16_t>>;

// Columns of bfloat16 bits as [pairs of blocks][depth / 2][columns of them][2].
struct TiledColumns {
    const std::uint16_t* numbers = nullptr;
    std::int64_t depth = 0, columns = 0;  // the depth in whole tiles: zeros lie behind
};

std::int64_t tiled_depth(std::int64_t depth);
// The rows of a matrix [count, depth] as columns.
TiledNumbers columns_tiled(const std::uint16_t* rows, std::int64_t count, std::int64_t depth);

// sums (rows as long as there are columns) += rows [count, columns.depth] times the columns; at most
// kTiledRows, which may lie before others. With AMX.
using AddTiled = void (*)(const TiledColumns& columns, const std::uint16_t* rows, std::int64_t count,
                          float* sums);
void add_tiled(const TiledColumns& columns, const std::uint16_t* rows, std::int64_t count, float* sums);

}  // namespace mge
