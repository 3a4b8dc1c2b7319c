"""Record what the real MegEngine gives to calls that programs rely on, though another engine might refuse them:
`python habits.py OUT.json`, with megengine 1.13.0 installed.

Each habit takes the engine and returns tensors, arrays, numbers or strings, nested.
"""

import itertools
import json
import sys
from contextlib import ExitStack

import numpy as np
from idioms import plain, values

HABITS = {}


def habit(function):
    """Keep a function under its name."""
    HABITS[function.__name__] = function
    return function


@habit
def an_embedding_of_given_rows(mge):
    rows = mge.tensor(values(4, 3))
    layers = mge.module.Embedding(4, 3, initial_weight=rows), mge.module.Embedding.from_pretrained(rows)
    return [[layer(mge.tensor([1, 3])), type(layer.weight).__name__, sorted(layer.state_dict())] for layer in layers]


@habit
def a_tensor_without_axes_takes_any_value(mge):
    found = []
    for old in (1.0, 1):
        for new in (mge.tensor([1.5, 2.0]), mge.tensor([[3, 4]]), mge.tensor(2.5), np.array([1.5, 2.0]), [5, 6], 2.5):
            x = mge.tensor(old)
            x[...] = new
            found.append(x)
    parameter = mge.Parameter(1.0)
    parameter[...] = mge.tensor([1.0, 2.0])
    return [*found, parameter, type(parameter).__name__]


@habit
def a_sum_takes_the_value_of_another_tensor(mge):
    x, y = mge.tensor(1.0), mge.tensor([1.0, 2.0])
    manager = mge.autodiff.GradManager().attach([x, y])
    with manager:
        z = x * 2
        z[...] = y
        manager.backward((z * z).sum())
    return x.grad is None, y.grad


@habit
def batch_norm_of_nothing(mge):
    M, found = mge.module, []
    for kind, shape in (("1d", (0, 3)), ("1d", (0, 3, 4)), ("2d", (0, 3, 4, 4)), ("2d", (2, 3, 0, 4))):
        for training in (True, False):
            layer = getattr(M, "BatchNorm" + kind)(3)
            layer.train(training)
            y = layer(mge.tensor(np.ones(shape, np.float32)))
            found.append([list(map(int, y.shape)), layer.running_mean, layer.running_var])
    empty = mge.tensor(np.ones((0, 3, 2, 2), np.float32))
    return found, mge.functional.batch_norm(empty, training=True)


@habit
def statistics_that_are_not_tracked_any_more(mge):
    found, x = [], mge.tensor(values(2, 3, 4, 4) * 3 + 1)
    for settings in ({}, {"freeze": True}, {"affine": False}):
        for freeze in (True, False):
            layer = mge.module.BatchNorm2d(3, **settings)
            layer.track_running_stats, layer.freeze = False, freeze
            found += [layer(x), layer.running_mean, layer.running_var]
    layer = mge.module.BatchNorm2d(3)
    layer.track_running_stats = False
    layer(x)
    layer.track_running_stats = True
    layer(x)
    return [*found, layer.running_mean]


@habit
def gradients_of_gradients(mge):
    """Which manager sees the backward of which: nested and joined, all orders."""
    found = []
    for shape in ("a,b", "a|b", "b|a", "a,b,c", "a|b|c", "a,b|c", "a|b,c"):
        names = sorted(set(shape) & set("abc"))
        for order, again in itertools.product(itertools.permutations(names), (True, False)):
            found.append([shape, "".join(order), again, _backwards(mge, shape, order, again)])
    return found


def _backwards(mge, shape, order, again):
    """Gradients of x**4 by each manager in turn; with `again`, of what the one before found."""
    x = mge.Parameter([2.0])
    managers = {name: mge.autodiff.GradManager().attach(x) for name in "abc"}
    found, y = [], None
    with ExitStack() as recording:
        for part in shape.split(","):
            first, *others = (managers[name] for name in part.split("|"))
            for other in others:
                first = first | other
            recording.enter_context(first)
        y = x * x * x * x
        for name in order:
            managers[name].backward(y)
            found.append(x.grad)
            y = x.grad if again and x.grad is not None else y
            x.grad = None
    return found


@habit
def managers_that_record_one_after_another(mge):
    x, found = mge.Parameter([2.0]), []
    for released, order in itertools.product((False, True), ("ab", "ba", "bc", "cb")):
        managers = {name: mge.autodiff.GradManager().attach(x) for name in "abc"}
        for name in "abc":
            managers[name].record()
        if released:
            managers["a"].release()
            managers["a"].record()
        y = x * x * x * x
        for name in order:
            managers[name].backward(y)
            found.append(x.grad)
            y, x.grad = y if x.grad is None else x.grad, None
        for manager in managers.values():
            manager.release()
    return found


@habit
def callbacks_are_seen_as_the_gradient_is(mge):
    found = []
    for shape in ("a,b", "b,a", "a|b"):
        x, w = mge.Parameter([2.0]), mge.Parameter([3.0])
        a = mge.autodiff.GradManager().attach(x, callbacks=lambda t, grad, w=w: grad * w)
        b = mge.autodiff.GradManager().attach([x, w])
        with ExitStack() as recording:
            for one in {"a,b": (a, b), "b,a": (b, a), "a|b": (a | b,)}[shape]:
                recording.enter_context(one)
            a.backward(x * x * x)
            first, x.grad = x.grad, None
            b.backward(first)
        found.append([first, x.grad, w.grad])
    return found


@habit
def gradients_are_set_when_all_callbacks_ran(mge):
    x, y, found = mge.Parameter([2.0]), mge.Parameter([3.0]), []
    manager = mge.autodiff.GradManager()
    manager.attach([x, y], callbacks=lambda t, grad: found.append([x.grad is None, y.grad is None]))
    with manager:
        manager.backward(x * y)
    return found


def main():
    """Ask the engine that is installed."""
    import megengine
    import megengine.autodiff
    import megengine.functional
    import megengine.module

    megengine.config.async_level = 0
    answers = {name: plain(function(megengine)) for name, function in HABITS.items()}
    with open(sys.argv[1], "w") as file:
        json.dump(answers, file, indent=0)


if __name__ == "__main__":
    main()
