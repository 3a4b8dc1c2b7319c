// The gradient of a convolution for w by tensor cores. Channels of x and y are the last axis and lie together
// in multiples of 8 (float: of 4), zeros among them. Macros: those of convolution.cuh, with ACC float and
// BY_TAPS 1, and of tensor_tiles.cuh.
#include "spots.cuh"
#include "tensor_tiles.cuh"
#include "weighing.cuh"

// sums: [part, group, channel, factor]. Grid: tiles for each part; groups along y and z.
KERNEL_BOUNDS(weigh, kThreads, const TYPE* x, const TYPE* y, float* sums, Window g) {
    SHARED_DYNAMIC(TYPE, tile);
    const Spot spot = spot_of(g.given, g.sums);
    const int first = spot.part * g.part, end = min(g.places, first + g.part),
              group = blockIdx.z * gridDim.y + blockIdx.y;
    if (group >= g.groups) return;
    const Results results = {g, y + group * g.y_group, end};
    const Factors factors = {{g, of_group(x, g, group)}, end};
    Sums made;
    add_products<false, false>(made, results, factors, spot.row, spot.column, first, end, tile);
    const Parts parts = {g, sums + ((i64)spot.part * g.groups + group) * g.given * g.sums};
    put_sums(made, parts, spot.row, spot.column);
}
