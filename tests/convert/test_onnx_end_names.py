"""Names of inputs and results in files that are read and written again."""

import numpy as np
import onnx
import pytest
from onnx import parser

from megengine.convert.onnx import export, export_qdq, load, load_graph
from megengine.convert.onnx.exporter import to_model
from megengine.quantization import quantize_model, to_half
from megengine.traced_module import optimize, trace_module
from megengine.traced_module.formats import native as files
from megengine.traced_module.source import save_source
from tests.helpers.onnx_runtime import session_of

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 3, 6, 6] picture, float[4, 3, 3, 3] weight) => (float[N, 4, 4, 4] scores, float[N, 4, 1, 1] total)
{
    filtered = Conv (picture, weight)
    scores = Relu (filtered)
    total = GlobalAveragePool (scores)
}
"""
NAMES = {"picture": "gpu_0/data:0", "scores": "42", "total": "the total"}


@pytest.fixture
def model():
    """A network whose ends have names that are no identifiers, and whose nodes have others."""
    proto = parser.parse_model(NET)
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    del proto.graph.input[1]
    for place, node in enumerate(proto.graph.node):
        node.name = ("/body/Conv", "scores", "/pool/Mean")[place]
        node.input[:] = [NAMES.get(name, name) for name in node.input]
        node.output[:] = [NAMES.get(name, name) for name in node.output]
    for item in (*proto.graph.input, *proto.graph.output):
        item.name = NAMES.get(item.name, item.name)
    return proto


def ends(source):
    proto = source if isinstance(source, onnx.ModelProto) else onnx.load(source)
    return [[item.name for item in items] for items in (proto.graph.input, proto.graph.output)]


def run(source, x):
    return session_of(source).run(["the total", "42"], {"gpu_0/data:0": x})


def test_programs_that_ask_by_name_go_on_to_work(model, tmp_path):
    x = np.random.default_rng(1).standard_normal((2, 3, 6, 6)).astype(np.float32)
    net = load(model)
    export(net, tmp_path / "float.onnx")
    quantized = quantize_model(net, [x])
    export_qdq(quantized, tmp_path / "qdq.onnx")
    export(quantized.integer_graph, tmp_path / "integers.onnx")
    expected = run(model, x)
    for name, allowed in (("float", 1e-5), ("qdq", 0.3), ("integers", 0.3)):
        path = tmp_path / f"{name}.onnx"
        assert ends(path) == ends(model)
        for mine, theirs in zip(run(path, x), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=allowed)
        export(load_graph(path), tmp_path / "again.onnx")
        assert ends(tmp_path / "again.onnx") == ends(model)
        assert not onnx.load(path).metadata_props


def test_names_go_through_files_and_edits(model, tmp_path):
    net = load(model)
    files.save(net, tmp_path / "net.mgt")
    again = files.load(tmp_path / "net.mgt")
    graph = again.graph
    graph.rename(graph.outputs[1], "mean")
    export(again, tmp_path / "net.onnx")
    assert ends(tmp_path / "net.onnx") == [["gpu_0/data:0"], ["42", "mean"]]
    graph.reset_outputs(graph.outputs[0])
    export(again, tmp_path / "net.onnx")
    assert ends(tmp_path / "net.onnx") == [["gpu_0/data:0"], ["42"]]


def test_source_does_not_warn_of_names(model, tmp_path, caplog):
    save_source(load(model), tmp_path / "net.py")
    assert not caplog.records


def test_a_value_inside_makes_room():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[2] x, bool c) => (float[2] inner, float[2] y)
        {
            inner_1 = Exp (x)
            y = If (c) <then_branch = a () => (float[2] r) { r = Neg (inner_1) },
                        else_branch = b () => (float[2] s) { s = Abs (x) }>
            inner = Neg (y)
        }""")
    for node, name in zip(proto.graph.node, ("inner", "x", "y"), strict=True):
        node.name = name
    made = to_model(load_graph(proto))
    assert ends(made) == ends(proto)
    given = {"x": np.array([1, -2], np.float32), "c": np.array(True)}
    results = [session_of(m).run(None, given) for m in (made, proto)]
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_results_that_are_constants():
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[2] x) => (int64[1] length, float[2] y, float[2] table)
        {
            length = Shape (x)
            table = Constant <value = float[2] {1, 2}> ()
            y = Add (x, table)
        }""")
    made = to_model(load_graph(proto))
    assert ends(made) == ends(proto)
    given = {"x": np.array([1, -2], np.float32)}
    for a, b in zip(session_of(made).run(None, given), session_of(proto).run(None, given), strict=True):
        np.testing.assert_array_equal(a, b)


def test_products_with_a_bias_keep_their_names():
    """Gemm is a product and a sum here: read, written and read again both are called as before."""
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[2, 3] x) => (float[2, 3] y)
        <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] b = {1, 2, 3}>
        {
            h = Gemm (x, w, b)
            y = Gemm (h, w, b)
        }""")
    for node, name in zip(proto.graph.node, ("first", "last"), strict=True):
        node.name = name
    once = to_model(load(proto))
    assert [node.name for node in once.graph.node] == ["first", "last"]
    assert to_model(load(once)).SerializeToString() == once.SerializeToString()


