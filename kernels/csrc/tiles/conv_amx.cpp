#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "tiles/conv.h"
#include "tiles/sums_amx.inc"

namespace mge {
namespace {

using Bits = std::uint16_t;  // of bfloat16
constexpr std::int64_t kLanes = kTileLanes, kBytes = sizeof(Bits);

__mmask32 first_of(std::int64_t count) {
    return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << std::max<std::int64_t>(0, count)) - 1;
}

// Lines of C planes become pixels of C channels: a vector of pixels takes the places of its lanes from every
// plane.
template <int C>
struct Woven {
    alignas(64) Bits places[C][32]{};
    __mmask32 taken[C][C]{};  // lanes of each vector that are of each plane

    constexpr Woven() {
        for (int j = 0; j < C; ++j)
            for (int l = 0; l < 32; ++l) {
                places[j][l] = static_cast<Bits>((32 * j + l) / C);
                taken[j][(32 * j + l) % C] |= __mmask32{1} << l;
            }
    }
};
template <int C>
constexpr Woven<C> kWoven{};

template <int C>
void weave(const Bits* planes, std::int64_t plane, std::int64_t count, Bits* to) {
    for (std::int64_t i = 0; i < count; i += 32, to += 32 * C) {
        const __mmask32 there = first_of(count - i);
        __m512i sources[C];
        for (int c = 0; c < C; ++c) sources[c] = _mm512_maskz_loadu_epi16(there, planes + c * plane + i);
        for (int j = 0; j < C; ++j) {
            const __m512i at = _mm512_load_si512(kWoven<C>.places[j]);
            __m512i v = _mm512_permutexvar_epi16(at, sources[0]);
            for (int c = 1; c < C; ++c)
                v = _mm512_mask_permutexvar_epi16(v, kWoven<C>.taken[j][c], at, sources[c]);
            _mm512_mask_storeu_epi16(to + 32 * j, first_of((count - i) * C - 32 * j), v);
        }
    }
}

// Results that are computed from one copy: slices [z, z + slices) and of each the lines [y, y + lines).
struct Chunk {
    std::int64_t image, z, slices, y, lines;
};

class Lines {
  public:
    explicit Lines(const TiledLines& a) : a_(a), s_(a.shape) {}

    void run() {
        const AmxTiles tiles(static_cast<int>(s_.rows), static_cast<int>(s_.pairs));
        for (std::int64_t i = a_.begin; i < a_.end;) {
            const Chunk c = chunk_at(i);
            lay(c);
            for (std::int64_t block = 0; block < s_.blocks; block += 2)
                block + 1 < s_.blocks ? multiply<2>(c, block) : multiply<1>(c, block);
            i += c.slices * c.lines;
        }
    }

  private:
    // What `count` results along an axis read.
    std::int64_t reach(std::size_t axis, std::int64_t count) const {
        return (count - 1) * s_.stride[axis] + (s_.kernel[axis] - 1) * s_.dilation[axis] + 1;
    }

    Chunk chunk_at(std::int64_t line) const {
        const std::int64_t y = line % s_.out[1], z = line / s_.out[1] % s_.out[0];
        const std::int64_t image = line / s_.out[1] / s_.out[0], left = a_.end - line;
        const std::int64_t whole = y ? 0 : std::min({s_.slices, left / s_.out[1], s_.out[0] - z});
        if (whole) return {image, z, whole, 0, s_.out[1]};
        const std::int64_t most = s_.slices ? s_.out[1] : s_.lines;
        return {image, z, 1, y, std::min({most, s_.out[1] - y, left})};
    }

    void lay(const Chunk& c) {
        const std::int64_t z0 = c.z * s_.stride[0] - s_.before[0], y0 = c.y * s_.stride[1] - s_.before[1];
        const std::int64_t volume = s_.in[0] * s_.in[1] * s_.in[2] * s_.channels;
        Bits* to = a_.copy;
        rows_ = reach(1, c.lines);
        for (std::int64_t z = z0; z < z0 + reach(0, c.slices); ++z)
            for (std::int64_t y = y0; y < y0 + rows_; ++y, to += s_.line) {
                const bool inside = z >= 0 && z < s_.in[0] && y >= 0 && y < s_.in[1];
                lay_line(inside ? a_.x + c.image * volume : nullptr, z * s_.in[1] + y, to);
            }
        std::fill_n(to, s_.tail, Bits{0});  // zeros of the weights meet what is finite
    }

