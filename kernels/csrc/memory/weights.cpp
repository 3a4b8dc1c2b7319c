#include "memory/weights.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "memory/pages.h"

namespace mge {
namespace {

constexpr std::size_t kLine = 64, kPage = 4096;
constexpr std::size_t kChunk = std::size_t{32}
                               << 20;           // of addresses: a page that nobody wrote takes no memory
constexpr std::size_t kAlone = kChunk / 4;      // bytes of a piece that has pages of its own
constexpr std::size_t kReady = 2 * kLargePage;  // of the first chunk, that stay when nothing is in them

std::size_t down(std::size_t bytes, std::size_t unit) { return bytes / unit * unit; }
std::size_t up(std::size_t bytes, std::size_t unit) { return down(bytes + unit - 1, unit); }

// Chunks, each with the lengths of its gaps by their offsets: a piece lies in the first gap that is long
// enough.
class Weights {
  public:
    void* take(std::size_t bytes) {
        const std::size_t size = up(std::max<std::size_t>(bytes, 1), kLine);
        const std::lock_guard lock(mutex_);
        if (size >= kAlone) {
            void* const p = map_pages(up(size, kPage));
            pieces_[p] = {0, 0, up(size, kPage)};
            return p;
        }
        for (std::size_t i = 0;; ++i) {
            if (i == chunks_.size())
                chunks_.push_back({static_cast<std::byte*>(map_pages(kChunk)), {{0, kChunk}}});
            Chunk& chunk = chunks_[i];
            const auto gap = std::find_if(chunk.gaps.begin(), chunk.gaps.end(),
                                          [=](const auto& g) { return g.second >= size; });
            if (gap == chunk.gaps.end()) continue;
            const auto [at, room] = *gap;
            chunk.gaps.erase(gap);
            if (room > size) chunk.gaps[at + size] = room - size;
            pieces_[chunk.base + at] = {i, at, size};
            return chunk.base + at;
        }
    }

    void give(void* p) noexcept {
        const std::lock_guard lock(mutex_);
        const auto found = pieces_.find(p);
        const auto [index, at, size] = found->second;
        pieces_.erase(found);
        if (size >= kAlone) return unmap_pages(p, size);
        auto& [base, gaps] = chunks_[index];
        auto gap = gaps.emplace(at, size).first;
        const auto next = std::next(gap);
        if (next != gaps.end() && at + size == next->first) {
            gap->second += next->second;
            gaps.erase(next);
        }
        if (gap != gaps.begin()) {
            const auto before = std::prev(gap);
            if (before->first + before->second == at) {
                before->second += gap->second;
                gaps.erase(gap);
                gap = before;
            }
        }
        // the large pages that the piece shared with no other one
        std::size_t first = std::max(up(gap->first, kLargePage), down(at, kLargePage));
        const std::size_t end =
            std::min(down(gap->first + gap->second, kLargePage), up(at + size, kLargePage));
        if (index == 0) first = std::max(first, kReady);
        if (first < end) forget_pages(base + first, end - first);
    }

  private:
    struct Chunk {
        std::byte* base;
        std::map<std::size_t, std::size_t> gaps;
    };
    struct Piece {
        std::size_t chunk, at, size;
    };

    std::mutex mutex_;
    std::vector<Chunk> chunks_;
    std::map<void*, Piece> pieces_;
};

// Never destroyed: steps may outlive the module.
Weights& weights() {
    static auto* all = new Weights;
    return *all;
}

}  // namespace

void* take_weights(std::size_t bytes) { return weights().take(bytes); }
void give_weights(void* p) noexcept {
    if (p) weights().give(p);
}

}  // namespace mge
