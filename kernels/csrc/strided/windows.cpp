// Windows over up to three axes of planes: sums of windows where they overlap, places of their largest
// elements.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "common/step_capsule.h"
#include "common/wrapping.h"
#include "runtime/bind.h"
#include "strided/types.h"

namespace nb = nanobind;

namespace mge {
namespace {

using Lengths = std::vector<std::int64_t>;
using Three = std::array<std::int64_t, 3>;

std::int64_t product(const Three& n) { return n[0] * n[1] * n[2]; }

// f(place) for every place of a box, in order.
template <class F>
void each_place(const Three& n, F f) {
    for (Three at{}; at[0] < n[0]; ++at[0])
        for (at[1] = 0; at[1] < n[1]; ++at[1])
            for (at[2] = 0; at[2] < n[2]; ++at[2]) f(at);
}

struct Windows {
    std::int64_t planes;
    Three in, out, kernel, stride, dilation, before;

    // Where a tap of the window of an element lies on an axis; outside it is below 0 or beyond the length.
    std::int64_t place(std::size_t axis, std::int64_t element, std::int64_t tap) const {
        return element * stride[axis] - before[axis] + tap * dilation[axis];
    }
    bool inside(std::size_t axis, std::int64_t place) const { return place >= 0 && place < in[axis]; }
};

// Sums of [planes, *out, *kernel] in [planes, *in]: of what windows hold for an element, tap by tap.
template <class T>
class FoldStep final : public Step {
  public:
    FoldStep(const Windows& w, int threads)
        : w_(w), parts_(static_cast<int>(std::clamp<std::int64_t>(w.planes, 1, threads))) {}
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::int64_t taps = product(w_.kernel), in = product(w_.in);
        const std::int64_t begin = w_.planes * part / parts_, end = w_.planes * (part + 1) / parts_;
        const auto* x = reinterpret_cast<const T*>(buffers[0]) + begin * product(w_.out) * taps;
        auto* y = reinterpret_cast<T*>(buffers[1]) + begin * in;
        for (std::int64_t p = begin; p < end; ++p, x += product(w_.out) * taps, y += in) {
            std::fill_n(y, in, T(0));
            const T* of_tap = x;
            each_place(w_.kernel, [&](const Three& tap) { add_tap(of_tap++, y, tap, taps); });
        }
    }

  private:
    void add_tap(const T* x, T* y, const Three& tap, std::int64_t taps) const {
        for (std::int64_t i = 0; i < w_.out[0]; ++i) {
            const std::int64_t z = w_.place(0, i, tap[0]);
            if (!w_.inside(0, z)) continue;
            for (std::int64_t j = 0; j < w_.out[1]; ++j) {
                const std::int64_t r = w_.place(1, j, tap[1]);
                if (!w_.inside(1, r)) continue;
                const T* from = x + (i * w_.out[1] + j) * w_.out[2] * taps;
                T* to = y + (z * w_.in[1] + r) * w_.in[2];
                for (std::int64_t k = 0; k < w_.out[2]; ++k)
                    if (const std::int64_t c = w_.place(2, k, tap[2]); w_.inside(2, c))
                        to[c] = sum_of(to[c], from[k * taps]);
            }
        }
    }

    Windows w_;
    int parts_;
};

// Of each window the place of its first largest element in the flat array; the axes of a plane count in
// reversed order with `columns_first`. Padding counts as the lowest number, at the beginning of the plane.
template <class T>
class WindowPlacesStep final : public Step {
  public:
    WindowPlacesStep(const Windows& w, bool columns_first, int threads)
        : w_(w),
          steps_(columns_first ? Three{1, w.in[0], w.in[0] * w.in[1]} : Three{w.in[1] * w.in[2], w.in[2], 1}),
          parts_(static_cast<int>(std::clamp<std::int64_t>(w.planes, 1, threads))) {}
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::int64_t in = product(w_.in);
        const std::int64_t begin = w_.planes * part / parts_, end = w_.planes * (part + 1) / parts_;
        const auto* x = reinterpret_cast<const T*>(buffers[0]) + begin * in;
        auto* y = reinterpret_cast<std::int64_t*>(buffers[1]) + begin * product(w_.out);
        for (std::int64_t p = begin; p < end; ++p, x += in)
            each_place(w_.out, [&](const Three& at) { *y++ = p * in + largest(x, at); });
    }

  private:
    std::int64_t largest(const T* x, const Three& at) const {
        T best{};
        std::int64_t place = -1;
        each_place(w_.kernel, [&](const Three& tap) {
            const Three c{w_.place(0, at[0], tap[0]), w_.place(1, at[1], tap[1]), w_.place(2, at[2], tap[2])};
            const bool inside = w_.inside(0, c[0]) && w_.inside(1, c[1]) && w_.inside(2, c[2]);
            const T value = inside ? x[(c[0] * w_.in[1] + c[1]) * w_.in[2] + c[2]] : lowest();
            if (place >= 0 && !above(value, best)) return;
            best = value;
            place = inside ? c[0] * steps_[0] + c[1] * steps_[1] + c[2] * steps_[2] : 0;
        });
        return place;
    }

    static T lowest() {
        if constexpr (std::is_floating_point_v<T>)
            return -std::numeric_limits<T>::infinity();
        else
            return std::numeric_limits<T>::min();
    }

    Windows w_;
    Three steps_;
    int parts_;
};

// lengths: in, out, kernel, stride, dilation, padding in front, for three axes each
Windows windows_of(std::int64_t planes, const std::vector<Lengths>& lengths) {
    const auto three = [&](std::size_t i) {
        return Three{lengths.at(i).at(0), lengths.at(i).at(1), lengths.at(i).at(2)};
    };
    return {planes, three(0), three(1), three(2), three(3), three(4), three(5)};
}

}  // namespace

void bind_taken_windows(nb::module_& m) {
    using nb::arg;
    m.def(
        "fold_step",
        [](const std::string& type, std::int64_t planes, const std::vector<Lengths>& lengths, int threads) {
            return for_number(type, [&](auto value) -> nb::object {
                return capsule(
                    std::make_unique<FoldStep<decltype(value)>>(windows_of(planes, lengths), threads));
            });
        },
        arg("type"), arg("planes"), arg("lengths"), arg("threads"));
    m.def(
        "window_places_step",
        [](const std::string& type, std::int64_t planes, const std::vector<Lengths>& lengths,
           bool columns_first, int threads) {
            return for_number(type, [&](auto value) -> nb::object {
                return capsule(std::make_unique<WindowPlacesStep<decltype(value)>>(
                    windows_of(planes, lengths), columns_first, threads));
            });
        },
        arg("type"), arg("planes"), arg("lengths"), arg("columns_first"), arg("threads"));
}

}  // namespace mge
