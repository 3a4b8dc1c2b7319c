// Matrices transposed between arrays with strides, for elements of 1, 2, 4 and 8 bytes.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(MGE_X86)
#include <emmintrin.h>
#endif

namespace mge {

template <class T>
inline constexpr std::int64_t kTile = 16 / static_cast<std::int64_t>(sizeof(T));

template <class T>
T element(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
}

#if defined(MGE_X86)
// Neighbours of both: the first halves, or the second ones.
template <class T>
__m128i woven(__m128i a, __m128i b, bool second) {
    if constexpr (sizeof(T) == 1) return second ? _mm_unpackhi_epi8(a, b) : _mm_unpacklo_epi8(a, b);
    if constexpr (sizeof(T) == 2) return second ? _mm_unpackhi_epi16(a, b) : _mm_unpacklo_epi16(a, b);
    if constexpr (sizeof(T) == 4) return second ? _mm_unpackhi_epi32(a, b) : _mm_unpacklo_epi32(a, b);
    if constexpr (sizeof(T) == 8) return second ? _mm_unpackhi_epi64(a, b) : _mm_unpacklo_epi64(a, b);
}

// A square of kTile elements a side, whose rows are neighbours in both. Weaving row i with row i + half, so
// that neighbours come to lie together, turns the square after as many rounds as halvings lead to one row.
template <class T>
void turn_tile(std::byte* to, const std::byte* from, std::int64_t to_step, std::int64_t from_step) {
    constexpr std::int64_t n = kTile<T>, half = n / 2;
    __m128i a[n], b[n];
    for (std::int64_t r = 0; r < n; ++r)
        a[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + r * from_step));
    for (std::int64_t left = n; left > 1; left /= 2) {
        for (std::int64_t r = 0; r < half; ++r) {
            b[2 * r] = woven<T>(a[r], a[r + half], false);
            b[2 * r + 1] = woven<T>(a[r], a[r + half], true);
        }
        std::copy_n(b, n, a);
    }
    for (std::int64_t c = 0; c < n; ++c) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + c * to_step), a[c]);
}
#else
template <class T>
void turn_tile(std::byte* to, const std::byte* from, std::int64_t to_step, std::int64_t from_step) {
    constexpr std::int64_t size = sizeof(T);
    for (std::int64_t r = 0; r < kTile<T>; ++r)
        for (std::int64_t c = 0; c < kTile<T>; ++c)
            std::memcpy(to + c * to_step + r * size, from + r * from_step + c * size, sizeof(T));
}
#endif

// A matrix with few rows, each element on its own.
template <class T, int R>
void turn_few(std::byte* to, const std::byte* from, std::int64_t cols, std::int64_t to_step,
              std::int64_t from_step) {
    constexpr std::int64_t size = sizeof(T);
    for (std::int64_t c = 0; c < cols; ++c)
        for (int r = 0; r < R; ++r) {
            const T value = element<T>(from + r * from_step + c * size);
            std::memcpy(to + c * to_step + r * size, &value, sizeof(T));
        }
}

#if defined(MGE_X86)
// A matrix of at most `Rows` rows, a power of 2 and no more than a tile has, and at least a tile's columns,
// to columns that follow each other without gaps. Rows that are missing are zeros, which the next column
// overwrites.
template <class T, int Rows>
void turn_woven(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t cols,
                std::int64_t from_step) {
    constexpr std::int64_t size = sizeof(T), n = kTile<T>, padded = Rows * size;
    const std::int64_t column = rows * size;
    for (std::int64_t i = 0; i < cols; i += n) {
        const std::int64_t c = std::min(i, cols - n);
        __m128i a[Rows] = {}, b[Rows];
        for (std::int64_t r = 0; r < rows; ++r)
            a[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + r * from_step + c * size));
        for (int left = Rows; left > 1; left /= 2) {
            for (int r = 0; r < Rows / 2; ++r) {
                b[2 * r] = woven<T>(a[r], a[r + Rows / 2], false);
                b[2 * r + 1] = woven<T>(a[r], a[r + Rows / 2], true);
            }
            std::copy_n(b, Rows, a);
        }
        std::byte* const out = to + c * column;
        if (rows == Rows) {
            std::memcpy(out, a, sizeof a);
            continue;
        }
        const auto* const columns = reinterpret_cast<const std::byte*>(a);
        const std::int64_t room =
            (cols - c) * column - padded;  // behind the first column, less what is written
        for (std::int64_t k = 0; k < n; ++k) {
            if (k * column <= room)
                std::memcpy(out + k * column, columns + k * padded, static_cast<std::size_t>(padded));
            else
                for (std::int64_t at = 0; at < column; ++at) out[k * column + at] = columns[k * padded + at];
        }
    }
}

