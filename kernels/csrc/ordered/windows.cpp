// Convolutions whose sums have one order: for each place of the result, its taps one after the other, and the
// channels of a tap one after the other. Taps outside the input add nothing; the bias is added last.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "common/step_capsule.h"
#include "ordered/kernels.h"
#include "ordered/panels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Index = std::array<std::int64_t, 3>;

constexpr std::int64_t kDepth = 256;         // products of a sum that are added at once
constexpr std::int64_t kSums = 1 << 15;      // sums of a task: 128 KB
constexpr std::int64_t kShortRun = 32;       // channels of a tap below which they are copied side by side
constexpr std::int64_t kGathered = 1 << 16;  // numbers that a task of single channels copies

// Sizes of a convolution over three axes.
struct WindowShape {
    std::int64_t batch, channels, outputs, groups;
    Index in, out, in_step, out_step;
    bool planes;  // values lie in planes, not channels-last

    std::int64_t taken() const { return channels / groups; }  // channels that a sum reads
    std::int64_t given() const { return outputs / groups; }
    bool single() const { return taken() == 1 && given() == 1; }
    bool direct() const { return !planes && taken() >= kShortRun; }
};

// Products of a sum that are added at once: from tap `tap` and its channel `channel` on.
struct Block {
    std::int64_t tap, channel, depth;
};

// Places of the result that read the same taps: out[axis] = origin[axis] + i * out_step[axis], i <
// counts[axis]. A tap reads in[axis] = i * in_step[axis] + its offset.
struct Phase {
    Index origin, counts;
    std::vector<Index> offsets;
    std::vector<std::int64_t> distances;  // of the taps, in elements of the input
    Index least, most;                    // of the offsets
    std::vector<Block> blocks;
    Numbers weights;  // [block][group][panel][depth][kPanel]; of single channels [tap][channel]

    std::int64_t places() const { return counts[0] * counts[1] * counts[2]; }
};

struct Task {
    std::int64_t phase, first, count;  // places of all images, one after the other
};

struct Place {
    Index in;            // what a tap of offset 0 reads
    std::int64_t first;  // its element
    std::int64_t image, out;
    bool inside;  // every tap reads the input
};

std::int64_t volume(const Index& i) { return i[0] * i[1] * i[2]; }

std::vector<Block> blocks_of(const WindowShape& s, std::int64_t taps) {
    std::vector<Block> out;
    const std::int64_t total = taps * s.taken(), run = s.direct() ? s.taken() : total;
    for (std::int64_t start = 0; start < total; start += run)
        for (std::int64_t k = start; k < start + run; k += kDepth)
            out.push_back({k / s.taken(), k % s.taken(), std::min(kDepth, start + run - k)});
    return out;
}

class OrderedWindows final : public Step {
  public:
    OrderedWindows(const WindowShape& shape, std::vector<Phase> phases, Numbers bias, int threads)
        : s_(shape),
          phases_(std::move(phases)),
          bias_(std::move(bias)),
          zeros_(static_cast<std::size_t>(shape.channels)) {
        for (const Phase& p : phases_) taps_ = std::max(taps_, static_cast<std::int64_t>(p.offsets.size()));
        const std::int64_t most = s_.single() ? kGathered / std::max<std::int64_t>(1, taps_ * s_.channels)
                                              : kSums / s_.outputs / 24 * 24;
        rows_ = std::clamp<std::int64_t>(most, s_.single() ? 4 : 24, 96);
        for (std::size_t p = 0; p < phases_.size(); ++p)
            for (std::int64_t total = s_.batch * phases_[p].places(), at = 0; at < total; at += rows_)
                tasks_.push_back({static_cast<std::int64_t>(p), at, std::min(rows_, total - at)});
        parts_ =
            static_cast<int>(std::clamp<std::size_t>(static_cast<std::size_t>(threads), 1, tasks_.size()));
    }

    int parts() const override { return parts_; }

