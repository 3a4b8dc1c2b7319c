"""Recurrent layers as ONNX defines them: over arrays for the reference, over tensors for gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.kernels.reference import functions as of_arrays
from megengine.kernels.reference import integer
from megengine.kernels.reference.order import fused, in_order

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
FUNCTIONS_OF = {"rnn": ("Tanh",), "gru": ("Sigmoid", "Tanh"), "lstm": ("Sigmoid", "Tanh", "Tanh")}
# activation -> defaults of the parameters that it has
PARAMETERS: dict[str, tuple[float, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Affine": (1.0, 0.0),
    "LeakyRelu": (0.01,),
    "ThresholdedRelu": (1.0,),
    "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0,),
    "Softsign": (),
    "Softplus": (),
}


@dataclass(frozen=True, slots=True)
class Maths:
    """What the algorithm needs beside operators: an op by its name, and `add_product(sums, x, w)` = sums + x @ w.T."""

    function: Callable[[str, Any], Any]
    add_product: Callable[[Any, Any, Any], Any]
    where: Callable[[Any, Any, Any], Any]
    stack: Callable[[Sequence[Any], int], Any]
    zeros: Callable[[tuple[int, ...], Any], Any]
    clip: Callable[[Any, float, float], Any]
    rounded: Callable[[Any, QuantizedDType], Any]


def _add_product(sums: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of float32 one product after the other, each rounded once with its sum, as the kernel adds them."""
    if not sums.dtype == x.dtype == w.dtype == np.float32:
        return sums + in_order(x) @ in_order(w).T
    out = np.broadcast_to(sums, (*x.shape[:-1], len(w)))
    for k in range(x.shape[-1]):
        out = fused(x[..., k, None], w[:, k], out)
    return out


def _codes(x: np.ndarray, dtype: QuantizedDType) -> np.ndarray:
    return integer.quantize(x, dtype.scale, dtype.zero_point, dtype.qmin, dtype.qmax, dtype.storage)


ARRAYS = Maths(
    lambda name, x: getattr(of_arrays, name)(x),
    _add_product,
    np.where,
    lambda xs, axis: np.stack(xs, axis),
    lambda shape, like: np.zeros(shape, like.dtype),
    np.clip,
    lambda x, dtype: integer.dequantize(_codes(x, dtype), dtype.scale, dtype.zero_point),
)


def activation(m: Maths, name: str, a: float, b: float) -> Callable[[Any], Any]:
    """An activation of ONNX's recurrent operators with its two parameters."""
    table: dict[str, Callable[[Any], Any]] = {
        "Relu": lambda x: m.clip(x, 0.0, math.inf),
        "Tanh": lambda x: m.function("tanh", x),
        "Sigmoid": lambda x: m.function("sigmoid", x),
        "Affine": lambda x: x * a + b,
        "LeakyRelu": lambda x: m.where(x < 0, x * a, x),
        "ThresholdedRelu": lambda x: m.where(x < a, x * 0, x),
        "ScaledTanh": lambda x: m.function("tanh", x * b) * a,
        "HardSigmoid": lambda x: m.clip(x * a + b, 0.0, 1.0),
        "Elu": lambda x: m.where(x < 0, (m.function("exp", m.clip(x, -math.inf, 0.0)) - 1) * a, x),
        "Softsign": lambda x: x / (m.clip(x, 0.0, math.inf) - m.clip(x, -math.inf, 0.0) + 1),
        "Softplus": lambda x: m.function("softplus", x),
    }
    return table[name]


