// A step that runs a program of elementwise operations over broadcast operands, a block that stays in the
// cache at a time.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "common/step_capsule.h"
#include "elementwise/joining.h"
#include "elementwise/kernels.h"
#include "float/kernels.h"
#include "runtime/bind.h"
#include "runtime/isa.h"
#include "strided/nest.h"

namespace nb = nanobind;

namespace mge {
namespace {

using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kBlock = 1024;       // numbers
constexpr std::int64_t kChainBlock = 2048;  // of a program that is one chain: none of its results lies there
constexpr std::size_t kMostInputs = Nest::kOperands - 1, kMostValues = 64;
constexpr std::int64_t kTailBytes = 64;  // kernels may read on behind the last number

// Sources and target are numbers of values: those of the inputs, then one of each instruction.
struct Instruction {
    BlockFunction block;
    bool is_function;
    Function function;
    double lo, hi;
    std::array<std::size_t, 3> sources;
    std::size_t count;  // 0: a later one, a chain, computes it
    Chain chain;        // that takes the place of a block function
};

BlockFunction active_block_function(Operation operation, Type type, Type to) {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return block_function_avx512(operation, type, to);
    if (active_isa() >= Isa::kAvx2) return block_function_avx2(operation, type, to);
#endif
    return block_function_base(operation, type, to);
}

SpreadFunction active_spread_function() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kAvx512) return spread_function_avx512();
    if (active_isa() >= Isa::kAvx2) return spread_function_avx2();
#endif
    return spread_function_base();
}

ChainFunction active_chain_function() {
#if defined(MGE_X86)
    if (active_isa() >= Isa::kBf16) return chain_function_bf16();
    if (active_isa() >= Isa::kAvx512) return chain_function_avx512();
    if (active_isa() >= Isa::kAvx2) return chain_function_avx2();
#endif
    return chain_function_base();
}

class ElementwiseStep final : public Step {
  public:
    ElementwiseStep(Nest nest, std::vector<std::int64_t> items, std::vector<Instruction> program, int threads,
                    std::int64_t divisors)
        : nest_(std::move(nest)),
          items_(std::move(items)),
          program_(std::move(program)),
          divisors_(divisors),
          block_(program_.back().chain.links.empty() || waiting() + 1 < program_.size() ? kBlock
                                                                                        : kChainBlock),
          register_bytes_(block_ * 8 + kTailBytes) {
        parts_ = static_cast<int>(std::clamp<std::int64_t>(nest_.shape[0], 1, threads));
        for (int part = 0; part < parts_; ++part) {
            Nest piece = nest_;
            piece.shape[0] = begin_of(part + 1) - begin_of(part);
            pieces_.push_back(std::move(piece));
        }
    }

    int parts() const override { return parts_; }
    std::size_t scratch_bytes() const override {
        return items_.size() * static_cast<std::size_t>(register_bytes_);
    }

