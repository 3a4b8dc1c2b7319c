// Convolutions of 3 x 3 by Winograd's algorithm as steps: float32, channels-last, constant weights.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "common/flush_subnormals.h"
#include "common/function_capsule.h"
#include "common/step_capsule.h"
#include "products/panels.h"
#include "runtime/bind.h"
#include "runtime/isa.h"
#include "winograd/kernels.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Pair = std::array<std::int64_t, 2>;  // along rows, along columns

constexpr std::int64_t kCache = 1 << 18;       // numbers that stay in the cache of a core
constexpr std::int64_t kRoom = 1 << 22;        // numbers of tiles and sums that lie ready at a time
constexpr std::int64_t kTilesOfPart = 1 << 6;  // with fewer tiles threads divide the channels of the result

// The weights of a kernel at the points: G g G^T, G of the powers of each point over the product of its
// distances from the others.
void to_points(const float* kernel, double* out) {
    constexpr double points[] = {0., .75, -.75, 1.5, -1.5};
    double matrix[kTile][3] = {{}, {}, {}, {}, {}, {0., 0., 1.}}, rows[kTile][3] = {};
    for (int i = 0; i < kTile - 1; ++i) {
        double distances = 1.;
        for (int j = 0; j < kTile - 1; ++j)
            if (j != i) distances *= points[i] - points[j];
        matrix[i][0] = 1. / distances;
        matrix[i][1] = points[i] / distances;
        matrix[i][2] = points[i] * points[i] / distances;
    }
    for (int i = 0; i < kTile; ++i)
        for (int c = 0; c < 3; ++c)
            for (int r = 0; r < 3; ++r) rows[i][c] += matrix[i][r] * static_cast<double>(kernel[r * 3 + c]);
    for (int i = 0; i < kTile; ++i)
        for (int j = 0; j < kTile; ++j) {
            double sum = 0.;
            for (int c = 0; c < 3; ++c) sum += rows[i][c] * matrix[j][c];
            out[i * kTile + j] = sum;
        }
}

struct WinogradShape {
    std::int64_t batch, channels, outputs;
    Pair in, out, before;

    std::int64_t tiles(int axis) const { return (out[axis] + kGiven - 1) / kGiven; }
    std::int64_t tiles_of_image() const { return tiles(0) * tiles(1); }
    std::int64_t tiles() const { return batch * tiles_of_image(); }
};

class WinogradStep final : public Step {
  public:
    WinogradStep(const WinogradShape& shape, const WinogradKernels& kernels, bool residual, int threads)
        : s_(shape), kernels_(kernels), residual_(residual) {
        depth_ = rounded_up(s_.channels, kernels_.lanes);
        panels_ = (s_.outputs + width() - 1) / width();
        const std::int64_t most = std::max<std::int64_t>(1, threads);
        by_panels_ = s_.tiles() < kTilesOfPart * most && panels_ >= most;
        parts_ = static_cast<int>(std::min(most, by_panels_ ? panels_ : s_.tiles()));
        divide(by_panels_ ? s_.tiles() : (s_.tiles() + parts_ - 1) / parts_,
               by_panels_ ? (panels_ + parts_ - 1) / parts_ : panels_);
    }

    // weights [outputs, channels, 3, 3]
    void pack(const float* weights, const float* bias) {
        const std::int64_t size = kPoints * panels_ * s_.channels * width();
        weights_ = floats(size);
        bias_ = floats(panels_ * width());
        std::fill_n(weights_.get(), size, 0.f);
        std::fill_n(bias_.get(), panels_ * width(), 0.f);
        std::copy_n(bias, s_.outputs, bias_.get());
        double points[kPoints];
        for (std::int64_t o = 0; o < s_.outputs; ++o)
            for (std::int64_t c = 0; c < s_.channels; ++c) {
                to_points(weights + (o * s_.channels + c) * 9, points);
                for (int p = 0; p < kPoints; ++p)
                    weights_[place_of_weights(o / width(), p) + c * width() + o % width()] =
                        static_cast<float>(points[p]);
            }
    }

    Clamp clamp = Clamp::kNone;
    FloatFunction after{};  // none if it has no code

    int parts() const override { return parts_; }

