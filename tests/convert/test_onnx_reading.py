"""Damaged and hostile .onnx files: one clear error each, before memory is taken."""

import os
import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import export, load_graph
from megengine.convert.onnx.reading import array_of
from megengine.core.errors import (
    DTypeError,
    FileFormatError,
    GraphError,
    MegEngineError,
    MissingFileError,
    OptionError,
    ShapeError,
)
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, interpret
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.ir.queries import applied
from tests.helpers.onnx_runtime import session_of

W = numpy_helper.from_array(np.arange(4 * 3 * 3 * 3, dtype=np.float32).reshape(4, 3, 3, 3) / 50, "w")


def model(nodes, inputs=None, initializers=(W,), outputs=("y",), opset=17):
    inputs = inputs or [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "net", inputs, outs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def small():
    return model([helper.make_node("Conv", ["x", "w"], ["c"], "conv"), helper.make_node("Relu", ["c"], ["y"], "relu")])


def load(made, **options):
    return load_graph(made.SerializeToString(), **options)


def test_names_and_module_paths_are_kept():
    node = helper.make_node("Conv", ["x", "w"], ["y"], "/features/features.0/Conv")
    graph = load(model([node]))
    (conv,) = applied(graph, "conv2d")
    assert conv.outputs[0].name == "features_features_0_Conv"
    assert conv.meta["module"] == "features.0"
    assert graph.node("w").shape == (4, 3, 3, 3)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/l2/l2.0/down/down.1/Conv", "l2.0.down.1"),
        ("/a/a.0/a/a.1/Conv", "a.0.a.1"),
        ("/a/ab.0/Conv", "a.ab.0"),
        ("/layers.0/conv/Conv", "layers.0.conv"),
        ("/Conv", ""),
        ("/", ""),
        ("Conv", ""),
    ],
)
def test_module_paths_are_those_of_torch(name, path):
    (conv,) = applied(load(model([helper.make_node("Conv", ["x", "w"], ["y"], name)])), "conv2d")
    assert conv.meta["module"] == path


def test_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"")
    with pytest.raises(FileFormatError, match=r"net\.onnx: the file is empty"):
        load_graph(tmp_path / "net.onnx")
    with pytest.raises(FileFormatError, match="<bytes>: the file is empty"):
        load_graph(b"")


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_truncated_file_is_refused(tmp_path, keep):
    content = small().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(FileFormatError, match="cut.onnx|tensor 'w'|reads 'w'|output"):
        load_graph(path)


def test_random_damage_never_escapes_as_another_error():
    content = small().SerializeToString()
    rng = random.Random(7)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            load_graph(bytes(damaged))
        except MegEngineError:
            refused += 1
    assert 0 < refused < 300  # some damage is refused, some does not matter; nothing else escapes


def test_no_such_file():
    with pytest.raises(FileFormatError, match=r"missing\.onnx: no such file"):
        load_graph("missing.onnx")


def test_refused_operators_are_listed_together_with_their_number_and_the_reason():
    """One that ONNX has is not taken for a misspelt one; each operator has one wording, wherever it stands."""
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "branch", [], [W_INFO])
    nodes = [
        helper.make_node("Convv", ["x", "w"], ["c"], "a"),
        helper.make_node("ImageDecoder", ["c"], ["d"], "b"),
        helper.make_node("ImageDecoder", ["d"], ["e"], "c"),
        helper.make_node("Normalizer", ["e"], ["f"], "d", domain="ai.onnx.ml"),
        helper.make_node("Foreach", ["flag"], ["h"], "f", body=branch),
        helper.make_node("Foreach", ["f", "h"], ["y"], "g", body=branch),
    ]
    with pytest.raises(FileFormatError) as caught:
        load(model(nodes, initializers=[W, numpy_helper.from_array(np.array(True), "flag")]))
    assert str(caught.value) == (
        "ONNX operators that are not supported: "
        "'Convv' (node 'a'; no operator of the ONNX standard; did you mean 'Conv'?), "
        "'ImageDecoder' (2 nodes, first 'b'; of the ONNX standard, but not imported yet), "
        "'ai.onnx.ml::Normalizer' (node 'd'; of the domain 'ai.onnx.ml'), "
        "'Foreach' (2 nodes, first 'f'; it runs graphs of its own: export the model without it)"
    )


