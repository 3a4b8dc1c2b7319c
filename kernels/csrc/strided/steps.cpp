// Steps over arrays with strides: elements moved to other places, and arithmetic that broadcasts.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "common/step_capsule.h"
#include "runtime/bind.h"
#include "strided/nest.h"
#include "strided/transpose.h"

namespace nb = nanobind;

namespace mge {
namespace {

using Lengths = std::vector<std::int64_t>;

// One strided copy: from buffer `source` to buffer `target`, offsets in bytes.
struct Move {
    std::size_t source, target;
    std::int64_t from, to;
    Nest nest;  // operand 0: target, 1: source
};

// Every element of a row as often as there are columns.
template <class T>
void repeat_elements(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t cols) {
    auto* y = reinterpret_cast<T*>(to);
    const auto* x = reinterpret_cast<const T*>(from);
    if (cols == 2) {
        for (std::int64_t r = 0; r < rows; ++r) y[2 * r] = y[2 * r + 1] = x[r];
        return;
    }
    for (std::int64_t r = 0; r < rows; ++r, y += cols) std::fill_n(y, cols, x[r]);
}

// Some bytes, most often few.
inline void copy_bytes(std::byte* to, const std::byte* from, std::int64_t count) {
    if (count > 256) {
        std::memcpy(to, from, static_cast<std::size_t>(count));
        return;
    }
    for (; count >= 32; count -= 32, to += 32, from += 32) std::memcpy(to, from, 32);
    if (count & 16) std::memcpy(to, from, 16), to += 16, from += 16;
    if (count & 8) std::memcpy(to, from, 8), to += 8, from += 8;
    for (count &= 7; count > 0; --count) *to++ = *from++;
}

// rows x cols elements.
template <class T>
void copy_matrix(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t cols,
                 std::int64_t to_row, std::int64_t from_row, std::int64_t to_col, std::int64_t from_col) {
    constexpr std::int64_t size = sizeof(T);
    if (to_col == size && from_col == size) {
        for (std::int64_t r = 0; r < rows; ++r) copy_bytes(to + r * to_row, from + r * from_row, cols * size);
    } else if (to_col == size && from_row == size) {
        turn<T>(to, from, cols, rows, to_row, from_col);
    } else if (to_col == size && from_col == 0 && from_row == size && to_row == cols * size) {
        repeat_elements<T>(to, from, rows, cols);
    } else {
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < cols; ++c)
                std::memcpy(to + r * to_row + c * to_col, from + r * from_row + c * from_col, sizeof(T));
    }
}

template <class T>
class MoveStep final : public Step {
  public:
    MoveStep(std::vector<Move> moves, std::size_t filled, std::size_t bytes, T value)
        : moves_(std::move(moves)), filled_(filled), bytes_(bytes), value_(value) {}

    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        if (bytes_) std::fill_n(reinterpret_cast<T*>(buffers[filled_]), bytes_ / sizeof(T), value_);
        for (const Move& m : moves_) {
            const Nest& n = m.nest;
            const std::size_t last = n.dims() - 1;
            const bool matrix = n.dims() > 1;
            std::byte* to = buffers[m.target] + m.to;
            const std::byte* from = buffers[m.source] + m.from;
            n.each(2, [&](const std::int64_t* at) {
                copy_matrix<T>(to + at[0], from + at[1], matrix ? n.shape[last - 1] : 1, n.shape[last],
                               matrix ? n.strides[0][last - 1] : 0, matrix ? n.strides[1][last - 1] : 0,
                               n.strides[0][last], n.strides[1][last]);
            });
        }
    }

  private:
    std::vector<Move> moves_;
    std::size_t filled_, bytes_;
    T value_;
};

