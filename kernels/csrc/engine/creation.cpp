// New tensors with one number in every place.
#include <array>

#include "engine/dispatch.h"
#include "engine/numpy_api.h"
#include "engine/parts.h"
#include "engine/tensor_type.h"

namespace mge {
namespace {

// A C-contiguous array of a dtype with `value` everywhere; null stands for zero.
PyObject* array_of(int axes, const npy_intp* shape, PyObject* dtype, PyObject* value) {
    if (!PyArray_DescrCheck(dtype)) return PyErr_Format(PyExc_TypeError, "filled: expected a NumPy dtype");
    Py_INCREF(dtype);  // owned by the array
    auto* storage = reinterpret_cast<PyArray_Descr*>(dtype);
    if (!value) return PyArray_Zeros(axes, shape, storage, 0);
    Ref array(PyArray_Empty(axes, shape, storage, 0));
    if (!array || PyArray_FillWithScalar(reinterpret_cast<PyArrayObject*>(array.get()), value) < 0)
        return nullptr;
    return array.release();
}

// Whether the storage of tensors of a device is no NumPy array.
bool elsewhere(PyObject* device) {
    return PyUnicode_Check(device) && PyUnicode_GET_LENGTH(device) && PyUnicode_READ_CHAR(device, 0) == 'g';
}

// A tensor of a device that is not the processor with `value` everywhere; None stands for zero.
PyObject* filled_elsewhere(PyObject* shape, PyObject* storage, PyObject* value, PyObject* dtype,
                           PyObject* device) {
    PyObject* args[] = {shape, storage, value, device};
    Ref array(PyObject_Vectorcall(dispatch_parts.filled, args, 4, nullptr));
    return array ? new_tensor(std::move(array), nullptr, dtype, device) : nullptr;
}

bool ready() {
    if (!dispatch_parts.tensor) PyErr_SetString(PyExc_RuntimeError, "import megengine.dispatch first");
    return dispatch_parts.tensor != nullptr;
}

// filled(shape, dtype, value, device): value None for zero
PyObject* py_filled(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (!ready()) return nullptr;
    if (count != 4 || !PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) > NPY_MAXDIMS)
        return PyErr_Format(PyExc_TypeError,
                            "filled: expected a shape, a dtype, a number or None, and a device");
    if (elsewhere(args[3])) return filled_elsewhere(args[0], args[1], args[2], args[1], args[3]);
    std::array<npy_intp, NPY_MAXDIMS> shape;
    const Py_ssize_t axes = PyTuple_GET_SIZE(args[0]);
    for (Py_ssize_t i = 0; i < axes; ++i) {
        shape[static_cast<std::size_t>(i)] = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[0], i));
        if (PyErr_Occurred()) return nullptr;
    }
    Ref array(
        array_of(static_cast<int>(axes), shape.data(), args[1], args[2] == Py_None ? nullptr : args[2]));
    return array ? new_tensor(std::move(array), nullptr, args[1], args[3]) : nullptr;
}

// wrap(array, dtype, device): a tensor that owns the array; dtype None for the array's
PyObject* py_wrap(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (!ready()) return nullptr;
    if (count != 3 || !PyArray_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "wrap: expected an array, a dtype or None, and a device");
    auto* own = reinterpret_cast<PyObject*>(PyArray_DESCR(reinterpret_cast<PyArrayObject*>(args[0])));
    Ref array = Ref::borrowed(args[0]);
    if (elsewhere(args[2])) {
        PyObject* parts[] = {args[0], args[2]};
        array = Ref(PyObject_Vectorcall(dispatch_parts.place, parts, 2, nullptr));
        if (!array) return nullptr;
    }
    return new_tensor(std::move(array), nullptr, args[1] == Py_None ? own : args[1], args[2]);
}

// A tensor of ones with the spec of another one.
PyObject* py_ones_like(PyObject*, PyObject* tensor) {
    if (!ready()) return nullptr;
    if (!is_tensor(tensor))
        return PyErr_Format(PyExc_TypeError, "ones_like: got %s; expected a tensor",
                            Py_TYPE(tensor)->tp_name);
    static PyObject* one = PyLong_FromLong(1);
    const TensorObject* t = fields(tensor);
    PyObject* spec = spec_of(tensor);
    if (!spec) return nullptr;
    if (known(t->value) && elsewhere(t->device)) {
        const Ref shape(PyObject_GetAttrString(t->value, "shape")),
            dtype(PyObject_GetAttrString(t->value, "dtype"));
        return shape && dtype ? filled_elsewhere(shape.get(), dtype.get(), one, t->dtype, t->device)
                              : nullptr;
    }
    if (!t->value || !PyArray_Check(t->value))
        return PyErr_Format(PyExc_TypeError, "ones_like: the value of the tensor is deferred");
    auto* array = reinterpret_cast<PyArrayObject*>(t->value);
    Ref ones(array_of(PyArray_NDIM(array), PyArray_DIMS(array),
                      reinterpret_cast<PyObject*>(PyArray_DESCR(array)), one));
    return ones ? new_tensor(std::move(ones), spec, t->dtype, t->device) : nullptr;
}

PyMethodDef functions[] = {
    {"filled", as_c(py_filled), METH_FASTCALL,
     "filled(shape, dtype, value, device): a tensor; value None for zeros."},
    {"wrap", as_c(py_wrap), METH_FASTCALL, "wrap(array, dtype, device): a tensor that owns the array."},
    {"ones_like", py_ones_like, METH_O, "A tensor of ones with the spec of another one."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_creation(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace mge
