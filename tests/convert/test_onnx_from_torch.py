"""Files that PyTorch's two exporters wrote: the same outputs, quantized exactly, written as QDQ for other runtimes."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.utils
import pytest

from megengine.convert import onnx as mge_onnx
from megengine.convert.onnx.exporter import to_model
from megengine.quantization import QuantConfig, integer_network, quantize_model
from megengine.quantization.checks.verify import specification, verify
from megengine.traced_module.ir.expr import Apply, Constant
from tests.helpers.onnx_runtime import session_of

FOLDER = Path(__file__).parent.parent / "data" / "onnx"
EXPECTED = np.load(FOLDER / "expected.npz")
FILES = sorted(path.name for path in FOLDER.glob("*.onnx"))


def test_six_networks_from_both_exporters():
    assert len(FILES) == 12 and {name.split("_")[0] for name in FILES} == set(EXPECTED.files) - {"x"}


def wanted(name):
    return EXPECTED[name.split("_")[0]]


@pytest.mark.parametrize("name", FILES)
def test_outputs_are_torchs(name):
    got = mge_onnx.load(FOLDER / name)(EXPECTED["x"]).numpy()
    assert got.shape == wanted(name).shape
    np.testing.assert_allclose(got, wanted(name), rtol=1e-4, atol=2e-5 * np.abs(wanted(name)).max())


@pytest.fixture(scope="module", params=FILES)
def quantized(request):
    rng = np.random.default_rng(0)
    data = [(EXPECTED["x"],), *((rng.standard_normal((1, 3, 32, 32)).astype(np.float32),) for _ in range(3))]
    return request.param, quantize_model(mge_onnx.load(FOLDER / request.param), data, QuantConfig())


def test_quantized_it_is_exact_and_close(quantized):
    name, model = quantized
    result = verify(model, [(EXPECTED["x"],)])
    assert result.exact, json.dumps(result.to_json())
    assert result.float_largest <= 1
    assert model.report.integer_layers >= 3
    error = model(EXPECTED["x"]).numpy() - wanted(name)
    assert np.square(error).sum() < 0.02 * np.square(wanted(name)).sum()  # 17 dB


def test_qdq_export_runs_in_onnxruntime(quantized, tmp_path):
    pytest.importorskip("onnxruntime")
    name, model = quantized
    mge_onnx.export_qdq(model, tmp_path / "qdq.onnx")
    session = session_of(tmp_path / "qdq.onnx")
    got = session.run(None, {session.get_inputs()[0].name: EXPECTED["x"]})[0]
    error = got - model(EXPECTED["x"]).numpy()
    assert np.square(error).sum() < 0.01 * np.square(wanted(name)).sum()  # 20 dB


def integers_of(graph):
    """Ops with their attributes and the bytes of their constants, in order."""
    for expr in graph.exprs():
        if isinstance(expr, Apply):
            stored = (n.expr.value._storage().tobytes() for n in expr.inputs if isinstance(n.expr, Constant))
            yield expr.op, expr.attrs, list(stored)


def test_a_qdq_file_read_again_gives_the_same_integer_network(quantized, tmp_path):
    _, model = quantized
    mge_onnx.export_qdq(model, tmp_path / "qdq.onnx")
    again = integer_network(mge_onnx.load_graph(tmp_path / "qdq.onnx")).graph
    assert list(integers_of(again)) == list(integers_of(model.integer_graph))


# what ONNX Runtime leaves in float between integers, and convolutions whose result goes on in float
FLOATS = {
    "squeezeexcite": {"HardSigmoid", "Mul"},
    "transformer": {"LayerNormalization", "Mul", "ReduceMean"},
    "unet": {"Conv", "ConvTranspose", "Resize"},
}


def test_onnxruntimes_optimiser_leaves_no_pair_around_layers(quantized, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    name, model = quantized
    mge_onnx.export_qdq(model, tmp_path / "qdq.onnx")
    level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session_of(
        tmp_path / "qdq.onnx", optimized_model_filepath=str(tmp_path / "optimised.onnx"), graph_optimization_level=level
    )
    nodes = onnx.load(tmp_path / "optimised.onnx").graph.node
    real = {out for node in nodes if node.op_type == "DequantizeLinear" for out in node.output}
    assert {node.op_type for node in nodes if real & set(node.input)} == FLOATS.get(name.split("_")[0], set())


def pieces(proto):
    """Every quantized value of a QDQ file, with the part of the file that makes it from quantized values.

    Pairs inside one integer op belong to the part.
    """
    proto = onnx.shape_inference.infer_shapes(proto)
    makers = {out: node for node in proto.graph.node for out in node.output}
    inside = {n.output[0] for n in proto.graph.node if any(p.key == "mge.inside" for p in n.metadata_props)}
    quantizers = (node.output[0] for node in proto.graph.node if node.op_type == "QuantizeLinear")
    for target in (name for name in quantizers if name not in inside):
        sources, stack = [], [makers[target].input[0]]
        while stack:
            at = stack.pop()
            maker = makers.get(at)
            pair = maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] not in inside
            before = pair and makers.get(maker.input[0])
            if before:
                sources.append(maker.input[0])
            elif maker is not None:
                stack.extend(maker.input)
            elif any(at == given.name for given in proto.graph.input):
                sources.append(at)
        part = onnx.utils.Extractor(proto).extract_model(sorted(set(sources)), [target])
        yield target, part


def test_every_node_of_a_qdq_file_is_at_most_a_step_away_in_onnxruntime(quantized):
    pytest.importorskip("onnxruntime")
    name, model = quantized
    values = specification(model.integer_graph, [EXPECTED["x"]])

    def integers(edge):
        return next((values[n] for n in (edge, f"{edge.removesuffix('_q')}_int") if n in values), None)

    compared = 0
    for target, part in pieces(to_model(model.exchange_graph())):
        want, given = integers(target), {i.name: integers(i.name) for i in part.graph.input}
        if want is None or any(v is None for v in given.values()):
            continue  # an edge inside one integer op, or a scale shared with another
        session = session_of(part)
        got = session.run(None, given)[0]
        assert np.abs(got.astype(np.int32) - want).max() <= 1, (name, target)
        compared += 1
    assert compared >= 3
