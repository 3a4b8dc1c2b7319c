#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

namespace mge {
void bind_conv(nanobind::module_& m);
void bind_conv_backward(nanobind::module_& m);
void bind_matmul(nanobind::module_& m);
void bind_windows(nanobind::module_& m);

namespace {

// Below VNNI oneDNN adds pairs of 8-bit products in saturating int16.
bool int8_is_exact() {
    const auto level = dnnl::get_effective_cpu_isa();
    using isa = dnnl::cpu_isa;
    return level != isa::sse41 && level != isa::avx && level != isa::avx2 && level != isa::avx512_core;
}

// Elsewhere the library computes bfloat16 by conversions.
bool bfloat16_is_native() {
    const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

}  // namespace
}  // namespace mge

NB_MODULE(_onednn, m) {
    nanobind::set_leak_warnings(false);  // what the program still holds when it ends is no leak
    mge::bind_conv(m);
    mge::bind_conv_backward(m);
    mge::bind_matmul(m);
    mge::bind_windows(m);
    m.def("int8_is_exact", &mge::int8_is_exact);
    m.def("bfloat16_is_native", &mge::bfloat16_is_native);
    m.def("version", [] {
        const auto* v = dnnl::version();
        return std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
    });
}
