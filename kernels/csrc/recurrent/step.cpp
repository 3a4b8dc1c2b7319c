// The step of a recurrent layer: weights packed in panels, parts are directions and pieces of the batch.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/step_capsule.h"
#include "float/halves.inc"
#include "ordered/panels.h"
#include "recurrent/kernels.h"
#include "recurrent/state.h"
#include "runtime/bind.h"
#include "runtime/isa.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using U16 = nb::ndarray<const std::uint16_t, nb::c_contig, nb::device::cpu>;
using I8 = nb::ndarray<const std::int8_t, nb::c_contig, nb::device::cpu>;

constexpr std::array kCells{"rnn", "gru", "lstm"};
constexpr std::array kActivations{
    "Relu",       "Tanh",        "Sigmoid", "Affine",   "LeakyRelu", "ThresholdedRelu",
    "ScaledTanh", "HardSigmoid", "Elu",     "Softsign", "Softplus"};
constexpr std::int64_t kFewSamples = 4;    // their products with the state wait for memory
constexpr std::int64_t kAtOnce = 1 << 16;  // gates whose input products are computed at once: 256 KB

template <typename Names>
auto number_of(const Names& names, const std::string& name) {
    const auto* const found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) throw nb::value_error(("recurrent_step: no " + name).c_str());
    return found - names.begin();
}

// Weights of products with the state. Few samples wait for them: those that are bfloat16 numbers are kept as
// such.
struct StateColumns {
    Numbers whole;
    Halves halves;

    StateColumns(const float* rows, std::int64_t count, std::int64_t depth, bool few) {
        if (few) halves = columns_of_halves(rows, count, depth);
        if (halves.empty()) whole = columns_packed(rows, count, depth);
    }
    PackedState view() const {
        return {whole.empty() ? nullptr : whole.data(), halves.empty() ? nullptr : halves.data()};
    }
};

struct Direction {
    Numbers weights;
    TiledNumbers tiled;  // in their place, where x is bfloat16
    std::optional<StateColumns> recurrent, recurrent_h;
    std::vector<std::unique_ptr<State>> states;  // for pieces of the batch with most samples, and one less
};

// Which of the optional inputs there are; they follow x or sums in this order.
struct Given {
    bool bias, lengths, h0, c0, peepholes;
};

class RecurrentStep final : public Step {
  public:
    RecurrentStep(RecurrentShape shape, std::vector<CellFunction> functions, Given given, bool reverse,
                  int threads)
        : shape_(shape),
          functions_(std::move(functions)),
          given_(given),
          reverse_(reverse),
          pieces_(std::clamp<std::int64_t>(threads / shape.directions, 1, shape.batch)) {}

    std::vector<Direction> directions;

    std::int64_t most_samples() const { return (shape_.batch + pieces_ - 1) / pieces_; }
    bool uneven() const { return shape_.batch % pieces_ != 0; }

    int parts() const override { return static_cast<int>(shape_.directions * pieces_); }
    std::size_t scratch_bytes() const override {
        const Direction& one = directions.front();
        const State* state = one.states.empty() ? nullptr : one.states.front().get();
        const std::int64_t widened =
            of_halves() ? 3 * shape_.gates() + 4 * most_samples() * shape_.hidden : 0;
        return static_cast<std::size_t>(widened) * sizeof(float) +
               recurrent_scratch(shape_, most_samples(), steps(most_samples()), state, of_halves());
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const std::int64_t d = part / pieces_, piece = part % pieces_, n = shape_.hidden;
        const Direction& weights = directions[static_cast<std::size_t>(d)];
        Scan s{};
        s.shape = shape_;
        s.functions =
            functions_.data() + d * static_cast<std::int64_t>(functions_.size()) / shape_.directions;
        s.direction = d;
        s.begin = shape_.batch * piece / pieces_;
        s.end = shape_.batch * (piece + 1) / pieces_;
        s.backwards = reverse_ || d == 1;
        s.steps = steps(s.end - s.begin);
        if (!weights.states.empty()) s.state = weights.states[s.end - s.begin < most_samples()].get();
        Operands next{buffers, reinterpret_cast<float*>(scratch), of_halves()};
        const std::int64_t states = (s.end - s.begin) * n, place = (d * shape_.batch + s.begin) * n;
        std::byte* const source = *next.buffers++;
        if (of_integers()) {
            s.sums = reinterpret_cast<const float*>(source);
            s.recurrent_bias = next.take(given_.bias, d * n, n);
        } else {
            s.recurrent = weights.recurrent->view();
            s.recurrent_h = weights.recurrent_h->view();
            s.bias = next.take(given_.bias, d * 2 * shape_.gates(), 2 * shape_.gates());
            if (s.bias) s.recurrent_bias = s.bias + 2 * shape_.gates() - n;
        }
        if (of_halves()) {
            s.halves = reinterpret_cast<const std::uint16_t*>(source);
            s.tiled = {weights.tiled.data(), tiled_depth(shape_.input), shape_.gates()};
            s.add = add_;
        } else if (!of_integers()) {
            s.x = reinterpret_cast<const float*>(source);
            s.weights = weights.weights.data();
        }
        if (given_.lengths) s.lengths = reinterpret_cast<const std::int32_t*>(*next.buffers++);
        s.h0 = next.take(given_.h0, place, states);
        s.c0 = next.take(given_.c0, place, states);
        s.peepholes = next.take(given_.peepholes, d * 3 * n, 3 * n);
        std::byte* const y = *next.buffers++;
        s.y = reinterpret_cast<float*>(y);
        if (of_integers()) s.codes = reinterpret_cast<std::uint8_t*>(y);
        if (of_halves()) s.y_halves = reinterpret_cast<std::uint16_t*>(y);
        std::byte* const* const last = next.buffers;
        s.h_last = next.room(true, place, states);
        s.c_last = next.room(shape_.cell == Cell::kLstm, place, states);
        active_recurrent_kernels().scan(s, reinterpret_cast<std::byte*>(next.widened));
        if (!of_halves()) return;
        narrow(s.h_last, reinterpret_cast<std::uint16_t*>(last[0]) + place, states);
        if (s.c_last) narrow(s.c_last, reinterpret_cast<std::uint16_t*>(last[1]) + place, states);
    }

