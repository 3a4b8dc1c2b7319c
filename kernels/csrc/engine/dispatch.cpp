#include "engine/dispatch.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "common/fork_gate.h"
#include "engine/gradient_rule.h"
#include "engine/numpy_api.h"
#include "engine/parts.h"
#include "engine/tape.h"
#include "engine/tensor_type.h"

namespace mge {

DispatchParts dispatch_parts{};

namespace {

constexpr std::size_t kCalls = 8192;
std::uint64_t generation = 0;

// Never destroyed: it refers to Python objects.
CallMemo<PreparedCall>& calls() {
    static auto* all = new CallMemo<PreparedCall>(kCalls);
    return *all;
}

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// ---------------------------------------------------------------- preparing

Ref attributes(const OpCall& call) {
    if (call.attrs) return Ref::borrowed(call.attrs);
    Ref attrs(PyDict_New());
    for (Py_ssize_t i = 0; attrs && i < call.named; ++i)
        if (PyDict_SetItem(attrs.get(), call.names[i], call.values[i]) < 0) return {};
    return attrs;
}

bool read_shape(Output& out) {
    const Ref lengths(PyObject_GetAttrString(out.spec.get(), "shape"));
    if (!lengths) return false;
    if (!PyTuple_Check(lengths.get()) || PyTuple_GET_SIZE(lengths.get()) > NPY_MAXDIMS) {
        PyErr_SetString(PyExc_ValueError, "a shape is a tuple of as many lengths as NumPy takes");
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(lengths.get()); ++i) {
        PyObject* length = PyTuple_GET_ITEM(lengths.get(), i);
        out.open = out.open || !PyLong_CheckExact(length);
        out.shape.push_back(PyLong_AsSsize_t(length));
    }
    return !PyErr_Occurred();
}

// From the result of megengine.dispatch.apply._prepare.
std::shared_ptr<PreparedCall> unpacked(PyObject* found) {
    PyObject *run, *outputs, *step;
    int single, moves, reference, view, differentiable;
    if (!PyArg_ParseTuple(found, "OO!pppOpp", &run, &PyTuple_Type, &outputs, &single, &moves, &reference,
                          &step, &view, &differentiable))
        return nullptr;
    auto call = std::make_shared<PreparedCall>();
    if (step != Py_None) {
        call->step = static_cast<const Step*>(PyCapsule_GetPointer(step, kStepCapsule));
        if (!call->step) return nullptr;
        call->capsule = Ref::borrowed(step);
    }
    call->run = Ref::borrowed(run);
    call->single = single;
    call->moves = moves;
    call->reference = reference;
    call->view = view;
    call->differentiable = differentiable;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) {
        PyObject *spec, *storage;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(outputs, i), "OO", &spec, &storage)) return nullptr;
        Output out{Ref::borrowed(spec),
                   Ref(PyObject_GetAttrString(spec, "dtype")),
                   Ref(PyObject_GetAttrString(spec, "device")),
                   Ref::borrowed(storage),
                   {}};
        if (!out.dtype || !out.device || !read_shape(out)) return nullptr;
        call->outputs.push_back(std::move(out));
    }
    return call;
}

std::shared_ptr<PreparedCall> prepare(const OpCall& call) {
    const Ref tensors = tuple_of(call.tensors, call.count);
    const Ref attrs = call.attrs ? Ref(PyDict_Copy(call.attrs)) : attributes(call);
    if (!tensors || !attrs) return nullptr;
    PyObject* args[] = {call.op, tensors.get(), attrs.get()};
    const Ref found(PyObject_Vectorcall(dispatch_parts.prepare, args, 3, nullptr));
    auto made = found ? unpacked(found.get()) : nullptr;
    if (made) {
        made->op = Ref::borrowed(call.op);
        made->attrs = attrs;
    }
    return made;
}

// ---------------------------------------------------------------- running

// A new array for the result, C-contiguous.
PyObject* room(const Output& out) {
    Py_INCREF(out.storage.get());  // owned by the array
    return PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(out.storage.get()),
                                static_cast<int>(out.shape.size()), out.shape.data(), nullptr, nullptr, 0,
                                nullptr);
}

PyArrayObject* as_array(PyObject* object) { return reinterpret_cast<PyArrayObject*>(object); }

// A new reference to the values C-contiguous: mostly the array itself.
PyObject* dense(PyObject* array) {
    if (PyArray_CheckExact(array) && PyArray_ISCARRAY_RO(as_array(array))) return Py_NewRef(array);
    return PyArray_FromAny(array, nullptr, 0, 0, NPY_ARRAY_CARRAY_RO, nullptr);
}

