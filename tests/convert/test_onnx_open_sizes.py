"""Models with open axes: they stay open through import, runs, edits, plans, files and export."""

import zipfile

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError, GraphError, ShapeError
from megengine.plan import compile as compile_plan
from megengine.traced_module import TracedModule
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.formats import native
from tests.helpers.onnx_runtime import session_of

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(0)


def node(kind, inputs, outputs, **attrs):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attrs)


def model(nodes, shape, constants=(), *, kind=FLOAT, opset=17, outputs=("y",)):
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    results = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()]
    graph = helper.make_graph(nodes, "net", inputs, results, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def ints(**named):
    return {name: np.asarray(value, np.int64) for name, value in named.items()}


def weight(*shape):
    return RNG.normal(0, 0.3, shape).astype(np.float32)


def picture(n, c, h, w):
    return RNG.normal(0, 1, (n, c, h, w)).astype(np.float32)


SAME = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
OPEN = ["batch", 3, "height", "width"]
PICTURES = [(1, 3, 16, 24), (2, 3, 20, 12), (3, 3, 33, 17)]


def unet(resize):
    """A picture halved and resized to what it was, beside what it was."""
    made = {
        "scales": [node("Resize", "b  twice", "u", mode="nearest", coordinate_transformation_mode="asymmetric")],
        "sizes": [
            *(node("Shape", "a", "sa"), node("Slice", "sa two four", "hw"), node("Shape", "b", "sb")),
            *(node("Slice", "sb zero two", "nc"), node("Concat", "nc hw", "wanted", axis=0)),
            node("Resize", "b   wanted", "u", mode="linear", coordinate_transformation_mode="half_pixel"),
        ],
    }[resize]
    for one in made:
        if one.op_type == "Resize":
            one.input[:] = ["b", "", "twice"] if resize == "scales" else ["b", "", "", "wanted"]
    if resize == "scales":
        made[-1].attribute.extend([helper.make_attribute("nearest_mode", "floor")])
    nodes = [
        *(node("Conv", "x w1", "a0", **SAME), node("Relu", "a0", "a")),
        *(node("Conv", "a w2", "b0", strides=[2, 2], **SAME), node("Relu", "b0", "b")),
        *(*made, node("Concat", "u a", "c", axis=1), node("Conv", "c w3", "y", **SAME)),
    ]
    constants = {
        **{"w1": weight(4, 3, 3, 3), "w2": weight(4, 4, 3, 3), "w3": weight(2, 8, 3, 3)},
        **{"twice": np.array([1, 1, 2, 2], np.float32), **ints(zero=[0], two=[2], four=[4])},
    }
    return model(nodes, OPEN, constants)


def detector():
    """A head that flattens the places: [N, C, H, W] to [N, H * W * 2, 5]."""
    nodes = [
        *(node("Conv", "x w", "a", strides=[2, 2], **SAME), node("Transpose", "a", "t", perm=[0, 2, 3, 1])),
        *(node("Shape", "t", "s"), node("Gather", "s zero", "n", axis=0), node("Unsqueeze", "n axis", "n1")),
        *(
            node("Concat", "n1 rest", "shape", axis=0),
            node("Reshape", "t shape", "r"),
            node("Softmax", "r", "y", axis=-1),
        ),
    ]
    return model(nodes, OPEN, {"w": weight(10, 3, 3, 3), **ints(zero=0, axis=[0], rest=[-1, 5])})


def pooling():
    nodes = [
        *(node("Conv", "x w", "a", **SAME), node("Relu", "a", "r"), node("GlobalAveragePool", "r", "p")),
        *(node("Flatten", "p", "f"), node("Gemm", "f m", "y")),
    ]
    return model(nodes, OPEN, {"w": weight(4, 3, 3, 3), "m": weight(4, 5)})


def sampled(border):
    """A picture sampled at points that it chooses, other points for each sample of the batch."""
    nodes = [
        *(
            node("Conv", "x w", "a", **SAME),
            node("Tanh", "a", "t"),
            node("Transpose", "t", "points", perm=[0, 2, 3, 1]),
        ),
        node("GridSample", "x points", "y", align_corners=1, mode="bilinear", padding_mode=border),
    ]
    return model(nodes, OPEN, {"w": weight(2, 3, 3, 3)})


def blocks():
    """Columns that overlap are added up to a picture."""
    nodes = [
        *(node("Conv", "x w", "a", **SAME), node("Reshape", "a shape", "columns")),
        node("Col2Im", "columns size block", "y"),
    ]
    return model(
        nodes,
        ["batch", 3, 6, 6],
        {"w": weight(4, 3, 3, 3), **ints(shape=[0, 4, 36], size=[7, 7], block=[2, 2])},
        opset=18,
    )


def patches():
    """Patches side by side, put back where they were."""
    half = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("Conv", "x w", "a", **half),
        node("Reshape", "a rows", "columns"),
        node("Shape", "x", "size", start=2),
        node("Col2Im", "columns size block", "y", strides=[2, 2]),
    ]
    return model(nodes, OPEN, {"w": weight(12, 3, 2, 2), **ints(rows=[0, 12, -1], block=[2, 2])}, opset=18)


