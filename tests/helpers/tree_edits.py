"""Edits of random networks; each says what the network is to compute then.

An edit is a function of an `Editor`: it makes the edit, and returns the results that are to be expected, which a
`Meaning` on the graph before it gives.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from graph_meaning import Meaning, leaves, outputs
from random_trees import Kept, Own, halves, tree, turned, values

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.traced_module as tm
from megengine import Tensor
from megengine.core.pytree import flatten
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.passes import registered_passes


class ImpossibleError(Exception):
    """The edit cannot be made on this network."""


def items(x):
    y = x + 0
    y[:, 1:3] = y[:, :2] * 0.5
    y[0] = 0.25
    return y


def two(x):
    found = halves(x)
    return found["low"] - found["high"]


FUNCTIONS: list[Callable[[Any], Any]] = [  # of nodes, and of tensors
    F.relu,
    lambda x: 1 - x * 0.5,
    lambda x: F.clip(x, -0.5, 0.5),
    lambda x: x.reshape(x.shape[0], -1).reshape(x.shape),
    lambda x: F.concat(F.split(x, 2, axis=1)[::-1], axis=1),
    lambda x: x[:, ::-1] + F.ones((3,)),
    lambda x: x + mge.tensor(np.array([0.5, 0.25, 0.0], np.float32)),
    lambda x: F.stack([x[0], x[1] * 2]),
    lambda x: x - F.mean(x, axis=-1, keepdims=True),
    lambda x: turned(x, scale=0.25),
    lambda x: turned(x, x),
    items,
    two,
]
PAIRS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: F.where(a > b, a, b * 0.5),
    lambda a, b: F.concat([a[:, :1], b[:, 1:]], axis=1),
    turned,
]


LAYERS: list[Callable[[], Any]] = [
    lambda: M.Linear(3, 3),
    lambda: Kept(0.6),
    lambda: Own(0.4),
    lambda: M.Sequential(M.Linear(3, 3), M.ReLU()),
    lambda: M.Conv1d(4, 4, 1),
]


class Editor:
    """A traced random network, the arguments of its call, and the values that it is to give."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.net = tree(seed)
        self.args, self.kwargs = self.net.arguments()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = tm.trace_module(self.net, *self.args, **self.kwargs)
        self.start = self.model.clone()
        self.tensors = self.of_call(self.args, self.kwargs)
        self.want = leaves(self.net(*self.args, **self.kwargs))
        self.count = 0

    @staticmethod
    def of_call(args: Any, kwargs: Any) -> list[Tensor]:
        words = {name: kwargs[name] for name in ("y", "scale") if name in kwargs}
        return [leaf for leaf in flatten((args, words))[0] if isinstance(leaf, Tensor)]

    def state(self) -> tuple[Any, ...]:
        return self.args, self.kwargs, self.tensors, self.want

    def take(self, state: tuple[Any, ...]) -> None:
        self.args, self.kwargs, self.tensors, self.want = state

    def name(self) -> str:
        self.count += 1
        return f"made_{self.count}"

    def graphs(self) -> list[Any]:
        found = {id(self.model.graph): self.model.graph}
        for expr in self.model.graph.exprs():
            found.setdefault(id(expr.top_graph), expr.top_graph)
        return list(found.values())

    def graph(self) -> Any:
        return self.rng.choice(self.graphs())

    def nodes(self, graph: Any) -> list[Any]:
        return [
            n
            for n in graph.nodes(recursive=False)
            if isinstance(n, TensorNode)
            and n.spec.shape == (2, 4, 3)
            and n.dtype == np.float32
            and graph.assignments.latest(n) is n  # else it stands for what was assigned to it
        ]

    def node(self, graph: Any | None = None) -> Any:
        found = self.nodes(graph or self.graph())
        if not found:
            raise ImpossibleError
        return self.rng.choice(found)

    def run(self, model: Any = None) -> list[Any]:
        return leaves((model or self.model)(*self.args, **self.kwargs))

    def mean(self, meaning: Meaning | None = None) -> list[Any]:
        """What the model as it stands gives with such a change."""
        return outputs(self.model.graph, self.tensors, meaning)


def key(node: Any) -> tuple[int, str]:
    return id(node.top_graph), node.name


def check_used(node: Any) -> None:
    if not node.users and not any(node is n for n in node.top_graph.outputs):
        raise ImpossibleError


# ---------------------------------------------------------------- edits: each returns the values to expect


def insert(e):
    node, function = e.node(), e.rng.choice(FUNCTIONS)
    want = e.mean(Meaning(values={key(node): lambda v, _: function(v)}))
    graph = node.top_graph
    with graph.insert_exprs():
        graph.replace_node({node: function(node)})
    return want


