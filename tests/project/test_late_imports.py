"""Imports inside functions are for libraries that are heavy or optional; those for types only hold no own modules."""

import ast

import pytest
from source_modules import MODULES

LATE = {
    "PIL": "optional: pictures",
    "cudnn": "optional: convolutions of devices",
    "cupy": "optional: devices",
    "cupy_backends": "optional: devices",
    "importlib": "finds out what is installed",
    "fcntl": "not on every system",
    "jinja2": "the report only",
    "json": "slow, and rarely needed where it stands in a function",
    "onnx": "slow, and for ONNX files only",
    "onnxscript": "optional: modules of torch",
    "os": "the command begins without it",
    "pathlib": "slow, for files only",
    "resvg_py": "optional: PNG pictures",
    "sys": "the command begins without it",
    "tempfile": "slow, for files only",
    "torch": "optional: modules of torch",
    "zipfile": "slow, for files only",
}
OWN = {
    "megengine.cli": "interrupts are held before anything else is imported",
    "megengine.kernels.onednn": "a native module that may be missing",
    "megengine.tensor": "a stub that no module holds",
}


def late_imports(source: str) -> set[str]:
    """Modules that are imported inside functions, and own ones for types only."""
    found = set()
    for scope in ast.walk(ast.parse(source)):
        for_types = isinstance(scope, ast.If) and getattr(scope.test, "id", "") == "TYPE_CHECKING"
        if not (for_types or isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            continue
        for node in ast.walk(scope):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {name for name in names if not for_types or name.startswith("megengine")}
    return found


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[n for n, _ in MODULES])
def test_imports_stand_at_the_top(name, path):
    if name in OWN:
        return
    assert {m for m in late_imports(path.read_text()) if m.split(".")[0] not in LATE} == set()


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import megengine.tensor",
        "def f():\n    from numpy import add",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from megengine.tensor import Tensor",
    ],
)
def test_the_check_can_fail(source):
    assert late_imports(source)
