"""Own exact 8-bit kernels of products of two tensors, softmax, normalization, means, and pairs that broadcast.

As in `int8.py`, each equals docs/integer-arithmetic.md bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core.spec import TensorSpec
from megengine.kernels import _core
from megengine.kernels.floating import resize_axes
from megengine.kernels.int8 import (
    ADD,
    LARGER,
    MULTIPLY,
    SMALLER,
    Constants,
    clamp_list,
    from_eight_bits,
    scale_ratio,
    tensor_list,
    to_eight_bits,
    usable_size,
)
from megengine.kernels.kernel import EagerKernel, MakeStep, StepKernel
from megengine.kernels.native import step_kernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference.integer import resize_bits, whole_weights
from megengine.kernels.strided import planned_strides

# ---------------------------------------------------------------- products


def _places(spec: TensorSpec, stacks: tuple[int, ...]) -> list[int]:
    """Where the matrices of an operand begin, for every stack of the result."""
    own, size = spec.shape[:-2], spec.shape[-2] * spec.shape[-1]
    numbers = np.arange(math.prod(own), dtype=np.int64).reshape(own) * size
    return np.broadcast_to(numbers, stacks).reshape(-1).tolist()


def _product_step(problem: Problem, constants: Constants, threads: int) -> Any:
    a, b = problem.inputs
    attrs, out = problem.attrs, problem.outputs[0]
    rows, cols = out.shape[-2:]
    depth = a.shape[-2 if attrs.transpose_a else -1]
    stacks = out.shape[:-2]
    places = _places(a, stacks), _places(b, stacks)
    if not attrs.transpose_a and math.prod(b.shape[:-2]) == 1 and a.shape[:-2] == stacks:
        rows, places = rows * math.prod(stacks), ([0], [0])  # one b: all stacks are rows of one product
    return _core.make_int8_product_step(
        shape=[rows, depth, cols, attrs.transpose_a, attrs.transpose_b],
        a=tensor_list(a.dtype),
        b=tensor_list(b.dtype),
        a_places=places[0],
        b_places=places[1],
        m=attrs.m,
        clamp=clamp_list(attrs.dtype, attrs.lo, attrs.hi),
        threads=threads,
    )


def _product_usable(problem: Problem) -> str | None:
    specs = (*problem.inputs, *problem.outputs)
    if any(s.ndim == 4 for s in specs):
        return "tensors of 4 axes lie channels-last"
    return usable_size(problem)


# ---------------------------------------------------------------- pairs that broadcast


def _pair(kind: int, *factors: str) -> MakeStep:
    def make(problem: Problem, constants: Constants, threads: int) -> Any:
        a, out = problem.attrs, problem.outputs[0]
        ra, rb = (*(a[name] for name in factors), 0.0)[:2]
        strides = [list(planned_strides(s, out.shape)) for s in (out, *problem.inputs)]
        return _core.make_int8_broadcast_step(
            kind=kind,
            shape=list(out.shape),
            strides=strides,
            a=tensor_list(problem.inputs[0].dtype),
            r=tensor_list(problem.inputs[1].dtype),
            clamp=clamp_list(a.dtype, a.lo, a.hi),
            ra=ra,
            rb=rb,
            threads=threads,
        )

    return make


# ---------------------------------------------------------------- along axes


def _in_memory(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Axes in the order in which a value of a plan lies in memory: four of them lie channels-last."""
    return (axes[0], *axes[2:], axes[1]) if len(axes) == 4 else axes


def _blocks(spec: TensorSpec, axes: tuple[int, ...]) -> tuple[int, int, int] | None:
    """[outer, length, inner] as which a value of a plan lies in memory, if the axes are neighbours there."""
    lengths = [(spec.shape[i], i in axes) for i in _in_memory(tuple(range(spec.ndim))) if spec.shape[i] != 1]
    kinds = [inside for _, inside in lengths]
    first = kinds.index(True) if True in kinds else len(kinds)
    count = sum(kinds)
    if not all(kinds[first : first + count]):
        return None
    sizes = [n for n, _ in lengths]
    parts = sizes[:first], sizes[first : first + count], sizes[first + count :]
    return math.prod(parts[0]), math.prod(parts[1]), math.prod(parts[2])


def _axes(problem: Problem) -> tuple[int, ...]:
    axis, ndim = problem.attrs.axis, problem.inputs[0].ndim
    return tuple(range(ndim)) if axis is None else tuple(int(a) % ndim for a in np.atleast_1d(axis))


def _softmax_step(problem: Problem, constants: Constants, threads: int) -> Any:
    x, dtype = problem.inputs[0], problem.attrs.dtype
    shape = _blocks(x, _axes(problem))
    assert shape is not None, "one axis is always a block"
    return _core.make_int8_softmax_step(
        shape=list(shape),
        x=tensor_list(x.dtype),
        table=np.ascontiguousarray(constants[1]),
        one=float(np.float32(1) / np.float32(dtype.only_scale)),
        clamp=clamp_list(dtype),
        threads=threads,
    )


