// Weights [o, c, taps] as the kernels of layers read them.

// The channel of place p where four columns of eight lie with a thread of mma_16x8x32: it holds eight neighbours then.
COC_FN int spread(int p) { return p / 32 * 32 + p % 8 / 2 * 8 + p % 32 / 8 * 2 + p % 2; }

// [groups, rows, depth]: `joined` groups of the layer are one group here, zeros where a channel does not read another;
// o and c are those of a group of the layer, and a tap takes `padded` numbers of the depth. A tap is of `pair` neighbouring
// pixels, and a row of the window has `across` taps for `width` pixels, behind `lead` places that no pixel has.
KERNEL(cuda_pack, const s8* w, s8* out, int o, int c, int taps, int joined, int padded, int rows, int depth, int spreads, int width,
       int pair, int across, int lead, i64 n) {
    FOR_EACH(i, n) {
        const int k = (int)(i % depth), row = (int)(i / depth % rows), channel = spreads ? spread(row) : row;
        const int each = padded / pair, tap = k / padded, at = k % padded % each, part = channel / o;
        const int column = tap % across * pair + k % padded / each - lead, pixel = tap / across * width + column;
        const bool inside = column >= 0 && column < width && pixel < taps;
        const i64 own = i / depth / rows * joined + part;
        out[i] = channel < o * joined && at / c == part && inside ? w[((own * o + channel % o) * c + at % c) * taps + pixel] : (s8)0;
    }
}

// [taps, channels] of a depthwise layer.
KERNEL(cuda_pack_depthwise, const s8* w, s8* out, int taps, int channels, i64 n) {
    FOR_EACH(i, n) out[i] = w[i % channels * taps + i / channels];
}

// Of each channel of [groups, rows]: b - z_x * sum of its weights, M and B; zeros for the places that fill up. One warp each.
KERNEL_BOUNDS(cuda_pack_channels, 256, const s8* w, const int* b, const float* M, const float* B, int* b_out, float* M_out,
              float* B_out, int z_x, int of_group, int rows, int depth, i64 n) {
    const i64 place = (i64)blockIdx.x * 8 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32, row = (int)(place % rows);
    const bool real = place < n && row < of_group;
    const i64 channel = real ? place / rows * of_group + row : 0;
    int sum = 0;
    if (real)
        for (int k = lane; k < depth; k += 32) sum += w[channel * depth + k];
    for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (lane == 0 && place < n) {
        b_out[place] = real ? (int)((unsigned)b[channel] - (unsigned)z_x * (unsigned)sum) : 0;
        M_out[place] = real ? M[channel] : 0.f;
        B_out[place] = real ? B[channel] : 0.f;
    }
}
