#include "memory/pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace mge {
namespace {

std::byte* map(std::size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(p);
}

}  // namespace

void* map_pages(std::size_t bytes) {
    if (bytes < kLargePage) return map(bytes);
    std::byte* const all = map(bytes + kLargePage);
    const std::size_t before = -reinterpret_cast<std::uintptr_t>(all) % kLargePage;
    std::byte* const p = all + before;
    if (before) munmap(all, before);
    if (before < kLargePage) munmap(p + bytes, kLargePage - before);
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE);  // a system without large pages refuses
#endif
    return p;
}

void unmap_pages(void* from, std::size_t bytes) noexcept { munmap(from, bytes); }

void forget_pages(void* from, std::size_t bytes) noexcept { madvise(from, bytes, MADV_DONTNEED); }

}  // namespace mge
