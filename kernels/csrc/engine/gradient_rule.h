// Gradient rules of ops as recipes: one call of a rule is recorded, and equal calls run without Python.
#pragma once
#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/recipe.h"

namespace mge {

// One op on a tape.
struct TapeEntry {
    std::shared_ptr<PreparedCall> call;  // null for entries recorded by Python, which have a context
    Ref context;                         // an autodiff.tape.Context
    Ref inputs, outputs;                 // tuples
    std::string needs;                   // per input, 1 if it wants a gradient
};

// The rule of a prepared call, for one choice of inputs that want gradients and of cotangents.
struct GradientRule {
    std::string needs, given;
    Known known;
};

// Set by `set_tape`: see megengine/autodiff/tape.py.
struct TapeParts {
    PyObject *learn, *pull_back, *refuse;
};
extern TapeParts tape_parts;

// A tuple with a gradient or None for each input. Null with an error set.
Ref pull_back(const TapeEntry& entry, const std::vector<Ref>& cotangents);

}  // namespace mge
