// Activations of recurrent layers, as ONNX names them: of float with the operations of the reference, in their order.
#pragma once
#include "functions.cuh"

enum Cell { RNN, GRU, LSTM };
enum Activation { RELU, TANH, SIGMOID, AFFINE, LEAKY_RELU, THRESHOLDED_RELU, SCALED_TANH, HARD_SIGMOID, ELU, SOFTSIGN, SOFTPLUS };

COC_FN float fused(float a, float b, float c) { return fmaf(a, b, c); }  // a * b + c, rounded once
COC_FN double fused(double a, double b, double c) { return fma(a, b, c); }

template <class T>
COC_FN T at_least(T x, T end) {  // NaN stays
    return x < end ? end : x;
}
template <class T>
COC_FN T at_most(T x, T end) {
    return x > end ? end : x;
}

template <class T>
COC_FN T activation(int code, T a, T b, T x) {
    const T zero = 0, one = 1;
    switch (code) {
        case RELU: return at_least(x, zero);
        case TANH: return tanh_of(x);
        case SIGMOID: return sigmoid_of(x);
        case AFFINE: return x * a + b;
        case LEAKY_RELU: return x < zero ? x * a : x;
        case THRESHOLDED_RELU: return x < a ? x * zero : x;
        case SCALED_TANH: return tanh_of(x * b) * a;
        case HARD_SIGMOID: return at_most(at_least(x * a + b, zero), one);
        case ELU: return x < zero ? (exp_of(x) - one) * a : x;
        case SOFTSIGN: return x / (at_least(x, zero) - at_most(x, zero) + one);
        default: return softplus_of(x);
    }
}
