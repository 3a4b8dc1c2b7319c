"""Several float ops that are one integer op: normalizations, functions of one value, products with a factor."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, is_float
from megengine.core.sizes import is_open
from megengine.dispatch import JOINS_INTEGERS, NO_RULE, QuantRule, apply
from megengine.kernels.reference.integer import ends, product_multiplier
from megengine.ops.quantized_rows import LONGEST_ROW
from megengine.quantization.pipeline.match import is_bias, is_product
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value
from megengine.traced_module.patterns import Match, Pattern, any_, call, const, match


@dataclass(frozen=True, slots=True)
class Group:
    """Ops between `data` and the result of `root`, whose values nothing else reads.

    Args:
        rule: its kind, "norm", "function" or "product", and the integer op.
        root: the last op.
        data: the computed values that the first ops read.
        inside: all ops but the root.
        attrs: attributes of the integer op beside the constants of its rule.
        row: elements that a norm takes together.
    """

    rule: QuantRule
    root: Apply
    data: tuple[TensorNode, ...]
    inside: tuple[Apply, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    row: int = 0

    @property
    def needs_bytes(self) -> bool:
        """Whether rows are too long for values of 16 bits."""
        return self.row > LONGEST_ROW[2]


@dataclass(frozen=True, slots=True)
class Norm:
    """(x - mean) / sqrt(variance + eps) * gamma + beta over the last `axes` axes; the mean is 0 if not `centred`."""

    axes: int
    eps: float
    centred: bool
    gamma: np.ndarray
    beta: np.ndarray

    def constants(self, x: QuantizedDType, y: QuantizedDType) -> dict[str, Any]:
        """What the integer op takes for these dtypes."""
        gain, bias = ((v / np.float64(y.only_scale)).astype(np.float32) for v in (self.gamma, self.beta))
        return {"G": gain, "B": bias, "axes": self.axes, "E": self.eps / x.only_scale**2, "centred": self.centred}


def group_of(node: TensorNode, *, part: bool = False) -> Group | None:
    """The group whose root makes a node; `part` takes functions that alone would stay in float."""
    root = node.expr
    kinds = (_norm, _product, functools.partial(_function, part=part), _joined)
    if not isinstance(root, Apply) or len(root.outputs) != 1:
        return None
    return next(filter(None, (kind(root) for kind in kinds)), None)


# ---------------------------------------------------------------- normalization

_X, _EPS, _GAMMA, _BETA = any_(), const(), const(), const()


def _squared(x: Pattern) -> Pattern:
    return call("square", x) | call("mul", x, x) | call("pow", x, const(2.0))


def _standard(x: Pattern, variance: Pattern) -> Pattern:
    shifted = call("add", variance, _EPS)
    root = call("sqrt", shifted)
    inverse = call("rsqrt", shifted) | call("div", const(1.0), root) | call("pow", shifted, const(-0.5))
    return call("div", x, root) | call("mul", x, inverse)


_MEAN = call("mean", _X)
_CENTRED = call("sub", _X, _MEAN)
_VARIANCE = call("mean", _squared(_CENTRED))
_POWER = call("mean", _squared(_X))
_KINDS = ((True, _standard(_CENTRED, _VARIANCE), _VARIANCE), (False, _standard(_X, _POWER), _POWER))


def _affine(inner: Pattern) -> Pattern:
    scaled = call("mul", inner, _GAMMA)
    return call("add", scaled | inner, _BETA) | scaled | inner


_NORMS = tuple((centred, _affine(inner), variance) for centred, inner, variance in _KINDS)


def _norm(root: Apply) -> Group | None:
    for centred, pattern, variance in _NORMS:
        m = match(pattern, root.output)
        if m is None or (facts := _norm_facts(m, variance, centred)) is None:
            continue
        inside = _between(root, {id(m[_X])})
        if inside is not None:
            return Group(QuantRule("norm", "qnorm", facts.constants), root, (m[_X],), inside, row=facts.gamma.size)
    return None


def _norm_facts(m: Match, variance: Pattern, centred: bool) -> Norm | None:
    x = m[_X]
    means = [m.expr(variance), *([m.expr(_MEAN)] if centred else [])]
    axes = {
        tuple(sorted(a % x.spec.ndim for a in np.atleast_1d(e.attrs["axis"])))
        if e.attrs["axis"] is not None
        else tuple(range(x.spec.ndim))
        for e in means
    }
    count = len(next(iter(axes)))
    if axes != {tuple(range(x.spec.ndim - count, x.spec.ndim))} or not all(e.attrs["keepdims"] for e in means):
        return None
    eps = np.asarray(constant_value(m[_EPS]))
    if eps.size != 1 or not float(eps.reshape(())) > 0:
        return None
    tail = x.shape[x.spec.ndim - count :]
    gamma, beta = (_along_row(m, part, neutral, tail) for part, neutral in ((_GAMMA, 1.0), (_BETA, 0.0)))
    if gamma is None or beta is None:
        return None
    return Norm(count, float(eps.reshape(())), centred, gamma, beta)


def _along_row(m: Match, part: Pattern, neutral: float, tail: tuple[int, ...]) -> np.ndarray | None:
    """A constant operand in the shape of a row, 1 along open axes; None if rows differ in it, or it is not finite."""
    value = np.asarray(constant_value(m[part]) if part in m else neutral, np.float64)
    if value.size and (value == value.flat[0]).all():
        value = value.reshape(-1)[0]
    elif value.shape[: -len(tail)] != (1,) * (value.ndim - len(tail)):
        return None
    value = value.reshape(value.shape[-len(tail) :])
    known = tuple(1 if is_open(n) else n for n in tail)
    fits = np.isfinite(value).all() and all(n in (1, m) for n, m in zip(value.shape[::-1], known[::-1], strict=False))
    return np.ascontiguousarray(np.broadcast_to(value, known)) if fits else None


# ---------------------------------------------------------------- products with a factor

_FACTOR = const().where(lambda node: node.spec.size == 1)
_PRODUCT = call("matmul", any_(), any_()).where(lambda node: is_product(node.expr))
_DIVIDED = call("div", _PRODUCT, _FACTOR)
_SCALED = call("mul", _PRODUCT, _FACTOR) | _DIVIDED


def _product(root: Apply) -> Group | None:
    if is_product(root):
        return Group(_product_rule(1.0), root, _computed(root), (), root.attrs)
    m = match(_SCALED, root.output)
    if m is None or len(m[_PRODUCT].users) != 1 or _is_output(m[_PRODUCT]):
        return None
    factor = float(np.asarray(constant_value(m[_FACTOR])).reshape(()))
    factor = 1 / factor if _DIVIDED in m and factor else factor
    if not 0 < factor < np.inf or root.output.shape != m[_PRODUCT].shape:
        return None
    inner = m.expr(_PRODUCT)
    return Group(_product_rule(factor), root, _computed(inner), (inner,), inner.attrs)


def _product_rule(factor: float) -> QuantRule:
    """A product of two tensors; its factor goes into the multiplier."""

    def constants(a: QuantizedDType, b: QuantizedDType, y: QuantizedDType | None) -> dict[str, float]:
        s_a = np.float32(a.only_scale * factor)
        return {"m": product_multiplier(s_a, b.scale, 1.0 if y is None else y.scale), **ends(y)}

    return QuantRule("product", "qmatmul", constants)


# ---------------------------------------------------------------- choices

_CHOICE, _BORDER = call("where", any_(), any_(), any_()), call("pad", any_(), mode="constant")


def _joined(root: Apply) -> Group | None:
    """Integers of several values on the scale of the result: a choice between two, a border of another number."""
    if match(_CHOICE, root.output) is not None and root.output.dtype == np.float32:
        return Group(JOINS_INTEGERS, root, tuple(n for n in _computed(root) if is_float(n.dtype)), ())
    found = match(_BORDER, root.output)
    if found is None or root.attrs["value"] == 0 or not np.isfinite(root.attrs["value"]):
        return None
    return Group(JOINS_INTEGERS, root, _computed(root), ())


# ---------------------------------------------------------------- functions of one value


def is_arithmetic(expr: Apply) -> bool:
    """True for a sum, a quotient and the like of two numbers each."""
    return len(expr.inputs) == 2 and _rule(expr).pointwise


def _pointwise(expr: Any) -> bool:
    """True for an op that computes each number from one number of each computed operand."""
    return isinstance(expr, Apply) and _rule(expr).pointwise and not is_bias(expr) and len(expr.outputs) == 1


_MOST_TABLES = 4096  # one for each place of an axis


def _axis_of(exprs: Iterable[Apply], shape: tuple[int, ...]) -> int | None:
    """The axis, counted from the end, along which constant operands of a function differ: 0 for none, None for several.

    A constant with more than one element along it has one for each place of `shape`.
    """
    axes = set()
    for node in (n for e in exprs for n in e.inputs if isinstance(n.expr, Constant)):
        own = node.shape
        if len(own) > len(shape):
            return None
        axes |= {i - len(own) for i, n in enumerate(own) if n != 1}
        if any(n not in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)):
            return None
    if len(axes) > 1 or (axes and not shape[min(axes)] <= _MOST_TABLES):
        return None
    return min(axes, default=0)


def _function(root: Apply, *, part: bool) -> Group | None:
    """The longest chain that is a function of one value.

    A clamp stays with what it clamps, unless the function reads the value before the clamp too.
    """
    chosen = None
    if not _pointwise(root):
        return None
    exprs = {id(root): root}
    while True:
        data = {id(n): n for e in exprs.values() for n in _computed(e) if id(n.expr) not in exprs}
        if len(data) == 1 and _is_function(next(iter(data.values())), root, exprs.values()):
            chosen = (*data.values(),), dict(exprs)
        joining = [n.expr for n in data.values() if isinstance(n.expr, Apply) and _joins(n, exprs)]
        clamps = [e for e in joining if _stays_behind(e)]
        further = next((e for e in joining if e not in clamps), clamps[0] if clamps and len(data) > 1 else None)
        if further is None:
            break
        exprs[id(further)] = further
    if chosen is None:
        return None
    data, exprs = chosen
    axis = _axis_of(exprs.values(), root.output.shape)
    if axis and len(exprs) == 1:
        return None  # arithmetic with constants has integer ops of its own
    kinds = {_rule(e).kind for e in exprs.values()}
    if kinds == {"clamp"} or (kinds == {"part"} and len(exprs) == 1 and not part):
        return None
    inside, attrs = tuple(e for e in exprs.values() if e is not root), {"axis": axis} if axis else {}
    group = Group(QuantRule("function", "qtable"), root, data, inside, attrs)
    return replace(group, rule=replace(group.rule, constants=functools.partial(_table, group)))


def _is_function(data: TensorNode, root: Apply, exprs: Iterable[Apply]) -> bool:
    """True if ops compute each number of `root`'s result from the one of `data` at its place."""
    real = data.dtype == root.output.dtype == np.float32
    return real and data.shape == root.output.shape and _axis_of(exprs, data.shape) is not None