def normalize_step(problem: Problem, constants: Constants, threads: int) -> Any:
    x, a = problem.inputs[0], problem.attrs
    length = math.prod(x.shape[x.ndim - a.axes :])
    return _core.make_int8_normalize_step(
        rows=x.size // length,
        length=length,
        x=tensor_list(x.dtype),
        shift=a.E,
        centred=a.centred,
        clamp=clamp_list(a.dtype),
        threads=threads,
    )


def channels_last(problem: Problem) -> str | None:
    """Why rows are no neighbours in memory; None if they are."""
    return "tensors of 4 axes lie channels-last" if any(s.ndim == 4 for s in problem.inputs) else None


def _normalize_usable(problem: Problem) -> str | None:
    return channels_last(problem) or to_eight_bits(problem)


def _mean_step(problem: Problem, constants: Constants, threads: int) -> Any:
    shape = _blocks(problem.inputs[0], _axes(problem))
    assert shape is not None
    m = np.float32(scale_ratio(problem)) / np.float32(1 if problem.op == "qsum" else shape[1])
    x, clamp = tensor_list(problem.inputs[0].dtype), clamp_list(problem.attrs.dtype)
    return _core.make_int8_mean_step(shape=list(shape), x=x, m=float(m), clamp=clamp, threads=threads)


def _keeps_order(problem: Problem) -> bool:
    """Whether the axes that are left lie in the result as in the input."""
    x, gone = problem.inputs[0], _axes(problem)
    every = tuple(range(x.ndim))
    result = every if problem.attrs.keepdims else tuple(i for i in every if i not in gone)
    before, after = ([i for i in _in_memory(n) if x.shape[i] != 1 and i not in gone] for n in (every, result))
    return before == after


def _mean_usable(problem: Problem) -> str | None:
    shape = _blocks(problem.inputs[0], _axes(problem))
    if shape is None:
        return f"axes {problem.attrs.axis} are no neighbours in memory"
    if not _keeps_order(problem):
        return f"what is left of {problem.inputs[0].shape} lies in another order"
    return to_eight_bits(problem)


# ---------------------------------------------------------------- pictures in other sizes


def _resize_step(problem: Problem, constants: Constants, threads: int) -> Any:
    walk, weights = resize_axes(problem)
    axes, x = len(weights), problem.inputs[0]
    return _core.make_int8_resize_step(
        **walk,
        weights=[whole_weights(weight, axes).ravel().tolist() for weight in weights],
        shift=resize_bits(axes) * axes,
        x=tensor_list(x.dtype),
        clamp=clamp_list(x.dtype),
        threads=threads,
    )


def _resize_usable(problem: Problem) -> str | None:
    x = problem.inputs[0]
    return from_eight_bits(problem) if x.ndim == len(problem.attrs.size) + 2 else "pictures lie in rows"


# ---------------------------------------------------------------- eager calls


def _in_rows(kernel: StepKernel) -> EagerKernel:
    """Eager calls with values of four axes: the same with an axis of length 1 in front, which lie in rows."""

    def lifted(spec: TensorSpec, most: int) -> TensorSpec:
        return TensorSpec((1, *spec.shape), spec.dtype, spec.device) if spec.ndim == most else spec

    def run(problem: Problem, *arrays: np.ndarray) -> np.ndarray:
        most = max(s.ndim for s in problem.inputs)
        inputs = [lifted(s, most) for s in problem.inputs]
        out = problem.outputs[0]
        over = Problem(problem.op, inputs, [lifted(out, out.ndim)], problem.attrs)
        assert kernel.run is not None
        return kernel.run(over, *[a.reshape(s.shape) for a, s in zip(arrays, inputs, strict=True)])[0]

    def usable(problem: Problem) -> str | None:
        return "values of other than 4 axes" if problem.outputs[0].ndim != 4 else usable_size(problem)

    return EagerKernel(f"{kernel.name}_in_rows", run, usable)


int8_product = step_kernel("int8_product", _product_step, _product_usable)
int8_broadcast_add = step_kernel("int8_broadcast_add", _pair(ADD, "ra", "rb"), to_eight_bits)
int8_broadcast_multiply = step_kernel("int8_broadcast_multiply", _pair(MULTIPLY, "m"), to_eight_bits)
int8_maximum = step_kernel("int8_maximum", _pair(LARGER, "ra", "rb"), to_eight_bits)
int8_minimum = step_kernel("int8_minimum", _pair(SMALLER, "ra", "rb"), to_eight_bits)
int8_softmax = step_kernel("int8_softmax", _softmax_step, to_eight_bits, packs=(1,))
int8_normalize = step_kernel("int8_normalize", normalize_step, _normalize_usable)
int8_block_mean = step_kernel("int8_block_mean", _mean_step, _mean_usable)
int8_resize = step_kernel("int8_resize", _resize_step, _resize_usable)
int8_product_in_rows = _in_rows(int8_product)
int8_normalize_in_rows = _in_rows(int8_normalize)
