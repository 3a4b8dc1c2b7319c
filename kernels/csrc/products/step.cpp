// Products of rows with a constant matrix: linear layers with bias, residual and activation.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/flush_subnormals.h"
#include "common/function_capsule.h"
#include "common/step_capsule.h"
#include "products/kernels.h"
#include "products/panels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

constexpr std::int64_t kLeast = 1 << 15;  // products of a part that is worth a thread
constexpr std::int64_t kRowsAtOnce = 256, kNumbersAtOnce = 1 << 18;  // that stay in the cache
// Results that wait in the cache for their activation: whole rows where they belong, or else a tile.
constexpr std::int64_t kResults = 1 << 16, kFewRows = 8, kRowsOfTile = 48, kColumnsOfTile = 64;
constexpr std::int64_t kWeightsAtOnce = 160 << 10;  // numbers that stay in the cache beside them

struct Columns {
    std::int64_t begin, end;
};

class LinearStep final : public Step {
  public:
    LinearStep(std::int64_t rows, std::int64_t depth, std::int64_t columns, bool residual, int threads)
        : rows_(rows),
          depth_(depth),
          columns_(columns),
          residual_(residual),
          tiles_(kernels_.tiles(rows, depth)) {
        const std::int64_t most = std::max<std::int64_t>(1, rows * depth * columns / kLeast);
        const std::int64_t parts = std::clamp<std::int64_t>(threads, 1, most);
        // units of the longest part: the fewer of all, the better are the parts divided
        const auto longest = [parts](std::int64_t units) {
            const double most_units = static_cast<double>((units + parts - 1) / parts);
            return most_units / static_cast<double>(units);
        };
        // of two ways that are as even, the one that leaves the larger operand in one core's cache
        const double of_columns = longest(panels()), of_rows = longest(rows_);
        by_columns_ = rows_ > columns_ ? of_columns < of_rows : of_columns <= of_rows;
        parts_ = static_cast<int>(std::min(parts, by_columns_ ? panels() : rows_));
    }

    void pack(const float* weights, const float* bias) {
        const std::int64_t whole = rounded_up(columns_, kernels_.vector);
        packed_ = floats(depth_ * whole);
        bias_ = floats(whole);
        std::fill_n(std::copy_n(bias, columns_, bias_.get()), whole - columns_, 0.f);
        for (std::int64_t p = 0; p < panels(); ++p) {
            const std::int64_t from = p * tiles_.panel, count = std::min(tiles_.panel, columns_ - from);
            pack_panel(weights, 1, depth_, depth_, from, count, rounded_up(count, kernels_.vector),
                       packed_.get() + from * depth_);
        }
    }

    Clamp clamp = Clamp::kNone;
    FloatFunction after{};  // none if it has no code

    int parts() const override { return parts_; }

    void run(int part, std::byte* const* buffers, std::byte*) const noexcept override {
        const std::int64_t units = by_columns_ ? panels() : rows_;
        const std::int64_t begin = units * part / parts_, end = units * (part + 1) / parts_;
        const auto* a = reinterpret_cast<const float*>(buffers[0]);
        auto* out = reinterpret_cast<float*>(buffers[residual_ ? 2 : 1]);
        const std::int64_t first = by_columns_ ? 0 : begin, last = by_columns_ ? rows_ : end;
        const Columns columns{by_columns_ ? begin * tiles_.panel : 0,
                              by_columns_ ? std::min(columns_, end * tiles_.panel) : columns_};
        const bool whole = in_whole_rows(last - first, columns);
        const std::int64_t together = after.apply && whole ? std::max(kFewRows, kResults / columns_)
                                                           : std::max(kRowsAtOnce, kNumbersAtOnce / depth_);
        const std::int64_t blocks = (last - first + together - 1) / together;
        for (std::int64_t i = 0; i < blocks; ++i) {
            const std::int64_t top = (last - first) * i / blocks, next = (last - first) * (i + 1) / blocks;
            rows_of(a, out, first + top, next - top, columns);
        }
    }

  private:
    std::int64_t panels() const { return (columns_ + tiles_.panel - 1) / tiles_.panel; }