// The values of an array in another shape, in its memory where they lie there in order.
PyObject* view_of(const Output& out, PyObject* array) {
    const Ref held(dense(array));
    if (!held) return nullptr;
    PyArray_Dims shape{const_cast<npy_intp*>(out.shape.data()), static_cast<int>(out.shape.size())};
    return PyArray_Newshape(as_array(held.get()), &shape, NPY_CORDER);
}

// Scratch memory of a step; small needs are met by the object itself.
class Scratch {
  public:
    explicit Scratch(std::size_t bytes) {
        if (bytes <= sizeof few_) return;
        const std::size_t whole = (bytes + kAlign - 1) / kAlign * kAlign;
        many_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, whole)));
        enough_ = many_ != nullptr;
    }
    explicit operator bool() const { return enough_; }
    std::byte* get() { return many_ ? many_.get() : few_; }

  private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    static constexpr std::size_t kAlign = 64;
    alignas(kAlign) std::byte few_[2048];
    std::unique_ptr<std::byte, Free> many_;
    bool enough_ = true;
};

// The step on small arrays, with the GIL: releasing it would take longer. An array or a tuple of them.
PyObject* run_step(const PreparedCall& call, PyObject** arrays, Py_ssize_t count) {
    std::array<std::byte*, 2 * Given::kMost> buffers;
    std::array<Ref, 2 * Given::kMost> held;
    std::size_t at = 0;
    const auto add = [&](PyObject* array) {
        held[at] = Ref(array);
        if (!array) return false;
        buffers[at++] = reinterpret_cast<std::byte*>(PyArray_DATA(as_array(array)));
        return true;
    };
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!add(dense(arrays[i]))) return nullptr;
    const std::size_t first = at;
    for (const Output& out : call.outputs)
        if (!add(room(out))) return nullptr;
    Scratch scratch(call.step->scratch_bytes());
    if (!scratch) return PyErr_NoMemory();
    for (int part = 0; part < call.step->parts(); ++part) call.step->run(part, buffers.data(), scratch.get());
    if (call.single) return held[first].release();
    PyObject* all = PyTuple_New(static_cast<Py_ssize_t>(at - first));
    for (std::size_t i = first; all && i < at; ++i)
        PyTuple_SET_ITEM(all, static_cast<Py_ssize_t>(i - first), held[i].release());
    return all;
}

// The step or the function of the arrays; for a reference with NumPy's warnings off.
PyObject* call_kernel(const PreparedCall& call, PyObject** arrays, Py_ssize_t count) {
    if (call.view && count == 1) return view_of(call.outputs[0], arrays[0]);
    if (call.step && count <= Given::kMost && call.outputs.size() <= Given::kMost)
        return run_step(call, arrays, count);
    const InKernel running;
    const std::size_t flags = static_cast<std::size_t>(count) | PY_VECTORCALL_ARGUMENTS_OFFSET;
    if (!call.reference || !dispatch_parts.quiet_variable)
        return PyObject_Vectorcall(call.run.get(), arrays, flags, nullptr);
    const Ref token(PyContextVar_Set(dispatch_parts.quiet_variable, dispatch_parts.quiet_value));
    if (!token) return nullptr;
    Ref out(PyObject_Vectorcall(call.run.get(), arrays, flags, nullptr));
    PyObject *type, *value, *traceback;  // the reset must not see the error of the call
    PyErr_Fetch(&type, &value, &traceback);
    const int reset = PyContextVar_Reset(dispatch_parts.quiet_variable, token.get());
    if (!out) PyErr_Restore(type, value, traceback);
    return reset < 0 ? nullptr : out.release();
}

PyObject* cast(Ref array, PyObject* dtype) {
    if (PyArray_CheckExact(array.get())) {
        auto* have = PyArray_DESCR(reinterpret_cast<PyArrayObject*>(array.get()));
        if (reinterpret_cast<PyObject*>(have) == dtype) return array.release();
    }
    PyObject* args[] = {array.get(), dtype};
    return PyObject_Vectorcall(dispatch_parts.asarray, args, 2, nullptr);
}

PyObject* made(Ref array, const Output& out, bool may_differ) {
    if (may_differ) array = Ref(cast(std::move(array), out.storage.get()));
    if (!array) return nullptr;
    return new_tensor(std::move(array), out.open ? Py_None : out.spec.get(), out.dtype.get(),
                      out.device.get());
}

PyObject* made_many(PyObject* arrays, const PreparedCall& call) {
    const Ref items(PySequence_Tuple(arrays));
    if (!items) return nullptr;
    const auto count = static_cast<Py_ssize_t>(call.outputs.size());
    if (PyTuple_GET_SIZE(items.get()) != count)
        return PyErr_Format(PyExc_ValueError, "the number of results of a kernel is %zd; expected %zd",
                            PyTuple_GET_SIZE(items.get()), count);
    Ref tensors(PyTuple_New(count));
    for (Py_ssize_t i = 0; tensors && i < count; ++i) {
        PyObject* tensor = made(Ref::borrowed(PyTuple_GET_ITEM(items.get(), i)),
                                call.outputs[static_cast<std::size_t>(i)], call.reference);
        if (!tensor) return nullptr;
        PyTuple_SET_ITEM(tensors.get(), i, tensor);
    }
    return tensors.release();
}

