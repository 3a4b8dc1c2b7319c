// Convolutions of bfloat16 in tiles of AMX, of few input channels: the taps of a row of the kernel lie side
// by side in a copy with padding, so that the windows of 16 neighbouring results are the rows of a tile.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/clamp.h"
#include "common/float_function.h"

namespace mge {

using Lengths3 = std::array<std::int64_t, 3>;  // along depth, rows, columns

inline constexpr std::int64_t kTileRows = 16, kTilePairs = 16, kTileLanes = 16;  // of a tile; of a vector

struct TiledConv {
    std::int64_t batch, channels, outputs;
    Lengths3 in, out, kernel, stride, dilation, before;  // columns are not dilated
    bool in_rows;                                        // values lie in rows, else channels-last

    // What follows from these. A row of the kernel meets neighbours in as few parts as tiles hold, of so many
    // pairs; a line of results lies in tiles of so many rows; the output channels are blocks of a vector.
    std::int64_t parts = 0, pairs = 0, tiles = 0, rows = 0, blocks = 0;
    // The copy is [depth][row][column][channel]: numbers of a row, of the whole, and of the tail
    // of it that tiles read behind; it holds what so many slices of the result reach, or, if that is 0, lines
    // of one slice.
    std::int64_t line = 0, copy = 0, tail = 0, slices = 0, lines = 0;
    // Packed weights of two blocks of channels: [row of the kernel][part][pair][channel][2].
    std::int64_t weights = 0;
};

// to[c * to_step + r] = from[r * from_step + c]; steps in bytes.
using TurnHalves = void (*)(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t cols,
                            std::int64_t to_step, std::int64_t from_step);

struct TiledLines {
    const TiledConv& shape;
    const std::uint16_t* x;
    const std::uint16_t* weights;
    const float* bias;  // for whole blocks
    Clamp clamp;
    FloatFunction after;  // none if it has no code
    TurnHalves turn;
    std::uint16_t* out;
    std::uint16_t *copy, *held;  // room for the copy, and for two vectors of each pixel of a line
    std::int64_t begin, end;     // lines of the result, counted over all images and slices
};

void tiled_lines(const TiledLines& lines);  // with AMX

}  // namespace mge
