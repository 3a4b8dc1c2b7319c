"""The rooms of the package: one order, and a face for each."""

import ast
from pathlib import Path

import pytest

import megengine.quantization

ORDER = ("ranges", "modules", "checks", "pipeline")
FOLDER = Path(megengine.quantization.__file__).parent
FILES = [path for room in ORDER for path in sorted((FOLDER / room).glob("*.py"))]


def crooked(room: str, source: str) -> list[str]:
    """Imports, those inside functions too, from a room above, or past the `__init__` of one below."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts = node.module.split(".") if isinstance(node, ast.ImportFrom) and node.module else []
        if parts[:2] != ["megengine", "quantization"] or parts[2:3] == [room]:
            continue
        above = len(parts) < 3 or parts[2] not in ORDER[: ORDER.index(room)]
        if above or len(parts) > 3:
            found.append(f"line {node.lineno}: {node.module}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_room_imports_only_the_faces_of_rooms_below_it(path):
    assert crooked(path.parent.name, path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "from megengine.quantization.pipeline import quantize",
        "from megengine.quantization.ranges.scales import scheme",
        "from megengine.quantization import QuantConfig",
    ],
)
def test_the_check_can_fail(line):
    assert crooked("modules", f"def f():\n    {line}")
