// Pictures in other sizes: along each axis in turn, weighted sums of a few neighbours.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/step_capsule.h"
#include "resizing/kernels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

// For each of `out` places `taps` neighbours in an axis of length n, and their weights.
struct Axis {
    std::int64_t n, out, taps;
    std::vector<std::int64_t> index;
    std::vector<float> weight;
    std::int64_t inside = 1;  // numbers between neighbours along the axis
};

// The neighbours of results in rows, by vectors.
class Row {
  public:
    // With `inside` no vector ends behind the row.
    void make(const Axis& a, std::int64_t lanes, bool inside = false) {
        const std::int64_t blocks = (a.out + lanes - 1) / lanes;
        for (std::int64_t b = 0; b < blocks; ++b) {
            const std::int64_t begin = std::min(b * lanes, std::max<std::int64_t>(a.out - lanes, 0));
            begins_.push_back(static_cast<std::int32_t>(begin));
            std::int64_t widest = 0;
            for (std::int64_t t = 0; t < a.taps; ++t) widest = std::max(widest, span(a, begin, lanes, t));
            const std::int32_t loads = widest <= lanes ? 1 : widest <= 2 * lanes ? 2 : 0;
            loads_.push_back(inside && loads * lanes > a.n ? 0 : loads);
            for (std::int64_t t = 0; t < a.taps; ++t) add(a, begin, lanes, t, loads_.back() * lanes);
        }
        row_ = {a.out,         a.taps,        blocks,         begins_.data(),
                loads_.data(), bases_.data(), places_.data(), weights_.data()};
    }
    const ResizedRow& row() const { return row_; }

  private:
    static std::size_t at(const Axis& a, std::int64_t begin, std::int64_t lane, std::int64_t tap) {
        return static_cast<std::size_t>(std::min(begin + lane, a.out - 1) * a.taps + tap);
    }
    static std::int64_t first(const Axis& a, std::int64_t begin, std::int64_t lanes, std::int64_t tap) {
        std::int64_t least = a.n;
        for (std::int64_t l = 0; l < lanes; ++l) least = std::min(least, a.index[at(a, begin, l, tap)]);
        return least;
    }
    // How many neighbours there are from the first to the last one of a tap.
    static std::int64_t span(const Axis& a, std::int64_t begin, std::int64_t lanes, std::int64_t tap) {
        std::int64_t last = 0;
        for (std::int64_t l = 0; l < lanes; ++l) last = std::max(last, a.index[at(a, begin, l, tap)]);
        return last - first(a, begin, lanes, tap) + 1;
    }
    // Vectors of `read` numbers in all begin early enough to end with the row, where it has as many.
    void add(const Axis& a, std::int64_t begin, std::int64_t lanes, std::int64_t tap, std::int64_t read) {
        const std::int64_t least = first(a, begin, lanes, tap);
        const std::int64_t base = read <= a.n ? std::min(least, a.n - read) : least;
        bases_.push_back(static_cast<std::int32_t>(base));
        for (std::int64_t l = 0; l < lanes; ++l) {
            places_.push_back(static_cast<std::int32_t>(a.index[at(a, begin, l, tap)] - base));
            weights_.push_back(a.weight[at(a, begin, l, tap)]);
        }
    }

    std::vector<std::int32_t> begins_, loads_, bases_, places_;
    std::vector<float> weights_;
    ResizedRow row_{};
};

