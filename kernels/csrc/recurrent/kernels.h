// Recurrent layers over a sequence; one table per instruction set, all with the same results.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiles/product.h"

namespace mge {

enum class Cell { kRnn, kGru, kLstm };

// What an activation of ONNX's recurrent operators computes, with its two parameters.
enum class Activation {
    kRelu,
    kTanh,
    kSigmoid,
    kAffine,
    kLeakyRelu,
    kThresholdedRelu,
    kScaledTanh,
    kHardSigmoid,
    kElu,
    kSoftsign,
    kSoftplus
};

struct CellFunction {
    Activation kind;
    float alpha, beta;
};

struct RecurrentShape {
    Cell cell;
    std::int64_t time, batch, input, hidden, directions;
    float clip;  // infinity: none
    bool linear_before_reset, input_forget;

    std::int64_t gates() const { return (cell == Cell::kRnn ? 1 : cell == Cell::kGru ? 3 : 4) * hidden; }
};

// The state as the recurrent products take it: integers, u8 whatever the type in which they are stored.
class State {
  public:
    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    virtual ~State() = default;
    virtual void round(const float* h, std::int64_t count, std::uint8_t* codes) const noexcept = 0;
    virtual void real(const std::uint8_t* codes, std::int64_t count, float* h) const noexcept = 0;
    // Rows of codes times integer weights (those of the last gate of a GRU lie apart), as real numbers.
    virtual void product(bool last, const std::uint8_t* codes, std::int64_t rows, float* out,
                         std::byte* scratch) const noexcept = 0;
    virtual std::size_t scratch_bytes() const = 0;
    virtual std::uint8_t flip() const = 0;  // what turns codes into stored integers
    virtual std::uint8_t zero() const = 0;  // the stored zero point
};

// Packed weights of the products with the state: float32, or bfloat16 in pairs of panels (ordered/panels.h).
struct PackedState {
    const float* whole;
    const std::uint32_t* halves;

    bool empty() const { return !whole && !halves; }
};

// One direction over some samples of the batch. Pointers to x, y and lengths are those of the whole tensors,
// to biases and peepholes those of the direction, to states those of the samples; lengths, h0, c0, biases and
// peepholes may be null.
struct Scan {
    RecurrentShape shape;
    const CellFunction* functions;       // of this direction
    const float* weights;                // packed
    PackedState recurrent, recurrent_h;  // recurrent_h: the last gate of a GRU
    const float* recurrent_bias;         // which stays with it
    const float *bias, *peepholes, *x, *h0, *c0;
    const float* sums;            // of the gates [time, batch, directions, gates], in place of x
    const std::uint16_t* halves;  // x in bfloat16, in place of x
    TiledColumns tiled;           // weights that meet them, by
    AddTiled add;
    const State* state;  // null: the products take the state as it is
    const std::int32_t* lengths;
    float *y, *h_last, *c_last;
    std::uint8_t* codes;                 // integer results, in place of y
    std::uint16_t* y_halves;             // results in bfloat16, in place of y
    std::int64_t direction, begin, end;  // samples [begin, end)
    bool backwards;
    std::int64_t steps;  // whose input products are computed at once
};

// Bytes of scratch memory that a scan over `samples` needs; `halves`: of x in bfloat16.
inline std::size_t recurrent_scratch(const RecurrentShape& s, std::int64_t samples, std::int64_t steps,
                                     const State* state, bool halves) {
    const std::int64_t rows = halves ? kTiledRows * tiled_depth(s.input) / 2 : 0;
    const std::int64_t numbers = rows + samples * (steps * s.gates() + 4 * s.hidden) + s.gates();
    const std::int64_t rounded = state ? samples * (s.gates() + 2 * s.hidden) : 0;
    return static_cast<std::size_t>(numbers + rounded) * sizeof(float) + (state ? state->scratch_bytes() : 0);
}

struct RecurrentKernels {
    void (*scan)(const Scan& scan, std::byte* scratch);
};

const RecurrentKernels& recurrent_kernels_base();
const RecurrentKernels& recurrent_kernels_avx2();
const RecurrentKernels& recurrent_kernels_avx512();
const RecurrentKernels& active_recurrent_kernels();

}  // namespace mge
