// `apply` natively: from an op and tensors to the prepared kernel and the wrapped results.
#pragma once
#include <Python.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/step.h"
#include "engine/call_memo.h"
#include "engine/object.h"

namespace mge {

// Set by `set_dispatch`: see megengine/dispatch/apply.py.
struct DispatchParts {
    PyObject *interposers, *tensor, *listener, *op, *registry, *get_op, *through, *prepare, *asarray;
    PyObject *place, *filled;                // storage on other devices than the processor
    PyObject* watcher;                       // the context variable of the tracer of public functions
    PyObject *quiet_variable, *quiet_value;  // turn NumPy's warnings off; null where none come
};
extern DispatchParts dispatch_parts;

// One result of a call: its spec, and the parts of it that tensors hold.
struct Output {
    Ref spec, dtype, device;
    Ref storage;                       // the dtype of the array
    std::vector<std::intptr_t> shape;  // as NumPy's type
    bool open = false;                 // a length depends on values: the shape is the array's
};

struct GradientRule;

// The kernel chosen for an op, specs and attributes, and the recipes of its gradients.
struct PreparedCall {
    Ref op, attrs;
    Ref run;
    std::vector<Output> outputs;
    bool single, moves;
    Ref capsule;                 // owns the step
    const Step* step = nullptr;  // runs in its place, on C-contiguous arrays; null for most kernels
    bool view;                   // the result is the input in another shape; nothing runs
    bool reference;              // in NumPy: without its warnings; results may need a cast
    bool differentiable;         // a result has a dtype with gradients
    std::vector<std::shared_ptr<GradientRule>> rules;
};

// How tensors and attributes reach an op; all borrowed.
struct OpCall {
    PyObject* op;
    PyObject* const* tensors;
    Py_ssize_t count;
    PyObject* const* names;
    PyObject* const* values;
    Py_ssize_t named;
    PyObject* attrs = nullptr;  // names and values as a dict, where one exists; its owner may change it

    Given given() const { return {op, tensors, count, names, values, named}; }
};

// The interposers of the ops applied now.
enum class Watch { kNobody, kObservers, kOthers };

// The interposers (a tuple) and what they are. Null with an error set.
Ref interposers(Watch* watch);

// The kernel for a call; null with an error set.
std::shared_ptr<PreparedCall> prepared(const OpCall& call);

// Runs the kernel. A tensor or a tuple of tensors; null with an error set.
PyObject* execute(const PreparedCall& call, PyObject* const* tensors, Py_ssize_t count);

// Reports an op to every listener on the stack. -1 with an error set.
int show(PyObject* stack, const OpCall& op, const std::shared_ptr<PreparedCall>& call, PyObject* out);

// `apply`: through the interposers, or with the result reported to listeners. Null with an error set.
PyObject* apply_op(const OpCall& op);

// 1 if a tracer listens to public functions, 0 if not, -1 with an error set.
int watched();

// A tensor that owns the array; with a spec, or with a dtype and a device alone. Null with an error set.
PyObject* new_tensor(Ref array, PyObject* spec, PyObject* dtype, PyObject* device);

// Version of the choice of kernels: prepared calls of older versions are void.
std::uint64_t dispatch_generation();

}  // namespace mge
