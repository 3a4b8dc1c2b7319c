// Recurrent layers of floats. TYPE: float or double. Every sum is made in the order of its elements, each product
// rounded once with its sum, as the reference makes it. h and c [directions, n, hidden] are the states; `seen` is what
// the products of the next step take: h, or h rounded to a quantized dtype. Rows of weights: those of a direction, gate
// after gate.
#include "integer.cuh"
#include "recurrent.cuh"

struct Rounding {  // of a state; without one the scale is 0
    float scale;
    int lo, hi;
    COC_FN TYPE of(TYPE h) const {
        return scale == 0.f ? h : (TYPE)((float)rounded(__fdiv_rn((float)h, scale), (float)lo, (float)hi, 0) * scale);
    }
};

// The states before the first step: those that are given, or zeros.
KERNEL(cuda_recurrent_begin, const TYPE* h, const TYPE* c, TYPE* h_out, TYPE* c_out, TYPE* seen, float scale, int lo,
       int hi, i64 n) {
    const Rounding rounding = {scale, lo, hi};
    FOR_EACH(i, n) {
        const TYPE value = h ? h[i] : (TYPE)0;
        h_out[i] = value;
        if (c_out) c_out[i] = c ? c[i] : (TYPE)0;
        seen[i] = rounding.of(value);
    }
}