def padded():
    """Padding and slicing up to ends that are computed: an odd picture gets a row and a column more, and loses one."""
    nodes = [
        *(node("Shape", "x", "s"), node("Slice", "s two four", "hw"), node("Mod", "hw twos", "odd")),
        *(node("Concat", "zeros odd", "pads", axis=0), node("Pad", "x pads", "p")),
        *(node("MaxPool", "p", "m", kernel_shape=[2, 2], strides=[2, 2]), node("Shape", "m", "sm")),
        *(
            node("Slice", "sm two four", "ends0"),
            node("Sub", "ends0 ones", "ends"),
            node("Slice", "m starts ends axes", "y"),
        ),
    ]
    constants = ints(two=[2], four=[4], twos=[2, 2], zeros=[0] * 6, ones=[1, 1], starts=[0, 0], axes=[2, 3])
    return model(nodes, OPEN, constants)


def halved():
    """Windows whose padding follows from the sizes: the same at both ends, and as far as the last one goes."""
    half = {"strides": [2, 2], "kernel_shape": [3, 3]}
    whole = half | {"ceil_mode": 1, "pads": [1, 1, 1, 1]}
    return model(
        [
            node("Conv", "x w", "c", auto_pad="SAME_UPPER", **half),
            node("MaxPool", "c", "m", ceil_mode=1, **half),
            node("AveragePool", "c", "a", count_include_pad=0, **whole),
            node("AveragePool", "c", "b", count_include_pad=1, **whole),
            node("MaxPool", "c", "d", dilations=[2, 1], **whole),
            *(node("GlobalLpPool", name, "g" + name) for name in "mabd"),
            node("Sum", "gm ga gb gd", "y"),
        ],
        OPEN,
        {"w": weight(4, 3, 3, 3)},
        opset=19,
    )


def decoder():
    """Attention with a mask from the length: Range, Less, Where, and Trilu of ones by ConstantOfShape and Expand."""
    nodes = [
        *(node("Shape", "x", "s"), node("Gather", "s one", "l", axis=0), node("Unsqueeze", "l axis", "l1")),
        *(
            node("Range", "zero l one", "at"),
            node("Unsqueeze", "at axis", "row"),
            node("Unsqueeze", "at last", "column"),
        ),
        *(node("Greater", "row column", "later"), node("Concat", "l1 l1", "ll", axis=0)),
        *(node("ConstantOfShape", "ll", "ones", value=numpy_helper.from_array(np.ones(1, np.float32))),),
        *(node("Trilu", "ones", "low", upper=0), node("Expand", "small ll", "wide")),
        *(
            node("Gather", "table x", "e", axis=0),
            node("Slice", "places zeros l1 last", "pe"),
            node("Add", "e pe", "h"),
        ),
        *(node("Transpose", "h", "ht", perm=[0, 2, 1]), node("MatMul", "h ht", "scores")),
        *(node("Where", "later wide scores", "masked"), node("Softmax", "masked", "p", axis=-1)),
        *(node("Mul", "p low", "kept"), node("MatMul", "kept h", "v"), node("MatMul", "v head", "y")),
    ]
    constants = {
        **ints(zero=0, one=1, axis=[0], last=[1], zeros=[0]),
        **{
            "small": np.array([[-1e4]], np.float32),
            "table": weight(20, 8),
            "places": weight(1, 64, 8),
            "head": weight(8, 3),
        },
    }
    return model(nodes, ["batch", "length"], constants, kind=INT64)