def _table(group: Group, source: QuantizedDType, target: QuantizedDType) -> dict[str, np.ndarray]:
    """The outputs of `quantize(function(dequantize(q)))` for every stored integer q, smallest first.

    One such row for each place of the axis along which constants of the function differ.
    """
    q = np.arange(source.codes) + np.iinfo(source.storage).min
    x = ((q - source.zero_point) * np.float64(source.only_scale)).astype(np.float32)
    axis = group.attrs.get("axis")
    count = 1 if axis is None else group.root.output.shape[axis]
    with np.errstate(all="ignore"):
        y = evaluate(group, np.repeat(x[:, None], count, 1)) / np.float32(target.only_scale)
    y = np.fmin(np.fmax(y, target.qmin - target.zero_point), target.qmax - target.zero_point)
    table = np.ascontiguousarray((np.rint(y) + target.zero_point).astype(target.storage).T)
    return {"table": table[0] if axis is None else table}


def _joins(node: TensorNode, exprs: dict[int, Apply]) -> bool:
    """True if the op that makes a value may belong to the chain that reads it."""
    if not _pointwise(node.expr) or _is_output(node) or any(id(u) not in exprs for u in node.users):
        return False
    return isinstance(node.expr, Apply) and _norm(node.expr) is None


def _stays_behind(expr: Apply) -> bool:
    """True for a clamp that the integer op before it takes over."""
    return _rule(expr).clamp is not None and _rule(expr.inputs[0].expr).clamps


