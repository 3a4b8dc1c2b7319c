// Steps along one axis of an array [outer, n, inner]: reductions, running sums, places of extremes, the
// largest elements.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "common/step_capsule.h"
#include "common/wrapping.h"
#include "float/kernels.h"
#include "runtime/bind.h"
#include "strided/index.h"
#include "strided/types.h"

namespace nb = nanobind;

namespace mge {
namespace {

using Lengths = std::vector<std::int64_t>;

struct Along {
    std::int64_t outer, n, inner;
};

// Free: numbers may be combined in any order, since the result is one of them or wraps around.
template <class T, class F, bool Free>
class ReduceStep final : public Step {
  public:
    ReduceStep(Lengths lengths, bool last_reduced, F f) : lengths_(std::move(lengths)), f_(f) {
        strides_.resize(lengths_.size(), 0);
        bool reduced = last_reduced;
        std::int64_t size = 1;
        for (std::size_t d = lengths_.size(); d-- > 0; reduced = !reduced) {
            if (reduced) continue;
            strides_[d] = size;
            size *= lengths_[d];
        }
    }

    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        walk(0, reinterpret_cast<const T*>(buffers[0]), reinterpret_cast<T*>(buffers[1]), true);
    }

  private:
    // Combines what lies from x on with y (`first`: nothing is there yet); the position behind it.
    const T* walk(std::size_t d, const T* x, T* y, bool first) const {
        const std::int64_t n = lengths_[d], step = strides_[d];
        if (d + 1 < lengths_.size()) {
            for (std::int64_t i = 0; i < n; ++i, y += step) x = walk(d + 1, x, y, first && (step || i == 0));
        } else if (step) {
            if (first)
                std::copy_n(x, n, y);
            else
                column(x, n, y);
            x += n;
        } else {
            *y = row(x, n, first ? *x : f_(*y, *x));
            x += n;
        }
        return x;
    }

    void column(const T* x, std::int64_t n, T* y) const {
        if constexpr (kExtreme)
            active_.column_extreme(x, y, n, most_);
        else
            for (std::int64_t i = 0; i < n; ++i) y[i] = f_(y[i], x[i]);
    }

    // n neighbours, the first of which is part of the total; where the order is free, lanes that do not wait
    // for one another.
    T row(const T* x, std::int64_t n, T total) const {
        if constexpr (kExtreme) return f_(total, active_.row_extreme(x, n, most_));
        std::int64_t i = 1;
        if constexpr (Free) {
            constexpr std::int64_t kLanes = 128 / sizeof(T);
            T lanes[kLanes];
            if (n > 2 * kLanes) {
                std::copy_n(x + i, kLanes, lanes);
                for (i += kLanes; i + kLanes <= n; i += kLanes)
                    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = f_(lanes[l], x[i + l]);
                for (const T lane : lanes) total = f_(total, lane);
            }
        }
        for (; i < n; ++i) total = f_(total, x[i]);
        return total;
    }

    static constexpr bool kExtreme = Free && std::is_same_v<T, float>;  // others of floats have an order
    Lengths lengths_, strides_;
    F f_;
    bool most_ = f_(T{0}, T{1}) == T{1};
    const FloatKernels& active_ = active_float_kernels();
};

// lengths: of runs of axes in memory, in turns kept and reduced
nb::object reduce_step(const std::string& op, const std::string& type, const Lengths& lengths,
                       bool last_reduced) {
    if (lengths.empty()) throw nb::value_error("reduce_step: at least one length expected");
    return for_number(type, [&](auto value) -> nb::object {
        using T = decltype(value);
        const auto made = [&]<bool Free>(auto f, std::bool_constant<Free>) {
            using Made = ReduceStep<T, decltype(f), Free>;
            return capsule(std::make_unique<Made>(lengths, last_reduced, f));
        };
        constexpr std::bool_constant<std::is_integral_v<T>> wraps;
        if (op == "max") return made([](T a, T b) { return above(b, a) ? b : a; }, std::true_type());
        if (op == "min") return made([](T a, T b) { return below(b, a) ? b : a; }, std::true_type());
        if (op == "prod") return made([](T a, T b) { return product_of(a, b); }, wraps);
        if (op == "sum") return made([](T a, T b) { return sum_of(a, b); }, wraps);
        throw nb::value_error(("reduce_step: no reduction " + op).c_str());
    });
}

template <class T>
class PlaceStep final : public Step {
  public:
    PlaceStep(Along s, bool most) : s_(s), most_(most) {}
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        const auto* x = reinterpret_cast<const T*>(buffers[0]);
        auto* y = reinterpret_cast<std::int32_t*>(buffers[1]);
        for (std::int64_t o = 0; o < s_.outer; ++o, x += s_.n * s_.inner, y += s_.inner)
            if constexpr (std::is_same_v<T, float>)
                places_(x, y, s_.n, s_.inner, most_);
            else
                places(x, y);
    }

  private:
    void places(const T* x, std::int32_t* y) const {
        for (std::int64_t c = 0; c < s_.inner; ++c, ++y) {
            std::int64_t best = 0;
            for (std::int64_t i = 1; i < s_.n; ++i) {
                const T a = x[i * s_.inner + c], b = x[best * s_.inner + c];
                if (most_ ? above(a, b) : below(a, b)) best = i;
            }
            *y = static_cast<std::int32_t>(best);
        }
    }

    Along s_;
    bool most_;
    decltype(FloatKernels::places) places_ = active_float_kernels().places;
};

