#include "engine/gradient_rule.h"

#include <algorithm>

#include "engine/tensor_type.h"

namespace mge {

TapeParts tape_parts{};

namespace {

using Cotangents = std::vector<Ref>;

std::string present(const Cotangents& cotangents) {
    std::string mask(cotangents.size(), '\0');
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = cotangents[i] ? 1 : 0;
    return mask;
}

// 1 if every cotangent has the spec of its value, 0 if not, -1 with an error set.
int specs_fit(const PreparedCall& call, const Cotangents& cotangents) {
    for (std::size_t i = 0; i < cotangents.size(); ++i) {
        if (!cotangents[i]) continue;
        PyObject* spec = spec_of(cotangents[i].get());
        if (!spec) return -1;
        const int same = spec == call.outputs[i].spec.get()
                             ? 1
                             : PyObject_RichCompareBool(spec, call.outputs[i].spec.get(), Py_EQ);
        if (same != 1) return same;
    }
    return 1;
}

bool deferred(const Ref& tensors) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors.get()); ++i)
        if (!known(fields(PyTuple_GET_ITEM(tensors.get(), i))->value)) return true;
    return false;
}

Ref as_tuple(const Cotangents& cotangents) {
    Ref all(PyTuple_New(static_cast<Py_ssize_t>(cotangents.size())));
    for (std::size_t i = 0; all && i < cotangents.size(); ++i)
        PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i),
                         Py_NewRef(cotangents[i] ? cotangents[i].get() : Py_None));
    return all;
}

Ref needs_of(const TapeEntry& entry) {
    Ref needs(PyTuple_New(static_cast<Py_ssize_t>(entry.needs.size())));
    for (std::size_t i = 0; needs && i < entry.needs.size(); ++i)
        PyTuple_SET_ITEM(needs.get(), static_cast<Py_ssize_t>(i), PyBool_FromLong(entry.needs[i]));
    return needs;
}

// ---------------------------------------------------------------- in Python

Ref call_python(PyObject* function, const TapeEntry& entry, const Cotangents& cotangents) {
    const Ref needs = needs_of(entry), cts = as_tuple(cotangents);
    if (!needs || !cts) return {};
    PyObject* args[] = {
        entry.context ? entry.context.get() : entry.call->op.get(), entry.inputs.get(), entry.outputs.get(),
        entry.context ? Py_None : entry.call->attrs.get(),          needs.get(),        cts.get()};
    return Ref(PyObject_Vectorcall(function, args, 6, nullptr));
}

Ref in_python(const TapeEntry& entry, const Cotangents& cotangents) {
    Ref grads = call_python(tape_parts.pull_back, entry, cotangents);
    if (!grads) return {};
    grads = Ref(PySequence_Tuple(grads.get()));
    const auto wanted = static_cast<Py_ssize_t>(entry.needs.size());
    if (grads && PyTuple_GET_SIZE(grads.get()) != wanted) {
        PyErr_Format(PyExc_ValueError, "the number of gradients of a rule is %zd; expected %zd",
                     PyTuple_GET_SIZE(grads.get()), wanted);
        return {};
    }
    for (Py_ssize_t i = 0; grads && i < wanted; ++i) {
        PyObject* grad = PyTuple_GET_ITEM(grads.get(), i);
        if (grad != Py_None && !is_tensor(grad)) {
            PyErr_Format(PyExc_TypeError, "a gradient rule returned %s; expected a tensor or None",
                         Py_TYPE(grad)->tp_name);
            return {};
        }
    }
    return grads;
}

// ---------------------------------------------------------------- recording

bool learn(const TapeEntry& entry, const Cotangents& cotangents, Known& known) {
    const Ref written = call_python(tape_parts.learn, entry, cotangents);
    if (!written || !known.learn(written.get(), entry.needs.size() + 2 * cotangents.size())) return false;
    if (known.state == Known::State::kRecipe && known.recipe.results.size() != entry.needs.size())
        known.state = Known::State::kNever;
    return true;
}

// The recipe of the rule; null at its first call, since recording takes longer than a call.
std::shared_ptr<GradientRule> rule_of(const TapeEntry& entry, const Cotangents& cotangents) {
    const std::string given = present(cotangents);
    auto& rules = entry.call->rules;
    const auto found = std::find_if(rules.begin(), rules.end(), [&](const auto& rule) {
        return rule->given == given && rule->needs == entry.needs;
    });
    if (found != rules.end()) return *found;
    auto fresh = std::make_shared<GradientRule>();
    fresh->needs = entry.needs;
    fresh->given = given;
    rules.push_back(std::move(fresh));
    return nullptr;
}

// ---------------------------------------------------------------- replaying

Ref replay(Known& known, const TapeEntry& entry, const Cotangents& cotangents, PyObject* stack, Watch watch) {
    Replay run(known.recipe);
    PyObject** given = run.given();
    for (const Ref* tensors : {&entry.inputs, &entry.outputs})
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors->get()); ++i)
            *given++ = PyTuple_GET_ITEM(tensors->get(), i);
    for (const Ref& ct : cotangents) *given++ = ct.get();
    return run.run(stack, watch);
}

}  // namespace

Ref pull_back(const TapeEntry& entry, const Cotangents& cotangents) {
    if (!entry.call || deferred(entry.inputs) || deferred(entry.outputs)) return in_python(entry, cotangents);
    const int listened = watched();
    const int fit = listened < 0 ? -1 : specs_fit(*entry.call, cotangents);
    if (fit < 0) return {};
    Watch watch;
    const Ref stack = interposers(&watch);
    if (!stack) return {};
    if (listened || !fit || watch == Watch::kOthers) return in_python(entry, cotangents);
    const std::shared_ptr<GradientRule> rule = rule_of(entry, cotangents);
    if (rule && rule->known.state == Known::State::kSeen && !learn(entry, cotangents, rule->known)) return {};
    if (rule && rule->known.state == Known::State::kRecipe) {
        if (Ref grads = replay(rule->known, entry, cotangents, stack.get(), watch)) return grads;
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return {};  // an interrupt
        PyErr_Clear();                                            // Python raises it with its own words
    }
    return in_python(entry, cotangents);
}

}  // namespace mge
