"""Float convolutions and products whose sums have one order: the bits of the reference at every instruction set."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from megengine.kernels import _core, memory
from megengine.kernels.kernel import EagerKernel, StepKernel
from megengine.kernels.native import StepCache, long_steps, step_kernel
from megengine.kernels.problem import Problem, float32_only

WINDOWS = tuple(f"ordered_{kind}{axes}d" for kind in ("conv", "conv_transpose") for axes in (2, 3))
_AXES = 3  # of space, in the native steps
Phase = tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, ...]], np.ndarray]


def _three(numbers: Any, filler: int) -> tuple[int, ...]:
    return *(filler,) * (_AXES - len(numbers)), *numbers


def _windows_usable(problem: Problem) -> str | None:
    return float32_only(problem) or long_steps(problem)


def _of_convolution(problem: Problem, w: np.ndarray) -> list[Phase]:
    """All places of the result, which read every tap; w [O,C/g,*kernel]."""
    a, kernel = problem.attrs, w.shape[2:]
    before = [start for start, _ in a.padding]
    taps = [
        _three([t * d - p for t, d, p in zip(tap, a.dilation, before, strict=True)], 0) for tap in np.ndindex(*kernel)
    ]
    weights = np.moveaxis(w.reshape(*w.shape[:2], -1), (2, 1, 0), (0, 1, 2))
    return [((0,) * _AXES, _three(problem.outputs[0].shape[2:], 1), taps, np.ascontiguousarray(weights))]


def _of_transposed(problem: Problem, w: np.ndarray) -> list[Phase]:
    """The places of the result that lie alike between the elements of the input; w [I,O/g,*kernel].

    Along an axis, place o reads element i through tap k where o + padding = i * stride + k * dilation.
    """
    a, out, kernel, groups = problem.attrs, problem.outputs[0].shape[2:], w.shape[2:], problem.attrs.groups
    taken = w.shape[0] // groups
    # [tap, input of a group, output]
    weights = np.moveaxis(w.reshape(groups, taken, w.shape[1], -1), (3, 1, 0, 2), (0, 1, 2, 3))
    weights = weights.reshape(math.prod(kernel), taken, -1)
    phases: list[Phase] = []
    for origin in itertools.product(*(range(min(s, n)) for s, n in zip(a.stride, out, strict=True))):
        counts = [len(range(o, n, s)) for o, n, s in zip(origin, out, a.stride, strict=True)]
        reads = [
            [(k, (o + p[0] - k * d) // s) for k in reversed(range(n)) if (o + p[0] - k * d) % s == 0]
            for o, p, d, s, n in zip(origin, a.padding, a.dilation, a.stride, kernel, strict=True)
        ]
        taps = list(itertools.product(*reads))
        chosen = [int(np.ravel_multi_index([k for k, _ in tap], kernel)) for tap in taps]
        offsets = [_three([i for _, i in tap], 0) for tap in taps]
        phases.append((_three(origin, 0), _three(counts, 1), offsets, np.ascontiguousarray(weights[chosen])))
    return phases


def _windows_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    x, out, a = problem.inputs[0].shape, problem.outputs[0].shape, problem.attrs
    transposed, ones = "output_padding" in a, (1,) * _AXES
    phases = (_of_transposed if transposed else _of_convolution)(problem, constants[1])
    steps = _three(a.stride, 1)
    return _core.ordered_windows_step(
        sizes=(x[0], x[1], out[1], a.groups),
        in_size=_three(x[2:], 1),
        out_size=_three(out[2:], 1),
        in_step=ones if transposed else steps,
        out_step=steps if transposed else ones,
        phases=phases,
        bias=np.ascontiguousarray(constants[2]) if 2 in constants else None,
        planes=len(x) != 4,
        threads=threads,
    )


def _product_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    (a, b), out, attrs = problem.inputs, problem.outputs[0].shape, problem.attrs
    rows, depth = out[-2], a.shape[-2 if attrs.transpose_a else -1]
    if b.ndim == 2 and not attrs.transpose_a:  # the rows of all matrices
        rows, places = math.prod(out[:-1]), [(0, 0)]
    else:
        begin = [
            np.broadcast_to(np.arange(s.size, step=s.shape[-1] * s.shape[-2]).reshape(s.shape[:-2]), out[:-2]).ravel()
            for s in (a, b)
        ]
        places = list(zip(*(p.tolist() for p in begin), strict=True))
    weights = np.ascontiguousarray(constants[1]) if 1 in constants else None
    return _core.ordered_product_step(
        rows, depth, out[-1], attrs.transpose_a, attrs.transpose_b, places, weights, threads
    )


def _computed_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    return _product_step(problem, {}, threads)


_steps = StepCache(_computed_step)


def _run_product(problem: Problem, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = memory.empty(problem.outputs[0].shape, np.dtype(np.float32))
    moving = [memory.bits(np.asarray(x, order="C")) for x in (a, b)]
    _core.run_step(_steps.get(problem, {}), [*moving, memory.bits(out)])
    return out


def _in_rows(problem: Problem) -> str | None:
    """Plans ask for a lifted problem where values lie in rows, as the step takes them."""
    if any(s.ndim == 4 for s in (*problem.inputs, *problem.outputs)):
        return "tensors of 4 axes lie channels-last"
    return float32_only(problem)


own_ordered_windows = step_kernel("own_ordered_windows", _windows_step, _windows_usable, packs=(1, 2))
own_ordered_product = EagerKernel("own_ordered_product", _run_product, float32_only)
own_ordered_product_rows = StepKernel("own_ordered_product_rows", _computed_step, _in_rows)
own_ordered_product_packed = StepKernel(
    "own_ordered_product_packed",
    _product_step,
    _in_rows,
    packs=(1,),
    accepts=lambda problem, constants: None if 1 in constants else "the second operand is computed",
)
