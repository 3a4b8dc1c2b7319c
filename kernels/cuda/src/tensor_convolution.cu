// Convolutions by tensor cores. Channels are the last axis of x and w and lie together in multiples of 8
// (float: of 4), zeros among them. Macros: those of convolution.cuh, with ACC float and BY_TAPS 1, and of
// tensor_tiles.cuh.
#include "convolution.cuh"
#include "spots.cuh"
#include "tensor_tiles.cuh"

// Grid: tiles; groups along y and z.
KERNEL_BOUNDS(convolve, kThreads, const TYPE* x, const TYPE* w, const TYPE* bias, const TYPE* residual,
              TYPE* y, Window g) {
    SHARED_DYNAMIC(TYPE, tile);
    const Spot spot = LAST ? spot_of(g.places, g.given) : spot_of(g.given, g.places);
    const int group = blockIdx.z * gridDim.y + blockIdx.y;
    if (group >= g.groups) return;
    const Pixels pixels = {{g, of_group(x, g, group)}, g.sums};
    const Weights weights = {g, w + g.w_start + group * g.w_group, g.sums};
    Sums sums;
#if LAST
    add_products<true, true>(sums, pixels, weights, spot.row, spot.column, 0, g.sums, tile);
#else
    add_products<true, true>(sums, weights, pixels, spot.row, spot.column, 0, g.sums, tile);
#endif
    put_together(sums, out_of(g, group, bias, residual, y), spot.row, spot.column, tile);
}
