"""Values in native files: JSON for constants, states of layers and structures; arrays beside it.

Values of JSON's own kinds, lists too, stand as they are; every other value is an object with one tag:
`{"tuple": [1, 2]}`. Classes are stored by name and looked up in a table when they are read, never imported.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from megengine.core import late
from megengine.core.dtype import DType, QuantizedDType, as_dtype, bfloat16, quantized, storage_of
from megengine.core.errors import FileFormatError, brief
from megengine.core.pytree import _NODES
from megengine.core.sizes import OpenSize, parse_size
from megengine.kernels.cuda.placing import host
from megengine.module import Module
from megengine.serialization.arrays import quantized_of, unpacked, with_metadata
from megengine.serialization.objects import OBJECTS, AllowedClasses, module_state
from megengine.serialization.pickles import Global, Record
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.formats.checks import check_dtype
from megengine.traced_module.ir.functions import function_of, qualified_name
from megengine.traced_module.ir.node import Node

_MAX_DEPTH = 100
_TYPES = {f"{kind.__module__}.{kind.__name__}": kind for kind in (bool, int, float, str, list, tuple, dict)}
# state of a module that is not stored
_TRANSIENT = frozenset(("_modules", "_name", "_short_name", "_forward_pre_hooks", "_forward_hooks"))


def dtype_out(dtype: DType) -> Any:
    if isinstance(dtype, QuantizedDType):
        scale = list(dtype.scale) if isinstance(dtype.scale, tuple) else dtype.scale
        return {"name": dtype.name, "scale": scale, "zero_point": dtype.zero_point, "axis": dtype.axis}
    return dtype.name


def dtype_in(value: Any) -> DType:
    """The dtype of a JSON description. Raises DTypeError for an unknown one."""
    if isinstance(value, dict):
        return quantized(value["name"], value["scale"], value["zero_point"], value["axis"])
    return as_dtype(value)


def count_in(value: Any) -> int:
    """A count, from 0. Raises FileFormatError for any other value."""
    if type(value) is not int or value < 0:
        raise FileFormatError(f"{brief(value)} where a number from 0 on was expected")
    return value


def size_out(size: OpenSize) -> Any:
    return {"open": [str(size), int(size)]}


def size_in(content: Any) -> OpenSize:
    """An open size: its formula, and what it is at the example. Raises FileFormatError for anything else."""
    text, example = content
    if not isinstance(text, str):
        raise FileFormatError(f"{brief(text)} where the formula of a size was expected")
    return parse_size(text, example if type(example) is int else count_in(example))


def lengths_out(shape: Sequence[int]) -> list[Any]:
    """JSON of a shape."""
    return [size_out(n) if isinstance(n, OpenSize) else n for n in shape]


def length_in(value: Any) -> int:
    """A length of a shape."""
    return size_in(value["open"]) if isinstance(value, dict) and list(value) == ["open"] else count_in(value)


def class_path(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class ValueWriter:
    """Describes values, and collects tensors, arrays and layers, each once.

    `known` describes a tensor or layer that the reader has or can make; it gives None for others.
    """

    def __init__(self, known: Callable[[Any, str], dict[str, Any] | None] = lambda value, where: None) -> None:
        self.known = known
        self.arrays: dict[str, np.ndarray] = {}
        self.tensors: list[dict[str, Any]] = []
        self.layers: list[dict[str, Any]] = []
        self.described: tuple[list[Tensor], list[Module]] = ([], [])  # the tensors and layers of the two lists
        self._places: dict[int, int] = {}
        self._open: set[int] = set()

    def value(self, value: Any, where: str, depth: int = 0) -> Any:
        """JSON of a value; `where` is its path, for messages and for the names of arrays.

        Raises:
            FileFormatError: files cannot hold the value, or it is nested too deep.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if depth > _MAX_DEPTH:
            raise FileFormatError(f"{where}: values are nested deeper than {_MAX_DEPTH}, or contain themselves")
        if type(value) is list:
            return self._items(value, where, depth + 1)
        writer = _writer_of(type(value))
        if writer is None:
            return self._other(value, where, depth + 1)
        tag, describe = writer
        return {tag: describe(self, value, where, depth + 1)}

    def _other(self, value: Any, where: str, depth: int) -> Any:
        path = class_path(value)
        if isinstance(value, tuple) and hasattr(value, "_fields") and path not in OBJECTS:
            return {"namedtuple": [path, self._items(value, where, depth)]}
        if callable(value) and hasattr(value, "__public__"):
            return {"function": qualified_name(value)}
        if type(value) in _NODES:
            children, aux = _NODES[type(value)][0](value)
            return {"container": [path, self._items(children, where, depth), self.value(aux, where, depth)]}
        late.ensure(path)
        if path in OBJECTS:
            args = list(value) if isinstance(value, tuple) else []
            state = None if isinstance(value, tuple) else value.__getstate__()
            return {"object": [path, self._items(args, where, depth), self.value(state, where, depth)]}
        raise FileFormatError(f"{where} is a {type(value).__name__}, which the file format does not hold")

    def _items(self, values: Sequence[Any], where: str, depth: int) -> list[Any]:
        return [self.value(v, f"{where}.{i}", depth) for i, v in enumerate(values)]

    def _pairs(self, value: Mapping[Any, Any], where: str, depth: int) -> list[Any]:
        return [[self.value(k, where, depth), self.value(v, f"{where}.{k}"[:500], depth)] for k, v in value.items()]

    def array(self, value: np.ndarray, where: str) -> str:
        """Collect an array; the name under which it is stored."""
        if value.dtype.kind not in "biufc" and value.dtype != bfloat16:
            raise FileFormatError(f"{where} has elements of {value.dtype}, which the file format does not hold")
        name, count = where, 1
        while name in self.arrays or name == "__metadata__":
            name, count = f"{where}#{count}", count + 1
        plain = np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(value.shape)
        self.arrays[name] = plain.view(np.uint16) if value.dtype == bfloat16 else plain
        if value.dtype == np.complex128:
            self.arrays[name] = np.stack([plain.real, plain.imag], -1)
        return name

    def tensor(self, value: Tensor, where: str, depth: int = 0) -> int:
        """The place of a tensor in the list of tensors."""
        return self._place(value, self._tensor, (where, depth), self.tensors, self.described[0])

    def layer(self, value: Module, where: str, depth: int = 0) -> int:
        """The place of a layer in the list of layers, behind those that it holds."""
        if id(value) in self._open:
            raise FileFormatError(f"{where}: the layer contains itself")
        return self._place(value, self._layer, (where, depth), self.layers, self.described[1])

    def _place(self, value: Any, describe: Any, at: tuple[str, int], entries: list, described: list) -> int:
        if id(value) not in self._places:
            known = self.known(value, at[0])
            entry = describe(value, *at) if known is None else known
            self._places[id(value)] = len(entries)
            described.append(value)
            entries.append(entry)
        return self._places[id(value)]

    def _tensor(self, value: Tensor, where: str, depth: int) -> dict[str, Any]:
        entry: dict[str, Any] = {"array": self.array(host(value._storage()), where), "dtype": dtype_out(value.dtype)}
        if isinstance(value, Parameter):
            entry["parameter"] = True
        if value.name:
            entry["name"] = value.name
        if value.qparams is not None:
            entry["qparams"] = self.value(value.qparams, f"{where}.qparams", depth)
        return entry

    def _layer(self, value: Module, where: str, depth: int) -> dict[str, Any]:
        self._open.add(id(value))
        path, state = module_state(value)
        entry = {k: self.value(v, f"{where}.{k}", depth) for k, v in state.items() if k not in _TRANSIENT}
        self._open.discard(id(value))
        return {"type": path, "state": entry}