def tagger():
    """An LSTM over an open length whose first state is made from the shape."""
    nodes = [
        *(node("Gather", "table x", "e", axis=0), node("Transpose", "e", "t", perm=[1, 0, 2]), node("Shape", "x", "s")),
        *(
            node("Slice", "s zeros ones", "n"),
            node("Concat", "ones n six", "hs", axis=0),
            node("Expand", "nothing hs", "h0"),
        ),
        *(helper.make_node("LSTM", ["t", "w", "r", "", "", "h0", "h0"], ["o"], hidden_size=6),),
        *(node("Squeeze", "o ones", "q"), node("Transpose", "q", "b", perm=[1, 0, 2]), node("MatMul", "b head", "y")),
    ]
    constants = {
        **ints(zeros=[0], ones=[1], six=[6]),
        **{"table": weight(20, 8), "w": weight(1, 24, 8), "r": weight(1, 24, 6), "head": weight(6, 3)},
        "nothing": np.zeros((1, 1, 1), np.float32),
    }
    return model(nodes, ["batch", "length"], constants, kind=INT64)


TEXTS = [(1, 5), (2, 9), (3, 30)]


def tiled():
    """A constant repeated for each picture and line, and as often as a length says."""
    nodes = [
        *(node("Shape", "x", "n", start=0, end=1), node("Shape", "x", "h", start=2, end=3)),
        *(node("Concat", "n one h one", "times", axis=0), node("Tile", "places times", "many")),
        *(node("Add", "x many", "a"), node("Conv", "a w", "y", **SAME)),
    ]
    return model(nodes, OPEN, {"places": weight(1, 3, 1, 1), "w": weight(4, 3, 3, 3), **ints(one=[1])})


NETS = {
    "tiled": (tiled, PICTURES),
    **{"unet by scales": (lambda: unet("scales"), [(1, 3, 16, 24), (2, 3, 20, 12), (3, 3, 32, 18)])},
    **{"unet by sizes": (lambda: unet("sizes"), PICTURES), "detector": (detector, PICTURES)},
    **{
        "halved": (halved, PICTURES),
        "pooling": (pooling, PICTURES),
        "padded": (padded, PICTURES),
        "blocks": (blocks, [(1, 3, 6, 6), (3, 3, 6, 6)]),
    },
    **{f"sampled, {b}": (lambda b=b: sampled(b), PICTURES) for b in ("border", "zeros", "reflection")},
    **{"decoder": (decoder, TEXTS), "tagger": (tagger, TEXTS)},
}


def data(shape):
    return picture(*shape) if len(shape) == 4 else RNG.integers(0, 20, shape)


def runtime(proto, *, optimised=True):
    less = {} if optimised else {"graph_optimization_level": ort.GraphOptimizationLevel.ORT_DISABLE_ALL}
    session = session_of(proto, log_severity_level=3, **less)
    return lambda x: session.run(None, {"x": x})[0]


@pytest.mark.parametrize("name", NETS)
def test_every_size_equals_the_runtime(name, tmp_path):
    """Eager, plan, a file read back, and the exported file, at sizes that are not the example."""
    make, shapes = NETS[name]
    proto = make()
    net = load(proto)
    net.graph.lint()
    plan = compile_plan(net)
    native.save(net, tmp_path / "net.mgt")
    read, exported = native.load(tmp_path / "net.mgt"), runtime(to_model(net))
    wanted = runtime(proto)
    for shape in shapes:
        x = data(shape)
        want = wanted(x)
        for got in (net(x).numpy(), plan(x)[0], read(x).numpy(), exported(x)):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=str(shape))


