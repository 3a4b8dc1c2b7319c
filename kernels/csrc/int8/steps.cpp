#include "int8/steps.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "memory/weights.h"

namespace mge::int8 {
namespace {

// Memory aligned for the widest vectors.
class Packed {
  public:
    explicit Packed(std::size_t count) : store_(count + 32) {
        void* p = store_.data();
        std::size_t space = store_.size() * sizeof(std::int32_t);
        data_ = static_cast<std::int32_t*>(std::align(64, count * sizeof(std::int32_t), p, space));
    }
    std::int32_t* data() const { return data_; }

  private:
    std::vector<std::int32_t, WeightAllocator<std::int32_t>> store_;
    std::int32_t* data_;
};

class ConvStep final : public Step {
  public:
    ConvStep(const ConvOptions& o, const std::int8_t* w, const std::int32_t* b, const float* m,
             const float* bias)
        : kernels_(kernels_of(o, w)), options_(o), weights_(weight_words()) {
        const ConvShape& s = options_.shape;
        pack(w);
        const int outputs = s.group_outputs(), lanes = active_table().lanes,
                  padded = (outputs + lanes - 1) / lanes * lanes;
        const int blocks = (s.c + kernels_.block - 1) / kernels_.block * kernels_.block;
        const int size = o.depthwise ? blocks : padded * s.groups;
        channels_.b.assign(size + 64, 0);
        channels_.m.assign(size + 64, 0);
        channels_.bias.assign(size + 64, 0);
        for (int p = 0; p < size; ++p) {
            const int c = o.depthwise ? kernels_.order(p) : p / padded * outputs + p % padded;
            if (o.depthwise ? c >= s.c : p % padded >= outputs) continue;
            channels_.b[p] = b[c] - compensation(w, c);
            channels_.m[p] = m[c];
            channels_.bias[p] = bias[c];
        }
        options_.epilogue.saturate = saturation(options_.epilogue, m, bias, s.o);
        options_.epilogue.b = channels_.b.data();
        options_.epilogue.m = channels_.m.data();
        options_.epilogue.bias = channels_.bias.data();
        plan_parts();
    }

    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override { return aligned(kernels_.scratch(options_.shape)) + 64; }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        ConvArgs a;
        a.s = options_.shape;
        a.e = options_.epilogue;
        a.weights = weights_.data();
        a.x = bytes(buffers[0]);
        a.res = options_.residual ? bytes(buffers[1]) : nullptr;
        a.y = bytes(buffers[options_.residual ? 2 : 1]);
        a.scratch = scratch;
        a.rows = by_lanes_ ? Range{0, rows_} : share(rows_, part, parts_, grain_);
        a.lanes = by_lanes_ ? share(a.s.group_outputs(), part, parts_, kernels_.block)
                            : Range{0, a.s.group_outputs()};
        kernels_.run(a);
    }

  private:
    static const ConvKernels& kernels_of(const ConvOptions& o, const std::int8_t* w) {
        const Table& t = active_table();
        const bool wide = o.shape.wide || o.epilogue.wide || (o.residual && o.epilogue.res_wide);
        if (o.depthwise) return wide ? t.wide_depthwise : t.depthwise;
        if (o.shape.wide) return t.wide_conv;
        return t.small_conv.run && has_small_weights(o.shape, w) ? t.small_conv : t.conv;
    }

    // Sums of two neighbouring products with u8 stay in s16: 255 * 128 is less than 2**15.
    static bool has_small_weights(const ConvShape& s, const std::int8_t* w) {
        constexpr int kMost = 128;
        const std::size_t taps = static_cast<std::size_t>(s.taps());
        const std::int8_t* end = w + static_cast<std::size_t>(s.o) * s.depth();
        if (std::all_of(w, end, [](int one) { return std::abs(one) <= kMost / 2; })) return true;
        if (s.group_inputs() % 2) return false;  // neighbours belong to different taps
        for (; w < end; w += 2 * taps)
            for (std::size_t t = 0; t < taps; ++t)
                if (std::abs(w[t]) + std::abs(w[taps + t]) > kMost) return false;
        return true;
    }

    std::size_t weight_words() const {
        const std::size_t whole = kernels_.weight_size(options_.shape);
        return options_.shape.halved ? (whole * kernels_.unit / 2 + 3) / 4 : whole;
    }

    void pack(const std::int8_t* w) {
        if (!options_.shape.halved) return kernels_.pack(options_.shape, w, weights_.data());
        const std::size_t count = kernels_.weight_size(options_.shape);
        const Packed whole(count);
        kernels_.pack(options_.shape, w, whole.data());
        kernels_.halve(whole.data(), count, reinterpret_cast<std::uint8_t*>(weights_.data()));
    }

