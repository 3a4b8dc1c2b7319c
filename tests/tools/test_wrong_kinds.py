"""Arguments of a wrong kind to the functions of the tools: the error names the function and the argument."""

# pyright: reportArgumentType=false, reportCallIssue=false

import types

import numpy as np
import pytest

import megengine.module as M
from megengine import Tensor, plan, quantization, traced_module
from megengine.convert import onnx
from megengine.core.errors import MegEngineError, OptionError

X = np.random.default_rng(0).standard_normal((3, 1, 3, 6, 6)).astype(np.float32)
WRONG = [None, 3, 1.5, "x", b"x", [1], {"a": 1}, {}, object(), int, True, Tensor([1.0])]
# functions of MegEngine's modules, which refuse as layers do, and markers of the tracer
OTHERS = {"create_qparams", "fake_quant_bias", "fake_quant_tensor", "newest_opset"}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Right arguments by the name of the parameter."""
    net = M.Sequential(M.Conv2d(3, 4, 3), M.ReLU()).eval()
    traced = traced_module.trace_module(net, Tensor(X[0]))
    quantized = quantization.quantize_model(traced, X)
    path = tmp_path_factory.mktemp("kinds") / "net.onnx"
    onnx.export(traced, path)
    graphs = {"graph": quantized.float_graph, "quantized": quantized.qdq_graph, "first": quantized.float_graph}
    return {
        **graphs,
        **{"model": traced, "calibration": X, "batches": X, "samples": X, "data": X, "held_out": X, "source": path},
        **{"path": path, "net": net, "module": net, "inputs": Tensor(X[0]), "stats": quantized.stats, "q": quantized},
        **{"float_graph": quantized.float_graph, "qdq_graph": quantized.qdq_graph, "old": traced, "new": traced},
    }


CALLS = [
    (quantization.quantize_model, ["model", "batches"], ["config", "statistics", "state", "progress"]),
    (quantization.verify, ["q", "batches"], ["threads", "devices", "progress"]),
    (quantization.collect, ["model", "batches"], ["workers", "seen", "keep"]),
    (quantization.audit, ["graph", "stats"], []),
    (quantization.preview, ["model"], ["config"]),
    (quantization.prepare_qat, ["net", "inputs"], ["method", "calibration"]),
    (quantization.to_half, ["model"], []),
    (quantization.sensitivity, ["float_graph", "qdq_graph", "batches"], ["integer_graph"]),
    (quantization.diagnose, ["float_graph", "qdq_graph", "batches"], ["progress"]),
    (quantization.QuantConfig, [], ["weights", "precision", "rules", "distillation"]),
    (quantization.Budget, [], ["bytes", "latency", "agreement", "sqnr_db"]),
    (quantization.Statistics.load, ["path"], []),
    (plan.compile, ["model"], ["threads"]),
    (onnx.load, ["path"], ["input_shapes", "input_values", "example_sizes"]),
    (onnx.export, ["model", "path"], ["opset"]),
    (traced_module.open_batch, ["model"], []),
    (traced_module.lower, ["model"], []),
    (traced_module.diff, ["old", "new"], []),
]


@pytest.mark.parametrize(("function", "words", "options"), CALLS, ids=[c[0].__qualname__ for c in CALLS])
def test_no_error_from_inside(given, function, words, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of these values are paths that can be written
    right = [given[word] for word in words]
    refused = 0
    for wrong in WRONG:
        calls = [([*right[:i], wrong, *right[i + 1 :]], {}) for i in range(len(right))]
        calls += [(right, {name: wrong}) for name in options]
        for args, more in calls:
            try:
                function(*args, **more)
            except MegEngineError as error:
                refused += 1
                assert str(error), (args, more)
            except TypeError as error:  # of the wrong value itself: `int` as a function that shows progress
                assert wrong is int and "int()" in str(error), (args, more, error)
    assert refused >= len(WRONG) * (len(words) + len(options)) / 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: quantization.quantize_model(t, X, 3), r"quantize_model: config is 3; expected QuantConfig or None"),
        (lambda t: quantization.quantize_model(t, X, confg=None), r"'confg'; did you mean 'config'\?"),
        (lambda t: quantization.collect(t, None), r"collect: data is None; expected a sequence of arrays"),
        (lambda t: plan.compile(t, threads="2"), r"compile: threads is '2'; expected an integer, at least 1"),
        (lambda t: onnx.export(t, None), r"export: path is None; expected (a string or Path|Path or a string)"),
        (lambda t: quantization.QuantConfig(distillation=None), r"QuantConfig: distillation is None; expected an int"),
        (lambda t: t.graph.get_node_by_name(3), r"get_node_by_name: name is 3; expected a string or None"),
    ],
)
def test_the_argument_is_named(given, call, message):
    with pytest.raises(OptionError, match=message):
        call(given["model"])


def test_errors_of_the_callers_own_functions_stay_theirs(given):
    def progress(*_):
        raise AttributeError("mine")

    with pytest.raises(AttributeError, match="^mine$"):
        quantization.quantize_model(given["model"], X, progress=progress)


@pytest.mark.parametrize("module", [quantization, plan, onnx], ids=lambda m: m.__name__)
def test_all_functions_of_a_module_do_so(module):
    functions = {name: getattr(module, name) for name in module.__all__}
    bare = {n for n, f in functions.items() if isinstance(f, types.FunctionType) and not hasattr(f, "__wrapped__")}
    assert bare <= OTHERS, bare - OTHERS
