"""What Keras's and TensorFlow's exporters write beside the standard."""

import math

import numpy as np
from onnx import helper, numpy_helper

from megengine.convert.onnx import load
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.passes.activations import name_activations


def test_gelu_by_erfc_is_gelu():
    """x / 2 * erfc(-x / sqrt(2)); the standard has no Erfc."""
    node = helper.make_node
    nodes = [
        *(node("Mul", ["half", "x"], ["part"]), node("Neg", ["x"], ["back"]), node("Mul", ["back", "root"], ["far"])),
        *(node("Erfc", ["far"], ["share"]), node("Mul", ["part", "share"], ["y"])),
    ]
    numbers = [numpy_helper.from_array(np.float32(n), name) for name, n in (("half", 0.5), ("root", math.sqrt(0.5)))]
    ends = [[helper.make_tensor_value_info(name, 1, [None, 7])] for name in "xy"]
    graph = helper.make_graph(nodes, "net", *ends, numbers)
    net = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8))
    x = np.linspace(-6, 6, 21, dtype=np.float32).reshape(3, 7)
    wanted = [[0.5 * v * math.erfc(-v / math.sqrt(2)) for v in row] for row in x.tolist()]
    np.testing.assert_allclose(net(x).numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert name_activations(net.graph)
    assert [expr.op for expr in net.graph.exprs() if isinstance(expr, Apply)] == ["gelu"]
    np.testing.assert_allclose(net(x).numpy(), wanted, rtol=1e-5, atol=1e-6)
