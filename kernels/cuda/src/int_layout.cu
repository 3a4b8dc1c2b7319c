// Channels last and back: each image is [rows, columns] -> [columns, pitch], the places from `rows` to `pitch` filled.
// ELEMENT: an unsigned type of the size of the numbers. 32 x 32 numbers a block; y of the grid: images.
#include "integer.cuh"

KERNEL_BOUNDS(cuda_turn, 256, const ELEMENT* x, ELEMENT* y, i64 rows, i64 columns, i64 pitch, ELEMENT filling, i64 images) {
    SHARED(ELEMENT, tile, 32 * 33);
    const i64 tiles = (columns + 31) / 32, first = blockIdx.x % tiles * 32, top = blockIdx.x / tiles * 32;
    const int across = threadIdx.x % 32, down = threadIdx.x / 32;
    for (i64 image = blockIdx.y; image < images; image += gridDim.y) {
        for (int i = down; i < 32; i += 8) {
            const bool inside = top + i < rows && first + across < columns;
            tile[i * 33 + across] = inside ? x[(image * rows + top + i) * columns + first + across] : filling;
        }
        __syncthreads();
        for (int i = down; i < 32; i += 8)
            if (first + i < columns && top + across < pitch) y[(image * columns + first + i) * pitch + top + across] = tile[across * 33 + i];
        __syncthreads();
    }
}

// The same for a few rows, such as the channels of a picture: a column a thread; pitch is at most 8.
KERNEL(cuda_turn_few, const ELEMENT* x, ELEMENT* y, i64 rows, i64 columns, i64 pitch, ELEMENT filling, i64 images) {
    FOR_EACH(i, images * columns) {
        const i64 image = images * columns < 1LL << 31 ? (unsigned)i / (unsigned)columns : i / columns;
        const ELEMENT* from = x + image * (rows - 1) * columns + i;
        ELEMENT column[8];
#pragma unroll
        for (int r = 0; r < 8; r++) column[r] = r < rows ? from[r * columns] : filling;
        if (pitch == 4) {
            ((Four<ELEMENT>*)y)[i] = {column[0], column[1], column[2], column[3]};
        } else {
#pragma unroll
            for (int r = 0; r < 8; r++)
                if (r < pitch) y[i * pitch + r] = column[r];
        }
    }
}

struct alignas(16) Sixteen {
    ELEMENT v[16];
};

// The same of four columns a thread, for up to four rows and a pitch of four; four divides the columns.
KERNEL(cuda_turn_fours, const ELEMENT* x, ELEMENT* y, i64 rows, i64 columns, ELEMENT filling, i64 images) {
    FOR_EACH(i, images * columns / 4) {
        const i64 fours = columns / 4, image = images * fours < 1LL << 31 ? (unsigned)i / (unsigned)fours : i / fours;
        const ELEMENT* from = x + image * (rows - 1) * columns + i * 4;
        Sixteen turned;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            Four<ELEMENT> row = {filling, filling, filling, filling};
            if (r < rows) row = *(const Four<ELEMENT>*)(from + r * columns);
#pragma unroll
            for (int c = 0; c < 4; c++) turned.v[c * 4 + r] = row.v[c];
        }
        ((Sixteen*)y)[i] = turned;
    }
}

// [pixels, columns] -> [pixels, pitch], zeros behind.
KERNEL(cuda_widen, const ELEMENT* x, ELEMENT* y, i64 columns, i64 pitch, i64 n) {
    FOR_EACH(i, n) {
        const i64 pixel = n < 1LL << 31 ? (unsigned)i / (unsigned)pitch : i / pitch, channel = i - pixel * pitch;
        y[i] = channel < columns ? x[pixel * columns + channel] : (ELEMENT)0;
    }
}
