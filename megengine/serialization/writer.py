"""Writing pickles that MegEngine 1.x and this package read: arrays, tensors, modules and plain containers.

The stream names `numpy.core`, as NumPy 1 does, and never anything but the fixed set of globals and module classes.
"""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, bfloat16
from megengine.core.errors import DTypeError
from megengine.core.tensor.dtype import QuantDtypeMeta
from megengine.module import Module
from megengine.serialization.arrays import quantized_of, with_metadata
from megengine.serialization.objects import OBJECTS, module_state
from megengine.serialization.pickles import NUMBER_TYPES
from megengine.serialization.standard import WRITTEN, path_of
from megengine.tensor import Parameter, Tensor

_DEVICE = "xpux:0"  # MegEngine's name of the default device
_MAX_DEPTH = 90
_LONG = 1 << 16  # bytes from which an array is written from where it lies
_TUPLES = {0: pickle.EMPTY_TUPLE, 1: pickle.TUPLE1, 2: pickle.TUPLE2, 3: pickle.TUPLE3}
_WORDS = {type(None): pickle.NONE}
_SMALL = [pickle.BININT1 + bytes((number,)) for number in range(256)]
_ORDERS = {"=": "<", "|": "|", "<": "<", ">": ">"}


# how kinds of objects of other packages are written inside of containers: class -> method(writer, object)
KINDS: dict[type, Callable[[Any, Any], None]] = {}


