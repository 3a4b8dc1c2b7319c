"""Recurrent layers (Elman, GRU, LSTM) over a whole sequence: one op, as ONNX defines RNN, GRU and LSTM."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from megengine.autodiff.tape import Tape
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import ONNX_WRITER, ErrorSample, QuantRule, Sample, apply, define
from megengine.dispatch.apply import interpose
from megengine.kernels.reference.recurrent import ARRAYS, FUNCTIONS_OF, GATES, PARAMETERS, Maths, recurrent
from megengine.ops.common import INT32, cast, floating, lift_plain, noise, promote, refuse_quantized
from megengine.ops.joining import stacked
from megengine.ops.quantized import S8, target_dtype
from megengine.tensor import Tensor

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
OPTIONAL = ("bias", "lengths", "h", "c", "peepholes")


def recurrent_attrs(cell: str, direction: str = "forward", given: Sequence[str] = (), **attrs: Any) -> dict[str, Any]:
    """Attributes of the op, with the usual activations and no clip where they are not stated.

    `given` names the optional inputs in their order: bias [D, 2 * gates], lengths [N] (int32), h and c [D, N, hidden],
    peepholes [D, 3 * hidden]. `activations` are ONNX's, those of each direction one after the other. `state` is a
    quantized dtype to which the recurrent products round h, or None.
    """
    activations = FUNCTIONS_OF[cell] * DIRECTIONS[direction]
    zeros = (0.0,) * len(activations)
    usual = {"activations": activations, "alphas": zeros, "betas": zeros, "clip": math.inf}
    options = {"linear_before_reset": False, "input_forget": False, "state": None}
    return {"cell": cell, "direction": direction, "given": tuple(given), **usual, **options, **attrs}


def states_of_samples(attrs: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Which operands hold lengths and states: their axis of samples, and that of the first operand [T, N, ...]."""
    axes = {"lengths": 0, "h": 1, "c": 1}
    return {3 + at: (axes[name], 1) for at, name in enumerate(attrs["given"]) if name in axes}


def check_recurrent(op: str, attrs: Mapping[str, Any]) -> None:
    """Raises OptionError for a cell, direction, activations or clip that no recurrent layer has."""
    cell, direction = attrs["cell"], attrs["direction"]
    if cell not in GATES or direction not in DIRECTIONS:
        raise OptionError(f"{op}: cell {cell!r}, direction {direction!r}; expected of {(*GATES,)} and {(*DIRECTIONS,)}")
    count = len(FUNCTIONS_OF[cell]) * DIRECTIONS[direction]
    activations = attrs["activations"]
    if len(activations) != count or not PARAMETERS.keys() >= set(activations):
        raise OptionError(f"{op}: activations {activations}; expected {count} of {', '.join(PARAMETERS)}")
    if not len(attrs["alphas"]) == len(attrs["betas"]) == count:
        raise OptionError(f"{op}: alphas {attrs['alphas']}, betas {attrs['betas']}; expected {count} each")
    if not attrs["clip"] > 0:
        raise OptionError(f"{op}: clip is {attrs['clip']}; expected more than 0")


def check_inputs(
    op: str,
    attrs: Mapping[str, Any],
    first: Mapping[str, tuple[TensorSpec, tuple[int, ...]]],
    more: Sequence[TensorSpec],
    state: TensorSpec,
    bias: tuple[int, ...],
) -> None:
    """Checks the inputs of a recurrent layer: `first` by name with the shapes they must have, `more` the optional ones.

    `state` is the spec of one state [D, N, hidden], whose dtype all of them have but the lengths (int32); `bias` is the
    shape of that input. Raises OptionError where `more` are not those that `attrs["given"]` names in their order,
    ShapeError and DTypeError.
    """
    given = attrs["given"]
    directions, n, hidden = state.shape
    wanted = {"bias": bias, "lengths": (n,), "h": state.shape, "c": state.shape, "peepholes": (directions, 3 * hidden)}
    allowed = OPTIONAL if attrs["cell"] == "lstm" else OPTIONAL[:3]
    if list(given) != [name for name in allowed if name in given] or len(given) != len(more):
        inputs = counted(len(more), "optional input")
        raise OptionError(f"{op}: {inputs} named {given}; expected of {allowed}, in this order")
    optional = {name: (spec, wanted[name]) for name, spec in zip(given, more, strict=True)}
    for name, (spec, shape) in {**first, **optional}.items():
        dtype = INT32 if name == "lengths" else state.dtype
        if spec.shape != shape:
            raise ShapeError(f"{op}: {name} has shape {spec.shape}; expected {shape}")
        if spec.dtype != dtype:
            raise DTypeError(f"{op}: {name} is {spec.dtype}; expected {dtype}")


def _infer(x: TensorSpec, w: TensorSpec, r: TensorSpec, *more: TensorSpec, **attrs: Any) -> tuple[TensorSpec, ...]:
    check_recurrent("recurrent", attrs)
    if attrs.get("state") is not None:
        target_dtype("recurrent", attrs["state"])
    refuse_quantized("recurrent", x, w, r, *more)
    cell, directions = attrs["cell"], DIRECTIONS[attrs["direction"]]
    if x.ndim != 3 or r.ndim != 3:
        raise ShapeError(f"recurrent: x is {x.shape}, r {r.shape}; expected [T,N,input] and [D,gates*hidden,hidden]")
    hidden, gates = r.shape[2], GATES[cell] * r.shape[2]
    state = TensorSpec((directions, x.shape[1], hidden), x.dtype, x.device)
    weights = {"w": (w, (directions, gates, x.shape[2])), "r": (r, (directions, gates, hidden))}
    check_inputs("recurrent", attrs, weights, more, state, (directions, 2 * gates))
    return (TensorSpec((x.shape[0], *state.shape), x.dtype, x.device), *(state,) * (2 if cell == "lstm" else 1))


