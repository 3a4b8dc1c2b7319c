// Recurrent layers whose recurrent product is an integer one. YT: the type of results.
// The states h and c [directions, n, hidden] are floats; `centred` are the integers of h less their zero point, which the
// products of the next step take. Rows of the recurrent weight: those of a direction, gate after gate.
#include "integer.cuh"
#include "recurrent.cuh"

struct Layer {
    const float* sums;  // of the gates before the recurrent product: [t, n, directions, gates, hidden]
    const s8* r;
    const float *M, *bias, *peepholes;  // bias: of the last gate of a GRU; null where there is none, as peepholes
    const int *codes, *lengths;
    const float* factors;  // two for each activation
    float clip, s;
    int lo, hi, z, cell, directions, n, hidden, functions;

    COC_FN float act(int d, int k, float x) const {  // without the clip
        const int f = d * functions + k;
        return activation(codes[f], factors[2 * f], factors[2 * f + 1], x);
    }
    COC_FN float clipped(int d, int k, float x) const { return act(d, k, at_most(at_least(x, -clip), clip)); }
    COC_FN int code(float h) const { return rounded(__fdiv_rn(h, s), (float)lo, (float)hi, 0); }
    // t + the product of a state with a row of a gate, by a warp.
    COC_FN float added(float t, const int* state, i64 row) const {
        i64 acc = 0;
        for (int k = threadIdx.x % 32; k < hidden; k += 32) acc += (i64)state[k] * (int)r[row * hidden + k];
        for (int by = 16; by; by /= 2) acc += __shfl_xor_sync(0xffffffffu, acc, by);
        return __fadd_rn(t, __fmul_rn((float)acc, M[row]));
    }
};
#define LAYER_PARAMETERS                                                                                                  \
    const float *sums, const s8 *r, const float *M, const float *bias, const float *peepholes, const int *codes,         \
        const int *lengths, const float *factors, float clip, float s, int lo, int hi, int z, int cell, int directions, \
        int n, int hidden, int functions
#define LAYER Layer{sums, r, M, bias, peepholes, codes, lengths, factors, clip, s, lo, hi, z, cell, directions, n, hidden, functions}

// The states before the first step: those that are given, or zeros.
KERNEL(cuda_recurrent_begin, const float* h, const float* c, float* h_out, float* c_out, int* centred, float s, int lo, int hi, i64 n) {
    FOR_EACH(i, n) {
        const float value = h ? h[i] : 0.f;
        h_out[i] = value;
        if (c_out) c_out[i] = c ? c[i] : 0.f;
        centred[i] = rounded(__fdiv_rn(value, s), (float)lo, (float)hi, 0);
    }
}

// The update and reset gate of a GRU whose product takes reset * h: `update`, and the integers of that product.
KERNEL_BOUNDS(cuda_recurrent_reset, 256, const float* h, const int* centred, float* update, int* reset_centred, int step, int steps,
              int backwards, LAYER_PARAMETERS) {
    const Layer layer = LAYER;
    const i64 unit = (i64)blockIdx.x * 8 + threadIdx.x / 32, units = (i64)directions * n * hidden;
    if (unit >= units) return;  // whole warps
    const int j = (int)(unit % hidden), sample = (int)(unit / hidden % n), d = (int)(unit / hidden / n);
    const int t = backwards || d == 1 ? steps - 1 - step : step;
    const i64 row = (i64)d * 3 * hidden + j, first = (((i64)t * n + sample) * directions + d) * 3 * hidden + j;
    const int* state = centred + unit - j;
    const float z_gate = layer.clipped(d, 0, layer.added(sums[first], state, row));
    const float reset = layer.clipped(d, 0, layer.added(sums[first + hidden], state, row + hidden));
    if (threadIdx.x % 32) return;
    update[unit] = z_gate;
    reset_centred[unit] = layer.code(__fmul_rn(reset, h[unit]));
}

// One step of all directions; a warp computes one unit of a state. `update` and `reset_centred` come from the kernel above.
KERNEL_BOUNDS(cuda_recurrent_step, 256, float* h, float* c, const int* centred, int* next, const float* update,
              const int* reset_centred, YT* y, int step, int steps, int backwards, int input_forget, LAYER_PARAMETERS) {
    const Layer layer = LAYER;
    const i64 unit = (i64)blockIdx.x * 8 + threadIdx.x / 32, units = (i64)directions * n * hidden;
    if (unit >= units) return;
    const int j = (int)(unit % hidden), sample = (int)(unit / hidden % n), d = (int)(unit / hidden / n);
    const int t = backwards || d == 1 ? steps - 1 - step : step, gates = cell == LSTM ? 4 : cell == GRU ? 3 : 1;
    const i64 row = (i64)d * gates * hidden + j, first = (((i64)t * n + sample) * directions + d) * gates * hidden + j;
    const int* state = centred + unit - j;
    const float h_before = h[unit], c_before = c ? c[unit] : 0.f;
    float h_now, c_now = 0.f;
    if (cell == RNN) {
        h_now = layer.clipped(d, 0, layer.added(sums[first], state, row));
    } else if (cell == GRU) {
        float z_gate, hidden_sum = sums[first + 2 * hidden];
        if (update) {
            z_gate = update[unit];
            hidden_sum = layer.added(hidden_sum, reset_centred + unit - j, row + 2 * hidden);
        } else {
            z_gate = layer.clipped(d, 0, layer.added(sums[first], state, row));
            const float reset = layer.clipped(d, 0, layer.added(sums[first + hidden], state, row + hidden));
            const float product = layer.added(bias ? bias[d * hidden + j] : 0.f, state, row + 2 * hidden);
            hidden_sum = __fadd_rn(hidden_sum, __fmul_rn(reset, product));
        }
        h_now = __fadd_rn(__fmul_rn(1.f - z_gate, layer.clipped(d, 1, hidden_sum)), __fmul_rn(z_gate, h_before));
    } else {
        float i_gate = layer.added(sums[first], state, row), o_gate = layer.added(sums[first + hidden], state, row + hidden);
        float f_gate = layer.added(sums[first + 2 * hidden], state, row + 2 * hidden);
        const float g = layer.added(sums[first + 3 * hidden], state, row + 3 * hidden);
        const float* of = peepholes ? peepholes + (i64)d * 3 * hidden + j : nullptr;
        if (of) i_gate = __fadd_rn(i_gate, __fmul_rn(of[0], c_before));
        i_gate = layer.clipped(d, 0, i_gate);
        if (of) f_gate = __fadd_rn(f_gate, __fmul_rn(of[2 * hidden], c_before));
        f_gate = input_forget ? 1.f - i_gate : layer.clipped(d, 0, f_gate);
        c_now = __fadd_rn(__fmul_rn(f_gate, c_before), __fmul_rn(i_gate, layer.clipped(d, 1, g)));
        if (of) o_gate = __fadd_rn(o_gate, __fmul_rn(of[hidden], c_now));
        h_now = __fmul_rn(layer.clipped(d, 0, o_gate), layer.act(d, 2, c_now));
    }
    if (threadIdx.x % 32) return;
    const bool within = !lengths || t < lengths[sample];  // a shorter sample keeps its state; its results are 0
    const float result = within ? h_now : h_now * 0.f, kept = within ? h_now : h_before;
    y[(((i64)t * directions + d) * n + sample) * hidden + j] = (YT)(layer.code(result) + z);
    h[unit] = kept;
    next[unit] = layer.code(kept);
    if (c) c[unit] = within ? c_now : c_before;
}
