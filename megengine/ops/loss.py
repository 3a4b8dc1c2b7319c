"""Losses and dropout: compositions of ops."""

from __future__ import annotations

import numpy as np

from megengine.core import _engine
from megengine.core.errors import OptionError, ShapeError
from megengine.core.types import TensorLike
from megengine.dispatch import apply, public
from megengine.ops.common import BOOL, as_tensor, choice, floating, normalize_axis, operands
from megengine.ops.index import indexing_one_hot
from megengine.ops.reduce import mean
from megengine.random.rng import generator
from megengine.tensor import Tensor

_HOME = "megengine.functional.loss"


def _reduce(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        choice("loss", "reduction", reduction, ("mean", "sum", "none"))
    return mean(loss) if reduction == "mean" else apply("sum", loss, axis=None, keepdims=False)


@public(home=_HOME, by_spec=True)
def l1_loss(pred: TensorLike, label: TensorLike, reduction: str = "mean") -> Tensor:
    """Mean absolute difference."""
    x, y = operands("l1_loss", pred, label)
    return _reduce(apply("abs", (floating(x) if x.dtype == BOOL else x) - y), reduction)


@public(home=_HOME, by_spec=True)
def square_loss(pred: TensorLike, label: TensorLike, reduction: str = "mean") -> Tensor:
    """Mean squared difference."""
    d = floating(pred) - as_tensor(label)
    return _reduce(d * d, reduction)


@public(home=_HOME, by_spec=True)
def cross_entropy(
    pred: TensorLike,
    label: TensorLike,
    axis: int = 1,
    with_logits: bool = True,
    label_smooth: float = 0,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of pred (logits, or probabilities with with_logits=False) along `axis` and integer labels."""
    x, y = floating(pred), as_tensor(label)
    axis = normalize_axis("cross_entropy", axis, x.ndim)
    expected = (*x.shape[:axis], *x.shape[axis + 1 :])
    if y.shape != expected:
        raise ShapeError(
            f"cross_entropy: label has shape {y.shape}; expected {expected} for pred {x.shape}, axis {axis}"
        )
    if not with_logits and not label_smooth:  # chosen first: the others may be 0
        return _reduce(-apply("log", indexing_one_hot(x, y, axis)), reduction)
    logp = apply("log_softmax", x, axis=axis) if with_logits else apply("log", x)
    loss = -indexing_one_hot(logp, y, axis)
    if label_smooth:
        smooth = -mean(logp, axis)
        loss = loss * (1 - label_smooth) + smooth * label_smooth
    return _reduce(loss, reduction)


@public(home=_HOME, by_spec=True)
def binary_cross_entropy(
    pred: TensorLike, label: TensorLike, with_logits: bool = True, reduction: str = "mean"
) -> Tensor:
    """Binary cross entropy of logits (or probabilities) and labels in [0, 1]."""
    x, y = floating(pred), as_tensor(label)
    if not with_logits:
        return _reduce(-(y * apply("log", x) + (1 - y) * apply("log", 1 - x)), reduction)
    return _reduce(apply("softplus", x) - x * y, reduction)


@public(home=_HOME, by_spec=True)
def hinge_loss(pred: TensorLike, label: TensorLike, norm: str = "L1", reduction: str = "mean") -> Tensor:
    """max(0, 1 - pred * label) summed over axis 1, labels -1 and 1; norm L2 squares it."""
    norm = choice("hinge_loss", "norm", norm, ("L1", "L2"), any_case=True)
    margin = apply("relu", 1 - floating(pred) * as_tensor(label))
    return _reduce(apply("sum", margin * margin if norm == "L2" else margin, axis=(1,), keepdims=False), reduction)


@public(home="megengine.functional.nn", random=True)
def dropout(inp: TensorLike, drop_prob: float, training: bool = True) -> Tensor:
    """Zero a share `drop_prob` of elements and scale the rest by 1 / (1 - drop_prob); identity in evaluation."""
    if not 0 <= drop_prob < 1:
        raise OptionError(f"dropout: drop_prob is {drop_prob}; expected 0 <= drop_prob < 1")
    x = as_tensor(inp)
    if not training or drop_prob == 0:
        return x
    keep = generator().random(x.shape) >= drop_prob
    factors = keep * np.float32(1 / (1 - drop_prob))
    return x * (_engine.wrap(factors, None, x.device) if x.dtype == np.float32 else Tensor(factors, dtype=x.dtype))
