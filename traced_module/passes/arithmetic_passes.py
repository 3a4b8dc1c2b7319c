"""Arithmetic with numbers: calls in one form, chains in one call, scales in the weights before them.

A step `y = scale * x + shift` by numbers is *additive* (scale is 1 or -1) or a *scaling* (shift is 0). Two steps of one
kind are one step of that kind. The numbers must be tame: a chain whose intermediate values overflow, or that rounds
on purpose (`x + 2**23 - 2**23`), is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes

from megengine import functional as F
from megengine import module as M
from megengine.core.dtype import is_float, storage_of
from megengine.traced_module.editing.computed import computed_again, constant_of
from megengine.traced_module.ir.expr import Call, CallFunction, CallMethod, Expr, GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign, remove_dead
from megengine.traced_module.ir.provenance import marked
from megengine.traced_module.passes.batch_norm_passes import layer_kind, scaled_layer
from megengine.traced_module.passes.constant_passes import is_known
from megengine.traced_module.passes.layer_uses import (
    graphs_below,
    has_hooks,
    only_call,
    only_user,
    place_of,
    reads_of_places,
)
from megengine.traced_module.passes.pass_manager import Pass

_FUNCTIONS = "megengine.functional.elemwise."
# what a call is, whichever way it is written -> (scale, shift) of `op(x, number)` and of `op(number, x)`
_STEPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any] | None]] = {
    "add": (lambda c: (1, c), lambda c: (1, c)),
    "sub": (lambda c: (1, -c), lambda c: (-1, c)),
    "mul": (lambda c: (c, 0), lambda c: (c, 0)),
    "truediv": (lambda c: (1 / c, 0) if c else None, None),
}
_ALIASES = {"div": "truediv", "true_div": "truediv"}


@dataclass(frozen=True, slots=True)
class Step:
    """`scale * x + shift` of a node, by one call or several."""

    x: TensorNode
    scale: Any
    shift: Any

    @property
    def additive(self) -> bool:
        """True if it only shifts, or reflects and shifts."""
        return self.scale in (1, -1)

    @property
    def scaling(self) -> bool:
        """True if it only scales."""
        return self.shift == 0


def is_number(value: Any) -> bool:
    """True for a number that is no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def step_of(expr: Expr) -> Step | None:
    """What a call of arithmetic with one number does; None for anything else."""
    name = _operation(expr)
    if name is None or len(expr.inputs) != 1 or not isinstance(expr.inputs[0], TensorNode):
        return None
    x = expr.inputs[0]
    if name == "neg":
        return Step(x, -1, 0)
    operands = _operands(expr)
    numbers = [v for v in operands if is_number(v) and math.isfinite(v)]
    if name.startswith("r") and name[1:] in _STEPS:
        name, operands = name[1:], operands[::-1]
    forms = _STEPS.get(name)
    if forms is None or len(operands) != 2 or len(numbers) != 1:
        return None
    form = forms[0 if operands[0] is x else 1]
    found = None if form is None else form(numbers[0])
    return None if found is None else Step(x, *found)


def _operation(expr: Expr) -> str | None:
    """The name of an elementwise operation, without the marks of its ways of being called."""
    if isinstance(expr, CallFunction) and expr.qualified.startswith(_FUNCTIONS):
        name = expr.qualified.removeprefix(_FUNCTIONS)
        return _ALIASES.get(name, name)
    if not isinstance(expr, CallMethod) or not (expr.method.startswith("__") and expr.method.endswith("__")):
        return None
    name = expr.method.strip("_")
    return name[1:] if name.startswith("i") and name[1:] in _STEPS else name


def _operands(expr: Expr) -> list[Any]:
    """The first two arguments of a call."""
    return list(expr.named_args.values())[:2] if isinstance(expr, Call) else []


def _fits(expr: Expr, step: Step) -> bool:
    """True if a call gives what it gets, so that the same by other numbers does too."""
    dtype = storage_of(step.x.dtype)
    whole = all(isinstance(v, int) for v in (step.scale, step.shift))
    return step.x.spec == expr.outputs[0].spec and (is_float(step.x.dtype) or (dtype.kind == "i" and whole))


def _put(graph: InternalGraph, expr: Expr, make: Callable[[], Any], name: str) -> bool:
    """Put what `make` calls in the place of a call."""
    with graph._edit(name):
        with graph.insert_exprs(expr):
            made = make()
        if made.expr.id > expr.id:
            assign(graph, made.expr, "meta", marked(expr.meta, name))
        graph.replace_node({expr.outputs[0]: made})
        graph.erase(expr)
    return True


def _standing(graph: InternalGraph) -> Iterator[Expr]:
    """Expressions as they are when a sweep begins, without those that were removed since."""
    for expr in graph.exprs(recursive=False):
        if expr.in_graph:
            yield expr


