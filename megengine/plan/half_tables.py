"""Elementwise ops on one number of 16 bits become a table of all of them: the same bits, by a read for each number.

Networks in bfloat16 that spell an activation (GELU by tanh, for instance) round after each of its ops, which takes more
than the arithmetic. A table is what the chain of ops gives for each of the 2^16 numbers.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from megengine.core.spec import TensorSpec
from megengine.kernels import _core, memory
from megengine.kernels.elementwise import own_elementwise
from megengine.kernels.floating import own_function
from megengine.kernels.half_conversion import HALVES
from megengine.kernels.lists import LISTS
from megengine.kernels.problem import Problem
from megengine.ops.half_tables import ENTRIES, RESULTS
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead

_FUNCTIONS = {op for op, kernels in LISTS.items() if own_function in kernels}
_LEAST = 1 << 15  # numbers of a value that are worth a table
_FUNCTION, _WORTH = 12, 16  # how much longer a function takes than a sum; what takes as long as a read of the table


def _cost(expr: Apply) -> int:
    return sum(_FUNCTION if op in _FUNCTIONS else 1 for op, *_ in expr.attrs["program"])


def _is_map(expr: object) -> TypeGuard[Apply]:
    """True for a chain of ops that gives each number of 16 bits another one, if that takes long."""
    if not isinstance(expr, Apply) or expr.op != "elementwise" or expr.output.spec.size < _LEAST:
        return False
    x, *rest = sorted(expr.inputs, key=lambda n: isinstance(n.expr, Constant))
    alone = x.shape == expr.output.shape and all(isinstance(n.expr, Constant) and n.spec.size == 1 for n in rest)
    return alone and x.dtype in HALVES and expr.output.dtype in RESULTS and _cost(expr) >= _WORTH


def _table(expr: Apply) -> np.ndarray:
    """What the chain gives for each of the 2^16 numbers, by the kernel that would compute it."""
    operands, specs = [], []
    for node in expr.inputs:
        if isinstance(node.expr, Constant):
            operands.append(node.expr.value.numpy().reshape(1))
        else:
            operands.append(np.arange(ENTRIES, dtype=np.uint16).view(node.dtype))
        specs.append(TensorSpec(operands[-1].shape, node.dtype))
    out = memory.empty((ENTRIES,), expr.output.dtype)
    step = own_elementwise.make_step(
        Problem("elementwise", specs, [TensorSpec(out.shape, out.dtype)], expr.attrs), {}, 1
    )
    _core.run_step(step, [memory.bits(np.ascontiguousarray(a)) for a in (*operands, out)])
    return out


def tabulate_halves(graph: InternalGraph) -> bool:
    """In place; True if something changed. Chains of the same entries share a table."""
    made: dict[tuple[str, bytes], TensorNode] = {}
    for expr in list(graph.exprs()):
        if not _is_map(expr):
            continue
        entries = _table(expr)
        named = {"before": expr, "meta": expr.meta}
        key = entries.dtype.name, entries.tobytes()
        if key not in made:
            made[key] = graph.constant(Tensor._wrap(entries), f"{expr.output.name}_table", **named)
        x = next(n for n in expr.inputs if not isinstance(n.expr, Constant))
        table = graph.apply("half_table", x, made[key], attrs={"dtype": x.dtype}, name=expr.output.name, **named)
        graph.replace_node({expr.output: table})
    if made:
        remove_dead(graph)
    return bool(made)
