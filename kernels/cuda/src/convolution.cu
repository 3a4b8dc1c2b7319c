// Convolutions by tiles. Where LAST is 1 channels are the last axis of x and y, else 0.
#include "convolution.cuh"
#include "spots.cuh"
#include "tiles.cuh"

// Grid: tiles; groups along y and z.
KERNEL_BLOCKS(convolve, 256, kBlocks, const TYPE* x, const TYPE* w, const TYPE* bias, const TYPE* residual,
              TYPE* y, Window g) {
    const Spot spot = LAST ? spot_of(g.places, g.given) : spot_of(g.given, g.places);
    const int group = blockIdx.z * gridDim.y + blockIdx.y;
    if (group >= g.groups) return;
    const Pixels pixels = {{g, of_group(x, g, group)}, g.sums};
    const Weights weights = {g, w + g.w_start + group * g.w_group, g.sums};
    ACC sums[kPart][kPart];
#if LAST
    add_products<true, true>(sums, pixels, weights, spot.row, spot.column, 0, g.sums);
#else
    add_products<true, false>(sums, weights, pixels, spot.row, spot.column, 0, g.sums);
#endif
    put_sums(sums, out_of(g, group, bias, residual, y), spot.row, spot.column);
}