    // A divisor is 0: the reference raises.
    bool refuses(std::byte* const* buffers) const noexcept override {
        const auto item = static_cast<std::size_t>(items_.size() > 1 ? items_[1] : 1);
        constexpr std::byte zero[8]{};
        for (std::int64_t i = 0; i < divisors_; ++i)
            if (std::memcmp(buffers[1] + static_cast<std::size_t>(i) * item, zero, item) == 0) return true;
        return false;
    }

    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        const Nest& nest = pieces_[static_cast<std::size_t>(part)];
        const std::size_t last = nest.dims() - 1;
        const bool matrix = nest.dims() > 1;
        const std::int64_t rows = matrix ? nest.shape[last - 1] : 1, cols = nest.shape[last];
        const std::int64_t at_once = std::max<std::int64_t>(1, block_ / cols);
        std::array<const std::byte*, kMostInputs> held{};  // the number, or the row, that a register repeats
        nest.each(2, [&](const std::int64_t* at) {
            for (std::int64_t r = 0; r < rows; r += at_once)
                for (std::int64_t c = 0; c < cols; c += block_)
                    block(part, buffers, scratch, at, r, std::min(at_once, rows - r), c,
                          std::min(block_, cols - c), held);
        });
    }

  private:
    // How many rows a later one, a chain, computes.
    std::size_t waiting() const {
        return static_cast<std::size_t>(std::count_if(program_.begin(), program_.end(),
                                                      [](const Instruction& one) { return one.count == 0; }));
    }

    std::int64_t begin_of(int part) const { return nest_.shape[0] * part / parts_; }

    void block(int part, std::byte* const* buffers, std::byte* scratch, const std::int64_t* at,
               std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols,
               std::array<const std::byte*, kMostInputs>& held) const {
        const std::size_t last = nest_.dims() - 1, inputs = nest_.strides.size() - 1;
        const bool matrix = nest_.dims() > 1;
        const std::int64_t size = rows * cols;
        const std::int64_t most_rows = matrix ? std::min(block_ / cols, nest_.shape[last - 1]) : 1;
        std::array<const void*, kMostValues> values{};
        for (std::size_t o = 0; o <= inputs; ++o) {
            const Lengths& strides = nest_.strides[o];
            const std::int64_t row_step = matrix ? strides[last - 1] : 0, col_step = strides[last];
            std::byte* place = buffers[o == 0 ? inputs : o - 1] + begin_of(part) * strides[0] + at[o] +
                               row * row_step + col * col_step;
            if (o == 0) {
                values[items_.size() - 1] = place;
                continue;
            }
            const std::int64_t item = items_[o - 1];
            if (col_step == item && (rows == 1 || row_step == cols * item)) {
                values[o - 1] = place;
                continue;
            }
            std::byte* copy = scratch + static_cast<std::int64_t>(o - 1) * register_bytes_;
            values[o - 1] = copy;
            if (row_step == 0) {
                if (held[o - 1] != place)
                    spread_(item, place, copy, col_step ? most_rows : 1, col_step ? cols : block_, 0,
                            col_step);
                held[o - 1] = place;
            } else {
                spread_(item, place, copy, rows, cols, row_step, col_step);
            }
        }
        compute(values, inputs, scratch, size);
    }

    void compute(std::array<const void*, kMostValues>& values, std::size_t inputs, std::byte* scratch,
                 std::int64_t size) const {
        for (std::size_t i = 0; i < program_.size(); ++i) {
            const Instruction& one = program_[i];
            if (one.count == 0) continue;
            const std::size_t target = inputs + i;
            void* to = i + 1 == program_.size()
                           ? const_cast<void*>(values[target])
                           : scratch + static_cast<std::int64_t>(target) * register_bytes_;
            values[target] = to;
            std::array<const void*, 3> operands{};
            for (std::size_t k = 0; k < one.count; ++k) operands[k] = values[one.sources[k]];
            if (!one.chain.links.empty())
                active_chain_(one.chain, values.data(), to, size);
            else if (one.is_function)
                active_apply_(static_cast<const float*>(operands[0]), static_cast<float*>(to), size,
                              one.function, static_cast<float>(one.lo));
            else
                one.block(operands.data(), to, size, one.lo, one.hi);
        }
    }

    Nest nest_;
    std::vector<Nest> pieces_;         // of each part
    std::vector<std::int64_t> items_;  // bytes of a number of each value
    std::vector<Instruction> program_;
    decltype(FloatKernels::apply) active_apply_ = active_float_kernels().apply;
    ChainFunction active_chain_ = active_chain_function();
    SpreadFunction spread_ = active_spread_function();
    std::int64_t divisors_;                // how many numbers of the second input must not be 0
    std::int64_t block_, register_bytes_;  // numbers at a time, and bytes for as many of a value
    int parts_;
};

