"""Random edits of models and of graphs of ops: lint stays clean, and undo and redo go to the byte."""

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import MegEngineError
from megengine.tensor import tensor
from megengine.traced_module import TracedModule, interpret, lower, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.extracting import extract
from megengine.traced_module.editing.parts import set_attribute
from megengine.traced_module.editing.rewiring import replace_all_uses, set_attrs, set_input
from megengine.traced_module.formats import native as files
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.ir.queries import graphs_of
from megengine.traced_module.passes import optimize, registered_passes, run_passes
from megengine.traced_module.passes.rewriting import Rule, rewrite
from megengine.traced_module.patterns import any_, call

X = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)


class Block(M.Module):
    def __init__(self, n):
        super().__init__()
        self.conv, self.norm, self.same = M.Conv2d(n, n, 3, padding=1), M.BatchNorm2d(n), M.Identity()
        self.gain = M.Sequential(M.Conv2d(n, n, 1), M.ReLU())

    def forward(self, x, twice=False):
        y = F.relu(self.same(self.norm(self.conv(x)))) * 2 * 3
        return self.gain(y) + x * (2 if twice else 1)


class Net(M.Module):
    """Nested and shared modules, one with two graphs; shapes, several results, dicts."""

    def __init__(self):
        super().__init__()
        self.stem, self.blocks = M.Conv2d(3, 4, 1), [Block(4), Block(4)]
        self.drop, self.fc = M.Dropout(0.5), M.Linear(4, 5)

    def forward(self, x, scale=2.0):
        x = self.stem(x) * scale
        for block in self.blocks:
            x = block(block(x), twice=True)
        low, high = F.split(x, 2, axis=1)
        x = F.avg_pool2d(F.concat([high, low], axis=1), 6)
        y = self.fc(self.drop(x.reshape(x.shape[0], -1)))
        return {"y": y, "parts": [low, F.softmax(y, axis=1)]}


MODEL = trace_module(Net().eval(), tensor(X))
HEAD = trace_module(Block(4).eval(), tensor(np.zeros((2, 4, 6, 6), np.float32)))
OPS = lower(MODEL)


def content(m: TracedModule) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        files.save(m, Path(folder) / "net.mgt")
        return (Path(folder) / "net.mgt").read_bytes()


class Editor:
    """One random edit after the other."""

    def __init__(self, module: TracedModule, seed: int) -> None:
        self.module, self.rng, self.count = module, random.Random(seed), 0

    def graph(self):
        return self.rng.choice([g for g in graphs_of(self.module) if g._top is self.module.graphs[0]._top])

    def node(self, graph, kind=TensorNode):
        return self.rng.choice([n for n in graph.nodes(recursive=False) if isinstance(n, kind)])

    def name(self) -> str:
        self.count += 1
        return f"made_{self.count}"

    def like(self, graph, node):
        """A node with the spec of another one, which may stand anywhere."""
        found = [n for n in graph.nodes(recursive=False) if isinstance(n, TensorNode) and n.spec == node.spec]
        return self.rng.choice(found)


def rename(e):
    graph = e.graph()
    graph.rename(e.node(graph), e.rng.choice([e.name(), "relu_out", "x", "1a"]))


def insert_function(e):
    graph = e.graph()
    node = e.node(graph)
    with graph.insert_exprs():
        graph.replace_node({node: F.relu(node) + e.rng.choice([0.5, 1, node])})


def insert_unused(e):
    graph = e.graph()
    with graph.insert_exprs():
        F.exp(e.node(graph))


def insert_at_a_place(e):
    graph = e.graph()
    place = e.rng.choice(list(graph.exprs(recursive=False)))
    with graph.insert_exprs(place):
        a = e.node(graph)
        made = F.concat([a, e.like(graph, a)], axis=0)[: a.spec.shape[0]]
    graph.replace_node({a: made})


