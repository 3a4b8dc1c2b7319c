// Steps along one axis of an array [outer, n, inner]: reductions, running sums, places of extremes, the
// largest elements; and elements taken by indices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "common/step_capsule.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

using Lengths = std::vector<std::int64_t>;

struct Along {
    std::int64_t outer, n, inner;
};

// f(T()) for the type of a name.
template <class F>
nb::object for_type(const std::string& type, F f) {
    if (type == "float32") return f(float());
    if (type == "int32") return f(std::int32_t());
    if (type == "int64") return f(std::int64_t());
    if (type == "int8") return f(std::int8_t());
    if (type == "uint8") return f(std::uint8_t());
    throw nb::value_error(("float32, int32, int64, int8 or uint8 expected, got " + type).c_str());
}

template <class T>
bool above(T a, T b) {  // NaN is above all numbers
    return a > b || (a != a && b == b);
}

template <class T>
bool below(T a, T b) {
    return a < b || (a != a && b == b);
}

template <class T, class F>
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
                for (std::int64_t i = 0; i < n; ++i) y[i] = f_(y[i], x[i]);
            x += n;
        } else {
            T total = first ? *x : f_(*y, *x);
            for (std::int64_t i = 1; i < n; ++i) total = f_(total, x[i]);
            *y = total;
            x += n;
        }
        return x;
    }

    Lengths lengths_, strides_;
    F f_;
};

// lengths: of runs of axes in memory, in turns kept and reduced
nb::object reduce_step(const std::string& op, const std::string& type, const Lengths& lengths,
                       bool last_reduced) {
    if (lengths.empty()) throw nb::value_error("reduce_step: at least one length expected");
    return for_type(type, [&](auto value) -> nb::object {
        using T = decltype(value);
        const auto made = [&](auto f) {
            return capsule(std::make_unique<ReduceStep<T, decltype(f)>>(lengths, last_reduced, f));
        };
        if (op == "max") return made([](T a, T b) { return above(b, a) ? b : a; });
        if (op == "min") return made([](T a, T b) { return below(b, a) ? b : a; });
        if (op == "prod") return made([](T a, T b) { return static_cast<T>(a * b); });
        if (op == "sum") return made([](T a, T b) { return static_cast<T>(a + b); });
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
        for (std::int64_t o = 0; o < s_.outer; ++o, x += s_.n * s_.inner)
            for (std::int64_t c = 0; c < s_.inner; ++c, ++y) {
                std::int64_t best = 0;
                for (std::int64_t i = 1; i < s_.n; ++i) {
                    const T a = x[i * s_.inner + c], b = x[best * s_.inner + c];
                    if (most_ ? above(a, b) : below(a, b)) best = i;
                }
                *y = static_cast<std::int32_t>(best);
            }
    }

  private:
    Along s_;
    bool most_;
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
        for (std::int64_t o = 0; o < s_.outer; ++o, x += s_.n * s_.inner, y += s_.n * s_.inner) {
            std::copy_n(x + begin, s_.inner, y + begin);
            for (std::int64_t i = 1; i < s_.n; ++i)
                for (std::int64_t c = 0; c < s_.inner; ++c) {
                    const std::int64_t at = begin + i * step + c;
                    y[at] = static_cast<T>(y[at - step] + x[at]);
                }
        }
    }

  private:
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

// One tensor of indices: places in an axis of `length`, whose neighbours are `stride` bytes apart.
struct Index {
    std::int64_t item, length, stride, count;
    Lengths steps;  // in elements of the indices, for the axes of all indices together

    std::int64_t value(const std::byte* buffer, std::int64_t element) const {
        if (item == 4) return reinterpret_cast<const std::int32_t*>(buffer)[element];
        return reinterpret_cast<const std::int64_t*>(buffer)[element];
    }
};

// Blocks of an array: for each of the axes in front, each of the indices and each of the axes behind.
class TakeStep final : public Step {
  public:
    TakeStep(std::int64_t start, Lengths front, Lengths front_strides, Lengths shape,
             std::vector<Index> indices, Lengths behind, Lengths behind_strides, std::int64_t block)
        : start_(start),
          front_(std::move(front)),
          front_strides_(std::move(front_strides)),
          shape_(std::move(shape)),
          indices_(std::move(indices)),
          behind_(std::move(behind)),
          behind_strides_(std::move(behind_strides)),
          block_(block) {}

    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        std::byte* to = buffers[1 + indices_.size()];
        each(front_, front_strides_, buffers[0] + start_, [&](const std::byte* from) {
            std::int64_t at[kMost] = {};
            for (;;) {
                std::int64_t offset = 0;
                for (std::size_t k = 0; k < indices_.size(); ++k) offset += place(k, buffers[1 + k], at);
                each(behind_, behind_strides_, from + offset, [&](const std::byte* one) {
                    std::memcpy(to, one, static_cast<std::size_t>(block_));
                    to += block_;
                });
                std::size_t d = shape_.size();
                while (d > 0 && ++at[d - 1] == shape_[d - 1]) at[--d] = 0;
                if (d == 0) return;
            }
        });
    }

    // An index is beyond its axis: the reference says which.
    bool refuses(std::byte* const* buffers) const noexcept override {
        for (std::size_t k = 0; k < indices_.size(); ++k) {
            const Index& index = indices_[k];
            for (std::int64_t i = 0; i < index.count; ++i) {
                const std::int64_t value = index.value(buffers[1 + k], i);
                if (value < -index.length || value >= index.length) return true;
            }
        }
        return false;
    }

    static constexpr std::size_t kMost = 32;

  private:
    std::int64_t place(std::size_t k, const std::byte* buffer, const std::int64_t* at) const {
        const Index& index = indices_[k];
        std::int64_t element = 0;
        for (std::size_t d = 0; d < shape_.size(); ++d) element += at[d] * index.steps[d];
        const std::int64_t value = index.value(buffer, element);
        return (value < 0 ? value + index.length : value) * index.stride;
    }

    template <class F>
    static void each(const Lengths& lengths, const Lengths& strides, const std::byte* from, F f) {
        std::int64_t at[kMost] = {};
        for (;;) {
            f(from);
            std::size_t d = lengths.size();
            while (d > 0) {
                from += strides[d - 1];
                if (++at[d - 1] < lengths[d - 1]) break;
                from -= strides[d - 1] * lengths[d - 1];
                at[--d] = 0;
            }
            if (d == 0) return;
        }
    }

    std::int64_t start_;
    Lengths front_, front_strides_, shape_;
    std::vector<Index> indices_;
    Lengths behind_, behind_strides_;
    std::int64_t block_;
};