template <class T>
class RunningSumStep final : public Step {
  public:
    RunningSumStep(Along s, bool reverse) : s_(s), reverse_(reverse) {}
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        const auto* x = reinterpret_cast<const T*>(buffers[0]);
        auto* y = reinterpret_cast<T*>(buffers[1]);
        const std::int64_t step = reverse_ ? -s_.inner : s_.inner,
                           begin = reverse_ ? (s_.n - 1) * s_.inner : 0;
        std::int64_t o = 0;
        if (s_.inner == 1)
            for (; o + kRows <= s_.outer; o += kRows, x += kRows * s_.n, y += kRows * s_.n)
                rows(x, y, begin, step);
        for (; o < s_.outer; ++o, x += s_.n * s_.inner, y += s_.n * s_.inner) {
            std::copy_n(x + begin, s_.inner, y + begin);
            for (std::int64_t i = 1; i < s_.n; ++i)
                for (std::int64_t c = 0; c < s_.inner; ++c) {
                    const std::int64_t at = begin + i * step + c;
                    y[at] = sum_of(y[at - step], x[at]);
                }
        }
    }

  private:
    static constexpr std::int64_t kRows = 8;

    // Several rows at once, so that no sum waits for the one before.
    void rows(const T* x, T* y, std::int64_t begin, std::int64_t step) const {
        T totals[kRows];
        for (std::int64_t r = 0; r < kRows; ++r) totals[r] = y[r * s_.n + begin] = x[r * s_.n + begin];
        for (std::int64_t i = 1, at = begin + step; i < s_.n; ++i, at += step)
            for (std::int64_t r = 0; r < kRows; ++r) {
                totals[r] = sum_of(totals[r], x[r * s_.n + at]);
                y[r * s_.n + at] = totals[r];
            }
    }

    Along s_;
    bool reverse_;
};

// The first k of each row in order, equal ones as they come, NaN last.
template <class T>
class TopStep final : public Step {
  public:
    TopStep(std::int64_t rows, std::int64_t n, std::int64_t k, bool descending)
        : rows_(rows), n_(n), k_(k), descending_(descending) {}
    std::size_t scratch_bytes() const override { return static_cast<std::size_t>(n_) * sizeof(std::int32_t); }
    void run(int, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const auto* x = reinterpret_cast<const T*>(buffers[0]);
        auto* values = reinterpret_cast<T*>(buffers[1]);
        auto *places = reinterpret_cast<std::int32_t*>(buffers[2]),
             *order = reinterpret_cast<std::int32_t*>(scratch);
        for (std::int64_t r = 0; r < rows_; ++r, x += n_) {
            std::iota(order, order + n_, 0);
            std::partial_sort(order, order + k_, order + n_, [&](std::int32_t a, std::int32_t b) {
                const T p = x[a], q = x[b];
                const bool first = descending_ ? p > q : p < q, then = descending_ ? q > p : q < p;
                if (first || then) return first;
                if ((p != p) != (q != q)) return q != q;
                return a < b;
            });
            for (std::int64_t i = 0; i < k_; ++i, ++values, ++places) {
                *values = x[order[i]];
                *places = order[i];
            }
        }
    }

  private:
    std::int64_t rows_, n_, k_;
    bool descending_;
};

// 1 at the place that an index names, 0 elsewhere.
class OneHotStep final : public Step {
  public:
    OneHotStep(std::int64_t item, std::int64_t count, std::int64_t depth) : index_{item, depth, count} {}
    bool refuses(std::byte* const* buffers) const noexcept override {
        for (std::int64_t i = 0; i < index_.count; ++i) {
            const std::int64_t value = index_.raw(buffers[0], i);
            if (value < 0 || value >= index_.length) return true;
        }
        return false;
    }
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        auto* y = reinterpret_cast<std::int32_t*>(buffers[1]);
        std::fill_n(y, index_.count * index_.length, 0);
        for (std::int64_t i = 0; i < index_.count; ++i, y += index_.length) y[index_.raw(buffers[0], i)] = 1;
    }

  private:
    Index index_;
};

}  // namespace

void bind_along(nb::module_& m) {
    using nb::arg;
    m.def("reduce_step", &reduce_step, arg("op"), arg("type"), arg("lengths"), arg("last_reduced"));
    m.def(
        "place_step",
        [](const std::string& type, std::int64_t outer, std::int64_t n, std::int64_t inner, bool most) {
            return for_number(type, [&](auto v) -> nb::object {
                return capsule(std::make_unique<PlaceStep<decltype(v)>>(Along{outer, n, inner}, most));
            });
        },
        arg("type"), arg("outer"), arg("n"), arg("inner"), arg("most"));
    m.def(
        "running_sum_step",
        [](const std::string& type, std::int64_t outer, std::int64_t n, std::int64_t inner, bool reverse) {
            return for_number(type, [&](auto v) -> nb::object {
                return capsule(
                    std::make_unique<RunningSumStep<decltype(v)>>(Along{outer, n, inner}, reverse));
            });
        },
        arg("type"), arg("outer"), arg("n"), arg("inner"), arg("reverse"));
    m.def(
        "top_step",
        [](const std::string& type, std::int64_t rows, std::int64_t n, std::int64_t k, bool descending) {
            return for_number(type, [&](auto v) -> nb::object {
                return capsule(std::make_unique<TopStep<decltype(v)>>(rows, n, k, descending));
            });
        },
        arg("type"), arg("rows"), arg("n"), arg("k"), arg("descending"));
    m.def(
        "one_hot_step",
        [](std::int64_t item, std::int64_t count, std::int64_t depth) {
            return capsule(std::make_unique<OneHotStep>(item, count, depth));
        },
        arg("item"), arg("count"), arg("depth"));
}

}  // namespace mge