W_INFO = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)


def test_a_model_of_other_operators_alone():
    made = model([helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml")])
    del made.opset_import[:]
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(FileFormatError, match=r"no operators of ONNX itself \(its operator sets: 'ai.onnx.ml' 3\)"):
        load(made)


def test_a_size_of_minus_one_is_open():
    x = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 3, 8, 8])]
    made = model([helper.make_node("Relu", ["x"], ["y"])], inputs=x)
    assert str(load(made).inputs[0].spec) == "float32[x_0, 3, 8, 8]"
    assert load(made, input_shapes=(4, 3, 8, 8)).inputs[0].shape == (4, 3, 8, 8)
    x = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 3, -1, -1])]
    assert str(load(model([helper.make_node("Relu", ["x"], ["y"])], inputs=x)).outputs[0].spec) == (
        "float32[x_0, 3, x_2, x_3]"
    )


def test_huge_declared_tensor_is_refused_without_taking_memory():
    bomb = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 40, 3, 3, 3])
    with pytest.raises(FileFormatError, match="tensor 'w'"):
        load(model([helper.make_node("Conv", ["x", "w"], ["y"], "conv")], initializers=[bomb]))


ROWS = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]


def sparse_tensor(values, indices, dims):
    parts = (np.asarray(values, np.float32), np.asarray(indices, np.int64))
    stored = (numpy_helper.from_array(part, name) for part, name in zip(parts, ("w", "places"), strict=True))
    return helper.make_sparse_tensor(*stored, dims)


@pytest.mark.parametrize("indices", [[0, 7, 11], [[0, 0], [1, 3], [2, 3]], []])
def test_sparse_tensors_are_read_with_their_zeros(indices):
    stored = sparse_tensor([1.5, -2, 3][: len(indices)], indices, (3, 4))
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    constant = model([helper.make_node("Constant", [], ["w"], sparse_value=stored), *nodes], ROWS, ())
    made = model(nodes, ROWS, ())
    made.graph.sparse_initializer.append(stored)
    w = np.zeros((3, 4), np.float32)
    for index, value in zip(indices, (1.5, -2, 3), strict=False):
        w[np.unravel_index(index, w.shape) if isinstance(index, int) else tuple(index)] = value
    for one in (made, constant):
        np.testing.assert_allclose(interpret(load(one), [Tensor(x)])[0].numpy(), x @ w, rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "indices", "dims", "reason"),
    [
        ([1], [12], (3, 4), r"'w': an index lies outside shape \(3, 4\)"),
        ([1], [[0, 4]], (3, 4), "an index lies outside"),
        ([1], [[0, -1]], (3, 4), "an index lies outside"),
        ([1], np.zeros((1, 0)), (), r"shape \(1, 0\); expected \[count\], and int64"),
        ([1, 2], [0], (3, 4), r"values of shape \(2,\), indices of int64 and shape \(1,\); expected"),
        ([1], [[0]], (3, 4), r"expected \[count\], and int64 and \[count\] or \[count, 2\]"),
        ([1], [0], (3, -4), "has a negative size"),
        ([1], [0], (1 << 20, 1 << 12), "needs 17179869184 bytes; the sparse tensors of a graph may have 1073741824"),
    ],
)
def test_damaged_sparse_tensors_are_refused(values, indices, dims, reason):
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])], ROWS, ())
    made.graph.sparse_initializer.append(sparse_tensor(values, indices, dims))
    with pytest.raises(FileFormatError, match=reason):
        load(made)


