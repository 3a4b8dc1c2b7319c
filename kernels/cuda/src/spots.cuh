// Which tile of a product, and which part of its places, the block has along x of the grid. Macros: ROWS,
// COLUMNS.
#pragma once
struct Spot {
    int row, column, part;
};
// Tiles of 8 rows are made together, so that blocks that run together read the same lines.
COC_FN Spot spot_of(int rows, int columns) {
    const int across = (columns + COLUMNS - 1) / COLUMNS, down = (rows + ROWS - 1) / ROWS;
    const int tile = blockIdx.x % (across * down), first = tile / (8 * across) * 8,
              many = min(8, down - first);
    const int inside = tile - first * across;
    return {(first + inside % many) * ROWS, inside / many * COLUMNS, (int)blockIdx.x / (across * down)};
}
