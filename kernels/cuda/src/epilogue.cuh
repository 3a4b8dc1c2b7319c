// What becomes of a sum: a factor, a bias, a residual, an activation; then it is rounded once.
// Macros: TYPE, ACC, FUSED 0 or 1 (0: the sum alone), ACT the function of the activation, of elementwise.cuh or op_none.
#pragma once
#if FUSED
#include "elementwise.cuh"
template <class W>
COC_FN W op_none(W v) {
    return v;
}
#endif
template <class T>
COC_FN T finished(ACC sum, const T* bias, i64 channel, const T* residual, i64 at) {
#if FUSED
    if (bias) sum = sum + widen(bias[channel]);
    if (residual) sum = sum + widen(residual[at]);
    return narrow<T>(ACT(sum));
#else
    if (bias) sum = sum + (ACC)widen(bias[channel]);
    return narrow<T>(sum);
#endif
}