# ---------------------------------------------------------------- chains


def _limits(node: TensorNode) -> tuple[float, float]:
    """(largest number added, largest factor) with which chains of this dtype may be reassociated."""
    dtype = storage_of(node.dtype)
    if dtype.kind == "i":
        return 2.0 ** (8 * dtype.itemsize - 2), 2.0 ** (8 * dtype.itemsize - 2)
    info = ml_dtypes.finfo(dtype)
    return 2.0 ** (info.nmant - 8), 2.0 ** (info.maxexp // 3)


def _tame(step: Step) -> bool:
    added, factor = _limits(step.x)
    return abs(step.shift) <= added and 1 / factor <= abs(step.scale) <= factor


def _joined(inner: Step, outer: Step) -> Step | None:
    """Both steps as one of them; None where they are of different kinds, or not tame."""
    if not (inner.additive and outer.additive) and not (inner.scaling and outer.scaling):
        return None
    both = Step(inner.x, inner.scale * outer.scale, inner.shift * outer.scale + outer.shift)
    return both if all(map(_tame, (inner, outer, both))) else None


def _join(graph: InternalGraph, expr: Expr) -> bool:
    outer = step_of(expr)
    inner = None if outer is None else step_of(outer.x.expr)
    if outer is None or inner is None or only_user(outer.x) is not expr:
        return False
    if not _fits(expr, outer) or not _fits(outer.x.expr, inner):
        return False
    both = _joined(inner, outer)
    return both is not None and _put(graph, expr, lambda: _call(both), "FuseAddMul")


def _call(step: Step) -> Any:
    x: Any = step.x
    if not step.scaling:
        return x + step.shift if step.scale == 1 else step.shift - x
    if isinstance(step.scale, int) and step.scale in (1, -1):
        return x if step.scale == 1 else -x
    return x * step.scale


def _power(expr: Expr) -> tuple[Any, int] | None:
    """(base, exponent) of a power of a float by a small positive integer."""
    if _operation(expr) != "pow" or len(expr.inputs) != 1:
        return None
    base, exponent = _operands(expr)
    if not isinstance(base, TensorNode) or not is_float(base.dtype) or type(exponent) is not int:
        return None
    return (base, exponent) if 1 <= exponent <= 8 else None


def _join_powers(graph: InternalGraph, expr: Expr) -> bool:
    outer = _power(expr)
    inner = None if outer is None else _power(outer[0].expr)
    if outer is None or inner is None or only_user(outer[0]) is not expr:
        return False
    return _put(graph, expr, lambda: inner[0] ** (inner[1] * outer[1]), "FuseAddMul")


def fuse_add_mul(graph: InternalGraph) -> bool:
    """`x * 2 * 3` is `x * 6`, `3 - (2 - x)` is `x + 1`, `(x ** 2) ** 3` is `x ** 6`.

    Additions and subtractions of numbers, and multiplications and divisions by numbers, written in any way.
    """
    changed = False
    for each in graphs_below(graph):
        again = True
        while again:  # what was joined may be joined with what is behind it
            again = False
            for expr in _standing(each):
                again |= _join(each, expr) or _join_powers(each, expr)
            changed |= again
            remove_dead(each)
    return changed


# ---------------------------------------------------------------- normal form


def normalize_arithmetic(graph: InternalGraph) -> bool:
    """Arithmetic with a number in one form: `x + c` and `x * c`; `c - x` is `-x + c`, `x / c` is `x * (1 / c)`."""
    changed = False
    for each in graphs_below(graph):
        for expr in _standing(each):
            step = step_of(expr)
            normal = isinstance(expr, CallMethod) and expr.method in ("__add__", "__mul__")
            if step is not None and not normal and _operation(expr) != "neg" and _fits(expr, step):
                changed |= _put(each, expr, lambda step=step: _normal_form(step), "NormElemWise")
    return changed


def _normal_form(step: Step) -> Any:
    x: Any = step.x
    return x * step.scale if step.scaling else (x if step.scale == 1 else F.neg(x)) + step.shift


# ---------------------------------------------------------------- scales into weights

_LAYERS = (M.Conv2d, M.ConvTranspose2d, M.Linear)
# f(s * x) = s * f(x) for s > 0 ...
_POSITIVE = frozenset({"relu", "leaky_relu", "max_pool2d", "abs", "ReLU", "LeakyReLU", "MaxPool2d"})
# ... and for every s
_LINEAR = frozenset(
    {
        *("avg_pool2d", "adaptive_avg_pool2d", "reshape", "flatten", "transpose", "getitem", "mean", "sum", "neg"),
        *("expand_dims", "squeeze", "concat", "stack", "AvgPool2d", "AdaptiveAvgPool2d", "Identity", "add", "sub"),
    }
)


def _kind_of(expr: Expr) -> str:
    if isinstance(expr, CallFunction):
        home, _, name = expr.qualified.rpartition(".")
        return name if home.startswith("megengine.functional") else ""
    if not isinstance(expr, CallMethod):
        return ""
    if expr.method != "__call__":
        return expr.method.strip("_")
    layer = expr.inputs[0].owner
    plain = type(layer).__module__.startswith("megengine.module.") and not has_hooks(layer)
    return type(layer).__name__ if plain else ""


def _targets(node: TensorNode, user: Expr, factor: float) -> dict[int, CallMethod] | None:
    """Calls of the layers that, all scaled, scale a value of which `user` is the only one; None if some are none."""
    found: dict[int, CallMethod] = {}
    todo: list[tuple[Any, Expr]] = [(node, user)]
    while todo:
        at, by = todo.pop()
        expr, users = at.expr, {id(u) for u in at.users}
        if users != {id(by)} or any(at is n for n in at.graph.outputs) or len(expr.outputs) != 1:
            return None
        kind = _kind_of(expr)
        if (
            isinstance(expr, CallMethod)
            and expr.method == "__call__"
            and layer_kind(expr.inputs[0].module_type, _LAYERS)
        ):
            found[id(expr)] = expr
        elif kind in _LINEAR or (kind in _POSITIVE and factor > 0):
            values = [n for n in expr.inputs if isinstance(n, TensorNode)]
            if not values or any(not is_float(n.dtype) for n in values) or _adds_number(expr, kind):
                return None
            todo += [(n, expr) for n in values]
        else:
            return None
    return found


def _adds_number(expr: Any, kind: str) -> bool:
    return kind in ("add", "sub") and len(expr.inputs) != 2


@computed_again
def _scaled_by(layer: Any, factor: TensorNode) -> Any:
    return scaled_layer(layer, constant_of(factor).item(), 0.0)


def _factor_of(expr: Expr) -> tuple[Step, TensorNode] | None:
    """A multiplication by a tensor of one element that the module has: the step, and that tensor."""
    operands = _operands(expr) if _operation(expr) == "mul" else []
    for x, factor in (operands, operands[::-1]) if len(operands) == 2 else ():
        if isinstance(x, TensorNode) and is_known(factor) and factor.spec.size == 1 and not is_known(x):
            return Step(x, constant_of(factor).item(), 0), factor
    return None


def fold_scales(graph: InternalGraph) -> bool:
    """A multiplication by a number, or a tensor of one element that the module has, is done by weights before it.

    It goes backwards through what scales with its input (ReLU for positive numbers, pooling, reshapes, sums, concat)
    as long as nothing else uses the values, to Conv2d, ConvTranspose2d and Linear layers that are called once.
    """
    places = reads_of_places(graph)
    changed = False
    for each in graphs_below(graph):
        while _fold_one_scale(places, each):  # behind one that went another may stand
            changed = True
        remove_dead(each)
    return changed


def _fold_one_scale(places: Any, graph: InternalGraph) -> bool:
    for expr in reversed(list(_standing(graph))):
        step, factor = _factor_of(expr) or (step_of(expr), None)
        if step is None or not step.scaling or not _fits(expr, step) or not _tame(step):
            continue
        if factor is None and step.additive:
            continue
        calls = _targets(step.x, expr, step.scale)
        if not calls or not all(_called_once(places, call) for call in calls.values()):
            continue
        with graph._edit("BackwardFoldScale"):
            for call in calls.values():
                _scale(graph, call, step.scale if factor is None else factor)
            graph.replace_node({expr.outputs[0]: step.x})
            graph.erase(expr)
        return True
    return False


def _called_once(places: Any, call: CallMethod) -> bool:
    """True if nothing else in any graph reads the layer."""
    read = call.inputs[0].expr
    if not isinstance(read, GetAttr) or only_call(read) is not call or len(call.inputs) != 2:
        return False
    return places.get(place_of(call.inputs[0]), ()) == [read]


def _scale(graph: InternalGraph, call: CallMethod, factor: float | TensorNode) -> None:
    layer = call.inputs[0].owner
    if isinstance(factor, TensorNode):
        made = graph._computed(_scaled_by, layer, factor)
    else:
        made = graph._computed(scaled_layer, layer, factor, 0.0)
    graph.replace_module(call.inputs[0], made)
    assign(graph, call, "meta", marked(call.meta, "BackwardFoldScale"))


FUSE_ADD_MUL = Pass("FuseAddMul", fuse_add_mul)
NORM_ELEMWISE = Pass("NormElemWise", normalize_arithmetic, by_name_only=True)
BACKWARD_FOLD_SCALE = Pass("BackwardFoldScale", fold_scales)