  private:
    // Operands and results one after the other. Those of bfloat16 are in float32, in scratch memory.
    struct Operands {
        std::byte* const* buffers;
        float* widened;
        bool halves;

        // `count` numbers of an operand from `first` on; null where there is none.
        const float* take(bool there, std::int64_t first, std::int64_t count) {
            if (!there || !halves) return room(there, first, count);
            const auto* from = reinterpret_cast<const std::uint16_t*>(*buffers) + first;
            float* const to = room(there, first, count);
            widen(from, to, count);
            return to;
        }
        // Where they are, or what becomes a result.
        float* room(bool there, std::int64_t first, std::int64_t count) {
            if (!there) return nullptr;
            std::byte* const buffer = *buffers++;
            if (!halves) return reinterpret_cast<float*>(buffer) + first;
            widened += count;
            return widened - count;
        }
    };

    bool of_halves() const { return !directions.front().tiled.empty(); }
    bool of_integers() const { return directions.front().weights.empty() && !of_halves(); }
    std::int64_t steps(std::int64_t samples) const {
        if (of_integers()) return 1;
        return std::clamp<std::int64_t>(kAtOnce / (samples * shape_.gates()), 1, shape_.time);
    }

    RecurrentShape shape_;
    std::vector<CellFunction> functions_;
    Given given_;
    bool reverse_;
    std::int64_t pieces_;
#if defined(MGE_X86)
    AddTiled add_ = add_tiled;
#else
    AddTiled add_ = nullptr;
#endif
};

// What both kinds of layers are told: cell, direction, which inputs there are, activations and options.
struct Layer {
    std::string cell;
    std::vector<bool> given;
    bool reverse;
    std::vector<std::string> activations;
    Numbers alphas, betas;
    float clip;
    bool linear_before_reset, input_forget;
};

// lengths: time, batch, input, hidden.
std::unique_ptr<RecurrentStep> step_of(const Layer& layer, const std::vector<std::int64_t>& lengths,
                                       std::int64_t directions, int threads) {
    if (lengths.size() != 4 || layer.given.size() != 5 || directions < 1 ||
        layer.alphas.size() != layer.betas.size() || layer.alphas.size() != layer.activations.size() ||
        layer.activations.size() % static_cast<std::size_t>(directions))
        throw nb::value_error(
            "recurrent_step: 4 lengths, 5 flags, weights with 3 axes, as many activations for each direction "
            "expected");
    const RecurrentShape shape{.cell = static_cast<Cell>(number_of(kCells, layer.cell)),
                               .time = lengths[0],
                               .batch = lengths[1],
                               .input = lengths[2],
                               .hidden = lengths[3],
                               .directions = directions,
                               .clip = layer.clip,
                               .linear_before_reset = layer.linear_before_reset,
                               .input_forget = layer.input_forget};
    std::vector<CellFunction> functions;
    for (std::size_t i = 0; i < layer.activations.size(); ++i)
        functions.push_back({static_cast<Activation>(number_of(kActivations, layer.activations[i])),
                             layer.alphas[i], layer.betas[i]});
    const auto& given = layer.given;
    return std::make_unique<RecurrentStep>(shape, std::move(functions),
                                           Given{given[0], given[1], given[2], given[3], given[4]},
                                           layer.reverse, threads);
}

// Rows of the recurrent weight that are one product; the rest, the last gate of a GRU, are another.
std::int64_t rows_together(const std::string& cell, std::int64_t gates, std::int64_t hidden) {
    return cell == "gru" ? 2 * hidden : gates;
}

std::int64_t gates_of(const std::string& cell, std::int64_t hidden) {
    return RecurrentShape{.cell = static_cast<Cell>(number_of(kCells, cell)), .hidden = hidden}.gates();
}

// scale; lo and hi relative to the zero point; the zero point; whether integers are signed.
using StateNumbers = std::tuple<float, int, int, int, bool>;

