"""MegEngine's tensors and modules as its pickles hold them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from megengine import module as layers
from megengine.core import late
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import FileFormatError, OptionError, brief
from megengine.core.tensor.dtype import QuantDtypeMeta, meta_of
from megengine.device import default_device
from megengine.dispatch.refusal import own
from megengine.module import Module
from megengine.serialization.arrays import quantized_of
from megengine.serialization.pickles import Builder, Owning, Record, Whole
from megengine.tensor import Parameter, Tensor

_LAYERS: dict[str, type[Module]] = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in vars(layers).values()
    if isinstance(kind, type) and issubclass(kind, Module)
}

OBJECT_NAMES = frozenset({"megengine.tensor.Tensor", "megengine.tensor.Parameter"})


def _tensor_of(kind: type[Tensor]) -> Builder:
    def build(record: Record) -> Tensor:
        state = record.state if isinstance(record.state, dict) else {}
        value = record.args[0] if record.args else state.get("data")
        if not isinstance(value, np.ndarray):
            raise FileFormatError(f"pickle: a {kind.__name__} without an array")
        # NOTE: the array may have lost its metadata; the dtype beside it still has it
        declared = record.args[1] if len(record.args) > 1 else state.get("dtype", value.dtype)
        quantized = quantized_of(value.dtype) or (quantized_of(declared) if isinstance(declared, np.dtype) else None)
        tensor = kind._wrap(_storage(value, quantized, fresh=bool(record.args)), quantized, default_device())
        tensor.qparams = state.get("qparams", state.get("qdict"))
        return tensor

    return Owning(build)


def _storage(array: np.ndarray, quantized: QuantizedDType | None, *, fresh: bool) -> np.ndarray:
    """The array that a tensor keeps: a copy, unless it is `fresh` (no other object refers to it)."""
    target = array.dtype.newbyteorder("=") if quantized is None else quantized.storage
    if fresh and array.dtype == target:
        return array.view(target)  # without metadata
    return np.array(array, target)


def _dtype_meta(record: Record) -> QuantDtypeMeta:
    meta = QuantDtypeMeta(*record.args)
    if meta != meta_of(meta.name):
        raise FileFormatError(f"pickle: the quantized type {brief(meta.name)} is described as {brief(tuple(meta))}")
    return meta


def module_of(kind: type[Module]) -> Builder:
    """The builder of modules of this class from their saved attributes."""

    def build(record: Record) -> Module:
        if not isinstance(record.state, dict):
            raise FileFormatError(f"pickle: a {kind.__name__} without state")
        for name in record.state:
            if not isinstance(name, str) or name.startswith("__") or callable(getattr(kind, name, None)):
                raise FileFormatError(f"pickle: a {kind.__name__} with an attribute {brief(name)}")
        module = kind.__new__(kind)
        module.__setstate__(record.state)
        return module

    return build


def object_of(kind: type) -> Builder:
    """The builder of objects of this class from their arguments and saved state."""

    def build(record: Record) -> Any:
        result = kind.__new__(kind, *record.args)
        if hasattr(result, "__setstate__"):
            result.__setstate__(record.state)
        elif isinstance(record.state, dict):
            result.__dict__.update(record.state)
        elif record.state is not None:
            raise FileFormatError(f"pickle: {kind.__name__} has state but no __setstate__ to take it")
        return result

    return build


OBJECTS: dict[str, Builder] = {
    "megengine.tensor.Tensor": _tensor_of(Tensor),
    "megengine.tensor.Parameter": _tensor_of(Parameter),
    "megengine.core._imperative_rt.common.CompNode": lambda r: r.state if isinstance(r.state, str) else "xpux",
    "megengine.core.tensor.dtype.QuantDtypeMeta": _dtype_meta,
    "megengine.distributed.group.Group": lambda r: None,  # of SyncBatchNorm: one process is the only group here
    **{path: module_of(kind) for path, kind in _LAYERS.items()},
}


def _imported_layer(name: str) -> type[Module]:
    """The caller's own class of modules at a full name. Raises KeyError if there is none.

    Its Python module must be imported already: no file causes an import. The class must have no code of its own that
    creates or fills an object.
    """
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        kind: Any = sys.modules.get(".".join(parts[:count]))
        for part in parts[count:]:
            kind = vars(kind).get(part) if isinstance(kind, (type, ModuleType)) else None
        if isinstance(kind, type) and issubclass(kind, Module) and f"{kind.__module__}.{kind.__qualname__}" == name:
            plain = all(getattr(kind, m) is getattr(Module, m) for m in ("__new__", "__setstate__", "__setattr__"))
            if plain and not own(kind):
                return kind
    raise KeyError(name)


class AllowedClasses(Mapping[str, Builder]):
    """The fixed table, and the classes a caller allows: by full name, or by class name where the file has another path
    (a class of `__main__` that has moved since). With `imported`, plain classes of modules in Python modules that are
    imported already are allowed too.
    """

    def __init__(self, table: Mapping[str, Builder], allow: Sequence[type], *, imported: bool = False) -> None:
        self._table, self._imported, self._allow = dict(table), imported, allow
        self._by_name: dict[str, Builder] = {}
        for kind in allow:
            if not isinstance(kind, type):
                raise OptionError(f"load: allow has {kind!r}; expected classes")
            builder = module_of(kind) if issubclass(kind, Module) else object_of(kind)
            self._table[f"{kind.__module__}.{kind.__qualname__}"] = builder
            self._by_name[kind.__qualname__] = builder

    def __getitem__(self, name: str) -> Builder:
        if name not in self._table:
            late.ensure(name)  # it, or an earlier file, may have added to the table
            self._table = {**OBJECTS, **self._table}
        if name in self._table:
            found = self._table[name]
            return replace(found, allow=self._allow) if isinstance(found, Whole) else found
        last = name.rpartition(".")[2]
        if self._imported and last not in self._by_name:
            return module_of(_imported_layer(name))
        return self._by_name[last]

    def __iter__(self):
        return iter({**self._by_name, **self._table})

    def __len__(self) -> int:
        return len({**self._by_name, **self._table})


def module_state(module: Module) -> tuple[str, dict[str, Any]]:
    """Class name in MegEngine's files and instance state, as MegEngine writes them."""
    kind = type(module)
    if module._forward_hooks or module._forward_pre_hooks:
        raise OptionError(f"save: a {kind.__name__} has hooks, which cannot be saved; remove them first")
    return f"{kind.__module__}.{kind.__qualname__}", module.__getstate__()
