// Products of two computed tensors: matrices in any number of stacks, of which one may be repeated.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "onednn/onednn_step.h"

namespace nb = nanobind;

namespace mge {
namespace {

using dims = dnnl::memory::dims;
using dim = dnnl::memory::dim;

// Shapes of equal length [stacks..., rows, columns] and strides in elements; a stride of 0 never occurs: a
// repeated axis has length 1. `first` is the place of the first element.
struct Operand {
    dims shape, strides;
    dnnl::memory::data_type type;
    dim first = 0;

    dnnl::memory::desc desc() const { return {shape, type, strides}; }
};

// The indices [from, to) along an axis; all of it where the operand is repeated.
Operand slice(Operand x, std::size_t axis, dim from, dim to) {
    if (x.shape[axis] != 1) x.shape[axis] = to - from;
    return x;
}

std::size_t offset(const Operand& x, std::size_t axis, dim from) {
    const dim skipped = x.shape[axis] == 1 ? 0 : from * x.strides[axis];
    return static_cast<std::size_t>(x.first + skipped) * size_of(x.type);
}

// An operand whose numbers lie together, in the order in which they lie apart, in rows or in columns.
Operand dense(const Operand& x) {
    const std::size_t rank = x.shape.size(), last = rank - (x.strides[rank - 1] == 1 ? 1 : 2);
    Operand d{x.shape, dims(rank), x.type};
    dim step = 1;
    d.strides[last] = step, step *= x.shape[last];
    const std::size_t other = 2 * rank - 3 - last;
    d.strides[other] = step, step *= x.shape[other];
    for (std::size_t axis = rank - 2; axis-- > 0;) d.strides[axis] = step, step *= x.shape[axis];
    return d;
}

dim numbers(const Operand& x) {
    dim count = 1;
    for (const dim n : x.shape) count *= n;
    return count;
}

// Runs of neighbours from one operand to another of the same shape.
void move_runs(const Operand& from, const std::byte* source, const Operand& to, std::byte* target,
               std::size_t axis, std::size_t run) {
    const dim item = static_cast<dim>(size_of(from.type));
    if (axis == run) ++axis;
    if (axis >= from.shape.size())
        return void(std::memcpy(target, source, static_cast<std::size_t>(from.shape[run] * item)));
    for (dim i = 0; i < from.shape[axis]; ++i)
        move_runs(from, source + i * from.strides[axis] * item, to, target + i * to.strides[axis] * item,
                  axis + 1, run);
}

// An operand that is copied beside itself, `at` a place of the scratch memory; or that stays.
struct Copy {
    Operand apart, together;
    std::size_t at = 0;
    bool needed = false;

    std::size_t run() const { return together.shape.size() - (apart.strides.back() == 1 ? 1 : 2); }
    void gather(const std::byte* source, std::byte* target) const {
        move_runs(apart, source, together, target, 0, run());
    }
    void scatter(const std::byte* source, std::byte* target) const {
        move_runs(together, source, apart, target, 0, run());
    }
};

struct Product {
    dnnl::matmul primitive;
    dnnl::memory a, b, dst, scratch;
    std::array<Copy, 3> copies;
    std::size_t room = 0;  // of scratch memory
    bool scaled = false;
    std::size_t a_offset = 0, b_offset = 0, dst_offset = 0;
    // Eager calls of several Python threads share one cached step: its handles belong to one run at a time.
    std::unique_ptr<std::mutex> busy = std::make_unique<std::mutex>();
};

class MatmulStep final : public Step {
  public:
    std::vector<Product> products;
    dnnl::memory scale;  // of the sums

    int parts() const override { return static_cast<int>(products.size()); }
    std::size_t scratch_bytes() const override {
        std::size_t most = 0;
        for (const Product& p : products) most = std::max(most, p.room);
        return most;
    }
    void run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept override {
        run_primitive([&] {
            const Product& p = products[static_cast<std::size_t>(part)];
            const std::lock_guard lock(*p.busy);
            const std::array<std::byte*, 3> places{buffers[0] + p.a_offset, buffers[1] + p.b_offset,
                                                   buffers[2] + p.dst_offset};
            std::array<std::byte*, 3> used = places;
            for (std::size_t i = 0; i < 3; ++i)
                if (p.copies[i].needed) used[i] = scratch + p.copies[i].at;
            for (std::size_t i = 0; i < 2; ++i)
                if (p.copies[i].needed) p.copies[i].gather(places[i], used[i]);
            p.a.set_data_handle(used[0]);
            p.b.set_data_handle(used[1]);
            p.dst.set_data_handle(used[2]);
            p.scratch.set_data_handle(scratch);
            std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, p.a},
                                                            {DNNL_ARG_WEIGHTS, p.b},
                                                            {DNNL_ARG_DST, p.dst},
                                                            {DNNL_ARG_SCRATCHPAD, p.scratch}};
            if (p.scaled) arguments.insert({DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC, scale});
            {
                const FlushSubnormals flush;
                p.primitive.execute(this_thread_stream(), arguments);
            }
            if (p.copies[2].needed) p.copies[2].scatter(used[2], places[2]);
        });
    }
};

