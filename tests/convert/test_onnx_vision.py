"""Sampling, regions, windows and normalisations of ONNX beside its runtime, and what of them is refused."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from megengine.convert.onnx import load_graph
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from tests.helpers.onnx_runtime import answers, session_of

runtime = pytest.importorskip("onnxruntime")

X = "float[2,4,5,6] x"
MODELS = {
    "grid": "g (float[2,3,5,6] x, float[2,4,3,2] p) => (float[2,3,4,3] y) {"
    " y = GridSample <mode = 'bilinear'> (x, p) }",
    "response": f"g ({X}) => ({X[:-1]}y) {{ y = LRN <size = 3, alpha = 0.5, beta = 0.6, bias = 1.5> (x) }}",
    "length": f"g ({X}) => ({X[:-1]}y) {{ y = LpNormalization <axis = 1, p = 1> (x) }}",
    "regions": """g (float[2,4,5,6] x, float[3,4] r) => (float[3,4,2,3] y) {
        i = Constant <value = int64[3] {1, 0, 1}> ()
        y = RoiAlign <output_height = 2, output_width = 3, sampling_ratio = 2, spatial_scale = 0.5> (x, r, i)
    }""",
    "small_regions": """g (float[2,4,5,6] x, float[3,4] r) => (float[3,4,2,3] y) {
        i = Constant <value = int64[3] {1, 0, 1}> ()
        y = RoiAlign <output_height = 2, output_width = 3, sampling_ratio = 1,
                      coordinate_transformation_mode = 'output_half_pixel'> (x, r, i)
    }""",
    "largest_regions": """g (float[2,4,5,6] x, float[3,4] r) => (float[3,4,2,3] y) {
        i = Constant <value = int64[3] {1, 0, 1}> ()
        y = RoiAlign <output_height = 2, output_width = 3, sampling_ratio = 2, mode = 'max'> (x, r, i)
    }""",
    "columns": """g (float[1,12,8] x) => (float[1,2,5,4] y) {
        size = Constant <value = int64[2] {5, 4}> ()
        window = Constant <value = int64[2] {2, 3}> ()
        y = Col2Im (x, size, window)
    }""",
    "columns_side_by_side": """g (float[1,12,4] x) => (float[1,2,5,5] y) {
        size = Constant <value = int64[2] {5, 5}> ()
        window = Constant <value = int64[2] {2, 3}> ()
        y = Col2Im <strides = [2, 3], pads = [0, 1, 0, 1]> (x, size, window)
    }""",
    "columns_apart": """g (float[1,12,9] x) => (float[1,2,5,6] y) {
        size = Constant <value = int64[2] {5, 6}> ()
        window = Constant <value = int64[2] {2, 3}> ()
        y = Col2Im <strides = [2, 2], pads = [1, 0, 0, 1], dilations = [1, 1]> (x, size, window)
    }""",
}


def parsed(text):
    text = text.replace("'", '"')
    return onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>\n' + text)


def inputs_of(model):
    rng = np.random.default_rng(5)
    shapes = ([d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input)
    return [rng.uniform(-1.3, 3, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_the_runtime(name):
    model = parsed(MODELS[name])
    if name == "grid":
        model.opset_import[0].version = 16
    arrays = inputs_of(model)
    if "regions" in name:
        arrays[1] = np.array([[0, 1, 4, 3], [-2, -3, 9, 8], [3, 3, 3.5, 3.2]], np.float32)
    session = session_of(model)
    wanted = session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))
    graph = load_graph(model.SerializeToString())
    graph.lint()
    for got, want in zip(interpret(graph, arrays), wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_batch_norm_in_training():
    rng = np.random.default_rng(0)
    node = onnx.helper.make_node(
        "BatchNormalization", list("xsbmv"), ["y", "mean", "var"], training_mode=1, momentum=0.7, epsilon=1e-2
    )
    arrays = [rng.uniform(0.5, 2, s).astype(np.float32) for s in ((3, 4, 5), *[(4,)] * 4)]
    infos = [onnx.helper.make_tensor_value_info(n, 1, a.shape) for n, a in zip("xsbmv", arrays, strict=True)]
    outs = [onnx.helper.make_tensor_value_info(n, 1, None) for n in node.output]
    graph = onnx.helper.make_graph([node], "g", infos, outs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    wanted = ReferenceEvaluator(model).run(None, dict(zip("xsbmv", arrays, strict=True)))
    for got, want in zip(interpret(load_graph(model.SerializeToString()), arrays), wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "old", "new", "match"),
    [
        ("grid", "'bilinear'", "'spline'", "mode 'spline', padding_mode 'zeros'; expected of"),
        ("response", "size = 3", "size = 0", "size is 0, its input"),
        ("length", "p = 1", "p = 3", "p is 3; expected 1 or 2"),
        ("regions", "sampling_ratio = 2", "mode = 'max'", "mode is 'max', sampling_ratio 0; supported are avg and max"),
    ],
)
def test_what_is_refused(name, old, new, match):
    with pytest.raises(FileFormatError, match=match):
        load_graph(parsed(MODELS[name].replace(old, new)).SerializeToString())


OPEN = {
    "regions": """g (float[b,4,h,w] x, float[n,4] r, int64[n] i) => (float[n,4,2,3] y) {
        y = RoiAlign <output_height = 2, output_width = 3, sampling_ratio = 2, spatial_scale = 0.5> (x, r, i)
    }""",
    "pieces": """g (float[b,t,1] x) => (float[b,p,9,2] y) {
        hop = Constant <value = int64 {5}> ()
        size = Constant <value = int64 {16}> ()
        y = STFT <onesided = 1> (x, hop, , size)
    }""",
}
CALLS = {
    "regions": [((2, 4, 5, 6), (3, 4), (3,)), ((1, 4, 20, 9), (1, 4), (1,))],
    "pieces": [((1, 40, 1),), ((3, 16, 1),), ((2, 33, 1),)],
}


@pytest.mark.parametrize("name", OPEN)
def test_samples_and_pieces_of_open_sizes(name):
    model = parsed(OPEN[name])
    session, graph = session_of(model), load_graph(model.SerializeToString())
    again = load_graph(to_model(graph).SerializeToString())
    for shapes in CALLS[name]:
        rng = np.random.default_rng(0)
        arrays = [rng.uniform(-1, 9, shape).astype(np.float32) for shape in shapes]
        if name == "regions":
            arrays[2] = np.arange(len(arrays[2])) % len(arrays[0])
        (wanted,) = answers(session, arrays)
        for one in (graph, again):
            (got,) = interpret(one, [Tensor(a, dtype=a.dtype) for a in arrays])
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=2e-4)


def test_offsets_of_a_convolution_want_equal_padding():
    text = """g (float[1,1,4,4] x, float[1,1,2,2] w, float[1,8,4,4] o) => (float[1,1,4,4] y) {
        y = DeformConv <pads = [0, 0, 1, 1]> (x, w, o)
    }"""
    model = parsed(text)
    model.opset_import[0].version = 19
    with pytest.raises(FileFormatError, match="supported is the same padding at both ends"):
        load_graph(model.SerializeToString())


@pytest.mark.parametrize(
    ("shape", "factors", "op"),
    [
        ("1,3,4,5", "1,1,2,2", "Resize"),
        ("b,3,h,w", "1,1,2,3", "Resize"),
        ("2,3,7", "1,1,2", "Resize"),
        ("1,2,3,4,5", "1,1,2,1,3", "Resize"),
        ("2,3", "2,3", "Expand"),  # batch and channels are no picture
    ],
)
def test_nearest_elements_are_written_as_they_were_read(shape, factors, op):
    """Runtimes have kernels of Resize in integers, of repetitions only step by step."""
    count = len(factors.split(","))
    model = parsed(
        f"g (float[{shape}] x) => (float[{','.join('abcde'[:count])}] y) {{"
        f" s = Constant <value = float[{count}] {{{factors}}}> ()"
        " y = Resize <mode = 'nearest', coordinate_transformation_mode = 'asymmetric', nearest_mode = 'floor'> (x, , s)"
        " }"
    )
    again = to_model(load_graph(model.SerializeToString()))
    assert (
        op in {n.op_type for n in again.graph.node} <= {op, "Reshape", "Constant", "Shape", "Concat", "Mul", "Gather"}
    )
    x = np.random.default_rng(0).standard_normal([int(n) if n.isdigit() else 4 for n in shape.split(",")])
    (wanted,), (got,) = (answers(session_of(one), [x.astype(np.float32)]) for one in (model, again))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("height", [8, "height"])
def test_files_of_torch_mean_whole_lengths_between_aligned_corners(mode, height):
    """The cases of the standard have exact ones: 8 * 0.6 - 1 = 3.8 steps where torch, and ONNX Runtime, have 3."""
    model = parsed(f"""g (float[1,2,{height},9] x) => (float[1,2,m,n] y) {{
        scales = Constant <value = float[4] {{1.0, 1.0, 0.6, 1.7}}> ()
        y = Resize <mode = '{mode}', coordinate_transformation_mode = 'align_corners',
                    cubic_coeff_a = -0.75> (x, , scales) }}""")
    model.producer_name = "pytorch"
    graph = load_graph(model)
    for rows in (8,) if height == 8 else (8, 13):
        x = np.random.default_rng(rows).standard_normal((1, 2, rows, 9)).astype(np.float32)
        (wanted,) = answers(session_of(model), [x])
        (made,) = interpret(graph, [Tensor(x)])
        np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-4, atol=1e-5)
