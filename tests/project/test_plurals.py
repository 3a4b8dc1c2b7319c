"""Numbers of things are written by `counted`, which knows the singular: no message says "1 inputs"."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from layer_table import LINKED

from megengine.core.text import counted, in_bytes, plural

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / name for name in ("megengine", *LINKED)]
VERBS = {"calls", "names"}  # `{expr} calls a module`


@functools.cache
def nodes() -> list[tuple[Path, ast.Call | ast.JoinedStr]]:
    """The calls and the texts with values of all files."""
    files = (path for folder in FOLDERS for path in sorted(folder.rglob("*.py")))
    every = ((path, node) for path in files for node in ast.walk(ast.parse(path.read_text())))
    return [(path, node) for path, node in every if isinstance(node, (ast.Call, ast.JoinedStr))]


def things() -> set[str]:
    """What is counted anywhere, in the plural."""
    calls = (node for _, node in nodes() if isinstance(node, ast.Call) and len(node.args) > 1)
    words = (call.args[1] for call in calls if ast.unparse(call.func) == "counted")
    return {plural(word.value) for word in words if isinstance(word, ast.Constant)} - VERBS


def by_hand(text: ast.JoinedStr, words: str) -> Iterator[str]:
    """Places of a text where a value stands before one of the words; names of constants, which are many, may."""
    for value, after in zip(text.values, text.values[1:], strict=False):
        if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
            continue
        constant = isinstance(value.value, ast.Name) and value.value.id.isupper()
        if not constant and value.conversion < 0 and re.match(rf" ({words})\b", after.value):
            yield f"{{{ast.unparse(value.value)}}}{after.value[:30]}"


def test_whatever_is_counted_somewhere_is_counted_so_everywhere():
    words = "|".join(sorted(things()))
    assert "inputs" in words and "axes" in words
    found = [
        f"{path.relative_to(ROOT)}: {place}"
        for path, node in nodes()
        if isinstance(node, ast.JoinedStr)
        for place in by_hand(node, words)
    ]
    assert found == []


def test_native_messages_count_nothing():
    """They have no `counted`: `the number of results is 1`."""
    sources = [
        path for path in sorted((ROOT / "kernels" / "csrc").rglob("*.*")) if path.suffix in (".cpp", ".h", ".inc")
    ]
    native = re.compile(rf"%z?[du] ({'|'.join(sorted(things()))})\\b")
    assert sources and not [path.name for path in sources if native.search(path.read_text())]


def test_texts_by_hand_are_found():
    (text,) = (n for n in ast.walk(ast.parse("f'{len(xs)} inputs, {MOST} inputs, {name!r} inputs, {x} words'"))
               if isinstance(n, ast.JoinedStr))  # fmt: skip
    assert list(by_hand(text, "inputs")) == ["{len(xs)} inputs, "]


@pytest.mark.parametrize(
    ("count", "word", "spec", "expected"),
    [
        (0, "layer", "", "0 layers"),
        (1, "layer", "", "1 layer"),
        (2, "batch", "", "2 batches"),
        (2, "axis", "", "2 axes"),
        (3, "index", "", "3 indices"),
        (2, "entry", "", "2 entries"),
        (2, "op class", "", "2 op classes"),
        (2, "array", "", "2 arrays"),
        (2, "box", "", "2 boxes"),
        (12345, "parameter", ",", "12,345 parameters"),
        (1.0, "step", "g", "1 step"),
    ],
)
def test_counted(count, word, spec, expected):
    assert counted(count, word, spec) == expected


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (21_800, "21.8 kB"), (999_600, "1.00 MB"), (14e6, "14.0 MB")],
)
def test_sizes_have_three_digits_and_a_unit(count, text):
    assert in_bytes(count) == text