def _rule(expr: Any) -> QuantRule:
    return expr.record.rule if isinstance(expr, Apply) else NO_RULE


# ---------------------------------------------------------------- graphs


def _computed(expr: Apply) -> tuple[TensorNode, ...]:
    return tuple(n for n in expr.inputs if not isinstance(n.expr, Constant))


def _is_output(node: TensorNode) -> bool:
    return any(n is node for n in node.graph.outputs)


def _between(root: Any, ends: set[int]) -> tuple[Apply, ...] | None:
    """The ops before `root` up to the values `ends`; None if something else reads one of their results."""
    exprs: dict[int, Apply] = {}
    waiting = [root]
    while waiting:
        for node in _computed(waiting.pop()):
            if id(node) not in ends and id(node.expr) not in exprs and isinstance(node.expr, Apply):
                exprs[id(node.expr)] = node.expr
                waiting.append(node.expr)
    private = all(
        not _is_output(e.output) and all(u is root or id(u) in exprs for u in e.output.users) for e in exprs.values()
    )
    return tuple(exprs.values()) if private else None


def evaluate(group: Group, x: np.ndarray) -> np.ndarray:
    """The function of a group at x [n, places of its axis, or 1]."""
    values: dict[int, np.ndarray] = {id(group.data[0]): x}

    def value(node: TensorNode) -> np.ndarray:
        if isinstance(node.expr, Constant):
            return np.asarray(constant_value(node)).reshape(-1)
        if id(node) not in values:
            assert isinstance(node.expr, Apply), "a function is made of ops"
            operands = [Tensor(value(n)) for n in node.expr.inputs]
            result = apply(node.expr.op, *operands, **node.expr.attrs).numpy()
            values[id(node)] = result.astype(np.float32) if is_float(result.dtype) else result
        return values[id(node)]

    return np.broadcast_to(value(group.root.output), x.shape)


def groups_of(exprs: Iterable[Apply]) -> list[Group]:
    """The groups among ops, the longest first at every end; none shares an op with another."""
    taken: set[int] = set()
    groups = []
    for expr in reversed(list(exprs)):
        if id(expr) in taken or len(expr.outputs) != 1 or not isinstance(expr.outputs[0], TensorNode):
            continue
        group = group_of(expr.output)
        if group is not None:
            taken.update(id(e) for e in (group.root, *group.inside))
            groups.append(group)
    return groups
