"""Single nodes: what is wrong with them is said, quantized operators, types of inputs, random numbers."""

import logging
import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from megengine.convert.onnx import load_graph
from megengine.convert.onnx.bodies import body_of
from megengine.convert.onnx.importer import LISTED
from megengine.core.errors import FileFormatError
from megengine.quantization import quantize_model, verify
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, interpret
from tests.helpers.onnx_runtime import session_of


def model(nodes, inputs, stored=None, opset=20, outputs=("y",)):
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
        for n, (dtype, shape) in inputs.items()
    ]
    arrays = [numpy_helper.from_array(np.asarray(v), n) for n, v in (stored or {}).items()]
    results = [onnx.ValueInfoProto(name=n) for n in outputs]
    graph = helper.make_graph(nodes, "net", infos, results, arrays)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def one(op, inputs, stored=None, opset=20, **attrs):
    names = [*inputs, *(stored or {})]
    return model([helper.make_node(op, names, ["y"], "it", **attrs)], inputs, stored, opset)


X = {"x": ("f4", (2, 3, 4))}
S, Z, HALF = np.float32(0.03), np.uint8(120), np.float32(0.5)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (one("TopK", X, {"k": ints(5)}), r"k is \(5,\); expected 0 to 4"),
        (one("OneHot", X, {"d": ints(-1), "v": ints(0, 1)}), r"its depth is \(-1,\); expected one number of classes"),
        (one("Softmax", {"x": ("i8", (2,))}), "its input is int64; expected real numbers, .* put a Cast to float"),
        (one("EyeLike", X), r"its input is \(2, 3, 4\); expected a matrix"),
        (one("EyeLike", {"x": ("f4", (2, 3))}, dtype=TensorProto.STRING), "has the data type STRING, which is not"),
        (one("Compress", X, {"c": np.ones(9, bool)}, axis=1), "its condition has 9 values for an axis of 3"),
        (
            one("ReverseSequence", X, {"l": ints(1)}, batch_axis=2),
            "its time axis is 0 and its batch axis 2;",
        ),
        (one("Tile", X, {"r": ints(2)}), r"its repeats are \(2,\); expected 3 numbers from 0 on"),
        (
            one("Cast", X, to=TensorProto.FLOAT8E5M2),
            "has the data type FLOAT8E5M2, which is not supported",
        ),
        (one("Cast", X, to=99), "has the data type 99, which is not supported"),
        (
            one("CenterCropPad", X, {"s": ints(2, 2)}),
            r"its shape is \(2, 2\); expected a length for each of axes \(0, 1, 2\)",
        ),
        (one("Pad", X, {"p": ints(0, 0, 0, 1, 1, 1)}, mode="mirror"), "mode 'mirror' is not supported; expected const"),
        (one("Resize", X, {"r": [], "s": ints(1, 1, 1)}, mode="area"), "mode 'area', coordinates 'half_pixel' or"),
        (one("ScatterElements", X, {"i": ints(0), "u": np.ones(1, "f4")}), r"the index has shape \(1,\)"),
        (one("QuantizeLinear", X, {"s": np.ones(5, "f4")}, axis=1), "5 scales for an axis of 3"),
        (
            one("QuantizeLinear", X, {"s": np.ones((2, 2, 4), "f4")}, block_size=4),
            r"scales \(2, 2, 4\) for blocks of",
        ),
        (one("DFT", X), r"its axis is 1 of shape \(2, 3, 4\); expected one in front of the last, which has 1 or 2"),
        (one("STFT", {"x": ("f4", (1, 8))}, {"h": ints(0)}), r"pieces of 8 at every 0 of a signal \(1, 8\)"),
        (
            one("ConstantOfShape", {"x": ("i8", (2,))}),
            "its shape is computed at run time from 'x'; expected a constant: .*input_values=",
        ),
    ],
)
def test_what_is_wrong_with_a_node_is_said(made, said):
    with pytest.raises(FileFormatError, match=f"'it'.*{said}"):
        load_graph(made.SerializeToString())


def test_inputs_of_types_that_tensors_do_not_hold():
    made = one("Identity", X)
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(FileFormatError, match="'x' has the data type STRING, .* onnx.utils.extract_model keeps"):
        load_graph(made.SerializeToString())


