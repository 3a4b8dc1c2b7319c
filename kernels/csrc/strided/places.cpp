// Elements taken from places that tensors of indices name, and put there or combined with what is there.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "common/step_capsule.h"
#include "common/wrapping.h"
#include "runtime/bind.h"
#include "strided/index.h"
#include "strided/types.h"

namespace nb = nanobind;

namespace mge {
namespace {

using Lengths = std::vector<std::int64_t>;
constexpr std::size_t kMostAxes = 64;

// f(offsets) for every element of a shape, in order; strides[operand][axis].
template <std::size_t Operands, class F>
void each(const Lengths& lengths, const std::array<const Lengths*, Operands>& strides,
          std::array<std::int64_t, Operands> at, F f) {
    std::int64_t place[kMostAxes] = {};
    for (;;) {
        f(at);
        std::size_t d = lengths.size();
        for (; d > 0; --d) {
            for (std::size_t o = 0; o < Operands; ++o) at[o] += (*strides[o])[d - 1];
            if (++place[d - 1] < lengths[d - 1]) break;
            for (std::size_t o = 0; o < Operands; ++o) at[o] -= (*strides[o])[d - 1] * lengths[d - 1];
            place[d - 1] = 0;
        }
        if (d == 0) return;
    }
}

inline void move_block(std::byte* to, const std::byte* from, std::int64_t bytes) {
    if (bytes == 4)
        std::memcpy(to, from, 4);
    else if (bytes == 8)
        std::memcpy(to, from, 8);
    else if (bytes == 1)
        *to = *from;
    else
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// Axes of a selection: lengths, and the bytes between neighbours in the whole and in the part.
struct Axes {
    Lengths lengths, whole, part;
};

// Indices that are seen in one shape: for each the bytes in the whole from one place to the next, and the
// elements from one index to the next along the axes of the shape.
struct Indices {
    std::vector<Index> of;
    Lengths strides;
    std::vector<Lengths> steps;
};

// The blocks of an array (the whole) at the places of indices, for each of the axes in front and behind:
// taken into a part, or put there from a part into a copy of the whole.
class SelectStep final : public Step {
  public:
    SelectStep(bool puts, std::int64_t start, std::int64_t block, std::int64_t bytes, Axes front, Axes shape,
               Axes behind, Indices indices)
        : puts_(puts),
          start_(start),
          block_(block),
          bytes_(bytes),
          front_(std::move(front)),
          shape_(std::move(shape)),
          behind_(std::move(behind)),
          indices_(std::move(indices)) {}

    bool refuses(std::byte* const* buffers) const noexcept override {
        for (std::size_t k = 0; k < indices_.of.size(); ++k)
            if (!indices_.of[k].all_inside(buffers[first() + k])) return true;
        return false;
    }

    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        std::byte* out = buffers[first() + indices_.of.size()];
        if (puts_) std::memcpy(out, buffers[0], static_cast<std::size_t>(bytes_));
        std::byte *whole = puts_ ? out : buffers[0], *part = puts_ ? buffers[1] : out;
        using Two = std::array<std::int64_t, 2>;
        each<2>(front_.lengths, {&front_.whole, &front_.part}, {start_, 0}, [&](const Two& front) {
            std::int64_t at[kMostAxes] = {};
            std::int64_t other = front[1];
            const Lengths& lengths = shape_.lengths;
            for (;;) {
                std::int64_t offset = front[0];
                for (std::size_t k = 0; k < indices_.of.size(); ++k)
                    offset +=
                        indices_.of[k].place(buffers[first() + k], element(k, at)) * indices_.strides[k];
                move(whole + offset, part + other);
                std::size_t d = lengths.size();
                for (; d > 0; --d) {
                    other += shape_.part[d - 1];
                    if (++at[d - 1] < lengths[d - 1]) break;
                    other -= shape_.part[d - 1] * lengths[d - 1];
                    at[d - 1] = 0;
                }
                if (d == 0) return;
            }
        });
    }

  private:
    std::size_t first() const { return puts_ ? 2 : 1; }

    std::int64_t element(std::size_t k, const std::int64_t* at) const {
        std::int64_t sum = 0;
        for (std::size_t d = 0; d < shape_.lengths.size(); ++d) sum += at[d] * indices_.steps[k][d];
        return sum;
    }

    void move(std::byte* whole, std::byte* part) const {
        if (behind_.lengths.empty())
            return puts_ ? move_block(whole, part, block_) : move_block(part, whole, block_);
        each<2>(behind_.lengths, {&behind_.whole, &behind_.part}, {0, 0},
                [&](const std::array<std::int64_t, 2>& at) {
                    if (puts_)
                        move_block(whole + at[0], part + at[1], block_);
                    else
                        move_block(part + at[1], whole + at[0], block_);
                });
    }

    bool puts_;
    std::int64_t start_, block_, bytes_;
    Axes front_, shape_, behind_;
    Indices indices_;
};

// ---------------------------------------------------------------- one place along an axis for each element

// Elements of an array at the places of an index of `lengths`, in its order: along one axis the index says
// where (`stride` elements from place to place), along the others an element lies where its index does.
struct Elements {
    Lengths lengths, steps;  // elements from one index to the next in the array; 0 for the axis
    std::int64_t stride;
    Index index;

