"""GPTQ: weights are rounded together, so that their errors cancel on the data that the layer sees.

The squared error of a layer's output is e C e^T for the rounding errors e of one output channel and the covariance C of
its inputs. GPTQ (Frantar et al. 2022) rounds one column after the other and moves the error of each to the columns that
follow; with a factor of C itself, as in LDLQ (Chee et al. 2023), this takes no inverse. Sweeps of coordinate descent
follow, as in COMQ (Zhang et al. 2024): every integer moves to its best value while all others stay. Scales of few bits
are fitted in turns with the integers, others are kept.
"""

from dataclasses import replace

import numpy as np

from megengine.quantization.pipeline.adaround import adaround
from megengine.quantization.pipeline.freeze import QuantizedWeight, turned
from megengine.quantization.pipeline.moments import Products, groups_and_width
from megengine.traced_module.ir.expr import Apply

DAMPING = 0.01  # of the mean variance, added to every variance
SWEEPS = 2
REFITS = 4  # of scales, for weights of less than 8 bits
LEAST, MOST = 0.5, 2.0  # what a fit makes of a scale
BLOCK = 128  # columns between updates of all that follow


def takes(layer: Apply) -> bool:
    """True for layers that `gptq` rounds: convolutions and matrix products."""
    return layer.record.rows or layer.record.rule.convolves


def gptq(layer: Apply, products: Products, nearest: QuantizedWeight) -> QuantizedWeight:
    """The weight of a layer as integers of the same scales, with the least error found on the layer's inputs."""
    if not products.count:  # weights alone are integers
        return nearest
    rows = as_rows(layer, layer.inputs[1].expr.value.numpy())
    return rounded(layer, rows, damped(products.covariance, DAMPING), nearest)


def rounded(
    layer: Apply, rows: np.ndarray, c: np.ndarray, nearest: QuantizedWeight, *, learned: bool = False
) -> QuantizedWeight:
    """Integers of little error e c e^T for the weight `rows`, as `as_rows` gives it, with the scales of `nearest`.

    c is positive definite, float64 [groups, K, K]. `learned`: by `adaround`.
    """
    choose = adaround if learned else round_together
    dtype = nearest.dtype
    scale = np.broadcast_to(np.asarray(dtype.scale, np.float64), rows.shape[0] * rows.shape[1])
    steps = rows / scale.reshape(*rows.shape[:2], 1)
    best = choose(steps, c, dtype.qmin, dtype.qmax, np.clip(np.rint(steps), dtype.qmin, dtype.qmax))
    if dtype.bits < 8 and dtype.axis is not None:
        best, factors = scales_fitted(steps, best, c, dtype.qmin, dtype.qmax)
        dtype = replace(dtype, scale=tuple(map(float, (scale * factors).astype(np.float32))))
    flat = best.reshape(-1, best.shape[2])
    values = np.ascontiguousarray((flat.T if turned(layer) else flat).reshape(nearest.values.shape))
    return QuantizedWeight(values.astype(nearest.values.dtype), dtype)


def scales_fitted(
    steps: np.ndarray, integers: np.ndarray, c: np.ndarray, lowest: int, highest: int
) -> tuple[np.ndarray, np.ndarray]:
    """Integers, and the factors of the rows' scales [all rows] for which they leave less error.

    Scale and integers are chosen in turns (as in COMQ): the scale of least squares, then a sweep with it.
    """
    factors = np.ones((*steps.shape[:2], 1))
    best, best_factors, least = integers, factors, _error(integers - steps, c)
    for _ in range(REFITS):
        product = integers @ c
        power = (product * integers).sum(axis=2, keepdims=True)
        fitted = np.divide((product * steps).sum(axis=2, keepdims=True), power, out=factors.copy(), where=power > 0)
        factors = np.clip(fitted, LEAST, MOST)
        integers = integers.copy()
        wanted = steps / factors
        slope = (integers - wanted) @ c
        _descend(integers, slope, c, lowest, highest)
        left = ((integers - wanted) * slope).sum(axis=2, keepdims=True) * factors**2
        better = left < least
        best, least = np.where(better, integers, best), np.where(better, left, least)
        best_factors = np.where(better, factors, best_factors)
    return best, best_factors.reshape(-1)