def insert_shapes(e):
    graph = e.graph()
    node = e.node(graph)
    with graph.insert_exprs():
        graph.replace_node({node: node.reshape(node.shape[0], -1).reshape(node.shape)})


def insert_assignment(e):
    graph = e.graph()
    node = e.node(graph)
    with graph.insert_exprs():
        made = node + 0
        made[0] = made[0] * 2
        graph.replace_node({node: made})


def replace(e):
    graph = e.graph()
    node = e.node(graph)
    graph.replace_node({node: e.rng.choice([e.like(graph, node), e.node(graph)])})


def compile_(e):
    e.graph().compile()


def erase(e):
    graph = e.graph()
    graph.erase(e.node(graph).expr)


def other_input(e):
    graph = e.graph()
    expr = e.node(graph).expr
    index = e.rng.randrange(len(expr.inputs) or 1)
    set_input(graph, expr, index, e.like(graph, expr.inputs[index]) if expr.inputs else e.node(graph))


def other_argument(e):
    calls = [x for x in e.graph().exprs(recursive=False) if x.kind in ("CallMethod", "CallFunction")]
    expr = e.rng.choice(calls)
    name = e.rng.choice(list(expr.named_args))
    expr.set_arg(name, e.rng.choice([1, 2.0, -1, None, (1, 1), expr.inputs[-1]]))


def other_inputs(e):
    graph = e.graph()
    expr = e.node(graph).expr
    old = e.rng.choice(expr.inputs) if expr.inputs else e.node(graph)
    expr.replace_inputs({old: e.like(graph, old) if isinstance(old, TensorNode) else old})


def new_layer(e):
    graph = e.graph()
    node, name = e.node(graph), e.name()
    with graph.transaction("new layer"), graph.insert_exprs():
        channels = node.spec.shape[1]
        setattr(graph.inputs[0], name, M.Conv2d(channels, e.rng.choice([channels, channels + 1]), 1))
        graph.replace_node({node: getattr(graph.inputs[0], name)(node)})


def other_layer(e):
    graph = e.graph()
    node = e.node(graph, ModuleNode)
    graph.replace_module(node, e.rng.choice([M.Conv2d(4, 4, 1), M.Identity(), M.Linear(4, 5), M.Conv2d(3, 4, 1)]))


class Gate(M.Module):
    """Not traced: it is where it is called."""

    def __init__(self, n):
        super().__init__()
        self.layers = [M.Sequential(M.Conv2d(n, n, 1), M.Sigmoid()), M.Conv2d(n, n, 1)]

    def forward(self, x, scale=1):
        return self.layers[1](self.layers[0](x)) * x * scale


def new_module(e):
    graph = e.graph()
    node, name = e.node(graph), e.rng.choice([e.name(), "gain", "fc"])
    with graph.insert_exprs():
        setattr(graph.inputs[0], name, Gate(node.spec.shape[1]))
        part = getattr(graph.inputs[0], name)
        graph.replace_node({node: part(part(node), e.rng.choice([1, 2]))})


def module_called(e):
    graph = e.graph()
    node = e.node(graph)
    layer = M.Conv2d(node.spec.shape[1], node.spec.shape[1], 1)
    with graph.inserting_after(node):
        node.replace_all_uses_with(e.rng.choice([layer, M.Sequential(layer, M.ReLU())])(node))


def other_module(e):
    graph = e.graph()
    graph.replace_module(e.node(graph, ModuleNode), e.rng.choice([Gate(4), M.Sequential(M.Conv2d(4, 4, 1))]))


def set_later(e):
    graph = e.graph()
    node = e.node(graph)
    with graph.transaction("set later"):
        name = set_attribute(graph.inputs[0], "later", Gate(node.spec.shape[1]))
        with graph.inserting_after(node):
            graph.replace_node({node: getattr(graph.inputs[0], name)(node)})


def in_front(e):
    graph = e.graph()
    node = e.node(graph)
    with graph.inserting_before(e.node(graph)):
        graph.replace_node({node: F.relu(node)})


