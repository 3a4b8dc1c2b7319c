#include "engine/recipe.h"

#include <algorithm>

namespace mge {
namespace {

bool read_inputs(PyObject* inputs, std::size_t places, RecipeStep& step) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
        const std::size_t place = PyLong_AsSize_t(PyTuple_GET_ITEM(inputs, i));
        if (PyErr_Occurred()) return false;
        if (place >= places) {
            PyErr_SetString(PyExc_ValueError, "a recipe refers to a place that it does not have");
            return false;
        }
        step.inputs.push_back(place);
    }
    return true;
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
    return read_inputs(inputs, places, step);
}

}  // namespace

std::size_t Recipe::place_of(std::size_t step) const {
    std::size_t place = given + constants.size();
    for (std::size_t i = 0; i < step; ++i) place += steps[i].results;
    return place;
}

std::size_t Recipe::step_of(std::size_t place) const {
    std::size_t end = given + constants.size();
    if (place < end) return kNowhere;
    for (std::size_t i = 0; i < steps.size(); ++i)
        if (place < (end += steps[i].results)) return i;
    return kNowhere;
}

Reading read_recipe(PyObject* constants, PyObject* steps, std::size_t given, Recipe& recipe) {
    const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(steps));
    std::size_t places = given + static_cast<std::size_t>(PyTuple_GET_SIZE(constants));
    if (count > Recipe::kMostSteps) return Reading::kTooLong;
    recipe.given = given;
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

void plan_release(Recipe& recipe, const std::vector<std::size_t>& wanted) {
    std::vector<std::size_t> last(recipe.steps.size());
    for (std::size_t i = 0; i < recipe.steps.size(); ++i) {
        last[i] = i;
        for (const std::size_t place : recipe.steps[i].inputs)
            if (const std::size_t from = recipe.step_of(place); from != kNowhere) last[from] = i;
    }
    for (std::size_t i = 0; i < last.size(); ++i)
        if (std::find(wanted.begin(), wanted.end(), i) == wanted.end())
            recipe.steps[last[i]].done.push_back(i);
}

bool Replay::run(PyObject* stack, Watch watch) {
    PyObject** end = places_.data() + recipe_.given;
    for (const Ref& constant : recipe_.constants) *end++ = constant.get();
    std::size_t place = recipe_.given + recipe_.constants.size();
    for (std::size_t i = 0; i < recipe_.steps.size(); ++i) {
        if (!run_step(i, stack, watch) || !put(i, place)) return false;
        place += recipe_.steps[i].results;
        for (const std::size_t done : recipe_.steps[i].done) results_[done] = Ref();
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
    results_[number] = std::move(out);
    return true;
}

bool Replay::put(std::size_t number, std::size_t place) {
    PyObject* out = results_[number].get();
    const RecipeStep& step = recipe_.steps[number];
    if (!step.several) {
        places_[place] = out;
        return true;
    }
    if (!PyTuple_Check(out) || static_cast<std::size_t>(PyTuple_GET_SIZE(out)) != step.results) {
        PyErr_SetString(PyExc_ValueError, "an op gave another number of results than before");
        return false;
    }
    for (std::size_t i = 0; i < step.results; ++i)
        places_[place + i] = PyTuple_GET_ITEM(out, static_cast<Py_ssize_t>(i));
    return true;
}

}  // namespace mge
