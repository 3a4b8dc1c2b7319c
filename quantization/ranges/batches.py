"""Batches of data: their shapes and dtypes are checked, and a graph is run on them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from megengine.core.dtype import converted, first_changed
from megengine.core.errors import CalibrationError, ShapeError
from megengine.core.sizes import fits, is_open
from megengine.core.text import counted
from megengine.plan.building import is_exact
from megengine.plan.compiler import Plan
from megengine.plan.compiling import OpenPlan
from megengine.quantization.ranges.keys import values_in_order
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.interpret import as_tensors
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.sizes import counting, has_open_axes, sizes_of

Progress = Callable[[str, int, int | None], None]
Batch = tuple[np.ndarray, ...]
Sink = Callable[[np.ndarray], None]


def watched(graph: InternalGraph, sinks: Mapping[str, Sink]) -> Callable[[Batch], Any]:
    """A function that runs the graph on a batch and gives values to sinks by node name, each before the next is made.

    It is a plan where the graph is of floats and has one shape, up to the number of samples; otherwise the ops run one
    by one. A value of a plan may differ in its last bits from that of the op.
    """

    def look(node: Any, value: Tensor) -> None:
        if node.name in sinks:
            sinks[node.name](value.numpy())

    varies = any(is_open(node.spec.shape[1:]) for node in graph.inputs) or counting(graph)
    if varies or is_exact(graph) or not sinks:
        return lambda arrays: interpret(graph, as_tensors(arrays, graph), on_value=look)
    make = partial(Plan, watch=sinks)
    plan = OpenPlan(graph, make) if has_open_axes(graph) else make(graph)
    return lambda arrays: plan(*arrays)


def as_batches(batches: Iterable[Any], graph: InternalGraph) -> Iterator[Batch]:
    """Each item as a tuple of arrays of the inputs' shapes and dtypes; batches for a graph of batch 1 are divided.

    An array with the axes of the only input is one batch. Items may be mappings from names of inputs to arrays.

    Raises:
        CalibrationError: wrong number of inputs, a shape that does not fit, or values that the dtype does not hold.
    """
    for number, item in enumerate(items_of(batches, graph)):
        if isinstance(item, Mapping):
            item = values_in_order(item, [node.name for node in graph.inputs], f"data: batch {number}")
        parts: Sequence[Any] = item if isinstance(item, (tuple, list)) else (item,)
        arrays = [_array_of(p) for p in parts]
        if len(arrays) != len(graph.inputs):
            raise CalibrationError(
                f"data: batch {number} has {counted(len(arrays), 'array')}; "
                f"the model has {counted(len(graph.inputs), 'input')} "
                f"({', '.join(n.name for n in graph.inputs)}){_without_labels(arrays, graph)}"
            )
        for piece in samples_of(arrays, [tuple(node.spec.shape) for node in graph.inputs]):
            fitting = tuple(_fitted(number, node, array) for node, array in zip(graph.inputs, piece, strict=True))
            _check_sizes(number, graph, fitting)
            yield fitting


def _without_labels(arrays: Sequence[np.ndarray], graph: InternalGraph) -> str:
    """What to do about pairs of an input and its labels, as loaders give them."""
    labelled = len(arrays) == 2 and len(graph.inputs) == 1 and arrays[1].ndim < arrays[0].ndim
    return "; leave labels out: [x for x, _ in data]" if labelled else ""


def _array_of(value: Any) -> np.ndarray:
    """An array of a tensor, of this package or of PyTorch (which gives one only without its gradient)."""
    if isinstance(value, Tensor):
        return value.numpy()
    return np.asarray(value.detach() if getattr(value, "requires_grad", False) else value)


def items_of(batches: Iterable[Any], graph: InternalGraph) -> Iterable[Any]:
    """The batches of data: a mapping, or an array with the axes of the only input of the graph, is a batch itself.

    Raises:
        CalibrationError: a path.
    """
    if isinstance(batches, (str, PathLike)):
        raise CalibrationError(
            f"data: the path {str(batches)!r}; expected arrays, such as numpy.load of a file; pictures and files are "
            "read by the command: mge-quantize ptq MODEL --data DATA -o q.mgt"
        )
    if isinstance(batches, Mapping):
        return [batches]
    array: Any = batches if hasattr(batches, "__array__") and len(graph.inputs) == 1 else None
    return [batches] if array is not None and np.ndim(array) == graph.inputs[0].spec.ndim else batches


def samples_of(arrays: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> Iterator[Batch]:
    """The samples of a batch, where inputs of these shapes take one sample and arrays fit otherwise; else the batch.

    Example:
        >>> [x.shape for (x,) in samples_of([np.zeros((3, 2, 2))], [(1, 2, 2)])]
        [(1, 2, 2), (1, 2, 2), (1, 2, 2)]
    """
    counts = {array.shape[:1] for array in arrays}
    one_sample = len(arrays) == len(shapes) and all(
        not is_open(shape[:1]) and fits((1, *array.shape[1:]), shape)
        for array, shape in zip(arrays, shapes, strict=True)
    )
    if not one_sample or len(counts) != 1 or counts <= {(), (0,)}:
        yield tuple(arrays)
        return
    for i in range(len(arrays[0])):
        yield tuple(array[i : i + 1] for array in arrays)


def sample_number(sample: Batch) -> int:
    """A number of 64 bits for a sample, by its values."""
    digest = hashlib.blake2b(digest_size=8)
    for array in sample:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return int.from_bytes(digest.digest(), "little")


def _lacks_channel(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether data fits with an axis of one channel behind the samples."""
    return len(shape) > 1 and expected[1:2] == (1,) and fits((*shape[:1], 1, *shape[1:]), expected)