    template <class F>
    void each_offset(const std::byte* places, F f) const {
        const Lengths outer(lengths.begin(), lengths.end() - 1), outer_steps(steps.begin(), steps.end() - 1);
        const std::int64_t n = lengths.back(), step = steps.back();
        const std::int64_t length = index.length, by = stride;
        index.typed(places, [&](const auto* values) {
            std::int64_t i = 0;
            each<1>(outer, {&outer_steps}, {0}, [&](const std::array<std::int64_t, 1>& at) {
                for (std::int64_t j = 0; j < n; ++j, ++i) {
                    const std::int64_t value = values[i], place = value < 0 ? value + length : value;
                    f(i, at[0] + place * by + j * step);
                }
            });
        });
    }
};

template <class T>
class GatherStep final : public Step {
  public:
    explicit GatherStep(Elements elements) : elements_(std::move(elements)) {}
    bool refuses(std::byte* const* buffers) const noexcept override {
        return !elements_.index.all_inside(buffers[1]);
    }
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        const auto* x = reinterpret_cast<const T*>(buffers[0]);
        auto* y = reinterpret_cast<T*>(buffers[2]);
        elements_.each_offset(buffers[1], [&](std::int64_t i, std::int64_t at) { y[i] = x[at]; });
    }

  private:
    Elements elements_;
};

// A copy of an array in which updates take the place of elements, or are combined with them in order.
template <class T, class F>
class ScatterStep final : public Step {
  public:
    ScatterStep(Elements elements, std::int64_t size, F combine)
        : elements_(std::move(elements)), size_(size), combine_(combine) {}
    bool refuses(std::byte* const* buffers) const noexcept override {
        return !elements_.index.all_inside(buffers[1]);
    }
    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        const auto* updates = reinterpret_cast<const T*>(buffers[2]);
        auto* y = reinterpret_cast<T*>(buffers[3]);
        std::memcpy(y, buffers[0], static_cast<std::size_t>(size_) * sizeof(T));
        elements_.each_offset(buffers[1],
                              [&](std::int64_t i, std::int64_t at) { y[at] = combine_(y[at], updates[i]); });
    }

  private:
    Elements elements_;
    std::int64_t size_;
    F combine_;
};

// The same for blocks, whose places have as many coordinates as there are `lengths`.
template <class T, class F>
class BlocksStep final : public Step {
  public:
    BlocksStep(Lengths lengths, Lengths strides, std::int64_t item, std::int64_t count, std::int64_t block,
               std::int64_t size, F combine)
        : lengths_(std::move(lengths)),
          strides_(std::move(strides)),
          item_(item),
          count_(count),
          block_(block),
          size_(size),
          combine_(combine) {}

    bool refuses(std::byte* const* buffers) const noexcept override {
        for (std::int64_t i = 0; i < count_; ++i)
            for (std::size_t k = 0; k < lengths_.size(); ++k) {
                const std::int64_t value = coordinate(k).raw(buffers[1], element(i, k));
                if (value < -lengths_[k] || value >= lengths_[k]) return true;
            }
        return false;
    }

    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        const auto* updates = reinterpret_cast<const T*>(buffers[2]);
        auto* y = reinterpret_cast<T*>(buffers[3]);
        std::memcpy(y, buffers[0], static_cast<std::size_t>(size_) * sizeof(T));
        for (std::int64_t i = 0; i < count_; ++i, updates += block_) {
            T* to = y;
            for (std::size_t k = 0; k < lengths_.size(); ++k)
                to += coordinate(k).place(buffers[1], element(i, k)) * strides_[k];
            for (std::int64_t b = 0; b < block_; ++b) to[b] = combine_(to[b], updates[b]);
        }
    }

  private:
    Index coordinate(std::size_t k) const { return {item_, lengths_[k], count_}; }
    std::int64_t element(std::int64_t i, std::size_t k) const {
        return i * static_cast<std::int64_t>(lengths_.size()) + static_cast<std::int64_t>(k);
    }

    Lengths lengths_, strides_;
    std::int64_t item_, count_, block_, size_;
    F combine_;
};

