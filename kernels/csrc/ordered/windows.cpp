// Convolutions whose sums have one order: for each place of the result, its taps one after the other, and the
// channels of a tap one after the other. Taps outside the input read zeros; the bias is added last.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <limits>
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

constexpr std::int64_t kDepth = 256;     // products of a sum that are added at once
constexpr std::int64_t kSums = 1 << 15;  // sums that are added to at once: 128 KB
constexpr std::int64_t kPlaces = 96;     // places of the result that are computed at once, at most
constexpr std::int64_t kFewPlaces = 24;  // at least, however many sums these are
constexpr std::int64_t kBand = 1 << 14;  // numbers of a part of the input that is copied: 64 KB

// Sizes of a convolution over three axes.
struct WindowShape {
    std::int64_t batch, channels, outputs, groups;
    Index in, out, in_step, out_step;
    bool planes;  // values lie in planes, not channels-last

    std::int64_t taken() const { return channels / groups; }  // channels that a sum reads
    std::int64_t given() const { return outputs / groups; }
    bool single() const { return taken() == 1 && given() == 1; }
};

// Places of the result that read the same taps: out[axis] = origin[axis] + i * out_step[axis], i <
// counts[axis]. A tap reads in[axis] = i * in_step[axis] + its offset.
struct Phase {
    Index origin, counts;
    std::vector<Index> offsets;
    std::vector<std::int64_t>
        reach;        // where each product of a sum reads, from the first element that one may read
    Numbers weights;  // [block][group][panel][depth][kPanel]; of single channels [tap][channel]
};

// Lines of the result of a phase: places that differ in the last axis alone.
struct Task {
    const Phase* phase;
    std::int64_t image, slice, first, lines;
};

std::int64_t volume(const Index& i) { return i[0] * i[1] * i[2]; }

class OrderedWindows final : public Step {
  public:
    OrderedWindows(const WindowShape& shape, std::vector<Phase> phases, Numbers bias, int threads)
        : s_(shape), phases_(std::move(phases)), bias_(std::move(bias)) {
        measure();
        std::int64_t lines = 0;
        for (const Phase& p : phases_) lines += s_.batch * p.counts[0] * p.counts[1];
        const std::int64_t each = std::min(lines_, std::max<std::int64_t>(1, lines / threads));
        lines_ = each;
        place_taps();
        for (const Phase& p : phases_)
            for (std::int64_t i = 0; i < s_.batch * p.counts[0]; ++i)
                for (std::int64_t l = 0; l < p.counts[1]; l += each)
                    tasks_.push_back(
                        {&p, i / p.counts[0], i % p.counts[0], l, std::min(each, p.counts[1] - l)});
        parts_ =
            static_cast<int>(std::clamp<std::size_t>(static_cast<std::size_t>(threads), 1, tasks_.size()));
    }

    int parts() const override { return parts_; }

    std::size_t scratch_bytes() const override {
        const std::int64_t numbers = (copied_ ? volume(pitch_) * s_.channels : 0) + sums();
        return static_cast<std::size_t>(2 * places_) * sizeof(float*) +
               static_cast<std::size_t>(numbers) * sizeof(float);
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const auto count = static_cast<std::int64_t>(tasks_.size());
        const auto* x = reinterpret_cast<const float*>(buffers[0]);
        auto* out = reinterpret_cast<float*>(buffers[1]);
        for (std::int64_t t = count * part / parts_; t < count * (part + 1) / parts_; ++t)
            run_task(tasks_[static_cast<std::size_t>(t)], x, out, scratch);
    }

  private:
    std::int64_t sums() const { return s_.planes ? places_ * s_.outputs : 0; }

    // What all phases read around a place, how much of the input is copied at once, and whether it is at all.
    void measure() {
        Index most{}, counts{};
        bool first = true;
        for (const Phase& p : phases_) {
            for (std::size_t a = 0; a < 3; ++a) counts[a] = std::max(counts[a], p.counts[a]);
            for (const Index& tap : p.offsets) {
                for (std::size_t a = 0; a < 3; ++a) {
                    least_[a] = first ? tap[a] : std::min(least_[a], tap[a]);
                    most[a] = first ? tap[a] : std::max(most[a], tap[a]);
                }
                first = false;
            }
        }
        copied_ = s_.planes;
        for (std::size_t a = 0; a < 3; ++a) {
            span_[a] = most[a] - least_[a] + 1;
            copied_ |= least_[a] < 0 || (counts[a] - 1) * s_.in_step[a] + most[a] >= s_.in[a];
        }
        places_ = std::clamp<std::int64_t>(kSums / s_.outputs, kFewPlaces, kPlaces);
        const std::int64_t width = (counts[2] - 1) * s_.in_step[2] + span_[2];
        const std::int64_t rows = kBand / (span_[0] * width * s_.channels);
        const std::int64_t lines = copied_ ? (rows - span_[1]) / s_.in_step[1] + 1 : places_ / counts[2];
        lines_ = std::clamp<std::int64_t>(lines, 1, counts[1]);
        width_ = width;
    }

