"""Fields of graphs, expressions, nodes, names and journals that begin with `_` belong to the core."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import megengine
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module import ir

PACKAGE = Path(megengine.__file__).parent
FOLDERS = ("cli", "compat", "convert", "jit", "plan", "quantization", "traced_module", "utils")
# How many places outside of the core touch such a field, at most: what builds graphs expression by expression (readers
# of files, the tracer, copies, the inserter) fills in values that have no setter. MegEngine's names (`_exprs`,
# `_total_ids`, `_namespace`) stay in the core, as its programs read them.
MOST = {
    "cli": 1,
    "traced_module": 2,
    "traced_module/_passes": 1,
    "traced_module/editing": 43,
    "traced_module/formats": 33,
    "traced_module/source": 1,
    "traced_module/tracing": 8,
}


def core_fields() -> set[str]:
    """Names that begin with one `_` and that only the core's classes have."""
    found: set[str] = set()
    for path in Path(ir.__path__[0]).glob("*.py"):
        module = importlib.import_module(f"{ir.__name__}.{path.stem}")
        classes = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
        sources = [ast.parse(inspect.getsource(c)) for c in classes]
        stored = {n.attr for tree in sources for n in ast.walk(tree) if isinstance(n, ast.Attribute) and of_self(n)}
        found |= stored.union(*(vars(c) for c in classes))
    elsewhere = {*dir(Tensor), *vars(Module()), *dir(Module), "_items"}  # of other classes too
    return {name for name in found - elsewhere if name.startswith("_") and not name.startswith("__")}


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def touched(source: str, fields: set[str]) -> list[str]:
    """Reads and writes of these fields of anything but `self`."""
    places = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute) and n.attr in fields]
    own = ("self", "cls")
    return [f"{n.lineno}: {n.attr}" for n in places if not (isinstance(n.value, ast.Name) and n.value.id in own)]


FIELDS = core_fields()
FILES = [p for folder in FOLDERS for p in sorted((PACKAGE / folder).rglob("*.py")) if "ir" not in p.parts]


def test_the_fields_are_those_of_graphs():
    assert {"_order", "_journal", "_names", "_users", "_key", "_exprs", "_total_ids"} <= FIELDS
    assert FIELDS.isdisjoint({"_value", "_forward_hooks"})


def test_a_touched_field_is_seen():
    assert touched("graph._order = 1\nself._order = 2", FIELDS) == ["1: _order"]


@pytest.mark.parametrize("room", sorted({str(p.parent.relative_to(PACKAGE)) for p in FILES}))
def test_no_more_places_outside_touch_them(room):
    paths = [p for p in FILES if str(p.parent.relative_to(PACKAGE)) == room]
    places = [f"{p.name}:{place}" for p in paths for place in touched(p.read_text(), FIELDS)]
    assert len(places) <= MOST.get(room, 0), places
