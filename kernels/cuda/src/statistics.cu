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
// The ends of the values of a block's 256 threads: thread 0 finds them in the first places.
template <class S>
COC_FN void join_ends(S& low, S& high, const Span& s) {
    const int t = threadIdx.x;
    low[t] = s.lo, high[t] = s.hi;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (t >= half) continue;
        const float l = low[t + half], h = high[t + half];
        low[t] = l < low[t] || l != l ? l : (float)low[t];
        high[t] = h > high[t] || h != h ? h : (float)high[t];
    }
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
    totals[t] = s.sum;
    join_ends(lows, highs, s);
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (t < half) totals[t] = (double)totals[t] + (double)totals[t + half];
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

// Carries what exceeds 32 bits of the parts of an exact sum, the lowest first, `step` apart.
COC_FN void carry(i64* parts, i64 step) {
    for (int i = 0; i < 8; i++) {
        const i64 over = parts[i * step] >> 32;
        parts[i * step] -= over << 32;
        parts[(i + 1) * step] += over;
    }
}

// Of ends and sums [samples, channels]: the ends of samples, [samples, 2], by one block each; then, by one thread each, the
// ends of channels, and the sum of the samples' means of `places` values, rounded to float32: 288 bits, parts [9, channels].
KERNEL_BOUNDS(join, 256, const float* lo, const float* hi, const double* sums, double places, float* ends, float* lows,
              float* highs, i64* parts, i64 samples, i64 channels) {
    SHARED(float, low, 256);
    SHARED(float, high, 256);
    const int t = threadIdx.x;
    Span s = nothing();
    if (blockIdx.x < samples) {
        const i64 row = blockIdx.x * channels;
        for (i64 c = t; c < channels; c += 256) take(s, lo[row + c]), take(s, hi[row + c]);
        join_ends(low, high, s);
        if (t == 0) ends[2 * blockIdx.x] = low[0] + 0.0f, ends[2 * blockIdx.x + 1] = high[0] + 0.0f;
        return;
    }
    const i64 channel = (i64)(blockIdx.x - samples) * 256 + t;
    if (channel >= channels) return;
    for (i64 sample = 0; sample < samples; sample++) {
        const i64 at = sample * channels + channel;
        take(s, lo[at]), take(s, hi[at]);
        if (!parts) continue;
        const unsigned bits = __float_as_uint((float)(sums[at] / places)), exponent = bits >> 23 & 255;
        if (exponent == 255) continue;  // refused by its end
        const int place = exponent ? exponent - 1 : 0;
        const i64 whole = (i64)((bits & 0x7fffff) | (exponent ? 0x800000 : 0)) << (place % 32);
        parts[place / 32 * channels + channel] += bits >> 31 ? -whole : whole;
        if (sample % 128 == 127) carry(parts + channel, channels);  // as many numbers of 55 bits fit into 64
    }
    lows[channel] = s.lo + 0.0f, highs[channel] = s.hi + 0.0f;
}

// Counts x in at most `most` bins of the least width 2**exponent that covers its ends, [samples, 2], and leaves bin numbers
// of 24 bits. used: exponent, first bin, number of bins; no bin where an end is not finite.
KERNEL_BOUNDS(count_all, 256, const float* x, const float* ends, int* used, int* counts, int most, i64 samples, i64 n) {
    SHARED(float, low, 256);
    SHARED(float, high, 256);
    SHARED(int, found, 3);
    SHARED(int, own, 4096);
    const int t = threadIdx.x;
    Span s = nothing();
    for (i64 i = t; i < samples; i += 256) take(s, ends[2 * i]), take(s, ends[2 * i + 1]);
    join_ends(low, high, s);
    if (t == 0) {
        const double lo = low[0], hi = high[0], reach = fmax(fabs(lo), fabs(hi));
        const int biased = (int)(__float_as_uint((float)reach) >> 23 & 255);
        int exponent = reach == 0.0 ? -24 : biased > 25 ? biased - 150 : -125, bins = 0;
        double first = 0.0;
        while (lo - lo == 0.0 && hi - hi == 0.0) {
            const double factor = ldexp(1.0, -exponent);
            first = floor(lo * factor);
            const double more = floor(hi * factor) - first;
            if (more < most) {
                bins = (int)more + 1;
                break;
            }
            exponent++;
        }
        found[0] = exponent, found[1] = (int)first, found[2] = bins;
        if (blockIdx.x == 0) used[0] = exponent, used[1] = (int)first, used[2] = bins;
    }
    for (int i = t; i < most; i += 256) own[i] = 0;
    __syncthreads();
    const float factor = (float)ldexp(1.0, -found[0]);  // as on the processor, where tiny products are zero
    const int first = found[1], bins = found[2];
    FOR_EACH(i, bins ? n : 0) {
        const int bin = (int)floorf(x[i] * factor) - first;
        if (bin >= 0 && bin < bins) atomicAdd(&own[bin], 1);
    }
    __syncthreads();
    for (int i = t; i < bins; i += 256)
        if (const int seen = own[i]) atomicAdd(counts + i, seen);
}
