#include "engine/tape.h"

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/gradient_rule.h"
#include "engine/parts.h"
#include "engine/tensor_type.h"

namespace mge {
namespace {

PyTypeObject* tape_base = nullptr;

using Tensors = std::unordered_map<PyObject*, Ref>;

struct Tape {
    std::vector<TapeEntry> entries;
    Tensors watched;  // owns the tensors, so that addresses stay unique
    Tensors sources;  // watched tensors -> the stand-in for their value at that time
};

struct TapeObject {
    PyObject_HEAD Tape* tape;
};

Tape& tape_of(PyObject* object) { return *reinterpret_cast<TapeObject*>(object)->tape; }

PyObject* lookup(const Tensors& tensors, PyObject* tensor) {
    const auto found = tensors.find(tensor);
    return found == tensors.end() ? nullptr : found->second.get();
}

void keep(Tensors& tensors, PyObject* key, PyObject* tensor) { tensors[key] = Ref::borrowed(tensor); }

// ---------------------------------------------------------------- recording

void enter(Tape& tape, TapeEntry entry) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entry.outputs.get()); ++i) {
        PyObject* out = PyTuple_GET_ITEM(entry.outputs.get(), i);
        keep(tape.watched, out, out);
    }
    tape.entries.push_back(std::move(entry));
}

// ---------------------------------------------------------------- values that change

Ref replaced(const Ref& tuple, PyObject* old, PyObject* by, PyObject* also = nullptr,
             PyObject* also_by = nullptr) {
    const Py_ssize_t count = PyTuple_GET_SIZE(tuple.get());
    bool any = false;
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* item = PyTuple_GET_ITEM(tuple.get(), i);
        any = any || item == old || item == also;
    }
    if (!any) return tuple;
    Ref fresh(PyTuple_New(count));
    for (Py_ssize_t i = 0; fresh && i < count; ++i) {
        PyObject* item = PyTuple_GET_ITEM(tuple.get(), i);
        PyTuple_SET_ITEM(fresh.get(), i, Py_NewRef(item == also ? also_by : item == old ? by : item));
    }
    return fresh;
}

// `tensor` stands for `fresh` after this, and `old` for its value so far.
bool rebind(Tape& tape, PyObject* tensor, PyObject* fresh, PyObject* old) {
    if (lookup(tape.sources, tensor) == tensor) keep(tape.sources, tensor, old);
    if (lookup(tape.watched, tensor)) keep(tape.watched, old, old);
    for (std::size_t i = 0; i < tape.entries.size(); ++i) {
        TapeEntry& entry = tape.entries[i];
        Ref inputs = replaced(entry.inputs, tensor, old);
        Ref outputs = replaced(entry.outputs, tensor, old, fresh, tensor);
        if (!inputs || !outputs) return false;
        std::swap(entry.inputs, inputs);
        std::swap(entry.outputs, outputs);
    }
    if (lookup(tape.watched, fresh)) keep(tape.watched, tensor, tensor);
    return true;
}

// ---------------------------------------------------------------- the sweep back

