"""The problem that a kernel solves: an op with specs and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.spec import TensorSpec


class Attrs(Mapping[str, Any]):
    """Attributes of a problem: frozen, hashable, readable as items and as Python attributes."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_items", dict(items))
        object.__setattr__(self, "_hash", hash(tuple(sorted(self._items.items(), key=lambda kv: kv[0]))))

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._items[name]
        except KeyError:
            raise AttributeError(f"no attribute {name!r}; there are {sorted(self._items)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("attributes of a problem are frozen")

    def __iter__(self):
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attrs) and self._items == other._items

    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True, slots=True, init=False)
class Problem:
    """The op, the specs of inputs and outputs, and the attributes of one call."""

    op: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Attrs
    _hash: int = field(compare=False, repr=False)  # every eager call of a step needs it

    def __init__(self, op: str, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec], attrs: Mapping) -> None:
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "inputs", tuple(inputs))
        object.__setattr__(self, "outputs", tuple(outputs))
        object.__setattr__(self, "attrs", attrs if isinstance(attrs, Attrs) else Attrs(attrs))
        object.__setattr__(self, "_hash", hash((op, self.inputs, self.outputs, self.attrs)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def device(self) -> str:
        """Where the values lie."""
        return next((s.device for s in (*self.inputs, *self.outputs)), "cpu0")

    @property
    def on_gpu(self) -> bool:
        """Whether the values lie on a GPU."""
        return self.device.startswith("gpu")

    @property
    def moves_devices(self) -> bool:
        """Whether the results lie elsewhere than the inputs, and one of them on a GPU."""
        devices = {s.device for s in (*self.inputs, *self.outputs)}
        return len(devices) > 1 and any(d.startswith("gpu") for d in devices)


def float32_only(problem: Problem) -> str | None:
    """Why a kernel of float32 cannot compute it: other dtypes, or nothing to compute. None if it can."""
    specs = (*problem.inputs, *problem.outputs)
    wrong = sorted({str(s.dtype) for s in specs if s.dtype != np.float32})
    return f"float32 only, got {', '.join(wrong)}" if wrong else no_elements(problem)


def no_elements(problem: Problem) -> str | None:
    """Why a kernel that takes no empty tensors cannot compute it. None if it can."""
    return "no elements" if any(s.size == 0 for s in (*problem.inputs, *problem.outputs)) else None