def operand(e):
    graph = e.graph()
    expr = e.rng.choice([x for x in graph.exprs(recursive=False) if x.kind == "CallMethod"])
    expr.set_arg(e.rng.choice([0, "x", "inp"]), e.like(graph, expr.inputs[-1]))


def traced_part(e):
    graph = e.graph()
    node, name = e.node(graph), e.name()
    with graph.insert_exprs():
        setattr(graph.inputs[0], name, HEAD)
        graph.replace_node({node: getattr(graph.inputs[0], name)(node)})


def new_input(e):
    graph = e.module.graph
    node = e.node(graph)
    with graph.transaction():
        made = graph.add_input_node(node.spec.shape, node.dtype, e.name())
        with graph.insert_exprs():
            graph.replace_node({node: node + made})


def new_output(e):
    e.module.graph.add_output_node(e.node(e.module.graph))


def other_outputs(e):
    graph = e.module.graph
    graph.reset_outputs({"b": graph.outputs[0], "a": [e.node(graph), (graph.outputs[0],)]})


def other_outputs_below(e):
    graph = e.graph()
    set_outputs(graph, [e.like(graph, n) for n in graph.outputs])


def inner_output(e):
    e.module.graph.add_output_node(e.node(e.graph()))


def inner_value(e):
    graph = e.module.graph
    made = graph.value_of(e.node(e.graph()))
    with graph.insert_exprs():
        graph.replace_node({made: made * 2})


def results_below(e):
    graph = e.graph()
    graph.reset_outputs([*graph.outputs[::-1], e.node(e.graph())])


def cut_inside(e):
    extract(e.module.graph, [e.node(e.graph())], [e.node(e.graph()), *e.module.graph.outputs[:1]])


def constant(e):
    graph = e.graph()
    node = e.node(graph)
    made = graph.constant(np.ones(node.spec.shape, np.float32), before=node.expr)
    graph.replace_node({node: made})


def a_pass(e):
    one = e.rng.choice(registered_passes())
    with e.module.graph.transaction(one.name):
        one.run(e.module.graph)


def a_rule(e):
    x = any_()
    rewrite(e.graph(), [Rule("r", call(F.relu, x), lambda m: F.maximum(m[x], 0))])


def fails_half_way(e):
    graph = e.graph()
    with graph.transaction():
        graph.compile()
        insert_function(e)
        graph.rename(e.node(graph), "1a")


def undo(e):
    e.module.graphs[0].undo()


def redo(e):
    e.module.graphs[0].redo()


MODEL_EDITS = (
    *(new_module, module_called, other_module, set_later, in_front, operand),
    *(rename, insert_function, insert_unused, insert_at_a_place, insert_shapes, insert_assignment, replace, compile_),
    *(erase, other_input, other_argument, other_inputs, new_layer, other_layer, traced_part, new_input, new_output),
    *(
        inner_output,
        inner_value,
        results_below,
        cut_inside,
        other_outputs,
        other_outputs_below,
        constant,
        a_pass,
        a_rule,
        fails_half_way,
        undo,
        redo,
    ),
)


# ---------------------------------------------------------------- ops


def apply_op(e):
    graph = e.graph()
    node = e.node(graph)
    made = graph.apply(e.rng.choice(["relu", "exp", "neg", "abs"]), node, after=node.expr)
    replace_all_uses(graph, node, made)


def apply_two(e):
    graph = e.graph()
    node = e.node(graph)
    other = e.like(graph, node)
    later = max((node.expr, other.expr), key=lambda x: x._key)
    replace_all_uses(graph, node, graph.apply("add", node, other, after=later), except_=[other.expr])


def other_attribute(e):
    graph = e.graph()
    expr = e.node(graph).expr
    name = e.rng.choice(sorted(expr.attrs)) if getattr(expr, "attrs", None) else "axis"
    set_attrs(graph, expr, {name: e.rng.choice([0, 1, -1, (1, 1), 1e-3])})