StateType type_of(const StateNumbers& numbers) {
    const auto& [scale, lo, hi, zero_point, is_signed] = numbers;
    return {scale, lo, hi, zero_point, is_signed};
}

void pack_inputs(const float* rows, std::int64_t count, std::int64_t depth, Direction& one) {
    one.weights = columns_packed(rows, count, depth);
}
void pack_inputs(const std::uint16_t* rows, std::int64_t count, std::int64_t depth, Direction& one) {
    one.tiled = columns_tiled(rows, count, depth);
}

// w [directions, gates, input], r [directions, gates, hidden].
template <class Weights>
nb::object step_of_weights(const Layer& layer, const std::vector<std::int64_t>& lengths, const Weights& w,
                           const F32& r, const std::optional<StateNumbers>& state, int threads) {
    if (w.ndim() != 3 || r.ndim() != 3) throw nb::value_error("recurrent_step: weights with 3 axes expected");
    auto step = step_of(layer, lengths, static_cast<std::int64_t>(w.shape(0)), threads);
    const std::int64_t n = lengths[3], gates = gates_of(layer.cell, n), input = lengths[2];
    const auto directions = static_cast<std::int64_t>(w.shape(0));
    if (static_cast<std::int64_t>(w.size()) != directions * gates * input ||
        static_cast<std::int64_t>(r.size()) != directions * gates * n)
        throw nb::value_error("recurrent_step: weights of other sizes");
    const std::int64_t together = rows_together(layer.cell, gates, n);
    const bool few = step->most_samples() <= kFewSamples;
    for (std::int64_t d = 0; d < directions; ++d) {
        const float* rows = r.data() + d * gates * n;
        Direction one;
        pack_inputs(w.data() + d * gates * input, gates, input, one);
        one.recurrent.emplace(rows, together, n, few);
        one.recurrent_h.emplace(rows + together * n, gates - together, n, few);
        for (int i = 0; state && i < 2; ++i) one.states.push_back(make_rounding(type_of(*state)));
        step->directions.push_back(std::move(one));
    }
    return capsule(std::move(step));
}

nb::object recurrent_step(const Layer& layer, const std::vector<std::int64_t>& lengths, const F32& w,
                          const F32& r, const std::optional<StateNumbers>& state, int threads) {
    return step_of_weights(layer, lengths, w, r, state, threads);
}

// Of bfloat16, with bits as w. All other values are float32 inside.
nb::object halves_recurrent_step(const Layer& layer, const std::vector<std::int64_t>& lengths, const U16& w,
                                 const F32& r, int threads) {
    if (active_isa() < Isa::kAmx) throw nb::value_error("halves_recurrent_step: needs AMX");
    return step_of_weights(layer, lengths, w, r, std::nullopt, threads);
}

// r [directions * gates, hidden], m [directions * gates].
nb::object integer_recurrent_step(const Layer& layer, const std::vector<std::int64_t>& lengths,
                                  std::int64_t directions, const I8& r, const F32& m,
                                  const StateNumbers& state, int threads) {
    auto step = step_of(layer, lengths, directions, threads);
    const std::int64_t n = lengths[3], gates = gates_of(layer.cell, n);
    if (static_cast<std::int64_t>(r.size()) != directions * gates * n ||
        static_cast<std::int64_t>(m.size()) != directions * gates)
        throw nb::value_error("integer_recurrent_step: weights of other sizes");
    const std::int64_t together = rows_together(layer.cell, gates, n);
    for (std::int64_t d = 0; d < directions; ++d) {
        const std::int8_t* rows = r.data() + d * gates * n;
        const float* factors = m.data() + d * gates;
        const StateWeights first{rows, factors, together};
        const StateWeights last{rows + together * n, factors + together, gates - together};
        Direction one;
        for (std::int64_t samples = step->most_samples(), i = 0; i < 1 + step->uneven(); ++i)
            one.states.push_back(make_state(type_of(state), n, samples - i, first, last));
        step->directions.push_back(std::move(one));
    }
    return capsule(std::move(step));
}

}  // namespace

void bind_recurrent(nb::module_& m) {
    using nb::arg;
    nb::class_<Layer>(m, "RecurrentLayer")
        .def(nb::init<std::string, std::vector<bool>, bool, std::vector<std::string>, Numbers, Numbers, float,
                      bool, bool>(),
             arg("cell"), arg("given"), arg("reverse"), arg("activations"), arg("alphas"), arg("betas"),
             arg("clip"), arg("linear_before_reset"), arg("input_forget"));
    m.def("recurrent_step", &recurrent_step, arg("layer"), arg("lengths"), arg("w"), arg("r"),
          arg("state").none(), arg("threads"));
    m.def("halves_recurrent_step", &halves_recurrent_step, arg("layer"), arg("lengths"), arg("w"), arg("r"),
          arg("threads"));
    m.def("integer_recurrent_step", &integer_recurrent_step, arg("layer"), arg("lengths"), arg("directions"),
          arg("r"), arg("m"), arg("state"), arg("threads"));
}

}  // namespace mge
