"""Compares the installed package with a list of MegEngine's public names and signatures.

    python tests/helpers/public_api.py tests/data/megengine/api.json

The list maps a full name to the name it is re-exported from, or to its parameters (`name`, `name=default`, `*args`,
`**kwargs`) and, for a class, those of its methods. A call that the recorded signature takes must be taken here.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megengine.core.absent import reason
from megengine.core.text import counted


@dataclass(frozen=True, slots=True)
class Finding:
    """A name that differs: its problem, and the reason from the table (empty if there is none)."""

    name: str
    problem: str
    reason: str


def resolve(name: str) -> Any:
    """The object of a full dotted name. Raises AttributeError or ImportError where there is none."""
    parts = name.split(".")
    value: Any = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        path = ".".join(parts[:i])
        # `package.quantize` is the function; in `package.quantize.quantize_qat` it is the module that stands first
        inside = i < len(parts) and sys.modules.get(path)
        try:
            value = inside or getattr(value, part)
        except AttributeError:
            if not inspect.ismodule(value):
                raise
            value = importlib.import_module(path)
    return value


def accepts(function: Callable[..., Any], recorded: Sequence[str]) -> str:
    """Why a function does not take the calls of a recorded signature; empty if it does."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return ""
    kinds = {p.kind for p in parameters}
    any_position, any_keyword = inspect.Parameter.VAR_POSITIONAL in kinds, inspect.Parameter.VAR_KEYWORD in kinds
    by_name = {p.name: p for p in parameters}
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [entry.partition("=")[0] for entry in recorded]
    keyword_only = False
    for i, (name, entry) in enumerate(zip(names, recorded, strict=True)):
        if name.startswith("*"):
            keyword_only = keyword_only or not name.startswith("**")
        elif name not in by_name and not (any_keyword or (any_position and not keyword_only)):
            return f"has no parameter {name!r}"
        elif name in by_name and not keyword_only and name in positional and positional.index(name) != i:
            return f"has parameter {name!r} at place {positional.index(name) + 1}; expected {i + 1}"
        elif name in by_name and "=" in entry and by_name[name].default is inspect.Parameter.empty:
            return f"needs parameter {name!r}, which has a default in MegEngine"
    known = {n.lstrip("*") for n in names}
    extra = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in known
    ]
    several = any(n.startswith("*") for n in names)
    return f"needs parameter {extra[0]!r}, which MegEngine does not have" if extra and not several else ""


def _problems(name: str, entry: Any) -> list[tuple[str, str]]:
    try:
        value = resolve(name)
    except (AttributeError, ImportError):
        return [(name, "is missing")]
    if isinstance(entry, str) or not callable(value):
        return []
    problems = [(name, accepts(value, entry["sig"]))] if entry["sig"] is not None else []
    for method, recorded in entry.get("methods", {}).items():
        have = getattr(value, method, None)
        if have is None:
            problems.append((f"{name}.{method}", "is missing"))
        elif recorded is not None and callable(have):
            bound = recorded[1:] if recorded[:1] == ["cls"] else recorded
            problems.append((f"{name}.{method}", accepts(have, bound)))
    return [(n, p) for n, p in problems if p]


def compare(api: dict[str, Any]) -> list[Finding]:
    """Everything that differs from a list of names, with reasons."""
    return [Finding(n, p, reason(n)) for name, entry in api.items() for n, p in _problems(name, entry)]


def main(arguments: Sequence[str]) -> int:
    """Print what differs; 1 if something differs without a reason, 2 for a list that cannot be read."""
    if len(arguments) != 1:
        print("usage: public_api.py LIST.json", file=sys.stderr)
        return 2
    try:
        api = json.loads(Path(arguments[0]).read_text())
    except (OSError, ValueError) as error:
        print(f"{arguments[0]}: cannot be read ({error})", file=sys.stderr)
        return 2
    findings = compare(api)
    for f in findings:
        print(f"{f.name} {f.problem}: {f.reason or 'NO REASON GIVEN'}")
    unexplained = sum(not f.reason for f in findings)
    print(f"{counted(len(api), 'name')}, {len(findings)} differ, {unexplained} without a reason")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