    // Kernels that sum x * w with the zero point still in x correct the integer bias for it.
    std::int32_t compensation(const std::int8_t* w, int channel) const {
        if (!options_.depthwise && kernels_.unit == 2) return 0;
        const int depth = options_.shape.depth();
        std::int32_t sum = 0;
        for (int k = 0; k < depth; ++k) sum += w[static_cast<std::size_t>(channel) * depth + k];
        return sum * options_.shape.zero_point;
    }

    void plan_parts() {
        const ConvShape& s = options_.shape;
        rows_ = options_.depthwise ? s.n * s.oh : s.n * s.oh * s.ow;
        grain_ = options_.depthwise ? 2 : 24;
        parts_ = usable_parts(rows_, grain_, options_.threads);
        const int lane_parts = usable_parts(s.group_outputs(), kernels_.block, options_.threads);
        by_lanes_ = !options_.depthwise && lane_parts > parts_;
        if (by_lanes_) parts_ = lane_parts;
    }

    const ConvKernels& kernels_;
    ConvOptions options_;
    Packed weights_;
    Channels channels_;
    int rows_ = 0, grain_ = 1, parts_ = 1;
    bool by_lanes_ = false;
};

void (*entry_of(Elementary kind, const Table& t))(const Elementwise&) {
    switch (kind) {
        case Elementary::kQuantize:
            return t.quantize;
        case Elementary::kDequantize:
            return t.dequantize;
        case Elementary::kMultiply:
            return t.multiply;
        case Elementary::kLarger:
            return t.larger;
        case Elementary::kSmaller:
            return t.smaller;
        default:
            return t.add;
    }
}

class ElementwiseStep final : public Step {
  public:
    ElementwiseStep(Elementary kind, const Elementwise& e, int threads)
        : kind_(kind), e_(e), table_(active_table()) {
        parts_ = usable_parts(static_cast<int>(e.size), 4096, threads);
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        Elementwise e = e_;
        const Range range = share(static_cast<int>(e.size), part, parts_, 4096);
        const std::size_t in = kind_ == Elementary::kQuantize ? 4 : bytes_of(e.a_wide),
                          out = kind_ == Elementary::kDequantize ? 4 : bytes_of(e.y_wide);
        const bool two = kind_ != Elementary::kRequantize && kind_ != Elementary::kQuantize &&
                         kind_ != Elementary::kDequantize;
        e.a = buffers[0] + range.begin * in;
        e.r = two ? buffers[1] + range.begin * bytes_of(e.r_wide) : nullptr;
        e.y = buffers[two ? 2 : 1] + range.begin * out;
        e.size = static_cast<std::size_t>(range.end - range.begin);
        entry_of(kind_, table_)(e);
    }

  private:
    static std::size_t bytes_of(bool wide) { return wide ? 2 : 1; }

    Elementary kind_;
    Elementwise e_;
    const Table& table_;
    int parts_;
};

class GateStep final : public Step {
  public:
    explicit GateStep(const GateOptions& o) : o_(o), table_(active_table()) {
        parts_ = usable_parts(o.images * o.pixels, 64, o.threads);
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const Range range = share(o_.images * o_.pixels, part, parts_, 64);
        Elementwise e = o_.e;
        e.size = static_cast<std::size_t>(o_.channels);
        for (int i = range.begin; i < range.end; ++i) {
            e.a = buffers[o_.gate_first ? 1 : 0] + i * e.size;
            e.r = buffers[o_.gate_first ? 0 : 1] + i / o_.pixels * e.size;
            e.y = buffers[2] + i * e.size;
            table_.multiply(e);
        }
    }

