// A step in a capsule that owns it, for Python.
#pragma once
#include <nanobind/nanobind.h>

#include <memory>

#include "common/step.h"

namespace mge {

inline nanobind::capsule capsule(std::unique_ptr<Step> step) {
    return nanobind::capsule(step.release(), kStepCapsule,
                             [](void* p) noexcept { delete static_cast<Step*>(p); });
}

}  // namespace mge
