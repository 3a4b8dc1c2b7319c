// Recorded sequences of ops, applied again without the Python that applied them first: those of public
// functions and of gradient rules.
#pragma once
#include <Python.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "engine/dispatch.h"

namespace mge {

// One op of a recipe. Its inputs are places: the arguments, then the constants, then the results so far,
// those of an op with several one after the other.
struct RecipeStep {
    Ref op;
    std::vector<Ref> owned;  // names and values of the attributes
    std::vector<PyObject*> names, values;
    std::vector<std::size_t> inputs;
    std::size_t results = 1;
    bool several = false;              // the result is a tuple, even of one
    std::vector<std::size_t> done;     // steps whose results have their last use here
    std::weak_ptr<PreparedCall> call;  // the memo owns it: a gradient rule may apply the op it belongs to
    std::uint64_t generation = 0;

    OpCall given(PyObject* const* tensors) const {
        return {op.get(),     tensors,       static_cast<Py_ssize_t>(inputs.size()),
                names.data(), values.data(), static_cast<Py_ssize_t>(names.size())};
    }
};

inline constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

struct Recipe {
    static constexpr std::size_t kMostSteps = 32, kMostPlaces = 2 * Given::kMost + 48;

    std::size_t given = 0;
    std::vector<Ref> constants;
    std::vector<RecipeStep> steps;
    std::vector<std::size_t> results;  // places of the results of the call; kNowhere for None
    bool single = false;               // the result is one value, no tuple
};

// The state of a recipe that is shared by equal calls.
struct Known {
    enum class State { kSeen, kNever, kRecipe } state = State::kSeen;
    Recipe recipe;

    // Reads the record that megengine.dispatch.notes made of a call with that many arguments; None for a call
    // that cannot be repeated. False with a Python error set.
    bool learn(PyObject* written, std::size_t given);
};

// One run of a recipe.
class Replay {
  public:
    explicit Replay(Recipe& recipe) : recipe_(recipe) {}
    ~Replay() {
        for (std::size_t i = 0; i < ran_; ++i) Py_XDECREF(results_[i]);
    }
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;

    // Places of the arguments; borrowed, null for those that no step takes.
    PyObject** given() { return places_.data(); }

    // The result of the call; null with a Python error set. Observers on the stack receive every op.
    Ref run(PyObject* stack, Watch watch);

  private:
    bool run_steps(PyObject* stack, Watch watch);
    bool run_step(std::size_t number, PyObject* stack, Watch watch);
    bool put(std::size_t number, std::size_t place);

    Recipe& recipe_;
    std::array<PyObject*, Recipe::kMostPlaces> places_;  // each is set before it is read
    std::array<PyObject*, Recipe::kMostSteps> results_;  // of the steps that ran; owned, null once released
    std::size_t ran_ = 0;
};

}  // namespace mge