class Sweep {
  public:
    // Gradients are kept for the stand-ins of the tensors of a tuple.
    Sweep(Tape& tape, PyObject* tensors) : tape_(tape) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
            PyObject* tensor = PyTuple_GET_ITEM(tensors, i);
            PyObject* source = lookup(tape.sources, tensor);
            kept_.push_back(Ref::borrowed(source ? source : tensor));
            keep_.insert(kept_.back().get());
        }
    }

    bool give(PyObject* tensor, PyObject* gradient) {
        PyObject *got = spec_of(gradient), *expected = spec_of(tensor);
        if (!got || !expected) return false;
        if (got != expected) {
            PyObject* args[] = {gradient, tensor};
            if (!Ref(PyObject_Vectorcall(tape_parts.refuse, args, 2, nullptr))) return false;
        }
        const Ref have = of(tensor);
        if (!have) {
            keep(cotangents_, tensor, gradient);
            return true;
        }
        static PyObject* name = PyUnicode_InternFromString("add");
        PyObject* add = PyDict_GetItemWithError(dispatch_parts.registry, name);
        if (!add) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "import megengine.ops first");
            return false;
        }
        PyObject* terms[] = {have.get(), gradient};
        const Ref sum(apply_op({add, terms, 2, nullptr, nullptr, 0}));
        if (sum) keep(cotangents_, tensor, sum.get());
        return static_cast<bool>(sum);
    }

    bool run() {
        while (!tape_.entries.empty()) {
            const TapeEntry entry = std::move(tape_.entries.back());
            tape_.entries.pop_back();
            if (!step(entry)) return false;
        }
        return true;
    }

    // The gradient or None for each tensor that is kept.
    PyObject* found() const {
        PyObject* all = PyList_New(static_cast<Py_ssize_t>(kept_.size()));
        for (std::size_t i = 0; all && i < kept_.size(); ++i) {
            const Ref gradient = of(kept_[i].get());
            PyList_SET_ITEM(all, static_cast<Py_ssize_t>(i), Py_NewRef(gradient ? gradient.get() : Py_None));
        }
        return all;
    }

  private:
    Ref of(PyObject* tensor) const { return Ref::borrowed(lookup(cotangents_, tensor)); }

    bool step(const TapeEntry& entry) {
        std::vector<Ref> cotangents;
        bool any = false;
        const Py_ssize_t outputs = PyTuple_GET_SIZE(entry.outputs.get());
        for (Py_ssize_t i = 0; i < outputs; ++i) {
            cotangents.push_back(of(PyTuple_GET_ITEM(entry.outputs.get(), i)));
            any = any || cotangents.back();
        }
        if (any && !pull(entry, cotangents)) return false;
        for (Py_ssize_t i = 0; i < outputs; ++i) let_go(entry, PyTuple_GET_ITEM(entry.outputs.get(), i));
        return true;
    }

    bool pull(const TapeEntry& entry, const std::vector<Ref>& cotangents) {
        const Ref gradients = pull_back(entry, cotangents);
        if (!gradients) return false;
        for (std::size_t i = 0; i < entry.needs.size(); ++i) {
            PyObject* tensor = PyTuple_GET_ITEM(entry.inputs.get(), static_cast<Py_ssize_t>(i));
            PyObject* gradient = PyTuple_GET_ITEM(gradients.get(), static_cast<Py_ssize_t>(i));
            if (gradient != Py_None && lookup(tape_.watched, tensor) && !give(tensor, gradient)) return false;
        }
        return true;
    }

    // Values and cotangents that no earlier entry needs.
    void let_go(const TapeEntry& entry, PyObject* tensor) {
        if (keep_.count(tensor)) return;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entry.inputs.get()); ++i)
            if (PyTuple_GET_ITEM(entry.inputs.get(), i) == tensor) return;
        // destroyed behind the maps: that may run Python code
        const auto cotangent = cotangents_.extract(tensor), value = tape_.watched.extract(tensor);
    }

    Tape& tape_;
    std::vector<Ref> kept_;
    std::unordered_set<PyObject*> keep_;
    Tensors cotangents_;
};

// ---------------------------------------------------------------- methods

bool tensors_only(PyObject* const* args, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!is_tensor(args[i])) {
            PyErr_Format(PyExc_TypeError, "a tape got %s; expected a tensor", Py_TYPE(args[i])->tp_name);
            return false;
        }
    return true;
}

bool tensors_in(PyObject* sequence) {
    return tensors_only(PySequence_Fast_ITEMS(sequence), PySequence_Fast_GET_SIZE(sequence));
}

PyObject* py_watch(PyObject* self, PyObject* tensor) {
    if (!tensors_only(&tensor, 1)) return nullptr;
    keep(tape_of(self).watched, tensor, tensor);
    keep(tape_of(self).sources, tensor, tensor);
    Py_RETURN_NONE;
}

PyObject* py_watches(PyObject* self, PyObject* tensor) {
    return PyBool_FromLong(lookup(tape_of(self).watched, tensor) != nullptr);
}

PyObject* py_add(PyObject* self, PyObject* context) {
    const Ref inputs(PyObject_GetAttrString(context, "inputs")),
        outputs(PyObject_GetAttrString(context, "outputs")), needs(PyObject_GetAttrString(context, "needs"));
    if (!inputs || !outputs || !needs) return nullptr;
    if (!PyTuple_Check(inputs.get()) || !PyTuple_Check(outputs.get()) || !PyTuple_Check(needs.get()) ||
        PyTuple_GET_SIZE(needs.get()) != PyTuple_GET_SIZE(inputs.get()))
        return PyErr_Format(PyExc_TypeError, "a tape expects tuples of inputs, outputs and needs");
    if (!tensors_in(inputs.get()) || !tensors_in(outputs.get())) return nullptr;
    TapeEntry entry{nullptr, Ref::borrowed(context), inputs, outputs, {}};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(needs.get()); ++i)
        entry.needs.push_back(PyTuple_GET_ITEM(needs.get(), i) == Py_True ? 1 : 0);
    enter(tape_of(self), std::move(entry));
    Py_RETURN_NONE;
}

