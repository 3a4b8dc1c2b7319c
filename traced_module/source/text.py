"""Python text: literals that cannot leave their quotes, identifiers, and calls broken to a line length."""

from __future__ import annotations

import builtins
import keyword
import math
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import GraphError

WIDTH = 120
INDENT = "    "
# names that every generated file imports or defines
RESERVED = frozenset(
    {*dir(builtins), "self", "mge", "F", "M", "Tensor", "Parameter", "apply", "np", "quantized", "load"}
)


@dataclass(frozen=True, slots=True)
class Group:
    """`head`, then the items between the brackets `opener` and `closer`, broken into lines if they are long."""

    head: str
    opener: str
    items: tuple[Code, ...]
    closer: str


@dataclass(frozen=True, slots=True)
class Labelled:
    """`name=value` or `key: value`."""

    label: str
    value: Code


Code = str | Group | Labelled


def flat(code: Code) -> str:
    if isinstance(code, str):
        return code
    if isinstance(code, Labelled):
        return f"{code.label}{flat(code.value)}"
    comma = "," if code.opener == "(" and not code.head and len(code.items) == 1 else ""
    return f"{code.head}{code.opener}{', '.join(map(flat, code.items))}{comma}{code.closer}"


def wrapped(code: Code, indent: int, prefix: str = "", suffix: str = "") -> list[str]:
    """Lines of at most WIDTH characters if brackets allow it, broken as a formatter does."""
    margin = INDENT * indent
    line = f"{margin}{prefix}{flat(code)}{suffix}"
    if isinstance(code, Labelled):
        return wrapped(code.value, indent, prefix + code.label, suffix)
    if len(line) <= WIDTH or isinstance(code, str) or not code.items:
        return [line]
    inside = f"{margin}{INDENT}{', '.join(map(flat, code.items))}"
    if code.head and len(inside) <= WIDTH:  # all arguments of a call on one line
        body = [inside]
    else:
        body = [text for item in code.items for text in wrapped(item, indent + 1, suffix=",")]
    return [f"{margin}{prefix}{code.head}{code.opener}", *body, f"{margin}{code.closer}{suffix}"]


def called(head: str, items: Iterable[Code]) -> Group:
    return Group(head, "(", tuple(items), ")")


# ---------------------------------------------------------------- names


def plain(name: Any) -> bool:
    """True for an identifier that Python reads back as exactly this name."""
    return (
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and unicodedata.normalize("NFKC", name) == name
        and not name.startswith("__")  # mangled inside of classes
    )


def attribute(owner: str, name: str) -> str:
    """The read of an attribute of any name."""
    return f"{owner}.{name}" if plain(name) else f"getattr({owner}, {quoted(name)})"


class Names:
    """Names, each given once; `taken` are not free."""

    def __init__(self, taken: Iterable[str] = (), *, separator: str = "_") -> None:
        self.taken = {*RESERVED, *taken}
        self._separator = separator
        self._counts: dict[str, int] = {}  # of a name: its numbers up to this one are taken

    def give(self, wanted: str) -> str:
        """A free identifier near to the wanted name."""
        text = unicodedata.normalize("NFKC", str(wanted))
        name = "".join(c if f"a{c}".isidentifier() else "_" for c in text)
        if name.startswith("__"):  # mangled inside of classes
            name = f"_{name.lstrip('_')}"
        if not name.isidentifier() or keyword.iskeyword(name):
            name = f"_{name}"
        free, count = name, self._counts.get(name, 0 if self._separator else 1)
        while free in self.taken:
            count += 1
            free = f"{name}{self._separator}{count}"
        self._counts[name] = count
        self.taken.add(free)
        return free


def harmless(text: str) -> str:
    """Text for a docstring or a comment: nothing in it can end either."""
    return re.sub(r"[^\w.,:;()\[\]+\-> ]", "?", text, flags=re.ASCII)


# ---------------------------------------------------------------- values


def mapping(items: Mapping[Any, Code]) -> Group:
    """A dict of these keys and the source of their values."""
    return Group("", "{", tuple(Labelled(f"{flat(literal(k))}: ", code) for k, code in items.items()), "}")


def quoted(text: str) -> str:
    """A string literal; what is not printable is escaped."""
    mark = "'" if '"' in text and "'" not in text else '"'
    escaped = text.replace("\\", "\\\\").replace(mark, f"\\{mark}")
    characters = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in escaped)
    return f"{mark}{''.join(characters)}{mark}"


def _number(value: Any) -> str:
    if isinstance(value, int):
        return repr(value) if abs(value) < 1 << 64 else hex(value)  # Python bounds the length of decimal texts
    if isinstance(value, complex):
        return f"complex({_number(value.real)}, {_number(value.imag)})"
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _simple(value: Any) -> str | None:
    """Literals of values that hold no others; None for other values."""
    if value is None or value is True or value is False:
        return str(value)
    if value is Ellipsis:
        return "..."
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in (int, float, complex):
        return _number(value)
    if type(value) is str:
        return quoted(value)
    if type(value) is bytes:
        return repr(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return quoted(np.dtype(value).name)
    return value.__name__ if isinstance(value, type) and value in (bool, int, float, complex) else None


def literal(value: Any, special: Callable[[Any], Code | None] = lambda value: None) -> Code:
    """A value as source; `special` gives that of values without a literal, also of those in containers.

    Raises GraphError for a value of a kind that has no literal.
    """
    code = special(value)
    code = _simple(value) if code is None else code
    if code is not None:
        return code
    if type(value) in (tuple, list):
        opener, closer = "()" if type(value) is tuple else "[]"
        return Group("", opener, tuple(literal(v, special) for v in value), closer)
    if type(value) in (dict, OrderedDict):
        return mapping({k: literal(v, special) for k, v in value.items()})
    if type(value) is slice:
        return called("slice", (literal(v, special) for v in (value.start, value.stop, value.step)))
    if isinstance(value, QuantizedDType):
        arguments = [literal(value.name), literal(value.scale)]
        arguments += [Labelled("zero_point=", literal(value.zero_point))] if value.zero_point else []
        arguments += [Labelled("axis=", literal(value.axis))] if value.axis is not None else []
        return called("quantized", arguments)
    raise GraphError(f"a {type(value).__module__}.{type(value).__qualname__} cannot be written as Python source")
