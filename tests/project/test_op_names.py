"""Few files decide something by the name of an op: what holds for an op stands in its record.

A file names an op where it has its name as a text. Applying an op, and writing one into a pattern, are uses of it like
calls of a function, and do not count; nor do CUDA kernels and C forms, which are tables by op.
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
TABLES = {"cuda", "c"}  # folders
USES = {"apply", "reduce", "emit", "call", "Target", "Product"}  # whose first argument is an op that is used
ATTRIBUTES = {"attr"}  # whose first argument is an attribute of an ONNX node
FACES = ("distributed", "functional", "module", "ops")  # where MegEngine's functions and layers are
# ops that are named more often -> in how many files at most
MORE = {"fold": 7}  # also the name of a stage, a pass and a button


@functools.cache
def files():
    """Op -> files that name it."""
    found = collections.defaultdict(set)
    for path in _sources(PACKAGE):
        for text in _texts(ast.parse(path.read_text())):
            found[text].add(path.relative_to(PACKAGE).as_posix())
    return found


def _texts(tree):
    nodes = list(ast.walk(tree))
    used = {id(part) for node in nodes for part in _used(node)}
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in used}


def _sources(folder):
    for entry in sorted(folder.iterdir()):  # links to folders too
        if entry.is_dir() and entry.name not in TABLES:
            yield from _sources(entry)
        elif entry.suffix == ".py":
            yield entry


@functools.cache
def options():
    """Parameters of MegEngine's functions that take one of several words: `reduction="mean"`."""
    found = set()
    for path in (path for face in FACES for path in _sources(PACKAGE / face)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                found.update(arg.arg for arg, default in _defaults(node) if getattr(default, "value", "") != "")
    return found


def _defaults(function):
    """Parameters of a public function, and their defaults, of those that have a text as default."""
    if function.name[0] == "_" and function.name != "__init__":
        return []
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(places[len(places) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return [(arg, d) for arg, d in pairs if isinstance(d, ast.Constant) and isinstance(d.value, str)]


def _of_option(node):
    """True for an option: a parameter, an attribute that keeps it, or a call on one of them."""
    if isinstance(node, ast.Call):
        return any(map(_of_option, [*node.args, getattr(node.func, "value", node.func)]))
    return (getattr(node, "id", None) or getattr(node, "attr", None)) in options()


def _used(node):
    """Constants in a node that apply an op, or are no ops: words of messages, and of options by where they stand."""
    match node:
        case ast.JoinedStr():
            return node.values
        case ast.FunctionDef():
            return [default for _, default in _defaults(node)]
        case ast.keyword() if node.arg in options():
            return _parts(node.value)
        case ast.Compare() if any(map(_of_option, [node.left, *node.comparators])):
            return [part for side in [node.left, *node.comparators] for part in _parts(side)]
        case ast.Dict():
            named = zip(node.keys, node.values, strict=True)
            return [part for key, value in named if getattr(key, "value", None) in options() for part in _parts(value)]
        case ast.Call(args=[option, *_], func=ast.Attribute(value=ast.Dict(keys=keys))) if _of_option(option):
            return keys
        case ast.Call(args=[first, *_]):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in USES or name in ATTRIBUTES:
                return _parts(first)
            return [part for arg in node.args for part in _parts(arg)] if any(map(_of_option, node.args)) else ()
    return ()


def _parts(node):
    """Texts that an expression may be, or holds."""
    match node:
        case ast.IfExp():
            return [*_parts(node.body), *_parts(node.orelse)]
        case ast.Tuple() | ast.List() | ast.Set():
            return node.elts
    return [node]


@pytest.mark.parametrize("name", sorted(registry))
def test_an_op_is_named_in_few_files(name):
    assert len(files()[name]) <= MORE.get(name, LIMIT), sorted(files()[name])


@pytest.mark.parametrize(
    ("source", "counted"),
    [
        ('expr.op == "add"', {"add"}),
        ('g.apply("add", x, call("mul", y), named("sub"))', {"sub"}),
        ('apply("min" if low else "max" if high else "add", x)', set()),
        ('f"{name}: sum"', set()),
        ('def loss(x, reduction="mean"): return x', set()),
        ('loss(x, reduction="mean", op="sum")', {"sum"}),
        ('reduction.lower() not in ("mean", "sum")', set()),
        ('choice("loss", "reduction", reduction, ("mean", "sum"))', set()),
        ('op in ("mean", "sum")', {"mean", "sum"}),
        ('{"add": 16}.get(reduction, 18)', set()),
        ('{"reduction": "add", "op": "mul"}', {"reduction", "op", "mul"}),
        ('node.attr("mean")', set()),
    ],
)
def test_what_counts_as_a_name(source, counted):
    assert _texts(ast.parse(source)) == counted