    bool in_whole_rows(std::int64_t rows, Columns columns) const {
        if (rows <= kFewRows) return true;
        if (columns.end - columns.begin < columns_) return false;
        return rows * columns_ <= kResults ||
               (depth_ * columns_ <= kWeightsAtOnce && kRowsOfTile * columns_ <= kResults);
    }

    // Rows of the result, some columns of them.
    void rows_of(const float* a, float* out, std::int64_t first, std::int64_t rows, Columns columns) const {
        const float* source = a + first * depth_;
        float* dst = out + first * columns_;
        if (!after.apply || in_whole_rows(rows, columns)) {
            multiply(source, dst, dst, columns_, rows, columns);
            if (after.apply && columns.end - columns.begin == columns_) return after(dst, rows * columns_);
            for (std::int64_t r = 0; after.apply && r < rows; ++r)
                after(dst + r * columns_ + columns.begin, columns.end - columns.begin);
            return;
        }
        const std::int64_t tiles = (rows + kRowsOfTile - 1) / kRowsOfTile;
        for (std::int64_t c = columns.begin; c < columns.end; c += kColumnsOfTile)
            for (std::int64_t i = 0; i < tiles; ++i) {
                const std::int64_t top = rows * i / tiles, height = rows * (i + 1) / tiles - top;
                tile(source + top * depth_, dst + top * columns_, height,
                     {c, std::min(columns.end, c + kColumnsOfTile)});
            }
    }

    // A function takes longer over short rows than over a tile that lies together.
    void tile(const float* a, float* out, std::int64_t rows, Columns columns) const {
        alignas(64) float together[kRowsOfTile * kColumnsOfTile];
        constexpr std::int64_t kLine = 16;
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = columns.begin; c < columns.end; c += kLine)
                __builtin_prefetch(out + r * columns_ + c, 1);
        const std::int64_t width = columns.end - columns.begin;
        multiply(a, out, together - columns.begin, width, rows, columns);
        after(together, rows * width);
        for (std::int64_t r = 0; r < rows; ++r)
            std::copy_n(together + r * width, width, out + r * columns_ + columns.begin);
    }

    // Columns of the product of rows `a`, into dst with rows `step` apart; `out` has the residual.
    void multiply(const float* a, const float* out, float* dst, std::int64_t step, std::int64_t rows,
                  Columns columns) const {
        const FlushSubnormals flush;
        for (std::int64_t c = columns.begin; c < columns.end; c += tiles_.panel) {
            const std::int64_t count = std::min(tiles_.panel, columns.end - c);
            tiles_.multiply({.a = a,
                             .panel = packed_.get() + c * depth_,
                             .bias = bias_.get() + c,
                             .residual = residual_ ? out + c : nullptr,
                             .dst = dst + c,
                             .rows = rows,
                             .depth = depth_,
                             .columns = count,
                             .a_step = depth_,
                             .residual_step = columns_,
                             .step = step,
                             .scale = 1.f,
                             .clamp = clamp});
        }
    }

    std::int64_t rows_, depth_, columns_;
    bool residual_, by_columns_;
    int parts_;
    const ProductKernels& kernels_ = active_product_kernels();
    const Tiles& tiles_;
    Floats packed_, bias_;
};

// weights [columns, depth]; with a residual the buffers are x, the residual and the result, which is in its
// memory.
nb::object linear_step(std::int64_t rows, const F32& weights, const F32& bias, bool residual,
                       const std::string& clamp, const nb::object& after, int threads) {
    if (weights.ndim() != 2 || rows < 1 || !weights.size() || bias.size() != weights.shape(0))
        throw nb::value_error(
            "linear_step: weights [columns, depth] and a bias [columns], not empty, expected");
    auto step = std::make_unique<LinearStep>(rows, static_cast<std::int64_t>(weights.shape(1)),
                                             static_cast<std::int64_t>(weights.shape(0)), residual, threads);
    step->clamp = clamp_of(clamp);
    step->after = function_in(after);
    step->pack(weights.data(), bias.data());
    return capsule(std::move(step));
}

}  // namespace

void bind_products(nb::module_& m) {
    using nb::arg;
    m.def("clamp_names", [] { return clamp_names(); });
    m.def("linear_step", &linear_step, arg("rows"), arg("weights"), arg("bias"), arg("residual"),
          arg("clamp"), arg("after").none(), arg("threads"));
}

}  // namespace mge