    std::size_t scratch_bytes() const override {
        return static_cast<std::size_t>(kPoints * block_ * (depth_ + together_ * width())) * sizeof(float);
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const FlushSubnormals flush;
        const auto* x = reinterpret_cast<const float*>(buffers[0]);
        auto* out = reinterpret_cast<float*>(buffers[residual_ ? 2 : 1]);
        auto* tiles = reinterpret_cast<float*>(scratch);
        const std::int64_t all = by_panels_ ? panels_ : s_.tiles();
        const std::int64_t begin = all * part / parts_, end = all * (part + 1) / parts_;
        const std::int64_t first = by_panels_ ? 0 : begin, last = by_panels_ ? s_.tiles() : end;
        const std::int64_t panel = by_panels_ ? begin : 0, last_panel = by_panels_ ? end : panels_;
        for (std::int64_t t = first; t < last; t += block_) {
            const std::int64_t count = std::min(block_, last - t);
            read_block(x, t, count, tiles);
            for (std::int64_t p = panel; p < last_panel; p += together_)
                run_panels(out, t, count, p, std::min(p + together_, last_panel), tiles);
        }
    }

  private:
    std::int64_t width() const { return 2 * kernels_.lanes; }

    std::int64_t place_of_weights(std::int64_t panel, std::int64_t point) const {
        const std::int64_t at = together_ == 1 ? panel * kPoints + point : point * panels_ + panel;
        return at * s_.channels * width();
    }

    // How many tiles lie ready, and of how many panels the sums. Panel by panel the sums stay in the cache,
    // and weights that do not are read anew for every block of tiles; of all panels together weights are read
    // once, and tiles and sums go through memory.
    void divide(std::int64_t tiles, std::int64_t panels) {
        const auto of_equal_lengths = [&](std::int64_t most) {
            const std::int64_t blocks = (tiles + most - 1) / most;
            return (tiles + blocks - 1) / blocks;
        };
        const std::int64_t weights = kPoints * panels * s_.channels * width();
        const std::int64_t most = (weights > kCache ? kCache : kCache / 2) / (kPoints * depth_);
        const std::int64_t most_of_all = kRoom / (kPoints * (depth_ + panels * width()));
        block_ = of_equal_lengths(std::clamp(most, kernels_.most_rows, std::max(tiles, kernels_.most_rows)));
        const std::int64_t all = of_equal_lengths(std::max(most_of_all, kernels_.most_rows));
        const std::int64_t moved = 2 * kPoints * tiles * (depth_ + panels * width());
        if (weights > kCache &&
            weights * ((tiles + all - 1) / all) + moved < weights * ((tiles + block_ - 1) / block_)) {
            block_ = all;
            together_ = panels;
        }
    }

    // Where the tiles of a product lie, which takes a group of rows at a time.
    struct Groups {
        std::int64_t tiles, count;
        std::int64_t begin(std::int64_t group) const { return tiles * group / count; }
        std::int64_t rows(std::int64_t group) const { return begin(group + 1) - begin(group); }
    };
    Groups groups_of(std::int64_t tiles) const {
        return {tiles, (tiles + kernels_.most_rows - 1) / kernels_.most_rows};
    }

    void read_block(const float* x, std::int64_t first, std::int64_t count, float* tiles) const {
        const Groups groups = groups_of(count);
        for (std::int64_t g = 0; g < groups.count; ++g)
            for (std::int64_t r = 0; r < groups.rows(g); ++r)
                read(x, first + groups.begin(g) + r, tiles + groups.begin(g) * depth_ + r * kernels_.lanes,
                     groups.rows(g) * kernels_.lanes);
    }

    // The tiles [first, first + count) of panels [panel, end) of the result.
    void run_panels(float* out, std::int64_t first, std::int64_t count, std::int64_t panel, std::int64_t end,
                    float* tiles) const {
        float* const sums = tiles + kPoints * block_ * depth_;
        const std::int64_t point_step = together_ * block_ * width();
        const Groups groups = groups_of(count);
        for (std::int64_t point = 0; point < kPoints; ++point)
            for (std::int64_t p = panel; p < end; ++p)
                for (std::int64_t g = 0; g < groups.count; ++g)
                    kernels_.multiply({.a = tiles + (point * block_ + groups.begin(g)) * depth_,
                                       .b = weights_.get() + place_of_weights(p, point),
                                       .sums = sums + point * point_step +
                                               ((p - panel) * block_ + groups.begin(g)) * width(),
                                       .depth = s_.channels,
                                       .rows = groups.rows(g)});
        for (std::int64_t p = panel; p < end; ++p)
            for (std::int64_t t = 0; t < count; ++t)
                write(out, first + t, p, sums + ((p - panel) * block_ + t) * width(), point_step);
    }

