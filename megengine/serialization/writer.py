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
from megengine.tensor import Parameter, Tensor

_DEVICE = "xpux:0"  # MegEngine's name of the default device
_MAX_DEPTH = 90
_ORDERS = {"=": "<", "|": "|", "<": "<", ">": ">"}


class PickleWriter:
    """Builds a pickle from known opcodes; subclasses add kinds of objects."""

    def __init__(self) -> None:
        self.parts: list[bytes] = [pickle.PROTO + b"\x04"]
        self.memo: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.kept: list[Any] = []  # what the memo's ids belong to must live
        self.depth = 0

    def put(self, *codes: bytes) -> None:
        self.parts.extend(codes)

    def remember(self, value: Any) -> None:
        self.memo[id(value)] = len(self.memo)
        self.kept.append(value)
        self.put(pickle.MEMOIZE)

    def write(self, value: Any) -> None:
        if id(value) in self.memo:
            self.put(pickle.LONG_BINGET, struct.pack("<I", self.memo[id(value)]))
            return
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise DTypeError(f"save: values are nested deeper than {_MAX_DEPTH}, or contain themselves")
        for kinds, method in _METHODS:
            if isinstance(value, kinds):
                method(self, value)
                break
        else:
            if _path(value) in OBJECTS:
                self.known_object(value)
                self.depth -= 1
                return
            raise DTypeError(
                f"save: cannot write a {type(value).__name__}; expected numbers, text, arrays, tensors, modules, and "
                "lists, tuples, dicts of them"
            )
        self.depth -= 1

    def atom(self, value: Any) -> None:
        # protocol 4 of one atom, without its head, frame, memo and end
        body = pickle.dumps(value, 2)[2:-1]
        self.put(body[:-2] if isinstance(value, str) and body[-2:-1] == pickle.BINPUT else body)

    def bytes_(self, value: bytes) -> None:
        self.put(pickle.BINBYTES8, struct.pack("<Q", len(value)), value)

    def name(self, path: str) -> None:
        if path in self.names:
            self.put(pickle.LONG_BINGET, struct.pack("<I", self.names[path]))
            return
        module, _, name = path.rpartition(".")
        self.atom(module)
        self.atom(name)
        self.put(pickle.STACK_GLOBAL)
        self.names[path] = len(self.memo)
        self.remember([path])  # an object of its own: text equal to a name is not the name

    def list_(self, value: list) -> None:
        self.put(pickle.EMPTY_LIST)
        self.remember(value)
        self.put(pickle.MARK)
        for item in value:
            self.write(item)
        self.put(pickle.APPENDS)

    def tuple_(self, value: tuple) -> None:
        self.put(pickle.MARK)
        for item in value:
            self.write(item)
        self.put(pickle.TUPLE)

    def dict_(self, value: dict) -> None:
        if isinstance(value, OrderedDict):
            self.name("collections.OrderedDict")
            self.put(pickle.EMPTY_TUPLE, pickle.REDUCE)
        else:
            self.put(pickle.EMPTY_DICT)
        self.remember(value)
        self.put(pickle.MARK)
        for key, item in value.items():
            self.write(key)
            self.write(item)
        self.put(pickle.SETITEMS)

    def set_(self, value: set) -> None:
        self.put(pickle.EMPTY_SET, pickle.MARK)
        for item in sorted(value, key=repr):
            self.write(item)
        self.put(pickle.ADDITEMS)

    def dtype(self, value: np.dtype) -> None:
        meta = quantized_of(value) and value.metadata
        self.name("numpy.dtype")
        self.put(pickle.MARK)
        if value == bfloat16:
            self.name("megengine.core._imperative_rt.pybfloat16")
            state: tuple = (3, "<", None, None, None, 2, 2, 112)
        else:
            self.atom(value.str[1:])
            state = (4 if meta else 3, _ORDERS[value.byteorder], None, None, None, -1, -1, 0)
        self.put(pickle.NEWFALSE, pickle.NEWTRUE, pickle.TUPLE, pickle.REDUCE)
        self.tuple_((*state, dict(meta)) if meta else state)
        self.put(pickle.BUILD)

    def array(self, value: np.ndarray, dtype: np.dtype | None = None) -> None:
        dtype = value.dtype if dtype is None else dtype
        if dtype.kind not in "biufc" and dtype != bfloat16:
            raise DTypeError(f"save: cannot write an array of {dtype}; expected numbers")
        self.name("numpy.core.multiarray._reconstruct")
        self.name("numpy.ndarray")
        self.tuple_((0,))
        self.put(pickle.SHORT_BINBYTES, b"\x01b", pickle.TUPLE3, pickle.REDUCE)
        self.remember(value)
        self.put(pickle.MARK)
        self.atom(1)
        self.tuple_(value.shape)
        self.dtype(dtype)
        self.put(pickle.NEWFALSE)
        self.bytes_(value.tobytes())
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
        self.atom(_DEVICE)
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


_METHODS: tuple[tuple[Any, Callable[[PickleWriter, Any], None]], ...] = (
    (np.generic, PickleWriter.scalar),
    (Enum, PickleWriter.enumerated),
    (QuantizedDType, PickleWriter.quantized_dtype),
    (QuantDtypeMeta, PickleWriter.dtype_meta),
    ((type(None), bool, int, float, str), PickleWriter.atom),
    (bytes, PickleWriter.bytes_),
    (list, PickleWriter.list_),
    (tuple, PickleWriter.tuple_),
    (dict, PickleWriter.dict_),
    (set, PickleWriter.set_),
    (np.ndarray, PickleWriter.array),
    (Tensor, PickleWriter.tensor),
    (Module, PickleWriter.module),
)


def dumps(value: Any) -> bytes:
    """The pickle of numbers, text, arrays, tensors, modules and containers of them.

    Raises DTypeError for anything else, naming its type.
    """
    writer = PickleWriter()
    writer.write(value)
    return b"".join([*writer.parts, pickle.STOP])
