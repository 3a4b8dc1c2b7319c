// Blocks of memory for large arrays that come back to a pool: the system gives fresh pages one fault at a
// time, which costs as much as writing them.
#include "core/memory.h"

#include <nanobind/nanobind.h>
#include <sys/mman.h>

#include <map>
#include <mutex>
#include <new>

#include "core/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

constexpr std::size_t kAlign = 4096, kLeast = 64u << 20;

class Blocks {
  public:
    void* take(std::size_t bytes) {
        {
            const std::lock_guard lock(mutex_);
            const auto found = free_.lower_bound(bytes);
            if (found != free_.end() && found->first <= bytes + bytes / 8) {
                void* p = found->second;
                kept_ -= found->first;
                live_ += found->first;
                sizes_[p] = found->first;
                free_.erase(found);
                return p;
            }
        }
        void* p = fresh(bytes);
        const std::lock_guard lock(mutex_);
        sizes_[p] = bytes;
        live_ += bytes;
        return p;
    }

    // Kept for the next array, as long as not much more is kept than is in use.
    void give(void* p) {
        const std::lock_guard lock(mutex_);
        const auto found = sizes_.find(p);
        const std::size_t bytes = found->second;
        sizes_.erase(found);
        live_ -= bytes;
        free_.emplace(bytes, p);
        kept_ += bytes;
        while (kept_ > kLeast + live_ / 16) {
            const auto largest = std::prev(free_.end());
            kept_ -= largest->first;
            drop(largest->second, largest->first);
            free_.erase(largest);
        }
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

  private:
    // From the system and back to it at once: a general allocator would keep what the pool gives up.
    static void* fresh(std::size_t bytes) {
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        return p;
    }
    static void drop(void* p, std::size_t bytes) { munmap(p, bytes); }

    std::mutex mutex_;
    std::multimap<std::size_t, void*> free_;
    std::map<void*, std::size_t> sizes_;
    std::size_t live_ = 0, kept_ = 0;
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
}

}  // namespace mge
