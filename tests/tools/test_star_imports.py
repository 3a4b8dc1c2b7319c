"""`from module import *` takes the public names of a module, and nothing that the module imports for itself."""

import ast
import importlib
import itertools
import json
from pathlib import Path

import pytest

from megengine.core.exports import own_names

LISTED = json.loads((Path(__file__).parents[1] / "data" / "megengine" / "api.json").read_text())


def public_modules():
    """The modules of this package at paths that MegEngine has."""
    paths = {path for name in LISTED for path in itertools.accumulate(name.split("."), "{}.{}".format)}
    paths.add("megengine.jit.tracing")  # of which the list names nothing
    found = []
    for path in sorted(p for p in paths if p.partition(".")[0] == "megengine"):
        try:
            found.append(importlib.import_module(path).__name__)
        except ImportError:  # a class or a function, or a module that does not exist here
            continue
    return found


MODULES = public_modules()


def imported_from_elsewhere(module):
    """Names that a module binds to other packages or their parts."""
    names = set()
    for node in ast.parse(Path(module.__file__).read_text()).body if hasattr(module, "__file__") else ():
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] != "megengine":
            names |= {alias.asname or alias.name for alias in node.names}
    return names - {"megengine"}


def star(name):
    names = {}
    exec(f"from {name} import *", names)
    return names.keys() - {"__builtins__"}


def test_the_modules_are_found():
    assert len(MODULES) > 100
    assert {"megengine.utils.network", "megengine.module.conv", "megengine.jit.tracing"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_star_takes_nothing_of_other_packages(name):
    assert not star(name) & imported_from_elsewhere(importlib.import_module(name))


@pytest.mark.parametrize("name", [m for m in MODULES if not hasattr(importlib.import_module(m), "__path__")])
def test_a_star_takes_the_names_of_megengine(name):
    own = own_names(vars(importlib.import_module(name)))
    assert {n for n in own if f"{name}.{n}" in LISTED} <= star(name)
