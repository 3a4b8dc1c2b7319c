"""What docs/adding-an-op.md shows, run as it stands there, gives everything that the page promises."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from op_contract import check_error, check_gradient, check_reference, check_spec, check_strided

import megengine.functional as F
import megengine.module as M
from megengine.autodiff import GradManager
from megengine.convert.onnx import context, export, load, math_rules, write_rules, writing
from megengine.convert.onnx.exporter import to_model
from megengine.dispatch import ONNX_WRITER, registry, retract, undefine
from megengine.quantization import quantize_model
from megengine.tensor import Tensor, tensor
from megengine.traced_module import InternalGraph, lower, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from tests.helpers.onnx_runtime import session_of

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-op.md"
SOURCES = re.findall(r"```py(?:thon)?\n(.*?)```", PAGE.read_text(), re.DOTALL)  # an op, a reader, a writer
NAME = "thresholded_relu"


@pytest.fixture(scope="module", autouse=True)
def added():
    assert not hasattr(F, NAME)
    exec(compile(SOURCES[0], str(PAGE), "exec"), {"__name__": "megengine.ops.added"})
    yield
    undefine(NAME)
    retract(f"megengine.functional.nn.{NAME}")
    assert not hasattr(F, NAME)
    assert not hasattr(Tensor, NAME)


def x(*shape):
    return tensor(np.random.default_rng(1).uniform(-3, 3, shape))


def test_function_and_method():
    a = x(2, 3)
    expected = np.where(a.numpy() > 0.5, a.numpy(), 0)
    np.testing.assert_array_equal(F.thresholded_relu(a, 0.5).numpy(), expected)
    np.testing.assert_array_equal(F.nn.thresholded_relu(a, alpha=0.5).numpy(), expected)
    np.testing.assert_array_equal(a.thresholded_relu(0.5).numpy(), expected)


def test_contract():
    op = registry[NAME]
    for sample in op.samples():
        for check in (check_spec, check_reference, check_strided, check_gradient):
            check(op, sample)
    for case in op.error_samples():
        check_error(op, case)


def test_a_wrong_gradient_is_noticed():
    """The check can fail: a rule that is off by a factor does."""
    wrong = dataclasses.replace(registry[NAME], vjp=lambda ctx, ct: (ct,))
    with pytest.raises(AssertionError):
        for sample in wrong.samples():
            check_gradient(wrong, sample)


def test_gradient_through_a_composition():
    a = x(4)
    gm = GradManager().attach(a)
    with gm:
        gm.backward((F.thresholded_relu(a, 0.5) * 3).sum())
    np.testing.assert_array_equal(a.grad.numpy(), np.where(a.numpy() > 0.5, 3, 0))


class Net(M.Module):
    def forward(self, inp):
        return F.thresholded_relu(inp, 0.5) + 1


def traced():
    return trace_module(Net(), x(2, 3))


def test_tracing():
    net, a = traced(), x(2, 3)
    assert f"megengine.functional.nn.{NAME}" in [getattr(e, "qualified", "") for e in net.graph.exprs()]
    assert NAME in [getattr(e, "op", "") for e in lower(net).graph.exprs()]
    np.testing.assert_array_equal(net(a).numpy(), Net()(a).numpy())


def test_onnx_both_ways(tmp_path):
    pytest.importorskip("onnxruntime")
    path, a = tmp_path / "net.onnx", x(2, 3)
    export(lower(traced()), path)
    session = session_of(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: a.numpy()})
    np.testing.assert_array_equal(found, Net()(a).numpy())
    np.testing.assert_array_equal(load(path)(a).numpy(), Net()(a).numpy())


def test_integers():
    """The rule of the record is all that quantization needs: a table between two integer layers."""
    net = M.Sequential(M.Conv2d(2, 4, 3), Net(), M.Conv2d(4, 2, 1))
    images = [x(1, 2, 6, 6)]
    made = quantize_model(trace_module(net, images[0]), images)
    ops = [getattr(e, "op", "") for e in made.integer_graph.exprs()]
    assert "qtable" in ops
    assert NAME not in ops


def found(model, **inputs):
    """What ONNX Runtime computes."""
    pytest.importorskip("onnxruntime")
    session = session_of(model)
    return session.run(None, inputs)[0]


def test_the_reader_of_an_operator():
    node = onnx.helper.make_node("Selu", ["x"], ["y"], alpha=0.5)
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy"]
    graph = onnx.helper.make_graph([node], "selu", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    exec(SOURCES[1], vars(math_rules).copy())
    try:
        a = x(2, 3)
        np.testing.assert_allclose(load(model.SerializeToString())(a).numpy(), found(model, x=a.numpy()), rtol=1e-6)
    finally:
        del context.RULES["Selu"]


def test_the_writer_of_an_op(monkeypatch):
    record = dataclasses.replace(registry["expm1"], onnx=ONNX_WRITER)
    monkeypatch.setitem(registry, "expm1", record)
    exec(SOURCES[2], vars(write_rules).copy())
    try:
        graph, a = InternalGraph(name="g"), x(2, 3)
        set_outputs(graph, [graph.apply("expm1", add_input(graph, "x", a.spec), name="y")])
        np.testing.assert_allclose(found(to_model(graph), x=a.numpy()), np.expm1(a.numpy()), rtol=1e-5, atol=1e-6)
    finally:
        del writing.WRITERS["expm1"]


def test_unknown_function_gives_the_nearest_name():
    with pytest.raises(AttributeError, match="did you mean 'thresholded_relu'"):
        F.tresholded_relu
