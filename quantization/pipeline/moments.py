"""What the inputs of integer layers are like: products of their integers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.quantization.ranges import Progress, stream
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph

POSITIONS = 96
"""Positions of a picture (or rows of a matrix) that enter the products; neighbours are alike."""
EXACT_ROWS = 1024  # 1024 * 128**2 == 2**24: float32 adds so many products of 8-bit integers exactly
BUDGET = 400 << 20  # bytes of the matrices of one pass over the data


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


def results_of(layer: Apply, results: np.ndarray) -> np.ndarray:
    """Float32 [groups, rows, output channels of a group]: what a layer gives for `windows_of` its input."""
    groups, _ = groups_and_width(layer)
    if layer.record.rows:
        rows = results.reshape(-1, results.shape[-2] if results.ndim > 2 else 1, results.shape[-1])
        return rows[:, _positions(rows.shape[1])].reshape(1, -1, results.shape[-1])
    n, channels, height, across = results.shape
    at = _positions(height * across)
    picked = results.reshape(n, groups, channels // groups, -1)[..., at].transpose(1, 0, 3, 2)
    return picked.reshape(groups, n * len(at), channels // groups)


def _positions(count: int) -> np.ndarray:
    """The same positions in every sample, spread evenly and not in rows."""
    if count <= POSITIONS:
        return np.arange(count)
    return np.sort(np.random.default_rng(count).choice(count, POSITIONS, replace=False))


def observe_products(
    layers: Sequence[Apply], qdq: InternalGraph, batches: Iterable[Any], *, progress: Progress | None = None
) -> dict[str, Products]:
    """Products of the integers that reach layers, by name of the layer's output.

    `qdq` is the quantize / dequantize form of the graph of the layers. The data is read once, or more often where the
    products of all layers together take more than `BUDGET` bytes.
    """
    result: dict[str, Products] = {}
    for part in _parts(layers):
        sinks: dict[str, Callable[[np.ndarray], None]] = {}
        readers: dict[str, list[tuple[Apply, Products]]] = {}
        for layer in part:
            result[layer.output.name] = products = Products(*groups_and_width(layer))
            readers.setdefault(layer.inputs[0].name, []).append((layer, products))
        for expr in qdq.exprs():
            edge = expr.meta.get("edge")
            if isinstance(expr, Apply) and expr.record.quantizes and edge in readers:
                sinks[expr.output.name] = _multiply(readers[edge], known_quantized(expr.attrs["dtype"]))
        stream(qdq, batches, sinks, stage="rounding", progress=progress)
    return result


def _parts(layers: Sequence[Apply]) -> list[list[Apply]]:
    """The layers in parts whose products fit into the budget."""
    parts: list[list[Apply]] = []
    size = BUDGET
    for layer in layers:
        groups, width = groups_and_width(layer)
        needed = 8 * groups * width**2
        if not parts or size + needed > BUDGET:
            parts.append([])
            size = 0
        parts[-1].append(layer)
        size += needed
    return parts


def _multiply(readers: Sequence[tuple[Apply, Products]], dtype: QuantizedDType) -> Callable[[np.ndarray], None]:
    """What takes the integers of an edge, shifted to -128 to 127: the covariance is the same for any shift."""

    def small(integers: np.ndarray) -> np.ndarray:
        wide = np.right_shift(integers, 8) if dtype.itemsize > 1 else integers  # of 16 bits the first 8 tell enough
        return wide.astype(np.float32) - np.float32(128 if dtype.storage == np.uint8 else 0)

    def update(integers: np.ndarray) -> None:
        values, zero = small(integers), float(small(np.asarray(dtype.zero_point, dtype.storage)))
        for layer, products in readers:
            products.update(windows_of(layer, values, zero))

    return update