    // Row `row` of an image, or one of padding.
    void lay_line(const Bits* image, std::int64_t row, Bits* to) const {
        const std::int64_t columns = reach(2, s_.out[2]), c = s_.channels;
        const std::int64_t first = std::min(s_.before[2], columns);
        const std::int64_t end = std::clamp(s_.before[2] + s_.in[2], first, columns);
        if (!image) return void(std::fill_n(to, columns * c, Bits{0}));
        std::fill_n(to, first * c, Bits{0});
        std::fill(to + end * c, to + columns * c, Bits{0});
        const std::int64_t plane = s_.in[0] * s_.in[1] * s_.in[2], at = row * s_.in[2];
        if (s_.in_rows)
            lay_pixels(image + at, plane, end - first, to + first * c);
        else
            std::memcpy(to + first * c, image + at * c, static_cast<std::size_t>((end - first) * c * kBytes));
    }

    void lay_pixels(const Bits* planes, std::int64_t plane, std::int64_t count, Bits* to) const {
        if (s_.channels == 1) return void(std::memcpy(to, planes, static_cast<std::size_t>(count * kBytes)));
        if (s_.channels == 2) return weave<2>(planes, plane, count, to);
        if (s_.channels == 3) return weave<3>(planes, plane, count, to);
        if (s_.channels == 4) return weave<4>(planes, plane, count, to);
        turn(to, planes, s_.channels, count, s_.channels, plane);
    }

    void turn(Bits* to, const Bits* from, std::int64_t rows, std::int64_t cols, std::int64_t to_step,
              std::int64_t from_step) const {
        a_.turn(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), rows, cols,
                to_step * kBytes, from_step * kBytes);
    }

    // The lines of a chunk for NB blocks of channels. The sums of two tiles are rounded while those of the
    // next two are computed.
    template <int NB>
    void multiply(const Chunk& c, std::int64_t block) {
        const std::int64_t rows = s_.rows, tiles = s_.tiles;
        for (std::int64_t z = 0; z < c.slices; ++z)
            for (std::int64_t y = 0; y < c.lines; ++y) {
                const Bits* const from = a_.copy + (z * s_.stride[0] * rows_ + y * s_.stride[1]) * s_.line;
                const std::int64_t line = ((c.image * s_.out[0] + c.z + z) * s_.out[1] + c.y + y) * s_.out[2];
                for (std::int64_t t = 0; t < tiles; t += 2) {
                    const std::int64_t x = t * rows, step = s_.stride[2] * s_.channels;
                    float* const to = sums_ == both_[0] ? both_[1] : both_[0];
                    if (t + 1 < tiles)
                        sum<2, NB>(from + x * step, block, to);
                    else
                        sum<1, NB>(from + x * step, block, to);
                    finish<NB>();
                    sums_ = to, line_ = line, first_ = x, block_ = block;
                    count_ = std::min(2 * rows, s_.out[2] - x);
                }
            }
        finish<NB>();
    }

    template <int Groups, int NB>
    void sum(const Bits* from, std::int64_t block, float* to) const {
        clear_sums<Groups, NB>();
        const std::int64_t step = s_.stride[2] * s_.channels * kBytes, pairs = s_.pairs;
        const std::int64_t next = s_.rows * s_.stride[2] * s_.channels;
        const Bits* w = a_.weights + block / 2 * s_.weights;
        for (std::int64_t i = 0; i < s_.kernel[0]; ++i)
            for (std::int64_t j = 0; j < s_.kernel[1]; ++j) {
                const Bits* at = from + (i * s_.dilation[0] * rows_ + j * s_.dilation[1]) * s_.line;
                for (std::int64_t p = 0; p < s_.parts; ++p, at += 2 * pairs, w += pairs * 2 * kLanes * NB)
                    add_products<Groups, NB>(at, at + next, step, w);
            }
        store_sums<Groups, NB>(to, s_.rows);
    }

