// Blocks of memory from a pool; aligned to pages.
#pragma once
#include <cstddef>

namespace mge {

void* take_block(std::size_t bytes);  // throws std::bad_alloc
void give_block(void* block) noexcept;

}  // namespace mge