def insert_of_two(e):
    graph = e.graph()
    found = e.nodes(graph)
    if len(found) < 2:
        raise ImpossibleError
    i, j = sorted(e.rng.sample(range(len(found)), 2))
    first, second = found[i], found[j]
    if first.expr is second.expr:
        raise ImpossibleError
    function, name = e.rng.choice(PAIRS), first.name
    want = e.mean(Meaning(values={key(second): lambda v, other: function(v, other(name))}))
    with graph.insert_exprs():
        graph.replace_node({second: function(second, first)})
    return want


def insert_layer(e):
    node, name = e.node(), e.rng.choice([e.name(), "layer", "inner", "F", "weight"])
    layer = e.rng.choice(LAYERS)()
    layer.eval()
    want = e.mean(Meaning(values={key(node): lambda v, _: layer(layer(v))}))
    graph = node.top_graph
    with graph.insert_exprs():
        setattr(graph.inputs[0], name, layer)
        part = getattr(graph.inputs[0], name)
        graph.replace_node({node: part(part(node))})
    return want


def insert_without_a_name(e):
    node, layer = e.node(), e.rng.choice([M.Tanh(), M.Linear(3, 3), Own(0.9)])
    want = e.mean(Meaning(values={key(node): lambda v, _: layer(v)}))
    with node.top_graph.inserting_after(node):
        node.replace_all_uses_with(layer(node))
    return want


def insert_tree(e):
    node, other, name = e.node(), tree(e.rng.randrange(10**6)).body, e.name()
    want = e.mean(Meaning(values={key(node): lambda v, _: other(v, v * 2) + other(v)}))
    graph = node.top_graph
    with warnings.catch_warnings(), graph.insert_exprs():
        warnings.simplefilter("ignore")
        setattr(graph.inputs[0], name, other)
        part = getattr(graph.inputs[0], name)
        graph.replace_node({node: part(node, node * 2) + part(node)})
    return want


def insert_at_a_place(e):
    """Users behind the place get the new value, those in front of it the old one."""
    node, function = e.node(), e.rng.choice(FUNCTIONS[:-2])
    graph = node.top_graph
    later = [x for x in graph.exprs(recursive=False) if x.position >= node.expr.position and x.kind != "Input"]
    if not later:
        raise ImpossibleError
    place, before = e.rng.choice(later), e.rng.random() < 0.4
    if before and place is node.expr:
        raise ImpossibleError
    position = place.position - before * 0.5
    if not any(u.position > position for u in node.users) and not any(node is n for n in graph.outputs):
        raise ImpossibleError
    want = e.mean(Meaning(values={key(node): lambda v, _: function(v)}, behind={key(node): position}))
    with graph.inserting_before(place) if before else graph.insert_exprs(place):
        made = function(node)
    graph.replace_node({node: made})
    return want


def replace(e):
    graph = e.graph()
    found = e.nodes(graph)
    new, old = e.rng.choice(found), e.rng.choice(found)
    check_used(old)
    name = new.name
    early = new.expr.position <= old.expr.position
    if new is old or (early and new.expr is old.expr):
        raise ImpossibleError
    if early:
        want = e.mean(Meaning(values={key(old): lambda v, other: other(name)}))
    else:
        want = e.mean(
            Meaning(values={key(old): lambda v, other: lambda: other(name)}, behind={key(old): new.expr.position})
        )
    graph.replace_node({old: new})
    return want


def rename(e):
    graph = e.graph()
    node = e.rng.choice([n for n in graph.nodes(recursive=False)])
    if graph is e.model.graph and node.expr.kind == "Input":
        raise ImpossibleError  # then the keyword of a call is another one
    want = e.mean()
    graph.rename(node, e.rng.choice([e.name(), "relu_out", "F", "forward", "self_1", "x"]))
    return want


def unused(e):
    node = e.node()
    want = e.mean()
    with node.top_graph.insert_exprs():
        e.rng.choice(FUNCTIONS)(node)
    return want


def compile_(e):
    want = e.mean()
    e.graph().compile()
    return want


def erase(e):
    graph = e.graph()
    returned = {id(n) for n in graph.outputs}
    unused = [x for x in graph.exprs(recursive=False) if not any(n.users or id(n) in returned for n in x.outputs)]
    found = [x for x in unused if x.kind != "Input"]
    want = e.mean()
    if not found:
        with graph.insert_exprs():
            found.append(F.relu(e.node(graph)).expr)
    graph.erase(e.rng.choice(found))
    return want


def first_value(e, node):
    meaning = Meaning()
    want = e.mean(meaning)
    if key(node) not in meaning.seen:
        raise ImpossibleError
    return want, meaning.seen[key(node)][0].numpy()


def add_output(e):
    node = e.node()
    want, value = first_value(e, node)
    e.model.graph.add_output_node(node)
    return [*want, value]


def reset_outputs(e):
    found, graph = [e.node() for _ in range(3)], e.model.graph
    meaning = Meaning()
    e.mean(meaning)
    if any(key(node) not in meaning.seen for node in found):
        raise ImpossibleError
    a, b, c = (meaning.seen[key(node)][0] for node in found)
    graph.reset_outputs({"k": found[0], "j": [found[1], (found[2], found[0])]})
    return leaves({"k": a, "j": [b, (c, a)]})


