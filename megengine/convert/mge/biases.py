"""Biases become part of their layers.

MegEngine writes a convolution and the addition of its bias as two operators, and its optimiser moves the addition
behind that of a residual: `bias + (x + conv(y))`. As `x + conv(y, bias)` the layer is quantized with its bias.
"""

from megengine.traced_module import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import any_, call, const

_LAYERS = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
_X, _WEIGHT, _BIAS, _OTHER = any_(), const(), const(), any_()


def biases_into_layers(graph: InternalGraph) -> None:
    """Make each constant of one number a channel that is added to a convolution its bias, in place."""
    if rewrite(graph, [_rule(layer, behind) for layer in _LAYERS for behind in (False, True)]):
        remove_dead(graph)


def _rule(name: str, behind: bool) -> Rule:
    layer = call(name, _X, _WEIGHT)
    total = call("add", layer, _OTHER) if behind else layer

    def fits(m: Found) -> bool:
        shape, y = m[_BIAS].shape, m[layer]
        wide = (1, y.shape[1], *(1,) * (len(y.shape) - 2))
        same = m[_BIAS].dtype == y.dtype and (not behind or m[_OTHER].shape == y.shape)
        return shape == wide and same and m.root.shape == y.shape

    def build(m: Found) -> TensorNode:
        made = m.expr(layer)
        m.origin = m[layer] if made.meta.get("module") else m.root
        path = m.origin.meta.get("module")
        label = f"{path}_{name}_out" if path else m[layer].name
        bias = m.constant(m[_BIAS].expr.value.numpy().reshape(-1), f"{label.removesuffix('_out')}_bias")
        y = m.apply(name, m[_X], m[_WEIGHT], bias, attrs=made.attrs, name=label)
        if not behind:
            return y
        total = m.apply("add", y, m[_OTHER])
        m.names.append((total, m.root.name))
        return total

    return Rule("biases_into_layers", call("add", total, _BIAS), build, fits)