// oneDNN takes two and a half times as long for products of bfloat16 whose operands lie apart, as those of
// heads between joined projections do. Copies take less beside many products for each number.
std::array<Copy, 3> copies_of(const Operand& a, const Operand& b, const Operand& dst) {
    constexpr dim kMany = 32;
    const dim depth = a.shape.back();
    std::array<Copy, 3> copies{Copy{a, a}, Copy{b, b}, Copy{dst, dst}};
    for (Copy& c : copies) {
        const dims& strides = c.apart.strides;
        const bool in_runs = strides.back() == 1 || strides[strides.size() - 2] == 1;
        if (a.type != dnnl::memory::data_type::bf16 || !in_runs) continue;
        c.together = dense(c.apart);
        c.needed = c.together.desc() != c.apart.desc() && numbers(dst) * depth >= kMany * numbers(c.apart);
    }
    return copies;
}

Product product(const Operand& x, const Operand& y, const Operand& result, float scale) {
    Product p;
    p.copies = copies_of(x, y, result);
    const auto taken = [&](std::size_t i, const Operand& lying) {
        return p.copies[i].needed ? p.copies[i].together : lying;
    };
    const Operand a = taken(0, x), b = taken(1, y), dst = taken(2, result);
    dnnl::primitive_attr attr;
    // oneDNN's products of bfloat16 in AMX tiles take ten times as long with the scale of an operand
    const bool halves = a.type == dnnl::memory::data_type::bf16;
    if (scale != 1.f && halves) {
        dnnl::post_ops after;
        after.append_eltwise(dnnl::algorithm::eltwise_linear, scale, 0.f);
        attr.set_post_ops(after);
    } else if (scale != 1.f) {
        attr.set_scales_mask(DNNL_ARG_SRC, 0);
    }
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc pd(cpu_engine(), a.desc(), b.desc(), dst.desc(), attr);
    p.primitive = dnnl::matmul(pd);
    p.a = dnnl::memory(pd.src_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.b = dnnl::memory(pd.weights_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.dst = dnnl::memory(pd.dst_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.scratch = dnnl::memory(pd.scratchpad_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    p.scaled = scale != 1.f && !halves;
    p.room = aligned(p.scratch.get_desc().get_size());
    for (Copy& c : p.copies)
        if (c.needed) c.at = p.room, p.room += aligned(c.together.desc().get_size());
    return p;
}

using Operands = std::array<Operand, 3>;  // a, b and the result

// The product in pieces of one axis of the result: of a stack, of the rows, or of the columns.
std::unique_ptr<MatmulStep> in_pieces(const Operands& x, std::size_t axis, dim pieces, float scale) {
    const auto& [a, b, dst] = x;
    const std::size_t rank = dst.shape.size();
    const bool of_a = axis + 1 < rank, of_b = axis + 2 != rank;
    const dim total = dst.shape[axis];
    auto step = std::make_unique<MatmulStep>();
    step->scale =
        dnnl::memory({{1}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::x}, cpu_engine());
    *static_cast<float*>(step->scale.get_data_handle()) = scale;
    for (dim i = 0; i < pieces; ++i) {
        const dim from = total * i / pieces, to = total * (i + 1) / pieces;
        Product p = product(of_a ? slice(a, axis, from, to) : a, of_b ? slice(b, axis, from, to) : b,
                            slice(dst, axis, from, to), scale);
        p.a_offset = offset(a, axis, of_a ? from : 0);
        p.b_offset = offset(b, axis, of_b ? from : 0);
        p.dst_offset = offset(dst, axis, from);
        step->products.push_back(std::move(p));
    }
    return step;
}

// Numbers from the start of an operand's buffer to its last one.
Values extent(const Operand& x) {
    dim last = x.first;
    for (std::size_t i = 0; i < x.shape.size(); ++i) last += (x.shape[i] - 1) * x.strides[i];
    return {x.type, static_cast<std::size_t>(std::max<dim>(last, 0) + 1)};
}

nb::object matmul_step(dims a_shape, dims a_strides, dims b_shape, dims b_strides, dims shape, dims strides,
                       const std::string& type_name, int threads, dim a_first, dim b_first, float scale) {
    const auto type = data_type(type_name);
    const Operands x{Operand{std::move(a_shape), std::move(a_strides), type, a_first},
                     Operand{std::move(b_shape), std::move(b_strides), type, b_first},
                     Operand{std::move(shape), std::move(strides), type}};
    const dims& lengths = x[2].shape;
    for (const Operand& each : x)
        if (lengths.size() < 2 || each.shape.size() != lengths.size() ||
            each.strides.size() != lengths.size())
            throw std::invalid_argument("matmul_step: shapes and strides of one length, 2 or more, expected");
    OneOmpThread one;
    try {
        auto whole = in_pieces(x, 0, 1, scale);
        if (threads < 2) return capsule(std::move(whole));
        const std::vector<Values> read{extent(x[0]), extent(x[1])};
        const auto expected = result_of(*whole, read, extent(x[2]));
        for (std::size_t axis = 0; axis < lengths.size(); ++axis) {
            if (lengths[axis] < 2) continue;
            auto parts = in_pieces(x, axis, std::min<dim>(threads, lengths[axis]), scale);
            if (result_of(*parts, read, extent(x[2])) == expected) return capsule(std::move(parts));
        }
        return capsule(std::move(whole));
    } catch (const dnnl::error& e) {
        throw std::runtime_error(std::string("oneDNN: ") + e.what());
    }
}

}  // namespace

void bind_matmul(nb::module_& m) {
    using nb::arg;
    m.def("matmul_step", &matmul_step, arg("a_shape"), arg("a_strides"), arg("b_shape"), arg("b_strides"),
          arg("shape"), arg("strides"), arg("type"), arg("threads"), arg("a_first") = 0, arg("b_first") = 0,
          arg("scale") = 1.f);
}

}  // namespace mge
