"""Values from the records of a pickle (`pickle_opcodes`).

`Thaw` replaces each record by the value that the builder of its global makes. Globals without a builder in a fixed
table are refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, MegEngineError, brief
from megengine.core.text import counted
from megengine.serialization.pickle_opcodes import read_records
from megengine.serialization.pickle_stream import ATOMS, Blob, Global, Persistent, Record

__all__ = ["NUMBER_TYPES", "PLAIN", "Blob", "Builder", "Global", "Owning", "Record", "Thaw", "Whole", "read_records"]

_MAX_DEPTH = 100
_MAX_OWNED = 16  # more arguments than an array or a tensor has
_MAX_REPEATED = 1 << 20  # entries of containers and characters of long text that are in more than one place
_LONG_TEXT = 1000
_PLAIN_TYPES = frozenset((int, float, bool, type(None)))
# classes of numbers, which stand for dtypes (`x.astype(np.float32)`), by the names that pickles give them
NUMBER_TYPES: dict[str, type] = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in (bool, int, float, complex, *np.sctypeDict.values())
    if kind.__module__ == "builtins" or issubclass(kind, np.number)
} | {"numpy.bool_": np.bool_}


Builder = Callable[[Record], Any]


@dataclass(frozen=True, slots=True)
class Owning:
    """A builder that owns its arguments and state: it gets Blobs as they are, and arrays made for it alone."""

    build: Builder

    def __call__(self, record: Record) -> Any:
        return self.build(record)


@dataclass(frozen=True, slots=True)
class Whole:
    """A reader of a record as it was read, in which nothing is built yet; `allow` are the caller's own classes."""

    read: Callable[..., Any]
    allow: Sequence[type] = ()

    def __call__(self, record: Record) -> Any:
        return self.read(record, allow=self.allow)


class Thaw:
    """Called with records, the values that builders make of them, containers included.

    `names` are globals that may be plain values. Raises FileFormatError for every other name, and for cycles. An object
    that is in several places of the file is one object in all values of one Thaw.
    """

    def __init__(
        self,
        table: Mapping[str, Builder],
        *,
        names: frozenset[str] = frozenset(),
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.table, self.persistent, self.names = table, persistent, names
        self.done: dict[int, tuple[Any, int]] = {}
        self.kept: list[Any] = []  # the objects of these ids
        self.open: set[int] = set()
        self.size = self.repeated = 0

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, ATOMS):
            if isinstance(value, (str, bytes)) and len(value) > _LONG_TEXT:
                return self.text(value)
            return value
        key = id(value)
        if key in self.done:
            result, size = self.done[key]
            self.repeat(size)
            return result
        if key in self.open:
            raise FileFormatError("pickle: an object contains itself; expected a tree of values")
        if depth > _MAX_DEPTH:
            raise FileFormatError(f"pickle: values are nested deeper than {_MAX_DEPTH}")
        self.open.add(key)
        before = self.size
        result = self.convert(value, depth + 1)
        if isinstance(result, (list, tuple, dict, set)):
            self.size += len(result)
        else:
            self.size = before
        self.done[key] = result, self.size - before
        self.kept.append(value)
        self.open.discard(key)
        return result

    def repeat(self, size: int) -> None:
        """Bound the size of values in several places, counted once for each place: printed or copied, the values of
        a small file could otherwise fill the memory.
        """
        self.size += size
        self.repeated += size
        if self.repeated > _MAX_REPEATED:
            raise FileFormatError(f"pickle: over {_MAX_REPEATED} values are in several places; expected a tree")

    def text(self, text: str | bytes) -> str | bytes:
        """Long text counts as repeated from its second place on."""
        if id(text) in self.done:
            self.repeat(len(text))
        else:
            self.done[id(text)] = text, len(text)
        return text

    def convert(self, value: Any, depth: int) -> Any:
        """The value of a container, name or record that is new to this Thaw."""
        if isinstance(value, dict):
            plain = _PLAIN_TYPES
            return {
                (k if type(k) is str and len(k) <= _LONG_TEXT else _flat_key(self(k, depth))): (
                    v if type(v) in plain else self(v, depth)
                )
                for k, v in value.items()
            }
        if isinstance(value, set):
            return {_flat_key(self(v, depth)) for v in value}
        if isinstance(value, (list, tuple)):
            return type(value)([v if type(v) in _PLAIN_TYPES else self(v, depth) for v in value])
        if isinstance(value, Blob):
            return value.copy_bytes()
        if isinstance(value, Persistent) and self.persistent is not None:
            return self.persistent(self(value.value, depth))
        if isinstance(value, Global):
            if str(value) in NUMBER_TYPES:
                return NUMBER_TYPES[str(value)]
            if str(value) in self.names or str(value) in self.table:
                return value
            raise _refused(value)
        if isinstance(value, Record) and isinstance(value.target, Global):
            return self.build(value, self.builder(value), depth)
        raise FileFormatError(f"pickle: a {type(value).__name__} where a value was expected; the file is damaged")

    def builder(self, record: Record) -> Builder:
        """The builder of a record's global."""
        builder = self.table.get(str(record.target))
        if builder is None:
            raise _refused(record.target)
        return builder

    def build(self, record: Record, builder: Builder, depth: int) -> Any:
        """The object that a record describes."""
        if isinstance(builder, Whole):
            return builder(record)
        take = self.owned if isinstance(builder, Owning) else self
        ready = Record(record.target, take(record.args, depth), take(record.state, depth))
        ready.items = None if record.items is None else [self(v, depth) for v in record.items]
        if record.entries is not None:
            ready.entries = [(_flat_key(self(k, depth)), self(v, depth)) for k, v in record.entries]
        try:
            return builder(ready)
        except MegEngineError:
            raise
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError) as exc:
            raise FileFormatError(f"pickle: {record.target} has unexpected contents: {str(exc)[:200]}") from exc

    def owned(self, values: Any, depth: int) -> Any:
        """Arguments or state of an owning builder."""
        if isinstance(values, tuple) and len(values) > _MAX_OWNED:
            raise FileFormatError(f"pickle: an array or tensor of {counted(len(values), 'part')}; the file is damaged")
        return tuple([self.own(v, depth) for v in values]) if isinstance(values, tuple) else self(values, depth)

    def own(self, value: Any, depth: int) -> Any:
        """One argument of an owning builder: arrays are made for it alone."""
        if isinstance(value, Blob):
            return value
        if isinstance(value, Record) and isinstance(value.target, Global):
            builder = self.builder(value)
            if isinstance(builder, Owning):
                if depth > _MAX_DEPTH:
                    raise FileFormatError(f"pickle: values are nested deeper than {_MAX_DEPTH}")
                return self.build(value, builder, depth + 1)
        return self(value, depth)


