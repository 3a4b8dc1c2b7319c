// Cells of regions of pictures [N,C,H,W]: largest elements or means, and their gradients. TYPE: that of elements.
// cells [R,4,most]: the first row of every cell and the one behind its last, then the same for columns.

#include "dividing.cuh"

struct Regions {
    int regions, pictures, channels, height, width, rows, columns, most, average;
};

COC_FN TYPE rounded(TYPE v) { return sizeof(TYPE) == 4 ? roundf(v) : round(v); }  // halves away from zero

KERNEL(find_cells, int* cells, const TYPE* rois, Regions g, TYPE scale, int* refused, i64 n) {
    FOR_EACH(i, n) {
        i64 region = i;
        const int slot = (int)split_off(region, g.most), side = (int)split_off(region, 4), axis = side / 2, count = axis ? g.columns : g.rows;
        const TYPE* roi = rois + region * 5;
        if (slot == 0 && side == 0) {
            const i64 picture = (i64)roi[0];
            if (picture < 0 || picture >= g.pictures) atomicMax(refused, 1 + (int)(picture < 0 ? 0 : picture > 1 << 30 ? 1 << 30 : picture));
        }
        int place = 0;
        if (slot < count) {
            const TYPE start = rounded(roi[2 - axis] * scale), stop = rounded(roi[4 - axis] * scale), length = stop - start + 1;
            const TYPE step = (length != length || length > 1 ? length : (TYPE)1) / (TYPE)count;
            const TYPE at = (side % 2 ? ceil((TYPE)(slot + 1) * step) : floor((TYPE)slot * step)) + start;
            const int most = axis ? g.width : g.height;
            place = at > 0 ? at < most ? (int)at : most : 0;
        }
        cells[i] = place;
    }
}

struct Cell {
    int top, bottom, left, right;
    COC_FN bool empty() const { return bottom <= top || right <= left; }
};
COC_FN Cell cell_at(const int* cells, const Regions& g, i64 region, int row, int column) {
    const int* own = cells + region * 4 * g.most;
    return {own[row], own[g.most + row], own[2 * g.most + column], own[3 * g.most + column]};
}
COC_FN TYPE mean_of(const TYPE* x, const Cell& c, int width) {  // rows first: short sums lose few digits
    TYPE sum = 0;
    for (int y = c.top; y < c.bottom; y++) {
        TYPE row = 0;
        for (int k = c.left; k < c.right; k++) row = row + x[y * width + k];
        sum = sum + row;
    }
    return sum / (TYPE)((c.bottom - c.top) * (c.right - c.left));
}
COC_FN int best_of(const TYPE* x, const Cell& c, int width) {  // the first largest; NaN counts as the largest
    int best = c.top * width + c.left;
    TYPE top = x[best];
    for (int y = c.top; y < c.bottom && top == top; y++)
        for (int k = c.left; k < c.right && top == top; k++) {
            const TYPE v = x[y * width + k];
            if (v > top || v != v) top = v, best = y * width + k;
        }
    return best;
}

// out [R,C,rows,columns] from the pictures `from`; where the mode is not the mean, at the best place of x, which is the
// same array or has the same shape.
KERNEL(pool_regions, TYPE* out, const TYPE* from, const TYPE* x, const TYPE* rois, const int* cells, Regions g, i64 n) {
    FOR_EACH(i, n) {
        i64 region = i;
        const int column = (int)split_off(region, g.columns), row = (int)split_off(region, g.rows);
        const int channel = (int)split_off(region, g.channels);
        const Cell c = cell_at(cells, g, region, row, column);
        const i64 picture = (i64)rois[region * 5];
        TYPE result = 0;
        if (!c.empty() && picture >= 0 && picture < g.pictures) {
            const i64 start = (picture * g.channels + channel) * g.height * g.width;
            result = g.average ? mean_of(from + start, c, g.width) : from[start + best_of(x + start, c, g.width)];
        }
        out[i] = result;
    }
}

// best [R,C,rows,columns]: where in its picture each cell has its first largest element.
KERNEL(find_best, int* best, const TYPE* x, const TYPE* rois, const int* cells, Regions g, i64 n) {
    FOR_EACH(i, n) {
        i64 region = i;
        const int column = (int)split_off(region, g.columns), row = (int)split_off(region, g.rows);
        const int channel = (int)split_off(region, g.channels);
        const Cell c = cell_at(cells, g, region, row, column);
        const i64 picture = (i64)rois[region * 5];  // one outside is refused where the program next waits
        const i64 start = (picture * g.channels + channel) * g.height * g.width;
        best[i] = c.empty() || picture < 0 || picture >= g.pictures ? -1 : best_of(x + start, c, g.width);
    }
}

// The gradient by x [N,C,H,W]: each element sums its share of all cells that hold it, region after region.
KERNEL(spread_regions, TYPE* out, const TYPE* ct, const TYPE* rois, const int* cells, const int* best, Regions g, i64 n) {
    FOR_EACH(i, n) {
        i64 picture = i;
        const int pixel = (int)split_off(picture, g.height * g.width), y = pixel / g.width, x = pixel % g.width;
        const i64 channel = split_off(picture, g.channels);
        TYPE sum = 0;
        for (int r = 0; r < g.regions; r++) {
            if ((i64)rois[r * 5] != picture) continue;
            for (int row = 0; row < g.rows; row++) {
                const Cell first = cell_at(cells, g, r, row, 0);
                if (y < first.top || y >= first.bottom) continue;
                for (int column = 0; column < g.columns; column++) {
                    const Cell c = cell_at(cells, g, r, row, column);
                    if (x < c.left || x >= c.right) continue;
                    const i64 at = ((r * (i64)g.channels + channel) * g.rows + row) * g.columns + column;
                    if (g.average)
                        sum = sum + ct[at] / (TYPE)((c.bottom - c.top) * (c.right - c.left));
                    else if (best[at] == pixel)
                        sum = sum + ct[at];
                }
            }
        }
        out[i] = sum;
    }
}
