"""Masks before a softmax: numbers far below all scores, which stand for "not this one"."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import is_float
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value
from megengine.traced_module.passes.rewriting import Found, Rule
from megengine.traced_module.patterns import any_, call, const, match

_NOTHING = 6.0  # all that a mask leaves of a row is exp(-6) of its largest element, at most
LEAST = -1e4  # float32 sees no difference to anything below, next to scores


@dataclass(frozen=True, slots=True)
class Masking:
    """What a softmax reads behind a mask: computed scores, constants, and the room that the mask needs below them."""

    softmax: Apply
    scores: tuple[TensorNode, ...]
    constants: tuple[TensorNode, ...]
    room: float


_CHOICE = call("where", any_(), any_(), any_())
_SUM = call("add", any_(), any_())
_PRODUCT = call("mul", any_(), any_())


def masked_scores(node: TensorNode) -> Masking | None:
    """How a sum or a choice that only a softmax reads may be a mask of scores; None for others."""
    chosen = match(_CHOICE, node) is not None
    if not chosen and match(_SUM, node) is None:
        return None
    softmax, values = _softmax_behind(node), node.expr.inputs[1:] if chosen else node.expr.inputs
    scores = tuple(term_of(n) for n in values if not isinstance(n.expr, Constant))
    constants = tuple(n for n in values if isinstance(n.expr, Constant))
    if softmax is None or not scores or (chosen and len(scores) > 1):
        return None
    length = softmax.inputs[0].spec.example.shape[softmax.attrs["axis"]]
    return Masking(softmax, scores, () if chosen else constants, math.log(max(length, 1)) + _NOTHING)


def term_of(node: TensorNode) -> TensorNode:
    """The value that another one moves, or chooses beside a constant mask."""
    while isinstance(node.expr, Apply):
        if node.expr.record.rule.kind == "shape":
            node = node.expr.inputs[0]
            continue
        values = node.expr.inputs[1:] if match(_CHOICE, node) is not None else ()
        computed = [n for n in values if not isinstance(n.expr, Constant)]
        masks = [n for n in values if isinstance(n.expr, Constant) and np.max(np.asarray(constant_value(n))) <= LEAST]
        if (len(computed), len(masks)) != (1, 1):
            break
        node = computed[0]
    return node


def summands(node: TensorNode) -> tuple[TensorNode, ...]:
    """What a value is the sum of: scores and masks, where masks are added one after the other."""
    if isinstance(node.expr, Constant):
        return (node,)
    node = term_of(node)
    return (node,) if match(_SUM, node) is None else tuple(part for n in node.expr.inputs for part in summands(n))


def is_score(node: TensorNode) -> bool:
    """True for what a layer, a product or a table gives, perhaps with constants added to it or multiplied.

    A choice between constants is none, wherever its condition comes from.
    """
    expr = node.expr
    while isinstance(expr, Apply):
        rule, computed = expr.record.rule, [n for n in expr.inputs if _is_computed(n) and is_float(n.dtype)]
        if rule.kind in ("weighted", "product", "gather"):
            return True
        if len(computed) != 1 or not (rule.pointwise or rule.kind == "shape"):
            return False
        expr = computed[0].expr
    return False


def _softmax_behind(node: TensorNode) -> Apply | None:
    """The softmax that alone reads a value, through ops that move its elements, or join them with others."""
    while len(node.users) == 1 and not any(n is node for n in node.graph.outputs):
        user = node.users[0]
        if not isinstance(user, Apply) or not (user.record.joins or user.record.rule.kind in ("softmax", "shape")):
            return None
        if user.record.rule.kind == "softmax":
            return user
        node = user.outputs[0]
    return None


def joined_scores(node: TensorNode) -> tuple[TensorNode, ...]:
    """What a value joins that a softmax alone reads, if masked scores are among it; () for other values.

    So attention has sinks: columns that no key gives.
    """
    made = node.expr
    if not isinstance(made, Apply) or not made.record.joins or _softmax_behind(node) is None:
        return ()
    masked = any(masked_scores(n) is not None or joined_scores(n) for n in map(_moved, made.inputs))
    return tuple(made.inputs) if masked else ()


def _moved(node: TensorNode) -> TensorNode:
    """What a value is before it was moved."""
    while isinstance(node.expr, Apply) and node.expr.record.rule.kind == "shape":
        node = node.expr.inputs[0]
    return node


_BORDER = call("pad", any_(), mode="constant")
_ADDED = call("add", any_(), any_()) | call("sub", any_(), any_())


def why_far(expr: Apply) -> str | None:
    """Why a choice of a number far from all values, or a sum with it, stays in float: in steps that reach it nothing
    else is left.

    So the largest of some places is found, and masks of scores are made that are added later.
    """
    node = expr.outputs[0]
    summed = match(_ADDED, node) is not None and any(_is_far(_moved(n)) for n in expr.inputs)
    if not (summed or _is_far(node)) or masked_scores(node) is not None or masked_sums(node):
        return None
    return f"{expr.op} {'reads' if summed else 'chooses'} a number that is far from all others"


def _is_far(node: TensorNode) -> bool:
    """True for a choice between values and one number that is far from them, and for a product with such a number."""
    expr = node.expr
    if match(_CHOICE, node) is not None:
        numbers = _single_numbers(expr.inputs[1:])
    elif match(_BORDER, node) is not None:
        numbers = [expr.attrs["value"]]
    elif match(_PRODUCT, node) is not None:
        numbers = _single_numbers(expr.inputs)
    else:
        return False
    return any(abs(number) >= -LEAST for number in numbers)


def _single_numbers(nodes: Sequence[TensorNode]) -> list[float]:
    values = [np.asarray(constant_value(n)) for n in nodes if isinstance(n.expr, Constant)]
    return [float(value.flat[0]) for value in values if value.size and (value == value.flat[0]).all()]


def masked_sums(node: TensorNode) -> tuple[tuple[TensorNode, TensorNode], ...]:
    """The sums of masked scores, each with its other operand, that alone read a value; none for other values."""
    found: list[tuple[TensorNode, TensorNode]] = []
    waiting = [node]
    while waiting:
        value = waiting.pop()
        if any(n is value for n in node.graph.outputs):
            return ()
        for user in value.users:
            if isinstance(user, Apply) and user.record.rule.kind == "shape" and user.inputs[0] is value:
                waiting.extend(user.outputs)
            elif match(_SUM, user.outputs[0]) is not None and _is_bounded_sum(user.outputs[0]):
                found.extend((user.outputs[0], term_of(n)) for n in user.inputs if n is not value)
            else:
                return ()
    return tuple(found)


def _is_bounded_sum(node: TensorNode) -> bool:
    return masked_scores(node) is not None or bool(masked_sums(node))


def _is_computed(node: TensorNode) -> bool:
    return not isinstance(node.expr, Constant)


def is_mask(node: TensorNode) -> bool:
    """True for a constant that takes scores away."""
    return isinstance(node.expr, Constant) and bool(np.min(np.asarray(constant_value(node)), initial=0.0) <= LEAST)


_MASK = const().where(lambda node: bool(np.min(np.asarray(constant_value(node)), initial=0.0) < LEAST))


def _bounded(m: Found) -> TensorNode:
    expr, inputs = m.root.expr, []
    for node in expr.inputs:
        if node.dtype == np.float32 and match(_MASK, node) is not None:
            least = np.maximum(np.asarray(constant_value(node)), np.float32(LEAST))
            node = m.constant(least, f"{node.name}_bounded")
        inputs.append(node)
    return m.apply(expr.op, *inputs, attrs=dict(expr.attrs), name=f"{m.root.name}_bounded")


def _before_softmax(m: Found) -> bool:
    node = m.root
    return isinstance(node, TensorNode) and node.dtype == np.float32 and _is_bounded_sum(node)


BOUND_MASKS = Rule(
    "bound_masks",
    call("add", any_(), _MASK) | call("where", any_(), any_(), _MASK) | call("where", any_(), _MASK, any_()),
    _bounded,
    when=_before_softmax,
    shared=True,
)
"""Constants in front of a softmax that are below LEAST, infinite ones too, become LEAST."""


def _added(m: Found) -> TensorNode:
    scores, mask = m.root.expr.inputs
    name = f"{mask.name}_negated"
    if isinstance(mask.expr, Constant):
        negated = m.constant(-np.asarray(constant_value(mask)), name)
    else:
        factors = (_negative(m, n) if isinstance(n.expr, Constant) else n for n in mask.expr.inputs)
        negated = m.apply("mul", *factors, name=name)
    return m.apply("add", scores, negated, name=f"{m.root.name}_added")


def _negative(m: Found, node: TensorNode) -> TensorNode:
    return m.constant(-np.asarray(constant_value(node)), f"{node.name}_negated")


ADD_MASKS = Rule(
    "add_masks",
    call("sub", any_(), const() | call("mul", any_().where(_is_computed), const())),
    _added,
    when=lambda m: isinstance(m.root, TensorNode) and m.root.dtype == np.float32 and bool(_softmax_behind(m.root)),
    shared=True,
)
"""A mask that is subtracted from scores, such as `scores - 1e30 * mask`, is added."""


def most_of(operand: TensorNode) -> str | float:
    """The name of a computed value, or the largest value of a constant."""
    return float(np.max(np.asarray(constant_value(operand)))) if isinstance(operand.expr, Constant) else operand.name


def ends_of(node: TensorNode) -> str | tuple[float, float]:
    """The name of a computed value, or the smallest and the largest value of a constant."""
    if not isinstance(node.expr, Constant):
        return node.name
    value = np.asarray(constant_value(node))
    return (float(np.min(value)), float(np.max(value))) if value.size else (0.0, 0.0)


def least_of(nodes: tuple[TensorNode, ...]) -> float:
    """The smallest value of the constants among nodes; infinity without one."""
    constants = (np.asarray(constant_value(n)) for n in nodes if isinstance(n.expr, Constant))
    return min((float(np.min(value)) for value in constants), default=math.inf)