// 1 at the place that an index names, 0 elsewhere.
class OneHotStep final : public Step {
  public:
    OneHotStep(std::int64_t item, std::int64_t count, std::int64_t depth)
        : index_{item, depth, 1, count, {}} {}
    bool refuses(std::byte* const* buffers) const noexcept override {
        for (std::int64_t i = 0; i < index_.count; ++i) {
            const std::int64_t value = index_.value(buffers[0], i);
            if (value < 0 || value >= index_.length) return true;
        }
        return false;
    }
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        auto* y = reinterpret_cast<std::int32_t*>(buffers[1]);
        std::fill_n(y, index_.count * index_.length, 0);
        for (std::int64_t i = 0; i < index_.count; ++i, y += index_.length)
            y[index_.value(buffers[0], i)] = 1;
    }

  private:
    Index index_;
};

nb::object take_step(std::int64_t start, Lengths front, Lengths front_strides, Lengths shape,
                     const std::vector<Lengths>& indices, const std::vector<Lengths>& steps, Lengths behind,
                     Lengths behind_strides, std::int64_t block) {
    std::vector<Index> made;
    for (std::size_t k = 0; k < indices.size(); ++k)
        made.push_back({indices[k].at(0), indices[k].at(1), indices[k].at(2), indices[k].at(3), steps.at(k)});
    if (std::max({front.size(), shape.size(), behind.size()}) > TakeStep::kMost)
        throw nb::value_error("take_step: too many axes");
    return capsule(std::make_unique<TakeStep>(start, std::move(front), std::move(front_strides),
                                              std::move(shape), std::move(made), std::move(behind),
                                              std::move(behind_strides), block));
}

}  // namespace

void bind_along(nb::module_& m) {
    using nb::arg;
    m.def("reduce_step", &reduce_step, arg("op"), arg("type"), arg("lengths"), arg("last_reduced"));
    m.def(
        "place_step",
        [](const std::string& type, std::int64_t outer, std::int64_t n, std::int64_t inner, bool most) {
            return for_type(type, [&](auto v) -> nb::object {
                return capsule(std::make_unique<PlaceStep<decltype(v)>>(Along{outer, n, inner}, most));
            });
        },
        arg("type"), arg("outer"), arg("n"), arg("inner"), arg("most"));
    m.def(
        "running_sum_step",
        [](const std::string& type, std::int64_t outer, std::int64_t n, std::int64_t inner, bool reverse) {
            return for_type(type, [&](auto v) -> nb::object {
                return capsule(
                    std::make_unique<RunningSumStep<decltype(v)>>(Along{outer, n, inner}, reverse));
            });
        },
        arg("type"), arg("outer"), arg("n"), arg("inner"), arg("reverse"));
    m.def(
        "top_step",
        [](const std::string& type, std::int64_t rows, std::int64_t n, std::int64_t k, bool descending) {
            return for_type(type, [&](auto v) -> nb::object {
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
    m.def("take_step", &take_step, arg("start"), arg("front"), arg("front_strides"), arg("shape"),
          arg("indices"), arg("steps"), arg("behind"), arg("behind_strides"), arg("block"));
}

}  // namespace mge
