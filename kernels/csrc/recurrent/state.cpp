#include "recurrent/state.h"

#include <algorithm>
#include <array>
#include <vector>

#include "int8/steps.h"

namespace mge {
namespace {

class Rounding : public State {
  public:
    explicit Rounding(const StateType& type) : type_(type) {}

    void round(const float* h, std::int64_t count, std::uint8_t* codes) const noexcept override {
        int8::Elementwise e;
        e.a = h, e.y = codes, e.size = static_cast<std::size_t>(count);
        e.a_ratio = type_.scale;
        e.lo = static_cast<float>(type_.lo), e.hi = static_cast<float>(type_.hi);
        e.zero_point = type_.unsigned_zero();
        table_.quantize(e);
    }
    void real(const std::uint8_t* codes, std::int64_t count, float* h) const noexcept override {
        int8::Elementwise e;
        e.a = codes, e.y = h, e.size = static_cast<std::size_t>(count);
        e.a_ratio = type_.scale;
        e.a_zero = type_.unsigned_zero();
        table_.dequantize(e);
    }
    void product(bool, const std::uint8_t*, std::int64_t, float*, std::byte*) const noexcept override {}
    std::size_t scratch_bytes() const override { return 0; }
    std::uint8_t flip() const override { return type_.is_signed ? 0x80 : 0; }
    std::uint8_t zero() const override { return static_cast<std::uint8_t>(type_.zero_point); }

  protected:
    const StateType type_;

  private:
    const int8::Table& table_ = int8::active_table();
};

class IntegerState final : public Rounding {
  public:
    IntegerState(const StateType& type, std::int64_t hidden, std::int64_t samples, const StateWeights& gates,
                 const StateWeights& last)
        : Rounding(type), products_{product_of(hidden, samples, gates), product_of(hidden, samples, last)} {}

    void product(bool last, const std::uint8_t* codes, std::int64_t, float* out,
                 std::byte* scratch) const noexcept override {
        std::byte* const buffers[] = {reinterpret_cast<std::byte*>(const_cast<std::uint8_t*>(codes)),
                                      reinterpret_cast<std::byte*>(out)};
        products_[last]->run(0, buffers, int8_aligned(scratch));
    }
    std::size_t scratch_bytes() const override {
        std::size_t most = 0;
        for (const auto& one : products_) most = std::max(most, one ? one->scratch_bytes() : 0);
        return most + 2 * kAlignment;
    }

  private:
    static constexpr std::size_t kAlignment = 64;

    static std::byte* int8_aligned(std::byte* p) {
        const auto at = reinterpret_cast<std::uintptr_t>(p);
        return p + (kAlignment - at % kAlignment) % kAlignment;
    }

    std::unique_ptr<Step> product_of(std::int64_t hidden, std::int64_t samples, const StateWeights& w) const {
        if (!w.outputs) return nullptr;
        int8::ConvOptions o;
        int8::ConvShape& s = o.shape = {};
        s.n = static_cast<int>(samples), s.c = static_cast<int>(hidden), s.o = static_cast<int>(w.outputs);
        s.h = s.w = s.oh = s.ow = s.kh = s.kw = s.stride_h = s.stride_w = 1;
        s.dilation_h = s.dilation_w = s.groups = 1;
        s.zero_point = type_.unsigned_zero();
        o.epilogue.to_float = true;
        const std::vector<std::int32_t> b(static_cast<std::size_t>(w.outputs));
        const std::vector<float> bias(b.size());
        return int8::make_conv(o, w.rows, b.data(), w.multipliers, bias.data());
    }

    std::array<std::unique_ptr<Step>, 2> products_;
};

}  // namespace

std::unique_ptr<State> make_rounding(const StateType& type) { return std::make_unique<Rounding>(type); }

std::unique_ptr<State> make_state(const StateType& type, std::int64_t hidden, std::int64_t samples,
                                  const StateWeights& gates, const StateWeights& last) {
    return std::make_unique<IntegerState>(type, hidden, samples, gates, last);
}

}  // namespace mge