def add_input(e):
    node, new = e.node(e.model.graph), mge.tensor(values(e.rng.randrange(99)))
    if e.kwargs:
        raise ImpossibleError  # the new one stands behind the positional ones
    want = e.mean(Meaning(values={key(node): lambda v, _: v * new}))
    graph = e.model.graph
    with graph.transaction("an input"):
        made = graph.add_input_node((2, 4, 3), "float32", e.name())
        with graph.insert_exprs():
            graph.replace_node({node: node * made})
    e.args = (*e.args, new)
    e.tensors = [*e.tensors, new]
    return want


def reset_inputs(e):
    graph = e.model.graph
    former = graph.inputs[1:]
    if any(n.spec.shape != (2, 4, 3) for n in former):
        raise ImpossibleError
    new = mge.tensor(values(e.rng.randrange(99)))
    want = outputs(graph, [new * (i + 1) for i in range(len(former))])
    with graph.transaction("other inputs"):
        (made,) = graph.reset_inputs(new)
        with graph.insert_exprs():
            graph.replace_node({node: made * (i + 1) for i, node in enumerate(former)})
    e.args, e.kwargs, e.tensors = (new,), {}, [new]
    return want


def other_constant(e):
    """Another number beside an operator."""
    calls = [
        x
        for x in e.model.graph.exprs()
        if x.kind == "CallMethod" and x.method in ("__mul__", "__add__") and isinstance(x.args[1], float)
    ]
    if not calls:
        raise ImpossibleError
    call = e.rng.choice(calls)
    place = (id(call.top_graph), call.id)
    want = e.mean(Meaning(arguments={place: lambda given: ((given[0][0], 0.3), {})}))
    call.set_arg(e.rng.choice([0, "value", "other", 0]), 0.3)
    return want


def other_layer(e):
    graph = e.graph()
    found = [
        n
        for n in graph.nodes(recursive=False)
        if isinstance(n, ModuleNode)
        and n.expr.kind == "GetAttr"
        and n.users
        and all(u.kind == "CallMethod" and [m.spec.shape for m in u.inputs[1:]] == [(2, 4, 3)] for u in n.users)
        and all(u.out_def is None or len(u.outputs) == 1 for u in n.users)
    ]
    found = [n for n in found if all(u.outputs[0] is u.return_val and not u.const_val for u in n.users)]
    if not found:
        raise ImpossibleError
    node = e.rng.choice(found)
    layer = e.rng.choice([M.Linear(3, 3), M.Identity(), Own(0.2), Kept(0.1), M.Sequential(M.Linear(3, 3), M.Tanh())])
    want = other_module_meaning(e, node, layer)
    graph.replace_module(node, layer)
    return want


def other_module_meaning(e, node, layer):
    """All graphs of the module that read this attribute have the other one then."""
    wanted = _reads(node.top_graph.owner, node.expr.name)
    reads = [n for g in e.graphs() for n in g.nodes(recursive=False) if n.expr.kind == "GetAttr"]
    calls = {key(n): layer for n in reads if _reads(n.top_graph.owner, n.expr.name) == wanted}
    return e.mean(Meaning(calls=calls))


def _reads(owner, path):
    """The module whose attribute is read at the end of a path, and that attribute."""
    at, rest = owner, path
    while True:
        head, _, tail = rest.partition(".")
        value = object.__getattribute__(at, "__dict__").get(head)
        if not tail or not isinstance(value, tm.TracedModule):
            return id(at), rest
        at, rest = value, tail


def flatten_a_part(e):
    found = [
        n
        for n in e.graph().nodes(recursive=False)
        if isinstance(n, ModuleNode)
        and n.expr.kind == "GetAttr"
        and isinstance(n.owner, tm.TracedModule)
        and len(n.owner.graphs) == 1
    ]
    if not found:
        raise ImpossibleError
    node = e.rng.choice(found)
    want = e.mean()
    node.top_graph.replace_module(node, node.owner.flatten())
    return want


def inner_value(e):
    node, function = e.node(), e.rng.choice(FUNCTIONS[:4])
    want, _ = first_value(e, node)
    graph = e.model.graph
    made = graph.value_of(node)
    with graph.insert_exprs():
        function(made)
    return want


def optimized(e):
    want = e.mean()
    with e.model.graph.transaction("passes"):
        for one in e.rng.sample(PASSES, 2):
            one.run(e.model.graph)
    return want


PASSES = registered_passes()
EDITS = [
    *(insert, insert, insert_of_two, insert_layer, insert_without_a_name, insert_tree, insert_at_a_place, replace),
    *(rename, unused, compile_, erase, add_output, reset_outputs, add_input, reset_inputs, other_constant, other_layer),
    *(flatten_a_part, inner_value, optimized),
]
