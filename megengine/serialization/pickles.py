"""Reading pickles without running them.

`pickletools` splits the stream into opcodes; a small stack machine here turns them into plain Python values and inert
records. No name in the stream is ever imported or called: `thaw` replaces the records whose global stands in a fixed
table, and refuses the rest.
"""

from __future__ import annotations

import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from megengine.core.errors import FileFormatError, MegEngineError

_MAX_DEPTH = 100
_ATOMS = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or function as it stands in a pickle; only a name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"[:200]


@dataclass(slots=True, eq=False)
class Record:
    """An object that the pickle wanted built: what was called, with what, and the state given to it afterwards."""

    target: Any
    args: Any
    state: Any = None
    items: list[Any] | None = None
    entries: list[tuple[Any, Any]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Persistent:
    """A reference to something outside the pickle (torch: a storage)."""

    value: Any


class _Mark:
    pass


_MARK = _Mark()


def _key(value: Any) -> Any:
    # NOTE: hashing a deeply nested tuple overflows the C stack, so keys are flat.
    flat = value if isinstance(value, tuple) else (value,)
    if all(isinstance(v, (*_ATOMS, Record, Global)) for v in flat):
        return value
    raise FileFormatError(f"pickle: a dict key is a {type(value).__name__}; expected text or numbers")


class _Machine:
    """The stack, the memo and one method per family of opcodes."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise FileFormatError("pickle: a mark where a value was expected; the file is damaged")
        return value

    def pop_mark(self) -> list[Any]:
        stack = self.stack
        for i in range(len(stack) - 1, -1, -1):
            if stack[i] is _MARK:
                values = stack[i + 1 :]
                del stack[i:]
                return values
        raise FileFormatError("pickle: no mark on the stack; the file is damaged")

    def top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise FileFormatError("pickle: a mark where a value was expected; the file is damaged")
        return self.stack[-1]

    def append(self, values: list[Any]) -> None:
        target = self.top()
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Record):
            target.items = (target.items or []) + values
        else:
            raise FileFormatError(f"pickle: items appended to a {type(target).__name__}; the file is damaged")

    def update(self, flat: list[Any]) -> None:
        target = self.top()
        if len(flat) % 2:
            raise FileFormatError("pickle: a key without a value; the file is damaged")
        pairs = [(_key(k), v) for k, v in zip(flat[::2], flat[1::2], strict=True)]
        if isinstance(target, dict):
            target.update(pairs)
        elif isinstance(target, Record):
            target.entries = (target.entries or []) + pairs
        else:
            raise FileFormatError(f"pickle: entries set on a {type(target).__name__}; the file is damaged")

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if not isinstance(target, Record):
            raise FileFormatError(f"pickle: state for a {type(target).__name__}; expected a recorded object")
        target.state = state

    def call(self, target: Any, args: Any) -> None:
        if not isinstance(target, (Global, Record)) or not isinstance(args, tuple):
            raise FileFormatError("pickle: a call of something that is not a name; the file is damaged")
        self.stack.append(Record(target, args))

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise FileFormatError("pickle: a global without a name; the file is damaged")
        self.stack.append(Global(module, name))

    def make_set(self) -> None:
        self.stack.append({_key(v) for v in self.pop_mark()})

    def add_items(self) -> None:
        values = self.pop_mark()
        target = self.top()
        if not isinstance(target, set):
            raise FileFormatError(f"pickle: set items for a {type(target).__name__}; the file is damaged")
        target.update(_key(v) for v in values)

    def reduce(self) -> None:
        args, target = self.pop(), self.pop()
        self.call(target, args)

    def new_with_keywords(self) -> None:
        keywords, args, target = self.pop(), self.pop(), self.pop()
        if keywords:
            raise FileFormatError(f"pickle: {target} is made with keyword arguments, which no supported file uses")
        self.call(target, args)

    def make_dict(self) -> None:
        flat = self.pop_mark()
        self.stack.append({})
        self.update(flat)

    def pop_any(self) -> None:
        self.stack.pop()

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.update([key, value])

    def tuple_of(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def remember(self, index: int) -> None:
        self.memo[index] = self.top()

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise FileFormatError(f"pickle: entry {index} is used before it is stored; the file is damaged")
        self.stack.append(self.memo[index])

    def name(self, text: str) -> None:
        module, _, name = text.partition(" ")
        self.stack.append(Global(module, name))

    def literal(self, value: Any) -> None:
        self.stack.append(value)


_LITERALS = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)

# opcode -> method(machine, argument)
_OPS: dict[str, Callable[[_Machine, Any], Any]] = {
    **{name: _Machine.literal for name in _LITERALS},
    "BYTEARRAY8": lambda m, a: m.literal(bytes(a)),
    "NONE": lambda m, a: m.literal(None),
    "NEWTRUE": lambda m, a: m.literal(True),
    "NEWFALSE": lambda m, a: m.literal(False),
    "MARK": lambda m, a: m.literal(_MARK),
    "EMPTY_LIST": lambda m, a: m.literal([]),
    "EMPTY_DICT": lambda m, a: m.literal({}),
    "EMPTY_TUPLE": lambda m, a: m.literal(()),
    "EMPTY_SET": lambda m, a: m.literal(set()),
    "LIST": lambda m, a: m.literal(m.pop_mark()),
    "TUPLE": lambda m, a: m.literal(tuple(m.pop_mark())),
    "TUPLE1": lambda m, a: m.tuple_of(1),
    "TUPLE2": lambda m, a: m.tuple_of(2),
    "TUPLE3": lambda m, a: m.tuple_of(3),
    "DICT": lambda m, a: m.make_dict(),
    "FROZENSET": lambda m, a: m.make_set(),
    "APPEND": lambda m, a: m.append([m.pop()]),
    "APPENDS": lambda m, a: m.append(m.pop_mark()),
    "SETITEM": lambda m, a: m.set_item(),
    "SETITEMS": lambda m, a: m.update(m.pop_mark()),
    "ADDITEMS": lambda m, a: m.add_items(),
    "POP": lambda m, a: m.pop_any(),
    "POP_MARK": lambda m, a: m.pop_mark(),
    "DUP": lambda m, a: m.literal(m.top()),
    "PUT": _Machine.remember,
    "BINPUT": _Machine.remember,
    "LONG_BINPUT": _Machine.remember,
    "MEMOIZE": lambda m, a: m.remember(len(m.memo)),
    "GET": _Machine.recall,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": lambda m, a: m.stack_global(),
    "REDUCE": lambda m, a: m.reduce(),
    "NEWOBJ": lambda m, a: m.reduce(),
    "NEWOBJ_EX": lambda m, a: m.new_with_keywords(),
    "BUILD": lambda m, a: m.build(),
    "PERSID": lambda m, a: m.literal(Persistent(a)),
    "BINPERSID": lambda m, a: m.literal(Persistent(m.pop())),
    "PROTO": lambda m, a: None,
    "FRAME": lambda m, a: None,
}


def read_records(file: BinaryIO) -> Any:
    """One pickle from the current position of a file, as plain values and records; nothing is run.

    The file is left after the pickle's end. Raises FileFormatError for anything that is not a well-formed pickle.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == "STOP":
                return machine.pop()
            handler = _OPS.get(opcode.name)
            if handler is None:
                raise FileFormatError(f"pickle: opcode {opcode.name} is used by no supported file")
            handler(machine, argument)
    except MegEngineError:
        raise
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeError, MemoryError) as exc:
        raise FileFormatError(f"not a readable pickle: {str(exc)[:200] or type(exc).__name__}") from exc
    raise FileFormatError("pickle: the file ends in the middle")