// make(T(), combine): for elements that are replaced any type of so many bytes, else a type by name.
template <class F>
nb::object for_update(const std::string& reduction, const std::string& type, std::int64_t bytes, F make) {
    const auto latest = [](auto, auto update) { return update; };
    if (reduction == "none") {
        if (bytes == 1) return make(std::uint8_t(), latest);
        if (bytes == 2) return make(std::uint16_t(), latest);
        if (bytes == 4) return make(std::uint32_t(), latest);
        if (bytes == 8) return make(std::uint64_t(), latest);
        throw nb::value_error("elements of 1, 2, 4 or 8 bytes expected");
    }
    return for_number(type, [&](auto value) -> nb::object {
        using T = decltype(value);
        if (reduction == "add") return make(value, [](T a, T b) { return sum_of(a, b); });
        if (reduction == "mul") return make(value, [](T a, T b) { return product_of(a, b); });
        if (reduction == "max") return make(value, [](T a, T b) { return above(b, a) ? b : a; });
        if (reduction == "min") return make(value, [](T a, T b) { return below(b, a) ? b : a; });
        throw nb::value_error(("no reduction " + reduction).c_str());
    });
}

void check_axes(std::initializer_list<const Lengths*> all) {
    for (const Lengths* one : all)
        if (one->size() > kMostAxes) throw nb::value_error("too many axes");
}

// Each of front, shape, behind: lengths, bytes between neighbours in the whole, in the part. indices: for
// each its item, the length of its axis, its elements and the bytes between neighbours along the axis; steps:
// its elements between neighbours along the axes of shape.
nb::object select_step(bool puts, std::int64_t start, std::int64_t block, std::int64_t bytes,
                       const std::vector<Lengths>& front, const std::vector<Lengths>& shape,
                       const std::vector<Lengths>& behind, const std::vector<Lengths>& indices,
                       const std::vector<Lengths>& steps) {
    const auto axes = [](const std::vector<Lengths>& of) { return Axes{of.at(0), of.at(1), of.at(2)}; };
    Indices made{{}, {}, steps};
    for (const Lengths& one : indices) {
        made.of.push_back({one.at(0), one.at(1), one.at(2)});
        made.strides.push_back(one.at(3));
    }
    check_axes({&front.at(0), &shape.at(0), &behind.at(0)});
    return capsule(std::make_unique<SelectStep>(puts, start, block, bytes, axes(front), axes(shape),
                                                axes(behind), std::move(made)));
}

Elements elements_of(const Lengths& lengths, const Lengths& steps, std::int64_t stride, std::int64_t length,
                     std::int64_t index_item) {
    check_axes({&lengths});
    if (lengths.empty() || lengths.size() != steps.size())
        throw nb::value_error("a step for each axis expected");
    std::int64_t count = 1;
    for (const std::int64_t n : lengths) count *= n;
    return {lengths, steps, stride, {index_item, length, count}};
}

nb::object gather_step(std::int64_t bytes, const Lengths& lengths, const Lengths& steps, std::int64_t stride,
                       std::int64_t length, std::int64_t index_item) {
    const Elements elements = elements_of(lengths, steps, stride, length, index_item);
    return for_update("none", "", bytes, [&](auto value, auto) -> nb::object {
        return capsule(std::make_unique<GatherStep<decltype(value)>>(elements));
    });
}

nb::object scatter_step(const std::string& reduction, const std::string& type, std::int64_t bytes,
                        std::int64_t size, const Lengths& lengths, const Lengths& steps, std::int64_t stride,
                        std::int64_t length, std::int64_t index_item) {
    const Elements elements = elements_of(lengths, steps, stride, length, index_item);
    return for_update(reduction, type, bytes, [&](auto value, auto combine) -> nb::object {
        return capsule(
            std::make_unique<ScatterStep<decltype(value), decltype(combine)>>(elements, size, combine));
    });
}

nb::object scatter_blocks_step(const std::string& reduction, const std::string& type, std::int64_t bytes,
                               std::int64_t size, const Lengths& lengths, const Lengths& strides,
                               std::int64_t count, std::int64_t block, std::int64_t index_item) {
    if (lengths.size() != strides.size()) throw nb::value_error("a stride for each coordinate expected");
    return for_update(reduction, type, bytes, [&](auto value, auto combine) -> nb::object {
        return capsule(std::make_unique<BlocksStep<decltype(value), decltype(combine)>>(
            lengths, strides, index_item, count, block, size, combine));
    });
}

}  // namespace

void bind_places(nb::module_& m) {
    using nb::arg;
    m.def("select_step", &select_step, arg("puts"), arg("start"), arg("block"), arg("bytes"), arg("front"),
          arg("shape"), arg("behind"), arg("indices"), arg("steps"));
    m.def("gather_step", &gather_step, arg("bytes"), arg("lengths"), arg("steps"), arg("stride"),
          arg("length"), arg("index_item"));
    m.def("scatter_step", &scatter_step, arg("reduction"), arg("type"), arg("bytes"), arg("size"),
          arg("lengths"), arg("steps"), arg("stride"), arg("length"), arg("index_item"));
    m.def("scatter_blocks_step", &scatter_blocks_step, arg("reduction"), arg("type"), arg("bytes"),
          arg("size"), arg("lengths"), arg("strides"), arg("count"), arg("block"), arg("index_item"));
}

}  // namespace mge
