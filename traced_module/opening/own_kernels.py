"""Convolutions with a kernel for each sample (CondConv, StyleGAN): a batch lies in their groups.

For a batch of one the reshapes that bring it there change nothing, so exporters leave them out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from megengine.core.spec import TensorSpec
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign, exchange, exchange_outputs, use_nodes

Shape = tuple[int, ...]
Repeat = Callable[[TensorNode, int, int], TensorNode]


def samples_with_kernels(expr: Apply, old: list[Shape]) -> int | None:
    """How many samples a convolution of one sample has now, if each has a kernel of its own; else None.

    Args:
        old: the shapes of its inputs for the batch of one.
    """
    if "groups" not in expr.attrs or len(old) < 2 or old[0][:1] != (1,):
        return None
    data, kernel = (n.spec.shape for n in expr.inputs[:2])
    times, left = divmod(kernel[0], old[1][0])
    if left or times == 1 or kernel[1:] != old[1][1:]:
        return None
    return times if data == old[0] or data == (times, *old[0][1:]) else None


def give_groups(graph: InternalGraph, expr: Apply, old: list[Shape], samples: int, repeat: Repeat) -> TensorNode:
    """Let the groups of a convolution hold the samples, between reshapes; the node with their results.

    Args:
        repeat: makes a node that lies so many times along an axis.
    """
    place = {"name": f"{expr.name}_samples", "before": expr, "meta": expr.meta}
    x, w, *others = expr.inputs
    if x.spec.shape == old[0]:
        x = repeat(x, 1, samples)
    else:
        x = graph.apply("reshape", x, attrs={"shape": (1, samples * old[0][1], *old[0][2:])}, **place)
    others = [n if n.spec.shape != was else repeat(n, 0, samples) for n, was in zip(others, old[2:], strict=True)]
    use_nodes(graph, expr, [x, w, *others])
    attrs = {**expr.attrs, "groups": samples * expr.attrs["groups"]}
    assign(graph, expr, "_attrs", MappingProxyType(attrs))
    before = expr.output.spec
    channels = samples * before.shape[1]
    spec = TensorSpec((1, channels, *before.shape[2:]), before.dtype, before.device)
    assign(graph, expr.output, "_spec", spec)
    users = list(expr.output.users)
    rows = {"shape": (samples, *before.shape[1:])}
    made = graph.apply("reshape", expr.output, attrs=rows, name=place["name"], after=expr, meta=expr.meta)
    for user in users:
        exchange(graph, user, expr.output, made)
    exchange_outputs(graph, expr.output, made)
    return made