@pytest.mark.parametrize(
    ("node", "values"),
    [
        (helper.make_node("ConstantOfShape", ["s"], ["c"], "bomb"), [1 << 20, 1 << 20]),
        (helper.make_node("Expand", ["one", "s"], ["c"], "bomb"), [1 << 20, 1 << 20]),
        (helper.make_node("Tile", ["one", "s"], ["c"], "bomb"), [1 << 40]),
    ],
)
def test_constants_that_grow_without_bound_are_refused(node, values):
    shape = numpy_helper.from_array(np.array(values, np.int64), "s")
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    with pytest.raises(FileFormatError, match="'bomb': makes a constant of"):
        load(model([node, helper.make_node("Add", ["x", "c"], ["y"])], initializers=[shape, one]))


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "", "sub/../../secret"])
def test_external_data_outside_the_folder_is_refused(tmp_path, location):
    (tmp_path / "secret").write_bytes(b"\0" * 432)
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(FileFormatError, match="outside the model's folder"):
        load_graph(with_external(folder, location))


def test_external_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(b"\0" * 432)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(FileFormatError, match="outside the model's folder"):
        load_graph(with_external(folder, "w.bin"))


def test_external_data_is_read_and_checked_against_the_file(tmp_path):
    values = np.arange(108, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(b"\0" * 8 + values.tobytes())
    graph = load_graph(with_external(tmp_path, "w.bin", offset="8"))
    assert np.array_equal(graph.node("w").expr.value.numpy().reshape(-1), values)
    with pytest.raises(FileFormatError, match="needs 432 bytes at offset 16"):
        load_graph(with_external(tmp_path, "w.bin", offset="16"))
    with pytest.raises(FileFormatError, match="not numbers"):
        load_graph(with_external(tmp_path, "w.bin", offset="x"))
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_graph(with_external(tmp_path, "other.bin"))


def with_external(folder, location, **more):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 3, 3, 3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    made = model([helper.make_node("Conv", ["x", "w"], ["y"], "conv")], initializers=[tensor])
    path = folder / "net.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_external_data_needs_a_path():
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    with pytest.raises(FileFormatError, match="load the model from a path"):
        array_of(tensor)


def test_wrong_shapes_name_the_node():
    w = numpy_helper.from_array(np.zeros((4, 5, 3, 3), np.float32), "w")
    with pytest.raises(FileFormatError, match="Conv node 'conv'.*"):
        load(model([helper.make_node("Conv", ["x", "w"], ["y"], "conv")], initializers=[w]))


def test_input_that_no_node_makes():
    with pytest.raises(FileFormatError, match="reads 'ghost', which no earlier node makes"):
        load(model([helper.make_node("Relu", ["ghost"], ["y"], "r")]))
    with pytest.raises(FileFormatError, match="Relu node 'y': reads"):  # one without a name
        load(model([helper.make_node("Relu", ["ghost"], ["y"])]))


def test_nodes_in_any_order():
    """As converters to halves write them; a node also waits for what its graphs read."""
    inner = helper.make_graph(
        [helper.make_node("Relu", ["n"], ["r"]), helper.make_node("Neg", ["late"], ["n"])],
        "then",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )
    known = numpy_helper.from_array(np.asarray(True), "known")
    choice = helper.make_node("If", ["known"], ["c"], then_branch=inner, else_branch=inner)
    nodes = [helper.make_node("Abs", ["c"], ["y"]), choice, helper.make_node("Neg", ["x"], ["late"])]
    (y,) = load_graph(model(nodes, initializers=[known]).SerializeToString()).outputs
    assert [e.op for e in applied(y.graph)] == ["neg", "neg", "relu", "abs"]


def test_nodes_in_a_circle():
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], "a"), helper.make_node("Add", ["x", "a"], ["b"], "b")]
    with pytest.raises(FileFormatError, match="reads 'b', which no earlier node makes"):
        load(model([*nodes, helper.make_node("Relu", ["b"], ["y"])]))


