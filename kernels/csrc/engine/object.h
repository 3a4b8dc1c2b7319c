// Helpers for Python's C interface.
#pragma once
#include <Python.h>

#include <utility>

namespace mge {

// An owned reference.
class Ref {
  public:
    Ref() = default;
    explicit Ref(PyObject* stolen) : object_(stolen) {}
    Ref(const Ref& other) : object_(Py_XNewRef(other.object_)) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Ref() { Py_XDECREF(object_); }
    static Ref borrowed(PyObject* object) { return Ref(Py_XNewRef(object)); }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

  private:
    PyObject* object_ = nullptr;
};

inline Ref tuple_of(PyObject* const* items, Py_ssize_t count) {
    Ref tuple(PyTuple_New(count));
    for (Py_ssize_t i = 0; tuple && i < count; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(items[i]));
    return tuple;
}

// A function of any signature, as an entry of a table of methods.
template <class F>
PyCFunction as_c(F* function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// A type of the module; borrowed, it lives as long as the module. Null with an error set.
inline PyTypeObject* add_type(PyObject* module, PyType_Spec& spec, const char* name) {
    const Ref type(PyType_FromSpec(&spec));
    if (!type || PyModule_AddObjectRef(module, name, type.get()) < 0) return nullptr;
    return reinterpret_cast<PyTypeObject*>(Ref(type).release());  // never released
}

}  // namespace mge