// moves: (source, target, from, to), shape, strides of the target, strides of the source; `bytes` of the
// buffer `filled` are set to `value` first
nb::object move_step(int item, const std::vector<Lengths>& places, const std::vector<Lengths>& shapes,
                     const std::vector<Lengths>& to_strides, const std::vector<Lengths>& from_strides,
                     std::size_t filled, std::size_t bytes, std::uint64_t value) {
    std::vector<Move> moves;
    for (std::size_t i = 0; i < places.size(); ++i) {
        const Lengths& p = places[i];
        moves.push_back({static_cast<std::size_t>(p.at(0)), static_cast<std::size_t>(p.at(1)), p.at(2),
                         p.at(3), Nest(shapes.at(i), {to_strides.at(i), from_strides.at(i)})});
    }
    switch (item) {
        case 1:
            return capsule(std::make_unique<MoveStep<std::uint8_t>>(moves, filled, bytes,
                                                                    static_cast<std::uint8_t>(value)));
        case 2:
            return capsule(std::make_unique<MoveStep<std::uint16_t>>(moves, filled, bytes,
                                                                     static_cast<std::uint16_t>(value)));
        case 4:
            return capsule(std::make_unique<MoveStep<std::uint32_t>>(moves, filled, bytes,
                                                                     static_cast<std::uint32_t>(value)));
        case 8:
            return capsule(std::make_unique<MoveStep<std::uint64_t>>(moves, filled, bytes, value));
        default:
            throw nb::value_error("move_step: elements of 1, 2, 4 or 8 bytes expected");
    }
}

// F: what computes an element from two.
template <class F>
class BroadcastStep final : public Step {
  public:
    explicit BroadcastStep(Nest nest) : nest_(std::move(nest)) {}

    void run(int, std::byte* const* buffers, std::byte*) const noexcept override {
        const F combine;
        const std::size_t last = nest_.dims() - 1;
        const std::int64_t count = nest_.shape[last], a_step = nest_.strides[1][last] / 4,
                           b_step = nest_.strides[2][last] / 4;
        nest_.each(1, [&](const std::int64_t* at) {
            auto* y = reinterpret_cast<float*>(buffers[2] + at[0]);
            const auto* a = reinterpret_cast<const float*>(buffers[0] + at[1]);
            const auto* b = reinterpret_cast<const float*>(buffers[1] + at[2]);
            if (a_step == 1 && b_step == 1) {
                for (std::int64_t i = 0; i < count; ++i) y[i] = combine(a[i], b[i]);
            } else if (a_step == 1 && b_step == 0) {
                for (std::int64_t i = 0; i < count; ++i) y[i] = combine(a[i], *b);
            } else if (a_step == 0 && b_step == 1) {
                for (std::int64_t i = 0; i < count; ++i) y[i] = combine(*a, b[i]);
            } else {
                for (std::int64_t i = 0; i < count; ++i) y[i] = combine(a[i * a_step], b[i * b_step]);
            }
        });
    }

  private:
    Nest nest_;
};

nb::object broadcast_step(const std::string& op, const Lengths& shape, const Lengths& y, const Lengths& a,
                          const Lengths& b) {
    Nest nest(shape, {y, a, b});
    if (op == "add") return capsule(std::make_unique<BroadcastStep<std::plus<float>>>(std::move(nest)));
    if (op == "sub") return capsule(std::make_unique<BroadcastStep<std::minus<float>>>(std::move(nest)));
    if (op == "mul") return capsule(std::make_unique<BroadcastStep<std::multiplies<float>>>(std::move(nest)));
    if (op == "div") return capsule(std::make_unique<BroadcastStep<std::divides<float>>>(std::move(nest)));
    throw nb::value_error(("broadcast_step: no " + op).c_str());
}

}  // namespace

void bind_strided(nb::module_& m) {
    m.def("move_step", &move_step, nb::arg("item"), nb::arg("places"), nb::arg("shapes"),
          nb::arg("to_strides"), nb::arg("from_strides"), nb::arg("filled"), nb::arg("bytes"),
          nb::arg("value"));
    m.def("broadcast_step", &broadcast_step, nb::arg("op"), nb::arg("shape"), nb::arg("y"), nb::arg("a"),
          nb::arg("b"));
}

}  // namespace mge
