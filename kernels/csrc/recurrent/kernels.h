// Recurrent layers over a sequence; one table per instruction set, all with the same results.
#pragma once
#include <cstdint>
#include <vector>

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

inline constexpr std::int64_t kPanel = 16;  // columns of packed weights that lie together

// One direction over some samples of the batch. Pointers to x, y and lengths are those of the whole tensors;
// lengths, h0, c0, bias and peepholes may be null.
struct Scan {
    RecurrentShape shape;
    const CellFunction* functions;                   // of this direction
    const float *weights, *recurrent, *recurrent_h;  // packed; recurrent_h: the last gate of a GRU
    const float *bias, *peepholes, *x, *h0, *c0;
    const std::int32_t* lengths;
    float *y, *h_last, *c_last;
    std::int64_t direction, begin, end;  // samples [begin, end)
    bool backwards;
    std::int64_t steps;  // whose input products are computed at once
};

// Numbers of scratch memory that a scan over `samples` needs.
inline std::int64_t recurrent_scratch(const RecurrentShape& s, std::int64_t samples, std::int64_t steps) {
    return samples * (steps * s.gates() + 4 * s.hidden) + 2 * s.gates();
}

struct RecurrentKernels {
    void (*scan)(const Scan& scan, float* scratch);
};

const RecurrentKernels& recurrent_kernels_base();
const RecurrentKernels& recurrent_kernels_avx2();
const RecurrentKernels& recurrent_kernels_avx512();
const RecurrentKernels& active_recurrent_kernels();

}  // namespace mge
