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

// What Python told by `set_dispatch`: see megengine/dispatch/apply.py.
struct DispatchParts {
    PyObject *interposers, *tensor, *listener, *op, *registry, *get_op, *through, *prepare, *asarray;
    PyObject* watcher;                       // the context variable of who listens to public functions
    PyObject *quiet_variable, *quiet_value;  // what keeps NumPy from warnings; null where nothing does
};
extern DispatchParts dispatch_parts;

// One result of a call: its spec and what tensors take over from it.
struct Output {
    Ref spec, dtype, device;
    Ref storage;                       // the dtype of the array
    std::vector<std::intptr_t> shape;  // as NumPy takes it
};

struct GradientRule;

// The kernel chosen for an op, specs and attributes, and what is known of its gradients.
struct PreparedCall {
    Ref op, attrs;
    Ref run;
    std::vector<Output> outputs;
    bool single, moves;
    Ref capsule;                 // owns the step
    const Step* step = nullptr;  // runs instead, on C-contiguous arrays; null for most kernels
    bool view;                   // the result is the input in another shape, and nothing is run
    bool reference;              // in NumPy: without its warnings, and with results that may have to be cast
    bool differentiable;         // a result is of a dtype that can have gradients
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
    PyObject* attrs =
        nullptr;  // names and values as a dict, where there is one already; whose it is may change it

    Given given() const { return {op, tensors, count, names, values, named}; }
};

// Who sees the ops applied now.
enum class Watch { kNobody, kObservers, kOthers };

// The interposers (a tuple) and what they are. Null with an error set.
Ref interposers(Watch* watch);

// The kernel for a call; null with an error set.
std::shared_ptr<PreparedCall> prepared(const OpCall& call);

// Runs the kernel. A tensor or a tuple of tensors; null with an error set.
PyObject* execute(const PreparedCall& call, PyObject* const* tensors, Py_ssize_t count);

// Shows one op that was run to every listener on the stack. -1 with an error set.
int show(PyObject* stack, const OpCall& op, const std::shared_ptr<PreparedCall>& call, PyObject* out);

// `apply`: through what stands on the stack, or with its listeners shown the result. Null with an error set.
PyObject* apply_op(const OpCall& op);

// 1 if a tracer listens to public functions, 0 if not, -1 with an error set.
int watched();

// A tensor that takes over an array; with a spec, or with a dtype and a device alone. Null with an error set.
PyObject* new_tensor(Ref array, PyObject* spec, PyObject* dtype, PyObject* device);

// Counts how often choices of kernels changed: prepared calls of before are void.
std::uint64_t dispatch_generation();

}  // namespace mge
