// Plan steps over rows of values: products of two tensors, softmax, normalization, means, pictures in other
// sizes.
#include <algorithm>

#include "int8/steps.h"

namespace mge::int8 {
namespace {

class ProductStep final : public Step {
  public:
    explicit ProductStep(const ProductOptions& o) : o_(o), table_(active_table()) {
        const std::size_t cols = static_cast<std::size_t>(o.shape.cols) + 128;
        m_.assign(cols, o.m);
        none_.assign(cols, 0);
        o_.epilogue.m = m_.data();
        o_.epilogue.bias = none_.data();
        o_.epilogue.saturate = saturation(o_.epilogue, m_.data(), none_.data(), 1);
        const int stacks = static_cast<int>(o.a.size());
        by_rows_ = stacks < o.threads && o.shape.rows > stacks;
        parts_ = by_rows_ ? usable_parts(o.shape.rows, 24, o.threads) : usable_parts(stacks, 1, o.threads);
    }
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override { return aligned(table_.product_scratch(o_.shape)) + 64; }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        ProductArgs p;
        p.s = o_.shape, p.e = o_.epilogue, p.scratch = scratch;
        const int stacks = static_cast<int>(o_.a.size());
        const Range range = by_rows_ ? Range{0, stacks} : share(stacks, part, parts_, 1);
        p.rows = by_rows_ ? share(p.s.rows, part, parts_, 24) : Range{0, p.s.rows};
        const std::size_t size = static_cast<std::size_t>(p.s.rows) * p.s.cols * (p.e.to_float ? 4 : 1);
        for (int i = range.begin; i < range.end; ++i) {
            const auto at = static_cast<std::size_t>(i);
            p.packed = i > range.begin && o_.b[at] == o_.b[at - 1];
            p.a = bytes(buffers[0]) + o_.a[at];
            p.b = bytes(buffers[1]) + o_.b[at];
            p.y = bytes(buffers[2]) + at * size;
            table_.product(p);
        }
    }

  private:
    ProductOptions o_;
    const Table& table_;
    std::vector<float> m_, none_;
    bool by_rows_ = false;
    int parts_ = 1;
};

class SoftmaxStep final : public Step {
  public:
    explicit SoftmaxStep(const SoftmaxOptions& o) : o_(o), table_(active_table()) {
        o_.rows.table = o_.table.data();
        rows_ = o.outer * o.inner;
        parts_ = usable_parts(rows_, 16, o.threads);
    }
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override { return row() * 6 + 256; }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const Range range = share(rows_, part, parts_, 16);
        RowArgs r = o_.rows;
        r.scratch = scratch;
        if (o_.inner == 1) {
            r.x = bytes(buffers[0]), r.y = bytes(buffers[1]), r.rows = range;
            return table_.softmax(r);
        }
        std::uint8_t *x = bytes(scratch) + row() * 4 + 128, *y = x + row();
        r.x = x, r.y = y, r.rows = {0, 1};
        for (int i = range.begin; i < range.end; ++i) {
            const std::size_t inner = static_cast<std::size_t>(o_.inner),
                              n = static_cast<std::size_t>(r.length);
            const std::size_t begin = i / inner * inner * n + i % inner;
            for (std::size_t k = 0; k < n; ++k) x[k] = bytes(buffers[0])[begin + k * inner];
            table_.softmax(r);
            for (std::size_t k = 0; k < n; ++k) bytes(buffers[1])[begin + k * inner] = y[k];
        }
    }

  private:
    std::size_t row() const { return aligned(static_cast<std::size_t>(o_.rows.length)); }
    SoftmaxOptions o_;
    const Table& table_;
    int rows_, parts_;
};

class NormalizeStep final : public Step {
  public:
    NormalizeStep(const RowArgs& r, int rows, int threads) : r_(r), rows_(rows), table_(active_table()) {
        parts_ = usable_parts(rows, 4, threads);
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        RowArgs r = r_;
        r.x = bytes(buffers[0]), r.y = bytes(buffers[3]);
        r.gain = reinterpret_cast<const float*>(buffers[1]);
        r.bias = reinterpret_cast<const float*>(buffers[2]);
        r.rows = share(rows_, part, parts_, 4);
        r.x_wide || r.y_wide ? table_.normalize_wide(r) : table_.normalize(r);
    }

