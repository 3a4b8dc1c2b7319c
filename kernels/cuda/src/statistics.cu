// What calibration counts. x is [samples, before, channels, behind]; results of samples and channels are [samples,
// channels]. A value that is not finite makes an end of its channel NaN or infinite. Sums are float64, of a fixed order.
struct Span {
    float lo, hi;
    double sum;
};
COC_FN void take(Span& s, float v) {
    s.lo = v < s.lo || v != v ? v : s.lo;
    s.hi = v > s.hi || v != v ? v : s.hi;
    s.sum += (double)v;
}
COC_FN void store(const Span& s, i64 at, float* lo, float* hi, double* sums) {
    lo[at] = s.lo, hi[at] = s.hi, sums[at] = s.sum;
}
COC_FN Span nothing() { return {__uint_as_float(0x7f800000u), __uint_as_float(0xff800000u), 0.0}; }

// One block for a channel of a sample.
KERNEL_BOUNDS(spans, 256, const float* x, float* lo, float* hi, double* sums, i64 before, i64 channels, i64 behind) {
    SHARED(float, lows, 256);
    SHARED(float, highs, 256);
    SHARED(double, totals, 256);
    const i64 sample = blockIdx.x / channels, channel = blockIdx.x % channels;
    const int t = threadIdx.x;
    Span s = nothing();
    for (i64 e = t; e < before * behind; e += 256)
        take(s, x[((sample * before + e / behind) * channels + channel) * behind + e % behind]);
    lows[t] = s.lo, highs[t] = s.hi, totals[t] = s.sum;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (t >= half) continue;
        const float low = lows[t + half], high = highs[t + half];
        lows[t] = low < lows[t] || low != low ? low : (float)lows[t];
        highs[t] = high > highs[t] || high != high ? high : (float)highs[t];
        totals[t] = (double)totals[t] + (double)totals[t + half];
    }
    if (t == 0) store({lows[0], highs[0], totals[0]}, blockIdx.x, lo, hi, sums);
}

// One thread for a channel of samples (blockIdx.y and on), where neighbours in memory belong to different channels.
KERNEL_BOUNDS(columns, 256, const float* x, float* lo, float* hi, double* sums, i64 before, i64 channels, i64 behind,
              i64 samples) {
    const i64 channel = (i64)blockIdx.x * 256 + threadIdx.x;
    if (channel >= channels) return;
    for (i64 sample = blockIdx.y; sample < samples; sample += gridDim.y) {
        Span s = nothing();
        for (i64 p = 0; p < before; p++)
            for (i64 i = 0; i < behind; i++) take(s, x[((sample * before + p) * channels + channel) * behind + i]);
        store(s, sample * channels + channel, lo, hi, sums);
    }
}

// Adds the finite values of x to `bins` counts of bins of width 1 / factor, of which bin `first` is counted first.
KERNEL_BOUNDS(count, 256, const float* x, int* counts, double factor, int first, int bins, i64 n) {
    SHARED(int, own, 4096);
    for (int i = threadIdx.x; i < bins; i += 256) own[i] = 0;
    __syncthreads();
    FOR_EACH(i, n) {
        const int bin = (int)floor((double)x[i] * factor) - first;
        if (bin >= 0 && bin < bins) atomicAdd(&own[bin], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < bins; i += 256)
        if (const int seen = own[i]) atomicAdd(counts + i, seen);
}
