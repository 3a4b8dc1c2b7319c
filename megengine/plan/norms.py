"""Normalisations and batch norms spelled out in ops: one op, or arithmetic that joins the ops around it."""

from __future__ import annotations

import math

import numpy as np

from megengine.kernels.half_conversion import HALVES
from megengine.ops.common import normalize_axes
from megengine.ops.norm import along_channels, norm_factor
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.affine_maps import is_tame
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import Pattern, any_, call, const, match

_FLOATS = HALVES | {np.dtype(np.float32)}
_X, _EPS, _ONE, _WEIGHT, _BIAS = any_(), const(), const(), const(), const()
_MEAN = call("mean", _X, keepdims=True)
_CENTRED = call("sub", _X, _MEAN)


def _standard(value: Pattern) -> tuple[Pattern, Pattern, Pattern]:
    """A value divided by the root of the mean of its squares, that mean, and the form that multiplies instead."""
    variance = call("mean", call("square", value) | call("mul", value, value), keepdims=True)
    shifted = call("add", variance, _EPS)
    root = call("sqrt", shifted)
    multiplied = call("mul", value, call("rsqrt", shifted) | call("div", _ONE, root))
    return call("div", value, root) | multiplied, variance, multiplied


def _rule(value: Pattern) -> Rule:
    standard, variance, multiplied = _standard(value)
    weighted = call("mul", standard, _WEIGHT)
    pattern = call("add", weighted, _BIAS) | weighted | standard

    def factors(m: Found) -> list[TensorNode]:
        return [m[p] for p in (_WEIGHT, _BIAS) if p in m]

    def fits(m: Found) -> bool:
        x, rank = m[_X], m[_X].spec.ndim
        means = {normalize_axes("norm", m[p].expr.attrs["axis"], rank) for p in (_MEAN, variance) if p in m}
        axes = means.pop()
        if means or axes != tuple(range(axes[0], rank)) or x.dtype not in _FLOATS or m.root.spec != x.spec:
            return False
        if m[_EPS].spec.size != 1 or (_ONE in m and not np.all(m[_ONE].expr.value.numpy() == 1)):
            return False
        tail = x.shape[axes[0] :]
        return all(f.shape[-len(tail) :] == tail and f.spec.size == math.prod(tail) for f in factors(m))

    def build(m: Found) -> TensorNode:
        x, axis = m[_X], m[variance].expr.attrs["axis"]
        axes = len(normalize_axes("norm", axis, x.spec.ndim))
        tail = x.shape[x.spec.ndim - axes :]
        shaped = [f if f.shape == tail else m.constant(f.expr.value.numpy().reshape(tail), f.name) for f in factors(m)]
        attrs = {"axes": axes, "eps": float(m[_EPS].expr.value.numpy().item())}
        attrs |= {"centred": value is _CENTRED, "reciprocal": multiplied in m}
        return m.apply("fused_norm", x, *shaped, attrs=attrs, name=m.root.name)

    return Rule("norm", pattern, build, when=fits)


_PLANE = call("reshape", _X)
_POOLED = call("avg_pool2d", _PLANE)


def _over_channels(m: Found) -> bool:
    """Pooling of [N,1,C,H*W] over the channels, one mean for each, as local response norms have it."""
    x, plane, a = m[_X], m[_PLANE].spec, m[_POOLED].expr.attrs
    ((before, after), across), (window, width) = a["padding"], a["kernel"]
    flat = x.spec.ndim == 4 and plane.shape == (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:]))
    each = width == 1 and tuple(a["stride"]) == (1, 1) and before + after == window - 1 and not any(across)
    return flat and each and a["count_include_pad"] and m.root.spec == x.spec and x.dtype in _FLOATS


def _channel_mean(m: Found) -> TensorNode:
    a = m[_POOLED].expr.attrs
    attrs = {"window": a["kernel"][0], "before": a["padding"][0][0]}
    return m.apply("fused_channel_mean", m[_X], attrs=attrs, name=m.root.name)


_PARAMETERS = [const() for _ in range(4)]
_NORMED = call("batch_norm", _X, *_PARAMETERS)
_FACTOR, _TERM = const(), const()