_TENSORS = Maths(
    lambda name, x: apply(name, x),
    lambda sums, x, w: sums + apply("matmul", x, w, transpose_a=False, transpose_b=True),
    lambda mask, a, b: apply("where", mask if isinstance(mask, Tensor) else Tensor(mask, device=a.device), a, b),
    lambda xs, axis: stacked(xs, axis),
    lambda shape, like: Tensor._wrap(np.zeros(shape, like.dtype), None, like.device),
    lambda x, lo, hi: apply("clip", x, lo=lo, hi=hi),
    lambda x, dtype: apply("fake_quant", x, dtype=dtype),
)


def _vjp(ctx: Any, *cts: Tensor | None) -> tuple[Tensor | None, ...]:
    """The layer once more, step by step, on a tape of its own."""
    tape = Tape()
    own = [apply("reshape", t, shape=t.shape) for t in ctx.inputs]  # two inputs may be one tensor
    wanted = [t for t, need in zip(own, ctx.needs, strict=True) if need]
    for tensor in wanted:
        tape.watch(tensor)
    with interpose(tape):
        results = recurrent(_TENSORS, *own, **ctx.attrs)
    tape.stop()
    pairs = [(y, ct) for y, ct in zip(results, cts, strict=True) if ct is not None]
    grads = iter(tape.gradients([y for y, _ in pairs], [ct for _, ct in pairs], wanted))
    return tuple(next(grads) if need else None for need in ctx.needs)


def _macs(inputs: Sequence[TensorSpec], result: TensorSpec, attrs: Mapping[str, Any]) -> int:
    x, w, r = inputs[:3]
    return x.shape[0] * x.shape[1] * (math.prod(w.shape) + math.prod(r.shape))


def _sample(cell: str, direction: str, given: Sequence[str], size: tuple = (4, 2, 3, 5), **attrs: Any) -> Sample:
    t, n, features, hidden = size
    d, gates = DIRECTIONS[direction], GATES[cell] * hidden
    arrays = {
        "bias": noise(d, 2 * gates),
        "lengths": np.array([t, t // 2, *[1] * n][:n], np.int32),
        "h": noise(d, n, hidden),
        "c": noise(d, n, hidden) + 1,
        "peepholes": noise(d, 3 * hidden),
    }
    inputs = (noise(t, n, features), noise(d, gates, features), noise(d, gates, hidden), *(arrays[g] for g in given))
    return Sample(inputs, recurrent_attrs(cell, direction, given, **attrs))


def _samples() -> Iterator[Sample]:
    yield _sample("lstm", "forward", ())
    yield _sample("lstm", "bidirectional", OPTIONAL, clip=0.7)
    yield _sample("lstm", "reverse", ("bias",), input_forget=True)
    yield _sample("gru", "bidirectional", OPTIONAL[:3])
    yield _sample("gru", "reverse", ("bias", "h"), linear_before_reset=True)
    yield _sample("rnn", "bidirectional", OPTIONAL[:3])
    yield _sample("rnn", "forward", (), (0, 2, 3, 4))
    for cell in GATES:
        yield replace(_sample(cell, "bidirectional", OPTIONAL[:3], state=S8), differentiable=False)
    for name, parameters in PARAMETERS.items():
        alpha, beta = (*parameters, 0.0, 0.0)[:2]
        own = {"activations": (name,), "alphas": (alpha * 0.75,), "betas": (beta + 0.125,)}
        yield _sample("rnn", "forward", ("bias",), (2, 1, 3, 4), **own)


def _error_samples() -> Iterator[ErrorSample]:
    good = _sample("lstm", "forward", ("h",))
    x, w, r, h = good.inputs
    yield ErrorSample((x[0], w, r, h), good.attrs, ShapeError, "recurrent: x is")
    yield ErrorSample((x, w, r, h[:, :1]), good.attrs, ShapeError, "recurrent: h has shape")
    yield ErrorSample((x, w, r, h.astype(np.float32)), good.attrs, DTypeError, "recurrent: h is float32")
    yield ErrorSample((x, w, r), good.attrs, OptionError, "0 optional inputs named")
    for wrong, match in (
        ({"cell": "elman"}, "cell 'elman'"),
        ({"activations": ("Tanh", "Sine", "Tanh")}, "activations .* expected 3 of Relu"),
        ({"alphas": ()}, "alphas .* expected 3 each"),
        ({"clip": 0.0}, "clip is 0.0"),
    ):
        yield ErrorSample(good.inputs, {**good.attrs, **wrong}, OptionError, match)
    yield ErrorSample(good.inputs, {**good.attrs, "state": "int8"}, DTypeError, "recurrent: dtype is 'int8'")


define(
    "recurrent",
    _infer,
    lambda *arrays, **attrs: recurrent(ARRAYS, *(a.reshape(a.shape[-3:]) for a in arrays), **attrs),
    _vjp,
    ONNX_WRITER,
    _samples,
    _error_samples,
    quant=QuantRule("sequence", "qrecurrent"),
    macs=_macs,
    lift=lift_plain,
    each=states_of_samples,
)


def recurrent_layer(
    cell: str, x: Tensor, w: Tensor, r: Tensor, rest: Mapping[str, Tensor], direction: str, **attrs: Any
) -> tuple[Tensor, ...]:
    """The op on operands of one float dtype, the largest of theirs; see `recurrent_attrs`."""
    values = [floating(x), w, r, *rest.values()]
    dtype = functools.reduce(functools.partial(promote, "recurrent"), (v.dtype for v in values))
    return apply(
        "recurrent", *(cast(v, dtype) for v in values), **recurrent_attrs(cell, direction, tuple(rest), **attrs)
    )