def _error(e: np.ndarray, c: np.ndarray) -> np.ndarray:
    return ((e @ c) * e).sum(axis=2, keepdims=True)


def damped(covariance: np.ndarray, part: float) -> np.ndarray:
    """A covariance [groups, K, K] with this part of the mean variance added to every variance."""
    variance = np.einsum("gkk->gk", covariance)
    level = part * variance.mean(axis=1)
    result = covariance.copy()
    np.einsum("gkk->gk", result)[...] += np.where(level > 0, level, 1.0)[:, None]
    return result


def as_rows(layer: Apply, weight: np.ndarray) -> np.ndarray:
    """A weight of a layer as float64 [groups, output channels of a group, K]."""
    groups, width = groups_and_width(layer)
    return (weight.T if turned(layer) else weight).astype(np.float64).reshape(groups, -1, width)


def round_together(steps: np.ndarray, c: np.ndarray, lowest: int, highest: int, nearest: np.ndarray) -> np.ndarray:
    """Integers for real numbers of steps [groups, rows, K] that lessen the error e c e^T of every row.

    Args:
        c: positive definite, float64 [groups, K, K].
        lowest, highest: bounds of the integers.
        nearest: integers to keep in rows where nothing better is found.

    Example:
        >>> both = np.array([[[1.01, 1.0], [1.0, 1.01]]])  # two inputs much alike: the sum of their weights counts
        >>> round_together(np.array([[[0.4, 0.4]]]), both, -127, 127, np.array([[[0.0, 0.0]]])).sum()
        np.float64(1.0)
    """
    integers = _error_moved_on(steps, c, lowest, highest)
    slope = (integers - steps) @ c
    for _ in range(SWEEPS):
        _descend(integers, slope, c, lowest, highest)
    left = ((integers - steps) * slope).sum(axis=2, keepdims=True)
    return np.where(left < _error(nearest - steps, c), integers, nearest)


def _error_moved_on(steps: np.ndarray, c: np.ndarray, lowest: int, highest: int) -> np.ndarray:
    """Integers, one column after the other: each makes up for the errors of those before.

    With c = U U^T, U upper triangular, the error is the sum over columns k of (U_kk e_k + sum of e_i U_ik, i < k)**2.
    The Cholesky factor of c with its order turned, turned back, is U.
    """
    upper = np.linalg.cholesky(c[:, ::-1, ::-1])[:, ::-1, ::-1]
    upper = upper / np.einsum("gkk->gk", upper)[:, None, :]
    integers, errors = np.empty_like(steps), np.empty_like(steps)
    width = steps.shape[2]
    for start in range(0, width, BLOCK):
        stop = min(start + BLOCK, width)
        rest = steps[:, :, start:stop] - errors[:, :, :start] @ upper[:, :start, start:stop]
        for j in range(start, stop):
            integers[:, :, j] = np.clip(np.rint(rest[:, :, j - start]), lowest, highest)
            error = errors[:, :, j] = integers[:, :, j] - steps[:, :, j]
            rest[:, :, j - start + 1 :] -= error[:, :, None] * upper[:, None, j, j + 1 : stop]
    return integers


def _descend(integers: np.ndarray, slope: np.ndarray, c: np.ndarray, lowest: int, highest: int) -> None:
    """One sweep: every column moves to its best integers, in place; `slope` is the errors times c."""
    width = slope.shape[2]
    for start in range(0, width, BLOCK):
        stop = min(start + BLOCK, width)
        before = integers[:, :, start:stop].copy()
        near = slope[:, :, start:stop].copy()
        for j in range(start, stop):
            old = integers[:, :, j].copy()
            new = np.clip(np.rint(old - near[:, :, j - start] / c[:, None, j, j]), lowest, highest)
            if (moved := new - old).any():
                near += moved[:, :, None] * c[:, None, j, start:stop]
                integers[:, :, j] = new
        slope += (integers[:, :, start:stop] - before) @ c[:, start:stop]
