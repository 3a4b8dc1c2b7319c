// A function that Python passes to a step.
#pragma once
#include <nanobind/nanobind.h>

#include "common/float_function.h"

namespace mge {

// What a capsule holds; nothing for None. Throws python_error for other objects.
inline FloatFunction function_in(const nanobind::object& capsule) {
    if (capsule.is_none()) return {};
    void* found = PyCapsule_GetPointer(capsule.ptr(), kFunctionCapsule);
    if (!found) throw nanobind::python_error();
    return *static_cast<const FloatFunction*>(found);
}

}  // namespace mge
