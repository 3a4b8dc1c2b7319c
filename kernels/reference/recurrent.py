"""Recurrent layers as ONNX defines them: over arrays for the reference, over tensors for gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.kernels.reference import functions as of_arrays
from megengine.kernels.reference.order import in_order

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


def _add_product(sums: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of float32 one product after the other, as the kernel adds them."""
    if x.dtype != np.float32:
        return sums + in_order(x) @ in_order(w).T
    out = np.broadcast_to(sums, (*x.shape[:-1], len(w))).copy()
    for k in range(x.shape[-1]):
        out += x[..., k, None] * w[:, k]
    return out


ARRAYS = Maths(
    lambda name, x: getattr(of_arrays, name)(x),
    _add_product,
    np.where,
    lambda xs, axis: np.stack(xs, axis),
    lambda shape, like: np.zeros(shape, like.dtype),
    np.clip,
)


def _activation(m: Maths, name: str, a: float, b: float) -> Callable[[Any], Any]:
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
class _Direction:
    """One direction of a layer: its parameters and the step from one state to the next."""

    maths: Maths
    functions: Sequence[Callable[[Any], Any]]
    clip: float
    recurrent: Any
    recurrent_bias: Any  # of the last gate of a GRU whose reset gate stands behind the product, or zeros
    peepholes: Sequence[Any]
    linear_before_reset: bool
    input_forget: bool

    def act(self, index: int, x: Any) -> Any:
        return self.functions[index](x if math.isinf(self.clip) else self.maths.clip(x, -self.clip, self.clip))

    def rnn(self, sums: Any, h: Any) -> tuple[Any]:
        return (self.act(0, self.maths.add_product(sums, h, self.recurrent)),)

    def gru(self, sums: Any, h: Any) -> tuple[Any]:
        n, add_product = h.shape[-1], self.maths.add_product
        r, last = self.recurrent[: 2 * n], self.recurrent[2 * n :]
        z, reset = _columns(self.act(0, add_product(sums[..., : 2 * n], h, r)), 2)
        hidden = sums[..., 2 * n :]
        if self.linear_before_reset:
            hidden = hidden + reset * add_product(self.recurrent_bias, h, last)
        else:
            hidden = add_product(hidden, reset * h, last)
        return ((1 - z) * self.act(1, hidden) + z * h,)

    def lstm(self, sums: Any, h: Any, c: Any) -> tuple[Any, Any]:
        i, o, f, g = _columns(self.maths.add_product(sums, h, self.recurrent), 4)
        of_i, of_o, of_f = self.peepholes or (None, None, None)
        i = self.act(0, i if of_i is None else i + of_i * c)
        f = 1 - i if self.input_forget else self.act(0, f if of_f is None else f + of_f * c)
        c = f * c + i * self.act(1, g)
        o = self.act(0, o if of_o is None else o + of_o * c)
        return o * self.functions[2](c), c


def recurrent(
    m: Maths,
    x: Any,
    w: Any,
    r: Any,
    *more: Any,
    cell: str,
    direction: str,
    given: Sequence[str],
    activations: Sequence[str],
    alphas: Sequence[float],
    betas: Sequence[float],
    clip: float,
    **options: Any,
) -> tuple[Any, ...]:
    """Outputs [T,D,N,H] and the last states [D,N,H] (h, and c of an LSTM); `given` names the inputs in `more`."""
    inputs: Mapping[str, Any] = dict(zip(given, more, strict=True))
    directions, n = w.shape[0], r.shape[2]
    functions = [_activation(m, *f) for f in zip(activations, alphas, betas, strict=True)]
    per, lengths = len(functions) // directions, inputs.get("lengths")
    outputs, last = [], []
    for d in range(directions):
        apart = cell == "gru" and options["linear_before_reset"]
        sums = m.zeros((GATES[cell] * n,), x)
        recurrent_bias = sums[2 * n :]
        if "bias" in inputs:
            from_input, from_state = _columns(inputs["bias"][d], 2)
            sums = from_input + from_state
            if apart:
                sums = m.where(np.arange(3 * n) < 2 * n, sums, from_input)
                recurrent_bias = from_state[2 * n :]
        sums = m.add_product(sums, x, w[d])
        peepholes = _columns(inputs["peepholes"][d], 3) if "peepholes" in inputs else ()
        one = _Direction(m, functions[d * per : (d + 1) * per], clip, r[d], recurrent_bias, peepholes, **options)
        states = tuple(
            inputs[name][d] if name in inputs else m.zeros((x.shape[1], n), x)
            for name in ("h", "c")[: 2 if cell == "lstm" else 1]
        )
        ys, states = _scan(m, getattr(one, cell), sums, states, lengths, backwards=direction == "reverse" or d == 1)
        outputs.append(m.stack(ys, 0) if ys else m.zeros((0, x.shape[1], n), x))
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
