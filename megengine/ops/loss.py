"""Losses, connectionist temporal classification and dropout: compositions of ops."""

from __future__ import annotations

import numpy as np

from megengine.core.dtype import is_float, storage_of
from megengine.core.errors import OptionError, ShapeError
from megengine.core.types import TensorLike
from megengine.dispatch import apply, public
from megengine.ops.binary import logaddexp
from megengine.ops.common import BOOL, FLOAT32, as_tensor, cast, choice, floating, normalize_axis, operands
from megengine.ops.gathering import indexing_one_hot
from megengine.ops.reduce import mean
from megengine.random.rng import draw_factors
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
        raise ShapeError(f"cross_entropy: label has shape {y.shape}; expected {expected}: pred {x.shape}, axis {axis}")
    if not with_logits and not label_smooth:  # before the logarithm: other probabilities may be 0
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
    shape, device = x.spec.shape, x.spec.device
    if not is_float(x.dtype):
        return x * Tensor(draw_factors(shape, FLOAT32, zeros=drop_prob, device="cpu0"), dtype=x.dtype, device=device)
    return x * Tensor._wrap(draw_factors(shape, storage_of(x.dtype), zeros=drop_prob, device=device), None, device)


_IMPOSSIBLE = -1e30  # a finite stand-in for log(0)


def _rows(label: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Labels [N, S] from padded rows, or from all labels one after the other."""
    if label.ndim == 2:
        if label.shape[0] != len(lengths) or (len(lengths) and lengths.max() > label.shape[1]):
            raise ShapeError(f"ctc_loss: label has shape {label.shape}; label_lengths are {lengths.tolist()}")
        return label
    if label.ndim != 1 or label.size != lengths.sum():
        raise ShapeError(f"ctc_loss: label has shape {label.shape}; expected [N, S] or [{lengths.sum()}]")
    rows = np.zeros((len(lengths), int(lengths.max(initial=0))), label.dtype)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = label
    return rows


def _check_ctc(pred: Tensor, steps: np.ndarray, label: np.ndarray, lengths: np.ndarray, blank: int) -> None:
    if pred.ndim != 3 or steps.shape != (pred.shape[1],) or lengths.shape != steps.shape:
        raise ShapeError(
            f"ctc_loss: pred has shape {pred.shape}, pred_lengths {steps.shape}, label_lengths {lengths.shape}; "
            "expected [T, N, C], [N], [N]"
        )
    if steps.size and not 0 < steps.min() <= steps.max() <= pred.shape[0]:
        raise OptionError(f"ctc_loss: pred_lengths are {steps.tolist()}; expected 1..{pred.shape[0]}")
    if label.size and not 0 <= label.min() <= label.max() < pred.shape[2]:
        raise OptionError(f"ctc_loss: labels lie in {label.min()}..{label.max()}; expected 0..{pred.shape[2] - 1}")
    if not 0 <= blank < pred.shape[2]:
        raise OptionError(f"ctc_loss: blank is {blank}; expected 0..{pred.shape[2] - 1}")


def _shifted(alpha: Tensor, by: int) -> Tensor:
    """Alpha [N, L] shifted to the right, with impossible values in front."""
    wide = apply("pad", alpha, widths=((0, 0), (by, 0)), mode="constant", value=_IMPOSSIBLE)
    return wide[:, : alpha.shape[1]]


@public(home="megengine.functional.loss")
def ctc_loss(
    pred: TensorLike,
    pred_lengths: TensorLike,
    label: TensorLike,
    label_lengths: TensorLike,
    blank: int = 0,
    reduction: str = "mean",
) -> Tensor:
    """-log of the probability of the label sequences.

    pred [T,N,C]: probabilities; pred_lengths [N]: steps that count; label: [N,S], or all labels one after the other;
    label_lengths [N]. reduction: mean (each loss over its label's length first), sum or none.
    Source: Graves et al., "Connectionist Temporal Classification", 2006. Raises ShapeError and OptionError.
    """
    choice("ctc_loss", "reduction", reduction, ("mean", "sum", "none"))
    p = floating(pred)
    p = cast(p, FLOAT32) if p.dtype == np.float16 else p  # float16 cannot hold the probability of a long sequence
    steps, lengths = (as_tensor(v).numpy().astype(np.int64) for v in (pred_lengths, label_lengths))
    labels = as_tensor(label).numpy()
    _check_ctc(p, steps, labels, lengths, blank)
    rows = _rows(labels, lengths)
    n, width = rows.shape[0], 2 * rows.shape[1] + 1
    states = np.full((n, width), blank, np.int32)
    states[:, 1::2] = rows
    leap = np.zeros((n, width), bool)  # where a state may follow the one before the previous one
    leap[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])

    def constant(array: np.ndarray) -> Tensor:
        return Tensor._wrap(array, None, p.device)

    never = Tensor(_IMPOSSIBLE, dtype=p.dtype, device=p.device)
    start = Tensor(np.log(np.finfo(np.float32).tiny), dtype=p.dtype, device=p.device)
    batch, index = constant(np.arange(n, dtype=np.int32)[:, None]), constant(states)
    scores = apply("log", apply("clip", p, lo=1e-37, hi=float("inf")))
    alpha = apply("where", constant(np.arange(width)[None] < 2), _emitted(scores, 0, batch, index), start)
    for t in range(1, p.shape[0]):
        leapt = apply("where", constant(leap), _shifted(alpha, 2), never)
        reached = logaddexp(logaddexp(alpha, _shifted(alpha, 1)), leapt) + _emitted(scores, t, batch, index)
        alpha = apply("where", constant((t < steps)[:, None]), reached, alpha)
    last = constant((2 * lengths).astype(np.int32)[:, None])
    before = constant(np.maximum(2 * lengths - 1, 0).astype(np.int32)[:, None])
    final, other = (apply("index", alpha, batch, i, pattern=("i", "i")) for i in (last, before))
    other = apply("where", constant((lengths > 0)[:, None]), other, never)
    loss = apply("reshape", -logaddexp(final, other), shape=(n,))
    if reduction == "none":
        return loss
    if reduction == "mean":
        loss = loss / constant(np.maximum(lengths, 1).astype(np.float32))
    return apply(reduction, loss, axis=None, keepdims=False)


def _emitted(scores: Tensor, t: int, batch: Tensor, states: Tensor) -> Tensor:
    """Logarithms of the probabilities of all states at step t, [N, L]."""
    return apply("index", scores[t], batch, states, pattern=("i", "i"))
