// Exact kernels of 8-bit integers, and of 16-bit ones beside 8-bit weights: their arguments, and one table of
// entry points per instruction set.
// The arithmetic is docs/integer-arithmetic.md. Activations are dense NHWC. A signed source is read with its
// top bit flipped, which turns it into u8 with a zero point larger by 128 (`flip` is 0x80 then, else 0). Wide
// tensors are s16 with a zero point of 0; sums with them fit int32.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mge::int8 {

// From accumulator to output. Channel arrays are padded so that whole vectors may be read.
struct Epilogue {
    const std::int32_t* b = nullptr;
    const float* m = nullptr;
    const float* bias = nullptr;
    float lo = 0, hi = 0;
    std::int32_t zero_point = 0;
    bool to_float = false;  // float32 output: neither clamp nor rounding
    bool wide = false;      // s16 output
    // The clamp is the range of u8 (1) or s8 (2) and no value leaves int32: saturating packs are enough.
    int saturate = 0;
    // residual: same layout as the output
    std::int32_t res_zero = 0;  // zero point in the u8 domain
    std::uint8_t res_flip = 0;
    bool res_wide = false;
    float ratio = 0;
};

struct ConvShape {
    int n, h, w, c;  // input
    int oh, ow, o;   // output
    int kh, kw, stride_h, stride_w, top, left, dilation_h, dilation_w, groups;
    int zero_point;     // of the source, in the u8 domain
    std::uint8_t flip;  // 0x80 for a signed source
    bool wide;          // an s16 source
    bool halved;        // weights of 4 bits, two to a byte, which the matrix product takes apart as it runs
    int group_inputs() const { return c / groups; }
    int group_outputs() const { return o / groups; }
    int taps() const { return kh * kw; }
    int depth() const { return kh * kw * group_inputs(); }
    bool depthwise() const { return groups == c && groups == o; }
};

struct Range {
    int begin, end;
};

struct ConvArgs {
    ConvShape s;
    Epilogue e;
    const std::int32_t* weights = nullptr;  // as packed by the same table
    const std::uint8_t* x = nullptr;
    const std::uint8_t* res = nullptr;
    const std::int32_t* row_bias = nullptr;  // matrix product: added to every sum of a row, or null
    std::uint8_t* y = nullptr;
    std::byte* scratch = nullptr;
    Range rows{0, 0};   // output pixels (matrix product) or output lines (depthwise)
    Range lanes{0, 0};  // output channels inside a group, multiples of `lanes` of the table (matrix product)
};

struct Elementwise {
    const void* a = nullptr;
    const void* r = nullptr;
    void* y = nullptr;
    std::size_t size = 0;
    std::uint8_t a_flip = 0, r_flip = 0;
    bool a_wide = false, r_wide = false, y_wide = false;
    std::int32_t a_zero = 0, r_zero = 0;  // in the u8 domain
    float a_ratio = 0, r_ratio = 0, lo = 0, hi = 0;
    std::int32_t zero_point = 0;
    bool a_one = false, r_one = false;  // the first element stands for all
};

struct PoolArgs {
    ConvShape s;        // c = o; kernel, stride, padding; wide: a maximum is wide, too
    bool wide = false;  // s16 averages
    const std::uint8_t* x = nullptr;
    std::uint8_t* y = nullptr;
    float scale = 1, lo = 0, hi = 0;  // scale: fl32(s_x / s_y), before the division by the count
    std::int32_t zero_point = 0;
    bool count_include_pad = true;
    Range rows{0, 0};  // output lines
};

struct Planes {  // float32 NCHW pictures to 8-bit NHWC
    const float* x = nullptr;
    std::uint8_t* y = nullptr;
    int channels = 0, pixels = 0;  // of one picture
    float scale = 1, lo = 0, hi = 0;
    std::int32_t zero_point = 0;
    Range range{0, 0};  // pixels
};

// The product of two computed matrices [rows, depth] and [depth, cols], C-contiguous; `turned` ones lie
// transposed.
struct ProductShape {
    int rows, depth, cols;
    bool a_turned, b_turned;
    std::uint8_t a_flip, b_flip;
    std::int32_t a_zero, b_zero;  // in the u8 domain
};

struct ProductArgs {
    ProductShape s;
    Epilogue e;  // without b, which the kernel computes
    const std::uint8_t* a = nullptr;
    const std::uint8_t* b = nullptr;
    std::uint8_t* y = nullptr;
    std::byte* scratch = nullptr;
    bool packed = false;  // the scratch holds this b from the call before
    Range rows{0, 0};
};

