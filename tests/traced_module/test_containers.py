"""Lists, tuples and dicts of modules are to a forward what they are: `isinstance` says so while it is traced."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

import megengine.module as M
from megengine.core.errors import GraphError
from megengine.tensor import tensor
from megengine.traced_module import trace_module
from megengine.traced_module.utils import assign_attr


def run(value, x):
    """All modules of a nesting, in order."""
    if isinstance(value, dict):
        for key in value:
            x = run(value[key], x)
        return x
    if isinstance(value, (list, tuple)):
        for one in value:
            x = run(one, x)
        return x
    return value(x)


class Net(M.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return run(self.layers, x)


def fc() -> M.Linear:
    return M.Linear(3, 3)


NESTS = {
    "list": lambda: [fc(), fc()],
    "tuple": lambda: (fc(), fc()),
    "dict": lambda: {"b": fc(), "a": fc()},
    "ordered": lambda: OrderedDict(b=fc(), a=fc()),
    "mixed": lambda: [fc(), {"a": (fc(), [fc()]), "b": fc()}, (fc(),)],
}


@pytest.mark.parametrize("nest", NESTS)
def test_nests_of_modules_are_walked_by_their_classes(nest):
    x = tensor(np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32))
    net = Net(NESTS[nest]())
    traced = trace_module(net, x)
    assert len(traced.graph.get_calls_of(M.Linear)) == len(list(net.parameters())) // 2
    np.testing.assert_array_equal(traced(x).numpy(), net(x).numpy())
    np.testing.assert_array_equal(traced.flatten()(x).numpy(), net(x).numpy())


def test_views_are_of_the_class_of_what_they_show():
    seen = []

    class Asking(M.Module):
        def __init__(self):
            super().__init__()
            self.many, self.pair, self.named = [fc()], (fc(), fc()), OrderedDict(a=fc())

        def forward(self, x):
            kinds = (list, tuple, dict, OrderedDict, Sequence, Mapping)
            seen.append([[isinstance(v, k) for k in kinds] for v in (self.many, self.pair, self.named)])
            seen.append((len(self.many), len([*self.pair, *self.many]), list(self.named), dict(self.named).keys()))
            return self.many[0](x)

    net = Asking()
    x = tensor(np.zeros((1, 3), np.float32))
    trace_module(net, x)
    net(x)
    assert seen[:2] == seen[2:]


@pytest.mark.parametrize(
    ("name", "why"),
    [("head.1", "without dots"), (".", "without dots"), ("1.", "without dots"), ("", "that is not empty")],
)
@pytest.mark.parametrize("value", [fc, lambda: [fc()], lambda: {"a": {"b": fc()}}])
def test_names_with_dots_and_empty_ones_are_refused(name, why, value):
    """Paths would tell other modules by them; MegEngine fails on them too."""
    x = tensor(np.ones((2, 3), np.float32))
    with pytest.raises(GraphError, match=rf"layers.0 has a submodule or tensor called '{name}'; .* {why}.*; give it"):
        trace_module(Net([{name: value()}]), x)
    unused = Net([fc()])
    unused.others = {name: value()}
    np.testing.assert_array_equal(trace_module(unused, x)(x).numpy(), unused(x).numpy())


class Part(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = fc()

    def forward(self, x):
        return self.fc(x)


@pytest.mark.parametrize("part", [fc, Part])
def test_an_empty_name_is_refused_wherever_it_is_given(part):
    """Of a layer and of a module with a graph: by a trace, an insertion, and a path that is assigned to."""
    x = tensor(np.ones((2, 3), np.float32))
    with pytest.raises(GraphError, match="the module has a submodule or tensor called ''; expected a name that is not"):
        trace_module(M.Sequential(OrderedDict([("", part()), ("a", part())])), x)
    traced = trace_module(Part(), x)
    with pytest.raises(GraphError, match="assign_attr: 'fc.' ends in an empty name"):
        assign_attr(part(), traced, "fc.")
    setattr(traced, "", part())
    node = traced.graph.inputs[0]
    with traced.graph.insert_exprs(), pytest.raises(GraphError, match="Part has a submodule or tensor called ''"):
        getattr(node, "")