Builder = Callable[[Record], Any]


class _Thaw:
    def __init__(self, table: Mapping[str, Builder], persistent: Callable[[Any], Any] | None, names: frozenset) -> None:
        self.table, self.persistent, self.names = table, persistent, names
        self.done: dict[int, Any] = {}
        self.open: set[int] = set()

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, _ATOMS):
            return value
        key = id(value)
        if key in self.done:
            return self.done[key]
        if key in self.open:
            raise FileFormatError("pickle: an object contains itself; expected a tree of values")
        if depth > _MAX_DEPTH:
            raise FileFormatError(f"pickle: values are nested deeper than {_MAX_DEPTH}")
        self.open.add(key)
        result = self.done[key] = self.convert(value, depth + 1)
        self.open.discard(key)
        return result

    def convert(self, value: Any, depth: int) -> Any:
        if isinstance(value, (list, tuple, set)):
            return type(value)(self(v, depth) for v in value)
        if isinstance(value, dict):
            return {self(k, depth): self(v, depth) for k, v in value.items()}
        if isinstance(value, Persistent) and self.persistent is not None:
            return self.persistent(self(value.value, depth))
        if isinstance(value, Global):
            if str(value) in self.names or str(value) in self.table:
                return value
            raise _refused(value)
        if isinstance(value, Record) and isinstance(value.target, Global):
            return self.build(value, depth)
        raise FileFormatError(f"pickle: a {type(value).__name__} where a value was expected; the file is damaged")

    def build(self, record: Record, depth: int) -> Any:
        builder = self.table.get(str(record.target))
        if builder is None:
            raise _refused(record.target)
        ready = Record(record.target, self(record.args, depth), self(record.state, depth))
        ready.items = None if record.items is None else [self(v, depth) for v in record.items]
        if record.entries is not None:
            ready.entries = [(self(k, depth), self(v, depth)) for k, v in record.entries]
        try:
            return builder(ready)
        except MegEngineError:
            raise
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError) as exc:
            raise FileFormatError(f"pickle: {record.target} has unexpected contents: {str(exc)[:200]}") from exc


