"""The graph core: what stands in a graph, what cannot be set, how much a graph offers, and what the core imports."""

import ast
import copy
import inspect
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.core.errors import ArgumentError, GraphError, ShapeError
from megengine.core.pytree import flatten
from megengine.core.spec import TensorSpec
from megengine.traced_module import InternalGraph, lower, trace_module

ROOT = Path(__file__).resolve().parents[2] / "traced_module"
X = tensor(np.ones((2, 3), np.float32))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = M.Linear(3, 3)

    def forward(self, x):
        return F.relu(self.fc(x)) + 1


@pytest.fixture(scope="module")
def model():
    return trace_module(Net().eval(), X)


def test_an_expression_knows_whether_it_stands_in_its_graph(model):
    graph = model.clone().graph
    with graph.insert_exprs():
        made = F.exp(graph.outputs[0])
    assert made.expr.in_graph
    graph.erase(made.expr)
    assert not made.expr.in_graph
    graph.undo()
    assert made.expr.in_graph


def call(m):
    return m.graph.get_function_by_type(F.relu).as_unique()


SET = {
    "inputs of an expression": (lambda m: (call(m), "inputs"), "use replace_inputs, or graph.replace_node"),
    "outputs of an expression": (lambda m: (call(m), "outputs"), "use graph.replace_node"),
    "arguments of a call": (lambda m: (call(m), "args"), "use set_arg or set_args_kwargs"),
    "named arguments": (lambda m: (call(m), "kwargs"), "use set_arg or set_args_kwargs"),
    "function": (lambda m: (call(m), "func"), "use insert_exprs to make another expression"),
    "method": (lambda m: (m.graph.get_calls_of(M.Linear).as_unique(), "method"), "use insert_exprs"),
    "attribute that is read": (lambda m: (m.graph.node("fc").expr, "name"), "use graph.replace_module"),
    "module": (lambda m: (m.graph.node("fc"), "owner"), "use graph.replace_module"),
    "users": (lambda m: (m.graph.node("fc_out"), "users"), "use graph.replace_node, replace_all_uses_with"),
    "shape": (
        lambda m: (m.graph.node("fc_out"), "shape"),
        "use insert_exprs and graph.replace_node: shapes and dtypes",
    ),
    "qualname": (lambda m: (m.graph.node("fc_out"), "qualname"), "use graph.rename"),
    "graph of a node": (lambda m: (m.graph.node("fc"), "graph"), "use insert_exprs in the graph"),
    "inputs of a graph": (lambda m: (m.graph, "inputs"), "use add_input_node or reset_inputs"),
    "outputs of a graph": (lambda m: (m.graph, "outputs"), "use add_output_node or reset_outputs"),
    "attributes of an op": (lambda m: (lower(m).graph.outputs[0].expr, "attrs"), "use editing.rewiring.set_attrs"),
}


@pytest.mark.parametrize("what", SET)
def test_what_only_a_method_changes_refuses_to_be_set_and_names_it(model, what):
    find, text = SET[what]
    part, name = find(model)
    before = repr(model)
    for kind in (GraphError, AttributeError):
        with pytest.raises(kind, match=f"{name} of the .* cannot be set; {text}"):
            setattr(part, name, ())
    assert repr(model) == before


CHANGES = [
    (lambda m: m.graph.inputs.append(1), "inputs of the InternalGraph 'Net' cannot be set; use add_input_node"),
    (lambda m: m.graph.outputs.pop(), "use add_output_node or reset_outputs"),
    (lambda m: m.graph.inputs.__setitem__(0, 1), "use add_input_node or reset_inputs"),
    (lambda m: m.graph.node("fc_out").expr.inputs.extend([1]), "inputs of the CallMethod 'fc_out' cannot be set"),
    (lambda m: m.graph.node("fc_out").expr.inputs.__setitem__(1, 3), "set_inputs: node 3 does not belong"),
]


@pytest.mark.parametrize(("change", "text"), CHANGES)
def test_lists_of_graphs_change_by_methods_alone(model, change, text):
    before = repr(model)
    with pytest.raises(GraphError, match=text):
        change(model)
    assert repr(model) == before


def test_lists_of_graphs_are_lists(model):
    graph = model.graph
    outputs = graph.outputs
    assert outputs == (outputs[0],) and outputs == [outputs[0]] and type(copy.copy(outputs)) is list
    graph.outputs[0] = graph.node("fc_out")
    assert graph.outputs == [graph.node("fc_out")] and graph.undo() and graph.outputs == [graph.node("add_out")]
    assert flatten(outputs) == flatten(list(outputs))


def test_a_graph_is_one_class_with_few_public_methods():
    assert InternalGraph.__mro__ == (InternalGraph, object)
    methods = [name for name, one in vars(InternalGraph).items() if name[0] != "_" and inspect.isfunction(one)]
    assert len(methods) <= 35, methods


def imported(path):
    """Modules of the package that a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", sorted((ROOT / "ir").glob("*.py")), ids=lambda path: path.stem)
def test_the_core_imports_nothing_above_it(path):
    own = [name for name in imported(path) if name.startswith("megengine.traced_module.")]
    assert [name for name in own if not name.startswith("megengine.traced_module.ir.")] == []


@pytest.mark.parametrize("face", ["expr", "node"])
def test_a_star_import_takes_only_names_of_the_core(face):
    names = {}
    exec(f"from megengine.traced_module.{face} import *", names)
    del names["__builtins__"]
    assert names.keys() >= ({"CallMethod", "is_constant"} if face == "expr" else {"ModuleNode"})
    assert {one.__module__ for one in names.values()} == {f"megengine.traced_module.ir.{face}"}


def test_what_lint_has_checked_is_checked_again_when_it_changes(model):
    """Of a graph and of its clone, which takes over what was found."""
    graph = lower(model).graph
    graph.lint()
    for at in (graph, graph.clone()):
        added = at.outputs[0].expr
        (node,), attrs = added.outputs, added._attrs
        right = node._spec
        for wrong in (TensorSpec((2, 4), "float32"), TensorSpec((2, 3), "int32")):
            node._spec = wrong
            with pytest.raises(ShapeError, match="the edit changes its results"):
                at.lint()
        node._spec = right
        added._attrs = MappingProxyType({**attrs, "unknown": 1})
        with pytest.raises(ArgumentError, match="unknown"):
            at.lint()
        added._attrs = attrs
        at.lint()
