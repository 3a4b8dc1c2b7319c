"""A matrix product and the constant that is added to it, as plans and quantization look for them."""

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
    return match(BIASED, user.output) if isinstance(user, Apply) else None
