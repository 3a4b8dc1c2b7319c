"""What the inputs of integer layers are like: their means before and after rounding, and products of their integers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.core.sizes import closed, is_open
from megengine.quantization.ranges import MeanValue, Progress, stream
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph

POSITIONS = 96
"""Positions of a picture (or rows of a matrix) that enter the products; neighbours are alike."""
EXACT_ROWS = 1024  # 1024 * 128**2 == 2**24: float32 adds so many products of 8-bit integers exactly
BUDGET = 400 << 20  # bytes of the matrices of one pass over the data


@dataclass(slots=True)
class InputMeans:
    """Means of a layer's input before rounding (in the rounded network) and after."""

    exact: MeanValue = field(default_factory=MeanValue)
    rounded: MeanValue = field(default_factory=MeanValue)


@dataclass(slots=True)
class Products:
    """Sums of integers and of their products over the windows that one layer multiplies with its weight.

    `products` is float64 [groups, K, K] and `sums` [groups, K], where K values meet one output channel. All numbers are
    integers below 2**53, so the order of the data makes no difference.
    """

    groups: int
    width: int
    count: int = 0
    products: np.ndarray = field(init=False)
    sums: np.ndarray = field(init=False)
    waiting: list[np.ndarray] = field(default_factory=list)  # windows that `add` takes together

    def __post_init__(self) -> None:
        self.products = np.zeros((self.groups, self.width, self.width))
        self.sums = np.zeros((self.groups, self.width))

    def update(self, windows: np.ndarray) -> None:
        """Take float32 integers [groups, rows, K] from -128 to 127."""
        self.waiting.append(windows)
        self.count += windows.shape[1]
        if sum(one.shape[1] for one in self.waiting) >= EXACT_ROWS:
            self.add()

    def add(self) -> None:
        """Add up the windows that wait: as many at a time as float32 adds exactly, since the sums are large."""
        rows = (
            np.concatenate(self.waiting, axis=1) if self.waiting else np.zeros((self.groups, 0, self.width), np.float32)
        )
        self.waiting.clear()
        for start in range(0, rows.shape[1], EXACT_ROWS):
            part = rows[:, start : start + EXACT_ROWS]
            self.products += np.matmul(part.transpose(0, 2, 1), part)
            self.sums += part.sum(axis=1)

    @property
    def covariance(self) -> np.ndarray:
        """[groups, K, K]; the mean is left out, since the bias takes it."""
        self.add()
        mean = self.sums / self.count
        return self.products / self.count - mean[:, :, None] * mean[:, None, :]


def groups_and_width(layer: Apply) -> tuple[int, int]:
    """Groups of a layer, and how many values meet one output channel."""
    weight = layer.inputs[1].spec.shape
    if layer.record.rows:
        return 1, weight[1 if layer.attrs.get("transpose_b") else 0]
    return layer.attrs["groups"], weight[1] * weight[2] * weight[3]


