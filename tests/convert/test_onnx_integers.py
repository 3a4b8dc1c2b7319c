"""Integer networks as ONNX's integer operators: ONNX Runtime gives every value of the specification."""

import numpy as np
import pytest

import megengine.functional  # noqa: F401
from megengine.convert.onnx import export, load
from megengine.convert.onnx.exporter import to_model
from megengine.core.dtype import QuantizedDType
from megengine.dispatch import OnnxWriter, apply, registry
from megengine.quantization import QuantConfig, quantize_model
from megengine.tensor import Tensor
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.graph import InternalGraph
from tests.helpers.onnx_runtime import session_of
from tests.helpers.quant_nets import Builder, concat_net, gated_net, residual_net, signed_net, transposed_net

runtime = pytest.importorskip("onnxruntime")


def samples_of(name):
    """The samples with quantized tensors; some ops compute floats too."""
    for sample in registry[name].samples():
        if any(isinstance(a, Tensor) and isinstance(a.dtype, QuantizedDType) for a in sample.inputs):
            yield sample


INTEGER = sorted(
    name
    for name, op in registry.items()
    if op.needs_specs and isinstance(op.onnx, OnnxWriter) and any(samples_of(name))
)


def stored(value):
    return np.asarray(value._storage() if isinstance(value, Tensor) else value)


def run(proto, given):
    session = session_of(proto, log_severity_level=3)
    return session.run(None, {i.name: stored(v) for i, v in zip(session.get_inputs(), given, strict=True)})


def of_sample(name, sample, opset):
    """The model of one op, and its computed inputs: 8-bit tensors of several axes; the others are stored."""
    g = InternalGraph("net")
    tensors = [a if isinstance(a, Tensor) else Tensor._wrap(np.asarray(a)) for a in sample.inputs]
    computed = [isinstance(t.dtype, QuantizedDType) and t.dtype.storage.itemsize == 1 for t in tensors]
    nodes = [
        add_input(g, f"x{i}", t.spec) if given else g.constant(t, name=f"c{i}")
        for i, (t, given) in enumerate(zip(tensors, computed, strict=True))
    ]
    set_outputs(g, [g.apply(name, *nodes, attrs=dict(sample.attrs), name="y")])
    wanted = apply(name, *tensors, **sample.attrs)
    return to_model(g, opset=opset), [t for t, given in zip(tensors, computed, strict=True) if given], wanted


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("name", INTEGER)
def test_an_integer_op_gives_the_values_of_its_reference(name, opset):
    for sample in samples_of(name):
        proto, given, wanted = of_sample(name, sample, opset)
        (got,) = run(proto, given)
        assert got.dtype == stored(wanted).dtype
        np.testing.assert_array_equal(got, stored(wanted))


@pytest.mark.parametrize("profile", ["x86", "onnx-qlinear"])
@pytest.mark.parametrize("net", [residual_net, concat_net, gated_net, transposed_net, signed_net])
def test_a_network_in_integer_operators_gives_the_integer_networks_values(net, profile, tmp_path):
    b, graph = net()
    model = quantize_model(graph, b.data(), QuantConfig(profile=profile))
    for x in b.data(3, seed=7):
        (got,) = run(to_model(model.integer_graph), [x])
        np.testing.assert_array_equal(got, stored(model(x)))
    export(model.integer_graph, tmp_path / "integers.onnx")
    np.testing.assert_allclose(load(tmp_path / "integers.onnx")(x).numpy(), got, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("name", ["pool", "average", "border", "products", "table", "total", "choice", "largest"])
def test_values_of_16_bits(name, weights):
    """Products of them are sums of products of their halves; what moves them may have no int16."""
    b = Builder()
    x = b.relu(b.conv(b.x, 4, label="stem"), label="act")
    window = {"kernel": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0))}
    middle = {
        "pool": lambda: b.conv(b.op("max_pool2d", x, **window), 4, 1, label="last"),
        "average": lambda: b.conv(b.op("avg_pool2d", x, count_include_pad=True, **window), 4, 1, label="last"),
        "border": lambda: b.transposed(x, 4),
        "products": lambda: b.op("matmul", x, b.conv(x, 4, 1, label="right"), transpose_a=True, transpose_b=False),
        "table": lambda: b.conv(b.op("sigmoid", b.conv(x, 4, 1)), 4, 1, label="last"),
        "total": lambda: b.op("sum", b.conv(x, 4, 1), axis=(2, 3), keepdims=False),
        "largest": lambda: b.conv(b.op("max", x, axis=(1,), keepdims=True), 4, 1, label="last"),
        "choice": lambda: b.conv(b.op("where", mask, x, b.conv(x, 4, 1)), 4, 1, label="last"),
    }
    mask = b.g.constant(np.arange(4).reshape(1, 4, 1, 1) % 2 > 0)
    graph = b.done(b.linear(b.op("reshape", middle[name](), shape=(2, -1)), 3, label="logits"), x)
    model = quantize_model(graph, b.data(), QuantConfig(precision="w8a16", weights=weights))
    x = b.data(1, seed=7)[0]
    for got, wanted in zip(run(to_model(model.integer_graph), [x]), model(x), strict=True):
        np.testing.assert_array_equal(got, stored(wanted))
