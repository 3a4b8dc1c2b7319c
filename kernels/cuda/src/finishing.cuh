// What becomes of a sum: a factor, a bias, a residual, an activation; then it is rounded once.
// Macros: TYPE, ACC, FUSED 0 or 1 (0: the sum alone), ACT the function of the activation, of elementwise.cuh
// or op_none.
#pragma once
#if FUSED
#include "elementwise.cuh"
template <class W>
COC_FN W op_none(W v) {
    return v;
}
#endif
template <class T>
COC_FN ACC bias_of(const T* bias, i64 channel, bool inside) {
    return bias && inside ? (ACC)widen(bias[channel]) : (ACC)0;
}
template <class T>
COC_FN T finished(ACC sum, ACC bias, const T* residual, i64 at) {
    sum = sum + bias;
#if FUSED
    if (residual) sum = sum + widen(residual[at]);
    return narrow<T>(ACT(sum));
#else
    return narrow<T>(sum);
#endif
}
