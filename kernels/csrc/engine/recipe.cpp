#include "engine/recipe.h"

namespace mge {
namespace {

// Appends a place among the first `places`. False with an error set.
bool read_place(PyObject* number, std::size_t places, std::vector<std::size_t>& all) {
    all.push_back(PyLong_AsSize_t(number));
    if (PyErr_Occurred()) return false;
    if (all.back() < places) return true;
    PyErr_SetString(PyExc_ValueError, "a recipe has no such place");
    return false;
}

bool read_step(PyObject* item, std::size_t places, RecipeStep& step) {
    PyObject *op, *attrs, *inputs, *results;
    if (!PyArg_ParseTuple(item, "OO!O!O", &op, &PyDict_Type, &attrs, &PyTuple_Type, &inputs, &results))
        return false;
    step.op = Ref::borrowed(op);
    step.several = results != Py_None;
    if (step.several) step.results = PyLong_AsSize_t(results);
    if (PyErr_Occurred()) return false;
    Py_ssize_t at = 0;
    for (PyObject *name, *value; PyDict_Next(attrs, &at, &name, &value);) {
        step.owned.push_back(Ref::borrowed(name));
        step.owned.push_back(Ref::borrowed(value));
        step.names.push_back(name);
        step.values.push_back(value);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i)
        if (!read_place(PyTuple_GET_ITEM(inputs, i), places, step.inputs)) return false;
    return true;
}

enum class Reading { kDone, kTooLong, kError };

// `places` becomes the number of places.
Reading read_steps(PyObject* constants, PyObject* steps, std::size_t& places, Recipe& recipe) {
    const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(steps));
    places = recipe.given + static_cast<std::size_t>(PyTuple_GET_SIZE(constants));
    if (count > Recipe::kMostSteps) return Reading::kTooLong;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); ++i)
        recipe.constants.push_back(Ref::borrowed(PyTuple_GET_ITEM(constants, i)));
    for (std::size_t i = 0; i < count; ++i) {
        RecipeStep step;
        if (!read_step(PyTuple_GET_ITEM(steps, static_cast<Py_ssize_t>(i)), places, step))
            return Reading::kError;
        if (step.inputs.size() > Recipe::kMostPlaces || step.results > Recipe::kMostPlaces)
            return Reading::kTooLong;
        places += step.results;
        recipe.steps.push_back(std::move(step));
    }
    return places > Recipe::kMostPlaces ? Reading::kTooLong : Reading::kDone;
}

bool read_results(PyObject* results, std::size_t places, Recipe& recipe) {
    recipe.single = !PyTuple_Check(results);
    if (recipe.single) return read_place(results, places, recipe.results);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
        PyObject* place = PyTuple_GET_ITEM(results, i);
        if (place == Py_None)
            recipe.results.push_back(kNowhere);
        else if (!read_place(place, places, recipe.results))
            return false;
    }
    return true;
}

// Sets for each step the results that it uses last: they can be released then, those of the call never.
void plan_release(Recipe& recipe) {
    std::vector<std::size_t> maker(recipe.given + recipe.constants.size(), kNowhere);  // of each place
    std::vector<std::size_t> last(recipe.steps.size());
    for (std::size_t i = 0; i < recipe.steps.size(); ++i) {
        last[i] = i;
        for (const std::size_t place : recipe.steps[i].inputs)
            if (maker[place] != kNowhere) last[maker[place]] = i;
        maker.insert(maker.end(), recipe.steps[i].results, i);
    }
    for (const std::size_t place : recipe.results)
        if (place != kNowhere && maker[place] != kNowhere) last[maker[place]] = kNowhere;
    for (std::size_t i = 0; i < last.size(); ++i)
        if (last[i] != kNowhere) recipe.steps[last[i]].done.push_back(i);
}

}  // namespace

bool Known::learn(PyObject* written, std::size_t given) {
    Known fresh;
    fresh.state = State::kNever;
    fresh.recipe.given = given;
    if (written != Py_None) {
        PyObject *constants, *steps, *results;
        if (!PyArg_ParseTuple(written, "O!O!O", &PyTuple_Type, &constants, &PyTuple_Type, &steps, &results))
            return false;
        std::size_t places;
        const Reading reading = read_steps(constants, steps, places, fresh.recipe);
        if (reading == Reading::kError) return false;
        if (reading == Reading::kDone) {
            if (!read_results(results, places, fresh.recipe)) return false;
            plan_release(fresh.recipe);
            fresh.state = State::kRecipe;
        }
    }
    if (state == State::kSeen) *this = std::move(fresh);  // another thread may have set it already
    return true;
}

Ref Replay::run(PyObject* stack, Watch watch) {
    if (!run_steps(stack, watch)) return {};
    if (recipe_.single) return Ref::borrowed(places_[recipe_.results[0]]);
    Ref all(PyTuple_New(static_cast<Py_ssize_t>(recipe_.results.size())));
    for (std::size_t i = 0; all && i < recipe_.results.size(); ++i) {
        const std::size_t place = recipe_.results[i];
        PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i),
                         Py_NewRef(place == kNowhere ? Py_None : places_[place]));
    }
    return all;
}

bool Replay::run_steps(PyObject* stack, Watch watch) {
    PyObject** end = places_.data() + recipe_.given;
    for (const Ref& constant : recipe_.constants) *end++ = constant.get();
    std::size_t place = recipe_.given + recipe_.constants.size();
    for (std::size_t i = 0; i < recipe_.steps.size(); ++i) {
        if (!run_step(i, stack, watch) || !put(i, place)) return false;
        place += recipe_.steps[i].results;
        for (const std::size_t done : recipe_.steps[i].done) Py_CLEAR(results_[done]);
    }
    return true;
}

bool Replay::run_step(std::size_t number, PyObject* stack, Watch watch) {
    RecipeStep& step = recipe_.steps[number];
    std::array<PyObject*, Recipe::kMostPlaces> tensors;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) tensors[i] = places_[step.inputs[i]];
    const OpCall op = step.given(tensors.data());
    auto call = step.call.lock();
    if (!call || step.generation != dispatch_generation()) {
        const std::uint64_t generation = dispatch_generation();
        call = prepared(op);
        if (!call) return false;
        step.call = call;
        step.generation = generation;
    }
    Ref out(execute(*call, op.tensors, op.count));
    if (!out || (watch == Watch::kObservers && show(stack, op, call, out.get()) < 0)) return false;
    results_[ran_++] = out.release();
    return true;
}

bool Replay::put(std::size_t number, std::size_t place) {
    PyObject* out = results_[number];
    const RecipeStep& step = recipe_.steps[number];
    if (!step.several) {
        places_[place] = out;
        return true;
    }
    if (!PyTuple_Check(out) || static_cast<std::size_t>(PyTuple_GET_SIZE(out)) != step.results) {
        PyErr_SetString(PyExc_ValueError, "the number of results of an op has changed");
        return false;
    }
    for (std::size_t i = 0; i < step.results; ++i)
        places_[place + i] = PyTuple_GET_ITEM(out, static_cast<Py_ssize_t>(i));
    return true;
}

}  // namespace mge