Instruction instruction(const Row& row) {
    const auto& [op, type, to, lo, hi, sources] = row;
    Instruction made{nullptr, false, Function::kSigmoid, lo, hi, {}, sources.size(), {}};
    if (sources.empty() || sources.size() > 3)
        throw nb::value_error("elementwise_step: 1 to 3 operands expected");
    std::copy(sources.begin(), sources.end(), made.sources.begin());
    const int operation = place_of(kOperationNames, op);
    if (operation >= 0)
        made.block = active_block_function(static_cast<Operation>(operation), type_of(type), type_of(to));
    const int function = place_of(kFunctionNames, op);
    if (made.block == nullptr && function >= 0 && type == "float32") {
        made.is_function = true;
        made.function = static_cast<Function>(function);
    }
    if (made.block == nullptr && !made.is_function)
        throw nb::value_error(("elementwise_step: no " + op + " of " + type).c_str());
    return made;
}

// `to`: the type of the result of a cast.
bool has_elementwise(const std::string& op, const std::string& type, const std::string& to) {
    const int operation = place_of(kOperationNames, op), known = place_of(kTypeNames, type);
    const int target = place_of(kTypeNames, to);
    if (known < 0 || target < 0) return false;
    const auto of = static_cast<Type>(known), into = static_cast<Type>(target);
    return (operation >= 0 && block_function_base(static_cast<Operation>(operation), of, into) != nullptr) ||
           (type == "float32" && place_of(kFunctionNames, op) >= 0);
}

// strides: of the result, then of the inputs, in bytes; types: of the inputs; the last row is the result. So
// many `divisors` of the second input are refused if one is 0.
nb::object elementwise_step(const Lengths& shape, const std::vector<Lengths>& strides,
                            const std::vector<std::string>& types, const std::vector<Row>& rows, int threads,
                            std::int64_t divisors) {
    if (types.size() > kMostInputs || types.size() + rows.size() > kMostValues || rows.empty())
        throw nb::value_error("elementwise_step: too many inputs or instructions");
    std::vector<std::int64_t> items;
    for (const std::string& type : types)
        items.push_back(kTypeSizes[static_cast<std::size_t>(type_of(type))]);
    std::vector<Instruction> program;
    for (const Row& row : rows) {
        program.push_back(instruction(row));
        items.push_back(kTypeSizes[static_cast<std::size_t>(type_of(std::get<2>(row)))]);
    }
    for (const auto& [first, last, chain] : joined(rows, types)) {
        for (std::size_t i = first; i < last; ++i) program[i].count = 0;
        program[last].chain = chain;
    }
    return capsule(
        std::make_unique<ElementwiseStep>(Nest(shape, strides), items, program, threads, divisors));
}

// The numbers of one array in the type of another of as many.
void convert(const nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>& src, const std::string& from,
             const nb::ndarray<nb::c_contig, nb::device::cpu>& dst, const std::string& to) {
    const auto size = static_cast<std::int64_t>(src.size());
    const Type type = type_of(from), target = type_of(to);
    const auto bytes = [](Type t) {
        return static_cast<std::size_t>(kTypeSizes[static_cast<std::size_t>(t)]);
    };
    if (dst.size() != src.size() || src.itemsize() != bytes(type) || dst.itemsize() != bytes(target))
        throw nb::value_error("convert: arrays of one size and of the types' items expected");
    const BlockFunction block = active_block_function(Operation::kCast, type, target);
    if (block == nullptr) throw nb::value_error(("convert: no cast of " + from + " to " + to).c_str());
    const void* operands[] = {src.data()};
    const nb::gil_scoped_release released;
    block(operands, dst.data(), size, 0, 0);
}

}  // namespace

void bind_elementwise(nb::module_& m) {
    m.def("convert", &convert, nb::arg("src"), nb::arg("from"), nb::arg("dst"), nb::arg("to"));
    m.def("elementwise_step", &elementwise_step, nb::arg("shape"), nb::arg("strides"), nb::arg("types"),
          nb::arg("rows"), nb::arg("threads"), nb::arg("divisors") = 0);
    m.def("has_elementwise", &has_elementwise, nb::arg("op"), nb::arg("type"), nb::arg("to"));
}

}  // namespace mge