    std::size_t scratch_bytes() const override {
        const std::int64_t gathered = s_.single()   ? (s_.planes ? rows_ * taps_ * s_.channels : 0)
                                      : s_.direct() ? 0
                                                    : rows_ * kDepth;
        const std::int64_t pointers = rows_ * (s_.single() ? taps_ : 1);
        const std::int64_t places = s_.single() ? 1 : std::min(taps_, kDepth + 1);
        return static_cast<std::size_t>(rows_) * sizeof(Place) +
               static_cast<std::size_t>(rows_ * places) * sizeof(std::int64_t) +
               static_cast<std::size_t>(pointers) * sizeof(float*) +
               static_cast<std::size_t>(rows_ * s_.outputs + gathered) * sizeof(float);
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const auto count = static_cast<std::int64_t>(tasks_.size());
        const auto* x = reinterpret_cast<const float*>(buffers[0]);
        auto* out = reinterpret_cast<float*>(buffers[1]);
        for (std::int64_t t = count * part / parts_; t < count * (part + 1) / parts_; ++t)
            run_task(tasks_[static_cast<std::size_t>(t)], x, out, scratch);
    }

  private:
    // Scratch memory of a task.
    struct Room {
        Place* places;
        std::int64_t* offsets;  // [tap][place]: the first element that a tap reads, below 0 outside the input
        const float** pointers;
        float *sums, *gathered;
    };

    Room room_of(std::byte* scratch) const {
        Room room{};
        room.places = reinterpret_cast<Place*>(scratch);
        room.offsets = reinterpret_cast<std::int64_t*>(room.places + rows_);
        room.pointers = reinterpret_cast<const float**>(
            room.offsets + rows_ * (s_.single() ? 1 : std::min(taps_, kDepth + 1)));
        room.sums = reinterpret_cast<float*>(room.pointers + rows_ * (s_.single() ? taps_ : 1));
        room.gathered = room.sums + rows_ * s_.outputs;
        return room;
    }

    void run_task(const Task& task, const float* x, float* out, std::byte* scratch) const noexcept {
        const Phase& phase = phases_[static_cast<std::size_t>(task.phase)];
        const Room room = room_of(scratch);
        for (std::int64_t r = 0; r < task.count; ++r) room.places[r] = place(phase, task.first + r);
        std::fill_n(room.sums, task.count * s_.outputs, 0.f);
        if (s_.single())
            add_channels(phase, room, task.count, x);
        else
            for (std::int64_t b = 0, at = 0; b < static_cast<std::int64_t>(phase.blocks.size()); ++b) {
                const Block& block = phase.blocks[static_cast<std::size_t>(b)];
                add_block(phase, block, phase.weights.data() + at, room, task.count, x);
                at += block.depth * s_.groups * padded_columns(s_.given());
            }
        finish(room, task.count, out);
    }

    Place place(const Phase& phase, std::int64_t number) const {
        Place p{};
        const std::int64_t each = phase.places();
        p.image = number / each;
        p.inside = true;
        std::int64_t rest = number % each, at = 0;
        Index i{};
        for (std::size_t a = 3; a-- > 0; rest /= phase.counts[a]) i[a] = rest % phase.counts[a];
        for (std::size_t a = 0; a < 3; ++a) {
            p.in[a] = i[a] * s_.in_step[a];
            p.out = p.out * s_.out[a] + phase.origin[a] + i[a] * s_.out_step[a];
            p.inside &= p.in[a] + phase.least[a] >= 0 && p.in[a] + phase.most[a] < s_.in[a];
            at = at * s_.in[a] + p.in[a];
        }
        p.first = s_.planes ? p.image * s_.channels * volume(s_.in) + at
                            : (p.image * volume(s_.in) + at) * s_.channels;
        return p;
    }

    // The first element that a tap reads at a place; below 0 outside the input.
    std::int64_t offset(const Phase& phase, const Place& p, std::int64_t tap) const {
        const auto t = static_cast<std::size_t>(tap);
        for (std::size_t a = 0; !p.inside && a < 3; ++a) {
            const std::int64_t i = p.in[a] + phase.offsets[t][a];
            if (i < 0 || i >= s_.in[a]) return -1;
        }
        return p.first + phase.distances[t];
    }

