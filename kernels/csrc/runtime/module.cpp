// Python face of the own kernels. Each family binds itself in a function bind_<family>, listed in bind.h.
#include <nanobind/nanobind.h>

#include "runtime/bind.h"
#include "runtime/isa.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
    nb::set_leak_warnings(false);  // objects that live until the end of the program are no leaks
    m.def("detected_isa", [] { return static_cast<int>(mge::detected_isa()); });
    m.def("active_isa", [] { return static_cast<int>(mge::active_isa()); });
    m.def("set_isa_cap", [](int level) { mge::set_isa_cap(static_cast<mge::Isa>(level)); }, nb::arg("level"));
    mge::bind_all(m);
}