def test_value_defined_twice():
    nodes = [helper.make_node("Relu", ["x"], ["y"], "a"), helper.make_node("Relu", ["x"], ["y"], "b")]
    with pytest.raises(FileFormatError, match="'y' is defined twice"):
        load(model(nodes))


def test_opset_out_of_range():
    with pytest.raises(FileFormatError, match="opset 10000; expected 1 to"):
        load(model([helper.make_node("Relu", ["x"], ["y"])], opset=10000))


def test_open_sizes_stay_open_or_take_what_is_given():
    x = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])]
    made = model([helper.make_node("Relu", ["x"], ["y"])], inputs=x)
    assert str(load(made).inputs[0].spec) == "float32[n, 3, 8, 8]"
    assert load(made).inputs[0].spec.example.shape == (1, 3, 8, 8)
    assert load(made, input_shapes=(5, 3, 8, 8)).inputs[0].shape == (5, 3, 8, 8)
    assert load(made, input_shapes={"x": (2, 3, 8, 8)}).outputs[0].shape == (2, 3, 8, 8)
    with pytest.raises(ShapeError, match=r"\(1, 4, 8, 8\) does not fit the model's \(any, 3, 8, 8\)"):
        load(made, input_shapes=(1, 4, 8, 8))
    with pytest.raises(OptionError, match="no input 'X'"):
        load(made, input_shapes={"X": (1, 3, 8, 8)})
    opened = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])]
    opened = model([helper.make_node("Relu", ["x"], ["y"])], inputs=opened)
    assert load(opened).inputs[0].spec.example.shape == (1, 3, 224, 224)
    half = load(opened, input_shapes=(2, 3, None, 16), example_sizes={"h": 64})
    assert (str(half.outputs[0].spec), half.outputs[0].spec.example.shape) == ("float32[2, 3, h, 16]", (2, 3, 64, 16))
    with pytest.raises(OptionError, match="no open axis 'hight'; did you mean 'h'|no open axis 'hight'"):
        load(opened, example_sizes={"hight": 3})
    with pytest.raises(OptionError, match="h is 0; expected at least 1"):
        load(opened, example_sizes={"h": 0})


