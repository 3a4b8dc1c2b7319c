// Ops that were written down once, and are applied again without the Python that applied them first.
#pragma once
#include <Python.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "engine/dispatch.h"

namespace mge {

// One op of a recipe. Its inputs are places: what is given, then the constants, then the results so far,
// those of an op with several one after the other.
struct RecipeStep {
    Ref op;
    std::vector<Ref> owned;  // names and values of the attributes
    std::vector<PyObject*> names, values;
    std::vector<std::size_t> inputs;
    std::size_t results = 1;
    bool several = false;              // the result is a tuple, also if there is one in it
    std::vector<std::size_t> done;     // steps whose results nobody needs after this one
    std::weak_ptr<PreparedCall> call;  // the memo owns it: a gradient rule may apply the op it belongs to
    std::uint64_t generation = 0;

    OpCall given(PyObject* const* tensors) const {
        return {op.get(),     tensors,       static_cast<Py_ssize_t>(inputs.size()),
                names.data(), values.data(), static_cast<Py_ssize_t>(names.size())};
    }
};

struct Recipe {
    static constexpr std::size_t kMostSteps = 32, kMostPlaces = 2 * Given::kMost + 48;

    std::size_t given = 0;
    std::vector<Ref> constants;
    std::vector<RecipeStep> steps;

    // The first place of the results of a step.
    std::size_t place_of(std::size_t step) const;
    // The step with the result at a place; none for places in front of all results.
    std::size_t step_of(std::size_t place) const;
};

inline constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

enum class Reading { kDone, kTooLong, kError };

// From tuples of constants and of (op, attributes, places of the inputs, number of results or None for one
// that is no tuple). kError comes with a Python error set.
Reading read_recipe(PyObject* constants, PyObject* steps, std::size_t given, Recipe& recipe);

// Notes which results can be let go and when; those of the steps `wanted` are kept.
void plan_release(Recipe& recipe, const std::vector<std::size_t>& wanted);

// One run of a recipe.
class Replay {
  public:
    explicit Replay(Recipe& recipe) : recipe_(recipe) {}

    // Where what is given has to be put; borrowed, null for what no step takes.
    PyObject** given() { return places_.data(); }

    // False with a Python error set. Observers on the stack are shown every op.
    bool run(PyObject* stack, Watch watch);

    // Borrowed: a place, or what a whole step gave.
    PyObject* at(std::size_t place) const { return places_[place]; }
    PyObject* of_step(std::size_t step) const { return results_[step].get(); }

  private:
    bool run_step(std::size_t number, PyObject* stack, Watch watch);
    bool put(std::size_t number, std::size_t place);

    Recipe& recipe_;
    std::array<PyObject*, Recipe::kMostPlaces> places_{};
    std::array<Ref, Recipe::kMostSteps> results_;
};

}  // namespace mge