// Rounded values that are only moved (pooled, reshaped) still lie on their grid.
int take_grid(PyObject* from, PyObject* out) {
    static PyObject* name = interned("_qparams");  // reading `qparams` would create them
    const Ref grid(PyObject_GetAttr(from, name));
    if (!grid) return -1;
    if (grid.get() == Py_None) return 0;
    if (!PyTuple_CheckExact(out)) return PyObject_SetAttr(out, name, grid.get());
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(out); ++i)
        if (PyObject_SetAttr(PyTuple_GET_ITEM(out, i), name, grid.get()) < 0) return -1;
    return 0;
}

// ---------------------------------------------------------------- interposers

PyObject* run_now(const OpCall& call) {
    const auto found = prepared(call);
    return found ? execute(*found, call.tensors, call.count) : nullptr;
}

PyObject* through(PyObject* stack, const OpCall& call) {
    const Ref tensors = tuple_of(call.tensors, call.count), attrs = attributes(call);
    if (!tensors || !attrs) return nullptr;
    PyObject* args[] = {stack, call.op, tensors.get(), attrs.get()};
    return PyObject_Vectorcall(dispatch_parts.through, args, 4, nullptr);
}

bool ready() {
    if (!dispatch_parts.prepare) PyErr_SetString(PyExc_RuntimeError, "import megengine.dispatch first");
    return dispatch_parts.prepare != nullptr;
}

// ---------------------------------------------------------------- faces

PyObject* py_apply(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
    if (!ready()) return nullptr;
    if (count == 0) return PyErr_Format(PyExc_TypeError, "apply: expected an op and tensors");
    Ref op = Ref::borrowed(args[0]);
    if (Py_TYPE(op.get()) != reinterpret_cast<PyTypeObject*>(dispatch_parts.op)) {
        op = Ref::borrowed(PyDict_GetItemWithError(dispatch_parts.registry, args[0]));
        if (!op && !PyErr_Occurred()) op = Ref(PyObject_CallOneArg(dispatch_parts.get_op, args[0]));
        if (!op) return nullptr;
    }
    return apply_op({op.get(), args + 1, count - 1, kwnames ? &PyTuple_GET_ITEM(kwnames, 0) : nullptr,
                     args + count, kwnames ? PyTuple_GET_SIZE(kwnames) : 0});
}

PyObject* py_run_eager(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (!ready()) return nullptr;
    if (count != 3 || !PyTuple_Check(args[1]) || !PyDict_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "run_eager: expected an op, a tuple of tensors and a dict");
    PyObject *tensors = args[1], *attrs = args[2];
    const Py_ssize_t named = PyDict_GET_SIZE(attrs);
    std::vector<PyObject*> names, values;
    Py_ssize_t at = 0;
    for (PyObject *name, *value; PyDict_Next(attrs, &at, &name, &value);) {
        names.push_back(name);
        values.push_back(value);
    }
    return run_now({args[0], &PyTuple_GET_ITEM(tensors, 0), PyTuple_GET_SIZE(tensors), names.data(),
                    values.data(), named, attrs});
}

PyObject* py_set_dispatch(PyObject*, PyObject* args, PyObject* kwargs) {
    static const char* names[] = {"interposers", "tensor",  "listener", "op",      "registry",
                                  "get_op",      "through", "prepare",  "asarray", "place",
                                  "filled",      "watcher", "quiet",    nullptr};
    DispatchParts p{};
    PyObject* quiet;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OO!O!O!O!OOOOOOOO", const_cast<char**>(names),
                                     &p.interposers, &PyType_Type, &p.tensor, &PyType_Type, &p.listener,
                                     &PyType_Type, &p.op, &PyDict_Type, &p.registry, &p.get_op, &p.through,
                                     &p.prepare, &p.asarray, &p.place, &p.filled, &p.watcher, &quiet))
        return nullptr;
    if (quiet != Py_None && !PyArg_ParseTuple(quiet, "OO", &p.quiet_variable, &p.quiet_value)) return nullptr;
    for (PyObject* part :
         {p.interposers, p.tensor, p.listener, p.op, p.registry, p.get_op, p.through, p.prepare, p.asarray,
          p.place, p.filled, p.watcher, p.quiet_variable, p.quiet_value})
        Py_XINCREF(part);  // never released, as the module
    dispatch_parts = p;
    Py_RETURN_NONE;
}