def test_all_refused_nodes_are_listed_also_those_behind_others():
    nodes = [
        helper.make_node("Convv", ["x"], ["a"], "unknown"),
        helper.make_node("Softmax", ["x"], ["b"], "first", axis=9),
        helper.make_node("Transpose", ["b"], ["c"], "behind", perm=[0, 0, 1]),
        helper.make_node("Transpose", ["a"], ["d"], "of_no_known_shape", perm=[0, 0, 1]),
        helper.make_node("Sum", ["c", "d"], ["y"]),
    ]
    # a value of which ONNX finds a shape stands in for what is refused
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, (2, 3, 4))
    made = model(nodes, X)
    made.graph.value_info.append(value)
    with pytest.raises(FileFormatError) as caught:
        load_graph(made.SerializeToString())
    assert str(caught.value) == (
        "3 parts of the model cannot be imported: "
        "ONNX operators that are not supported: 'Convv' (node 'unknown'; no operator of the ONNX standard; "
        "did you mean 'Conv'?); "
        "Softmax node 'first': axis 9 does not exist in a tensor of 3 dimensions; "
        "Transpose node 'behind': perm (0, 0, 1) is no permutation of 3 axes"
    )
    assert "onnx.utils.extract_model" in caught.value.__notes__[0]
    many = [helper.make_node("Softmax", ["x"], [f"y{i}"], axis=9) for i in range(LISTED + 3)]
    with pytest.raises(FileFormatError, match=f"^{LISTED + 3} parts .*; and 3 more"):
        load_graph(model(many, X, outputs=[f"y{i}" for i in range(LISTED + 3)]).SerializeToString())


def near_the_runtime(made, *arrays):
    pytest.importorskip("onnxruntime")
    session = session_of(made)
    wanted = session.run(None, {item.name: a for item, a in zip(session.get_inputs(), arrays, strict=True)})
    graph = load_graph(made.SerializeToString())
    for y, expected in zip(interpret(graph, [Tensor._wrap(a) for a in arrays]), wanted, strict=True):
        found = y._storage()
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        near = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
        assert near <= (1 if found.dtype.kind in "iu" else 1e-4), near


def quantized_nodes():
    rng = np.random.default_rng(0)
    image = {"x": ("u1", (1, 4, 6, 6))}
    w, b = rng.integers(-128, 128, (3, 4, 3, 3)).astype("i1"), rng.integers(-99, 99, 3).astype("i4")
    scales = np.array([0.01, 0.02, 0.015], "f4")
    own, result = {"s": S, "z": Z}, {"t": np.float32(0.04), "u": np.uint8(100)}
    yield (
        "QLinearConv",
        image,
        {**own, "w": w, "v": scales, "n": np.int8(0), "t": HALF, "u": Z, "b": b},
        {"pads": [1] * 4},
    )
    behind, last = {"x": ("u1", (1, 6, 6, 4))}, {"domain": "com.microsoft", "channels_last": 1}
    layer = {**own, "w": w, "v": scales, "n": np.int8(0), "t": HALF, "u": Z, "b": b}
    yield "QLinearConv", behind, layer, {"pads": [1, 0, 2, 1], "strides": [2, 1], **last}
    for op, attrs in (("GlobalAveragePool", {}), ("AveragePool", {"kernel_shape": [2, 3]})):
        yield f"QLinear{op}", behind, {**own, **result}, {**attrs, **last}
    yield "NhwcMaxPool", behind, {}, {"kernel_shape": [3, 2], "strides": [2, 2], "domain": "com.microsoft"}
    matrix = rng.integers(0, 255, (4, 5)).astype("u1")
    yield "QLinearMatMul", {"x": ("u1", (2, 4))}, {**own, "w": matrix, "v": S, "n": Z, **result}, {}
    other = {"w": rng.integers(0, 255, (1, 4, 1, 1)).astype("u1"), "v": np.float32(0.05), "n": np.uint8(9)}
    for op in ("QLinearAdd", "QLinearMul"):
        yield op, image, {**own, **other, **result}, {"domain": "com.microsoft"}
    for op, attrs in (("Sigmoid", {}), ("LeakyRelu", {"alpha": 0.2}), ("GlobalAveragePool", {})):
        yield f"QLinear{op}", image, {**own, **result}, {"domain": "com.microsoft", **attrs}
    yield "QLinearAveragePool", image, {**own, **result}, {"domain": "com.microsoft", "kernel_shape": [2, 2]}
    column = rng.integers(-128, 128, (5, 4)).astype("i1")
    gemm = {**own, "w": column, "v": np.full(5, 0.01, "f4"), "n": np.zeros(5, "i1"), "b": np.arange(5, dtype="i4")}
    yield "QGemm", {"x": ("u1", (2, 4))}, {**gemm, **result}, {"domain": "com.microsoft", "transB": 1}
    yield "QGemm", {"x": ("u1", (2, 4))}, gemm, {"domain": "com.microsoft", "transB": 1}
    yield "MatMulInteger", {"x": ("u1", (2, 4))}, {"w": matrix, "z": Z, "n": np.uint8(3)}, {}


