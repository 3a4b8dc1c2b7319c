// A pool of memory blocks for large arrays: the system maps fresh pages one fault at a time, which costs as
// much as writing them. Used and cached bytes together hardly exceed the recent peak of used bytes.
#include "runtime/memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "memory/pages.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

constexpr std::size_t kAlign = 4096, kLeast = 64u << 20;
constexpr int kWindow = 4096;  // "recent": this many allocations, or up to twice as many

class Blocks {
  public:
    void* take(std::size_t bytes) {
        {
            const std::lock_guard lock(mutex_);
            const auto found = free_.lower_bound(bytes);
            if (found != free_.end() && found->first <= bytes + bytes / 8) {
                const auto [size, p] = *found;
                kept_ -= size;
                free_.erase(found);
                use(p, size);
                return p;
            }
            shrink(bytes);  // cached blocks have other sizes: room for the new one
        }
        void* p = fresh(bytes);
        const std::lock_guard lock(mutex_);
        use(p, bytes);
        return p;
    }

    // Cached for the next array: a loop with the same sizes gets no fresh page.
    void give(void* p) {
        const std::lock_guard lock(mutex_);
        const auto found = sizes_.find(p);
        const std::size_t bytes = found->second;
        sizes_.erase(found);
        live_ -= bytes;
        free_.emplace(bytes, p);
        kept_ += bytes;
        shrink(0);
    }

    std::size_t kept() {
        const std::lock_guard lock(mutex_);
        return kept_;
    }

    std::size_t clear() {
        const std::lock_guard lock(mutex_);
        const std::size_t freed = kept_;
        for (auto& [bytes, p] : free_) drop(p, bytes);
        free_.clear();
        kept_ = 0;
        return freed;
    }

    std::size_t live() {
        const std::lock_guard lock(mutex_);
        return live_;
    }

    // Peak bytes used, and used or cached, since the last reset.
    std::pair<std::size_t, std::size_t> peaks() {
        const std::lock_guard lock(mutex_);
        return {peak_live_, peak_held_};
    }

    void reset_peaks() {
        const std::lock_guard lock(mutex_);
        peak_live_ = live_;
        peak_held_ = live_ + kept_;
    }

  private:
    void use(void* p, std::size_t bytes) {
        sizes_[p] = bytes;
        live_ += bytes;
        if (++taken_ % kWindow == 0) {
            before_ = most_;
            most_ = 0;
        }
        most_ = std::max(most_, live_);
        peak_live_ = std::max(peak_live_, live_);
        peak_held_ = std::max(peak_held_, live_ + kept_);
    }

    // Frees cached blocks until `more` bytes fit below the limit.
    void shrink(std::size_t more) {
        const std::size_t lately = std::max(before_, most_);
        const std::size_t limit = std::max(lately + lately / 8, live_ + kLeast);  // an eighth: sizes differ
        while (kept_ > 0 && live_ + kept_ + more > limit) {
            const auto largest = std::prev(free_.end());
            kept_ -= largest->first;
            drop(largest->second, largest->first);
            free_.erase(largest);
        }
    }

    // Straight from the system and back: a general allocator would cache the blocks that the pool frees.
    static void* fresh(std::size_t bytes) { return map_pages(bytes); }
    static void drop(void* p, std::size_t bytes) { unmap_pages(p, bytes); }

    std::mutex mutex_;
    std::multimap<std::size_t, void*> free_;
    std::map<void*, std::size_t> sizes_;
    std::size_t live_ = 0, kept_ = 0;
    std::size_t peak_live_ = 0, peak_held_ = 0;
    std::size_t most_ = 0,
                before_ = 0;  // largest live_ in this window of allocations, and in the one before
    std::size_t taken_ = 0;
};

// Never destroyed: arrays may outlive the module.
Blocks& blocks() {
    static auto* all = new Blocks;
    return *all;
}

}  // namespace

void* take_block(std::size_t bytes) { return blocks().take((bytes + kAlign - 1) / kAlign * kAlign); }
void give_block(void* block) noexcept { blocks().give(block); }

namespace {

class Block {
  public:
    explicit Block(std::size_t bytes) : bytes_(bytes), data_(take_block(bytes)) {}
    ~Block() { give_block(data_); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    static int buffer(PyObject* self, Py_buffer* view, int flags) {
        const Block* b = nb::inst_ptr<Block>(self);
        return PyBuffer_FillInfo(view, self, b->data_, static_cast<Py_ssize_t>(b->bytes_), 0, flags);
    }

  private:
    std::size_t bytes_;
    void* data_;
};

PyType_Slot block_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(Block::buffer)}, {0, nullptr}};

}  // namespace

void bind_memory(nb::module_& m) {
    nb::class_<Block>(m, "Block", nb::type_slots(block_slots)).def(nb::init<std::size_t>(), nb::arg("bytes"));
    m.def("kept_bytes", [] { return blocks().kept(); });
    m.def("live_bytes", [] { return blocks().live(); });
    m.def("clear_kept", [] { return blocks().clear(); });
    m.def("peak_bytes", [] { return blocks().peaks(); });
    m.def("reset_peak_bytes", [] { blocks().reset_peaks(); });
}

}  // namespace mge