def shape_remedy(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """What to do about data of another shape than a network's input."""
    if _lacks_channel(shape, expected):
        return "add the axis of the channel: array[:, None]"
    if shape == expected[1:]:
        return "add the axis of the batch: array[None]"
    if shape[1:] == expected[1:]:
        return f"the network takes {counted(expected[0], 'sample')} at once: give batches of that size"
    if len(shape) == len(expected) > 2:
        for what, moved, move in (
            ("last", (shape[0], shape[-1], *shape[1:-1]), "-1, 1"),
            ("second", (shape[0], *shape[2:], shape[1]), "1, -1"),
        ):
            if fits(moved, expected):
                return f"the channels are its {what} axis: give numpy.moveaxis(array, {move})"
    if len(expected) > 2 and fits(shape[1:], expected[2:]) and len(shape) == len(expected) - 1:
        return "the first axis of an array counts samples: if it holds one, give array[None]"
    return "scale, crop or reshape the data, or trace the network with the shape that the data has"


def _check_sizes(number: int, graph: InternalGraph, arrays: Batch) -> None:
    if has_open_axes(graph):
        try:
            sizes_of(graph, [array.shape for array in arrays])
        except ShapeError as error:
            raise CalibrationError(f"data: batch {number}: {error}") from error


def _fitted(number: int, node: Any, array: np.ndarray) -> np.ndarray:
    if not fits(array.shape, node.spec.shape):
        raise CalibrationError(
            f"data: batch {number}, input {node.name!r}: expected shape {tuple(node.spec.shape)}, "
            f"got {array.shape}; {shape_remedy(array.shape, tuple(node.spec.shape))}"
        )
    exact = converted(array, node.spec.dtype)
    if exact is None:
        raise CalibrationError(
            f"data: batch {number}, input {node.name!r}: expected {node.spec.dtype}, got {array.dtype} with values "
            f"such as {first_changed(array, node.spec.dtype)}, which cannot be converted exactly"
        )
    return exact


def require_repeatable(batches: Iterable[Any], why: str) -> None:
    """Raises CalibrationError for an iterator that can be read once, where the data is read twice."""
    if iter(batches) is batches:
        raise CalibrationError(
            f"calibration: {why} reads the data a second time, and this iterator can be read once; "
            "give a list or an object with __iter__"
        )
