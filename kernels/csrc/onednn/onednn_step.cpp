#include "onednn/onednn_step.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <stdexcept>

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
    {"sigmoid", dnnl::algorithm::eltwise_logistic, 0.f, 0.f},
    {"silu", dnnl::algorithm::eltwise_swish, 1.f, 0.f},
    {"hsigmoid", dnnl::algorithm::eltwise_hardsigmoid, 1.f / 6.f, 0.5f},
    {"hswish", dnnl::algorithm::eltwise_hardswish, 1.f / 6.f, 0.5f},
    {"tanh", dnnl::algorithm::eltwise_tanh, 0.f, 0.f},
    {"gelu", dnnl::algorithm::eltwise_gelu_erf, 0.f, 0.f},
};

bool has_activation(const std::string& name) {
    return name == "none" || std::any_of(std::begin(kActivations), std::end(kActivations),
                                         [&](const Activation& a) { return name == a.name; });
}

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

FloatFunction function_in(const nanobind::object& capsule) {
    if (capsule.is_none()) return {};
    void* found = PyCapsule_GetPointer(capsule.ptr(), kFunctionCapsule);
    if (!found) throw nanobind::python_error();
    return *static_cast<const FloatFunction*>(found);
}

// The library keeps the scratchpad of this reorder for the thread that makes it, which runs it too.
dnnl::memory packed(const dnnl::memory::desc& plain, const void* data, const dnnl::memory::desc& wanted) {
    dnnl::memory from(plain, cpu_engine(), const_cast<void*>(data)), to(wanted, cpu_engine());
    dnnl::reorder(from, to).execute(this_thread_stream(), from, to);
    this_thread_stream().wait();
    return to;
}

dnnl::memory copied(const F32& values) {
    dnnl::memory::desc desc({static_cast<dnnl::memory::dim>(values.size())}, dnnl::memory::data_type::f32,
                            dnnl::memory::format_tag::x);
    dnnl::memory m(desc, cpu_engine());
    std::memcpy(m.get_data_handle(), values.data(), values.size() * sizeof(float));
    return m;
}

std::size_t PartsStep::scratch_bytes() const {
    std::size_t most = 0;
    for (const Part& p : parts_list) most = std::max(most, p.scratch.get_desc().get_size());
    return most;
}

void PartsStep::run(int part, std::byte* const* buffers, std::byte* scratch) const noexcept {
    run_primitive([&] {
        const Part& p = parts_list[static_cast<std::size_t>(part)];
        const std::lock_guard lock(*p.busy);
        p.src.set_data_handle(buffers[0] + p.src_offset);
        p.dst.set_data_handle(buffers[dst_index] + p.dst_offset);
        p.scratch.set_data_handle(scratch);
        p.primitive.execute(this_thread_stream(), p.args);
        if (after.apply) after(reinterpret_cast<float*>(buffers[dst_index] + p.dst_offset), p.dst_size);
    });
}

void report(const dnnl::error& e) noexcept {
    std::fprintf(stderr, "megengine: oneDNN step failed: %s\n", e.what());
}

}  // namespace mge
