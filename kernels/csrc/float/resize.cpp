// Pictures in other sizes: along each axis in turn, weighted sums of a few neighbours.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/step_capsule.h"
#include "float/kernels.h"
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

class ResizeStep final : public Step {
  public:
    ResizeStep(std::int64_t outer, std::int64_t inner, std::vector<Axis> axes, int threads)
        : outer_(outer), axes_(std::move(axes)) {
        for (std::size_t k = axes_.size(); k-- > 0; inner *= axes_[k].n) axes_[k].inside = inner;
        parts_ = static_cast<int>(std::clamp<std::int64_t>(outer_ * axes_[0].out, 1, threads));
    }
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        std::size_t total = 0;
        for (std::size_t k = 0; k + 1 < axes_.size(); ++k) total += static_cast<std::size_t>(axes_[k].inside);
        return total * sizeof(float);
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const Axis& first = axes_[0];
        const std::int64_t all = outer_ * first.out, begin = all * part / parts_,
                           end = all * (part + 1) / parts_;
        const auto* src = reinterpret_cast<const float*>(buffers[0]);
        auto* dst = reinterpret_cast<float*>(buffers[1]);
        std::int64_t size = first.inside;  // of the result at one place of the first axis
        for (std::size_t k = 1; k < axes_.size(); ++k) size = size / axes_[k].n * axes_[k].out;
        for (std::int64_t at = begin; at < end; ++at)
            place(0, at % first.out, src + at / first.out * first.n * first.inside, dst + at * size,
                  reinterpret_cast<float*>(scratch));
    }

  private:
    // Writes what the axes from k on make of place `at` of axis k; the position behind it.
    float* place(std::size_t k, std::int64_t at, const float* src, float* dst, float* scratch) const {
        const Axis& a = axes_[k];
        const bool last = k + 1 == axes_.size();
        float* line = last ? dst : scratch;
        weighted_(src, line, a.index.data() + at * a.taps, a.weight.data() + at * a.taps, a.taps, a.inside);
        if (last) return dst + a.inside;
        for (std::int64_t next = 0; next < axes_[k + 1].out; ++next)
            dst = place(k + 1, next, line, dst, scratch + a.inside);
        return dst;
    }

    std::int64_t outer_;
    std::vector<Axis> axes_;
    int parts_;
    decltype(FloatKernels::weighted) weighted_ = active_float_kernels().weighted;
};

// Results that are single numbers of the input, whatever their type. Lines that follow from the same line are
// copies of the first.
class PickStep final : public Step {
  public:
    PickStep(std::int64_t outer, std::int64_t bytes, std::vector<Axis> axes, int threads)
        : outer_(outer), axes_(std::move(axes)) {
        for (std::size_t k = axes_.size(); k-- > 0; bytes *= axes_[k].n) axes_[k].inside = bytes;
        lines_ = axes_.size() > 1 ? axes_[0].out : 1;  // that may be divided
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
            if (a.inside == 4) return numbers<std::uint32_t>(a, src, dst);
            if (a.inside == 2) return numbers<std::uint16_t>(a, src, dst);
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

    template <typename T>
    static void numbers(const Axis& a, const std::byte* src, std::byte* dst) {
        const auto* from = reinterpret_cast<const T*>(src);
        auto* to = reinterpret_cast<T*>(dst);
        for (std::int64_t i = 0; i < a.out; ++i) to[i] = from[a.index[static_cast<std::size_t>(i)]];
    }

    std::int64_t outer_, lines_;
    std::vector<Axis> axes_;
    int parts_;
};

// lengths, indices, weights: of each axis; indices and weights in rows of `taps`. picked: bytes of a number
// where each result is one of them, 0 where results are sums of float32.
nb::object resize_step(std::int64_t outer, std::int64_t inner, const std::vector<std::int64_t>& lengths,
                       const std::vector<std::int64_t>& taps,
                       const std::vector<std::vector<std::int64_t>>& indices,
                       const std::vector<std::vector<float>>& weights, int threads, int picked) {
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
    if (!picked) return capsule(std::make_unique<ResizeStep>(outer, inner, std::move(axes), threads));
    if (std::any_of(axes.begin(), axes.end(), [](const Axis& a) { return a.taps != 1; }))
        throw nb::value_error("resize_step: one index for each number that is picked expected");
    return capsule(std::make_unique<PickStep>(outer, inner * picked, std::move(axes), threads));
}

}  // namespace

void bind_resize(nb::module_& m) {
    m.def("resize_step", &resize_step, nb::arg("outer"), nb::arg("inner"), nb::arg("lengths"),
          nb::arg("taps"), nb::arg("indices"), nb::arg("weights"), nb::arg("threads"), nb::arg("picked"));
}

}  // namespace mge
