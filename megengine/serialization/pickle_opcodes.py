"""The opcodes of pickles, read into plain Python values and inert records.

No name in the stream is ever imported or called.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from megengine.core.collecting import collection_paused
from megengine.core.errors import FileFormatError, MegEngineError
from megengine.serialization.pickle_stream import ATOMS, Global, Machine, Opcode, Persistent, Record

_UINT32 = struct.Struct("<I").unpack_from


def read_records(file: BinaryIO) -> Any:
    """One pickle from the current position of a seekable file, as plain values and records; nothing is run.

    The file is left after the pickle's end. Byte strings longer than 256 bytes are Blobs. Raises FileFormatError for
    anything that is not a well-formed pickle.
    """
    try:
        with collection_paused():
            return Machine(file).run(_OPS, ord("."))
    except MegEngineError:
        raise
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, struct.error) as exc:
        raise FileFormatError(f"not a readable pickle: {str(exc)[:200] or type(exc).__name__}") from exc


def _key(value: Any) -> Any:
    # NOTE: hashing a deeply nested tuple overflows the C stack, so keys are flat; hashes of long integers can be made
    # to collide, which makes a dict slow.
    flat = value if isinstance(value, tuple) else (value,)
    for v in flat:
        if not isinstance(v, (*ATOMS, Record, Global)) or (isinstance(v, int) and v.bit_length() > 64):
            raise FileFormatError(f"pickle: a dict key is a {type(value).__name__}; expected text or 64-bit numbers")
    return value


def _unknown(m: Machine, at: int) -> int:
    if at > m.end:
        raise FileFormatError("not a readable pickle: the file ends in the middle")
    raise FileFormatError(f"pickle: opcode {m.data[at - 1 : at]!r} is used by no supported file")


def _constant(value: Any) -> Opcode:
    return _fresh(lambda: value)


def _fresh(kind: Callable[[], Any]) -> Opcode:
    def push(m: Machine, at: int) -> int:
        m.stack.append(kind())
        return at

    return push


def _skip(count: int) -> Opcode:
    return lambda m, at: at + count


def _number(width: int, *, signed: bool) -> Opcode:
    def push(m: Machine, at: int) -> int:
        m.stack.append(int.from_bytes(m.data[at : at + width], "little", signed=signed))
        return at + width

    return push


def _float64(m: Machine, at: int) -> int:
    m.stack.append(struct.unpack_from(">d", m.data, at)[0])
    return at + 8


def _byte(m: Machine, at: int) -> int:
    m.stack.append(m.data[at])
    return at + 1


def _length(m: Machine, at: int, width: int) -> int:
    return int.from_bytes(m.data[at : at + width], "little")


def _sized(width: int, convert: Callable[[bytes], Any]) -> Opcode:
    """A value behind its length in `width` bytes."""

    def push(m: Machine, at: int) -> int:
        raw, at = m.take(at + width, _length(m, at, width))
        m.stack.append(convert(raw))
        return at

    return push


def _bytes(width: int) -> Opcode:
    return lambda m, at: m.blob(at + width, _length(m, at, width))


def _line(convert: Callable[[bytes], Any]) -> Opcode:
    """A value written as a line of text."""

    def push(m: Machine, at: int) -> int:
        raw, at = m.line(at)
        m.stack.append(convert(raw))
        return at

    return push


def _utf8(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _latin1(raw: bytes) -> str:
    return raw.decode("latin-1")


def _integer(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _decimal(raw: bytes) -> int:
    return {b"00": False, b"01": True}[raw] if raw in (b"00", b"01") else int(raw.removesuffix(b"L"))


def _quoted(raw: bytes) -> str:
    if len(raw) < 2 or raw[:1] not in (b"'", b'"') or raw[-1:] != raw[:1]:
        raise FileFormatError("pickle: a string without quotes; the file is damaged")
    return _latin1(codecs.escape_decode(raw[1:-1])[0])  # type: ignore[attr-defined]  # typeshed leaves it out


def _mark(m: Machine, at: int) -> int:
    m.below.append(m.stack)
    m.stack = []
    return at


def _pop(m: Machine, at: int) -> int:
    if m.stack:
        m.stack.pop()
    else:
        m.pop_mark()
    return at


def _pop_mark(m: Machine, at: int) -> int:
    m.pop_mark()
    return at


def _duplicate(m: Machine, at: int) -> int:
    m.stack.append(m.stack[-1])
    return at


def _container(make: Callable[[list[Any]], Any]) -> Opcode:
    """The values above the last mark as one value."""

    def push(m: Machine, at: int) -> int:
        value = make(m.pop_mark())
        m.stack.append(value)
        return at

    return push


def _tuple_of(count: int) -> Opcode:
    def push(m: Machine, at: int) -> int:
        if len(m.stack) < count:
            raise FileFormatError("pickle: too few values for a tuple; the file is damaged")
        m.stack[-count:] = [tuple(m.stack[-count:])]
        return at

    return push


def _append(target: Any, values: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(values)
    elif isinstance(target, Record):
        target.items = target.items or []
        target.items.extend(values)
    else:
        raise FileFormatError(f"pickle: items appended to a {type(target).__name__}; the file is damaged")


def _update(target: Any, flat: list[Any]) -> Any:
    """The dict or record with keys and values that stand one behind the other."""
    if len(flat) % 2:
        raise FileFormatError("pickle: a key without a value; the file is damaged")
    keys = flat[::2]
    if set(map(type, keys)) != {str}:
        keys = [_key(k) for k in keys]
    pairs = zip(keys, flat[1::2], strict=True)
    if isinstance(target, dict):
        target.update(pairs)
    elif isinstance(target, Record):
        target.entries = target.entries or []
        target.entries.extend(pairs)
    else:
        raise FileFormatError(f"pickle: entries set on a {type(target).__name__}; the file is damaged")
    return target


def _add_items(target: Any, values: list[Any]) -> None:
    if not isinstance(target, set):
        raise FileFormatError(f"pickle: set items for a {type(target).__name__}; the file is damaged")
    target.update(_key(v) for v in values)


def _filled(fill: Callable[[Any, list[Any]], Any], count: int = 0) -> Opcode:
    """Fill a container with the `count` values above it on the stack, or with those above the last mark."""

    def change(m: Machine, at: int) -> int:
        if count:
            values = m.stack[-count:]
            del m.stack[-count:]
        else:
            values = m.pop_mark()
        fill(m.stack[-1], values)
        return at

    return change


def _memoize(m: Machine, at: int) -> int:
    m.memo[len(m.memo)] = m.stack[-1]
    return at


def _put(width: int) -> Opcode:
    def push(m: Machine, at: int) -> int:
        m.memo[_length(m, at, width)] = m.stack[-1]
        return at + width

    return push


def _put_line(m: Machine, at: int) -> int:
    raw, at = m.line(at)
    m.memo[int(raw)] = m.stack[-1]
    return at


def _get_long(m: Machine, at: int) -> int:
    m.stack.append(m.memo[_UINT32(m.data, at)[0]])
    return at + 4


def _get_byte(m: Machine, at: int) -> int:
    m.stack.append(m.memo[m.data[at]])
    return at + 1


def _get_line(m: Machine, at: int) -> int:
    raw, at = m.line(at)
    m.stack.append(m.memo[int(raw)])
    return at


def _global(m: Machine, at: int) -> int:
    module, at = m.line(at)
    name, at = m.line(at)
    m.stack.append(Global(_utf8(module), _utf8(name)))
    return at


def _stack_global(m: Machine, at: int) -> int:
    name, module = m.stack.pop(), m.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise FileFormatError("pickle: a global without a name; the file is damaged")
    m.stack.append(Global(module, name))
    return at


def _call(m: Machine, at: int) -> int:
    args, target = m.stack.pop(), m.stack.pop()
    if not isinstance(target, (Global, Record)) or not isinstance(args, tuple):
        raise FileFormatError("pickle: a call of something that is not a name; the file is damaged")
    m.stack.append(Record(target, args))
    return at


def _call_with_keywords(m: Machine, at: int) -> int:
    if m.stack.pop():
        raise FileFormatError("pickle: an object is made with keyword arguments, which no supported file uses")
    return _call(m, at)


def _build(m: Machine, at: int) -> int:
    state, target = m.stack.pop(), m.stack[-1]
    if not isinstance(target, Record):
        raise FileFormatError(f"pickle: state for a {type(target).__name__}; expected a recorded object")
    target.state = state
    return at


def _persistent(m: Machine, at: int) -> int:
    m.stack.append(Persistent(m.stack.pop()))
    return at


_TABLE: dict[bytes, Opcode] = {
    # numbers and text
    **{b"N": _constant(None), b"\x88": _constant(True), b"\x89": _constant(False)},
    **{b"I": _line(_decimal), b"L": _line(_decimal), b"F": _line(float), b"G": _float64},
    **{
        b"J": _number(4, signed=True),
        b"K": _byte,
        b"M": _number(2, signed=False),
        b"\x8a": _sized(1, _integer),
        b"\x8b": _sized(4, _integer),
    },
    **{b"S": _line(_quoted), b"T": _sized(4, _latin1), b"U": _sized(1, _latin1)},
    **{b"V": _line(lambda raw: raw.decode("raw-unicode-escape")), b"X": _sized(4, _utf8)},
    **{b"\x8c": _sized(1, _utf8), b"\x8d": _sized(8, _utf8)},
    **{b"B": _bytes(4), b"C": _bytes(1), b"\x8e": _bytes(8), b"\x96": _bytes(8)},
    # containers
    **{b"(": _mark, b"0": _pop, b"1": _pop_mark, b"2": _duplicate},
    **{b"]": _fresh(list), b"}": _fresh(dict), b")": _constant(()), b"\x8f": _fresh(set)},
    **{b"l": _container(list), b"t": _container(tuple)},
    **{b"\x85": _tuple_of(1), b"\x86": _tuple_of(2), b"\x87": _tuple_of(3)},
    **{b"d": _container(lambda flat: _update({}, flat)), b"\x91": _container(lambda values: set(map(_key, values)))},
    **{b"a": _filled(_append, 1), b"e": _filled(_append), b"s": _filled(_update, 2), b"u": _filled(_update)},
    b"\x90": _filled(_add_items),
    # the memo
    **{b"p": _put_line, b"q": _put(1), b"r": _put(4), b"\x94": _memoize},
    **{b"g": _get_line, b"h": _get_byte, b"j": _get_long},
    # objects
    **{b"c": _global, b"\x93": _stack_global, b"R": _call, b"\x81": _call, b"\x92": _call_with_keywords, b"b": _build},
    **{b"P": _line(lambda raw: Persistent(_utf8(raw))), b"Q": _persistent},
    # protocol and frame
    **{b"\x80": _skip(1), b"\x95": _skip(8)},
}
_OPS: list[Opcode] = [_TABLE.get(bytes([code]), _unknown) for code in range(256)]
