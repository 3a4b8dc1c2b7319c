// Tiles of AMX: up to 16 rows of up to 64 bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#define MGE_TILE_LOAD(tile, at, step)                              \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile                \
                 :                                                 \
                 : "r"(at), "r"(static_cast<std::ptrdiff_t>(step)) \
                 : "memory")
#define MGE_TILE_STORE(tile, at, step)                             \
    asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)"            \
                 :                                                 \
                 : "r"(at), "r"(static_cast<std::ptrdiff_t>(step)) \
                 : "memory")
#define MGE_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile : :)

namespace mge {

// The tiles of a thread while one step runs. 0-3: sums of two groups of rows with two vectors, 4-5: rows,
// 6-7: weights, whose rows are units of 4 bytes.
class AmxTiles {
  public:
    AmxTiles(int rows, int units) {
        config_.palette = 1;
        for (int i = 0; i < 8; ++i) {
            config_.rows[i] = static_cast<std::uint8_t>(i < 6 ? rows : units);
            config_.bytes[i] = static_cast<std::uint16_t>(i == 4 || i == 5 ? units * 4 : 64);
        }
        asm volatile("ldtilecfg %0" : : "m"(config_));
    }
    ~AmxTiles() { asm volatile("tilerelease" : :); }
    AmxTiles(const AmxTiles&) = delete;
    AmxTiles& operator=(const AmxTiles&) = delete;

  private:
    struct alignas(64) {
        std::uint8_t palette, start_row, reserved[14];
        std::uint16_t bytes[16];
        std::uint8_t rows[16];
    } config_{};
};

}  // namespace mge
