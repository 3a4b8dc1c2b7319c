#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

namespace mge {
void bind_conv(nanobind::module_& m);
}

NB_MODULE(_onednn, m) {
    mge::bind_conv(m);
    m.def("version", [] {
        const auto* v = dnnl::version();
        return std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
    });
}