def _flat_key(key: Any) -> Any:
    """A key of a dict. The hash of nested tuples that share parts takes exponential time: they are refused."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(part, (tuple, frozenset)) or type(part).__hash__ is None for part in parts):
        raise FileFormatError(f"pickle: a dict key is a nested {type(key).__name__}; expected text or numbers")
    return key


def _refused(name: Any) -> FileFormatError:
    start = f"the file wants {str(name)!r}, which is not on the list of names that are loaded; nothing was run. "
    if str(name).startswith("megengine.traced_module."):
        return FileFormatError(start + "It holds a traced module, not weights; save its state_dict() with MegEngine")
    if str(name).startswith("megengine."):
        return FileFormatError(start + "This part of MegEngine is not supported in files; save a state_dict() instead")
    return FileFormatError(start + "If it is yours and you trust the file, pass it: load(file, allow=[TheClass])")


def _ordered(record: Record) -> OrderedDict:
    pairs = record.args[0] if record.args else ()
    return OrderedDict([*((_flat_key(k), v) for k, v in pairs), *(record.entries or ())])


def _scalar_of(kind: Callable[[Any], Any]) -> Builder:
    def build(record: Record) -> Any:
        (value,) = record.args
        if not isinstance(value, (list, tuple, set, dict)):
            raise FileFormatError(f"pickle: {record.target} of a {type(value).__name__}; expected a container")
        return kind(map(_flat_key, value) if kind in (set, frozenset) else value)

    return build


def _encoded(record: Record) -> bytes:
    text, encoding = record.args
    if encoding != "latin1":
        raise FileFormatError(f"pickle: bytes in encoding {brief(encoding)}; expected latin1")
    return text.encode("latin1")


def _byte_string(record: Record) -> bytes:
    (value,) = record.args or (b"",)
    if isinstance(value, list):  # of numbers: what a bytearray gives in the oldest protocols
        return bytes(value)
    return value if isinstance(value, bytes) else b""


PLAIN: dict[str, Builder] = {
    f"{module}.{name}": builder
    for module in ("builtins", "__builtin__")  # the latter in Python 2
    for name, builder in {
        **{kind.__name__: _scalar_of(kind) for kind in (set, frozenset, list, tuple)},
        **dict.fromkeys(("bytes", "bytearray"), _byte_string),
    }.items()
}
PLAIN |= {"collections.OrderedDict": _ordered, "_codecs.encode": _encoded}
