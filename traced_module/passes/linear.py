"""Where the bias of a layer stands: beside the weight, or in the constant that is added to a matrix product."""

from __future__ import annotations

from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.layer_uses import only_user
from megengine.traced_module.patterns import Match, any_, call, const, match

WEIGHT, BIAS = any_(), const()
PRODUCT = call("matmul", any_(), WEIGHT)
BIASED = call("add", PRODUCT, BIAS)


def addition_behind(product: TensorNode) -> Match | None:
    """The addition of a constant (`BIASED`) that alone uses a product; None if something else does."""
    user = only_user(product)
    return match(BIASED, user.outputs[0]) if isinstance(user, Apply) else None


def bias_place(layer: Apply) -> tuple[Apply, int] | None:
    """The op that adds the bias of a layer, and which operand it is: the one behind the last where it has none yet.

    None for a matrix product to which no constant is added.
    """
    if not layer.record.rows:
        return layer, 2
    addition = addition_behind(layer.output)
    if addition is None:
        return None
    return addition.expr(BIASED), addition.expr(BIASED).inputs.index(addition[BIAS])
