"""Lists, tuples and dicts of modules are to a forward what they are: `isinstance` says so while it is traced."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

import megengine.module as M
from megengine import load, save
from megengine.core.errors import GraphError, ShapeError
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


class Mixed(M.Module):
    """Parts in every kind of container; one list has a gap."""

    def __init__(self):
        super().__init__()
        self.heads = {"b": fc(), "keys": M.ReLU()}
        self.gap = [fc(), None, Net([fc()])]
        self.steps = M.Sequential(fc(), M.ReLU(), Net([fc()]))
        self.named = M.Sequential(OrderedDict(first=fc(), act=M.ReLU()))

    def forward(self, x):
        x = self.heads["keys"](self.heads["b"](x))
        return self.named(self.steps(self.gap[2](self.gap[0](x))))


X = tensor(np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32))


@pytest.fixture(scope="module")
def mixed():
    return trace_module(Mixed(), X)


def test_parts_are_read_as_in_the_module(mixed, tmp_path):
    save(mixed, tmp_path / "a.mgt")
    for model in (mixed, mixed.clone(), load(tmp_path / "a.mgt")):
        assert list(model.heads) == ["b", "keys"]
        assert ("b" in model.heads, "c" in model.heads, len(model.heads)) == (True, False, 2)
        assert type(model.heads["keys"]) is M.ReLU
        assert (
            [type(part) for part in model.steps[:2]] == [type(part) for part in model.steps][:2] == [M.Linear, M.ReLU]
        )
        assert model.steps[-1].origin == model.gap[-1].origin == model.gap[2].origin == "Net"
        assert (len(model.steps), len(model.gap), len(list(model.gap))) == (3, 3, 2)
        assert model.named[0] is model.named["first"] is next(iter(model.named))
        assert model.steps[1] in model.steps
        assert model["steps"] is model.steps
        assert model


def test_a_part_is_exchanged_by_an_edit(mixed):
    model = mixed.clone()
    before = model(X).numpy()
    model.steps[0] = M.Sequential(M.Linear(3, 5), M.Linear(5, 3))
    model.heads["b"] = fc()
    model.graph.lint()
    assert not np.allclose(model(X).numpy(), before)
    assert len(model.steps[0]) == 2
    assert model.graph.undo()
    assert model.graph.undo()
    np.testing.assert_array_equal(model(X).numpy(), before)
    with pytest.raises(ShapeError, match="0 = Linear of Mixed.steps: linear: inp has shape"):
        model.steps[0] = M.Linear(5, 3)
    with pytest.raises(GraphError, match="is read by graph 'Mixed_steps'"):
        del model.steps[0]


def test_nodes_of_modules_take_the_same_indices(mixed):
    model = mixed.clone()
    graph = model.graph
    with graph.insert_exprs():
        own, node = graph.inputs[0], graph.outputs[0]
        for part in own.steps:
            node = part(node)
        node = own.steps[-1](own.heads["b"](own.named[0](node)))
        assert (len(own.steps), list(own.heads), len(own.steps[1:])) == (3, ["b", "keys"], 2)
        graph.reset_outputs(node)
    graph.lint()
    want = model.steps[-1](model.heads["b"](model.named[0](model.steps[2](model.steps[1](model.steps[0](mixed(X)))))))
    np.testing.assert_allclose(model(X).numpy(), want.numpy(), rtol=1e-5)


def test_wrong_indices_name_the_parts(mixed):
    for error, text, read in (
        (IndexError, "there is no part 1; the parts are 0, 2", lambda: mixed.gap[1]),
        (IndexError, "there is no part -4; the parts are 0, 1, 2", lambda: mixed.steps[-4]),
        (KeyError, "there is no part 'key'; did you mean 'keys'.*the parts are b, keys", lambda: mixed.heads["key"]),
        (TypeError, "Mixed is no list, dict or Sequential; .* heads, gap, steps, named", lambda: mixed[0]),
        (TypeError, "expected a whole number, a slice or a name", lambda: mixed.steps[1.5]),
        (TypeError, "slices of parts cannot be assigned", lambda: mixed.steps.__setitem__(slice(2), [])),
        (TypeError, "slices of parts cannot be deleted", lambda: mixed.steps.__delitem__(slice(2))),
    ):
        with pytest.raises(error, match=text):
            read()