  private:
    RowArgs r_;
    int rows_, parts_;
    const Table& table_;
};

class MeanStep final : public Step {
  public:
    MeanStep(const MeanArgs& a, int outer, int threads) : a_(a), outer_(outer), table_(active_table()) {
        parts_ = usable_parts(outer, 1, threads);
    }
    int parts() const override { return parts_; }
    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        MeanArgs a = a_;
        a.x = bytes(buffers[0]), a.y = bytes(buffers[1]);
        a.outer = share(outer_, part, parts_, 1);
        table_.mean(a);
    }

  private:
    MeanArgs a_;
    int outer_, parts_;
    const Table& table_;
};

class ResizeStep final : public Step {
  public:
    ResizeStep(const BlendEnd& end, std::vector<ResizeAxis> axes, std::int64_t outer, std::int64_t inner,
               std::uint8_t flip, std::int32_t zero, int threads)
        : end_(end), axes_(std::move(axes)), flip_(flip), zero_(zero), table_(active_table()) {
        for (std::size_t k = axes_.size(); k-- > 0; inner *= axes_[k].n) axes_[k].inside = inner;
        places_ = static_cast<int>(outer * axes_[0].out);
        parts_ = usable_parts(places_, 1, threads);
    }
    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        std::size_t total = 0;
        for (const ResizeAxis& a : axes_) total += static_cast<std::size_t>(a.inside);
        return total * sizeof(std::int32_t);
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const ResizeAxis& first = axes_[0];
        const Range range = share(places_, part, parts_, 1);
        auto* line = reinterpret_cast<std::int32_t*>(scratch);
        std::int64_t size = first.inside;  // of the result at one place of the first axis
        for (std::size_t k = 1; k < axes_.size(); ++k) size = size / axes_[k].n * axes_[k].out;
        for (std::int64_t at = range.begin; at < range.end; ++at) {
            const std::uint8_t* x = bytes(buffers[0]) + at / first.out * first.n * first.inside;
            table_.blend_bytes(blend_of(first, at % first.out, line), x, flip_, zero_);
            behind(0, line, bytes(buffers[1]) + at * size);
        }
    }

  private:
    static Blend blend_of(const ResizeAxis& a, std::int64_t at, std::int32_t* y) {
        return {a.index.data() + at * a.taps, a.weight.data() + at * a.taps, a.taps, a.inside, y};
    }
    // Writes what the axes behind k make of the sums of one place of axis k; the position behind it.
    std::uint8_t* behind(std::size_t k, std::int32_t* sums, std::uint8_t* y) const {
        const std::int64_t count = axes_[k].inside;
        if (k + 1 == axes_.size()) {
            table_.end_blend(end_, sums, y, count);
            return y + count;
        }
        for (std::int64_t at = 0; at < axes_[k + 1].out; ++at) {
            table_.blend_sums(blend_of(axes_[k + 1], at, sums + count), sums);
            y = behind(k + 1, sums + count, y);
        }
        return y;
    }

    BlendEnd end_;
    std::vector<ResizeAxis> axes_;
    std::uint8_t flip_;
    std::int32_t zero_;
    int places_ = 0, parts_ = 1;
    const Table& table_;
};

}  // namespace

std::unique_ptr<Step> make_product(const ProductOptions& o) { return std::make_unique<ProductStep>(o); }
std::unique_ptr<Step> make_softmax(const SoftmaxOptions& o) { return std::make_unique<SoftmaxStep>(o); }
std::unique_ptr<Step> make_normalize(const RowArgs& r, int rows, int threads) {
    return std::make_unique<NormalizeStep>(r, rows, threads);
}
std::unique_ptr<Step> make_mean(const MeanArgs& a, int outer, int threads) {
    return std::make_unique<MeanStep>(a, outer, threads);
}
std::unique_ptr<Step> make_resize(const BlendEnd& end, std::vector<ResizeAxis> axes, std::int64_t outer,
                                  std::int64_t inner, std::uint8_t flip, std::int32_t zero, int threads) {
    return std::make_unique<ResizeStep>(end, std::move(axes), outer, inner, flip, zero, threads);
}

}  // namespace mge::int8