def windows_of(layer: Apply, integers: np.ndarray, zero: float) -> np.ndarray:
    """Float32 [groups, rows, K]: what the weight of a layer meets in one sample after the other; `zero` is padding."""
    groups, width = groups_and_width(layer)
    if layer.record.rows:
        rows = integers.reshape(-1, integers.shape[-2] if integers.ndim > 2 else 1, width)
        return rows[:, _positions(rows.shape[1])].reshape(1, -1, width)
    kernel, a = layer.inputs[1].spec.shape[2:], layer.attrs
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, a["dilation"], strict=True)]
    padded = np.pad(integers, ((0, 0), (0, 0), *a["padding"]), constant_values=zero)
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))
    (down, right), (dy, dx) = a["stride"], a["dilation"]
    view = view[:, :, ::down, ::right, ::dy, ::dx]
    n, channels, height, across = view.shape[:4]
    at = _positions(height * across)
    picked = view[:, :, at // across, at % across]  # [n, channels, positions, kh, kw]
    picked = picked.reshape(n, groups, channels // groups, len(at), *kernel).transpose(1, 0, 3, 2, 4, 5)
    return picked.reshape(groups, n * len(at), width)


def _positions(count: int) -> np.ndarray:
    """The same positions in every sample, spread evenly and not in rows."""
    if count <= POSITIONS:
        return np.arange(count)
    return np.sort(np.random.default_rng(count).choice(count, POSITIONS, replace=False))


@dataclass(slots=True)
class LayerInputs:
    """What the input of a layer is like: means, and products where they were asked for."""

    layer: Apply
    means: InputMeans
    products: Products | None = None


def observe_inputs(
    layers: Sequence[Apply],
    qdq: InternalGraph,
    batches: Iterable[Any],
    *,
    products: Iterable[str] = (),
    progress: Progress | None = None,
) -> dict[str, LayerInputs]:
    """Read the inputs of layers, by name of the layer's output; with products for the layers that `products` names.

    `qdq` is the quantize / dequantize form of the graph of the layers. The data is read once, or more often where the
    products of all layers together take more than `BUDGET` bytes.
    """
    means = {e.inputs[0].name: InputMeans() for e in layers}
    reads = {e.inputs[0].name: e for e in layers}
    result = {e.outputs[0].name: LayerInputs(e, means[e.inputs[0].name]) for e in layers}
    wanted = set(products)
    for number, part in enumerate(_parts([one for name, one in result.items() if name in wanted])):
        for one in part:
            one.products = Products(*groups_and_width(one.layer))
        sinks = _sinks(qdq, means if number == 0 else {}, reads, part)
        stream(qdq, batches, sinks, stage="bias correction" if number == 0 else "rounding", progress=progress)
    return result


def _parts(layers: Sequence[LayerInputs]) -> list[list[LayerInputs]]:
    """The layers in parts whose products fit into the budget, at least one part."""
    parts: list[list[LayerInputs]] = [[]]
    size = 0
    for one in layers:
        groups, width = groups_and_width(one.layer)
        size += 8 * groups * width**2
        if size > BUDGET and parts[-1]:
            parts.append([])
            size = 8 * groups * width**2
        parts[-1].append(one)
    return parts


def _sinks(
    qdq: InternalGraph, means: dict[str, InputMeans], reads: dict[str, Apply], layers: Sequence[LayerInputs]
) -> dict[str, Callable[[np.ndarray], None]]:
    sinks: dict[str, Callable[[np.ndarray], None]] = {
        name: _update(one.exact, reads[name]) for name, one in means.items()
    }
    readers: dict[str, list[LayerInputs]] = {}
    for one in layers:
        readers.setdefault(one.layer.inputs[0].name, []).append(one)
    for expr in qdq.exprs():
        edge = expr.meta.get("edge")
        if not isinstance(expr, Apply):
            continue
        if expr.record.dequantizes and edge in means:
            sinks[expr.outputs[0].name] = _update(means[edge].rounded, reads[edge])
        elif expr.record.quantizes and edge in readers:
            sinks[expr.outputs[0].name] = _multiply(readers[edge], known_quantized(expr.attrs["dtype"]))
    return sinks


def _update(means: MeanValue, layer: Apply) -> Callable[[np.ndarray], None]:
    """What takes a batch of a layer's input: pictures of open sizes count by the mean of each channel."""
    shape = layer.inputs[0].spec.shape
    if not is_open(shape[1:]):
        return means.update
    channel = 1 if not layer.record.rows else len(shape) - (2 if layer.attrs["transpose_a"] else 1)
    axes = tuple(axis for axis in range(1, len(shape)) if axis != channel)

    def update(x: np.ndarray) -> None:
        even = x.mean(axis=axes, dtype=np.float64, keepdims=True)
        means.update(np.broadcast_to(even, (len(x), *closed(shape[1:]))))

    return update


def _multiply(readers: Sequence[LayerInputs], dtype: QuantizedDType) -> Callable[[np.ndarray], None]:
    """What takes the integers of an edge, shifted to -128 to 127: the covariance is the same for any shift."""

    def small(integers: np.ndarray) -> np.ndarray:
        wide = np.right_shift(integers, 8) if dtype.itemsize > 1 else integers  # of 16 bits the first 8 tell enough
        return wide.astype(np.float32) - np.float32(128 if dtype.storage == np.uint8 else 0)

    def update(integers: np.ndarray) -> None:
        values, zero = small(integers), float(small(np.asarray(dtype.zero_point, dtype.storage)))
        for one in readers:
            assert one.products is not None
            one.products.update(windows_of(one.layer, values, zero))

    return update
