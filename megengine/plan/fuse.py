"""Fusion for float plans: convolution or linear with bias, residual and activation becomes one op."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from megengine.dispatch import QuantRule, get_op
from megengine.kernels.half_conversion import HALVES
from megengine.ops.fused import ACTIVATIONS
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes import only_user
from megengine.traced_module.passes.linear import BIAS, BIASED, PRODUCT, WEIGHT
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import Pattern, any_, call, const, either, match


def _bounds(op: str, attrs: Mapping[str, Any]) -> tuple[float, float] | None:
    """The bounds of an op that only clamps, None for others."""
    rule = get_op(op).quant
    if not isinstance(rule, QuantRule) or rule.clamp is None:
        return None
    low, high = rule.clamp(attrs)
    return -math.inf if low is None else low, math.inf if high is None else high


_CLAMPS = {_bounds(name, {}): name for name in ACTIVATIONS[1:] if _bounds(name, {})}


def _fused_name(node: Any) -> str | None:
    """The name of an activation in fused ops, None for others."""
    op, attrs = node.expr.op, node.expr.attrs
    return op if op in ACTIVATIONS else _CLAMPS.get(_bounds(op, attrs))


def _with_activation(inner: Pattern) -> Pattern:
    """`inner`, alone or behind an activation that a kernel can apply."""
    clip = call("clip", inner).where(lambda node: _fused_name(node) is not None)
    return either((*(call(name, inner) for name in ACTIVATIONS[1:]), clip, inner))


def _activation(root: Any, last: TensorNode) -> str | None:
    """What the root does to the last value before it, as fused ops call it."""
    return "none" if root is last else _fused_name(root)


def _zero_bias(m: Found, layer: TensorNode, channels: int) -> TensorNode:
    return m.constant(np.zeros(channels, layer.dtype), "no_bias", meta={})


# ---------------------------------------------------------------- convolutions

_FLOATS = HALVES | {np.dtype(np.float32)}
_X, _OTHER = any_(), any_()
_CONV = (call("conv2d", _X, const(), const()) | call("conv2d", _X, const())).where(
    lambda node: node.expr.inputs[0].dtype in _FLOATS
)
_VOLUME = (call("conv3d", _X, const(), const()) | call("conv3d", _X, const())).where(
    lambda node: node.expr.inputs[0].dtype in _FLOATS
)


def _sum_behind(layer: Pattern) -> Pattern:
    """The sum of a layer that only it uses and a value of its shape; of two layers that are added, of the later one."""

    def takes(node: TensorNode) -> bool:
        user = only_user(node)
        later = [] if user is None else [n for n in user.inputs if node.expr.comes_before(n.expr)]
        return user is not None and not any(only_user(n) is not None and match(layer, n) is not None for n in later)

    def of_two(node: Any) -> bool:
        a, b = node.expr.inputs
        return a is not b and a.spec == b.spec

    return call("add", layer.where(takes), _OTHER).where(of_two)


_SUM = _sum_behind(_CONV)


def _fused_conv(m: Found) -> TensorNode:
    m.origin = conv = m[_VOLUME if _VOLUME in m else _CONV]
    inputs = [*conv.expr.inputs]
    if len(inputs) == 2:
        inputs.append(_zero_bias(m, conv, conv.shape[1]))
    last = conv
    if _SUM in m:
        inputs.append(m[_OTHER])
        last = m[_SUM]
    attrs = {**conv.expr.attrs, "activation": _activation(m.root, last)}
    return m.apply(f"fused_{conv.expr.op}", *inputs, attrs=attrs, name=m.root.name)


# ---------------------------------------------------------------- linear layers

_LAYER = BIASED | PRODUCT
_RAISED = _sum_behind(_LAYER)


def _fused_linear(m: Found) -> TensorNode:
    product, last = m[PRODUCT], m[_RAISED if _RAISED in m else BIASED if BIASED in m else PRODUCT]
    m.origin, weight = product, m[WEIGHT]
    if not product.expr.attrs["transpose_b"]:
        turned = np.ascontiguousarray(weight.expr.value.numpy().T)
        weight = m.constant(turned, weight.name, meta=weight.meta)
    columns = product.shape[-1]
    bias = (
        m.constant(m[BIAS].expr.value.numpy().reshape(-1), "bias", meta={})
        if BIAS in m
        else _zero_bias(m, product, columns)
    )
    residual = [m[_OTHER]] if _RAISED in m else []
    attrs = {"activation": _activation(m.root, last)}
    return m.apply("fused_linear", product.expr.inputs[0], weight, bias, *residual, attrs=attrs, name=m.root.name)


def _is_linear(m: Found) -> bool:
    """True for products of float rows with a constant matrix, and at most one value a column added to them."""
    product = m.expr(PRODUCT)
    if product.inputs[1].spec.ndim != 2 or product.inputs[0].dtype not in _FLOATS:
        return False
    if not isinstance(m[WEIGHT].expr, Constant) or m[WEIGHT] is not product.inputs[1] or product.attrs["transpose_a"]:
        return False
    if BIAS not in m:
        return True
    bias = m[BIAS].shape
    return m[BIASED].spec == m[PRODUCT].spec and bias[-1:] == (math.prod(bias),) == m[PRODUCT].shape[-1:]


# ---------------------------------------------------------------- large windows

_LARGEST = call("max_pool2d", _X)


def _by_axes(m: Found) -> TensorNode:
    """The largest of a window as the largest of its rows, and of those the largest: the same numbers."""
    a, name = m.root.expr.attrs, m.root.name
    ((kh, kw), (sh, sw), (tall, wide)), none = (a[k] for k in ("kernel", "stride", "padding")), (0, 0)
    rows = {"kernel": (1, kw), "stride": (1, sw), "padding": (none, wide)}
    across = m.apply("max_pool2d", m[_X], attrs=rows, name=f"{name}_rows")
    return m.apply(
        "max_pool2d", across, attrs={"kernel": (kh, 1), "stride": (sh, 1), "padding": (tall, none)}, name=name
    )


def _is_large(m: Found) -> bool:
    """True if comparing along one axis after the other saves at least a third."""
    kh, kw = m.root.expr.attrs["kernel"]
    height, (oh, ow) = m[_X].shape[2], m.root.shape[2:]
    return 2 * kh * kw * oh * ow > 3 * (kw * height * ow + kh * oh * ow)


# ---------------------------------------------------------------- repeated elements

_SPLIT = call("reshape", _X)
_WIDE = call("broadcast_to", _SPLIT)
_JOINED = call("reshape", _WIDE)
_REPEATED = call("fused_repeat", _X)


def _counts(narrow: tuple[int, ...], wide: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, ...] | None:
    """How often the elements of each axis of the result are there, if its axes are elements, then repetitions."""
    if len(narrow) != len(wide) or 0 in wide:
        return None
    rest, counts = list(zip(narrow, wide, strict=True)), []
    for length in out:
        size, count = 1, 1
        while rest and size < length:
            n, k = rest.pop(0)
            if n == k and count > 1 and n > 1:
                return None
            size, count = size * k, count * (1 if n == k else k)
        if size != length:
            return None
        counts.append(count)
    return tuple(counts)


def _counts_of(m: Found) -> tuple[int, ...] | None:
    return _counts(m[_SPLIT].shape, m[_WIDE].shape, m.root.shape)


def _repeat(m: Found) -> TensorNode:
    counts, x = _counts_of(m), m[_X]
    assert counts is not None, "the rule asked before"
    base = tuple(n // count for n, count in zip(m.root.shape, counts, strict=True))
    while isinstance(x.expr, Apply) and x.expr.op == "reshape":
        x = x.expr.inputs[0]
    x = x if x.shape == base else m.apply("reshape", x, attrs={"shape": base}, name=f"{m.root.name}_elements")
    return m.apply("fused_repeat", x, attrs={"counts": counts}, name=m.root.name)


def _repeat_once(m: Found) -> TensorNode:
    counts = zip(m.expr(_REPEATED).attrs["counts"], m.root.expr.attrs["counts"], strict=True)
    return m.apply("fused_repeat", m[_X], attrs={"counts": tuple(a * b for a, b in counts)}, name=m.root.name)


def _is_repeated(m: Found) -> bool:
    """True for the nearest elements of a picture that becomes whole times as large."""
    attrs = m.root.expr.attrs
    return attrs["mode"] == "nearest" and not any(
        new % n for n, new in zip(m[_X].shape[2:], attrs["size"], strict=True)
    )


def _repeat_nearest(m: Found) -> TensorNode:
    counts = (1, 1, *(new // n for n, new in zip(m[_X].shape[2:], m.root.shape[2:], strict=True)))
    return m.apply("fused_repeat", m[_X], attrs={"counts": counts}, name=m.root.name)


_REPEATS = (
    Rule("repeat", call("resize", _X), _repeat_nearest, when=_is_repeated),
    Rule("repeat", _JOINED, _repeat, when=lambda m: max(_counts_of(m) or (0,)) > 1),
    Rule("repeat", call("fused_repeat", _REPEATED), _repeat_once),
)


def _rules(*, exact: bool) -> tuple[Rule, ...]:
    """With `exact`, products of more than two axes keep the order of the reference."""

    def is_linear(m: Found) -> bool:
        return _is_linear(m) and not (exact and m[PRODUCT].spec.ndim > 2)

    return (
        Rule("split_window", _LARGEST, _by_axes, when=_is_large),
        Rule("fuse", _with_activation(_SUM | _CONV | _VOLUME), _fused_conv),
        Rule("fuse", _with_activation(_LAYER if exact else _RAISED | _LAYER), _fused_linear, when=is_linear),
    )


_RULES = {exact: _rules(exact=exact) for exact in (False, True)}


def fuse(graph: InternalGraph, *, exact: bool) -> bool:
    """Fuse in place; True if something changed. It begins with the last op, so that activations are met first."""
    changed = False
    while rewrite(graph, _REPEATS, recursive=False, last_first=True):  # one axis after the other
        changed = True
    return bool(rewrite(graph, _RULES[exact], recursive=False, last_first=True) or remove_dead(graph) or changed)