    // Takes the sums that wait to the result.
    template <int NB>
    void finish() {
        if (!count_) return;
        const std::int64_t taken = s_.in_rows ? NB * kLanes : s_.outputs;
        Bits* const to =
            s_.in_rows ? a_.held + first_ * taken : a_.out + (line_ + first_) * taken + block_ * kLanes;
        const std::int64_t left = s_.in_rows ? taken : s_.outputs - block_ * kLanes;
        if (a_.after.apply) {  // of what is rounded, as by itself
            constexpr std::int64_t kAll = NB * kLanes;
            Bits rounded[2 * kTileRows * kAll];
            each_pixel<NB>([&](std::int64_t i, const __m512* y) { put<NB>(y, rounded + i * kAll); });
            a_.after(rounded, count_ * kAll);
            for (std::int64_t i = 0; i < count_; ++i)
                std::memcpy(to + i * taken, rounded + i * kAll,
                            static_cast<std::size_t>(std::min(left, kAll) * kBytes));
        } else if (left >= NB * kLanes) {
            each_pixel<NB>([&](std::int64_t i, const __m512* y) { put<NB>(y, to + i * taken); });
        } else {
            each_pixel<NB>([&](std::int64_t i, const __m512* y) { put_some<NB>(y, to + i * taken, left); });
        }
        if (s_.in_rows && first_ + count_ == s_.out[2]) turn_line(NB * kLanes);
        count_ = 0;
    }

    template <int NB>
    float* sums(std::int64_t pixel) const {
        return sums_ + pixel * NB * kLanes;
    }

    // Gives `take` what each pixel's sums are with the bias, clamped; NaN stays.
    template <int NB, class F>
    void each_pixel(F take) const {
        const float most = a_.clamp == Clamp::kRelu6 ? 6.f : std::numeric_limits<float>::infinity();
        const float least = a_.clamp == Clamp::kNone ? -std::numeric_limits<float>::infinity() : 0.f;
        const __m512 low = _mm512_set1_ps(least), high = _mm512_set1_ps(most);
        __m512 bias[NB], y[NB];
        for (int v = 0; v < NB; ++v) bias[v] = _mm512_loadu_ps(a_.bias + (block_ + v) * kLanes);
        for (std::int64_t i = 0; i < count_; ++i) {
            for (int v = 0; v < NB; ++v) {
                y[v] = _mm512_add_ps(_mm512_load_ps(sums<NB>(i) + v * kLanes), bias[v]);
                y[v] = _mm512_min_ps(high, _mm512_max_ps(low, y[v]));
            }
            take(i, y);
        }
    }

    template <int NB>
    static void put(const __m512* y, Bits* to) {
        if constexpr (NB == 2)
            _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y[1], y[0])));
        else
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                                reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(y[0])));
    }

    // At most `left` channels.
    template <int NB>
    static void put_some(const __m512* y, Bits* to, std::int64_t left) {
        if constexpr (NB == 2)
            _mm512_mask_storeu_epi16(to, first_of(left),
                                     reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y[1], y[0])));
        else
            _mm256_mask_storeu_epi16(to, static_cast<__mmask16>(first_of(left)),
                                     reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(y[0])));
    }

    // A line of pixels becomes one of each plane.
    void turn_line(std::int64_t channels) const {
        const std::int64_t size = s_.out[0] * s_.out[1] * s_.out[2], image = line_ / size;
        Bits* const to = a_.out + (image * s_.outputs + block_ * kLanes) * size + line_ % size;
        turn(to, a_.held, s_.out[2], std::min(channels, s_.outputs - block_ * kLanes), size, channels);
    }

    const TiledLines& a_;
    const TiledConv& s_;
    std::int64_t rows_ = 0;  // of a slice of the copy
    // what waits: sums of the results [first, first + count) of a line, which begins at pixel `line`
    float* sums_ = nullptr;
    std::int64_t line_ = 0, first_ = 0, count_ = 0, block_ = 0;
    alignas(64) float both_[2][2 * kTileRows * 2 * kLanes];
};

}  // namespace

void tiled_lines(const TiledLines& lines) { Lines(lines).run(); }

}  // namespace mge
