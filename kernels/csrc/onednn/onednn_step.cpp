#include "onednn/onednn_step.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "memory/weights.h"

namespace mge {
namespace {

using SetThreads = void (*)(int);
using GetThreads = int (*)();

SetThreads set_threads() {
    static const auto f = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    return f;
}

GetThreads get_threads() {
    static const auto f = reinterpret_cast<GetThreads>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    return f;
}

}  // namespace

OneOmpThread::OneOmpThread() : before_(get_threads() ? get_threads()() : 1) {
    if (before_ != 1 && set_threads()) set_threads()(1);
}

OneOmpThread::~OneOmpThread() {
    if (before_ != 1 && set_threads()) set_threads()(before_);
}

dnnl::engine& cpu_engine() {
    static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    return engine;
}

dnnl::stream& this_thread_stream() {
    thread_local dnnl::stream stream(cpu_engine());
    return stream;
}

dnnl::memory::data_type data_type(const std::string& name) {
    using dt = dnnl::memory::data_type;
    if (name == "float32") return dt::f32;
    if (name == "uint8") return dt::u8;
    if (name == "int8") return dt::s8;
    if (name == "bfloat16") return dt::bf16;
    throw std::invalid_argument("oneDNN step: no data type " + name);
}

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t size_of(dnnl::memory::data_type type) { return dnnl::memory::data_type_size(type); }

dnnl::memory::data_type weight_type(dnnl::memory::data_type source) {
    using dt = dnnl::memory::data_type;
    return source == dt::f32 || source == dt::bf16 ? source : dt::s8;
}

// Name of the op, the library's function and its two parameters. ReLU and ReLU6 are exact.
struct Activation {
    const char* name;
    dnnl::algorithm algorithm;
    float alpha, beta;
};
constexpr Activation kActivations[] = {
    {"relu", dnnl::algorithm::eltwise_relu, 0.f, 0.f},
    {"relu6", dnnl::algorithm::eltwise_clip, 0.f, 6.f},
    {"hsigmoid", dnnl::algorithm::eltwise_hardsigmoid, 1.f / 6.f, 0.5f},
    {"hswish", dnnl::algorithm::eltwise_hardswish, 1.f / 6.f, 0.5f},
};

dnnl::primitive_attr make_attr(const Epilogue& e, int scale_mask) {
    using alg = dnnl::algorithm;
    dnnl::primitive_attr attr;
    dnnl::post_ops ops;
    if (!e.sum_type.empty()) ops.append_sum(e.sum_scale, 0, data_type(e.sum_type));
    for (const auto& [name, algorithm, alpha, beta] : kActivations)
        if (e.activation == name) ops.append_eltwise(algorithm, alpha, beta);
    if (e.activation == "clip") ops.append_eltwise(alg::eltwise_clip, e.lo, e.hi);
    attr.set_post_ops(ops);
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (scale_mask >= 0) attr.set_scales_mask(DNNL_ARG_WEIGHTS, scale_mask);
    return attr;
}

// The library keeps the scratchpad of this reorder for the thread that makes it, which runs it too.
Packing packed(const dnnl::memory::desc& plain, const void* data, const dnnl::memory::desc& wanted) {
    const std::shared_ptr<void> bytes(take_weights(wanted.get_size()), GiveWeights());
    dnnl::memory from(plain, cpu_engine(), const_cast<void*>(data)), to(wanted, cpu_engine(), bytes.get());
    dnnl::reorder(from, to).execute(this_thread_stream(), from, to);
    this_thread_stream().wait();
    return {to, bytes};
}

dnnl::memory copied(const F32& values) {
    dnnl::memory::desc desc({static_cast<dnnl::memory::dim>(values.size())}, dnnl::memory::data_type::f32,
                            dnnl::memory::format_tag::x);
    dnnl::memory m(desc, cpu_engine());
    std::memcpy(m.get_data_handle(), values.data(), values.size() * sizeof(float));
    return m;
}

dnnl::memory columns_of(const dnnl::memory& values, dnnl::memory::dim from, dnnl::memory::dim to) {
    dnnl::memory m({{to - from}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::x}, cpu_engine());
    std::memcpy(m.get_data_handle(), static_cast<const float*>(values.get_data_handle()) + from,
                static_cast<std::size_t>(to - from) * sizeof(float));
    return m;
}

Columns::Columns(dim all, dim most, dim work) : total(all), grain(all >= 128 * most ? 64 : 16) {
    constexpr dim kLeast = 1 << 15;  // products of a piece that is worth a thread
    const dim units = (total + grain - 1) / grain;
    pieces = std::max<dim>(1, std::min({most, units, total * work / kLeast}));
}

Columns::dim Columns::begin(dim piece) const {
    const dim units = (total + grain - 1) / grain;
    return std::min(total, units * piece / pieces * grain);
}

double Columns::largest() const {
    dim most = 0;
    for (dim i = 0; i < pieces; ++i) most = std::max(most, begin(i + 1) - begin(i));
    return static_cast<double>(most) / static_cast<double>(std::max<dim>(total, 1));
}

void Part::place(std::int64_t count, std::int64_t from, std::int64_t to, std::int64_t total,
                 std::size_t item) {
    dst_offset = static_cast<std::size_t>(from) * item;
    if (to - from == total || count == 1) return;  // in one piece
    rows = static_cast<std::size_t>(count);
    width = static_cast<std::size_t>(to - from) * item;
    pitch = static_cast<std::size_t>(total) * item;
}

std::size_t Part::scratch_bytes() const { return aligned(scratch.get_desc().get_size()) + rows * width; }

std::size_t PartsStep::scratch_bytes() const {
    std::size_t most = 0;
    for (const Part& p : parts_list) most = std::max(most, p.scratch_bytes());
    return most;
}

void PartsStep::run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept {
    run_primitive([&] {
        const Part& p = parts_list[static_cast<std::size_t>(part)];
        const std::lock_guard lock(*p.busy);
        std::byte* const place = buffers[dst_index] + p.dst_offset;
        std::byte* const dst = p.rows ? scratch + aligned(p.scratch.get_desc().get_size()) : place;
        if (dst_index == 2)  // the residual is where the result is to be
            for (std::size_t r = 0; r < p.rows; ++r)
                std::memcpy(dst + r * p.width, place + r * p.pitch, p.width);
        p.src.set_data_handle(buffers[0] + p.src_offset);
        p.dst.set_data_handle(dst);
        p.scratch.set_data_handle(scratch);
        if (floats) {
            const FlushSubnormals flush;
            p.primitive.execute(this_thread_stream(), p.args);
        } else {
            p.primitive.execute(this_thread_stream(), p.args);
        }
        if (after.apply) after(dst, p.dst_size, halves);
        for (std::size_t r = 0; r < p.rows; ++r) std::memcpy(place + r * p.pitch, dst + r * p.width, p.width);
    });
}

namespace {

// Floats of either size between -2 and 2, or bytes.
std::vector<std::byte> noise(const Values& v) {
    std::vector<std::byte> made(v.count * size_of(v.type) + 64);
    std::uint32_t state = 1;
    const auto next = [&state] { return state = state * 1664525u + 1013904223u; };
    const bool wide = v.type == dnnl::memory::data_type::f32;
    for (std::size_t i = 0; i < v.count; ++i) {
        const float value = static_cast<float>(static_cast<std::int32_t>(next())) * 0x1p-30f;
        std::memcpy(made.data() + i * size_of(v.type),
                    reinterpret_cast<const std::byte*>(&value) + (wide ? 0 : 2), size_of(v.type));
    }
    return made;
}

}  // namespace

std::vector<std::byte> result_of(const Step& step, const std::vector<Values>& read, const Values& dst) {
    std::vector<std::vector<std::byte>> values;
    for (const Values& v : read) values.push_back(noise(v));
    auto made = noise(dst);  // the residual
    const std::unique_ptr<std::byte, void (*)(void*)> scratch(
        static_cast<std::byte*>(std::aligned_alloc(64, aligned(step.scratch_bytes() + 4096))), std::free);
    std::vector<std::byte*> buffers;
    for (auto& v : values) buffers.push_back(v.data());
    buffers.insert(buffers.end(), 2, made.data());
    for (int part = 0; part < step.parts(); ++part) step.run(part, buffers.data(), scratch.get());
    return made;
}

nanobind::object parts_step(const std::vector<Split>& splits, bool residual, const nanobind::object& after,
                            Values src, Values dst) {
    const bool exact = src.type != dnnl::memory::data_type::f32 && src.type != dnnl::memory::data_type::bf16;
    const auto made = [&](const Split& split) {
        auto step = std::make_unique<PartsStep>();
        step->floats = !exact;
        step->halves = dst.type == dnnl::memory::data_type::bf16;
        step->dst_index = residual ? 2 : 1;
        step->after = function_in(after);
        split(*step);
        return step;
    };
    try {
        if (exact) return capsule(made(splits.front()));
        auto whole = made(splits.back());
        for (std::size_t i = 0; i + 1 < splits.size(); ++i) {
            auto parts = made(splits[i]);
            if (result_of(*parts, {src}, dst) == result_of(*whole, {src}, dst))
                return capsule(std::move(parts));
        }
        return capsule(std::move(whole));
    } catch (const dnnl::error& e) {
        throw std::runtime_error(std::string("oneDNN: ") + e.what());
    }
}

void report(const dnnl::error& e) noexcept {
    std::fprintf(stderr, "megengine: oneDNN step failed: %s\n", e.what());
}

}  // namespace mge
