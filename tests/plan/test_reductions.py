"""Integer sums and means over any axes run in kernels, with the integers of the reference."""

import itertools

import numpy as np
import pytest

from megengine.core.dtype import qint8, quint8
from megengine.core.spec import TensorSpec
from megengine.plan import compile as compile_plan
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, interpret
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.graph import InternalGraph

SHAPES = [(3, 5), (2, 3, 5), (2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 4, 5), (2, 3, 4, 2, 3)]
RNG = np.random.default_rng(0)


def graph_of(op, shape, ways):
    """Integers of an input, reduced in all these ways."""
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec(shape, np.dtype(np.float32)))
    x = graph.apply("quantize", x, attrs={"dtype": quint8(0.02, 13)})
    made = [graph.apply(op, x, attrs={"axis": axis, "keepdims": kept, "dtype": qint8(0.11)}) for axis, kept in ways]
    set_outputs(graph, [graph.apply("dequantize", y) for y in made])
    return graph


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", ["qsum", "qmean"])
def test_any_axes(op, shape):
    axes = range(len(shape))
    some = [part for count in axes for part in itertools.combinations(axes, count + 1)]
    graph = graph_of(op, shape, [(part, kept) for part in some for kept in (True, False)])
    x = RNG.uniform(-0.3, 4, shape).astype(np.float32)
    plan = compile_plan(TracedModule.from_graph(graph))
    assert "reference" not in {step.kernel for step in plan.steps}
    for node, got, want in zip(graph.outputs, plan(x), interpret(graph, [Tensor(x)]), strict=True):
        np.testing.assert_array_equal(got, want.numpy(), err_msg=str(node.expr.inputs[0].expr))