LAST_OPS = {
    "a batch norm": "w = Conv (x, k) y = BatchNormalization (w, c, c, c, c)",
    "a factor": "w = Conv (x, k) y = Mul (w, one)",
    "an activation": "w = Conv (x, k) s = Sigmoid (w) y = Mul (w, s)",
    "a residual sum": "w = Conv (x, k) s = Add (w, x) y = Relu (s)",
    "a product and a sum": "w = MatMul (x, m) s = Mul (w, c) y = Add (s, c)",
    "a sum in front of a product": "w = Mul (x, c) s = Add (w, c) y = MatMul (s, m)",
    "a normalisation": "w = MatMul (x, m) y = LayerNormalization (w, c, c)",
}


@pytest.mark.parametrize("last", LAST_OPS)
def test_results_of_ops_that_others_take_the_place_of(last):
    """Folding and naming put other nodes there: quantized files are asked for the same names as the float one."""
    ops = LAST_OPS[last]
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[2, 2, 3, 2] x) => (float[2, 2, 3, 2] y)
        <float[2] c = {{1, 2}}, float one = {{1}}, float[2, 2] m = {{1, 2, 3, 4}}, float[2, 2, 1, 1] k = {{1, 2, 3, 4}}>
        {{ {ops} }}""")
    net, x = load(proto), np.random.default_rng(0).standard_normal((2, 2, 3, 2)).astype(np.float32)
    quantized = quantize_model(net, [x])
    for made in (quantized.exchange_graph(), quantized.traced(), to_half(net, "float16"), optimize(net, "all")):
        assert ends(to_model(made)) == [["x"], ["y"]]
    net.graph.outputs[0].name = "probability"
    assert ends(to_model(quantize_model(net, [x]).exchange_graph())) == [["x"], ["probability"]]


def test_a_result_that_cannot_have_its_name_takes_none_from_others():
    """An input that is a result, too: a file that is written has another value for it."""
    net = load(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[2, 3] x) => (float[2, 3] y, float[2, 3] x) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
        { y = MatMul (x, w) }""")
    )
    quantized = quantize_model(net, [np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)])
    for made in (net, quantized.exchange_graph(), quantized.integer_graph):
        (names, results) = ends(to_model(made))
        assert (names, results[0]) == (["x"], "y")


@pytest.mark.parametrize("name", ["scores", "the total:0"])
def test_results_of_a_network_that_is_traced_for_edits(name):
    """The graph of calls has the names, and its ops have others; a result that is renamed has the new name."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> n (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }'
    )
    proto.graph.node[0].output[0] = proto.graph.output[0].name = name
    net = trace_module(load(proto), np.zeros((2, 3), np.float32))
    assert ends(to_model(net)) == [["x"], [name]]
    net.graph.rename(net.graph.outputs[0], "heat")
    assert ends(to_model(net)) == [["x"], ["heat"]]


STORED = ("[", "[]", '{"inputs": 3}', '{"outputs": [["y"]]}', '{"inputs": {"x": "y"}}', "[" * 9999)


@pytest.mark.parametrize("stored", STORED)
def test_metadata_that_somebody_else_wrote(stored):
    graph = load_graph(
        parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> n (float[2] x) => (float[2] y) { y = Exp (x) }')
    )
    graph.metadata["onnx.names"] = stored
    assert ends(to_model(graph)) == [["x"], ["y"]]


MOVED = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2, 3] x) => (float[2, 3] gates, float[3, 2] steps) <float scale = {0.25}, uint8 zero = {0}>
{
    gates = Sigmoid (x)
    turned = Transpose <perm = [1, 0]> (gates)
    codes = QuantizeLinear (turned, scale, zero)
    steps = DequantizeLinear (codes, scale, zero)
}
"""


def test_a_result_that_is_turned_and_quantized_keeps_its_values():
    """ONNX Runtime 1.32 gives the quantized values in its place unless it has a name of its own."""
    graph = load_graph(parser.parse_model(MOVED))
    made = to_model(graph)
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    gates, steps = session_of(made).run(["gates", "steps"], {"x": x})
    np.testing.assert_allclose(gates, 1 / (1 + np.exp(-x)), rtol=1e-6)
    np.testing.assert_array_equal(steps, np.rint(gates.T * 4) / 4)
    again = to_model(load_graph(made))
    assert ends(again) == ends(made) == [["x"], ["gates", "steps"]]
    assert [n.op_type for n in again.graph.node] == [n.op_type for n in made.graph.node]