PyObject* py_rebind(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "_rebind: expected a tensor, its new and its old value");
    if (!tensors_only(args, count)) return nullptr;
    if (!rebind(tape_of(self), args[0], args[1], args[2])) return nullptr;
    Py_RETURN_NONE;
}

PyObject* py_gradients(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    if (count != 3 || !PyList_Check(args[0]) || !PyList_Check(args[1]) || !PyList_Check(args[2]) ||
        PyList_GET_SIZE(args[0]) != PyList_GET_SIZE(args[1]))
        return PyErr_Format(PyExc_TypeError,
                            "gradients: expected lists of targets, a seed for each, and tensors");
    if (!tape_parts.learn) return PyErr_Format(PyExc_RuntimeError, "import megengine.autodiff first");
    const Ref targets(PyList_AsTuple(args[0])), seeds(PyList_AsTuple(args[1])), kept(PyList_AsTuple(args[2]));
    if (!targets || !seeds || !kept) return nullptr;
    for (const Ref* all : {&targets, &seeds, &kept})
        if (!tensors_in(all->get())) return nullptr;
    Sweep sweep(tape_of(self), kept.get());
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(targets.get()); ++i)
        if (!sweep.give(PyTuple_GET_ITEM(targets.get(), i), PyTuple_GET_ITEM(seeds.get(), i))) return nullptr;
    return sweep.run() ? sweep.found() : nullptr;
}

PyObject* py_set_tape(PyObject*, PyObject* args, PyObject* kwargs) {
    static const char* names[] = {"learn", "pull_back", "refuse", nullptr};
    TapeParts p{};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOO", const_cast<char**>(names), &p.learn, &p.pull_back,
                                     &p.refuse))
        return nullptr;
    for (PyObject* part : {p.learn, p.pull_back, p.refuse}) Py_INCREF(part);  // never released, as the module
    tape_parts = p;
    Py_RETURN_NONE;
}

// ---------------------------------------------------------------- the type

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
    PyObject* object = type->tp_alloc(type, 0);
    if (object) reinterpret_cast<TapeObject*>(object)->tape = new Tape;
    return object;
}

int visit_all(const Tape& tape, visitproc visit, void* arg) {
    for (const TapeEntry& entry : tape.entries) {
        Py_VISIT(entry.context.get());
        Py_VISIT(entry.inputs.get());
        Py_VISIT(entry.outputs.get());
    }
    for (const Tensors* tensors : {&tape.watched, &tape.sources})
        for (const auto& [key, tensor] : *tensors) Py_VISIT(tensor.get());
    return 0;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    return visit_all(tape_of(object), visit, arg);
}

int clear(PyObject* object) {
    Tape dropped;  // destroyed at the end: that may run Python code
    std::swap(dropped, tape_of(object));
    return 0;
}

void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    delete reinterpret_cast<TapeObject*>(object)->tape;
    type->tp_free(object);
    Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"watch", py_watch, METH_O, "Record ops on the tensor and on values computed from it."},
    {"watches", py_watches, METH_O, "Whether ops on the tensor are recorded."},
    {"gradients", as_c(py_gradients), METH_FASTCALL,
     "gradients(targets, seeds, tensors): the gradient or None for each tensor's first value; uses the tape "
     "up."},
    {"_add", py_add, METH_O, nullptr},
    {"_rebind", as_c(py_rebind), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {{"set_tape", as_c(py_set_tape), METH_VARARGS | METH_KEYWORDS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("The storage of a tape; megengine.autodiff.tape.Tape derives from it.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec type_spec = {"megengine.core._engine.TapeBase", sizeof(TapeObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

bool is_tape(PyObject* object) { return PyObject_TypeCheck(object, tape_base); }

int record(PyObject* object, const OpCall& op, const std::shared_ptr<PreparedCall>& call, PyObject* out) {
    Tape& tape = tape_of(object);
    if (!call->differentiable) return 0;
    std::string needs(static_cast<std::size_t>(op.count), '\0');
    bool any = false;
    for (Py_ssize_t i = 0; i < op.count; ++i)
        if (lookup(tape.watched, op.tensors[i])) {
            needs[static_cast<std::size_t>(i)] = 1;
            any = true;
        }
    if (!any) return 0;
    Ref inputs = tuple_of(op.tensors, op.count);
    Ref outputs = PyTuple_CheckExact(out) ? Ref::borrowed(out) : tuple_of(&out, 1);
    if (!inputs || !outputs) return -1;
    enter(tape, {call, {}, std::move(inputs), std::move(outputs), std::move(needs)});
    return 0;
}

bool add_tape(PyObject* module) {
    tape_base = add_type(module, type_spec, "TapeBase");
    return tape_base && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace mge
