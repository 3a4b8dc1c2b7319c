// Memory for packed weights. Those of all layers lie together on large pages, however small each of them is.
#pragma once
#include <cstddef>
#include <memory>
#include <type_traits>

namespace mge {

void* take_weights(std::size_t bytes);  // aligned to lines of the cache; throws std::bad_alloc
void give_weights(void* p) noexcept;

struct GiveWeights {
    void operator()(void* p) const noexcept { give_weights(p); }
};

// For containers.
template <typename T>
struct WeightAllocator {
    static_assert(std::is_trivially_copyable_v<T>);
    using value_type = T;

    WeightAllocator() = default;
    template <typename U>
    WeightAllocator(const WeightAllocator<U>&) noexcept {}

    T* allocate(std::size_t count) { return static_cast<T*>(take_weights(count * sizeof(T))); }
    void deallocate(T* p, std::size_t) noexcept { give_weights(p); }
    bool operator==(const WeightAllocator&) const noexcept { return true; }
};

}  // namespace mge
