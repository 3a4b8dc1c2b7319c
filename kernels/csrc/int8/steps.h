// Plan steps over the 8-bit kernels, and the table of the active instruction set.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "common/step.h"
#include "int8/kernels.h"
#include "runtime/isa.h"
#include "strided/nest.h"

namespace mge::int8 {

inline std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// The share of `part` of `parts` in `total`, cut at multiples of `grain`.
inline Range share(int total, int part, int parts, int grain) {
    const long units = (total + grain - 1) / grain;
    const int begin = static_cast<int>(units * part / parts) * grain;
    const int end = static_cast<int>(units * (part + 1) / parts) * grain;
    return {std::min(begin, total), std::min(end, total)};
}

inline int usable_parts(int total, int grain, int threads) {
    return std::clamp((total + grain - 1) / grain, 1, threads);
}

inline const std::uint8_t* bytes(const std::byte* p) { return reinterpret_cast<const std::uint8_t*>(p); }
inline std::uint8_t* bytes(std::byte* p) { return reinterpret_cast<std::uint8_t*>(p); }

// Which type's range the clamp is, where no value leaves int32 (`Epilogue::saturate`).
inline int saturation(const Epilogue& e, const float* m, const float* bias, int channels) {
    for (int c = 0; c < channels; ++c)
        if (!(m[c] < 0.25f) || !(bias[c] < 1e8f) || !(bias[c] > -1e8f)) return 0;
    if (e.ratio > 1e5f) return 0;
    const float least = e.lo + static_cast<float>(e.zero_point),
                most = e.hi + static_cast<float>(e.zero_point);
    if (least == 0 && most == 255) return 1;
    return least == -128 && most == 127 ? 2 : 0;
}

inline const Table& active_table() {
#if defined(MGE_X86)
    switch (active_isa()) {
        case Isa::kAmx:
            return table_amx;
        case Isa::kBf16:
        case Isa::kVnni:
            return table_vnni;
        case Isa::kAvx512:
            return table_avx512;
        case Isa::kAvx2:
            return table_avx2;
        case Isa::kSse41:
            return table_sse41;
        default:
            break;
    }
#endif
    return table_base;
}

// Channel arrays of an epilogue, padded and in the order a kernel wants them.
struct Channels {
    std::vector<std::int32_t> b;
    std::vector<float> m, bias;
};

struct ConvOptions {
    ConvShape shape;
    Epilogue epilogue;
    bool residual = false;
    bool depthwise = false;
    int threads = 1;
};

std::unique_ptr<Step> make_conv(const ConvOptions&, const std::int8_t* w, const std::int32_t* b,
                                const float* m, const float* bias);

enum class Elementary { kAdd, kRequantize, kQuantize, kDequantize, kMultiply, kLarger, kSmaller };
std::unique_ptr<Step> make_elementwise(Elementary, const Elementwise&, int threads);
// Pictures [n, pixels, c] times one value a channel and picture.
struct GateOptions {
    Elementwise e;
    int images = 0, pixels = 0, channels = 0;
    bool gate_first = false;  // the gate is the first buffer
    int threads = 1;
};
std::unique_ptr<Step> make_gate(const GateOptions&);
// Two operands that broadcast: strides of the result, a and r for every dimension, in bytes.
std::unique_ptr<Step> make_broadcast(Elementary, const Elementwise&, const Nest&, int threads);
// Stacks of matrices: where each pair begins, in bytes of a and b.
struct ProductOptions {
    ProductShape shape;
    Epilogue epilogue;
    float m = 1;
    std::vector<std::int64_t> a, b;
    int threads = 1;
};
std::unique_ptr<Step> make_product(const ProductOptions&);
// Rows at `inner` places of every of `outer` blocks, whose elements are `inner` apart.
struct SoftmaxOptions {
    RowArgs rows;
    int outer = 0, inner = 1, threads = 1;
    std::vector<std::int32_t> table;
};
std::unique_ptr<Step> make_softmax(const SoftmaxOptions&);
std::unique_ptr<Step> make_normalize(const RowArgs&, int rows, int threads);
std::unique_ptr<Step> make_mean(const MeanArgs&, int outer, int threads);
std::unique_ptr<Step> make_planes(const Planes&, int images, int threads);
std::unique_ptr<Step> make_pool(const PoolArgs&, bool average, int threads);
// Places i have table i / inner % count.
std::unique_ptr<Step> make_lookup(const std::uint8_t* tables, std::size_t count, std::size_t inner,
                                  std::uint8_t flip, std::size_t size, int threads);
// Values of so many channels, side by side in the result; a table for each channel.
struct ChannelSource {
    int channels;
    std::uint8_t flip;
};
std::unique_ptr<Step> make_channel_lookup(const std::uint8_t* tables, const std::vector<ChannelSource>&,
                                          int pixels, int threads);
bool has_fast_channel_lookup();  // by vectors
// Pictures [outer, lengths.., inner] in other sizes.
struct ResizeAxis {
    std::int64_t n, out, taps;
    std::vector<std::int64_t> index;  // [out, taps]
    std::vector<std::int32_t> weight;
    std::int64_t inside = 1;  // numbers between neighbours along the axis
};
std::unique_ptr<Step> make_resize(const BlendEnd&, std::vector<ResizeAxis>, std::int64_t outer,
                                  std::int64_t inner, std::uint8_t flip, std::int32_t zero, int threads);

}  // namespace mge::int8