// sums [rows, directions, gates] = biases + x [rows, width] * w [directions * gates, width]; a block computes 64 x 64.
// Of bias [directions, 2 * gates] the second half is added to gates before `apart`.
KERNEL_BOUNDS(cuda_recurrent_sums, 256, const TYPE* x, const TYPE* w, const TYPE* bias, TYPE* sums, i64 rows, int width,
              int columns, int gates, int apart) {
    constexpr int side = 64, depth = 16, pad = side + 4;
    SHARED(TYPE, left, depth * pad);
    SHARED(TYPE, right, depth * pad);
    const i64 row = (i64)blockIdx.x * side;
    const int column = blockIdx.y * side, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    TYPE acc[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int g = column + tx + 16 * j, d = g / gates, of = g - d * gates;
        TYPE first = 0;
        if (bias && g < columns) {
            const TYPE* own = bias + (i64)d * 2 * gates;
            first = of < apart ? own[of] + own[gates + of] : own[of];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[i][j] = first;
    }
    for (int begin = 0; begin < width; begin += depth) {
        for (int e = threadIdx.x; e < side * depth; e += 256) {
            const int k = e % depth, at = e / depth;
            const bool inside = begin + k < width;
            left[k * pad + at] = inside && row + at < rows ? x[(row + at) * width + begin + k] : (TYPE)0;
            right[k * pad + at] = inside && column + at < columns ? w[(i64)(column + at) * width + begin + k] : (TYPE)0;
        }
        __syncthreads();
        const int count = width - begin < depth ? width - begin : depth;
        for (int k = 0; k < count; ++k) {
            TYPE a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = left[k * pad + ty + 16 * i];
#pragma unroll
            for (int j = 0; j < 4; ++j) b[j] = right[k * pad + tx + 16 * j];
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) acc[i][j] = fused(a[i], b[j], acc[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (row + ty + 16 * i < rows && column + tx + 16 * j < columns)
                sums[(row + ty + 16 * i) * columns + column + tx + 16 * j] = acc[i][j];
}

struct Layer {
    const TYPE *sums, *r, *bias, *peepholes;  // bias [directions, 2 * gates * hidden]
    const int *codes, *lengths;
    const TYPE* factors;  // two for each activation
    TYPE clip;
    float scale;
    int lo, hi, cell, directions, n, hidden, functions;

    COC_FN TYPE act(int d, int k, TYPE x) const {  // without the clip
        const int f = d * functions + k;
        return activation(codes[f], factors[2 * f], factors[2 * f + 1], x);
    }
    COC_FN TYPE clipped(int d, int k, TYPE x) const { return act(d, k, at_most(at_least(x, -clip), clip)); }
    COC_FN int gates() const { return cell == LSTM ? 4 : cell == GRU ? 3 : 1; }
};
#define LAYER_PARAMETERS                                                                                             \
    const TYPE *sums, const TYPE *r, const TYPE *bias, const TYPE *peepholes, const int *codes, const int *lengths, \
        const TYPE *factors, TYPE clip, float scale, int lo, int hi, int cell, int directions, int n, int hidden, \
        int functions
#define LAYER Layer{sums, r, bias, peepholes, codes, lengths, factors, clip, scale, lo, hi, cell, directions, n, hidden, functions}

// A block computes 32 units of 8 samples of one direction; thread (unit, sample) is unit + 32 * sample. Grid: samples along x,
// which may be more than y has blocks; units; directions.
constexpr int kUnits = 32, kSamples = 8, kDepth = 16;
struct Unit {
    int j, sample, d;
    bool inside;
};
COC_FN Unit unit_of(const Layer& l) {
    const int j = blockIdx.y * kUnits + threadIdx.x % kUnits, sample = blockIdx.x * kSamples + threadIdx.x / kUnits;
    return {j, sample, (int)blockIdx.z, j < l.hidden && sample < l.n};
}

// acc[k] += the product of a state of this thread's sample with row j of gate first + k, for `count` gates.
template <class S, class R>
COC_FN void add_products(const Layer& l, const Unit& u, const TYPE* states, int first, int count, TYPE (&acc)[4], S& state,
                         R& rows) {
    const TYPE* from = states + (i64)u.d * l.n * l.hidden;
    const TYPE* weights = l.r + ((i64)u.d * l.gates() + first) * l.hidden * l.hidden;
    const int unit = blockIdx.y * kUnits, sample = blockIdx.x * kSamples;
    for (int begin = 0; begin < l.hidden; begin += kDepth) {
        if (threadIdx.x < kSamples * kDepth) {
            const int k = threadIdx.x % kDepth, s = threadIdx.x / kDepth;
            const bool inside = sample + s < l.n && begin + k < l.hidden;
            state[threadIdx.x] = inside ? from[(i64)(sample + s) * l.hidden + begin + k] : (TYPE)0;
        }
        for (int e = threadIdx.x; e < count * kUnits * kDepth; e += 256) {
            const int k = e % kDepth, j = e / kDepth % kUnits, g = e / kDepth / kUnits;
            const bool inside = unit + j < l.hidden && begin + k < l.hidden;
            rows[(g * kDepth + k) * (kUnits + 1) + j] =
                inside ? weights[((i64)g * l.hidden + unit + j) * l.hidden + begin + k] : (TYPE)0;
        }
        __syncthreads();
        const int most = l.hidden - begin < kDepth ? l.hidden - begin : kDepth;
        for (int k = 0; k < most; ++k) {
            const TYPE h = state[threadIdx.x / kUnits * kDepth + k];
#pragma unroll
            for (int g = 0; g < 4; ++g)
                if (g < count) acc[g] = fused(h, rows[(g * kDepth + k) * (kUnits + 1) + threadIdx.x % kUnits], acc[g]);
        }
        __syncthreads();
    }
}

// The update and reset gate of a GRU whose product takes reset * h: `update`, and what that product takes.
KERNEL_BOUNDS(cuda_recurrent_reset, 256, const TYPE* h, const TYPE* seen, TYPE* update, TYPE* reset_seen, int step, int steps,
              int backwards, LAYER_PARAMETERS) {
    SHARED(TYPE, state, kSamples * kDepth);
    SHARED(TYPE, rows, 4 * kDepth * (kUnits + 1));
    const Layer layer = LAYER;
    const Unit u = unit_of(layer);
    const int t = backwards || u.d == 1 ? steps - 1 - step : step;
    const TYPE* first = sums + (((i64)t * n + u.sample) * directions + u.d) * 3 * hidden + u.j;
    TYPE acc[4] = {u.inside ? first[0] : (TYPE)0, u.inside ? first[hidden] : (TYPE)0, 0, 0};
    add_products(layer, u, seen, 0, 2, acc, state, rows);
    if (!u.inside) return;
    const i64 unit = ((i64)u.d * n + u.sample) * hidden + u.j;
    update[unit] = layer.clipped(u.d, 0, acc[0]);
    reset_seen[unit] = Rounding{scale, lo, hi}.of(layer.clipped(u.d, 0, acc[1]) * h[unit]);
}

// One step of all directions. `update` and `reset_seen` come from the kernel above.
KERNEL_BLOCKS(cuda_recurrent_step, 256, 2, TYPE* h, TYPE* c, const TYPE* seen, TYPE* next, const TYPE* update,
              const TYPE* reset_seen, TYPE* y, int step, int steps, int backwards, int input_forget, LAYER_PARAMETERS) {
    SHARED(TYPE, state, kSamples * kDepth);
    SHARED(TYPE, rows, 4 * kDepth * (kUnits + 1));
    const Layer layer = LAYER;
    const Unit u = unit_of(layer);
    const int t = backwards || u.d == 1 ? steps - 1 - step : step, gates = layer.gates();
    const TYPE* first = sums + (((i64)t * n + u.sample) * directions + u.d) * gates * hidden + u.j;
    TYPE acc[4] = {0, 0, 0, 0};
#pragma unroll
    for (int g = 0; g < 4; ++g)
        if (u.inside && g < gates) acc[g] = first[(i64)g * hidden];
    const bool apart = cell == GRU && !update;  // the last gate of a GRU is multiplied by reset after its product
    const TYPE before = acc[2];
    if (apart) acc[2] = u.inside && bias ? bias[((i64)u.d * 6 + 5) * hidden + u.j] : (TYPE)0;
    if (update) {
        TYPE last[4] = {acc[2], 0, 0, 0};
        add_products(layer, u, reset_seen, 2, 1, last, state, rows);
        acc[2] = last[0];
    } else {
        add_products(layer, u, seen, 0, gates, acc, state, rows);
    }
    if (!u.inside) return;
    const i64 unit = ((i64)u.d * n + u.sample) * hidden + u.j;
    const TYPE h_before = h[unit], c_before = c ? c[unit] : (TYPE)0, one = 1;
    TYPE h_now, c_now = 0;
    if (cell == RNN) {
        h_now = layer.clipped(u.d, 0, acc[0]);
    } else if (cell == GRU) {
        const TYPE z = update ? update[unit] : layer.clipped(u.d, 0, acc[0]);
        if (apart) acc[2] = before + layer.clipped(u.d, 0, acc[1]) * acc[2];
        h_now = (one - z) * layer.clipped(u.d, 1, acc[2]) + z * h_before;
    } else {
        const TYPE* of = peepholes ? peepholes + (i64)u.d * 3 * hidden + u.j : nullptr;
        const TYPE i = layer.clipped(u.d, 0, of ? acc[0] + of[0] * c_before : acc[0]);
        const TYPE f = input_forget ? one - i : layer.clipped(u.d, 0, of ? acc[2] + of[2 * hidden] * c_before : acc[2]);
        c_now = f * c_before + i * layer.clipped(u.d, 1, acc[3]);
        const TYPE o = layer.clipped(u.d, 0, of ? acc[1] + of[hidden] * c_now : acc[1]);
        h_now = o * layer.act(u.d, 2, c_now);
    }
    const bool within = !lengths || t < lengths[u.sample];  // a shorter sample keeps its state; its results are 0
    const TYPE kept = within ? h_now : h_before;
    y[(((i64)t * directions + u.d) * n + u.sample) * hidden + u.j] = within ? h_now : h_now * (TYPE)0;
    h[unit] = kept;
    next[unit] = Rounding{scale, lo, hi}.of(kept);
    if (c) c[unit] = within ? c_now : c_before;
}