def _columns(x: Any, count: int) -> list[Any]:
    n = x.shape[-1] // count
    return [x[..., k * n : (k + 1) * n] for k in range(count)]


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a layer: the step from one state to the next.

    `add_state(sums, h, rows)` adds the product of a state with some rows of the recurrent weight.
    """

    maths: Maths
    functions: Sequence[Callable[[Any], Any]]
    clip: float
    add_state: Callable[[Any, Any, slice], Any]
    recurrent_bias: Any  # of the last gate of a GRU whose reset gate stands behind the product, or zeros
    peepholes: Sequence[Any]
    linear_before_reset: bool
    input_forget: bool

    def act(self, index: int, x: Any) -> Any:
        """An activation behind the clip."""
        return self.functions[index](x if math.isinf(self.clip) else self.maths.clip(x, -self.clip, self.clip))

    def rnn(self, sums: Any, h: Any) -> tuple[Any]:
        """The next state, from the sums of the inputs."""
        return (self.act(0, self.add_state(sums, h, slice(None))),)

    def gru(self, sums: Any, h: Any) -> tuple[Any]:
        """As `rnn`."""
        n = h.shape[-1]
        r, last = slice(0, 2 * n), slice(2 * n, 3 * n)
        z, reset = _columns(self.act(0, self.add_state(sums[..., r], h, r)), 2)
        hidden = sums[..., last]
        if self.linear_before_reset:
            hidden = hidden + reset * self.add_state(self.recurrent_bias, h, last)
        else:
            hidden = self.add_state(hidden, reset * h, last)
        return ((1 - z) * self.act(1, hidden) + z * h,)

    def lstm(self, sums: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """The next state, and that of the cell."""
        i, o, f, g = _columns(self.add_state(sums, h, slice(None)), 4)
        of_i, of_o, of_f = self.peepholes or (None, None, None)
        i = self.act(0, i if of_i is None else i + of_i * c)
        f = 1 - i if self.input_forget else self.act(0, f if of_f is None else f + of_f * c)
        c = f * c + i * self.act(1, g)
        o = self.act(0, o if of_o is None else o + of_o * c)
        return o * self.functions[2](c), c


Inputs = Mapping[str, Any]


def recurrent(
    m: Maths,
    x: Any,
    w: Any,
    r: Any,
    *more: Any,
    cell: str,
    given: Sequence[str],
    linear_before_reset: bool,
    state: QuantizedDType | None = None,
    **options: Any,
) -> tuple[Any, ...]:
    """Outputs [T,D,N,H] and the last states [D,N,H] (h, and c of an LSTM); `given` names the inputs in `more`.

    With `state` the products take h rounded to that dtype.
    """
    inputs: Inputs = dict(zip(given, more, strict=True))
    apart = cell == "gru" and linear_before_reset
    gates, recurrent_biases = [], []
    for d in range(w.shape[0]):
        bias, recurrent_bias = biases(m, inputs["bias"][d] if "bias" in inputs else None, r.shape[1:], x, apart=apart)
        gates.append(m.add_product(bias, x, w[d]))
        recurrent_biases.append(recurrent_bias)

    def add_state(d: int, sums: Any, h: Any, rows: slice) -> Any:
        return m.add_product(sums, h if state is None else m.rounded(h, state), r[d][rows])

    options["linear_before_reset"] = linear_before_reset
    return _directions(m, cell, gates, add_state, recurrent_biases, inputs, r.shape[2], **options)


def biases(m: Maths, bias: Any, shape: tuple[int, int], like: Any, *, apart: bool) -> tuple[Any, Any]:
    """Of one direction: what the sums of the gates begin with, and the bias that stays with the recurrent product.

    `shape` is that of its recurrent weight; with `apart` the last gate of a GRU keeps its bias.
    """
    gates, n = shape
    if bias is None:
        zeros = m.zeros((gates,), like)
        return zeros, zeros[gates - n :]
    from_input, from_state = _columns(bias, 2)
    sums = from_input + from_state
    return m.where(np.arange(gates) < gates - n, sums, from_input) if apart else sums, from_state[gates - n :]


def integer_recurrent(
    sums: np.ndarray, r: np.ndarray, M: np.ndarray, *more: np.ndarray, dtype: QuantizedDType, **options: Any
) -> tuple[np.ndarray, ...]:
    """The layer on sums of its gates [T,N,D*gates], float32, whose recurrent product is an integer one.

    r [D*gates,H] are integers, and M [D*gates] what a sum of integers is multiplied by. The outputs are integers of
    `dtype`, which the next step reads; "bias" among `given` stays with the recurrent product of the last gate.
    `options` are the attributes of `recurrent`, without `state`.
    """

    def product(h: np.ndarray, rows: slice) -> np.ndarray:
        acc = integer.linear_acc(_codes(h, dtype), r[rows], z_x=dtype.zero_point)
        return acc.astype(np.float32) * M[rows]

    y, *states = _over_sums(sums, r, more, product, **options)
    return _codes(y, dtype), *states


def float_steps(
    sums: np.ndarray, r: np.ndarray, M: np.ndarray, *more: np.ndarray, dtype: QuantizedDType, **options: Any
) -> np.ndarray:
    """The outputs of `integer_recurrent` before rounding, with products of real numbers."""
    weights = r * (M / np.float32(dtype.only_scale))[:, None]
    product = lambda h, rows: ARRAYS.rounded(h, dtype) @ weights[rows].T  # noqa: E731
    return _over_sums(sums, r, more, product, **options)[0]


def _over_sums(
    sums: np.ndarray,
    r: np.ndarray,
    more: Sequence[np.ndarray],
    product: Callable[[np.ndarray, slice], np.ndarray],
    *,
    cell: str,
    given: Sequence[str],
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """The layer on sums of its gates; `product(h, rows)` is that of a state with some rows of r [D*gates,H]."""
    inputs: Inputs = dict(zip(given, more, strict=True))
    n, width = r.shape[1], GATES[cell] * r.shape[1]
    count = len(r) // width if width else 1

    def add_state(d: int, t: np.ndarray, h: np.ndarray, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(width)
        return t + product(h, slice(d * width + start, d * width + stop))

    gates = [sums[..., d * width : (d + 1) * width] for d in range(count)]
    bias = [inputs["bias"][d] if "bias" in inputs else np.zeros(n, np.float32) for d in range(count)]
    return _directions(ARRAYS, cell, gates, add_state, bias, inputs, n, **options)


def _directions(
    m: Maths,
    cell: str,
    gates: Sequence[Any],
    add_state: Callable[[int, Any, Any, slice], Any],
    recurrent_biases: Sequence[Any],
    inputs: Inputs,
    hidden: int,
    *,
    direction: str,
    activations: Sequence[str],
    alphas: Sequence[float],
    betas: Sequence[float],
    clip: float,
    **options: Any,
) -> tuple[Any, ...]:
    """The steps of every direction, from the sums of its gates [T,N,gates * hidden]."""
    functions = [activation(m, *f) for f in zip(activations, alphas, betas, strict=True)]
    per = len(functions) // len(gates)
    outputs, last = [], []
    for d, sums in enumerate(gates):
        peepholes = _columns(inputs["peepholes"][d], 3) if "peepholes" in inputs else ()
        own = functions[d * per : (d + 1) * per]
        one = Direction(m, own, clip, partial(add_state, d), recurrent_biases[d], peepholes, **options)
        states = tuple(
            inputs[name][d] if name in inputs else m.zeros((sums.shape[1], hidden), sums)
            for name in ("h", "c")[: 2 if cell == "lstm" else 1]
        )
        backwards = direction == "reverse" or d == 1
        ys, states = _scan(m, getattr(one, cell), sums, states, inputs.get("lengths"), backwards=backwards)
        outputs.append(m.stack(ys, 0) if ys else m.zeros((0, sums.shape[1], hidden), sums))
        last.append(states)
    return m.stack(outputs, 1), *(m.stack(parts, 0) for parts in zip(*last, strict=True))


def _scan(m: Maths, step: Any, sums: Any, states: tuple, lengths: Any, *, backwards: bool) -> tuple[list[Any], tuple]:
    """The outputs in the order of time, and the last states; samples that are shorter keep their state behind."""
    ys = []
    times = range(sums.shape[0])
    for t in reversed(times) if backwards else times:
        now = step(sums[t], *states)
        y = now[0]
        if lengths is not None:
            within = (lengths > t).reshape(-1, 1)
            y = m.where(within, y, y * 0)
            now = tuple(m.where(within, new, old) for new, old in zip(now, states, strict=True))
        states = now
        ys.append(y)
    return ys[::-1] if backwards else ys, states
