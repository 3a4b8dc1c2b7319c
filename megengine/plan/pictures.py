"""Parts of a network that are computed for one picture of a batch after the other.

The values of a batch between two layers often exceed the cache, those of one picture do not. Layers in a row that have
few weights are run for each picture alone. Layers of many weights take all pictures, so that weights are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply
from megengine.kernels import along, elementwise, floating, int8, int8_rows, onednn, pooling, strided
from megengine.kernels.kernel import Kernel
from megengine.kernels.lists import LISTS
from megengine.ops.common import normalize_axes
from megengine.traced_module import InternalGraph, record
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode

_CACHE = 1 << 20  # bytes that stay near one core
_FEW_WEIGHTS = 1 << 17  # bytes that stay there beside the values of a picture


def _layer(expr: Apply) -> bool:
    """Weights and bias are constants; what else it reads is not."""
    return all(isinstance(n.expr, Constant) == (i in (1, 2)) for i, n in enumerate(expr.inputs))


def _integer_layer(expr: Apply) -> bool:
    return all(isinstance(n.expr, Constant) == (i in int8.WEIGHTS) for i, n in enumerate(expr.inputs))


def _table(expr: Apply) -> bool:
    return expr.attrs.get("axis") != 0 and isinstance(expr.inputs[1].expr, Constant)


def _numbers(expr: Apply) -> bool:
    """Each number has operands of its own place, or constants that are the same for all pictures."""
    rank = expr.output.spec.ndim
    return all(
        n.spec.ndim < rank or n.shape[0] == 1 if isinstance(n.expr, Constant) else n.spec.ndim == rank
        for n in expr.inputs
    )


def _windows(expr: Apply) -> bool:
    return True


def _padded(expr: Apply) -> bool:
    return tuple(expr.attrs["widths"][0]) == (0, 0)


def _repeated(expr: Apply) -> bool:
    return expr.attrs["counts"][0] == 1


def _joined(expr: Apply) -> bool:
    axis = normalize_axes(expr.op, expr.attrs["axis"], expr.output.spec.ndim)[0]
    return axis != 0 and not any(isinstance(n.expr, Constant) for n in expr.inputs)


def _means(expr: Apply) -> bool:
    return 0 not in normalize_axes(expr.op, expr.attrs["axis"], expr.inputs[0].spec.ndim)


# a kernel -> whether the results of a picture follow from its own values, by the same attributes, for ops that have it
_ALONE: dict[Kernel, Callable[[Apply], bool]] = {
    **dict.fromkeys((onednn.onednn_conv2d, onednn.onednn_fused_conv2d, onednn.onednn_windows), _layer),
    **dict.fromkeys((pooling.own_max_pool2d, pooling.own_avg_pool2d), _windows),
    **dict.fromkeys((floating.own_channel_mean, floating.own_resize), _windows),
    **dict.fromkeys((elementwise.own_elementwise, floating.own_function), _numbers),
    floating.own_concat: _joined,
    strided.own_strided_pad: _padded,
    strided.own_strided_fused_repeat: _repeated,
    along.own_mean: _means,
}
_INTEGERS_ALONE: dict[Kernel, Callable[[Apply], bool]] = {
    int8.int8_conv: _integer_layer,
    int8.int8_table: _table,
    **dict.fromkeys((int8.int8_requantize, int8.int8_avg_pool2d, int8.int8_max_pool2d), _windows),
    **dict.fromkeys((int8.int8_add, int8.int8_multiply), _numbers),
    **dict.fromkeys((int8_rows.int8_maximum, int8_rows.int8_minimum), _numbers),
    int8_rows.int8_resize: _windows,
    int8.int8_mean: _means,
    floating.own_concat: _joined,
    strided.own_strided_pad: _padded,
    strided.own_strided_fused_repeat: _repeated,
}
_FLOATS, _INTEGERS = (
    {op: alone[kernel] for op, kernels in LISTS.items() for kernel in kernels if kernel in alone}
    for alone in (_ALONE, _INTEGERS_ALONE)
)


def _bytes(spec: TensorSpec) -> int:
    return spec.size * storage_of(spec.dtype).itemsize


def _moving(expr: Apply) -> list[TensorNode]:
    return [n for n in expr.inputs if not isinstance(n.expr, Constant)]


def _is_integer(node: TensorNode) -> bool:
    return isinstance(node.dtype, QuantizedDType) and node.dtype.itemsize == 1


def _alone(expr: Apply, count: int, *, exact: bool) -> bool:
    """True for ops that pictures go through alone, with few weights; in exact networks for those of 8-bit integers."""
    values, ops = [*_moving(expr), *expr.outputs], _INTEGERS if exact else _FLOATS
    if expr.op not in ops or any(n.spec.ndim != 4 or n.shape[0] != count for n in values):
        return False
    if exact and not all(map(_is_integer, values)):
        return False
    weights = sum(_bytes(n.spec) for n in expr.inputs if isinstance(n.expr, Constant))
    few = _FEW_WEIGHTS // 4 if exact else _FEW_WEIGHTS  # so are the values
    return ops[expr.op](expr) and weights <= max(few, sum(_bytes(n.spec) for n in values) // count)


@dataclass(frozen=True)
class Part:
    """Ops in a row, what they read from outside, and what is read of theirs."""

    exprs: list[Apply]
    sources: list[TensorNode]
    results: list[TensorNode]

    @property
    def pictures(self) -> int:
        """How many there are in the batch."""
        return self.results[0].shape[0]

    def of_one(self) -> InternalGraph:
        """The ops on one picture."""
        specs = [TensorSpec((1, *n.shape[1:]), n.dtype, n.spec.device) for n in self.sources]

        def compute(*inputs: Any) -> list[Any]:
            values = dict(zip(map(id, self.sources), inputs, strict=True))
            for expr in self.exprs:
                arguments = [n.expr.value if isinstance(n.expr, Constant) else values[id(n)] for n in expr.inputs]
                values[id(expr.output)] = apply(expr.op, *arguments, **expr.attrs)
            return [values[id(n)] for n in self.results]

        return record(compute, specs, name="each_picture")


def _part(exprs: list[Apply], outputs: Iterable[TensorNode]) -> Part:
    inside, kept = {id(e) for e in exprs}, {id(n) for n in outputs}
    sources = {id(n): n for e in exprs for n in _moving(e) if id(n.expr) not in inside}
    results = [
        e.output for e in exprs if id(e.output) in kept or any(id(user) not in inside for user in e.output.users)
    ]
    return Part(exprs, list(sources.values()), results)


def parts(graph: InternalGraph, *, exact: bool = False) -> list[Part]:
    """The parts of a network that are worth it: several ops, whose values together exceed the cache."""
    shape = graph.inputs[0].spec.shape if graph.inputs else ()
    if len(shape) != 4 or shape[0] < 2:
        return []
    runs: list[list[Apply]] = [[]]
    for expr in graph.exprs():
        if isinstance(expr, Apply):
            if _alone(expr, shape[0], exact=exact):
                runs[-1].append(expr)
            else:
                runs.append([])
    found = []
    for run in runs:
        largest = max((sum(_bytes(n.spec) for n in (*_moving(e), *e.outputs)) for e in run), default=0)
        if len(run) > 1 and largest > _CACHE:
            found.append(_part(run, graph.outputs))
    return found
