"""What errors and warnings advise exists and takes the arguments it is shown with."""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import megengine as mge
from megengine import functional as F
from megengine import module as M
from megengine.cli.app import COMMANDS, LazyGroup
from megengine.core import absent, old_names
from megengine.core.errors import MegEngineError
from megengine.serialization.mge_file import OLD_ADVICE as MGE_ADVICE
from megengine.traced_module import SpecializationWarning, trace_module

ROOT = Path(mge.__file__).parent.parent
FOLDERS = ("megengine", "kernels", "traced_module", "quantization", "cli")
TABLES = {
    "module": absent.MODULE_WORDS,
    "tensor": absent.TENSOR_WORDS,
    "absent": absent.REASONS,
    "old": old_names.OLD_NAMES,
}
SHORT = {
    **{"F": "megengine.functional", "M": "megengine.module", "mge": "megengine"},
    **{name: f"megengine.{name}" for name in ("jit", "plan", "quantization", "traced_module")},
}
NAME = re.compile(r"(?<![\w.'/-])((?:megengine|numpy|" + "|".join(SHORT) + r")(?:\.[A-Za-z_]\w*)+)")
TELLS = {"warn_once", "warn_caller", "add_note", "warn", "fail", "echo"}  # what takes texts for people, besides errors


def texts_of(node: ast.AST) -> Iterator[str]:
    """Texts in an expression, with `x` where a value is put in that is no part of a name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        text = ""
        for part in node.values:
            text += str(part.value) if isinstance(part, ast.Constant) else "?" if text.endswith(".") else "x"
        yield text
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts_of(child)


@functools.cache
def told() -> list[tuple[str, str]]:
    """(place, text) of everything that is raised or warned of."""
    return list(_told())


def _told() -> Iterator[tuple[str, str]]:
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        if path.is_symlink() or any(part.is_symlink() for part in path.parents):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            function = getattr(node, "func", None)
            name = getattr(function, "attr", getattr(function, "id", ""))
            if isinstance(node, ast.Raise) or name in TELLS or name.endswith(("Error", "Interrupt")):
                yield from ((f"{path.relative_to(ROOT)}:{node.lineno}", text) for text in texts_of(node))
    for table, words in TABLES.items():
        yield from ((f"{table}: {key}", text) for key, text in words.items())


def found(name: str) -> Any:
    """What a dotted name means; an AttributeError or ImportError if it means nothing."""
    first, *rest = name.split(".")
    value, path = None, SHORT.get(first, first)
    value = importlib.import_module(path)
    for part in rest:
        path += f".{part}"
        value = getattr(value, part) if hasattr(value, part) else importlib.import_module(path)
    return value


def call_after(text: str) -> ast.Call | None:
    """The call whose arguments begin a text, if they are written out."""
    for end in (i for i, letter in enumerate(text) if letter == ")"):
        try:
            call = ast.parse("f" + text[: end + 1], mode="eval").body
        except SyntaxError:
            continue
        return call if isinstance(call, ast.Call) else None
    return None


def complaints(text: str) -> Iterator[str]:
    for match in NAME.finditer(text):
        name, rest = match[1], text[match.end() :]
        try:
            value = found(name)
        except (AttributeError, ImportError) as exc:
            yield f"{name}: {exc}"
            continue
        call = call_after(rest) if rest.startswith("(") else None
        arguments = [] if call is None else [*call.args, *(keyword.value for keyword in call.keywords)]
        if call is None or any(isinstance(a, ast.Constant) and a.value is ... for a in arguments):
            continue
        if any(isinstance(a, ast.Starred) for a in call.args):
            continue
        try:
            inspect.signature(value).bind(*call.args, **{k.arg: k.value for k in call.keywords if k.arg})
        except TypeError as exc:
            yield f"{name}{rest[:40]}: {exc}"


def test_what_is_advised_exists_and_takes_these_arguments():
    texts = told()
    assert len(texts) > 1500
    assert [f"{place}: {wrong}" for place, text in texts for wrong in complaints(text)] == []


def test_advice_that_fails_is_found():
    assert list(complaints("save it, or plan.compile(traced, inputs)"))
    assert list(complaints("use megengine.functional.reluu"))
    assert list(complaints("use F.softmax(x, dim=1)"))
    assert not list(complaints("use megengine.plan.compile(traced), or F.softmax(x, axis=1)"))


@pytest.mark.parametrize("word", absent.TENSOR_WORDS)
def test_methods_of_tensors_that_are_advised_exist(word):
    for name in re.findall(r"(?<![\w)])\.(\w+)", absent.TENSOR_WORDS[word]):
        assert hasattr(mge.tensor(1.0), name), name


def net() -> M.Module:
    return M.Sequential(M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.ReLU()).eval()


@pytest.mark.parametrize(("word", "dtype"), [("half", "float16"), ("float", "float32")])
def test_what_to_do_for_another_dtype_does_it(word, dtype):
    it = net()
    with pytest.raises(AttributeError) as error:
        getattr(it, word)
    code = str(error.value).partition("for t in")
    exec("for t in" + code[2], {"net": it})
    assert {t.dtype.name for t in it.tensors()} == {dtype}
    assert it(mge.tensor(np.ones((1, 3, 8, 8)), dtype=dtype)).dtype.name == dtype


def advice_of(call) -> str:
    with pytest.raises((MegEngineError, AttributeError)) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        advice_of(lambda: mge.jit.trace(lambda x: x).dump("net.mge")),
        advice_of(lambda: mge.dump),
        MGE_ADVICE,
    ],
    ids=["trace.dump", "dump", ".mge"],
)
def test_what_to_do_instead_of_dump_does_it(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"megengine": mge, "net": net(), "x": F.ones((1, 3, 8, 8))}
    calls = re.findall(r"(?:traced = )?megengine\.\w[\w.]*\((?:[^()]|\([^()]*\))*\)(?:\.\w+\([^()]*\))?", text)
    assert len(calls) >= 2
    for code in calls:
        exec(code, names)
    assert any(tmp_path.iterdir())


def test_verbs_and_options_of_the_command_that_are_advised_exist():
    commands = [LazyGroup("mge-quantize").get_command(None, name) for name in COMMANDS]  # type: ignore[arg-type]
    options = {o for command in commands for p in command.params for o in (*p.opts, *p.secondary_opts)}
    wrong = []
    for place, text in told():
        verbs = re.findall(r"mge-quantize (?!--)(\w+)", text)
        named = re.findall(r"(?<![\w-])--[a-z][\w-]*", text) if place.startswith("cli") or verbs else []
        wrong += [(place, verb) for verb in verbs if verb not in COMMANDS]
        wrong += [(place, option) for option in named if option not in options | {"--help", "--version"}]
    assert wrong == []


def test_warnings_stand_at_the_line_of_the_caller():
    """A fixed number of frames led to lines of this package, which say nothing to a user and hide all but the first."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    fixed = [path.name for path in paths if re.search(r"warnings\.warn\(.*stacklevel=[3-9]", path.read_text())]
    assert not fixed

    class Counts(M.Module):
        def forward(self, x: Any) -> Any:
            return x * float(F.sum(x).numpy())

    with pytest.warns(SpecializationWarning) as caught:
        trace_module(Counts().eval(), mge.tensor([1.0]))
    assert {warning.filename for warning in caught} == {__file__}