    // Where the products of each phase read.
    void place_taps() {
        pitch_ = copied_ ? Index{span_[0], (lines_ - 1) * s_.in_step[1] + span_[1], width_} : s_.in;
        for (Phase& p : phases_)
            for (const Index& tap : p.offsets)
                for (std::int64_t c = 0; c < s_.taken(); ++c)
                    p.reach.push_back(element(tap[0] - least_[0], tap[1] - least_[1], tap[2] - least_[2]) +
                                      c);
    }

    std::int64_t element(std::int64_t slice, std::int64_t row, std::int64_t column) const {
        return ((slice * pitch_[1] + row) * pitch_[2] + column) * s_.channels;
    }

    void run_task(const Task& task, const float* x, float* out, std::byte* scratch) const noexcept {
        const auto** a = reinterpret_cast<const float**>(scratch);
        auto** dst = reinterpret_cast<float**>(scratch + static_cast<std::size_t>(places_) * sizeof(float*));
        auto* sums = reinterpret_cast<float*>(dst + places_);
        float* band = sums + this->sums();
        const Phase& p = *task.phase;
        const std::int64_t per_line = p.counts[2], total = task.lines * per_line;
        const float* source = band;
        if (copied_)
            copy(task, x, band);
        else
            source = x + task.image * volume(s_.in) * s_.channels +
                     element(task.slice * s_.in_step[0] + least_[0], task.first * s_.in_step[1] + least_[1],
                             least_[2]);
        for (std::int64_t begin = 0; begin < total; begin += places_) {
            const std::int64_t count = std::min(places_, total - begin);
            std::int64_t line = begin / per_line, column = begin % per_line;
            for (std::int64_t r = 0; r < count; ++r) {
                a[r] = source + element(0, line * s_.in_step[1], column * s_.in_step[2]);
                dst[r] = s_.planes ? sums + r * s_.outputs : out + place(task, line, column) * s_.outputs;
                if (++column == per_line) ++line, column = 0;
            }
            add(p, a, dst, count);
            if (s_.planes) spread(task, begin, count, sums, out);
        }
    }

    // The place in the result, all images counted.
    std::int64_t place(const Task& task, std::int64_t line, std::int64_t column) const {
        const Phase& p = *task.phase;
        const std::int64_t slice = p.origin[0] + task.slice * s_.out_step[0];
        const std::int64_t row = p.origin[1] + (task.first + line) * s_.out_step[1];
        return ((task.image * s_.out[0] + slice) * s_.out[1] + row) * s_.out[2] + p.origin[2] +
               column * s_.out_step[2];
    }

    // What the places of a task read, channels-last, with zeros outside the input.
    void copy(const Task& task, const float* x, float* band) const {
        const std::int64_t channels = s_.channels, wide = width_ * channels;
        const std::int64_t rows = (task.lines - 1) * s_.in_step[1] + span_[1];
        const std::int64_t before = std::clamp<std::int64_t>(-least_[2], 0, width_);
        const std::int64_t inside =
            std::clamp<std::int64_t>(s_.in[2] - std::max<std::int64_t>(least_[2], 0), 0, width_ - before);
        for (std::int64_t i = 0; i < span_[0] * rows; ++i) {
            const std::int64_t slice = task.slice * s_.in_step[0] + least_[0] + i / rows;
            const std::int64_t row = task.first * s_.in_step[1] + least_[1] + i % rows;
            float* to = band + element(i / rows, i % rows, 0);
            if (slice < 0 || slice >= s_.in[0] || row < 0 || row >= s_.in[1]) {
                std::fill_n(to, wide, 0.f);
                continue;
            }
            const std::int64_t at =
                (slice * s_.in[1] + row) * s_.in[2] + std::max<std::int64_t>(least_[2], 0);
            const float* from = x + task.image * volume(s_.in) * channels + at * (s_.planes ? 1 : channels);
            std::fill_n(to, before * channels, 0.f);
            to += before * channels;
            if (s_.planes)
                for (std::int64_t c = 0; c < channels; ++c)
                    for (std::int64_t w = 0; w < inside; ++w)
                        to[w * channels + c] = from[c * volume(s_.in) + w];
            else
                std::copy_n(from, inside * channels, to);
            std::fill_n(to + inside * channels, (width_ - before - inside) * channels, 0.f);
        }
    }