@pytest.mark.parametrize(("op", "inputs", "stored", "attrs"), list(quantized_nodes()))
def test_operators_of_quantized_tensors_compute_what_the_runtime_does(op, inputs, stored, attrs):
    """Results are at most one step apart: runtimes round in other places."""
    (shape,) = (shape for _, shape in inputs.values())
    x = np.random.default_rng(1).integers(0, 255, shape).astype("u1")
    near_the_runtime(one(op, inputs, stored, opset=17, **attrs), x)


def fused_nodes():
    rng = np.random.default_rng(0)
    rows, w = {"x": ("f4", (2, 3, 4))}, rng.standard_normal((4, 4)).astype("f4")
    ones, image = np.linspace(0.5, 1, 4, dtype="f4"), {"x": ("f4", (1, 2, 5, 5))}
    kernel = rng.standard_normal((3, 2, 3, 3)).astype("f4")
    for op in ("Gelu", "QuickGelu", "FastGelu"):
        yield op, rows, {}, {}
    yield "BiasGelu", rows, {"b": ones}, {}
    yield "FusedMatMul", rows, {"w": w}, {"transB": 1, "alpha": 0.5}
    cube = rng.standard_normal((4, 4, 4)).astype("f4")
    for turned in (
        {"transBatchA": 1},
        {"transBatchB": 1, "transB": 1},
        {"transBatchA": 1, "transA": 1, "transBatchB": 1},
    ):
        yield "FusedMatMul", {"x": ("f4", (4, 4, 4))}, {"w": cube}, turned
    yield "FusedConv", image, {"w": kernel, "b": ones[:3]}, {"activation": "Relu", "pads": [1] * 4}
    yield "FusedConv", image, {"w": kernel}, {"activation": "LeakyRelu", "activation_params": [0.3]}
    yield "FusedConv", image, {"w": kernel}, {"activation": "Clip", "activation_params": [-0.5, 0.5]}
    yield "FusedGemm", {"x": ("f4", (2, 4))}, {"w": w, "b": ones}, {"activation": "Tanh"}
    add = {"s": rng.standard_normal((2, 3, 4)).astype("f4"), "g": ones}
    yield "SkipLayerNormalization", rows, {**add, "b": ones, "c": ones}, {"epsilon": 1e-5}
    yield "SkipSimplifiedLayerNormalization", rows, add, {"epsilon": 1e-5}
    integers = {"w": rng.integers(-128, 128, (4, 5)).astype("i1"), "v": np.array([0.02], "f4")}
    yield "DynamicQuantizeMatMul", rows, integers, {}


@pytest.mark.parametrize(("op", "inputs", "stored", "attrs"), list(fused_nodes()))
def test_operators_of_optimised_models(op, inputs, stored, attrs):
    (shape,) = (shape for _, shape in inputs.values())
    x = np.random.default_rng(1).standard_normal(shape).astype("f4")
    near_the_runtime(one(op, inputs, stored, opset=17, domain="com.microsoft", **attrs), x)


def test_a_norm_that_the_runtime_puts_among_the_standard_operators():
    x, scale = np.random.default_rng(1).standard_normal((2, 3, 4)).astype("f4"), np.linspace(0.5, 1, 12, dtype="f4")
    for axis, shape in ((-1, (4,)), (1, (3, 4))):
        stored, attrs = {"g": scale[: math.prod(shape)].reshape(shape)}, {"axis": axis, "epsilon": 1e-3}
        near_the_runtime(one("SimplifiedLayerNormalization", {"x": ("f4", x.shape)}, stored, opset=17, **attrs), x)


