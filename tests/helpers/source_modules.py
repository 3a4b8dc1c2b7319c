"""The Python files of the package, by their import names."""

from pathlib import Path

from layer_table import LINKED

ROOT = Path(__file__).resolve().parents[2]


def source_modules():
    """(import name, path) of every Python file of the package, each real file once."""
    for path in sorted((ROOT / "megengine").rglob("*.py")):
        if not any(part in LINKED for part in path.relative_to(ROOT / "megengine").parts[:1]):
            yield module_name("megengine", path.relative_to(ROOT / "megengine")), path
    for folder in LINKED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield module_name(f"megengine.{folder}", path.relative_to(ROOT / folder)), path


def module_name(package: str, relative: Path) -> str:
    parts = list(relative.with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join([package, *parts])


MODULES = list(source_modules())