def _seen(value: Pattern) -> Pattern:
    """A value of float32, or what is left of it in 16 bits."""
    return call("cast", call("cast", value, dtype=lambda dtype: dtype in HALVES)) | value


_SCALED = call("mul", _seen(_NORMED), _FACTOR)
_MAPPED = call("add", _seen(_SCALED), _TERM) | _SCALED | call("add", _seen(_NORMED), _TERM)


def _affine(m: Found) -> TensorNode:
    """As the reference computes it, with factors behind it in its own: what is behind can join it."""
    ndim = m[_X].spec.ndim
    scale, shift, mean, var = (m[p].expr.value.numpy() for p in _PARAMETERS)
    factor = norm_factor(scale, var, m[_NORMED].expr.attrs["eps"])
    shape = along_channels(scale.size, ndim)
    mean, factor, shift = (v.reshape(shape) for v in (mean, factor, shift))
    scale, term = _behind(m)
    mean, factor, shift = (m.constant(v, "of_batch_norm") for v in (mean, factor * scale, shift * scale + term))
    y = m.apply("mul", m.apply("sub", m[_X], mean), factor)
    return m.apply("add", y, shift, name=m.root.name)


_HALF = any_()
_WIDENED = call("cast", _HALF)


def _affine_of_half(m: Found) -> TensorNode:
    """With the mean in the last term. What that rounds is far below a step of the 16 bits that x has."""
    factor, term = (m.constant(numbers, "of_batch_norm") for numbers in _line(m))
    return m.apply("add", m.apply("mul", m[_X], factor), term, name=m.root.name)


def _line(m: Found) -> tuple[np.ndarray, np.ndarray]:
    """Factor and term of channels of a batch norm."""
    scale, shift, mean, var = (m[p].expr.value.numpy() for p in _PARAMETERS)
    factor = norm_factor(scale, var, m[_NORMED].expr.attrs["eps"])
    term = (shift.astype(np.float64) - mean.astype(np.float64) * factor).astype(np.float32)
    shape = along_channels(scale.size, m[_X].spec.ndim)
    return factor.reshape(shape), term.reshape(shape)


def _was_half(m: Found) -> bool:
    seen = match(_WIDENED, m[_X])
    return (
        seen is not None
        and seen[_HALF].dtype in HALVES
        and _of_float32(m)
        and all(np.isfinite(numbers).all() for numbers in _line(m))
    )


def _behind(m: Found) -> tuple[np.ndarray, np.ndarray]:
    """What a batch norm is multiplied by, and what is added to that."""
    beside = [
        m[p].expr.value.numpy() if p in m else np.asarray(value, np.float32) for p, value in ((_FACTOR, 1), (_TERM, 0))
    ]
    return beside[0], beside[1]


def _of_float32(m: Found) -> bool:
    return {m[p].dtype for p in (_X, *_PARAMETERS)} == {np.dtype(np.float32)}


def _by_channels(m: Found) -> bool:
    """Factor and term are those of channels, of a size with which sums may be divided otherwise."""
    x, (scale, term) = m[_X], _behind(m)
    if not _of_float32(m) or m.root.spec != x.spec or not is_tame(x, scale, term):
        return False
    shape = along_channels(x.shape[1], x.spec.ndim)
    return all(np.broadcast_shapes(v.shape, shape) == shape for v in (scale, term))


RULES = (
    _rule(_CENTRED),
    _rule(_X),
    Rule("channel_mean", call("reshape", _POOLED), _channel_mean, when=_over_channels),
    Rule("batch_norm", _NORMED, _affine, when=_of_float32),
)


_REASSOCIATED = (
    Rule("scaled_batch_norm", _MAPPED, _affine, when=_by_channels),
    Rule("batch_norm_of_half", _NORMED, _affine_of_half, when=_was_half),
)


def name_norms(graph: InternalGraph, *, exact: bool) -> bool:
    """Rewrite in place; True if something changed. It begins with the last op, so that factors are met first.

    `exact`: results keep their bits. Otherwise factors and terms behind a batch norm join its own.
    """
    return bool(rewrite(graph, RULES if exact else (*_REASSOCIATED, *RULES), last_first=True))
