// Each part's additions to the module; false with a Python error set.
#pragma once
#include <Python.h>

namespace mge {

bool add_creation(PyObject* module);
bool add_dispatch(PyObject* module);
bool add_module_type(PyObject* module);
bool add_public_call(PyObject* module);
bool add_tape(PyObject* module);
bool add_tensor_type(PyObject* module);

}  // namespace mge
