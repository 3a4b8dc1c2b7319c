// Public functions whose ops depend on nothing but the specs of their tensors and their other arguments: one
// call is recorded, and equal calls go from the arguments to the kernels without Python.
#include <Python.h>
#include <structmember.h>

#include <algorithm>

#include "engine/dispatch.h"
#include "engine/parts.h"
#include "engine/recipe.h"
#include "engine/tensor_type.h"

namespace mge {
namespace {

constexpr std::size_t kCalls = 256;  // remembered per function

struct PublicCall {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *dict, *weak;
    PyObject *plain, *learn, *fail;  // the call in Python; its recipe or None; errors that name the call
    CallMemo<Known>* memo;
};

PublicCall* self_of(PyObject* object) { return reinterpret_cast<PublicCall*>(object); }

// ---------------------------------------------------------------- learning and replaying

// Records the ops of the function for equal calls. False with an error set.
bool learn(PublicCall* self, const Given& given, Known& known, PyObject* kwnames) {
    const Ref written(
        PyObject_Vectorcall(self->learn, given.positional, static_cast<std::size_t>(given.count), kwnames));
    return written && known.learn(written.get(), static_cast<std::size_t>(given.count + given.named));
}

PyObject* replay(Known& known, const Given& given, PyObject* stack, Watch watch) {
    Replay run(known.recipe);
    std::copy_n(given.values, given.named, std::copy_n(given.positional, given.count, run.given()));
    return run.run(stack, watch).release();
}

PyObject* fail(PublicCall* self, const Given& given) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    const Ref owned_type(type), error(value), owned_traceback(traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    const Ref args = tuple_of(given.positional, given.count), kwargs(PyDict_New());
    if (!args || !kwargs) return nullptr;
    for (Py_ssize_t i = 0; i < given.named; ++i)
        if (PyDict_SetItem(kwargs.get(), given.names[i], given.values[i]) < 0) return nullptr;
    PyObject* parts[] = {error.get(), args.get(), kwargs.get()};
    return PyObject_Vectorcall(self->fail, parts, 3, nullptr);
}

// ---------------------------------------------------------------- calling

// True if there is a tensor, and no tensor whose value is deferred.
bool computes(const Given& given) {
    bool any = false;
    const auto fits = [&](PyObject* argument) {
        if (!is_tensor(argument)) return true;
        any = true;
        return known(fields(argument)->value);
    };
    for (Py_ssize_t i = 0; i < given.count; ++i)
        if (!fits(given.positional[i])) return false;
    for (Py_ssize_t i = 0; i < given.named; ++i)
        if (!fits(given.values[i])) return false;
    return any;
}

PyObject* call(PyObject* object, PyObject* const* args, std::size_t flags, PyObject* kwnames) {
    PublicCall* self = self_of(object);
    const Given given(nullptr, args, PyVectorcall_NARGS(flags), kwnames);
    if (!self->plain) return PyErr_Format(PyExc_RuntimeError, "a function is called after its end");
    const auto in_python = [&] { return PyObject_Vectorcall(self->plain, args, flags, kwnames); };
    const int listened = watched();
    if (listened < 0) return nullptr;
    if (listened || !computes(given)) return in_python();
    Watch watch;
    const Ref stack = interposers(&watch);
    if (!stack) return nullptr;
    if (watch == Watch::kOthers) return in_python();
    const auto hash = Key::hash(given, Options::kPlain);
    if (!hash) return PyErr_Occurred() ? nullptr : in_python();
    const std::shared_ptr<Known> known = self->memo->find(given, *hash);
    if (!known) {  // recording takes longer than the call: not at the first one
        if (PyErr_Occurred()) return nullptr;
        self->memo->insert(given, *hash, std::make_shared<Known>());
        return in_python();
    }
    if (known->state == Known::State::kSeen && !learn(self, given, *known, kwnames)) return nullptr;
    if (known->state != Known::State::kRecipe) return in_python();
    PyObject* out = replay(*known, given, stack.get(), watch);
    return out ? out : fail(self, given);
}

// ---------------------------------------------------------------- the type

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *plain, *learn, *fail;
    if (!PyArg_ParseTuple(args, "OOO", &plain, &learn, &fail)) return nullptr;
    if (!dispatch_parts.watcher) return PyErr_Format(PyExc_RuntimeError, "import megengine.dispatch first");
    PyObject* object = type->tp_alloc(type, 0);
    if (!object) return nullptr;
    PublicCall* self = self_of(object);
    self->vectorcall = call;
    self->plain = Py_NewRef(plain);
    self->learn = Py_NewRef(learn);
    self->fail = Py_NewRef(fail);
    self->memo = new CallMemo<Known>(kCalls);
    return object;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
    PublicCall* self = self_of(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->dict);
    Py_VISIT(self->plain);
    Py_VISIT(self->learn);
    Py_VISIT(self->fail);
    return 0;
}

int clear(PyObject* object) {
    PublicCall* self = self_of(object);
    Py_CLEAR(self->dict);
    Py_CLEAR(self->plain);
    Py_CLEAR(self->learn);
    Py_CLEAR(self->fail);
    return 0;
}

void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self_of(object)->weak) PyObject_ClearWeakRefs(object);
    delete self_of(object)->memo;
    clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

// As functions: a method as an attribute of a class.
PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
    return !object || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

// Pickled and copied by name, as functions are.
PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

PyObject* represent(PyObject* self) {
    const Ref name(PyObject_GetAttrString(self, "__qualname__"));
    return name ? PyUnicode_FromFormat("<function %U at %p>", name.get(), self) : nullptr;
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PublicCall, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(PublicCall, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(PublicCall, weak), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyGetSetDef attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
    {Py_tp_repr, reinterpret_cast<void*>(represent)},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, nullptr},
};

PyType_Spec type_spec = {
    "megengine.core._engine.PublicCall", sizeof(PublicCall), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    slots};

}  // namespace

bool add_public_call(PyObject* module) { return add_type(module, type_spec, "PublicCall"); }

}  // namespace mge
