// Channels moved to the last axis, with zeros behind them up to a multiple. TYPE: an unsigned integer of the
// size of an element.
constexpr int kSide = 32;

// x [rows, channels, places] -> y [rows, places, padded]. Grid: tiles of places by tiles of channels; rows
// along y and z.
KERNEL_BOUNDS(channels_last, 256, const TYPE* x, TYPE* y, i64 rows, int channels, int padded, i64 places) {
    SHARED(TYPE, tile, kSide * (kSide + 1));
    const int across = (padded + kSide - 1) / kSide, column = threadIdx.x % kSide;
    const i64 place = blockIdx.x / across * (i64)kSide;
    const int channel = blockIdx.x % across * kSide;
    for (i64 row = blockIdx.z * (i64)gridDim.y + blockIdx.y; row < rows; row += (i64)gridDim.y * gridDim.z) {
        __syncthreads();  // the tile of the last row is read
        for (int c = threadIdx.x / kSide; c < kSide; c += 256 / kSide) {
            const bool inside = channel + c < channels && place + column < places;
            tile[c * (kSide + 1) + column] =
                inside ? x[(row * channels + channel + c) * places + place + column] : (TYPE)0;
        }
        __syncthreads();
        for (int p = threadIdx.x / kSide; p < kSide; p += 256 / kSide)
            if (place + p < places && channel + column < padded)
                y[(row * places + place + p) * padded + channel + column] = tile[column * (kSide + 1) + p];
    }
}

// x [rows, places, groups, channels] -> y [rows, groups, places, padded]
KERNEL(channels_padded, const TYPE* x, TYPE* y, i64 rows, int channels, int padded, i64 places, int groups) {
    FOR_EACH(i, rows * groups * places * padded) {
        const int c = (int)(i % padded);
        const i64 at = i / padded, place = at % places, line = at / places, row = line / groups,
                  group = line % groups;
        y[i] = c < channels ? x[((row * places + place) * groups + group) * channels + c] : (TYPE)0;
    }
}