@pytest.mark.parametrize("op", ["LayerNormalization", "InstanceNormalization"])
def test_norms_of_halves_compute_their_statistics_in_float32(op):
    stored = {"g": np.ones(4, "f2"), "b": np.zeros(4, "f2")}
    x = np.stack([np.full((4, 4), 3), np.linspace(-1, 2, 16).reshape(4, 4)]).astype("f2")
    graph = load_graph(one(op, {"x": ("f2", x.shape)}, stored, opset=17, epsilon=1e-12).SerializeToString())
    (y,) = interpret(graph, [Tensor._wrap(x)])
    wide = x.astype(np.float64)
    wide -= wide.mean(axis=-1, keepdims=True)
    wanted = wide / np.sqrt(np.square(wide).mean(axis=-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(y._storage().astype(np.float64), wanted, atol=2e-3)


def test_products_of_integers_with_their_scales():
    b = np.random.default_rng(0).integers(-128, 128, (4, 5)).astype("i1")
    stored = {"w": b, "s": S, "t": HALF, "z": Z, "n": np.int8(0), "b": np.ones(5, "f4")}
    made = one("MatMulIntegerToFloat", {"x": ("u1", (2, 4))}, stored, opset=17, domain="com.microsoft")
    near_the_runtime(made, np.arange(8, dtype="u1").reshape(2, 4))
    del made.graph.node[0].input[2:]
    with pytest.raises(FileFormatError, match="a scale is missing; expected one of each input"):
        load_graph(made.SerializeToString())


def test_forms_of_fused_operators_that_are_not_supported():
    for op, attrs, said in (
        ("FusedGemm", {"activation": "Softsign"}, "its activation is 'Softsign'; expected one of Relu"),
    ):
        made = one(op, {"x": ("f4", (2, 4))}, {"w": np.ones((4, 3), "f4")}, domain="com.microsoft", **attrs)
        with pytest.raises(FileFormatError, match=f"'it'.*{said}"):
            load_graph(made.SerializeToString())


def test_slopes_of_channels_without_the_axes_behind_them():
    graph = load_graph(one("PRelu", X, {"s": np.array([0.5, 2, 3], "f4")}, opset=9).SerializeToString())
    (y,) = interpret(graph, [-np.ones((2, 3, 4), "f4")])
    np.testing.assert_array_equal(y.numpy(), np.broadcast_to([[-0.5], [-2], [-3]], (2, 3, 4)))


def test_quantized_tensors_side_by_side():
    names = ["t", "u", "x", "s", "z", "w", "v", "n"]
    stored = {"t": HALF, "u": Z, "s": S, "z": Z, "w": np.full((1, 2), 77, "u1"), "v": HALF, "n": np.uint8(3)}
    node = helper.make_node("QLinearConcat", names, ["y"], "it", domain="com.microsoft", axis=1)
    made = model([node], {"x": ("u1", (1, 3))}, stored, 17)
    near_the_runtime(made, np.array([[1, 120, 255]], "u1"))


def test_scales_computed_for_each_call():
    """Dynamic quantization: the scale of a product's input is that of the values at hand."""
    w = np.random.default_rng(2).integers(-128, 128, (4, 5)).astype("i1")
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "v"], ["both"]),
        helper.make_node("Mul", ["f", "both"], ["y"]),
    ]
    made = model(nodes, {"x": ("f4", (3, 4))}, {"w": w, "v": np.float32(0.01)}, 17)
    near_the_runtime(made, np.random.default_rng(3).standard_normal((3, 4)).astype("f4"))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float64", "float16", "bool"])
def test_networks_keep_the_type_of_their_inputs(dtype):
    """Also through quantization and verification."""
    rng = np.random.default_rng(0)
    table, w = rng.standard_normal((20, 8)).astype("f4"), rng.standard_normal((8, 4)).astype("f4")
    is_place = dtype in ("int64", "int32")
    first = helper.make_node("Gather", ["t", "x"], ["e"]) if is_place else helper.make_node("Cast", ["x"], ["e"], to=1)
    shape = (1, 6) if is_place else (1, 6, 8)
    made = model(
        [first, helper.make_node("MatMul", ["e", "w"], ["y"])], {"x": (dtype, shape)}, {"t": table, "w": w}, 17
    )
    graph = load_graph(made.SerializeToString())
    assert graph.inputs[0].dtype == np.dtype(dtype)
    batches = [rng.integers(0, 2 if dtype == "bool" else 20, shape).astype(dtype) for _ in range(2)]
    quantized = quantize_model(TracedModule.from_graph(graph), batches)
    assert verify(quantized, batches).exact
    near_the_runtime(made, batches[0])


