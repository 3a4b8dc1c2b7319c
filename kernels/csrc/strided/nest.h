// Loops over several arrays of one shape with strides of their own, in as few dimensions as they allow.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace mge {

// strides[operand][dimension], in bytes. The last dimension is the one that operand 0 walks in the smallest
// steps.
struct Nest {
    std::vector<std::int64_t> shape;
    std::vector<std::vector<std::int64_t>> strides;

    Nest(const std::vector<std::int64_t>& lengths, const std::vector<std::vector<std::int64_t>>& steps) {
        std::vector<std::size_t> order(lengths.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return std::llabs(steps[0][a]) > std::llabs(steps[0][b]);
        });
        strides.resize(steps.size());
        for (std::size_t d : order)
            if (lengths[d] != 1) append(lengths[d], steps, d);
        if (shape.empty()) {
            shape.push_back(1);
            for (auto& s : strides) s.push_back(0);
        }
    }

    std::size_t dims() const { return shape.size(); }

    // f(offsets of every operand) for every position of all but the last `inner` dimensions.
    template <class F>
    void each(std::size_t inner, F f) const {
        const std::size_t outer = dims() > inner ? dims() - inner : 0;
        std::int64_t index[kMost] = {}, at[kOperands] = {};
        for (;;) {
            f(at);
            std::size_t d = outer;
            for (; d > 0; --d) {
                for (std::size_t o = 0; o < strides.size(); ++o) at[o] += strides[o][d - 1];
                if (++index[d - 1] < shape[d - 1]) break;
                for (std::size_t o = 0; o < strides.size(); ++o) at[o] -= strides[o][d - 1] * shape[d - 1];
                index[d - 1] = 0;
            }
            if (d == 0) return;
        }
    }

    static constexpr std::size_t kMost = 32, kOperands = 32;  // NumPy's limit of dimensions

  private:
    // A further dimension inside the others, joined to the one around it where every operand walks both
    // evenly.
    void append(std::int64_t length, const std::vector<std::vector<std::int64_t>>& steps, std::size_t d) {
        bool joins = !shape.empty();
        for (std::size_t o = 0; o < steps.size() && joins; ++o)
            joins = strides[o].back() == steps[o][d] * length;
        if (joins) {
            shape.back() *= length;
            for (std::size_t o = 0; o < steps.size(); ++o) strides[o].back() = steps[o][d];
            return;
        }
        shape.push_back(length);
        for (std::size_t o = 0; o < steps.size(); ++o) strides[o].push_back(steps[o][d]);
    }
};

}  // namespace mge