def test_shape_arithmetic_is_folded():
    """x.view(x.size(0), -1) as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"], "flat"),
    ]
    stored = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in (("zero", 0), ("axes", [0]), ("rest", [-1]))
    ]
    graph = load(model(nodes, initializers=stored))
    assert [expr.op for expr in graph.exprs() if hasattr(expr, "op") and expr.op] == ["reshape"]
    assert graph.outputs[0].shape == (1, 192)


def test_export_keeps_provenance_and_is_a_fixed_point(tmp_path):
    path, again = tmp_path / "a.onnx", tmp_path / "b.onnx"
    export(load(small()), path)
    export(load_graph(path), again)
    a, b = onnx.load(path), onnx.load(again)
    assert [n.op_type for n in a.graph.node] == ["Conv", "Relu"]
    assert {p.key: p.value for p in a.graph.node[0].metadata_props}["mge.onnx"] == "conv"
    assert a.graph.SerializeToString() == b.graph.SerializeToString()


def test_export_refuses_what_has_no_onnx_form(tmp_path):
    graph = load(small())
    set_outputs(graph, [graph.apply("expm1", graph.outputs[0], name="odd")])
    with pytest.raises(GraphError, match=r"node 'odd' \(expm1\)"):
        export(graph, tmp_path / "x.onnx")
    with pytest.raises(OptionError, match="opset 12; expected 13 to"):
        export(load(small()), tmp_path / "x.onnx", opset=12)
    with pytest.raises(MissingFileError, match="there is no folder"):
        export(load(small()), tmp_path / "none" / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_qdq_round_trip_keeps_scales_per_channel(tmp_path):
    pytest.importorskip("onnxruntime")
    made = model(
        [
            helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
            helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=0),
            helper.make_node("Conv", ["xd", "wd"], ["y"], "conv"),
        ],
        initializers=[
            numpy_helper.from_array(np.float32(0.02), "xs"),
            numpy_helper.from_array(np.uint8(100), "xz"),
            numpy_helper.from_array(np.arange(108, dtype=np.int8).reshape(4, 3, 3, 3), "wq"),
            numpy_helper.from_array(np.array([0.01, 0.02, 0.03, 0.04], np.float32), "ws"),
            numpy_helper.from_array(np.zeros(4, np.int8), "wz"),
        ],
    )
    graph = load(made)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    wanted = session_of(made).run(None, {"x": x})[0]
    path, again = tmp_path / "qdq.onnx", tmp_path / "again.onnx"
    export(graph, path)
    export(load_graph(path), again)
    assert onnx.load(path).graph.SerializeToString() == onnx.load(again).graph.SerializeToString()
    (weight,) = [t for t in onnx.load(path).graph.initializer if list(t.dims) == [4, 3, 3, 3]]
    assert weight.data_type == TensorProto.INT8
    got = session_of(path).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(interpret(graph, [x])[0].numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int64", "float64", "int32", "uint8", "bool", "float16"])
def test_inputs_keep_their_dtype_and_take_arrays_and_tensors_of_it(dtype):
    """Tensors of int64 and float64 arrays are narrower than these; the graph takes them all the same."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info("x", kind, [1, 3])]
    net = onnx_import(model([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], inputs, ()))
    assert net.graph.inputs[0].dtype == dtype
    x = np.array([[1, 0, 1]], dtype)
    for given in (x, Tensor(x)):
        np.testing.assert_array_equal(net(given).numpy(), [[1.0, 0.0, 1.0]])
    with pytest.raises(DTypeError, match=f"input 'x' of graph 'net' is int16; expected {dtype}"):
        net(x.astype(np.int16))


def onnx_import(made):
    return TracedModule.from_graph(load(made))


@pytest.mark.parametrize("location", [".", "./.", "sub", "a\0b", "\0", "n" * 5000, "pipe"])
def test_external_data_that_is_no_plain_file_is_refused(tmp_path, location):
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match="tensor 'w': its data file .* (no plain file|no path|cannot be read)"):
        load_graph(with_external(tmp_path, location))


def test_external_data_with_a_name_outside_the_folder_is_refused(tmp_path):
    """A hard link may be to any file of the machine; one whose other names lie inside is as good as a file."""
    (tmp_path / "secret").write_bytes(b"\0" * 432)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").hardlink_to(tmp_path / "secret")
    path = with_external(folder, "w.bin")
    with pytest.raises(FileFormatError, match=r"'w.bin' has other names \(hard links\) outside .* put a copy in"):
        load_graph(path)
    (tmp_path / "secret").unlink()
    (folder / "sub").mkdir()
    (folder / "sub" / "same.bin").hardlink_to(folder / "w.bin")
    assert load_graph(path)