    void add_block(const Phase& phase, const Block& block, const float* weights, const Room& room,
                   std::int64_t rows, const float* x) const {
        const std::int64_t taken = s_.taken(), last = block.tap + (block.channel + block.depth - 1) / taken;
        for (std::int64_t t = block.tap; t <= last; ++t)
            for (std::int64_t r = 0; r < rows; ++r)
                room.offsets[(t - block.tap) * rows_ + r] = offset(phase, room.places[r], t);
        const std::int64_t each = block.depth * padded_columns(s_.given());
        for (std::int64_t g = 0; g < s_.groups; ++g) {
            const float* from = x + g * taken * (s_.planes ? volume(s_.in) : 1);
            if (s_.direct())
                for (std::int64_t r = 0; r < rows; ++r)
                    room.pointers[r] =
                        room.offsets[r] < 0 ? zeros_.data() : from + room.offsets[r] + block.channel;
            else
                gather(block, from, room, rows);
            active_ordered_kernels().multiply(room.pointers, rows, block.depth, weights + g * each,
                                              room.sums + g * s_.given(), s_.outputs, s_.given());
        }
    }

    // The numbers that each place reads in a block, side by side. Taps that lie side by side are copied at
    // once.
    void gather(const Block& block, const float* from, const Room& room, std::int64_t rows) const {
        const std::int64_t taken = s_.taken(), apart = s_.planes ? volume(s_.in) : 1;
        for (std::int64_t r = 0; r < rows; ++r) {
            float* to = room.gathered + r * block.depth;
            room.pointers[r] = to;
            for (std::int64_t k = 0, t = 0, c = block.channel; k < block.depth; c = 0) {
                const std::int64_t at = room.offsets[t * rows_ + r];
                std::int64_t run = std::min(taken - c, block.depth - k);
                for (++t; k + run < block.depth && follows(room.offsets[t * rows_ + r], at, c + run); ++t)
                    run += std::min(taken, block.depth - k - run);
                const float* source = from + (at < 0 ? 0 : at + c * apart);
                if (at < 0)
                    std::fill_n(to + k, run, 0.f);
                else if (apart == 1)
                    std::copy_n(source, run, to + k);
                else
                    for (std::int64_t i = 0; i < run; ++i) to[k + i] = source[i * apart];
                k += run;
            }
        }
    }

    // Whether a tap at `next` goes on where `run` numbers from `at` on end.
    bool follows(std::int64_t next, std::int64_t at, std::int64_t run) const {
        return !s_.planes && s_.groups == 1 && (at < 0 ? next < 0 : next == at + run);
    }

    void add_channels(const Phase& phase, const Room& room, std::int64_t rows, const float* x) const {
        const auto taps = static_cast<std::int64_t>(phase.offsets.size());
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t t = 0; t < taps; ++t) {
                const std::int64_t at = offset(phase, room.places[r], t);
                const float*& pointer = room.pointers[r * taps + t];
                pointer = at < 0 ? zeros_.data() : x + at;
                if (at < 0 || !s_.planes) continue;
                float* to = room.gathered + (r * taps + t) * s_.channels;
                for (std::int64_t c = 0; c < s_.channels; ++c) to[c] = x[at + c * volume(s_.in)];
                pointer = to;
            }
        active_ordered_kernels().multiply_channels(room.pointers, rows, taps, phase.weights.data(), room.sums,
                                                   s_.channels);
    }

    void finish(const Room& room, std::int64_t rows, float* out) const {
        const float* bias = bias_.empty() ? nullptr : bias_.data();
        const std::int64_t n = s_.outputs, size = volume(s_.out);
        for (std::int64_t r = 0; r < rows; ++r) {
            const Place& p = room.places[r];
            const float* sums = room.sums + r * n;
            float* to = out + (s_.planes ? p.image * n * size + p.out : (p.image * size + p.out) * n);
            const std::int64_t apart = s_.planes ? size : 1;
            if (apart > 1)
                for (std::int64_t o = 0; o < n; ++o) to[o * apart] = bias ? sums[o] + bias[o] : sums[o];
            else if (bias)
                for (std::int64_t o = 0; o < n; ++o) to[o] = sums[o] + bias[o];
            else
                std::copy_n(sums, n, to);
        }
    }

    WindowShape s_;
    std::vector<Phase> phases_;
    Numbers bias_, zeros_;
    std::vector<Task> tasks_;
    std::int64_t taps_ = 1, rows_ = 0;
    int parts_ = 1;
};