// Rows of `length` neighbours in memory, each finished as a whole.
struct RowArgs {
    const std::uint8_t* x = nullptr;
    std::uint8_t* y = nullptr;
    int length = 0;
    std::uint8_t flip = 0;
    std::int32_t x_zero = 0;  // in the u8 domain
    float lo = 0, hi = 0;
    std::int32_t zero_point = 0;
    Range rows{0, 0};
    // softmax: exp by distance from the largest, and 1 / s_y; room for `length` numbers
    const std::int32_t* table = nullptr;
    float one = 0;
    std::byte* scratch = nullptr;
    // normalization
    const float* gain = nullptr;
    const float* bias = nullptr;
    double shift = 0;  // added to the variance
    bool centred = true;
    bool x_wide = false, y_wide = false;  // s16
};

// Means over the middle axis of [outer, length, inner].
struct MeanArgs {
    const std::uint8_t* x = nullptr;
    std::uint8_t* y = nullptr;
    int length = 0, inner = 0;
    std::uint8_t flip = 0;
    std::int32_t x_zero = 0;  // in the u8 domain
    float m = 0, lo = 0, hi = 0;
    std::int32_t zero_point = 0;
    Range outer{0, 0};
};

// Sums of the products of the weights with numbers that are `inside` apart: y[i] = sum of w[t] *
// x[index[t]][i].
struct Blend {
    const std::int64_t* index = nullptr;
    const std::int32_t* weight = nullptr;
    std::int64_t taps = 0, inside = 0;
    std::int32_t* y = nullptr;
};
// How sums become bytes: divided by 2**shift (1 or more), rounded to the nearest, ties to even, clamped.
struct BlendEnd {
    int shift = 0;
    std::int32_t lo = 0, hi = 0, zero_point = 0;
};

// y = tables[channel][x] for pixels, which lie `x_step` and `y_step` bytes apart; there is a whole block of
// 16 tables for the last channels.
struct ChannelTables {
    const std::uint8_t* tables = nullptr;
    const std::uint8_t* x = nullptr;
    std::uint8_t* y = nullptr;
    int channels = 0, pixels = 0;
    std::size_t x_step = 0, y_step = 0;
};

// One kind of convolution. Channel arrays have the channel `order(p)` at position p, and whole blocks.
struct ConvKernels {
    int block;  // channels: of a full tile, or of a depthwise block
    int unit;   // source elements in a lane of packed weights: 4 (u8) or 2 (s16)
    // sizes in int32 elements / bytes
    std::size_t (*weight_size)(const ConvShape&);
    void (*pack)(const ConvShape&, const std::int8_t* w, std::int32_t* out);
    // packed weights of 4 bits two to a byte: 8 / unit bytes become 4 / unit (matrix product)
    void (*halve)(const std::int32_t* packed, std::size_t count, std::uint8_t* out);
    std::size_t (*scratch)(const ConvShape&);
    void (*run)(const ConvArgs&);
    int (*order)(int position);  // depthwise
};

struct Table {
    int lanes;  // 32-bit lanes of a vector
    ConvKernels conv;
    ConvKernels small_conv;  // of weights of which no two neighbours sum to more than 128; may be empty
    ConvKernels depthwise;
    ConvKernels wide_conv;                 // of wide sources
    ConvKernels wide_depthwise;            // of a source, residual or output that is wide
    void (*add)(const Elementwise&);       // r may be null: requantize
    void (*multiply)(const Elementwise&);  // a_ratio: the multiplier
    void (*larger)(const Elementwise&);
    void (*smaller)(const Elementwise&);
    void (*quantize)(const Elementwise&);    // a: float32, a_ratio: the scale
    void (*dequantize)(const Elementwise&);  // y: float32, a_ratio: the scale
    void (*fake_quant)(const Elementwise&, float* least, float* most);
    void (*planes)(const Planes&);
    void (*average)(const PoolArgs&);
    void (*maximum)(const PoolArgs&);
    std::size_t (*product_scratch)(const ProductShape&);
    void (*product)(const ProductArgs&);
    void (*softmax)(const RowArgs&);
    void (*normalize)(const RowArgs&);
    void (*normalize_wide)(const RowArgs&);  // of a source or output that is wide
    void (*mean)(const MeanArgs&);
    void (*lookup)(const std::uint8_t* table, std::uint8_t flip, const std::uint8_t* x, std::uint8_t* y,
                   int size);  // y = table[x ^ flip]
    void (*lookup_channels)(const ChannelTables&);
    void (*blend_bytes)(const Blend&, const std::uint8_t* x, std::uint8_t flip, std::int32_t zero);
    void (*blend_sums)(const Blend&, const std::int32_t* x);
    void (*end_blend)(const BlendEnd&, const std::int32_t* sums, std::uint8_t* y, std::int64_t count);
    void (*epilogue)(const std::int32_t* acc, const std::uint8_t* res, std::uint8_t* y, int rows,
                     int channels, const Epilogue&);
};

extern const Table table_base;
extern const Table table_sse41;
extern const Table table_avx2;
extern const Table table_avx512;
extern const Table table_vnni;
extern const Table table_amx;

}  // namespace mge::int8