def _refused(name: Any) -> FileFormatError:
    start = f"the file wants {str(name)!r}, which is not on the list of names that are loaded; nothing was run. "
    if str(name).startswith("megengine.traced_module."):
        return FileFormatError(start + "It holds a traced module, not weights; save its state_dict() with MegEngine")
    if str(name).startswith("megengine."):
        return FileFormatError(start + "This part of MegEngine is not supported in files; save a state_dict() instead")
    return FileFormatError(
        start + "If it is a class of yours and you trust the file, pass it: load(file, allow=[TheClass])"
    )


def thaw(
    value: Any,
    table: Mapping[str, Builder],
    *,
    names: frozenset[str] = frozenset(),
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Replace every record by what the table's builder makes of it, containers included.

    `names` are globals that may stand as plain values. Raises FileFormatError for every other name, and for cycles.
    """
    return _Thaw(table, persistent, names)(value)


def _ordered(record: Record) -> OrderedDict:
    pairs = record.args[0] if record.args else ()
    return OrderedDict([*((k, v) for k, v in pairs), *(record.entries or ())])


def _scalar_of(kind: Callable[[Any], Any]) -> Builder:
    def build(record: Record) -> Any:
        (value,) = record.args
        if not isinstance(value, (list, tuple, set, dict)):
            raise FileFormatError(f"pickle: {record.target} of a {type(value).__name__}; expected a container")
        return kind(value)

    return build


def _encoded(record: Record) -> bytes:
    text, encoding = record.args
    if encoding != "latin1":
        raise FileFormatError(f"pickle: bytes in encoding {encoding!r}; expected latin1")
    return text.encode("latin1")


# Python 2 names them __builtin__
_BUILTINS: dict[str, Builder] = {
    f"{module}.{kind.__name__}": _scalar_of(kind)
    for module in ("builtins", "__builtin__")
    for kind in (set, frozenset, list, tuple)
}
PLAIN: dict[str, Builder] = {
    **_BUILTINS,
    "collections.OrderedDict": _ordered,
    "_codecs.encode": _encoded,
    "builtins.bytearray": lambda r: bytes(r.args[0]) if isinstance(r.args[0], (bytes, list)) else b"",
}