  private:
    GateOptions o_;
    const Table& table_;
    int parts_;
};

// `count` elements `stride` apart as neighbours: in place, or in `room`.
const std::uint8_t* gathered(const std::byte* from, std::int64_t stride, std::int64_t count,
                             std::uint8_t* room) {
    const std::uint8_t* x = bytes(from);
    if (stride == 0 || stride == 1) return x;
    for (std::int64_t i = 0; i < count; ++i) room[i] = x[i * stride];
    return room;
}

class BroadcastStep final : public Step {
  public:
    BroadcastStep(Elementary kind, const Elementwise& e, const Nest& nest, int threads)
        : e_(e), entry_(entry_of(kind, active_table())) {
        const int total = static_cast<int>(nest.shape[0]), grain = nest.dims() == 1 ? 4096 : 1;
        const int parts = usable_parts(total, grain, threads);
        for (int part = 0; part < parts; ++part) {
            const Range range = share(total, part, parts, grain);
            pieces_.push_back({nest, range.begin});
            pieces_.back().nest.shape[0] = range.end - range.begin;
        }
    }
    int parts() const override { return static_cast<int>(pieces_.size()); }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        constexpr std::int64_t kChunk = 256;
        const Piece& piece = pieces_[static_cast<std::size_t>(part)];
        const Nest& nest = piece.nest;
        const std::size_t last = nest.dims() - 1;
        const std::int64_t steps[3] = {nest.strides[0][last], nest.strides[1][last], nest.strides[2][last]};
        const bool plain = steps[1] >= 0 && steps[1] <= 1 && steps[2] >= 0 && steps[2] <= 1;
        std::uint8_t room[2][kChunk];
        Elementwise e = e_;
        e.a_one = steps[1] == 0, e.r_one = steps[2] == 0;
        nest.each(1, [&](const std::int64_t* at) {
            const std::int64_t length = nest.shape[last], chunk = plain ? length : kChunk;
            for (std::int64_t i = 0; i < length; i += chunk) {
                const std::int64_t count = std::min(chunk, length - i);
                const auto begin = [&](int o) {
                    const auto& first = nest.strides[static_cast<std::size_t>(o)][0];
                    return at[o] + piece.begin * first + i * steps[o];
                };
                e.a = gathered(buffers[0] + begin(1), steps[1], count, room[0]);
                e.r = gathered(buffers[1] + begin(2), steps[2], count, room[1]);
                e.y = buffers[2] + begin(0);
                e.size = static_cast<std::size_t>(count);
                entry_(e);
            }
        });
    }

  private:
    struct Piece {
        Nest nest;
        std::int64_t begin;
    };
    Elementwise e_;
    void (*entry_)(const Elementwise&);
    std::vector<Piece> pieces_;
};

class PlanesStep final : public Step {
  public:
    PlanesStep(const Planes& p, int images, int threads) : p_(p), images_(images), table_(active_table()) {
        parts_ = usable_parts(p.pixels, 1024, threads);
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::size_t size = static_cast<std::size_t>(p_.channels) * p_.pixels;
        for (int i = 0; i < images_; ++i) {
            Planes p = p_;
            p.x = reinterpret_cast<const float*>(buffers[0]) + i * size;
            p.y = bytes(buffers[1]) + i * size;
            p.range = share(p.pixels, part, parts_, 1024);
            table_.planes(p);
        }
    }

  private:
    Planes p_;
    int images_;
    const Table& table_;
    int parts_;
};

class PoolStep final : public Step {
  public:
    PoolStep(const PoolArgs& p, bool average, int threads)
        : p_(p), average_(average), table_(active_table()) {
        parts_ = usable_parts(p.s.n * p.s.oh, 1, threads);
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        PoolArgs p = p_;
        p.x = bytes(buffers[0]);
        p.y = bytes(buffers[1]);
        p.rows = share(p.s.n * p.s.oh, part, parts_, 1);
        (average_ ? table_.average : table_.maximum)(p);
    }

  private:
    PoolArgs p_;
    bool average_;
    const Table& table_;
    int parts_;
};

class LookupStep final : public Step {
  public:
    LookupStep(const std::uint8_t* tables, std::size_t count, std::size_t inner, std::uint8_t flip,
               std::size_t size, int threads)
        : tables_(tables, tables + 256 * count),
          inner_(count == 1 ? size : inner),
          flip_(flip),
          size_(static_cast<int>(size)),
          parts_(usable_parts(size_, 4096, threads)) {}
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const Range range = share(size_, part, parts_, 4096);
        const std::uint8_t* x = bytes(buffers[0]);
        std::uint8_t* y = bytes(buffers[1]);
        const std::size_t end = static_cast<std::size_t>(range.end);
        std::size_t i = static_cast<std::size_t>(range.begin), at = i / inner_ * 256 % tables_.size();
        for (std::size_t left = inner_ - i % inner_; i < end; left = inner_) {
            const std::size_t count = std::min(end - i, left);
            lookup_(tables_.data() + at, flip_, x + i, y + i, static_cast<int>(count));
            i += count;
            at = at + 256 == tables_.size() ? 0 : at + 256;
        }
    }

  private:
    decltype(Table::lookup) lookup_ = active_table().lookup;
    std::vector<std::uint8_t> tables_;
    std::size_t inner_;
    std::uint8_t flip_;
    int size_, parts_;
};

