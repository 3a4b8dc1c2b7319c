"""Differences of tensors and of modules: classes, hyperparameters, weights."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.kernels.cuda.placing import host
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.comparing.changes import Change, short
from megengine.traced_module.ir.queries import children_of, entries_of

_PART = 1 << 20  # elements that are compared at a time
_PLAIN = (bool, int, float, complex, str, bytes, np.generic, np.dtype, QuantizedDType)


def spec_changes(a: TensorSpec, b: TensorSpec) -> list[dict[str, Any]]:
    """Fields of a `Change` for shape and for dtype, where they differ."""
    pairs = {"shape": (tuple(a.shape), tuple(b.shape)), "dtype": (a.dtype, b.dtype)}
    return [{"what": what, "before": str(x), "after": str(y)} for what, (x, y) in pairs.items() if x != y]


def tensor_changes(a: Tensor, b: Tensor) -> list[dict[str, Any]]:
    """Fields of a `Change` for shape, for dtype and for values, where two tensors differ."""
    if a is b:
        return []
    same_shape = tuple(a.spec.shape) == tuple(b.spec.shape)
    return [*spec_changes(a.spec, b.spec), *(_value_changes(a, b) if same_shape else ())]


def _value_changes(a: Tensor, b: Tensor) -> list[dict[str, Any]]:
    x, y = (np.ascontiguousarray(_plain(t)).reshape(-1) for t in (a, b))
    if x is y or (x.dtype == y.dtype and bool(np.array_equal(x.view(np.uint8), y.view(np.uint8)))):
        return []
    worst = largest = squares = 0.0
    count = 0
    for start in range(0, x.size, _PART):
        p, q = (np.asarray(v[start : start + _PART], np.float64) for v in (x, y))
        with np.errstate(invalid="ignore", over="ignore"):  # infinite where one side only is a number
            distance = np.nan_to_num(np.abs(p - q), nan=np.inf, posinf=np.inf)
        away = np.where((p == q) | (np.isnan(p) & np.isnan(q)), 0.0, distance)
        count += int(np.count_nonzero(away))
        worst = max(worst, float(away.max(initial=0)))
        with np.errstate(over="ignore"):
            squares += float(np.square(away).sum())
        largest = max(largest, *(float(np.abs(v[np.isfinite(v)]).max(initial=0)) for v in (p, q)))
    if x.dtype != y.dtype and count == 0:
        return []  # only the dtypes differ
    relative = worst / largest if largest else 0.0
    text = f"{count} of {counted(x.size, 'value')}" if count else "the sign of zeros, or bits of NaN"
    return [
        {"what": "values", "after": text, "before": text, "distance": worst, "relative": relative, "norm": squares**0.5}
    ]


def _plain(tensor: Tensor) -> np.ndarray:
    return host(tensor._storage()) if isinstance(tensor.spec.dtype, QuantizedDType) else tensor.numpy()


# ---------------------------------------------------------------- modules


def attributes_of(module: Any) -> dict[str, str]:
    attributes = {"class": type(module).__name__}
    for name, value in entries_of(module).items():
        if not name.startswith("_") and (text := _attribute(value)) is not None:
            attributes[name] = text
    signature = getattr(module, "forward_signature", None)
    if hasattr(module, "_graphs") and signature is not None:
        attributes["arguments of forward"] = ", ".join(signature.parameters)
    return attributes


def _attribute(value: Any) -> str | None:
    """A hyperparameter as text; None for submodules and tensors, alone or in containers."""
    if isinstance(value, (Module, Tensor)):
        return None
    if isinstance(value, (list, tuple, Mapping)):
        texts = [_attribute(v) for v in (value.values() if isinstance(value, Mapping) else value)]
        if None in texts:
            return None
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{k!r}: {text}" for k, text in zip(value, texts, strict=True)) + "}"
        inner = ", ".join(map(str, texts))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, np.ndarray):
        return f"array{value.shape} {value.dtype} {zlib.crc32(value.tobytes()):08x}"
    name = getattr(value, "__qualname__", None)  # functions and classes
    return f"{value.__module__}.{name}" if isinstance(name, str) else type(value).__qualname__


def module_changes(a: Any, b: Any, where: str, old: str, new: str) -> Iterator[Change]:
    left, right = attributes_of(a), attributes_of(b)
    held = {*children_of(a), *children_of(b)}  # compared on their own; a bias of None counts as missing
    for what in dict.fromkeys((*left, *right)):
        before, after = (short(attributes.get(what, "(not there)")) for attributes in (left, right))
        if left.get(what) != right.get(what) and what not in held:
            place: dict[str, Any] = {"element": "module", "where": where, "old": old, "new": new}
            yield Change(kind="changed", **place, what=what, before=before, after=after)
