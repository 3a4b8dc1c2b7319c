// The storage of megengine.tensor.Tensor: a Python base class whose attributes are fields, so that native
// code reads and creates tensors without Python.
#pragma once
#include <Python.h>

namespace mge {

// A field that is NULL reads as None. `value` is None while it is deferred, `spec` until its first use.
struct TensorObject {
    PyObject_HEAD PyObject *value, *spec, *dtype, *device, *thunk;
};

extern PyTypeObject* tensor_base;  // TensorBase; Tensor and Parameter derive from it in Python

inline bool is_tensor(PyObject* object) { return PyObject_TypeCheck(object, tensor_base); }
inline bool known(PyObject* field) { return field && field != Py_None; }
inline TensorObject* fields(PyObject* tensor) { return reinterpret_cast<TensorObject*>(tensor); }

// Borrowed; NULL with an error set if the spec cannot be created.
PyObject* spec_of(PyObject* tensor);

// A new reference to the array; computes a deferred value. NULL with an error set if that fails.
PyObject* storage_of(PyObject* tensor);

}  // namespace mge
