"""Ops on quantized tensors that transformers add: products of two tensors, softmax, normalization, maximum, minimum.

docs/integer-arithmetic.md as records, as in `quantized.py`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import ErrorSample, Sample
from megengine.kernels.reference import integer
from megengine.ops.common import FLOAT32, INT32, lift_axes, lift_plain, normalize_axis
from megengine.ops.matmul import product_macs, product_shape
from megengine.ops.quantized import (
    PLAIN,
    S8,
    U8,
    check_factor,
    few_bits,
    one_error,
    output_dtype,
    output_of,
    pair_infer,
    pair_reference,
    record,
    stored,
    target_dtype,
)

LONGEST_ROW = {1: 1 << 22, 2: 1 << 15}  # by bytes: n * (x - z) stays below 2**31
_PRODUCT = {"transpose_a": False, "transpose_b": False}

# ---------------------------------------------------------------- products


def _qmatmul_infer(
    a: TensorSpec, r: TensorSpec, *, transpose_a: bool, transpose_b: bool, m: float, lo: int, hi: int, dtype: Any
) -> TensorSpec:
    wide = any(few_bits("qmatmul", name, spec).itemsize > 1 for name, spec in (("a", a), ("r", r)))
    shape = product_shape("qmatmul", a.shape, r.shape, transpose_a=transpose_a, transpose_b=transpose_b)
    depth = a.shape[-2 if transpose_a else -1]
    if not wide and 255 * 255 * depth >= 2**31:
        raise ShapeError(
            f"qmatmul: sums of {counted(depth, 'product')} may not fit int32; expected at most {2**31 // 255**2}"
        )
    check_factor("qmatmul", m)
    return TensorSpec(shape, output_dtype("qmatmul", dtype, lo, hi), a.device)


def _qmatmul(
    a: Any,
    r: Any,
    transpose_a: bool,
    transpose_b: bool,
    m: float,
    lo: int,
    hi: int,
    dtype: Any,
    in_specs: Any,
    **_: Any,
) -> np.ndarray:
    z_a, z_r = (s.dtype.zero_point for s in in_specs)
    a, r = (np.swapaxes(x, -1, -2) if turned else x for x, turned in ((a, transpose_a), (r, transpose_b)))
    return integer.matmul(a, r, output_of(dtype, lo, hi), m=m, z_a=z_a, z_r=z_r)


# ---------------------------------------------------------------- softmax, normalization


def _qsoftmax_infer(x: TensorSpec, table: TensorSpec, *, axis: int, dtype: QuantizedDType) -> TensorSpec:
    codes = few_bits("qsoftmax", "x", x).codes
    normalize_axis("qsoftmax", axis, x.ndim)
    if table.shape != (codes,) or table.dtype != INT32:
        raise ShapeError(f"qsoftmax: table is {table.dtype} of shape {table.shape}; expected int32 of shape ({codes},)")
    return TensorSpec(x.shape, target_dtype("qsoftmax", dtype), x.device)


def _qnorm_infer(
    x: TensorSpec, G: TensorSpec, B: TensorSpec, *, axes: int, E: float, centred: bool, dtype: QuantizedDType
) -> TensorSpec:
    longest = LONGEST_ROW[few_bits("qnorm", "x", x).itemsize]
    if not 1 <= axes <= x.ndim:
        raise OptionError(f"qnorm: axes is {axes}; expected 1 to {x.ndim}, how many of the last axes of {x.shape}")
    tail = x.shape[x.ndim - axes :]
    for name, spec in (("G", G), ("B", B)):
        if spec.shape != tail or spec.dtype != FLOAT32:
            raise ShapeError(f"qnorm: {name} is {spec.dtype} of shape {spec.shape}; expected float32 of shape {tail}")
    if not 0 < math.prod(tail) <= longest:
        raise ShapeError(f"qnorm: rows of shape {tail}; expected 1 to {counted(longest, 'element')}")
    if not 0 < E < np.inf:
        raise OptionError(f"qnorm: E is {E!r}; expected a positive number, eps / s_x**2")
    return TensorSpec(x.shape, target_dtype("qnorm", dtype), x.device)


def _qnorm(x: Any, G: Any, B: Any, axes: int, E: float, centred: bool, dtype: Any, in_specs: Any, **_: Any) -> Any:
    z_x = in_specs[0].dtype.zero_point
    return integer.normalize(x, G, B, output_of(dtype), axes=axes, E=E, centred=centred, z_x=z_x)


def _affine(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(shape)
    return (rng.random(shape) * 40).astype(np.float32), rng.normal(0, 20, shape).astype(np.float32)


# ---------------------------------------------------------------- records

record(
    "qmatmul",
    _qmatmul_infer,
    _qmatmul,
    lambda: [
        Sample((stored(U8, 3, 4), stored(S8, 4, 5)), {**_PRODUCT, "m": 0.0078125, "lo": -13, "hi": 242, "dtype": U8}),
        Sample(
            (stored(S8, 2, 1, 4, 3), stored(U8, 5, 6, 4)),
            {"transpose_a": True, "transpose_b": True, "m": 0.015625, "lo": -100, "hi": 100, "dtype": S8},
        ),
        Sample((stored(U8, 2, 3, 40), stored(U8, 40, 7)), {**_PRODUCT, "m": 0.5, "lo": 0, "hi": 0, "dtype": "float32"}),
        Sample((stored(U8, 0, 3), stored(U8, 3, 2)), {**_PRODUCT, "m": 0.5, "lo": 0, "hi": 9, "dtype": U8}),
    ],
    one_error(
        (PLAIN, PLAIN),
        {**_PRODUCT, "m": 0.5, "lo": 0, "hi": 9, "dtype": U8},
        "qmatmul: a is float32; expected an 8-bit",
    ),
    macs=product_macs,
    lift=lift_plain,
)
for _name, _choose in (("qmaximum", np.maximum), ("qminimum", np.minimum)):
    record(
        _name,
        pair_infer(_name),
        pair_reference(functools.partial(integer.extremum, _choose)),
        lambda: [
            Sample(
                (stored(U8, 2, 3, 4, 4), stored(S8, 3, 1, 4)),
                {"ra": 0.75, "rb": 1.25, "lo": -13, "hi": 242, "dtype": U8},
            ),
            Sample((stored(U8, 5, 4), stored(U8)), {"ra": 0.5, "rb": 0.5, "lo": 0, "hi": 100, "dtype": S8}),
        ],
        one_error((PLAIN, PLAIN), {"ra": 0.5, "rb": 0.5, "lo": 0, "hi": 9, "dtype": U8}, f"{_name}: a is float32"),
        lift=lift_plain,
    )
record(
    "qsoftmax",
    _qsoftmax_infer,
    lambda x, table, axis, dtype, **_: integer.softmax(x, table, output_of(dtype), axis=axis, s_y=dtype.scale),
    lambda: [
        Sample((stored(U8, 3, 50), integer.softmax_table(U8.scale)), {"axis": -1, "dtype": U8}),
        Sample((stored(S8, 2, 3, 4, 5), integer.softmax_table(0.5)), {"axis": 1, "dtype": S8}),
        Sample((stored(U8, 0, 5), integer.softmax_table(U8.scale)), {"axis": 0, "dtype": U8}),
    ],
    one_error((PLAIN, np.zeros(256, np.int32)), {"axis": 1, "dtype": U8}, "qsoftmax: x is float32"),
    lift=lift_axes,
)
record(
    "qnorm",
    _qnorm_infer,
    _qnorm,
    lambda: [
        Sample((stored(U8, 3, 20), *_affine(20)), {"axes": 1, "E": 0.025, "centred": True, "dtype": U8}),
        Sample((stored(S8, 2, 3, 4, 5), *_affine(4, 5)), {"axes": 2, "E": 1e-3, "centred": False, "dtype": S8}),
        Sample((stored(U8, 0, 5), *_affine(5)), {"axes": 1, "E": 1e-3, "centred": True, "dtype": U8}),
    ],
    lambda: [
        ErrorSample(
            (PLAIN, *_affine(4)), {"axes": 1, "E": 1.0, "centred": True, "dtype": U8}, DTypeError, "qnorm: x is float32"
        )
    ],
    lift=lift_plain,
)