// T: float or the bits of bfloat16, which has several axes or lies in rows. Sums are float32, also between
// axes. Where the numbers along the last axis are neighbours, it is done a row at a time.
template <class T>
class ResizeStep final : public Step {
  public:
    ResizeStep(std::int64_t outer, std::int64_t inner, std::vector<Axis> axes, int threads)
        : outer_(outer), in_rows_(inner == 1) {
        for (std::size_t k = axes.size(); k-- > 0; inner *= axes[k].n) axes[k].inside = inner;
        if (in_rows_) {
            row_.make(axes.back(), kernels_.lanes);
            width_ = axes.back().n;
            axes.pop_back();
        }
        axes_ = std::move(axes);
        size_ = axes_.empty() ? width_ : axes_[0].n * axes_[0].inside;
        if (axes_.empty()) axes_.push_back({1, 1, 1, {0}, {1.f}, width_});
        parts_ = static_cast<int>(std::clamp<std::int64_t>(outer_ * axes_[0].out, 1, threads));
    }
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        std::size_t total = 0;
        for (const Axis& a : axes_) total += static_cast<std::size_t>(a.inside);
        return (total + static_cast<std::size_t>(kRows * axes_.back().inside + kResizedTail)) * sizeof(float);
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const Axis& first = axes_[0];
        const std::int64_t all = outer_ * first.out, begin = all * part / parts_,
                           end = all * (part + 1) / parts_;
        const auto* src = reinterpret_cast<const T*>(buffers[0]);
        auto* dst = reinterpret_cast<T*>(buffers[1]);
        std::int64_t made =
            in_rows_ ? row_.row().out : axes_.back().inside;  // at one place of the first axis
        for (std::size_t k = 1; k < axes_.size(); ++k) made *= axes_[k].out;
        for (std::int64_t next, at = begin; at < end; at = next) {
            next = std::min(end, (at / first.out + 1) * first.out);
            const std::int64_t from = at % first.out;
            places(0, from, from + next - at, src + at / first.out * size_, dst + at * made,
                   reinterpret_cast<float*>(scratch));
        }
    }

  private:
    // Writes what the axes from k on make of the places [begin, end) of axis k; the position behind it.
    template <class From>
    T* places(std::size_t k, std::int64_t begin, std::int64_t end, const From* src, T* dst,
              float* scratch) const {
        const Axis& a = axes_[k];
        if (k + 1 == axes_.size() && in_rows_) return rows(a, begin, end, src, dst, scratch);
        for (std::int64_t at = begin; at < end; ++at) {
            if constexpr (std::is_same_v<From, float> || std::is_same_v<T, float>)
                if (k + 1 == axes_.size()) {
                    sum(a, at, src, dst);
                    dst += a.inside;
                    continue;
                }
            sum(a, at, src, scratch);
            dst = places(k + 1, 0, axes_[k + 1].out, static_cast<const float*>(scratch), dst,
                         scratch + a.inside);
        }
        return dst;
    }

    // Several rows at once: what was just written is slow to read at other places.
    template <class From>
    T* rows(const Axis& a, std::int64_t begin, std::int64_t end, const From* src, T* dst,
            float* scratch) const {
        for (std::int64_t at = begin; at < end; at += kRows) {
            const std::int64_t count = std::min(kRows, end - at);
            for (std::int64_t i = 0; i < count; ++i) sum(a, at + i, src, scratch + i * a.inside);
            for (std::int64_t i = 0; i < count; ++i, dst += row_.row().out)
                if constexpr (std::is_same_v<T, float>)
                    kernels_.row(scratch + i * a.inside, dst, row_.row());
                else
                    kernels_.row_to_half(scratch + i * a.inside, dst, row_.row());
        }
        return dst;
    }

    template <class From, class To>
    void sum(const Axis& a, std::int64_t at, const From* src, To* dst) const {
        const std::int64_t* index = a.index.data() + at * a.taps;
        const float* weight = a.weight.data() + at * a.taps;
        if constexpr (!std::is_same_v<From, float>)
            kernels_.weighted_of_half(src, dst, index, weight, a.taps, a.inside);
        else if constexpr (std::is_same_v<To, float>)
            kernels_.weighted(src, dst, index, weight, a.taps, a.inside);
        else
            kernels_.weighted_to_half(src, dst, index, weight, a.taps, a.inside);
    }

    static constexpr std::int64_t kRows = 16;
    std::int64_t outer_;
    bool in_rows_;
    std::int64_t width_ = 0, size_;  // numbers of a row, and at one place in front of the axes
    std::vector<Axis> axes_;
    int parts_;
    Row row_;
    const ResizingKernels& kernels_ = active_resizing_kernels();
};

// Results that are single numbers of the input, whatever their type. Lines that follow from the same line are
// copies of the first.
class PickStep final : public Step {
  public:
    PickStep(std::int64_t outer, std::int64_t bytes, std::vector<Axis> axes, int threads)
        : outer_(outer), axes_(std::move(axes)) {
        for (std::size_t k = axes_.size(); k-- > 0; bytes *= axes_[k].n) axes_[k].inside = bytes;
        lines_ = axes_.size() > 1 ? axes_[0].out : 1;  // that may be divided
        if (axes_.back().inside == 4 || axes_.back().inside == 2)
            row_.make(axes_.back(), kernels_.lanes, true);
        parts_ = static_cast<int>(std::clamp<std::int64_t>(outer_ * lines_, 1, threads));
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const Axis& first = axes_[0];
        const std::int64_t size = first.inside * first.n, made = made_from(0);
        const std::int64_t begin = outer_ * lines_ * part / parts_,
                           end = outer_ * lines_ * (part + 1) / parts_;
        for (std::int64_t next, at = begin; at < end; at = next) {
            const std::int64_t o = at / lines_, line = at % lines_;
            next = std::min(end, (o + 1) * lines_);
            const std::byte* src = buffers[0] + o * size;
            if (lines_ > 1)
                place_lines(0, line, line + next - at, src, buffers[1] + o * made + line * made_from(1));
            else
                place(0, src, buffers[1] + o * made);
        }
    }

