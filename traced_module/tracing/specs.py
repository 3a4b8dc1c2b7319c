"""Specs that calls give, found without values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megengine.core.errors import MegEngineError
from megengine.core.spec import TensorSpec
from megengine.dispatch import interpose
from megengine.tensor import DeferredValueError, Tensor
from megengine.traced_module.ir.expr import Call, Constant
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.tracing.calls import result_leaves, run_call, stand_in, untouched
from megengine.traced_module.tracing.deferred import Deferring
from megengine.traced_module.tracing.spec_memo import remembered_specs


def specs_of_call(expr: Call, inputs: Sequence[Node]) -> tuple[TensorSpec, ...] | None:
    """Specs that a call gives, found by running it on tensors without values; None where values are needed.

    Shapes and constants have values.
    """

    def find(values: list[Any]) -> tuple[TensorSpec, ...] | None:
        with interpose(Deferring()), untouched(*values):
            try:
                result = run_call(expr, values)
            except DeferredValueError:
                return None
            except MegEngineError as exc:
                exc.add_note(f"in {expr!r}")
                raise
        leaves, _ = result_leaves(result, expr)
        return tuple(t.spec for t in leaves)

    specs = remembered_specs(expr, inputs, find)
    if specs is not None or not any(isinstance(n.expr, Constant) for n in inputs):
        return specs
    return find([n.owner if isinstance(n, ModuleNode) else constant_or_stand_in(n) for n in inputs])


def constant_or_stand_in(node: Node) -> Tensor:
    """The value of a constant; of other nodes a tensor with their spec."""
    return node.expr.value if isinstance(node.expr, Constant) else stand_in(node)
