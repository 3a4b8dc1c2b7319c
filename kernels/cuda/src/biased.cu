// Bias, residual and activation of a layer whose sums are made by a library. Macros: those of finishing.cuh.
#include "finishing.cuh"

// sums and out: [..., channels, inner]
KERNEL(finish_layer, const ACC* sums, const TYPE* bias, const TYPE* residual, TYPE* out, i64 n, int channels,
       i64 inner) {
    FOR_EACH(i, n) {
        const int channel = (int)(i / inner % channels);
        out[i] = finished(sums[i], bias_of(bias, channel, true), residual, i);
    }
}