@pytest.mark.parametrize("name", NETS)
def test_export_keeps_names_and_imports_again(name):
    make, _ = NETS[name]
    net = load(make())
    proto = to_model(net)
    dims = [d.dim_param or d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    assert dims == [d.dim_param or d.dim_value for d in make().graph.input[0].type.tensor_type.shape.dim]
    again = load(proto)
    assert [str(n.spec) for n in again.graph.outputs] == [str(n.spec) for n in net.graph.outputs]


def test_edits_keep_the_axes_open():
    """An expression is inserted, another one taken out, and a constant replaced."""
    net = load(unet("sizes"))
    graph = net.graph
    relu = next(e for e in graph.exprs() if getattr(e, "op", "") == "relu")
    old = relu.outputs[0]
    graph.replace_node({old: graph.apply("sigmoid", old, after=relu)})
    last = [e for e in graph.exprs() if getattr(e, "op", "") == "relu"][-1]
    graph.replace_node({last.outputs[0]: last.inputs[0]})
    graph.erase(last)
    graph.lint()
    assert str(graph.outputs[0].spec) == "float32[batch, 2, height, width]"
    for shape in PICTURES:
        x = data(shape)
        assert net(x).shape == (shape[0], 2, *shape[2:])
        np.testing.assert_allclose(runtime(to_model(net))(x), net(x).numpy(), rtol=1e-4, atol=1e-5)


def test_a_size_that_cannot_work_is_named():
    net = load(unet("scales"))
    with pytest.raises(
        ShapeError,
        match=r"node 'c' .*does not take inputs with batch = 1, height = 17, width = 16.*\[batch, 4, 2\*\(\(height",
    ):
        net(picture(1, 3, 17, 16))
    with pytest.raises(ShapeError, match=r"node .* does not take inputs with .* height = 17"):
        compile_plan(net)(picture(1, 3, 17, 16))
    with pytest.raises(ShapeError, match=r"input 'x' .* \(1, 4, 16, 16\): axis 1 is 4; expected 3"):
        net(picture(1, 4, 16, 16))
    with pytest.raises(ShapeError, match=r"has shape \(3, 16, 16\); expected \(batch, 3, height, width\)"):
        net(picture(1, 3, 16, 16)[0])


def test_axes_of_one_name_are_equal():
    inputs = [helper.make_tensor_value_info(name, FLOAT, ["n", 2]) for name in "ab"]
    graph = helper.make_graph(
        [node("Add", "a b", "y")], "net", inputs, [helper.make_tensor_value_info("y", FLOAT, None)]
    )
    net = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = np.ones((3, 2), np.float32)
    assert net(x, x).shape == (3, 2)
    with pytest.raises(ShapeError, match=r"axis 0 \(n\) is 4; expected 3, as axis 0 of 'a' is"):
        net(x, np.ones((4, 2), np.float32))


def test_a_constant_that_fixes_a_size_is_named():
    """The file says that the length is open; what is added to it has one."""
    nodes = [node("Gather", "table x", "e", axis=0), node("Add", "e places", "y")]
    proto = model(nodes, ["batch", "length"], {"table": weight(20, 8), "places": weight(1, 12, 8)}, kind=INT64)
    net = load(proto, example_sizes={"length": 12})
    assert net(np.zeros((2, 12), np.int64)).shape == (2, 12, 8)
    with pytest.raises(
        ShapeError, match=r"node 'y' \(add\) .*length = 9.*float32\[batch, length, 8\].*float32\[1, 12, 8\]"
    ):
        net(np.zeros((2, 9), np.int64))


def test_plans_of_the_last_shapes_are_kept():
    plan = compile_plan(load(pooling()))
    first = plan.at((1, 3, 8, 8))
    assert plan.at((1, 3, 8, 8)) is first
    for size in range(9, 26):
        plan.at((1, 3, size, size))
    assert plan.at((1, 3, 8, 8)) is not first
    assert len({id(plan.at((1, 3, size, size))) for size in (24, 25)}) == 2
    assert all(step.kernel != "reference" for step in plan.at((2, 3, 40, 40)).steps)
    assert plan.describe().startswith("x float32[batch, 3, height, width]; at the example:\nplan of net")
    with pytest.raises(ShapeError, match="takes 1 input, got 2"):
        plan(np.zeros(3, np.float32), np.zeros(3, np.float32))


def test_a_plan_is_saved_with_its_axes_open(tmp_path):
    from megengine.plan import load as load_plan

    plan = compile_plan(load(detector()))
    plan.save(tmp_path / "plan.mgt")
    x = data(PICTURES[1])
    np.testing.assert_array_equal(load_plan(tmp_path / "plan.mgt")(x)[0], plan(x)[0])


def test_a_module_around_the_graph_is_a_graph_for_every_size():
    net = load(decoder())
    assert isinstance(net, TracedModule)
    assert [str(n.spec) for n in net.graph.outputs] == ["float32[batch, length, 3]"]


def test_a_length_that_is_left_to_a_reshape_is_written(tmp_path):
    """With the rest of a shape computed, the length is a rounded quotient of sizes."""
    nodes = [
        *(node("Shape", "x", "s"), node("Gather", "s two", "h", axis=0), node("Div", "h two", "half")),
        *(node("Concat", "left three half two four two", "wanted", axis=0), node("Reshape", "x wanted", "b")),
        node("Relu", "b", "y"),
    ]
    first = model(nodes, ["n", 3, "h", 8], ints(two=[2], left=[-1], three=[3], four=[4]))
    net = load(first)
    written = to_model(net)
    for shape in ((2, 3, 6, 8), (5, 3, 4, 8)):
        x = picture(*shape)
        want = session_of(first).run(None, {"x": x})[0]
        for proto in (written, to_model(load(written))):
            got = session_of(proto).run(None, {"x": x})[0]
            np.testing.assert_array_equal(got, want)


def test_an_open_axis_of_one_where_the_network_runs_is_squeezed():
    """A recogniser's height: open in the file, and one row of features at each height that it takes."""
    nodes = [node("AveragePool", "x", "p", kernel_shape=[48, 1], strides=[48, 1]), node("Squeeze", "p two", "y")]
    net = load(model(nodes, ["batch", 3, "height", "width"], ints(two=[2])))
    assert str(net.graph.outputs[0].spec) == "float32[batch, 3, width]"
    x = picture(2, 3, 50, 7)
    np.testing.assert_allclose(net(x).numpy(), x[:, :, :48].mean(2), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match=r"shape \(2, 3, 7\) holds 42 elements, the input has 84"):
        net(picture(2, 3, 96, 7))


def test_products_of_letters_follow_open_axes():
    first = model([node("Einsum", "x x", "y", equation="nchw,ncij->nhwij")], ["n", 3, "h", "w"])
    net = load(first)
    written = to_model(net)
    for shape in ((1, 3, 4, 5), (2, 3, 7, 2)):
        x = picture(*shape)
        want = session_of(first).run(None, {"x": x})[0]
        np.testing.assert_allclose(net(x).numpy(), want, rtol=1e-5, atol=1e-5)
        got = session_of(written).run(None, {"x": x})[0]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mark", ["?", "-1", "None", "unk"])
def test_marks_of_unknown_lengths_are_no_names(mark):
    """Exporters write the same mark on axes of different lengths."""
    net = load(model([node("Relu", "x", "y")], [mark, 3, mark, mark]))
    assert str(net.graph.outputs[0].spec) == "float32[x_0, 3, x_2, x_3]"
    assert net(picture(2, 3, 4, 5)).shape == (2, 3, 4, 5)


def test_what_an_open_size_has_no_form_for_in_a_file_is_said():
    """Places of maxima in padding that depends on the size, and places of an assignment."""
    places = node("MaxPool", "x", "m y", strides=[2, 2], kernel_shape=[3, 3], ceil_mode=1)
    with pytest.raises(GraphError, match=r"node 'm_1' \(max_pool_indices\): its pads is .*follows from open sizes"):
        to_model(load(model([places], OPEN)))
    graph = load(model([node("Relu", "x", "y")], ["n", 4])).graph
    (y,) = graph.outputs
    first, where = graph.constant(np.zeros((), np.float32)), graph.constant(np.zeros(1, np.int64))
    set_outputs(graph, [graph.apply("set_index", y, first, where, attrs={"pattern": ("i", (None, None, None))})])
    with pytest.raises(GraphError, match=r"assignment to a value of the open shape \(n, 4\)"):
        to_model(graph)
    mean = node("AveragePool", "x", "y", kernel_shape=[2, 2], dilations=[2, 2])
    with pytest.raises(GraphError, match=r"a dilated mean of the open shape \(batch, 3, height, width\) exists since"):
        to_model(load(model([mean], OPEN, opset=19)), opset=17)


def test_damaged_sizes_of_files_are_refused(tmp_path):
    net = load(pooling())
    native.save(net, tmp_path / "net.mgt")
    for old, new in ((b'["height", 224]', b'["heig t", 224]'), (b'["height", 224]', b"[17, 224]     ")):
        with zipfile.ZipFile(tmp_path / "net.mgt") as file, zipfile.ZipFile(tmp_path / "bad.mgt", "w") as bad:
            for name in file.namelist():
                bad.writestr(name, file.read(name).replace(old, new))
        with pytest.raises(FileFormatError, match="is no formula of a size|where the formula of a size was expected"):
            native.load(tmp_path / "bad.mgt")


def test_names_of_axes_that_are_no_identifiers(tmp_path):
    """They stay as they are in a written file, and other lengths are tried for them, too."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows (n)", 8])
    nodes = [helper.make_node("Reshape", ["x", "flat"], ["r"]), helper.make_node("Slice", ["r", "a", "b"], ["s"])]
    nodes.append(helper.make_node("Reshape", ["s", "shape"], ["y"]))
    values = {"flat": [-1], "a": [0], "b": [12], "shape": [3, 2, 2]}
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in values.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    first = to_model(load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)))
    assert first.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows (n)"
    second = to_model(load(first))
    assert second.SerializeToString() == first.SerializeToString()