PyObject* py_forget_calls(PyObject*, PyObject*) {
    ++generation;
    calls().clear();
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"apply", as_c(py_apply), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"run_eager", as_c(py_run_eager), METH_FASTCALL, nullptr},
    {"set_dispatch", as_c(py_set_dispatch), METH_VARARGS | METH_KEYWORDS, nullptr},
    {"forget_calls", as_c(py_forget_calls), METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

Ref interposers(Watch* watch) {
    PyObject* stack = nullptr;
    if (PyContextVar_Get(dispatch_parts.interposers, nullptr, &stack) < 0) return {};
    auto* listener = reinterpret_cast<PyTypeObject*>(dispatch_parts.listener);
    const Py_ssize_t count = PyTuple_GET_SIZE(stack);
    *watch = count ? Watch::kObservers : Watch::kNobody;
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!PyObject_TypeCheck(PyTuple_GET_ITEM(stack, i), listener)) *watch = Watch::kOthers;
    return Ref(stack);
}

std::shared_ptr<PreparedCall> prepared(const OpCall& call) {
    for (Py_ssize_t i = 0; i < call.count; ++i)
        if (!is_tensor(call.tensors[i])) {
            PyErr_Format(PyExc_TypeError, "apply: input %zd is of type %s; expected a tensor", i,
                         Py_TYPE(call.tensors[i])->tp_name);
            return nullptr;
        }
    const Given given = call.given();
    const auto hash = Key::hash(given, Options::kHashable);
    if (!hash) return PyErr_Occurred() ? nullptr : prepare(call);
    auto found = calls().find(given, *hash);
    if (found || PyErr_Occurred()) return found;
    const std::uint64_t before = generation;
    found = prepare(call);
    if (found && before == generation) calls().insert(given, *hash, found);
    return found;
}

PyObject* execute(const PreparedCall& call, PyObject* const* tensors, Py_ssize_t count) {
    std::array<PyObject*, Given::kMost + 1> few;
    std::vector<PyObject*> many(count > Given::kMost ? static_cast<std::size_t>(count) + 1 : 0);
    PyObject** arrays =
        (many.empty() ? few.data() : many.data()) + 1;  // vectorcall may use the place in front of it
    Py_ssize_t filled = 0;
    while (filled < count && (arrays[filled] = storage_of(tensors[filled]))) ++filled;
    Ref out;
    if (filled == count) out = Ref(call_kernel(call, arrays, count));
    for (Py_ssize_t i = 0; i < filled; ++i) Py_DECREF(arrays[i]);
    if (!out) return nullptr;
    out =
        Ref(call.single ? made(std::move(out), call.outputs[0], call.reference) : made_many(out.get(), call));
    if (out && call.moves && count && take_grid(tensors[0], out.get()) < 0) return nullptr;
    return out.release();
}

int show(PyObject* stack, const OpCall& op, const std::shared_ptr<PreparedCall>& call, PyObject* out) {
    static PyObject* name = interned("observe");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(stack); ++i) {
        PyObject* listener = PyTuple_GET_ITEM(stack, i);
        if (is_tape(listener)) {
            if (record(listener, op, call, out) < 0) return -1;
            continue;
        }
        const Ref tensors = tuple_of(op.tensors, op.count), attrs = attributes(op);
        if (!tensors || !attrs) return -1;
        PyObject* args[] = {listener, op.op, tensors.get(), attrs.get(), out};
        if (!Ref(PyObject_VectorcallMethod(name, args, 5, nullptr))) return -1;
    }
    return 0;
}

PyObject* new_tensor(Ref array, PyObject* spec, PyObject* dtype, PyObject* device) {
    auto* type = reinterpret_cast<PyTypeObject*>(dispatch_parts.tensor);
    PyObject* tensor = type->tp_alloc(type, 0);
    if (!tensor) return nullptr;
    TensorObject* t = fields(tensor);
    t->value = array.release();
    t->spec = Py_XNewRef(spec);
    t->dtype = Py_NewRef(dtype);
    t->device = Py_NewRef(device);
    return tensor;
}

PyObject* apply_op(const OpCall& op) {
    Watch watch;
    const Ref stack = interposers(&watch);
    if (!stack) return nullptr;
    if (watch == Watch::kOthers) return through(stack.get(), op);
    const auto call = prepared(op);
    if (!call) return nullptr;
    Ref out(execute(*call, op.tensors, op.count));
    if (out && watch == Watch::kObservers && show(stack.get(), op, call, out.get()) < 0) return nullptr;
    return out.release();
}

int watched() {
    PyObject* watcher = nullptr;
    if (PyContextVar_Get(dispatch_parts.watcher, Py_None, &watcher) < 0) return -1;
    Py_DECREF(watcher);
    return watcher != Py_None;
}

std::uint64_t dispatch_generation() { return generation; }

bool add_dispatch(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace mge