  private:
    // Bytes of the result that the axes from k on make.
    std::int64_t made_from(std::size_t k) const {
        std::int64_t bytes = axes_.back().inside;
        for (; k < axes_.size(); ++k) bytes *= axes_[k].out;
        return bytes;
    }

    void place(std::size_t k, const std::byte* src, std::byte* dst) const {
        const Axis& a = axes_[k];
        if (k + 1 == axes_.size()) {
            if (a.inside == 4)
                return kernels_.pick(reinterpret_cast<const std::uint32_t*>(src),
                                     reinterpret_cast<std::uint32_t*>(dst), row_.row());
            if (a.inside == 2)
                return kernels_.pick_halves(reinterpret_cast<const std::uint16_t*>(src),
                                            reinterpret_cast<std::uint16_t*>(dst), row_.row());
            for (std::int64_t i = 0; i < a.out; ++i, dst += a.inside)
                std::memcpy(dst, src + a.index[static_cast<std::size_t>(i)] * a.inside,
                            static_cast<std::size_t>(a.inside));
            return;
        }
        place_lines(k, 0, a.out, src, dst);
    }

    void place_lines(std::size_t k, std::int64_t begin, std::int64_t end, const std::byte* src,
                     std::byte* dst) const {
        const std::int64_t* index = axes_[k].index.data();
        const std::int64_t size = made_from(k + 1);
        for (std::int64_t i = begin; i < end; ++i, dst += size)
            if (i > begin && index[i] == index[i - 1])
                std::memcpy(dst, dst - size, static_cast<std::size_t>(size));
            else
                place(k + 1, src + index[i] * axes_[k].inside, dst);
    }

    std::int64_t outer_, lines_;
    std::vector<Axis> axes_;
    int parts_;
    Row row_;  // where the last axis has numbers of 4 or 2 bytes
    const ResizingKernels& kernels_ = active_resizing_kernels();
};

// lengths, indices, weights: of each axis; indices and weights in rows of `taps`. picked: bytes of a number
// where each result is one of them, 0 where results are sums of float32 numbers or, with `half`, of bfloat16.
nb::object resize_step(std::int64_t outer, std::int64_t inner, const std::vector<std::int64_t>& lengths,
                       const std::vector<std::int64_t>& taps,
                       const std::vector<std::vector<std::int64_t>>& indices,
                       const std::vector<std::vector<float>>& weights, int threads, int picked, bool half) {
    std::vector<Axis> axes;
    for (std::size_t k = 0; k < lengths.size(); ++k) {
        const auto count = static_cast<std::int64_t>(indices.at(k).size());
        for (const std::int64_t i : indices[k])
            if (i < 0 || i >= lengths[k])
                throw nb::value_error("resize_step: an index is outside of its axis");
        if (count != static_cast<std::int64_t>(weights.at(k).size()) || taps.at(k) < 1 || count % taps[k])
            throw nb::value_error("resize_step: as many weights as indices expected");
        axes.push_back({lengths[k], count / taps[k], taps[k], indices[k], weights[k]});
    }
    if (axes.empty()) throw nb::value_error("resize_step: at least one axis expected");
    if (!picked && half && axes.size() == 1 && inner != 1)
        throw nb::value_error("resize_step: bfloat16 with channels at its end has several axes");
    if (!picked && half)
        return capsule(std::make_unique<ResizeStep<std::uint16_t>>(outer, inner, std::move(axes), threads));
    if (!picked) return capsule(std::make_unique<ResizeStep<float>>(outer, inner, std::move(axes), threads));
    if (std::any_of(axes.begin(), axes.end(), [](const Axis& a) { return a.taps != 1; }))
        throw nb::value_error("resize_step: one index for each number that is picked expected");
    return capsule(std::make_unique<PickStep>(outer, inner * picked, std::move(axes), threads));
}

}  // namespace

void bind_resize(nb::module_& m) {
    m.def("resize_step", &resize_step, nb::arg("outer"), nb::arg("inner"), nb::arg("lengths"),
          nb::arg("taps"), nb::arg("indices"), nb::arg("weights"), nb::arg("threads"), nb::arg("picked"),
          nb::arg("half"));
}

}  // namespace mge
