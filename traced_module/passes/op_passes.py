"""Passes on graphs of ops that every pipeline begins with: small, idempotent; each says if it changed anything."""

from __future__ import annotations

import numpy as np

from megengine.core.dtype import storage_of
from megengine.dispatch import get_op
from megengine.tensor import Tensor
from megengine.traced_module.editing.computed import computed_again, constant_of
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.ir.provenance import marked
from megengine.traced_module.ir.queries import applied


def only_user(node: TensorNode, user: Apply) -> bool:
    """True if nothing but `user` needs the value."""
    return node.users == (user,) and not any(n is node for n in node.graph.outputs)


def constant_value(node: TensorNode) -> np.ndarray | None:
    """The array of a constant, None for other values."""
    return node.expr.value.numpy() if isinstance(node.expr, Constant) else None


def mark(expr: Apply, origin: Apply, name: str) -> None:
    """Carry provenance from the expression replaced, and note the pass."""
    expr.meta.update(marked({**expr.meta, **origin.meta}, name))


# ---------------------------------------------------------------- batch norm


Renaming = list[tuple[TensorNode, str]]  # new values, and the names of those whose places they take


def take_names(graph: InternalGraph, made: Renaming) -> None:
    """Let new values be called as those that they replaced, where these are gone now and the new ones are not."""
    for node, name in made:
        if graph._names.get(name) is None and graph._names.get(node.name) is node:
            graph.rename(node, name)


def _fold_one(graph: InternalGraph, bn: Apply) -> Renaming:
    conv = bn.inputs[0].expr
    if not isinstance(conv, Apply) or not get_op(conv.op).weighted or not only_user(bn.inputs[0], bn):
        return []
    if "groups" not in conv.attrs:  # a matrix product
        return []
    fixed = [*conv.inputs[1:], *bn.inputs[1:]]
    variance = constant_value(fixed[-1])
    if variance is None or any(not isinstance(n.expr, Constant) for n in fixed):
        return []
    if np.any(variance + bn.attrs["eps"] <= 0):  # nothing to divide by: it stays where it is seen
        return []
    folded, added = graph._computed(folded_constants, conv.op, conv.attrs["groups"], bn.attrs["eps"], fixed)
    weight = graph.constant(folded, conv.inputs[1].name, before=bn, meta=conv.inputs[1].meta)
    offset = graph.constant(added, f"{conv.name}_bias", before=bn)
    new = graph.apply(conv.op, conv.inputs[0], weight, offset, attrs=conv.attrs, name=conv.name, before=bn)
    mark(new.expr, conv, "fold_batch_norm")
    replace_all_uses(graph, bn.output, new)
    return [(weight, conv.inputs[1].name), (new, conv.name)]


@computed_again
def folded_constants(op: str, groups: int, eps: float, fixed: list[TensorNode]) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution followed by a batch norm, of which the constants are given."""
    w, *rest = (np.asarray(constant_value(node), np.float64) for node in fixed)
    scale, shift, mean, var = rest[-4:]
    bias = rest[0] if len(rest) == 5 else 0.0
    factor = scale / np.sqrt(var + eps)
    if not get_op(op).transposed:
        folded = w * factor[:, None, None, None]
    else:  # weight [I, O/g, kh, kw]: output channel = group * O/g + column
        per_group = factor.reshape(groups, 1, w.shape[1], 1, 1)
        folded = (w.reshape(groups, -1, *w.shape[1:]) * per_group).reshape(w.shape)
    dtype = storage_of(fixed[0].dtype)
    offset = (shift + (bias - mean) * factor).astype(dtype)
    return Tensor._wrap(folded.astype(dtype)), Tensor._wrap(offset)


def fold_batch_norm(graph: InternalGraph) -> bool:
    """Batch norm in evaluation after a convolution only it uses becomes part of weight and bias (float64, then cast).

    A weight shared with another convolution stays as it is there: the folded one gets its own constant. The convolution
    keeps its name.
    """
    batch_norms = applied(graph, "batch_norm")
    with graph._edit("fold_batch_norm"):
        made = [new for bn in batch_norms if isinstance(bn, Apply) for new in _fold_one(graph, bn)]
        if made:
            remove_dead(graph)
            take_names(graph, made)
    return bool(made)


# ---------------------------------------------------------------- constants and identities


def fold_constants(graph: InternalGraph) -> bool:
    """Ops whose inputs are all constants are computed now; the values keep their names."""
    made: Renaming = []
    for expr in graph.exprs():
        if not isinstance(expr, Apply) or get_op(expr.op).random or len(expr.outputs) != 1 or not expr.inputs:
            continue
        if all(isinstance(n.expr, Constant) for n in expr.inputs):
            with graph._edit("constant"):
                new = graph.constant(graph._computed(constant_of, expr.output), expr.name, after=expr, meta=expr.meta)
                replace_all_uses(graph, expr.output, new)
            made.append((new, expr.name))
    remove_dead(graph)
    take_names(graph, made)
    return bool(made)


_SAME_IF_SHAPE_KEPT = ("reshape", "broadcast_to", "cast", "slice")


def _is_identity(expr: Apply) -> bool:
    if expr.op == "transpose":
        return tuple(expr.attrs["perm"]) == tuple(range(expr.inputs[0].spec.ndim))
    if expr.op == "pad":
        return not any(w for pair in expr.attrs["widths"] for w in pair)
    if expr.op == "concat":
        return len(expr.inputs) == 1
    if expr.op == "slice":
        return all(s in (1, None) for s in expr.attrs["steps"]) and expr.inputs[0].spec == expr.output.spec
    return expr.op in _SAME_IF_SHAPE_KEPT and expr.inputs[0].spec == expr.output.spec


# op -> the number beside which it gives what it gets, and the places where that number may stand
_NEUTRAL = {"add": (0, (0, 1)), "sub": (0, (1,)), "mul": (1, (0, 1)), "div": (1, (1,)), "pow": (1, (1,))}


def _note_value(expr: Apply, node: TensorNode, value: np.ndarray) -> None:
    """Put the value of a parameter into the log of edits: other weights may do something where these do nothing."""
    written_out = value.ndim == 0 and str(node.expr.meta.get("parameter", node.name)).startswith("const_tensor")
    if expr.top_graph._journal.recording and not written_out:
        expr.top_graph.constant(value.copy(), "neutral", before=expr)


def _kept(expr: Apply) -> TensorNode | None:
    """The value that an op gives back as it is."""
    if _is_identity(expr):
        return expr.inputs[0]
    number, places = _NEUTRAL.get(expr.op, (0, ()))
    for place in places:
        value, other = constant_value(expr.inputs[place]), expr.inputs[1 - place]
        if value is not None and value.size == 1 and value.item() == number and other.spec == expr.output.spec:
            _note_value(expr, expr.inputs[place], value)
            return other
    return None


def drop_identities(graph: InternalGraph) -> bool:
    """Ops that do nothing are left out: `x + 0`, `x * 1`, same-shape reshape, transpose by the identity, empty pads."""
    changed = False
    for expr in graph.exprs():
        kept = _kept(expr) if isinstance(expr, Apply) and len(expr.outputs) == 1 else None
        if kept is not None:
            replace_all_uses(graph, expr.output, kept)
            changed = True
    remove_dead(graph)
    return changed
