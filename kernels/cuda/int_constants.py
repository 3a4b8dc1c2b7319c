"""What the integer kernels keep between calls: constants of problems on a device, and what was packed from arrays."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import Runtime

_MOST = 4096  # constants of all problems that are kept
_PACKED_MOST = 8  # forms of one array that are kept
_constants: OrderedDict[tuple[Hashable, ...], DeviceArray] = OrderedDict()
_packed: dict[int, tuple[weakref.ref[DeviceArray], OrderedDict[Hashable, Any]]] = {}


def constant(runtime: Runtime, key: Hashable, make: Callable[[], np.ndarray]) -> DeviceArray:
    """The array that `make` gives, on the device; made once for each key."""
    found = _constants.get((runtime, key))
    if found is None:
        found = _constants[runtime, key] = runtime.upload(make())
        if len(_constants) > _MOST:
            _constants.popitem(last=False)
    return found


def packed(arrays: tuple[DeviceArray, ...], key: Hashable, make: Callable[[], Any]) -> Any:
    """What `make` computes from arrays, kept while the first of them lives; the others are told apart by identity."""
    first = arrays[0]
    place = id(first)
    kept = _packed.get(place)
    if kept is None:
        kept = _packed[place] = (weakref.ref(first, lambda _: _packed.pop(place, None)), OrderedDict())
    forms, whole = kept[1], (key, *map(id, arrays[1:]))
    found = forms.get(whole)
    if found is None:
        found = forms[whole] = (make(), arrays[1:])  # the others are kept beside it, so that no array gets their ids
        if len(forms) > _PACKED_MOST:
            forms.popitem(last=False)
    return found[0]


def bounds(dtype: QuantizedDType) -> tuple[int, int]:
    """The smallest and largest integer, less the zero point."""
    return dtype.qmin - dtype.zero_point, dtype.qmax - dtype.zero_point


def index_type(*counts: int) -> str:
    """The type in which kernels compute places of so many elements."""
    return "unsigned" if max(counts) < 1 << 31 else "i64"


def aligned(*arrays: DeviceArray) -> bool:
    """Whether several elements may be read at once."""
    address = 0
    for array in arrays:
        address |= array.address
    return not address & 15
