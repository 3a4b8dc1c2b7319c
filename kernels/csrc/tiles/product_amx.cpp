#include <immintrin.h>

#include "tiles/product.h"
#include "tiles/sums_amx.inc"

namespace mge {
namespace {

constexpr std::int64_t kLanes = 16, kGroup = 16;

__mmask16 first_of(std::int64_t count) {
    return static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1);
}

// Columns from `first` on, of Blocks blocks.
template <int Groups, int Blocks>
void add_block(const TiledColumns& all, const std::uint16_t* rows, std::int64_t count, std::int64_t first,
               float* sums) {
    alignas(64) float products[Groups * kGroup * Blocks * kLanes];
    const auto bytes = all.depth * static_cast<std::int64_t>(sizeof(std::uint16_t));
    const std::uint16_t* weights = all.numbers + first * all.depth;
    clear_sums<Groups, Blocks>();
    for (std::int64_t k = 0; k < all.depth; k += 32, weights += Blocks * 32 * kLanes)
        add_products<Groups, Blocks>(rows + k, rows + kGroup * all.depth + k, bytes, weights);
    store_sums<Groups, Blocks>(products, kGroup);
    for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t b = 0; b < Blocks; ++b) {
            float* const to = sums + r * all.columns + first + b * kLanes;
            const __mmask16 there = first_of(all.columns - first - b * kLanes);
            const __m512 product = _mm512_load_ps(products + (r * Blocks + b) * kLanes);
            _mm512_mask_storeu_ps(to, there, _mm512_add_ps(_mm512_maskz_loadu_ps(there, to), product));
        }
}

template <int Groups>
void add_rows(const TiledColumns& all, const std::uint16_t* rows, std::int64_t count, float* sums) {
    for (std::int64_t first = 0; first < all.columns; first += 2 * kLanes)
        if (all.columns - first > kLanes)
            add_block<Groups, 2>(all, rows, count, first, sums);
        else
            add_block<Groups, 1>(all, rows, count, first, sums);
}

}  // namespace

void add_tiled(const TiledColumns& columns, const std::uint16_t* rows, std::int64_t count, float* sums) {
    const AmxTiles tiles(kGroup, 16);
    count > kGroup ? add_rows<2>(columns, rows, count, sums) : add_rows<1>(columns, rows, count, sums);
}

}  // namespace mge
