"""Few files decide something by the name of an op: what holds for an op stands in its record.

A file names an op where it has its name as a text. Applying an op, and writing one into a pattern, are uses of it like
calls of a function, and do not count.
"""

import ast
import collections
import functools
from pathlib import Path

import pytest

import megengine.functional  # noqa: F401
from megengine.dispatch import registry

PACKAGE = Path(__file__).parents[2] / "megengine"
LIMIT = 6
USES = {"apply", "reduce", "emit", "call", "Target", "Product"}  # whose first argument is an op that is used
# ops that are named more often -> in how many files at most
MORE = {
    # rewriting rules are about arithmetic: what adds nothing, which products take an addition, what a scale passes
    **{"add": 12, "mul": 8, "sub": 7, "neg": 7},
    # names of activations in arguments of layers and of MegEngine's functions
    "relu": 12,
    # words with other meanings: reductions of losses and of tables, Python's slices
    **{"mean": 12, "sum": 10, "max": 9, "min": 7, "slice": 8, "concat": 8},
    # moves of elements: kernels, simplifications and ONNX have one line for each
    **{"reshape": 9, "transpose": 7},
}


@functools.cache
def files():
    """Op -> files that name it."""
    found = collections.defaultdict(set)
    for path in _sources(PACKAGE):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        used = {id(part) for node in nodes for part in _used(node)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in used:
                found[node.value].add(path.relative_to(PACKAGE).as_posix())
    return found


def _sources(folder):
    for entry in sorted(folder.iterdir()):  # links to folders too
        if entry.is_dir():
            yield from _sources(entry)
        elif entry.suffix == ".py":
            yield entry


def _used(node):
    if isinstance(node, ast.JoinedStr):  # words of messages
        return node.values
    if not isinstance(node, ast.Call) or not node.args:
        return ()
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0]
    if name not in USES:
        return ()
    return (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,)


@pytest.mark.parametrize("name", sorted(registry))
def test_an_op_is_named_in_few_files(name):
    assert len(files()[name]) <= MORE.get(name, LIMIT), sorted(files()[name])


def test_a_name_in_a_condition_counts_and_a_use_does_not():
    (condition,) = (n for n in ast.walk(ast.parse('expr.op == "add"')) if isinstance(n, ast.Constant))
    tree = ast.parse('g.apply("add", x, call("mul", y), named("sub"))')
    used = {part.value for node in ast.walk(tree) for part in _used(node)}
    assert condition.value == "add"
    assert used == {"add", "mul"}
