// The base class of megengine.module.Module: attributes are read without Python while no tracer listens.
#include "engine/object.h"
#include "engine/parts.h"

namespace mge {
namespace {

// Set by `watch_reads`: the context variable of the tracer, its function for reads, and the function for
// missing names.
PyObject *watcher_variable, *heard, *missing;

PyObject* read(PyObject* self, PyObject* name) {
    PyObject* value = PyObject_GenericGetAttr(self, name);
    if (!value) {
        if (!missing || !PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
        PyErr_Clear();
        PyObject* args[] = {self, name};
        return PyObject_Vectorcall(missing, args, 2, nullptr);
    }
    PyObject* watcher = nullptr;
    if (watcher_variable && PyContextVar_Get(watcher_variable, Py_None, &watcher) < 0) {
        Py_DECREF(value);
        return nullptr;
    }
    Py_XDECREF(watcher);
    if (!watcher || watcher == Py_None) return value;
    PyObject* args[] = {self, name, value};
    PyObject* seen = PyObject_Vectorcall(heard, args, 3, nullptr);
    Py_DECREF(value);
    return seen;
}

PyObject* watch_reads(PyObject*, PyObject* args) {
    PyObject *variable, *hear, *miss;
    if (!PyArg_ParseTuple(args, "OOO", &variable, &hear, &miss)) return nullptr;
    watcher_variable = Py_NewRef(variable);
    heard = Py_NewRef(hear);
    missing = Py_NewRef(miss);
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"watch_reads", watch_reads, METH_VARARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Reports reads of attributes to a tracer.")},
    {Py_tp_getattro, reinterpret_cast<void*>(read)},
    {0, nullptr},
};

PyType_Spec type_spec = {"megengine.core._engine.WatchedReads", sizeof(PyObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

}  // namespace

bool add_module_type(PyObject* module) {
    return add_type(module, type_spec, "WatchedReads") && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace mge
