"""ConstantToParameter: weights that are constants of the graph become parameters of the module, which can be trained.

Networks from files and from torch hold their weights as constants. No rule: a rule replaces calls, and not what they
use.
"""

from __future__ import annotations

from megengine.core.dtype import QuantizedDType, is_float
from megengine.module import Module
from megengine.tensor import Parameter
from megengine.traced_module.editing.computed import computed_again, constant_of
from megengine.traced_module.editing.parts import set_attribute
from megengine.traced_module.ir.expr import Apply, CallFunction, Constant, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import identifier
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.passes.affine_maps import NORM
from megengine.traced_module.passes.layer_uses import everywhere
from megengine.traced_module.passes.pass_manager import Pass

_STATISTICS = {NORM: (3, 4), "megengine.functional.nn.batch_norm": (1, 2)}  # places that training assigns


@computed_again
def parameter_of(node: TensorNode) -> Parameter:
    """The value of a node as a parameter of its own."""
    return Parameter(constant_of(node))


@everywhere
def constants_to_parameters(graph: InternalGraph) -> bool:
    """Floating constants with axes become parameters under their names; statistics of batch norms stay constants."""
    found = [e for e in graph.exprs(recursive=False) if isinstance(e, Constant) and _is_weight(e.outputs[0])]
    for expr in found:
        _become_parameter(graph, expr)
    return bool(found)


def _is_weight(node: TensorNode) -> bool:
    dtype = node.spec.dtype
    has_gradients = not isinstance(dtype, QuantizedDType) and is_float(dtype)
    return has_gradients and node.spec.ndim > 0 and not any(_is_statistic(user, node) for user in node.users)


def _is_statistic(user: Expr, node: TensorNode) -> bool:
    called = user.op if isinstance(user, Apply) else user.qualified if isinstance(user, CallFunction) else ""
    return any(place < len(user.inputs) and user.inputs[place] is node for place in _STATISTICS.get(called, ()))


def _become_parameter(graph: InternalGraph, expr: Constant) -> None:
    node, owner = expr.outputs[0], graph.inputs[0]
    assert isinstance(owner, ModuleNode), graph
    name, wanted = node.name, identifier(node.name)
    with graph.insert_exprs(expr):
        made = graph.journal.computed(parameter_of, node)
        attribute = set_attribute(owner, f"{wanted}_1" if hasattr(Module, wanted) else wanted, made)
        read = getattr(owner, attribute)
        graph.replace_node({node: read})
    graph.erase(expr)
    graph.rename(read, name)


CONSTANTS_TO_PARAMETERS = Pass("ConstantToParameter", constants_to_parameters, by_name_only=True)
