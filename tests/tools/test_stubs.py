"""Type checkers know what functions, methods and layers take and give."""

import ast
import inspect
import json
import pydoc
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import stubs

import megengine
import megengine.functional as F
from megengine.dispatch import public_functions
from megengine.tensor import Tensor

ROOT = Path(__file__).resolve().parents[2]

# expression -> its type, as both checkers say it
KNOWN = {
    "F.conv2d(x, x, stride=(1, 2))": "Tensor",
    "F.relu(x)": "Tensor",
    "F.nn.cross_entropy(x, x)": "Tensor",
    "F.vision.interpolate(x, scale_factor=2.0)": "Tensor",
    "F.split(x, 2)[0]": "Tensor",
    "F.concat([x, x]).reshape(-1).mean()": "Tensor",
    "x.astype('float32').sum()": "Tensor",
    "(-x + 1 * x) ** 2 @ x": "Tensor",
    "x[0, None].shape[0]": "int",
    "mge.tensor([1.0]).numpy().ndim": "int",
    "M.Conv2d(3, 8, 3)(x)": "Tensor",
    "M.Linear(3, 8)(x).flatten()": "Tensor",
    "Net()(x, scale=2.0)": "Tensor",
    "M.BatchNorm2d(3).weight": "Parameter | None",
}
WRONG = {
    "F.relu()": "no argument",
    "F.conv2d(x)": "too few arguments",
    "F.relu(x, inplace=True)": "an option that there is not",
    "x.maen()": "a misspelt method",
    "F.cros_entropy(x, x)": "a misspelt function",
    "M.Conv2d(3, 8, 3)(x, x)": "too many tensors for a layer",
    "Net()(x, scale='large')": "an option of the wrong type",
    "F.split(x, 2).shape": "a list taken for a tensor",
}
PROGRAM = """\
from typing import reveal_type
import megengine as mge
import megengine.functional as F
import megengine.module as M

class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = M.Linear(3, 4)

    def forward(self, x: mge.Tensor, scale: float = 1.0) -> mge.Tensor:
        return F.relu(self.fc(x)) * scale

x = mge.tensor([1.0])
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A program beside a copy of the package with its stubs: line by line what is known, then what is wrong."""
    folder = tmp_path_factory.mktemp("typed")
    ignored = shutil.ignore_patterns("csrc", "__pycache__", "*.so", "*.pyi")
    shutil.copytree(ROOT / "megengine", folder / "megengine", ignore=ignored)
    stubs.main([str(folder)])
    lines = [f"reveal_type({expression})" for expression in KNOWN] + list(WRONG)
    (folder / "program.py").write_text(PROGRAM + "\n".join(lines) + "\n")
    return folder


FIRST = PROGRAM.count("\n") + 1


def findings(output: str, mark: str) -> dict[int, str]:
    """Line -> what a checker says about it, of the lines of its output that contain a mark."""
    found = [line.split(":", 2) for line in output.splitlines() if mark in line and line.startswith("program.py:")]
    return {int(number): text for _, number, text in found}


def pyright(folder: Path) -> tuple[dict[int, str], dict[int, str]]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)["generalDiagnostics"]
    lines = [(d["range"]["start"]["line"] + 1, d["severity"], d["message"]) for d in said]
    return {n: t for n, s, t in lines if s == "information"}, {n: t for n, s, t in lines if s == "error"}


def mypy(folder: Path) -> tuple[dict[int, str], dict[int, str]]:
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(folder / "cache")]
    done = subprocess.run([*command, "program.py"], cwd=folder, capture_output=True, text=True, check=False)
    return findings(done.stdout, "note: Revealed"), findings(done.stdout, "error:")


@pytest.mark.slow
@pytest.mark.parametrize("checker", [pyright, mypy])
def test_checkers_know_the_types_and_find_the_mistakes(program, checker):
    revealed, errors = checker(program)
    for line, (expression, expected) in enumerate(KNOWN.items(), FIRST):
        text = revealed[line].replace("megengine.tensor.", "").replace("builtins.", "").replace('"', "'")
        assert text.endswith((f" '{expected}'", f" is '{expected}'")), (expression, text)
    wrong = range(FIRST + len(KNOWN), FIRST + len(KNOWN) + len(WRONG))
    assert dict(zip(wrong, WRONG, strict=True)).keys() == errors.keys(), errors


def test_a_stub_is_python_with_every_public_name():
    for name, text in stubs.files().items():
        said, expected = said_by(text), public_names(name)
        assert expected, name
        assert expected <= said, (name, expected - said)


def said_by(stub: str) -> set[str]:
    """The names that a stub declares."""
    tree = ast.parse(stub)
    said = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    said |= {alias.asname for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names}
    return said | {n.target.id for n in ast.walk(tree) if isinstance(n, ast.AnnAssign)}


def public_names(name: str) -> set[str]:
    """The public names of what the stub of a file is for."""
    if name.endswith("tensor_methods.pyi"):
        return {n for n, m in vars(Tensor).items() if hasattr(m, "__public__")}
    module = name.removesuffix(".pyi").removesuffix("/__init__").replace("/", ".")
    names = vars(sys.modules[module])
    return {*names.get("__all__", [n for n in names if not n.startswith("_")])}


def test_an_annotation_that_is_missing_is_found():
    """Every public function says what it takes and gives."""
    bare = [
        f"{record.qualified}({parameter})"
        for record in public_functions.values()
        for parameter in (*record.signature.parameters.values(), record.signature.return_annotation)
        if getattr(parameter, "annotation", parameter) is inspect.Parameter.empty
        and getattr(parameter, "name", "") != "self"
    ]
    assert bare == []


@pytest.mark.parametrize("function", [F.relu, F.conv2d, F.matmul, F.concat], ids=lambda f: f.__name__)
def test_help_shows_types(function):
    text = pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert "TensorLike" in text
    assert "-> 'Tensor'" in text or "-> Tensor" in text
    assert f"{function.__name__}(" in text


def test_the_package_says_that_it_is_typed():
    assert (Path(megengine.__file__).parent / "py.typed").exists()