def _unpacked(array: np.ndarray, shape: tuple[int, ...], dtype: QuantizedDType) -> np.ndarray:
    pairs = array.dtype == np.uint8 and array.shape == (-(-math.prod(shape) // 2),)
    return unpacked(array, shape, dtype.storage) if pairs and array.shape != shape else array


def _scalar_out(writer: ValueWriter, value: np.generic, where: str, depth: int) -> Any:
    if value.dtype.kind not in "biufc" and value.dtype != bfloat16:
        raise FileFormatError(f"{where} is a number of {value.dtype}, which the file format does not hold")
    return [value.dtype.name, writer.value(value.item(), where, depth)]


def _array_out(writer: ValueWriter, value: np.ndarray, where: str, depth: int) -> Any:
    return [writer.array(value, where), dtype_out(quantized_of(value.dtype) or value.dtype.newbyteorder("="))]


def _dtype_out(writer: ValueWriter, value: np.dtype, where: str, depth: int) -> Any:
    meta = quantized_of(value)
    return {"metadata": dtype_out(meta)} if meta is not None else dtype_out(value)


def _type_out(writer: ValueWriter, value: type, where: str, depth: int) -> Any:
    path = f"{value.__module__}.{value.__qualname__}"
    if path not in _TYPES and not (issubclass(value, np.generic) and np.dtype(value).name == value.__name__):
        raise FileFormatError(f"{where} is the class {path}, which the file format does not hold")
    return path


def _enum_out(writer: ValueWriter, value: Enum, where: str, depth: int) -> Any:
    late.ensure(class_path(value))
    if class_path(value) not in OBJECTS:
        raise FileFormatError(f"{where} is a {type(value).__name__}, which the file format does not hold")
    return [class_path(value), [writer.value(value.value, where, depth)], None]


def _set_out(writer: ValueWriter, value: Any, where: str, depth: int) -> Any:
    return writer._items(sorted(value, key=repr), where, depth)


_Describe = Callable[[ValueWriter, Any, str, int], Any]
_EXACT = (OrderedDict, dict, tuple, set, frozenset)  # types derived from these are not written as these
# the first match counts; classes stand before their base classes
_WRITERS: tuple[tuple[Any, str, _Describe], ...] = (
    (Node, "node", lambda w, v, at, d: v.name),
    (Tensor, "tensor", ValueWriter.tensor),
    (Module, "layer", ValueWriter.layer),
    (np.generic, "scalar", _scalar_out),
    (np.ndarray, "array", _array_out),
    (Enum, "object", _enum_out),
    (OpenSize, "open", lambda w, v, at, d: size_out(v)["open"]),
    (np.dtype, "dtype", _dtype_out),
    (QuantizedDType, "dtype", lambda w, v, at, d: dtype_out(v)),
    (complex, "complex", lambda w, v, at, d: [w.value(v.real, at, d), w.value(v.imag, at, d)]),
    (bytes, "bytes", lambda w, v, at, d: v.hex()),
    (type(Ellipsis), "ellipsis", lambda w, v, at, d: True),
    (slice, "slice", lambda w, v, at, d: w._items((v.start, v.stop, v.step), at, d)),
    (OrderedDict, "ordered", ValueWriter._pairs),
    (dict, "dict", ValueWriter._pairs),
    (tuple, "tuple", ValueWriter._items),
    (type, "type", _type_out),
    (set, "set", _set_out),
    (frozenset, "frozenset", _set_out),
)


@functools.lru_cache(maxsize=1024)
def _writer_of(kind: type) -> tuple[str, _Describe] | None:
    """(tag, function) of the first entry for a type."""
    fitting = (w for w in _WRITERS if issubclass(kind, w[0]) and (w[0] not in _EXACT or kind is w[0]))
    return next(((tag, describe) for _, tag, describe in fitting), None)


# ---------------------------------------------------------------- reading


class ValueReader:
    """Values from their descriptions. Every array of the file is used once, without a copy."""

    def __init__(self, arrays: Mapping[str, np.ndarray], allow: Sequence[type] = ()) -> None:
        self.arrays = dict(arrays)
        self.table = AllowedClasses(OBJECTS, allow)
        self.classes = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (*_NODES, *allow)}
        self.tensors: list[Tensor] = []
        self.layers: list[Module] = []
        self.nodes: dict[str, Node] = {}  # of the graph that is being read

    def value(self, described: Any) -> Any:
        """The value of a description.

        Raises:
            FileFormatError: an unknown tag, or the name of a class that is not loaded.
        """
        if isinstance(described, list):
            return [self.value(v) for v in described]
        if not isinstance(described, dict):
            return described
        if len(described) != 1:
            raise FileFormatError(f"a value is described by {brief(list(described))}; expected one tag")
        ((tag, content),) = described.items()
        if tag not in _READERS:
            raise FileFormatError(f"a value of the unknown kind {brief(tag)}")
        return _READERS[tag](self, content)

    def pairs(self, content: Any) -> list[tuple[Any, Any]]:
        return [(_key(self.value(k)), self.value(v)) for k, v in content]

    def array(self, name: str, dtype: DType, shape: Sequence[int] | None = None) -> np.ndarray:
        """The array of a name, which is taken out of the table; one of a shape may be stored two to a byte."""
        if name not in self.arrays:
            raise FileFormatError(f"the array {brief(name)} is missing, or stands in two places")
        array = self.arrays.pop(name)
        if dtype == bfloat16 and array.dtype == np.uint16:
            array = array.view(bfloat16)
        elif dtype == np.complex128 and array.dtype == np.float64 and array.shape[-1:] == (2,):
            array = array[..., 0] + 1j * array[..., 1]
        elif shape is not None and isinstance(dtype, QuantizedDType) and dtype.bits == 4:
            array = _unpacked(array, tuple(map(count_in, shape)), dtype)
        if array.dtype != storage_of(dtype):
            raise FileFormatError(f"{brief(name)} is stored as {array.dtype}; expected {storage_of(dtype)}")
        return array

    def add_tensor(self, entry: Mapping[str, Any]) -> None:
        """The next entry of the list of tensors."""
        dtype = dtype_in(entry["dtype"])
        kind = Parameter if entry.get("parameter") else Tensor
        array = self.array(entry["array"], dtype, entry.get("shape"))
        check_dtype(entry["array"], array.shape, dtype)
        tensor = kind._wrap(array, dtype)
        if "name" in entry:
            tensor.name = str(entry["name"])
        if "qparams" in entry:
            tensor.qparams = self.value(entry["qparams"])
        self.tensors.append(tensor)

    def add_layer(self, entry: Mapping[str, Any]) -> None:
        """The next entry of the list of layers, with its attributes in the order of the file."""
        layer = self.object(entry["type"], [], {k: self.value(v) for k, v in entry["state"].items()})
        if not isinstance(layer, Module):
            raise FileFormatError(f"{brief(entry['type'])} is not a layer")
        own = object.__getattribute__(layer, "__dict__")
        have = dict(own)
        order = [k for k in entry["state"] if k in have]
        before = None
        for name in have:  # attributes that are not in the file stay where the constructor puts them
            if name not in entry["state"]:
                order.insert(0 if before is None else order.index(before) + 1, name)
            before = name
        own.clear()
        own.update({k: have[k] for k in order})
        self.layers.append(layer)

    def object(self, path: Any, args: Any, state: Any) -> Any:
        builder = self.table.get(path) if isinstance(path, str) else None
        if builder is None:
            raise FileFormatError(
                f"the file holds a {brief(path)}, which is not on the list of classes that are loaded; nothing was "
                "run. If it is a class of yours and you trust the file, pass it: allow=[TheClass]"
            )
        return builder(Record(Global(*path.rpartition(".")[::2]), tuple(args), state))

    def container(self, path: Any) -> type:
        if not isinstance(path, str) or path not in self.classes:
            raise FileFormatError(
                f"the file holds a {brief(path)}; declare it with register_supported_type, or pass it: allow=[TheClass]"
            )
        return self.classes[path]


def _key(value: Any) -> Any:
    parts = value if isinstance(value, tuple) else (value,)
    if any(isinstance(part, (tuple, frozenset)) or type(part).__hash__ is None for part in parts):
        raise FileFormatError(f"a dict key is a nested {type(value).__name__}; expected text or numbers")
    return value


def _scalar_in(reader: ValueReader, content: Any) -> np.generic:
    name, value = content
    return np.asarray(reader.value(value)).astype(storage_of(as_dtype(name))).flat[0]


def _array_in(reader: ValueReader, content: Any) -> np.ndarray:
    name, described = content
    dtype = dtype_in(described)
    array = reader.array(name, dtype)
    return array.view(with_metadata(dtype)) if isinstance(dtype, QuantizedDType) else array


def _dtype_of(reader: ValueReader, content: Any) -> DType:
    if isinstance(content, dict) and "metadata" in content:
        dtype = dtype_in(content["metadata"])
        return with_metadata(dtype) if isinstance(dtype, QuantizedDType) else dtype
    return dtype_in(content)


def _type_in(reader: ValueReader, content: Any) -> type:
    if content in _TYPES:
        return _TYPES[content]
    home, _, name = content.rpartition(".")
    if home == "numpy":
        return storage_of(as_dtype(name)).type
    raise FileFormatError(f"the file names the class {brief(content)}, which is not on the list of those loaded")


def _namedtuple_in(reader: ValueReader, content: Any) -> Any:
    path, children = content
    kind = reader.container(path)
    if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise FileFormatError(f"{brief(path)} is not a named tuple")
    return kind(*map(reader.value, children))


def _container_in(reader: ValueReader, content: Any) -> Any:
    path, children, aux = content
    kind = reader.container(path)
    if kind not in _NODES:
        raise FileFormatError(f"{brief(path)} is not declared with register_supported_type")
    return _NODES[kind][1](reader.value(aux), tuple(map(reader.value, children)))


def _object_in(reader: ValueReader, content: Any) -> Any:
    path, args, state = content
    return reader.object(path, [reader.value(v) for v in args], reader.value(state))


def _members(reader: ValueReader, content: Any) -> list[Any]:
    return [_key(reader.value(v)) for v in content]


_READERS: dict[str, Callable[[ValueReader, Any], Any]] = {
    "node": lambda r, c: r.nodes[c],
    "tensor": lambda r, c: r.tensors[count_in(c)],
    "layer": lambda r, c: r.layers[count_in(c)],
    "scalar": _scalar_in,
    "array": _array_in,
    "object": _object_in,
    "dtype": _dtype_of,
    "open": lambda r, c: size_in(c),
    "float": lambda r, c: float(c),
    "complex": lambda r, c: complex(*map(r.value, c)),
    "bytes": lambda r, c: bytes.fromhex(c),
    "ellipsis": lambda r, c: Ellipsis,
    "slice": lambda r, c: slice(*map(r.value, c)),
    "ordered": lambda r, c: OrderedDict(r.pairs(c)),
    "dict": lambda r, c: dict(r.pairs(c)),
    "tuple": lambda r, c: tuple([r.value(v) for v in c]),
    "set": lambda r, c: set(_members(r, c)),
    "frozenset": lambda r, c: frozenset(_members(r, c)),
    "type": _type_in,
    "function": lambda r, c: function_of(str(c)),
    "namedtuple": _namedtuple_in,
    "container": _container_in,
}