def test_random_numbers_are_drawn_once(caplog):
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["a"], "noise", seed=3.0),
        helper.make_node("RandomUniform", [], ["b"], "more", shape=[2, 3, 4], low=2.0, high=3.0),
        helper.make_node("Add", ["a", "b"], ["y"]),
        helper.make_node("Multinomial", ["l"], ["c"], sample_size=500),
    ]
    made = model(nodes, {**X, "l": ("f4", (1, 3))}, outputs=("y", "c")).SerializeToString()
    inputs = [np.zeros((2, 3, 4), "f4"), np.log([[0.2, 0.8, 1e-9]]).astype("f4")]
    with caplog.at_level(logging.WARNING):
        first, second = ([y.numpy() for y in interpret(load_graph(made), inputs)] for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1].dtype == np.int32
    assert 0.7 < first[1].mean() < 0.9
    assert first[1].max() == 1


def test_definitions_of_later_versions_stand_for_operators_of_older_opsets():
    x = np.linspace(-3, 3, 24, dtype="f4").reshape(2, 3, 4)
    for op in ("Selu", "Celu", "ThresholdedRelu", "Softsign", "Shrink", "MeanVarianceNormalization"):
        inputs = {"x": ("f4", (1, 2, 3, 4))} if op.startswith("Mean") else X
        near_the_runtime(one(op, inputs, opset=12), x.reshape(inputs["x"][1]))


def test_a_node_of_a_newer_opset_has_the_defaults_of_its_own():
    graph = load_graph(one("HardSwish", X, opset=9).SerializeToString())
    assert graph.outputs[0].shape == (2, 3, 4)
    assert onnx.defs.get_schema("HardSwish").since_version > 9


def affine_grid(shape, size, corners):
    node = helper.make_node("AffineGrid", ["theta", "size"], ["y"], "it", align_corners=corners)
    return model([node], {"theta": ("f4", shape)}, {"size": ints(*size)})


def test_graphs_in_a_definition_read_values_around_them():
    """AffineGrid is defined by an If whose graphs read values outside of them; ONNX's own evaluator runs the copy."""
    theta = np.random.default_rng(3).standard_normal((2, 2, 3)).astype(np.float32)
    made = affine_grid(theta.shape, (2, 1, 3, 4), 1)
    nodes, _ = body_of(made.graph.node[0], [theta, ints(2, 1, 3, 4)], 20)
    copied = model(nodes, {"theta": ("f4", theta.shape)}, {"size": ints(2, 1, 3, 4)})
    (got,) = ReferenceEvaluator(copied).run(None, {"theta": theta})
    x, y = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 3))
    np.testing.assert_allclose(got, np.stack([x, y, np.ones_like(x)], -1) @ theta[:, None].swapaxes(2, 3), atol=1e-6)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (1, 1, 3, 4), (2, 1, 3, 4, 2)])
def test_affine_grid_is_the_runtimes(size, corners):
    axes = len(size) - 2
    theta = np.random.default_rng(3).standard_normal((size[0], axes, axes + 1)).astype(np.float32)
    near_the_runtime(affine_grid(theta.shape, size, corners), theta)


def test_affine_grid_of_open_sizes_is_the_runtimes():
    nodes = [helper.make_node("Shape", ["x"], ["size"]), helper.make_node("AffineGrid", ["theta", "size"], ["y"], "it")]
    made = model(nodes, {"theta": ("f4", ("b", 2, 3)), "x": ("f4", ("b", 1, "h", "w"))})
    rng = np.random.default_rng(3)
    for n, h, w in ((1, 4, 5), (3, 7, 2)):
        near_the_runtime(made, rng.standard_normal((n, 2, 3)).astype("f4"), np.zeros((n, 1, h, w), "f4"))


@pytest.mark.parametrize("samples", [1, 2])
def test_affine_grid_of_a_fixed_number_of_samples_refuses_an_open_one(samples):
    made = affine_grid(("batch", 2, 3), (samples, 1, 3, 4), 0)
    with pytest.raises(FileFormatError, match=rf"theta is \(batch, 2, 3\), its first size {samples} .*input_shapes"):
        load_graph(made.SerializeToString())
    assert load_graph(made.SerializeToString(), input_shapes=(samples, 2, 3)).outputs[0].shape == (samples, 3, 4, 2)


@pytest.mark.parametrize(
    ("shape", "size"), [((2, 2, 3), (2, 1, 3)), ((2, 2, 3), (2, 1, 3, 4, 5)), ((2, 6), (2, 1, 3, 4))]
)
def test_affine_grid_says_what_it_expects(shape, size):
    with pytest.raises(FileFormatError, match=r"'it'.*expected \[N, 2, 3\] and 4 sizes"):
        load_graph(affine_grid(shape, size, 0).SerializeToString())