Numbers weights_of(const WindowShape& s, const Phase& phase, const float* w) {
    const auto taps = static_cast<std::int64_t>(phase.offsets.size());
    if (s.single()) return {w, w + taps * s.channels};
    const std::int64_t each = padded_columns(s.given()), depth = taps * s.taken();
    Numbers out(static_cast<std::size_t>(depth * s.groups * each));
    float* to = out.data();
    for (const Block& b : phase.blocks)
        for (std::int64_t g = 0; g < s.groups; ++g, to += b.depth * each)
            pack_columns(w + (b.tap * s.taken() + b.channel) * s.outputs + g * s.given(), s.outputs, 1,
                         b.depth, s.given(), to);
    return out;
}

// What follows from the offsets of a phase's taps.
void measure(const WindowShape& s, Phase& phase) {
    for (const Index& tap : phase.offsets) {
        for (std::size_t a = 0; a < 3; ++a) {
            phase.least[a] = std::min(phase.least[a], tap[a]);
            phase.most[a] = std::max(phase.most[a], tap[a]);
        }
        const std::int64_t elements = (tap[0] * s.in[1] + tap[1]) * s.in[2] + tap[2];
        phase.distances.push_back(elements * (s.planes ? 1 : s.channels));
    }
}

// Origin and counts of the places, offsets of the taps, and weights [tap, channel, output].
using PhaseOf = std::tuple<Index, Index, std::vector<Index>, F32>;

// sizes: batch, channels, outputs, groups.
nb::object ordered_windows_step(const std::array<std::int64_t, 4>& sizes, const Index& in, const Index& out,
                                const Index& in_step, const Index& out_step,
                                const std::vector<PhaseOf>& phases, const std::optional<F32>& bias,
                                bool planes, int threads) {
    const auto [batch, channels, outputs, groups] = sizes;
    if (std::min({batch, channels, outputs, groups, volume(in), volume(out)}) < 1 || channels % groups ||
        outputs % groups || (bias && static_cast<std::int64_t>(bias->size()) != outputs))
        throw nb::value_error(
            "ordered_windows_step: sizes of at least 1, channels in groups, a bias for each output expected");
    const WindowShape shape{batch, channels, outputs, groups, in, out, in_step, out_step, planes};
    std::vector<Phase> own;
    for (const auto& [origin, counts, offsets, w] : phases) {
        Phase phase{origin, counts, offsets, {}, {}, {}, {}, {}};
        measure(shape, phase);
        const auto taps = static_cast<std::int64_t>(offsets.size());
        if (static_cast<std::int64_t>(w.size()) != taps * shape.taken() * outputs)
            throw nb::value_error(
                "ordered_windows_step: weights [tap, channel, output] of each phase expected");
        if (!shape.single()) phase.blocks = blocks_of(shape, taps);
        phase.weights = weights_of(shape, phase, w.data());
        own.push_back(std::move(phase));
    }
    Numbers added;
    if (bias) added.assign(bias->data(), bias->data() + outputs);
    return capsule(std::make_unique<OrderedWindows>(shape, std::move(own), std::move(added), threads));
}

}  // namespace

void bind_ordered_windows(nb::module_& m) {
    using nb::arg;
    m.def("ordered_windows_step", &ordered_windows_step, arg("sizes"), arg("in_size"), arg("out_size"),
          arg("in_step"), arg("out_step"), arg("phases"), arg("bias").none(), arg("planes"), arg("threads"));
}

}  // namespace mge
