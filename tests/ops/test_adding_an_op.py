"""The one file that docs/adding-an-op.md shows, run as it stands there, gives everything that the page promises."""

import re
from pathlib import Path

import numpy as np
import pytest
from op_contract import check_error, check_gradient, check_reference, check_spec, check_strided

import megengine.functional as F
import megengine.module as M
from megengine.autodiff import GradManager
from megengine.dispatch import registry, retract, undefine
from megengine.tensor import Tensor, tensor

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-op.md"
NAME = "thresholded_relu"


@pytest.fixture(scope="module", autouse=True)
def added():
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert not hasattr(F, NAME)
    exec(compile(source, str(PAGE), "exec"), {"__name__": "megengine.ops.added"})
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
    import dataclasses

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
    from megengine.traced_module import trace_module

    return trace_module(Net(), x(2, 3))


def test_tracing():
    from megengine.traced_module import lower

    net, a = traced(), x(2, 3)
    assert f"megengine.functional.nn.{NAME}" in [getattr(e, "qualified", "") for e in net.graph.exprs()]
    assert NAME in [getattr(e, "op", "") for e in lower(net).graph.exprs()]
    np.testing.assert_array_equal(net(a).numpy(), Net()(a).numpy())


def test_onnx_both_ways(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from megengine.convert.onnx import export, load
    from megengine.traced_module import lower

    path, a = tmp_path / "net.onnx", x(2, 3)
    export(lower(traced()), path)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: a.numpy()})
    np.testing.assert_array_equal(found, Net()(a).numpy())
    np.testing.assert_array_equal(load(path)(a).numpy(), Net()(a).numpy())


def test_unknown_function_gives_the_nearest_name():
    with pytest.raises(AttributeError, match="did you mean 'thresholded_relu'"):
        F.tresholded_relu
