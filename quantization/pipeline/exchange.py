"""exchange: the QDQ graph in the form that other runtimes compute in integers.

They round where our integer kernels do not: both operands of a residual sum, and some also the gate of an activation,
the number that integers are multiplied with. What stands there is marked, and `fold` drops it: a file read again gives
the same integer network. Values that only move are not rounded again, which is a step of its own in OpenVINO; reading
puts their integers in place (`settle`).
"""

from collections.abc import Collection, Mapping

import numpy as np

from megengine.core.dtype import QuantizedDType, quantized
from megengine.dispatch import apply, get_op
from megengine.plan.norms import name_norms
from megengine.quantization.pipeline.fold import INSIDE
from megengine.quantization.pipeline.match import over_picture, stored
from megengine.quantization.pipeline.materialize import round_edge
from megengine.quantization.pipeline.profiles import ROUNDED
from megengine.quantization.pipeline.settle import moves
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.ir.end_names import keep_result_names, result_names
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes import constant_value
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import any_, call, const

_X = call("dequantize", any_())
_NUMBER = const().where(lambda node: node.spec.size == 1)


def exchange(
    graph: InternalGraph, branches: Mapping[str, QuantizedDType], rounded: Collection[str] = ROUNDED
) -> InternalGraph:
    """A copy of a QDQ graph with pairs behind the branches of residual sums (by node name) and what else is `rounded`
    (names of `ROUNDED`), without pairs behind values that only move, and with normalisations as one op.
    """
    g = graph.clone()
    for name, dtype in branches.items():
        round_edge(g, g.node(name), dtype, {INSIDE: "the branch of a residual sum"})
    rewrite(g, [rule for name, rule in _RULES.items() if name in rounded])
    _move_unrounded(g)
    name_norms(g, exact=True)
    remove_dead(g)
    keep_result_names(g, result_names(graph))
    return g


def _move_unrounded(g: InternalGraph) -> None:
    """Leave out pairs that change nothing, behind ops that move the values of a pair.

    ONNX Runtime puts them there again where a kernel wants them, but behind a concatenation, which keeps its pair.
    """
    held: dict[int, QuantizedDType] = {}  # what nodes hold, if their values are those of integers of one scale
    for expr in g.exprs():
        if not isinstance(expr, Apply):
            continue
        if expr.record.dequantizes:
            source = expr.inputs[0]
            made = source.expr
            pair = isinstance(made, Apply) and made.record.quantizes and INSIDE not in expr.meta
            if pair and held.get(id(made.inputs[0])) == source.dtype:
                replace_all_uses(g, expr.output, made.inputs[0])
            elif pair:
                held[id(expr.output)] = source.dtype
        elif moves(expr) and (dtype := held.get(id(expr.inputs[0]))) is not None:
            held[id(expr.output)] = dtype


def _rounded_to(node: Node) -> list[QuantizedDType]:
    """The dtypes of the quantize exprs that read a node; none where something else reads it too."""
    users = [u for u in node.users if isinstance(u, Apply) and u.record.quantizes]
    return [u.attrs["dtype"] for u in users] if len(users) == len(node.users) else []


def _pair(m: Found, x: TensorNode, dtype: QuantizedDType, why: str) -> TensorNode:
    q = m.apply("quantize", x, attrs={"dtype": dtype}, name=f"{x.name}_q")
    real = m.apply("dequantize", q, name=f"{x.name}_dq")
    for node in (q, real):
        node.expr.meta[INSIDE] = why
    return real


def _pooled(m: Found) -> TensorNode | None:
    """A mean of pictures is rounded before its axes of one go: runtimes pool pictures to pictures."""
    mean, dtypes = m.root.expr, _rounded_to(m.root)
    if len(dtypes) != 1 or not over_picture(mean):
        return None
    pooled = m.apply("mean", m[_X], attrs={**mean.attrs, "keepdims": True}, name=f"{m.root.name}_pooled")
    real = _pair(m, pooled, dtypes[0], "a mean whose axes of one go")
    return m.apply("reshape", real, attrs={"shape": m.root.shape}, name=f"{m.root.name}_flat")


def _with_integer(m: Found) -> TensorNode | None:
    """A number beside integers is an integer 1 or -1 from the zero point, whose scale is the number."""
    number, (other, *_) = np.asarray(constant_value(m[_NUMBER])), m[_X].expr.inputs
    if number.dtype != np.float32 or not np.finfo(np.float32).tiny <= abs(number.item()) < np.inf:
        return None
    if not _rounded_to(m.root):
        return None
    dtype = quantized(other.dtype.name, abs(number.item()), 1)  # runtimes want one type on both sides
    sign = Tensor._wrap((np.sign(number) + 1).astype(dtype.storage), dtype)
    real = m.apply("dequantize", m.constant(sign, f"{m.root.name}_number"), name=f"{m.root.name}_number_dq")
    real.expr.meta[INSIDE] = "a number that a function of one value reads"
    inputs = [real if n is m[_NUMBER] else n for n in m.root.expr.inputs]
    return m.apply(m.root.expr.op, *inputs, name=m.root.name)


def _gated(m: Found) -> TensorNode | None:
    """SiLU is a product with a rounded sigmoid, where that is at most a step away for each stored input."""
    x, target, rule = m[_X], _rounded_to(m.root), get_op("sigmoid").rule
    assert rule.fixed is not None, "the range of sigmoid is known"
    source = stored(x)
    if source is None or len(target) != 1 or _farthest(source.dtype, rule.fixed, target[0]) > 1:
        return None
    gate = m.apply("sigmoid", x, name=f"{m.root.name}_gate")
    return m.apply("mul", x, _pair(m, gate, rule.fixed, "the gate of an activation"), name=f"{m.root.name}_product")


def _farthest(source: QuantizedDType, gate: QuantizedDType, target: QuantizedDType) -> int:
    """The most steps between SiLU with an exact and with a rounded gate."""
    q = Tensor._wrap((np.arange(source.codes) + np.iinfo(source.storage).min).astype(source.storage), source)
    x = apply("dequantize", q)
    s = apply("sigmoid", x)
    exact, rounded = (
        apply("quantize", x * g, dtype=target)._storage() for g in (s, apply("fake_quant", s, dtype=gate))
    )
    return int(np.abs(np.asarray(exact, np.int32) - rounded).max())


_RULES = {
    "average": Rule("exchange", call("mean", _X, keepdims=False), _pooled, shared=True),
    "number": Rule("exchange", call("mul", _X, _NUMBER) | call("add", _X, _NUMBER), _with_integer, shared=True),
    "gate": Rule("exchange", call("silu", _X), _gated, shared=True),
}
assert tuple(_RULES) == ROUNDED, "profiles name the rules"
