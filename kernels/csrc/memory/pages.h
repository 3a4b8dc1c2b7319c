// Memory straight from the system, on large pages where it has them: a processor remembers where some
// thousands of pages lie, and megabytes of weights or results on small ones wait for the tables of the
// others.
#pragma once
#include <cstddef>

namespace mge {

inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

// Zeros, aligned to pages, and to large ones if there is one's length; throws std::bad_alloc.
void* map_pages(std::size_t bytes);
void unmap_pages(void* from, std::size_t bytes) noexcept;

// Returns the memory of whole large pages to the system; they read as zeros again.
void forget_pages(void* from, std::size_t bytes) noexcept;

}  // namespace mge
