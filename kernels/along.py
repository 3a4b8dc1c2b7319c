"""Steps along axes: sums, extremes and their places, softmax, running sums, the largest elements.

Sums of floats are added in NumPy's order, which is one of the logical shape, whatever the layout: neighbours along the
last axis pairwise, all others in turn. Other reductions of a value are those of its memory.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16, storage_of
from megengine.core.spec import TensorSpec
from megengine.kernels import _core
from megengine.kernels.kernel import FlatKernel, StepKernel
from megengine.kernels.native import flat_kernel
from megengine.kernels.places import NUMBERS, of_places
from megengine.kernels.problem import Problem, float32_only, no_elements


def _order(ndim: int, *, rows: bool = False) -> tuple[int, ...]:
    """Axes in the order in which a value of a plan has them in memory."""
    return (0, 2, 3, 1) if ndim == 4 and not rows else tuple(range(ndim))


def _walked(spec: TensorSpec, *, rows: bool = False) -> list[int]:
    """The axes that have more than one element, as memory has them."""
    return [a for a in _order(spec.ndim, rows=rows) if spec.shape[a] != 1]


def _axes(problem: Problem) -> tuple[int, ...]:
    x, axis = problem.inputs[0], problem.attrs.axis
    if axis is None:
        return tuple(range(x.ndim))
    return tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))


def _types(problem: Problem) -> str | None:
    dtype = str(storage_of(problem.inputs[0].dtype))
    return no_elements(problem) if dtype in NUMBERS else f"{dtype}; only {', '.join(NUMBERS)}"


def _compared(problem: Problem) -> str | None:
    """As `_types`, of truth values as well, which compare like their bytes."""
    return no_elements(problem) if _type(problem) == "uint8" else _types(problem)


def _type(problem: Problem) -> str:
    """How the numbers are stored."""
    stored = str(storage_of(problem.inputs[0].dtype))
    return "uint8" if stored == "bool" else stored


def _kept_in_order(problem: Problem) -> str | None:
    """Why the axes that stay do not lie in the result as they do in the operand."""
    (x, y), axes = (problem.inputs[0], problem.outputs[0]), _axes(problem)
    kept = [a for a in _walked(x) if a not in axes]
    if y.ndim != x.ndim:
        kept = [a - sum(r < a for r in axes) for a in kept]
    return None if kept == _walked(y) else f"axes {axes} of {x.shape} leave others in another order"


# ---------------------------------------------------------------- reductions


def _runs(problem: Problem) -> list[tuple[int, bool]]:
    """Lengths of neighbouring axes that are alike, and whether they are reduced, as memory has them."""
    x, axes = problem.inputs[0], _axes(problem)
    runs: list[tuple[int, bool]] = []
    for axis in _walked(x):
        n, reduced = x.shape[axis], axis in axes
        runs = [*runs[:-1], (runs[-1][0] * n, reduced)] if runs and runs[-1][1] == reduced else [*runs, (n, reduced)]
    return runs or [(1, True)]


def _way(problem: Problem) -> str | None:
    """How a sum of floats is computed: over "rows" or "columns" of neighbours, "in turn", or "straight"; None: not."""
    x = problem.inputs[0]
    walked, reduced = _walked(x), {a for a in _axes(problem) if x.shape[a] != 1}
    if walked == sorted(walked):
        return "rows" if len(_runs(problem)) < 3 and _runs(problem)[-1][1] else "straight"
    if reduced == {1}:
        return "in turn"
    return "columns" if reduced == {a for a in (2, 3) if x.shape[a] != 1} else None


def _sum_usable(problem: Problem) -> str | None:
    dtype = problem.inputs[0].dtype
    if dtype == bfloat16 and _way(problem) == "columns":
        return no_elements(problem) or _kept_in_order(problem)
    if dtype != np.float32:
        return _whole_usable(problem)
    if _way(problem) is None:
        return f"axes {_axes(problem)} of a value that lies channels-last"
    return float32_only(problem) or _kept_in_order(problem)


def _whole_usable(problem: Problem) -> str | None:
    """Reductions whose order makes no difference."""
    return _types(problem) or _kept_in_order(problem)


def _extreme_usable(problem: Problem) -> str | None:
    return _compared(problem) or _kept_in_order(problem)


def _prod_usable(problem: Problem) -> str | None:
    ordered = problem.inputs[0].dtype != np.float32 or _way(problem) is not None
    return _whole_usable(problem) if ordered else f"axes {_axes(problem)} of a value that lies channels-last"


def _reduce_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    runs = _runs(problem)
    lengths = [n for n, _ in runs]
    return _core.reduce_step(problem.op, _type(problem), lengths, last_reduced=runs[-1][1])


def _sum_step(problem: Problem, constants: dict[int, np.ndarray], threads: int, *, averaged: bool = False) -> Any:
    x = problem.inputs[0]
    if x.dtype not in (np.float32, bfloat16):
        return _reduce_step(problem, constants, threads)
    way, runs = _way(problem), _runs(problem)
    divisor = float(x.size // problem.outputs[0].size) if averaged else 1.0
    if way == "straight":
        return _core.sum_step([n for n, _ in runs], last_summed=runs[-1][1], divisor=divisor)
    of_columns = way == "columns"
    n, rows, cols = (x.shape[0], x.shape[2] * x.shape[3], x.shape[1]) if of_columns else (1, 1, runs[-1][0])
    rows = rows if of_columns else x.size // cols
    sizes, options = {"n": n, "rows": rows, "cols": cols}, {"in_turn": way == "in turn", "of_columns": of_columns}
    return _core.sums_step(**sizes, divisor=divisor, **options, halves=x.dtype == bfloat16, threads=threads)


# ---------------------------------------------------------------- along one axis


def _along(problem: Problem, *, rows: bool = False) -> tuple[int, int, int]:
    """Elements around, along and between the elements of the axis in memory."""
    x = problem.inputs[0]
    order, axis = _order(x.ndim, rows=rows), problem.attrs.axis % x.ndim
    at = order.index(axis)
    outer, inner = (math.prod(x.shape[a] for a in part) for part in (order[:at], order[at + 1 :]))
    return outer, x.shape[axis], inner


def _place_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    outer, n, inner = _along(problem)
    return _core.place_step(type=_type(problem), outer=outer, n=n, inner=inner, most=problem.op == "argmax")


def _running_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    outer, n, inner = _along(problem)
    dtype = str(problem.inputs[0].dtype)
    return _core.running_sum_step(type=dtype, outer=outer, n=n, inner=inner, reverse=problem.attrs.reverse)


def _top_usable(problem: Problem) -> str | None:
    x = problem.inputs[0]
    walked = _walked(x)
    return _compared(problem) if walked == sorted(walked) else "the last axis lies apart"


def _top_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    x, attrs = problem.inputs[0], problem.attrs
    n = x.shape[-1]
    return _core.top_step(type=_type(problem), rows=x.size // n, n=n, k=attrs.k, descending=attrs.descending)


def _floats_only(problem: Problem) -> str | None:
    """As `float32_only`, of bfloat16 as well, which is computed in float32 and rounded once."""
    return no_elements(problem) if problem.inputs[0].dtype == bfloat16 else float32_only(problem)


# ---------------------------------------------------------------- softmax


def _softmax_usable(problem: Problem) -> str | None:
    x, apart = problem.inputs[0], _along(problem)[2] > 1
    if apart and _is_last(problem):
        return f"axis {problem.attrs.axis} of {x.shape} lies apart"
    return float32_only(problem) if apart else _floats_only(problem)


def _is_last(problem: Problem) -> bool:
    """True if no logical axis behind the axis has more than one element: its exponentials are neighbours."""
    x = problem.inputs[0]
    return math.prod(x.shape[problem.attrs.axis % x.ndim + 1 :]) == 1


def _softmax(problem: Problem, threads: int, *, rows: bool) -> Any:
    outer, n, inner = _along(problem, rows=rows)
    log, in_turn = problem.op == "log_softmax", not _is_last(problem)
    half = problem.inputs[0].dtype == bfloat16
    return _core.softmax_step(outer=outer, n=n, inner=inner, in_turn=in_turn, log=log, half=half, threads=threads)


# ---------------------------------------------------------------- normalisation


def _norm_usable(problem: Problem) -> str | None:
    x = problem.inputs[0]
    walked = _walked(x)
    return _floats_only(problem) if walked == sorted(walked) else "the last axes lie apart"


def _norm_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    x, a = problem.inputs[0], problem.attrs
    cols = math.prod(x.shape[x.ndim - a.axes :])
    options = {"eps": a.eps, "centred": a.centred, "reciprocal": a.reciprocal, "half": x.dtype == bfloat16}
    return _core.norm_step(rows=x.size // cols, cols=cols, **options, factors=len(problem.inputs) - 1, threads=threads)


def _channel_norm_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    x, a = problem.inputs[0], problem.attrs
    return _core.channel_norm_step(
        samples=x.shape[0],
        groups=a.groups,
        inner=math.prod(x.shape[2:]),
        eps=a.eps,
        factors=np.ascontiguousarray(constants[1], np.float32),
        half=x.dtype == bfloat16,
        threads=threads,
    )


def _one_hot_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    x = problem.inputs[0]
    return _core.one_hot_step(item=storage_of(x.dtype).itemsize, count=x.size, depth=problem.attrs.depth)


own_sum = StepKernel("own_sum", _sum_step, _sum_usable)
own_mean = StepKernel("own_mean", functools.partial(_sum_step, averaged=True), _sum_usable)
own_prod = StepKernel("own_prod", _reduce_step, _prod_usable)
own_extreme = StepKernel("own_extreme", _reduce_step, _extreme_usable)
own_place = StepKernel("own_place", _place_step, _extreme_usable)
own_running_sum = StepKernel("own_running_sum", _running_step, _types)
own_top = StepKernel("own_top", _top_step, _top_usable)
own_softmax = StepKernel(
    "own_softmax", lambda problem, constants, threads: _softmax(problem, threads, rows=False), _softmax_usable
)
own_flat_softmax: FlatKernel = flat_kernel(
    "own_flat_softmax", lambda problem: _softmax(problem, 1, rows=True), float32_only
)
own_norm = StepKernel("own_norm", _norm_step, _norm_usable)
own_channel_norm = StepKernel("own_channel_norm", _channel_norm_step, _floats_only, packs=(1,), in_rows=True)
own_one_hot = StepKernel(
    "own_one_hot", _one_hot_step, lambda problem: of_places(problem.inputs, problem), in_rows=True, refuses=True
)