    void add(const Phase& p, const float* const* a, float* const* dst, std::int64_t count) const {
        const OrderedKernels& kernels = active_ordered_kernels();
        const auto depth = static_cast<std::int64_t>(p.reach.size());
        const float* bias = bias_.empty() ? nullptr : bias_.data();
        OrderedRows rows{a, p.reach.data(), 0, count, depth, dst, true, bias};
        if (s_.single()) return kernels.multiply_channels(rows, p.weights.data(), s_.channels);
        const std::int64_t each = padded_columns(s_.given());
        const float* weights = p.weights.data();
        for (std::int64_t k = 0; k == 0 || k < depth; k += kDepth) {
            rows.at = p.reach.data() + k;
            rows.depth = std::min(kDepth, depth - k);
            rows.fresh = k == 0;
            const bool last = k + kDepth >= depth;
            for (std::int64_t g = 0; g < s_.groups; ++g, weights += rows.depth * each) {
                rows.shift = g * s_.taken();
                rows.bias = last && bias ? bias + g * each : nullptr;
                kernels.multiply(rows, weights, g * s_.given(), s_.given());
            }
        }
    }

    // Sums of places, side by side, into the planes of the result.
    void spread(const Task& task, std::int64_t begin, std::int64_t count, const float* sums,
                float* out) const {
        const std::int64_t per_line = task.phase->counts[2], size = volume(s_.out);
        for (std::int64_t r = 0; r < count; ++r) {
            const std::int64_t at =
                place(task, (begin + r) / per_line, (begin + r) % per_line) - task.image * size;
            float* to = out + task.image * s_.outputs * size + at;
            for (std::int64_t o = 0; o < s_.outputs; ++o) to[o * size] = sums[r * s_.outputs + o];
        }
    }

    WindowShape s_;
    std::vector<Phase> phases_;
    Numbers bias_;  // [group][panel][kPanel]; of single channels [channel], as long as panels
    std::vector<Task> tasks_;
    Index least_{}, span_{}, pitch_{};  // of the offsets of taps; the lengths of what is read
    bool copied_ = false;
    std::int64_t places_ = 1, lines_ = 1, width_ = 1;
    int parts_ = 1;
};

// Rows of `each` numbers as long as panels.
Numbers in_panels(const float* from, std::int64_t count, std::int64_t each) {
    const std::int64_t wide = padded_columns(each);
    Numbers out(static_cast<std::size_t>(count * wide));
    for (std::int64_t i = 0; i < count; ++i) std::copy_n(from + i * each, each, out.data() + i * wide);
    return out;
}

// w: [tap][channel of a group][output].
Numbers weights_of(const WindowShape& s, std::int64_t taps, const float* w) {
    if (s.single()) return in_panels(w, taps, s.channels);
    const std::int64_t each = padded_columns(s.given()), depth = taps * s.taken();
    Numbers out(static_cast<std::size_t>(depth * s.groups * each));
    float* to = out.data();
    for (std::int64_t k = 0; k < depth; k += kDepth)
        for (std::int64_t g = 0; g < s.groups; ++g) {
            const std::int64_t now = std::min(kDepth, depth - k);
            pack_columns(w + k * s.outputs + g * s.given(), s.outputs, 1, now, s.given(), to);
            to += now * each;
        }
    return out;
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
        const auto taps = static_cast<std::int64_t>(offsets.size());
        if (static_cast<std::int64_t>(w.size()) != taps * shape.taken() * outputs)
            throw nb::value_error(
                "ordered_windows_step: weights [tap, channel, output] of each phase expected");
        own.push_back({origin, counts, offsets, {}, weights_of(shape, taps, w.data())});
    }
    Numbers added;
    if (bias)
        added = shape.single() ? in_panels(bias->data(), 1, outputs)
                               : in_panels(bias->data(), groups, shape.given());
    return capsule(std::make_unique<OrderedWindows>(shape, std::move(own), std::move(added), threads));
}

}  // namespace

void bind_ordered_windows(nb::module_& m) {
    using nb::arg;
    m.def("ordered_windows_step", &ordered_windows_step, arg("sizes"), arg("in_size"), arg("out_size"),
          arg("in_step"), arg("out_step"), arg("phases"), arg("bias").none(), arg("planes"), arg("threads"));
}

}  // namespace mge
