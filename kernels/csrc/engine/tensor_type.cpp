#include "engine/tensor_type.h"

#include <Python.h>
#include <structmember.h>

#include "engine/object.h"
#include "engine/parts.h"

namespace mge {

PyTypeObject* tensor_base = nullptr;

namespace {

int traverse(PyObject* self, visitproc visit, void* arg) {
    TensorObject* t = fields(self);
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(t->value);
    Py_VISIT(t->spec);
    Py_VISIT(t->dtype);
    Py_VISIT(t->device);
    Py_VISIT(t->thunk);
    return 0;
}

int clear(PyObject* self) {
    TensorObject* t = fields(self);
    Py_CLEAR(t->value);
    Py_CLEAR(t->spec);
    Py_CLEAR(t->dtype);
    Py_CLEAR(t->device);
    Py_CLEAR(t->thunk);
    return 0;
}

void dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyMemberDef members[] = {
    {"_value", T_OBJECT, offsetof(TensorObject, value), 0, "The array; None while it is deferred."},
    {"_spec", T_OBJECT, offsetof(TensorObject, spec), 0, "The spec; None until its first use."},
    {"_dtype", T_OBJECT, offsetof(TensorObject, dtype), 0, "The element type."},
    {"_device", T_OBJECT, offsetof(TensorObject, device), 0, "The name of the device."},
    {"_thunk", T_OBJECT, offsetof(TensorObject, thunk), 0, "Computes a deferred value; None without one."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("The storage of a tensor; megengine.tensor.Tensor derives from it.")},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec type_spec = {"megengine.core._engine.TensorBase", sizeof(TensorObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

PyObject* spec_of(PyObject* tensor) {
    if (!known(fields(tensor)->spec)) {
        static PyObject* name = PyUnicode_InternFromString("spec");  // the property stores its result
        PyObject* made = PyObject_GetAttr(tensor, name);
        if (!made) return nullptr;
        Py_DECREF(made);
        if (!known(fields(tensor)->spec)) {
            PyErr_SetString(PyExc_SystemError, "a tensor did not keep its spec");
            return nullptr;
        }
    }
    return fields(tensor)->spec;
}

PyObject* storage_of(PyObject* tensor) {
    PyObject* value = fields(tensor)->value;
    if (known(value)) return Py_NewRef(value);
    static PyObject* name = PyUnicode_InternFromString("_storage");
    return PyObject_CallMethodNoArgs(tensor, name);
}

bool add_tensor_type(PyObject* module) {
    tensor_base = add_type(module, type_spec, "TensorBase");
    return tensor_base != nullptr;
}

}  // namespace mge
