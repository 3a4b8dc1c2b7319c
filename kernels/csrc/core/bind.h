// Every family's binding function, once.
#pragma once
#include <nanobind/nanobind.h>

namespace mge {

inline void bind_all(nanobind::module_& m) {}

}  // namespace mge
