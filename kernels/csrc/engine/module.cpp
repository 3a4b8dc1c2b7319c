// megengine.core._engine: the native side of tensors, `apply`, public functions, the tape and modules.
#define MGE_IMPORTS_NUMPY
#include "common/fork_gate.h"
#include "engine/numpy_api.h"
#include "engine/object.h"
#include "engine/parts.h"

namespace mge {

const ForkGate* fork_gate = nullptr;

namespace {

bool find_fork_gate() {
    const Ref core(PyImport_ImportModule("megengine.kernels._core"));
    const Ref gate(core ? PyObject_GetAttrString(core.get(), "fork_gate") : nullptr);
    if (gate) fork_gate = static_cast<const ForkGate*>(PyCapsule_GetPointer(gate.get(), kForkGate));
    return fork_gate != nullptr;
}

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "megengine.core._engine",
                          nullptr,
                          -1,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace mge

PyMODINIT_FUNC PyInit__engine() {
    using namespace mge;
    Ref module(PyModule_Create(&definition));
    PyObject* m = module.get();
    const bool made = m && PyArray_ImportNumPyAPI() == 0 && find_fork_gate() && add_tensor_type(m) &&
                      add_dispatch(m) && add_creation(m) && add_public_call(m) && add_tape(m) &&
                      add_module_type(m);
    return made ? module.release() : nullptr;
}