def folding(e):
    with e.module.graph.transaction("passes"):
        run_passes(e.module.graph)


def replace_all(e):
    graph = e.graph()
    node = e.node(graph)
    replace_all_uses(graph, node, e.like(graph, node))


def dead(e):
    remove_dead(e.graph())


def op_input(e):
    graph = e.graph()
    node = add_input(graph, e.name(), e.node(graph).spec)
    replace_all_uses(graph, e.like(graph, node), node)


OP_EDITS = (
    *(rename, replace, erase, other_input, constant, apply_op, apply_two, other_attribute, folding, replace_all),
    *(dead, op_input, other_outputs_below, undo, redo),
)


def session(start: TracedModule, kinds, seed: int, length: int) -> dict[str, int]:
    """Random edits, each linted; then all are undone, done again, and replayed. Returns how many were made of each."""
    module = start.clone()
    editor, done = Editor(module, seed), {}
    module.graph.keep_edits()
    first = content(module)
    for _ in range(length):
        edit = editor.rng.choice(kinds)
        steps, before = len(module.graph._journal.done), repr(module)
        try:
            edit(editor)
        except (MegEngineError, TypeError, ValueError, IndexError, AttributeError):
            if len(module.graph._journal.done) == steps:  # refused as a whole, not after a first edit of the kind
                assert repr(module) == before, edit.__name__
        else:
            done[edit.__name__] = done.get(edit.__name__, 0) + 1
        for graph in module.graphs:  # and what they call: a graph that nothing calls any more may be impossible
            graph.lint()
    last, log = content(module), module.edit_log
    steps = 0
    while module.graph.undo():
        steps += 1
    assert content(module) == first
    for _ in range(steps):
        assert module.graph.redo()
    assert content(module) == last
    again = start.clone()
    again.graph.keep_edits()
    log.replay(again)
    assert content(again) == last
    return done


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(1, 16))
def test_models(seed, length):
    session(MODEL, MODEL_EDITS, seed, length)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_graphs_of_ops(seed, length):
    session(OPS, OP_EDITS, seed, length)


MADE_AT_ONCE = [e for e in MODEL_EDITS if e not in (undo, redo, erase, fails_half_way)]


@pytest.mark.parametrize("kind", MADE_AT_ONCE, ids=lambda e: e.__name__)
def test_every_kind_can_be_made(kind):
    """An edit that is refused whatever it is tried on would be no test of anything."""
    for seed in range(40):
        module = MODEL.clone()
        editor = Editor(module, seed)
        try:
            kind(editor)
        except (MegEngineError, TypeError, ValueError, IndexError, AttributeError):
            continue
        module.graph.lint()
        return
    pytest.fail(f"{kind.__name__} was refused 40 times")


@pytest.mark.slow
def test_thousands():
    """Every kind of edit is made, and nearly every one succeeds often."""
    made: dict[str, int] = {}
    for seed in range(60):
        for start, kinds in ((MODEL, MODEL_EDITS), (OPS, OP_EDITS)):
            for name, count in session(start, kinds, seed, 30).items():
                made[name] = made.get(name, 0) + count
    assert sum(made.values()) > 2000
    assert {e.__name__ for e in (*MODEL_EDITS, *OP_EDITS)} - {"fails_half_way"} <= made.keys()


def test_models_still_run_after_edits():
    module = MODEL.clone()
    editor = Editor(module, 5)
    for _ in range(30):
        try:
            editor.rng.choice((insert_function, rename, a_pass, a_rule, new_layer, traced_part))(editor)
        except MegEngineError:
            continue
    want = [t.numpy() for t in interpret(module.graph, [X])]
    for form in (module.flatten(), lower(module), optimize(module)):
        for a, b in zip([t.numpy() for t in interpret(form.graph, [X])], want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * max(np.abs(b).max(), 1))