class PickleWriter:
    """Builds a pickle from known opcodes; subclasses add kinds of objects.

    Long arrays are not copied: the content is a list of buffers, some of them the memory of the arrays.
    """

    # methods for further kinds, which a subclass adds; they are tried first
    kinds: tuple[tuple[Any, Callable[[Any, Any], None]], ...] = ()

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.out = bytearray(pickle.PROTO + b"\x04")
        # value that was written -> the opcode that recalls it
        self.memo: dict[int, bytes] = {}
        self.dtypes: dict[np.dtype, bytes] = {}
        self.texts: dict[str, bytes] = {}
        self.names: dict[str, bytes] = {}
        self.count = 0  # entries of the reader's memo
        self.kept: list[Any] = []  # the objects of the memo's ids, which must live
        self.depth = 0
        self.methods: dict[type, Callable[[Any, Any], None]] = dict(_ATOMS)

    def content(self) -> list[Any]:
        """The pickle so far, ended, as buffers to be written one after the other."""
        return [*self.done, self.out + pickle.STOP]

    def put(self, *codes: bytes) -> None:
        for code in codes:
            self.out += code

    def remember(self, value: Any) -> None:
        self.memo[id(value)] = self.memoized()
        self.kept.append(value)

    def memoized(self) -> bytes:
        """Memoize the value on top of the stack; gives the opcode that recalls it."""
        index, self.count = self.count, self.count + 1
        self.out += pickle.MEMOIZE
        return pickle.BINGET + bytes((index,)) if index < 256 else pickle.LONG_BINGET + struct.pack("<I", index)

    def write(self, value: Any) -> None:
        kind = type(value)
        known = self.texts.get(value) if kind is str else _WORDS.get(kind) or self.memo.get(id(value))
        if known is not None:
            self.out += known
            return
        method = self.methods.get(kind) or self.method_of(value)
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise DTypeError(f"save: values are nested deeper than {_MAX_DEPTH}, or contain themselves")
        method(self, value)
        self.depth -= 1

    def method_of(self, value: Any) -> Callable[[Any, Any], None]:
        standard = ((type(value), PickleWriter.standard),) if path_of(type(value)) in WRITTEN else ()
        method = next(
            (m for kinds, m in (*self.kinds, *KINDS.items(), *standard, *_METHODS) if isinstance(value, kinds)), None
        )
        if method is None and _path(value) in OBJECTS:
            method = PickleWriter.known_object
        if isinstance(value, type):  # only classes of numbers can be written
            if value in _NUMBERS:
                return PickleWriter.number_type
            raise DTypeError(f"save: cannot write the class {value.__qualname__}; expected values, or a dtype's class")
        if method is None:
            raise DTypeError(
                f"save: cannot write a {type(value).__name__}; expected numbers, text, arrays, tensors, modules, and "
                "lists, tuples, dicts of them" + "; give its network, traced()" * hasattr(value, "traced")
            )
        self.methods[type(value)] = method
        return method

    def atom(self, value: Any) -> None:
        self.out += pickle.dumps(value, 2)[2:-1]  # without its head and end

    def boolean(self, value: bool) -> None:
        self.out += pickle.NEWTRUE if value else pickle.NEWFALSE

    def integer(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += _SMALL[value]
        else:
            self.atom(int(value))

    def text(self, value: str) -> None:
        if value in self.texts:
            self.out += self.texts[value]
            return
        raw = value.encode("utf-8", "surrogatepass")
        size = len(raw)
        self.out += (
            pickle.SHORT_BINUNICODE + bytes((size,)) if size < 256 else pickle.BINUNICODE8 + struct.pack("<Q", size)
        )
        self.out += raw
        self.texts[value] = self.memoized()

    def bytes_(self, value: Any) -> None:
        """Bytes, or the memory of an array."""
        self.out += pickle.BINBYTES8 + struct.pack("<Q", len(value))
        if len(value) < _LONG:
            self.out += value
        else:
            self.done += [self.out, value]
            self.out = bytearray()

    def name(self, path: str) -> None:
        if path in self.names:
            self.out += self.names[path]
            return
        module, _, name = path.rpartition(".")
        self.text(module)
        self.text(name)
        self.out += pickle.STACK_GLOBAL
        self.names[path] = self.memoized()

    def list_(self, value: list) -> None:
        self.out += pickle.EMPTY_LIST
        self.remember(value)
        if value:
            self.out += pickle.MARK
            for item in value:
                self.write(item)
            self.out += pickle.APPENDS

    def tuple_(self, value: tuple) -> None:
        if len(value) > 3:
            self.out += pickle.MARK
        for item in value:
            self.write(item)
        self.out += _TUPLES.get(len(value), pickle.TUPLE)

    def dict_(self, value: dict) -> None:
        if isinstance(value, OrderedDict):
            self.name("collections.OrderedDict")
            self.out += pickle.EMPTY_TUPLE + pickle.REDUCE
        else:
            self.out += pickle.EMPTY_DICT
        self.remember(value)
        if value:
            self.out += pickle.MARK
            for key, item in value.items():
                self.write(key)
                self.write(item)
            self.out += pickle.SETITEMS

    def set_(self, value: set) -> None:
        self.put(pickle.EMPTY_SET, pickle.MARK)
        for item in sorted(value, key=repr):
            self.write(item)
        self.put(pickle.ADDITEMS)

    def standard(self, value: Any) -> None:
        """A value of a class of Python's own."""
        parts = WRITTEN[path_of(type(value))](value)
        if parts is None:
            return self.dict_(value)
        self.name(path_of(type(value)))
        self.put(pickle.MARK)
        for part in parts.args:
            if isinstance(part, type):
                self.name(path_of(part))
            else:
                self.write(part)
        self.put(pickle.TUPLE, pickle.REDUCE)
        self.remember(value)
        if parts.state is not None:
            self.dict_(parts.state)
            self.put(pickle.BUILD)
        if parts.entries:
            self.put(pickle.MARK)
            for key, item in parts.entries.items():
                self.write(key)
                self.write(item)
            self.put(pickle.SETITEMS)
        if parts.items:
            self.put(pickle.MARK)
            for item in parts.items:
                self.write(item)
            self.put(pickle.APPENDS)
        return None

    def dtype(self, value: np.dtype) -> None:
        plain = value.metadata is None  # one that was read from a file is another object than NumPy's own
        known = self.dtypes.get(value) if plain else self.memo.get(id(value))
        if known is not None:
            self.out += known
            return
        if value.kind not in "biufcUS" and value != bfloat16:
            raise DTypeError(f"save: cannot write {value}, a type of elements; expected numbers or text")
        meta = quantized_of(value) and value.metadata
        self.name("numpy.dtype")
        if value == bfloat16:
            self.name("megengine.core._imperative_rt.pybfloat16")
            state: tuple = (3, "<", None, None, None, 2, 2, 112)
        else:
            self.text(value.str[1:])
            sizes = (value.itemsize, value.alignment, value.flags) if value.kind in "US" else (-1, -1, 0)
            state = (4 if meta else 3, _ORDERS[value.byteorder], None, None, None, *sizes)
        self.put(pickle.NEWFALSE, pickle.NEWTRUE, pickle.TUPLE3, pickle.REDUCE)
        self.remember(value)
        if plain:
            self.dtypes[value] = self.memo[id(value)]
        self.tuple_((*state, dict(meta)) if meta else state)
        self.put(pickle.BUILD)

    def array(self, value: np.ndarray, dtype: np.dtype | None = None) -> None:
        dtype = value.dtype if dtype is None else dtype
        if dtype.kind not in "biufcUS" and dtype != bfloat16:
            raise DTypeError(f"save: cannot write an array of {dtype}; expected numbers or text")
        self.name("numpy.core.multiarray._reconstruct")
        self.name("numpy.ndarray")
        self.tuple_((0,))
        self.put(pickle.SHORT_BINBYTES, b"\x01b", pickle.TUPLE3, pickle.REDUCE)
        self.remember(value)
        self.put(pickle.MARK)
        self.integer(1)
        self.tuple_(value.shape)
        self.dtype(dtype)
        self.put(pickle.NEWFALSE)
        in_order = value.flags.c_contiguous and value.size
        self.bytes_(value.reshape(-1).view(np.uint8).data if in_order else value.tobytes())
        self.put(pickle.TUPLE, pickle.BUILD)

    def scalar(self, value: np.generic) -> None:
        self.name("numpy.core.multiarray.scalar")
        self.put(pickle.MARK)
        self.dtype(value.dtype)
        self.bytes_(value.tobytes())
        self.put(pickle.TUPLE, pickle.REDUCE)

    def tensor(self, value: Tensor) -> None:
        kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
        dtype = with_metadata(value.dtype) if isinstance(value.dtype, QuantizedDType) else value.dtype
        self.name(f"megengine.tensor.{kind}")
        self.put(pickle.MARK)
        self.array(value.numpy(), dtype)
        self.dtype(dtype)
        self.text(_DEVICE)
        self.put(pickle.TUPLE, pickle.NEWOBJ)
        self.remember(value)
        self.put(pickle.EMPTY_DICT, pickle.BUILD)

    def module(self, value: Module) -> None:
        path, state = module_state(value)
        self.name(path)
        self.put(pickle.EMPTY_TUPLE, pickle.NEWOBJ)
        self.remember(value)
        self.dict_(state)
        self.put(pickle.BUILD)

    def enumerated(self, value: Enum) -> None:
        self.name(_path(value))
        self.tuple_((value.value,))
        self.put(pickle.REDUCE)

    def quantized_dtype(self, value: QuantizedDType) -> None:
        self.dtype(with_metadata(value))

    def number_type(self, value: type) -> None:
        self.name(_NUMBERS[value])

    def dtype_meta(self, value: QuantDtypeMeta) -> None:
        self.name(_path(value))
        self.tuple_(tuple(value))
        self.put(pickle.NEWOBJ)
        self.remember(value)

    def known_object(self, value: Any) -> None:
        """An object of a class that `load` builds from its state."""
        self.name(_path(value))
        self.put(pickle.EMPTY_TUPLE, pickle.NEWOBJ)
        self.remember(value)
        self.write(value.__getstate__())
        self.put(pickle.BUILD)


def _path(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


_NUMBERS = {kind: path for path, kind in NUMBER_TYPES.items()}
# of the most frequent types, found without a search; a subclass of one of them goes through _METHODS
_ATOMS: dict[type, Callable[[Any, Any], None]] = {
    str: PickleWriter.text,
    int: PickleWriter.integer,
    bool: PickleWriter.boolean,
    float: PickleWriter.atom,
}
_METHODS: tuple[tuple[Any, Callable[[Any, Any], None]], ...] = (
    (np.generic, PickleWriter.scalar),
    (Enum, PickleWriter.enumerated),
    (QuantizedDType, PickleWriter.quantized_dtype),
    (np.dtype, PickleWriter.dtype),
    (QuantDtypeMeta, PickleWriter.dtype_meta),
    ((bool, float), PickleWriter.atom),
    (str, PickleWriter.text),
    (int, PickleWriter.integer),
    (bytes, PickleWriter.bytes_),
    (list, PickleWriter.list_),
    (tuple, PickleWriter.tuple_),
    (dict, PickleWriter.dict_),
    (set, PickleWriter.set_),
    (np.ndarray, PickleWriter.array),
    (Tensor, PickleWriter.tensor),
    (Module, PickleWriter.module),
)


def dumps(value: Any) -> list[Any]:
    """The pickle of numbers, text, arrays, tensors, modules and containers of them, as buffers.

    Raises DTypeError for anything else, naming its type.
    """
    writer = PickleWriter()
    writer.write(value)
    return writer.content()
