// The step of a recurrent layer: weights packed in panels, parts are directions and pieces of the batch.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "common/step_capsule.h"
#include "recurrent/kernels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Numbers = std::vector<float>;

constexpr std::array kCells{"rnn", "gru", "lstm"};
constexpr std::array kActivations{
    "Relu",       "Tanh",        "Sigmoid", "Affine",   "LeakyRelu", "ThresholdedRelu",
    "ScaledTanh", "HardSigmoid", "Elu",     "Softsign", "Softplus"};
constexpr std::int64_t kAtOnce = 1 << 16;  // gates whose input products are computed at once: 256 KB

template <typename Names>
auto number_of(const Names& names, const std::string& name) {
    const auto* const found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) throw nb::value_error(("recurrent_step: no " + name).c_str());
    return found - names.begin();
}

// Rows of a matrix [rows, depth] as columns of panels: [rows / kPanel][depth][kPanel], zeros in the last.
Numbers packed(const float* rows, std::int64_t count, std::int64_t depth) {
    const std::int64_t panels = (count + kPanel - 1) / kPanel;
    Numbers out(static_cast<std::size_t>(panels * depth * kPanel));
    for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t k = 0; k < depth; ++k)
            out[static_cast<std::size_t>((r / kPanel * depth + k) * kPanel + r % kPanel)] =
                rows[r * depth + k];
    return out;
}

struct Direction {
    Numbers weights, recurrent, recurrent_h;
};

// Which of the optional inputs there are; they follow x in this order.
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

    int parts() const override { return static_cast<int>(shape_.directions * pieces_); }
    std::size_t scratch_bytes() const override {
        const std::int64_t most = (shape_.batch + pieces_ - 1) / pieces_;
        return static_cast<std::size_t>(recurrent_scratch(shape_, most, steps(most))) * sizeof(float);
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const std::int64_t d = part / pieces_, piece = part % pieces_, n = shape_.hidden;
        const Direction& weights = directions[static_cast<std::size_t>(d)];
        int next = 0;
        const auto take = [&](bool there) {
            return there ? reinterpret_cast<float*>(buffers[next++]) : nullptr;
        };
        Scan s{};
        s.shape = shape_;
        s.functions =
            functions_.data() + d * static_cast<std::int64_t>(functions_.size()) / shape_.directions;
        s.weights = weights.weights.data();
        s.recurrent = weights.recurrent.data();
        s.recurrent_h = weights.recurrent_h.data();
        s.x = take(true);
        if (given_.bias) s.bias = take(true) + d * 2 * shape_.gates();
        s.lengths = reinterpret_cast<const std::int32_t*>(take(given_.lengths));
        s.h0 = take(given_.h0);
        s.c0 = take(given_.c0);
        if (given_.peepholes) s.peepholes = take(true) + d * 3 * n;
        s.y = take(true);
        s.h_last = take(true);
        s.c_last = take(shape_.cell == Cell::kLstm);
        s.direction = d;
        s.begin = shape_.batch * piece / pieces_;
        s.end = shape_.batch * (piece + 1) / pieces_;
        s.backwards = reverse_ || d == 1;
        s.steps = steps(s.end - s.begin);
        active_recurrent_kernels().scan(s, reinterpret_cast<float*>(scratch));
    }

  private:
    std::int64_t steps(std::int64_t samples) const {
        return std::clamp<std::int64_t>(kAtOnce / (samples * shape_.gates()), 1, shape_.time);
    }

    RecurrentShape shape_;
    std::vector<CellFunction> functions_;
    Given given_;
    bool reverse_;
    std::int64_t pieces_;
};

// lengths: time, batch, input, hidden. w [directions, gates, input], r [directions, gates, hidden].
nb::object recurrent_step(const std::string& cell, std::vector<std::int64_t> lengths, const F32& w,
                          const F32& r, std::vector<bool> given, bool reverse,
                          const std::vector<std::string>& activations, const Numbers& alphas,
                          const Numbers& betas, float clip, bool linear_before_reset, bool input_forget,
                          int threads) {
    if (lengths.size() != 4 || given.size() != 5 || w.ndim() != 3 || r.ndim() != 3 ||
        alphas.size() != betas.size() || alphas.size() != activations.size() ||
        activations.size() % w.shape(0))
        throw nb::value_error(
            "recurrent_step: 4 lengths, 5 flags, weights with 3 axes, as many activations for each direction "
            "expected");
    const RecurrentShape shape{.cell = static_cast<Cell>(number_of(kCells, cell)),
                               .time = lengths[0],
                               .batch = lengths[1],
                               .input = lengths[2],
                               .hidden = lengths[3],
                               .directions = static_cast<std::int64_t>(w.shape(0)),
                               .clip = clip,
                               .linear_before_reset = linear_before_reset,
                               .input_forget = input_forget};
    if (static_cast<std::int64_t>(w.size()) != shape.directions * shape.gates() * shape.input ||
        static_cast<std::int64_t>(r.size()) != shape.directions * shape.gates() * shape.hidden)
        throw nb::value_error("recurrent_step: weights of other sizes");
    std::vector<CellFunction> functions;
    for (std::size_t i = 0; i < activations.size(); ++i)
        functions.push_back(
            {static_cast<Activation>(number_of(kActivations, activations[i])), alphas[i], betas[i]});
    auto step = std::make_unique<RecurrentStep>(shape, std::move(functions),
                                                Given{given[0], given[1], given[2], given[3], given[4]},
                                                reverse, threads);
    const std::int64_t gates = shape.gates(), n = shape.hidden;
    const std::int64_t together = shape.cell == Cell::kGru ? 2 * n : gates;
    for (std::int64_t d = 0; d < shape.directions; ++d) {
        const float* rows = r.data() + d * gates * n;
        step->directions.push_back({packed(w.data() + d * gates * shape.input, gates, shape.input),
                                    packed(rows, together, n),
                                    packed(rows + together * n, gates - together, n)});
    }
    return capsule(std::move(step));
}

}  // namespace

void bind_recurrent(nb::module_& m) {
    using nb::arg;
    m.def("recurrent_step", &recurrent_step, arg("cell"), arg("lengths"), arg("w"), arg("r"), arg("given"),
          arg("reverse"), arg("activations"), arg("alphas"), arg("betas"), arg("clip"),
          arg("linear_before_reset"), arg("input_forget"), arg("threads"));
}

}  // namespace mge
