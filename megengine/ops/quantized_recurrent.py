"""Recurrent layers whose products are integer ones: docs/integer-arithmetic.md as a record, as in `quantized.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import ErrorSample, Sample
from megengine.kernels.reference.recurrent import GATES, integer_recurrent
from megengine.ops.common import FLOAT32, lift_plain, noise
from megengine.ops.quantized import S8, U8, record, target_dtype
from megengine.ops.recurrent import (
    DIRECTIONS,
    OPTIONAL,
    check_inputs,
    check_recurrent,
    recurrent_attrs,
    states_of_samples,
)

_LONGEST_STATE = (1 << 31) // (255 * 128)


def _infer(
    sums: TensorSpec, r: TensorSpec, M: TensorSpec, *more: TensorSpec, dtype: Any, **attrs: Any
) -> tuple[TensorSpec, ...]:
    op, cell = "qrecurrent", attrs["cell"]
    check_recurrent(op, attrs)
    directions, rows = DIRECTIONS[attrs["direction"]], r.shape[0] if r.ndim == 2 else 0
    hidden = rows // (directions * GATES[cell])
    if sums.ndim != 3 or r.shape != (directions * GATES[cell] * hidden, hidden) or sums.shape[2] != rows:
        raise ShapeError(
            f"{op}: sums has shape {sums.shape}, r {r.shape}; expected [T,N,D*gates*hidden] and [D*gates*hidden,hidden]"
        )
    if storage_of(r.dtype) != np.int8 or hidden >= _LONGEST_STATE:
        raise DTypeError(f"{op}: r is {r.dtype} of shape {r.shape}; expected int8, a state of below {_LONGEST_STATE}")
    state = TensorSpec((directions, sums.shape[1], hidden), FLOAT32, sums.device)
    first = {"sums": (sums, sums.shape), "M": (M, (rows,))}
    check_inputs(op, attrs, first, more, state, (directions, hidden))
    y = TensorSpec((sums.shape[0], *state.shape), target_dtype(op, dtype), sums.device)
    return y, *(state,) * (2 if cell == "lstm" else 1)


def _reference(*arrays: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
    return integer_recurrent(*(a.reshape(a.shape[-3:]) for a in arrays), **attrs)


def _macs(inputs: Sequence[TensorSpec], result: TensorSpec, attrs: Mapping[str, Any]) -> int:
    return math.prod(inputs[0].shape[:2]) * math.prod(inputs[1].shape)


def _sample(
    cell: str, direction: str, given: Sequence[str], size: tuple = (4, 3, 5), dtype: Any = S8, **attrs: Any
) -> Sample:
    t, n, hidden = size
    d, rows = DIRECTIONS[direction], DIRECTIONS[direction] * GATES[cell] * hidden
    rng = np.random.default_rng(size)
    arrays = {
        "bias": noise(d, hidden),
        "lengths": np.array([t, t // 2, *[1] * n][:n], np.int32),
        "h": noise(d, n, hidden),
        "c": noise(d, n, hidden) + 1,
        "peepholes": noise(d, 3 * hidden),
    }
    r = rng.integers(-127, 128, (rows, hidden)).astype(np.int8)
    inputs = noise(t, n, rows), r, (rng.random(rows) / 2000).astype(np.float32), *(arrays[g] for g in given)
    options = {k: v for k, v in recurrent_attrs(cell, direction, given, **attrs).items() if k != "state"}
    return Sample(
        tuple(a.astype(np.float32) if a.dtype == np.float64 else a for a in inputs), options | {"dtype": dtype}
    )


def _samples() -> Iterator[Sample]:
    yield _sample("lstm", "forward", ())
    yield _sample("lstm", "bidirectional", OPTIONAL[1:], clip=0.7, dtype=U8)
    yield _sample("lstm", "reverse", ("h",), input_forget=True)
    yield _sample("gru", "bidirectional", OPTIONAL[1:3], dtype=U8)
    yield _sample("gru", "reverse", ("bias", "h"), linear_before_reset=True)
    yield _sample("gru", "forward", (), (3, 1, 70), linear_before_reset=True)
    yield _sample("rnn", "bidirectional", OPTIONAL[1:3])
    yield _sample("rnn", "forward", (), (0, 2, 4))
    yield _sample("rnn", "forward", (), (3, 1, 33), activations=("Relu",), dtype=U8)


def _error_samples() -> Iterator[ErrorSample]:
    good = _sample("lstm", "forward", ("h",))
    sums, r, M, h = good.inputs
    yield ErrorSample((sums[0], r, M, h), good.attrs, ShapeError, "qrecurrent: sums has shape")
    yield ErrorSample((sums, r[:-1], M, h), good.attrs, ShapeError, "qrecurrent: sums has shape .*, r ")
    yield ErrorSample((sums, r.astype(np.int32), M, h), good.attrs, DTypeError, "qrecurrent: r is int32")
    yield ErrorSample((sums, r, M[1:], h), good.attrs, ShapeError, "qrecurrent: M has shape")
    yield ErrorSample((sums, r, M), good.attrs, OptionError, "qrecurrent: 0 optional inputs named")
    yield ErrorSample(good.inputs, {**good.attrs, "cell": "elman"}, OptionError, "qrecurrent: cell 'elman'")
    yield ErrorSample(good.inputs, {**good.attrs, "dtype": "int8"}, DTypeError, "qrecurrent: dtype is 'int8'")


record(
    "qrecurrent",
    _infer,
    _reference,
    _samples,
    _error_samples,
    needs_specs=False,
    macs=_macs,
    lift=lift_plain,
    each=states_of_samples,
)
