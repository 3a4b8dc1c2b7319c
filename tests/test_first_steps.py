"""What people try first, and what they are told: models and data of other kinds than a function takes."""

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
from megengine import plan
from megengine.convert import onnx
from megengine.core.errors import ArgumentError, DTypeError, GraphError, MissingNameError, OptionError
from megengine.quantization import QuantConfig, RangeMethod, audit, collect, quantize_model
from megengine.traced_module import optimize, trace_module

X = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def net():
    return M.Sequential(M.Conv2d(3, 4, 3), M.ReLU(), M.Conv2d(4, 2, 6)).eval()


@pytest.fixture(scope="module")
def traced(net):
    return trace_module(net, X[:1])


@pytest.fixture(scope="module")
def quantized(traced):
    return quantize_model(traced, X[:, None])


UNTRACED = "trace it first: megengine.traced_module.trace_module(model, *inputs)"
INTEGERS = "give its network in integers: model.traced()"


@pytest.mark.parametrize(
    "call",
    [
        lambda model: quantize_model(model, X[:, None]),
        lambda model: collect(model, X[:, None]),
        plan.compile,
        optimize,
        lambda model: onnx.export(model, "net.onnx"),
    ],
    ids=["quantize_model", "collect", "compile", "optimize", "export"],
)
def test_models_that_are_not_traced_are_told_how_to_be(call, net, quantized, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = "read files by megengine.load or megengine.convert.onnx.load first"
    for model, remedy in ((net, UNTRACED), (quantized, INTEGERS), ("net.onnx", files), (len, "wrap a function")):
        with pytest.raises((ArgumentError, GraphError)) as caught:
            call(model)
        assert remedy in str(caught.value)


def test_what_they_are_told_works(net, quantized, tmp_path):
    assert quantize_model(trace_module(net, *[X[:1]]), X[:, None]).report.integer_layers == 2
    assert plan.compile(quantized.traced())(X[:1])[0].shape == (1, 2, 1, 1)
    with pytest.raises(DTypeError, match=r"cannot write a QuantizedModel; .*; give its network, traced\(\)"):
        mge.save(quantized, str(tmp_path / "q.mgt"))
    mge.save(quantized.traced(), str(tmp_path / "q.mgt"))


def test_onnx_files_have_functions_of_their_own(traced, tmp_path):
    path = str(tmp_path / "net.onnx")
    with pytest.raises(OptionError, match=r"megengine\.convert\.onnx\.export writes \.onnx files"):
        mge.save(traced, path)
    onnx.export(traced, path)
    with pytest.raises(OptionError, match=r"megengine\.convert\.onnx\.load reads \.onnx files"):
        mge.load(path)
    np.testing.assert_allclose(onnx.load(path)(X[:1]).numpy(), traced(X[:1]).numpy(), rtol=1e-5, atol=1e-6)


def test_the_settings_take_the_name_of_a_way_to_choose_ranges(traced):
    assert QuantConfig(activations="kl") == QuantConfig(activations=RangeMethod("kl"))
    with pytest.raises(OptionError, match="unknown method 'msee'; .* did you mean 'mse'?"):
        QuantConfig(activations="msee")
    with pytest.raises(OptionError, match="expected a RangeMethod or its name, .* got 8"):
        QuantConfig(activations=8)
    with pytest.raises(ArgumentError, match=r"config is 'balanced'; expected a QuantConfig: .*QuantConfig\.of"):
        quantize_model(traced, X[:, None], "balanced")
    with pytest.raises(ArgumentError, match="calibration is a function; call it"):
        quantize_model(traced, lambda: X[:, None])


def test_a_traced_module_in_the_place_of_a_graph_is_named(traced, net):
    with pytest.raises(ArgumentError, match=r"audit: graph is TracedModule; expected InternalGraph"):
        audit(traced, {})
    with pytest.raises(
        AttributeError, match="module 'megengine.models' has no attribute 'resnet19'; did you mean 'resnet18'?"
    ):
        _ = mge.models.resnet19

    class Wrong(M.Module):
        def forward(self, x):
            return self.absent(x)

    with pytest.raises(MissingNameError, match="'Wrong' object has no attribute 'absent'"):  # not of an argument
        trace_module(Wrong(), X)


def test_tensors_of_torch_are_inputs(net, traced):
    torch = pytest.importorskip("torch")
    again = trace_module(net, torch.tensor(X[:1]))
    assert [one.shape for one in again.graph.inputs[1:]] == [(1, 3, 8, 8)] and str(again.graph) == str(traced.graph)
    batch = trace_module(net, X)
    pair = [quantize_model(batch, data) for data in (X, torch.tensor(X))]  # one batch, with the axes of the input
    assert str(pair[0].integer_graph) == str(pair[1].integer_graph)
    with pytest.raises(GraphError, match=r"megengine\.convert\.from_torch\(model, \*inputs\)"):
        plan.compile(torch.nn.Linear(2, 2))


def test_a_quantized_model_is_shown_in_a_line(quantized):
    assert (
        repr(quantized)
        == "QuantizedModel(Sequential: 2 layers in integers, 0 ops in float; traced() gives the network)"
    )
