// Matrix products whose sums have one order: that of the inner axis.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/step_capsule.h"
#include "ordered/kernels.h"
#include "ordered/panels.h"
#include "runtime/bind.h"

namespace nb = nanobind;

namespace mge {
namespace {

using F32 = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Places = std::vector<std::pair<std::int64_t, std::int64_t>>;  // where the factors of each result begin

constexpr std::int64_t kDepth = 256;  // products of a sum that are added at once
constexpr std::int64_t kRowsOfTask = 96;

struct ProductShape {
    std::int64_t rows, depth, cols;
    bool transpose_a, transpose_b;

    // Elements between two of b along the inner axis, and across it.
    std::int64_t along() const { return transpose_b ? 1 : cols; }
    std::int64_t across() const { return transpose_b ? depth : 1; }
};

class OrderedProduct final : public Step {
  public:
    OrderedProduct(const ProductShape& shape, Places places, int threads)
        : s_(shape), places_(std::move(places)), chunks_((s_.rows + kRowsOfTask - 1) / kRowsOfTask) {
        parts_ = static_cast<int>(std::clamp<std::int64_t>(threads, 1, tasks()));
    }

    void pack(const float* b, std::int64_t size) {
        const std::int64_t each = s_.depth * s_.cols, to = s_.depth * padded_columns(s_.cols);
        packed_.resize(static_cast<std::size_t>(size / each * to));
        for (std::int64_t i = 0; i < size / each; ++i)
            for (std::int64_t k = 0; k < s_.depth; k += kDepth)
                pack_block(b + i * each, k, packed_.data() + i * to + k * padded_columns(s_.cols));
    }

    int parts() const override { return parts_; }

    std::size_t scratch_bytes() const override {
        const std::int64_t own = packed_.empty() ? kDepth * padded_columns(s_.cols) : 0;
        const std::int64_t turned = s_.transpose_a ? kRowsOfTask * kDepth : 0;
        return static_cast<std::size_t>(kRowsOfTask) * sizeof(float*) +
               static_cast<std::size_t>(own + turned) * sizeof(float);
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const auto* a = reinterpret_cast<const float*>(buffers[0]);
        const float* b = packed_.empty() ? reinterpret_cast<const float*>(buffers[1]) : nullptr;
        auto* out = reinterpret_cast<float*>(buffers[b ? 2 : 1]);
        for (std::int64_t t = tasks() * part / parts_; t < tasks() * (part + 1) / parts_; ++t)
            run_task(t, a, b, out, scratch);
    }

  private:
    std::int64_t tasks() const { return static_cast<std::int64_t>(places_.size()) * chunks_; }

    void pack_block(const float* b, std::int64_t k, float* to) const {
        pack_columns(b + k * s_.along(), s_.along(), s_.across(), std::min(kDepth, s_.depth - k), s_.cols,
                     to);
    }

    void run_task(std::int64_t task, const float* a, const float* b, float* out, std::byte* scratch) const {
        const std::int64_t matrix = task / chunks_, chunk = task % chunks_, columns = padded_columns(s_.cols);
        const std::int64_t first = s_.rows * chunk / chunks_, rows = s_.rows * (chunk + 1) / chunks_ - first;
        const auto [of_a, of_b] = places_[static_cast<std::size_t>(matrix)];
        float* dst = out + (matrix * s_.rows + first) * s_.cols;
        std::fill_n(dst, rows * s_.cols, 0.f);
        auto** pointers = reinterpret_cast<const float**>(scratch);
        auto* turned = reinterpret_cast<float*>(pointers + kRowsOfTask);
        float* own = turned + (s_.transpose_a ? kRowsOfTask * kDepth : 0);
        for (std::int64_t k = 0; k < s_.depth; k += kDepth) {
            const std::int64_t depth = std::min(kDepth, s_.depth - k);
            const float* packed = packed_.data() + of_b / s_.cols * columns + k * columns;
            if (b) {
                pack_block(b + of_b, k, own);
                packed = own;
            }
            for (std::int64_t r = 0; r < rows; ++r) {
                pointers[r] = s_.transpose_a ? turned + r * depth : a + of_a + (first + r) * s_.depth + k;
                for (std::int64_t i = 0; s_.transpose_a && i < depth; ++i)
                    turned[r * depth + i] = a[of_a + (k + i) * s_.rows + first + r];
            }
            active_ordered_kernels().multiply(pointers, rows, depth, packed, dst, s_.cols, s_.cols);
        }
    }

    ProductShape s_;
    Places places_;
    std::int64_t chunks_;
    Numbers packed_;
    int parts_ = 1;
};

// `weights`: the second factor, where it is constant and no buffer of the step.
nb::object ordered_product_step(std::int64_t rows, std::int64_t depth, std::int64_t cols, bool transpose_a,
                                bool transpose_b, Places places, const std::optional<F32>& weights,
                                int threads) {
    if (std::min({rows, depth, cols}) < 1 || places.empty())
        throw nb::value_error("ordered_product_step: lengths of at least 1, and a product, expected");
    const ProductShape shape{rows, depth, cols, transpose_a, transpose_b};
    auto step = std::make_unique<OrderedProduct>(shape, std::move(places), threads);
    if (weights) {
        if (static_cast<std::int64_t>(weights->size()) % (depth * cols))
            throw nb::value_error("ordered_product_step: weights of other sizes");
        step->pack(weights->data(), static_cast<std::int64_t>(weights->size()));
    }
    return capsule(std::move(step));
}

}  // namespace

void bind_ordered_products(nb::module_& m) {
    using nb::arg;
    m.def("ordered_product_step", &ordered_product_step, arg("rows"), arg("depth"), arg("cols"),
          arg("transpose_a"), arg("transpose_b"), arg("places"), arg("weights").none(), arg("threads"));
}

}  // namespace mge