    // The first row and column of the result of a tile, and its picture.
    std::array<std::int64_t, 3> place(std::int64_t tile) const {
        const std::int64_t inside = tile % s_.tiles_of_image();
        return {tile / s_.tiles_of_image(), inside / s_.tiles(1) * kGiven, inside % s_.tiles(1) * kGiven};
    }

    void read(const float* x, std::int64_t tile, float* dst, std::int64_t vector_step) const {
        const auto [image, y, column] = place(tile);
        const std::int64_t top = y - s_.before[0], left = column - s_.before[1];
        const auto within = [](std::int64_t at) {
            return static_cast<int>(std::clamp<std::int64_t>(at, 0, kTile));
        };
        kernels_.read({.src = x + ((image * s_.in[0] + top) * s_.in[1] + left) * s_.channels,
                       .row_step = s_.in[1] * s_.channels,
                       .pixel_step = s_.channels,
                       .channels = s_.channels,
                       .first_row = within(-top),
                       .end_row = within(s_.in[0] - top),
                       .first_column = within(-left),
                       .end_column = within(s_.in[1] - left),
                       .dst = dst,
                       .point_step = block_ * depth_,
                       .vector_step = vector_step});
    }

    void write(float* out, std::int64_t tile, std::int64_t panel, const float* sums,
               std::int64_t point_step) const {
        const auto [image, y, x] = place(tile);
        const auto within = [](std::int64_t left) {
            return static_cast<int>(std::min<std::int64_t>(left, kGiven));
        };
        kernels_.write({.sums = sums,
                        .point_step = point_step,
                        .bias = bias_.get() + panel * width(),
                        .dst = out + ((image * s_.out[0] + y) * s_.out[1] + x) * s_.outputs + panel * width(),
                        .row_step = s_.out[1] * s_.outputs,
                        .pixel_step = s_.outputs,
                        .count = std::min(width(), s_.outputs - panel * width()),
                        .rows = within(s_.out[0] - y),
                        .columns = within(s_.out[1] - x),
                        .residual = residual_,
                        .clamp = clamp,
                        .after = after.apply ? &after : nullptr});
    }

    WinogradShape s_;
    const WinogradKernels& kernels_;
    bool residual_, by_panels_;
    int parts_;
    std::int64_t depth_, panels_, block_ = 1, together_ = 1;
    Floats weights_, bias_;
};

const WinogradKernels* active_kernels() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return &winograd_kernels_avx512();
    if (active_isa() >= Isa::kAvx2) return &winograd_kernels_avx2();
#endif
    return nullptr;
}

// sizes: images, channels, channels of the result. With a residual the buffers are x, the residual and the
// result, which is in its memory.
nb::object winograd_step(const std::array<std::int64_t, 3>& sizes, const Pair& in, const Pair& out,
                         const Pair& before, const F32& weights, const F32& bias, bool residual,
                         const std::string& clamp, const nb::object& after, int threads) {
    const auto [batch, channels, outputs] = sizes;
    if (weights.ndim() != 4 || std::min({batch, channels, outputs, in[0], in[1], out[0], out[1]}) < 1 ||
        static_cast<std::int64_t>(weights.shape(0)) != outputs ||
        static_cast<std::int64_t>(weights.shape(1)) != channels || weights.shape(2) != 3 ||
        weights.shape(3) != 3 || static_cast<std::int64_t>(bias.size()) != outputs)
        throw nb::value_error("winograd_step: weights [outputs, channels, 3, 3] and a bias [outputs]");
    const WinogradKernels* kernels = active_kernels();
    if (!kernels)
        throw nb::value_error("winograd_step: no kernels for this instruction set; expected AVX2 or better");
    auto step = std::make_unique<WinogradStep>(WinogradShape{batch, channels, outputs, in, out, before},
                                               *kernels, residual, threads);
    step->clamp = clamp_of(clamp);
    step->after = function_in(after);
    step->pack(weights.data(), bias.data());
    return capsule(std::move(step));
}

}  // namespace

void bind_winograd(nb::module_& m) {
    using nb::arg;
    m.def("winograd_step", &winograd_step, arg("sizes"), arg("in_size"), arg("out_size"), arg("before"),
          arg("weights"), arg("bias"), arg("residual"), arg("clamp"), arg("after").none(), arg("threads"));
}

}  // namespace mge