HUGE = (1 << 31, 1 << 40, (1 << 63) - 1, -1, -(1 << 63))


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("name", ["strides", "pads", "dilations", "kernel_shape", "group"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool"])
def test_sizes_of_windows_that_cannot_be(op, name, size):
    attrs = {"kernel_shape": [3, 3], name: [size] * 4 if name == "pads" else size if name == "group" else [size, size]}
    if op == "MaxPool" and name == "group":
        return
    w = numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "w")
    node = helper.make_node(op, ["x"] if op == "MaxPool" else ["x", "w"], ["y"], "window", **attrs)
    with pytest.raises(FileFormatError, match=f"{op} node 'window': "):
        load(model([node], initializers=[w]))


def test_shapes_that_no_tensor_can_have():
    for op, values in (("Expand", [1] * 64), ("Expand", [1 << 62]), ("Reshape", [1] * 64), ("Unsqueeze", range(60))):
        stored = [numpy_helper.from_array(np.array(values, np.int64), "s")]
        with pytest.raises(FileFormatError, match=f"{op} node 'wide': "):
            load(model([helper.make_node(op, ["x", "s"], ["y"], "wide")], initializers=stored))
    pads = [numpy_helper.from_array(np.array([1 << 40] * 8, np.int64), "s")]
    with pytest.raises(FileFormatError, match="Pad node 'wide': "):
        load(model([helper.make_node("Pad", ["x", "s"], ["y"], "wide")], initializers=pads))
    for axis in (4, -5, 1 << 40):
        with pytest.raises(FileFormatError, match=f"Softmax node 'wide': axis {axis} does not exist"):
            load(model([helper.make_node("Softmax", ["x"], ["y"], "wide", axis=axis)]))
    sizes = [numpy_helper.from_array(np.array([1, 3, 65536, 8], np.int64), "s")]
    x = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 1 << 30, 8])]
    with pytest.raises(FileFormatError, match="Resize node 'wide': an axis is resized from 1073741824 to 65536"):
        load(model([helper.make_node("Resize", ["x", "", "", "s"], ["y"], "wide", mode="linear")], x, sizes))


def quantizing(scale, other=None):
    names = ["s", "z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *names], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "s" if other is None else "t", "z"], ["y"], "dequantize"),
    ]
    stored = {"s": np.float32(scale), "z": np.uint8(100), "t": np.float32(other or 1)}
    return model(nodes, initializers=[numpy_helper.from_array(np.asarray(v), n) for n, v in stored.items()])


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-40, float("nan"), float("inf")])
def test_scales_that_are_none(scale):
    with pytest.raises(FileFormatError, match="QuantizeLinear node 'quantize': its scale is .*; expected positive"):
        load(quantizing(scale))
    if not np.isfinite(scale):
        with pytest.raises(FileFormatError, match="DequantizeLinear node 'bias': its scale is .*; expected finite"):
            load(stored_bias(scale))


def stored_bias(scale):
    stored = {"b": np.array([-3, 0, 1 << 30], np.int32), "s": np.asarray(scale, np.float32)}
    nodes = [
        helper.make_node("Transpose", ["x"], ["r"], perm=[0, 2, 3, 1]),
        helper.make_node("DequantizeLinear", ["b", "s"], ["c"], "bias", axis=0),
        helper.make_node("Add", ["r", "c"], ["y"]),
    ]
    return model(nodes, initializers=[numpy_helper.from_array(np.asarray(v), n) for n, v in stored.items()])


@pytest.mark.parametrize("scale", [0.0, 1e-40, [1e-40, 0.5, 1e-39], [-0.25, 0.5, -1e-3]])
def test_stored_integers_may_have_tiny_and_negative_scales(scale):
    """Scales of biases are products, normal numbers or not; NNCF maps what is largest in a weight to -128."""
    (y,) = interpret(load(stored_bias(scale)), [np.zeros((1, 3, 8, 8), np.float32)])
    wanted = np.array([-3, 0, 1 << 30]) * np.asarray(scale, np.float32).astype(np.float64)
    np.testing.assert_allclose(y.numpy()[0, 0, 0], wanted, rtol=1e-6, atol=1e-44)


def test_values_are_read_with_the_scale_that_they_were_written_with():
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    same, other = (interpret(load(quantizing(0.5, scale)), [x])[0].numpy() for scale in (None, 0.25))
    np.testing.assert_array_equal(same, np.rint(x / np.float32(0.5)) * np.float32(0.5))
    np.testing.assert_array_equal(other, same / 2)  # the same integers with another scale


def test_a_model_in_memory_is_read_and_other_kinds_are_refused():
    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xy")
    made = helper.make_model(helper.make_graph([node], "net", [x], [y]))
    assert [n.name for n in load_graph(made).outputs] == ["y"]
    with pytest.raises(OptionError, match="model is of type dict; expected a path, the file's bytes or a ModelProto"):
        load_graph({})