// The same for any number of rows that is smaller than a tile's.
template <class T, int Rows = 2>
void turn_flat(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t cols,
               std::int64_t from_step) {
    if constexpr (Rows < kTile<T>) {
        if (rows > Rows) return turn_flat<T, 2 * Rows>(to, from, rows, cols, from_step);
    }
    turn_woven<T, Rows>(to, from, rows, cols, from_step);
}
#else
template <class T>
void turn_flat(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t cols,
               std::int64_t from_step) {
    for (std::int64_t r = 0; r < rows; ++r)
        turn_few<T, 1>(to + r * sizeof(T), from + r * from_step, cols, rows * sizeof(T), from_step);
}
#endif

// The first rows of a matrix with fewer columns than a tile, whose rows follow each other without gaps;
// returns how many. A row is read as a whole vector, with the rows behind it.
template <class T>
std::int64_t turn_narrow(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t cols,
                         std::int64_t to_step) {
    constexpr std::int64_t size = sizeof(T), n = kTile<T>, vector = n * size;
    const std::int64_t row = cols * size;
    std::byte square[n * vector];
    std::int64_t r = 0;
    for (; r + n <= rows && (r + n - 1) * row + vector <= rows * row; r += n) {
        turn_tile<T>(square, from + r * row, vector, row);
        for (std::int64_t c = 0; c < cols; ++c)
            std::memcpy(to + c * to_step + r * size, square + c * vector, vector);
    }
    return r;
}

// to[c * to_step + r] = from[r * from_step + c]; steps in bytes. The two do not overlap.
template <class T>
void turn(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t cols, std::int64_t to_step,
          std::int64_t from_step) {
    constexpr std::int64_t size = sizeof(T), n = kTile<T>;
    if (rows < n || cols < n) {
        const std::int64_t few = std::min(rows, cols);
        if (rows > 1 && rows < n && cols >= n && to_step == rows * size)
            return turn_flat<T>(to, from, rows, cols, from_step);
        if (few > 1 && 4 * few >= n && cols < n && from_step == cols * size) {
            const std::int64_t done = turn_narrow<T>(to, from, rows, cols, to_step);
            to += done * size, from += done * from_step, rows -= done;
        }
        for (; rows >= 4; rows -= 4, to += 4 * size, from += 4 * from_step)
            turn_few<T, 4>(to, from, cols, to_step, from_step);
        if (rows == 3) turn_few<T, 3>(to, from, cols, to_step, from_step);
        if (rows == 2) turn_few<T, 2>(to, from, cols, to_step, from_step);
        if (rows == 1) turn_few<T, 1>(to, from, cols, to_step, from_step);
        return;
    }
    // Blocks take whole lines of the cache where rows lie further apart, and of those at most 8, because
    // lines that are a power of two apart share few places.
    constexpr std::int64_t kLine = 4 * n, kFew = std::max<std::int64_t>(n, 8);
    const bool far = from_step > to_step;
    const std::int64_t high = far ? kFew : kLine, wide = far ? kLine : kFew;
    // the last tile of a side begins where it ends with the matrix, and repeats what the one before wrote
    const auto block = [&](std::int64_t top, std::int64_t left) {
        for (std::int64_t i = top; i < std::min(rows, top + high); i += n)
            for (std::int64_t j = left; j < std::min(cols, left + wide); j += n) {
                const std::int64_t r = std::min(i, rows - n), c = std::min(j, cols - n);
                turn_tile<T>(to + c * to_step + r * size, from + r * from_step + c * size, to_step,
                             from_step);
            }
    };
    if (far) {
        for (std::int64_t c = 0; c < cols; c += wide)
            for (std::int64_t r = 0; r < rows; r += high) block(r, c);
    } else {
        for (std::int64_t r = 0; r < rows; r += high)
            for (std::int64_t c = 0; c < cols; c += wide) block(r, c);
    }
}

}  // namespace mge
