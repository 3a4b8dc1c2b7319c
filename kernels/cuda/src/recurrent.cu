// Recurrent layers over floats. TYPE: float or double; CELL: what a launch computes, GATES: with how many gates.
// The states h and c are [directions, n, hidden]. Rows of the recurrent weight r [directions, all * hidden, hidden]: gate
// after gate, as sums [t, n, directions, all * hidden], the products of inputs with weights.
#include "recurrent.cuh"
#ifndef BARRIER
#define BARRIER() __syncthreads()
#endif

// Beside the cells; a GRU alone is one whose reset gate stands behind the product.
constexpr int GRU_GATES = 3;  // update and reset gate: `update`, and reset * h
constexpr int GRU_STATE = 4;  // the rest of a step, with the product of reset * h

// Sizes, and what is the same in every step. all: gates of the cell; functions: activations of a direction.
struct Layer {
    int directions, n, hidden, all, functions, backwards, input_forget, rounds;
    float scale, lo, hi, more;  // of the integers that the products take h as, if it rounds; more: none
    double clip;
    int codes[6];
    double factors[12];  // two of each activation
};
// Arrays that stay the same.
struct Given {
    const TYPE *sums, *r, *bias, *peepholes;
    const int* lengths;
};

struct Unit {
    const Layer& layer;
    const Given& given;
    int d, sample, j, t;
    COC_FN i64 state() const { return ((i64)d * layer.n + sample) * layer.hidden + j; }
    COC_FN TYPE act(int k, TYPE x) const {
        const int f = d * layer.functions + k;
        return activation(layer.codes[f], (TYPE)layer.factors[2 * f], (TYPE)layer.factors[2 * f + 1], x);
    }
    COC_FN TYPE clipped(int k, TYPE x) const { return act(k, at_most(at_least(x, (TYPE)-layer.clip), (TYPE)layer.clip)); }
    // The bias of a gate: of the input, or of the state.
    COC_FN TYPE bias(int gate, int of_state) const {
        const i64 all = (i64)layer.all * layer.hidden;
        return given.bias ? given.bias[(2 * d + of_state) * all + (i64)gate * layer.hidden + j] : (TYPE)0;
    }
    COC_FN TYPE input(int gate) const {
        const i64 row = ((i64)t * layer.n + sample) * layer.directions + d;
        return given.sums[(row * layer.all + gate) * layer.hidden + j];
    }
    // What the sum of a gate begins with.
    COC_FN TYPE begin(int gate) const {
        if (CELL == GRU && gate == 2) return bias(gate, 1);
        return (bias(gate, 0) + bias(gate, 1)) + input(gate);
    }
    COC_FN TYPE peephole(int k, TYPE c) const {
        return given.peepholes ? given.peepholes[((i64)d * 3 + k) * layer.hidden + j] * c : (TYPE)0;
    }
    // Sums of the gates, with the recurrent products, become states. A shorter sample keeps its state; its results are 0.
    COC_FN void finish(const TYPE (&sum)[GATES], const TYPE* h, TYPE* h_out, const TYPE* c, TYPE* c_out, TYPE* update, TYPE* y) const {
        const i64 at = state();
        const TYPE before = h ? h[at] : (TYPE)0;
        if constexpr (CELL == GRU_GATES) {
            update[at] = clipped(0, sum[0]);
            h_out[at] = clipped(0, sum[1]) * before;
            return;
        } else {
            TYPE now, cell = 0, cell_before = 0;
            if constexpr (CELL == RNN) {
                now = clipped(0, sum[0]);
            } else if constexpr (CELL == GRU) {
                const TYPE z = clipped(0, sum[0]), reset = clipped(0, sum[1]);
                const TYPE inside = (bias(2, 0) + input(2)) + reset * sum[2];
                now = (1 - z) * clipped(1, inside) + z * before;
            } else if constexpr (CELL == GRU_STATE) {
                const TYPE z = update[at];
                now = (1 - z) * clipped(1, sum[0]) + z * before;
            } else {
                cell_before = c ? c[at] : (TYPE)0;
                const TYPE i = clipped(0, sum[0] + peephole(0, cell_before));
                const TYPE f = layer.input_forget ? 1 - i : clipped(0, sum[2] + peephole(2, cell_before));
                cell = f * cell_before + i * clipped(1, sum[3]);
                now = clipped(0, sum[1] + peephole(1, cell)) * act(2, cell);
            }
            const bool within = !given.lengths || t < given.lengths[sample];
            y[(((i64)t * layer.directions + d) * layer.n + sample) * layer.hidden + j] = within ? now : now * 0;
            h_out[at] = within ? now : before;
            if constexpr (CELL == LSTM) c_out[at] = within ? cell : cell_before;
        }
    }
};

// A number of a state as products take it.
COC_FN TYPE taken(const Layer& layer, TYPE h) {
    if (!layer.rounds) return h;
    const float code = rintf(fminf(fmaxf(__fdiv_rn((float)h, layer.scale), layer.lo), layer.hi));
    return (TYPE)(code * layer.scale);
}

