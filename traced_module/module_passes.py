"""Passes on traced modules: layers are replaced by layers, the hierarchy stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import module as M
from megengine.core.collecting import collection_paused
from megengine.dispatch.public import public_functions
from megengine.module import Module
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.calls import arguments_key
from megengine.traced_module.expr import CallFunction, CallMethod, Expr, GetAttr, is_call_module
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.pass_manager import (
    Pass,
    PassManager,
    get_registered_pass,
    register_pass,
    registered_passes,
)
from megengine.traced_module.patterns import any_, call
from megengine.traced_module.queries import child_graph
from megengine.traced_module.rewriting import Rule
from megengine.traced_module.traced import TracedModule

_BATCH_NORMS = (M.BatchNorm1d, M.BatchNorm2d)
# layers into which a batch norm can be folded -> axes of (groups, output channels) in their weight, without and with
# groups (then the weight has one axis more)
_OUTPUT_AXIS: dict[type[Module], tuple[int, int]] = {M.Conv2d: (0, 1), M.ConvTranspose2d: (1, 2), M.Linear: (0, 0)}


def copied(layer: Module) -> Any:
    """A layer of its own with the same attributes; tensors are shared."""
    made = object.__new__(type(layer))
    made.__dict__.update(object.__getattribute__(layer, "__dict__"))
    return made


def folded_layer(layer: Any, norm: Any) -> Module:
    """A convolution or linear layer followed by a batch norm (in evaluation), as one layer.

    y = (Wx + b - mean) * gamma / sqrt(var + eps) + beta; the factor and the bias are computed in float64.
    """
    mean, var = (np.asarray(t.numpy(), np.float64).reshape(-1) for t in (norm.running_mean, norm.running_var))
    factor = 1 / np.sqrt(var + norm.eps)
    shift = np.zeros_like(mean)
    if norm.affine:
        factor = factor * norm.weight.numpy().reshape(-1)
        shift = norm.bias.numpy().astype(np.float64).reshape(-1)
    weight = layer.weight.numpy()
    plain, grouped = _OUTPUT_AXIS[type(layer)]
    shape = [1] * weight.ndim
    if getattr(layer, "groups", 1) > 1 and weight.ndim == 5:
        shape[0], shape[grouped] = layer.groups, -1
    else:
        shape[plain] = -1
    bias = 0.0 if layer.bias is None else layer.bias.numpy().astype(np.float64).reshape(-1)
    offset = (shift + (bias - mean) * factor).astype(weight.dtype)
    made = copied(layer)
    made.weight = Parameter._wrap(weight * factor.astype(weight.dtype).reshape(shape))
    made.bias = Parameter._wrap(offset if isinstance(layer, M.Linear) else offset.reshape(1, -1, 1, 1))
    return made


def _folds(expr: Expr) -> CallMethod | None:
    """The layer's call that the batch norm's call `expr` can be folded into."""
    if not any(is_call_module(expr, n) for n in _BATCH_NORMS) or len(expr.inputs) != 2:
        return None
    norm, before = expr.inputs[0].owner, expr.inputs[1].expr
    if norm.training or not norm.track_running_stats or not isinstance(before, CallMethod):
        return None
    if not is_call_module(before) or before.inputs[0].module_type not in _OUTPUT_AXIS:
        return None
    node = before.inputs[0]
    alone = before.output.users == (expr,) and not any(before.output is o for o in expr.graph.outputs)
    return before if alone and node.users == (before,) and isinstance(node.expr, GetAttr) else None


def fuse_conv_bn(graph: InternalGraph) -> bool:
    """Batch norms in evaluation behind Conv2d, ConvTranspose2d or Linear become part of them.

    The layer is replaced by one of its own (with a bias) under the same name; a layer or a value that something else
    uses too is left alone.
    """
    changed = False
    for expr in reversed(graph.exprs(recursive=False)):
        child = child_graph(expr)
        if child is not None and child._top is graph._top:
            changed |= fuse_conv_bn(child)
        before = _folds(expr)
        if before is not None:
            _fold(graph, expr, before)
            changed = True
    graph.remove_dead()
    return changed


def _fold(graph: InternalGraph, norm_call: Any, layer_call: CallMethod) -> None:
    layer_node, *values = layer_call.inputs
    name = layer_call.output.name
    with graph.transaction("FuseConvBn"):
        graph.replace_module(layer_node, folded_layer(layer_node.owner, norm_call.inputs[0].owner))
        with graph.insert_exprs():  # a new call, right behind what it needs: where MegEngine puts it
            made = layer_node(*values)
        graph.replace_node({norm_call.output: made})
        graph.erase(norm_call)
        graph.erase(layer_call)
        graph.rename(made, name)
        passes = [*layer_call.meta.get("passes", ()), "FuseConvBn"]
        graph._set(made.expr, "meta", {**layer_call.meta, "passes": passes})


def _drops_nothing(expr: Expr) -> bool:
    if is_call_module(expr, M.Identity):
        return True
    return is_call_module(expr, M.Dropout) and not expr.inputs[0].owner.training


def drop_identities(graph: InternalGraph) -> bool:
    """Calls of Identity, and of Dropout in evaluation, are left out."""
    changed = False
    for expr in graph.exprs(recursive=False):
        if _drops_nothing(expr) and expr.output not in graph.inputs:
            graph.replace_node({expr.output: expr.inputs[1]})
            changed = True
    graph.remove_dead()
    return any([drop_identities(child) for child in graph.child_graphs()]) or changed


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _chain(method: str) -> Rule:
    """X op a op b with numbers a, b is x op (a op b)."""
    x = any_()
    inner = call(f".__{method}__", x)
    pattern = call(f".__{method}__", inner)

    def build(m: Any) -> Any:
        a, b = (m.expr(p).const_val[0][1] for p in (inner, pattern))
        return getattr(m[x], f"__{method}__")(a + b if method == "add" else a * b)

    def numbers(m: Any) -> bool:
        calls = [m.expr(p) for p in (inner, pattern)]
        return all(len(c.const_val) == 1 and _number(c.const_val[0][1]) for c in calls)

    return Rule(f"FuseAddMul.{method}", pattern, build, numbers)


FUSE_CONV_BN = register_pass(Pass("FuseConvBn", fuse_conv_bn))
FUSE_ADD_MUL = register_pass(Pass.of_rules("FuseAddMul", _chain("add"), _chain("mul")))
DROP_IDENTITIES = register_pass(Pass("DropIdentities", drop_identities))


def eliminate_common(graph: InternalGraph) -> bool:
    """Calls of one function with the same arguments are made once. Random ones and assignments are left alone."""
    seen: dict[Any, Expr] = {}
    changed = False
    for expr in graph.exprs(recursive=False):
        key = _same_call(expr)
        if key is None:
            continue
        first = seen.setdefault(key, expr)
        if first is not expr:
            graph.replace_node(dict(zip(expr.outputs, first.outputs, strict=True)))
            changed = True
    graph.remove_dead()
    return any([eliminate_common(child) for child in graph.child_graphs()]) or changed


def _same_call(expr: Expr) -> Any:
    inputs = tuple(id(n) for n in expr.inputs)
    if isinstance(expr, CallFunction) and _repeats_itself(expr.qualified):
        return (expr.qualified, inputs, arguments_key(expr.arguments))
    if isinstance(expr, CallMethod) and expr.method not in ("__call__", "__setitem__"):
        return (expr.method, inputs, arguments_key(expr.arguments))
    return None


def _repeats_itself(qualified: str) -> bool:
    """True for public functions that draw nothing; of a user's wrapped function nothing is known."""
    return qualified in public_functions and not public_functions[qualified].random


ELIMINATE_COMMON = register_pass(Pass("EliminateCommon", eliminate_common))


def optimize(
    module: TracedModule,
    enabled_pass: Sequence[str | Pass] | str = ("FuseConvBn",),
    *,
    check_with: Sequence[Any] | None = None,
) -> TracedModule:
    """A copy of a traced module after some passes; the module itself stays as it is.

    Args:
        module: a traced module.
        enabled_pass: names of registered passes, or passes, in order; "all" for every registered one.
        check_with: inputs; if given, outputs are compared after each pass and the guilty one is named.

    Raises:
        OptionError: a pass is unknown; the nearest name is given.
        GraphError: a pass changed what the module computes.
    """
    if enabled_pass == "all":
        enabled_pass = registered_passes()
    names = [enabled_pass] if isinstance(enabled_pass, str) else enabled_pass
    passes = [one if isinstance(one, Pass) else get_registered_pass(one) for one in names]
    with collection_paused():
        made = module.clone()
    given = None if check_with is None else [x if isinstance(x, Tensor) else Tensor(x) for x in check_with]
    for graph in made.graphs:
        PassManager(passes, given).run(graph)
    return made
