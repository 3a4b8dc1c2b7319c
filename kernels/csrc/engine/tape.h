// The tape of automatic differentiation: ops in the order in which they were applied, and the sweep back.
#pragma once
#include <Python.h>

#include <memory>

#include "engine/dispatch.h"

namespace mge {

bool is_tape(PyObject* object);

// Records an op that depends on a watched tensor. -1 with an error set.
int record(PyObject* tape, const OpCall& op, const std::shared_ptr<PreparedCall>& call, PyObject* out);

}  // namespace mge
