// Gradient rules of ops as recipes: what one call of a rule did is written down, and calls alike are repeated
// without Python.
#pragma once
#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/recipe.h"

namespace mge {

// One op on a tape.
struct TapeEntry {
    std::shared_ptr<PreparedCall> call;  // null for what Python wrote down: it has its context
    Ref context;                         // an autodiff.tape.Context
    Ref inputs, outputs;                 // tuples
    std::string needs;                   // per input, 1 if it wants a gradient
};

// What is known of the rule of a prepared call, for the inputs that want gradients and the cotangents there
// are.
struct GradientRule {
    std::string needs, given;
    Known known;
};

// Told by `set_tape`: see megengine/autodiff/tape.py.
struct TapeParts {
    PyObject *learn, *pull_back, *refuse;
};
extern TapeParts tape_parts;

// A tuple with a gradient or None for each input. Null with an error set.
Ref pull_back(const TapeEntry& entry, const std::vector<Ref>& cotangents);

}  // namespace mge