#define STEP_PARAMETERS                                                                                               \
    const TYPE *sums, const TYPE *r, const TYPE *bias, const TYPE *peepholes, const int *lengths, const TYPE *source, \
        const TYPE *h, TYPE *h_out, const TYPE *c, TYPE *c_out, TYPE *update, TYPE *y, int step, int steps, Layer layer
// source: what the products take, h or reset * h; null where it is zero.
#define FIRST_GATE (CELL == GRU_STATE ? 2 : 0)
COC_FN int time_of(const Layer& layer, int d, int step, int steps) { return layer.backwards || d == 1 ? steps - 1 - step : step; }

// Few samples: a warp for each number of a state.
KERNEL_BLOCKS(cuda_recurrent_warps, 256, 3, STEP_PARAMETERS) {
    const Given given = {sums, r, bias, peepholes, lengths};
    const i64 at = (i64)blockIdx.x * 8 + threadIdx.x / 32, units = (i64)layer.directions * layer.n * layer.hidden;
    if (at >= units) return;  // whole warps
    const int hidden = layer.hidden, j = (int)(at % hidden), sample = (int)(at / hidden % layer.n), d = (int)(at / hidden / layer.n);
    const Unit unit = {layer, given, d, sample, j, time_of(layer, d, step, steps)};
    TYPE sum[GATES];
#pragma unroll
    for (int g = 0; g < GATES; g++) sum[g] = 0;
    if (source) {
        const TYPE *from = source + at - j, *row = r + ((i64)(d * layer.all + FIRST_GATE) * hidden + j) * hidden;
        for (int k = threadIdx.x % 32; k < hidden; k += 32) {
            const TYPE v = taken(layer, from[k]);
#pragma unroll
            for (int g = 0; g < GATES; g++) sum[g] = sum[g] + v * row[(i64)g * hidden * hidden + k];
        }
#pragma unroll
        for (int g = 0; g < GATES; g++)
            for (int by = 16; by; by /= 2) sum[g] = sum[g] + __shfl_xor_sync(0xffffffffu, sum[g], by);
    }
    if (threadIdx.x % 32) return;
#pragma unroll
    for (int g = 0; g < GATES; g++) sum[g] = unit.begin(FIRST_GATE + g) + sum[g];
    unit.finish(sum, h, h_out, c, c_out, update, y);
}

// 32 samples by 8 numbers of their states a block. The products of a number are added in the order of places.
#define PLACES 32
#define PITCH 36  // lanes read 16 bytes of rows that lie in other banks
struct alignas(4 * sizeof(TYPE)) Quad {
    TYPE v[4];
};
KERNEL_BLOCKS(cuda_recurrent_tiles, 256, 2, STEP_PARAMETERS) {
    SHARED(TYPE, states, 32 * PITCH);
    SHARED(TYPE, weights, 8 * GATES * PLACES);
    const Given given = {sums, r, bias, peepholes, lengths};
    const int hidden = layer.hidden, n = layer.n, lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = blockIdx.z;
    const int sample = blockIdx.y * 32 + lane, j = blockIdx.x * 8 + warp;
    const bool mine = sample < n && j < hidden;
    const Unit unit = {layer, given, d, sample, j, time_of(layer, d, step, steps)};
    TYPE sum[GATES];
#pragma unroll
    for (int g = 0; g < GATES; g++) sum[g] = mine ? unit.begin(FIRST_GATE + g) : (TYPE)0;
    if (source) {
        TYPE next_state[4], next_weight[GATES];  // of the next places, on their way while these are multiplied
        const TYPE *from = source + (i64)d * n * hidden, *rows = r + (i64)(d * layer.all + FIRST_GATE) * hidden * hidden;
        const auto fetch = [&](int first) {
            const int place = first + lane;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int other = blockIdx.y * 32 + warp + 8 * i;
                next_state[i] = place < hidden && other < n ? from[(i64)other * hidden + place] : (TYPE)0;
            }
#pragma unroll
            for (int g = 0; g < GATES; g++)
                next_weight[g] = place < hidden && j < hidden ? rows[((i64)g * hidden + j) * hidden + place] : (TYPE)0;
        };
        fetch(0);
        for (int first = 0; first < hidden; first += PLACES) {
#pragma unroll
            for (int i = 0; i < 4; i++) states[(warp + 8 * i) * PITCH + lane] = taken(layer, next_state[i]);
#pragma unroll
            for (int g = 0; g < GATES; g++) weights[(warp * GATES + g) * PLACES + lane] = next_weight[g];
            BARRIER();
            if (first + PLACES < hidden) fetch(first + PLACES);
#pragma unroll
            for (int k = 0; k < PLACES; k += 4) {
                const Quad v = wide_load<Quad>(states, lane * PITCH + k);
#pragma unroll
                for (int g = 0; g < GATES; g++) {
                    const Quad w = wide_load<Quad>(weights, (warp * GATES + g) * PLACES + k);
#pragma unroll
                    for (int i = 0; i < 4; i++) sum[g] = sum[g] + v.v[i] * w.v[i];
                }
            }
            BARRIER();
        }
    }
    if (mine) unit.finish(sum, h, h_out, c, c_out, update, y);
}