// Channels of several values side by side, each looked up in a table of its own.
class ChannelLookupStep final : public Step {
  public:
    ChannelLookupStep(const std::uint8_t* tables, const std::vector<ChannelSource>& sources, int pixels,
                      int threads)
        : sources_(sources), pixels_(pixels) {
        for (const ChannelSource& one : sources) channels_ += one.channels;
        tables_.resize(256 * ((static_cast<std::size_t>(channels_) + 15) / 16 * 16));
        std::size_t at = 0;
        for (const ChannelSource& one : sources)
            for (const std::size_t end = at + 256 * static_cast<std::size_t>(one.channels); at < end; ++at)
                tables_[at] = tables[at ^ one.flip];
        grain_ = kTile * std::max(1, 64 / channels_);
        parts_ = usable_parts(pixels_, grain_, threads);
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const Range range = share(pixels_, part, parts_, grain_);
        const int at_once = kTile * std::max(1, kBytes / (kTile * channels_));  // they stay in the cache
        std::uint8_t* y = bytes(buffers[sources_.size()]);
        for (int p = range.begin; p < range.end; p += at_once) {
            const int count = std::min(at_once, range.end - p);
            const auto pixel = static_cast<std::size_t>(p), step = static_cast<std::size_t>(channels_);
            std::size_t first = 0;
            for (std::size_t i = 0; i < sources_.size(); ++i) {
                const auto own = static_cast<std::size_t>(sources_[i].channels);
                lookup_({tables_.data() + 256 * first, bytes(buffers[i]) + pixel * own,
                         y + pixel * step + first, sources_[i].channels, count, own, step});
                first += own;
            }
        }
    }

  private:
    static constexpr int kTile = 64, kBytes = 1 << 17;
    decltype(Table::lookup_channels) lookup_ = active_table().lookup_channels;
    std::vector<std::uint8_t> tables_;
    std::vector<ChannelSource> sources_;
    int channels_ = 0, pixels_, grain_, parts_;
};

}  // namespace

std::unique_ptr<Step> make_conv(const ConvOptions& o, const std::int8_t* w, const std::int32_t* b,
                                const float* m, const float* bias) {
    return std::make_unique<ConvStep>(o, w, b, m, bias);
}
std::unique_ptr<Step> make_elementwise(Elementary kind, const Elementwise& e, int threads) {
    constexpr std::size_t kCodes = 256, kMany = 4 * kCodes;
    if (kind == Elementary::kRequantize && !e.a_wide && !e.y_wide && e.size >= kMany &&
        has_fast_channel_lookup()) {
        // What the arithmetic gives for each integer, by its bits.
        std::array<std::uint8_t, kCodes> codes, table;
        std::iota(codes.begin(), codes.end(), std::uint8_t{0});
        Elementwise all = e;
        all.a = codes.data(), all.y = table.data(), all.size = kCodes;
        entry_of(kind, active_table())(all);
        return std::make_unique<LookupStep>(table.data(), 1, 1, std::uint8_t{0}, e.size, threads);
    }
    return std::make_unique<ElementwiseStep>(kind, e, threads);
}
std::unique_ptr<Step> make_gate(const GateOptions& o) { return std::make_unique<GateStep>(o); }
std::unique_ptr<Step> make_broadcast(Elementary kind, const Elementwise& e, const Nest& nest, int threads) {
    return std::make_unique<BroadcastStep>(kind, e, nest, threads);
}
std::unique_ptr<Step> make_planes(const Planes& p, int images, int threads) {
    return std::make_unique<PlanesStep>(p, images, threads);
}
std::unique_ptr<Step> make_pool(const PoolArgs& p, bool average, int threads) {
    return std::make_unique<PoolStep>(p, average, threads);
}
std::unique_ptr<Step> make_lookup(const std::uint8_t* tables, std::size_t count, std::size_t inner,
                                  std::uint8_t flip, std::size_t size, int threads) {
    if (inner == 1 && count > 1)
        return make_channel_lookup(tables, {{static_cast<int>(count), flip}}, static_cast<int>(size / count),
                                   threads);
    return std::make_unique<LookupStep>(tables, count, inner, flip, size, threads);
}

std::unique_ptr<Step> make_channel_lookup(const std::uint8_t* tables,
                                          const std::vector<ChannelSource>& sources, int pixels,
                                          int threads) {
    return std::make_unique<ChannelLookupStep>(tables, sources, pixels, threads);
}
bool has_fast_channel_lookup() {
#if defined(MGE_X86)
    return active_isa() >= Isa::kVnni && __builtin_cpu_supports("avx512vbmi");
#else
    return false;
#endif
}

}  // namespace mge::int8
