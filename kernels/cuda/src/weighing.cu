// The gradient of a convolution for w by tiles. Where LAST is 1 channels are the last axis of x and y, else
// 0.
#include "spots.cuh"
#include "tiles.cuh"
#include "weighing.cuh"

// sums: [part, group, channel, factor]. Grid: tiles for each part; groups along y and z.
KERNEL_BLOCKS(weigh, 256, kBlocks, const TYPE* x, const TYPE* y, ACC* sums, Window g) {
    const Spot spot = spot_of(g.given, g.sums);
    const int first = spot.part * g.part, end = min(g.places, first + g.part),
              group = blockIdx.z * gridDim.y + blockIdx.y;
    if (group >= g.groups) return;
    const Results results = {g, y + group * g.y_group, end};
    const Factors factors = {{g, of_group(x, g, group)}, end};
    ACC made[kPart][kPart];
    add_products<!LAST, !LAST>(made, results, factors, spot.row, spot.column, first, end);
    const Parts parts = {g, sums + ((i64)spot.part * g.groups + group) * g.given * g.sums};
    put_sums(made, parts, spot.row, spot.column);
}
