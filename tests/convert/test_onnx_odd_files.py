"""Files that ONNX Runtime takes although something in them is unusual: they give its values."""

import ml_dtypes
import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, ValueInfoProto, helper, numpy_helper, save_model

from megengine.convert.onnx import export, folding, load
from megengine.convert.onnx.inferred_specs import inferred_specs
from megengine.core.errors import FileFormatError
from tests.helpers.onnx_runtime import answers, session_of

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
VALUES = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
OPSET = helper.make_opsetid("", 17)


def stored(name, value):
    return numpy_helper.from_array(np.asarray(value), name)


def model(nodes, initializers=(), outputs=(Y,), functions=()):
    graph = helper.make_graph(nodes, "net", [X], list(outputs), list(initializers))
    opsets = [OPSET, helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def node(op_type, inputs, outputs, **attrs):
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attrs)


def leaky():
    """Slope, a function whose slope is 0.25 where a call does not say it."""
    inner = node("LeakyRelu", "a", "b")
    inner.attribute.append(AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="alpha"))
    default = [helper.make_attribute("alpha", 0.25)]
    return helper.make_function("own", "Slope", ["a"], ["b"], [inner], [OPSET], [], default)


def twice():
    """A function that calls another one, with and without its attribute."""
    nodes = [node("Slope", "a", "t", domain="own"), node("Slope", "t", "b", domain="own", alpha=3.0)]
    opsets = [OPSET, helper.make_opsetid("own", 1)]
    return helper.make_function("own", "Twice", ["a"], ["b"], nodes, opsets)


def branches():
    inner = helper.make_graph([node("Slope", "x", "z", domain="own")], "inner", [], [Y])
    inner.output[0].name = "z"
    return node("If", "flag", "y", then_branch=inner, else_branch=inner)


def stored_in_a_body():
    """A loop as ONNX Runtime saves it: a tensor of the body is an input of it, too."""
    i, flag, x, w = (helper.make_tensor_value_info(n, k, s) for n, k, s in BODY)
    nodes = [node("Add", "v w", "z"), node("Identity", "c", "d")]
    ends = [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("z", 1, [2, 3])]
    body = helper.make_graph(nodes, "inner", [i, flag, x, w], ends, [stored("w", np.float32([1, 2, 3]))])
    return node("Loop", "rounds flag x", "y", body=body)


def scanned(kind, count):
    """Rounds that are never made, and what they give: a loop without one, and a scan of no row."""
    before = [helper.make_tensor_value_info(n, k, s) for n, k, s in BODY[:2]] if kind == "Loop" else []
    row = [helper.make_tensor_value_info("r", FLOAT, [3])] if kind == "Scan" else []
    ends = [helper.make_tensor_value_info("d", BOOL, [])] if kind == "Loop" else []
    ends += [helper.make_tensor_value_info(name, FLOAT, [2, 3]) for name in ("z", "all")]
    nodes = [node("Add", "v r" if row else "v v", "z"), node("Abs", "z", "all")]
    nodes += [node("Identity", "c", "d")] if kind == "Loop" else []
    body = helper.make_graph(nodes, "inner", [*before, helper.make_tensor_value_info("v", FLOAT, [2, 3]), *row], ends)
    extra = {"num_scan_inputs": 1, "scan_output_axes": [1]} if kind == "Scan" else {}
    inputs = "x rows" if kind == "Scan" else "none flag x"
    return [node(kind, inputs, "last every", body=body, **extra), node("Concat", "every every", "y", axis=count)]


FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
BODY = [("i", INT64, []), ("c", BOOL, []), ("v", FLOAT, [2, 3]), ("w", FLOAT, [3])]
FILES = {
    "a stored input of a body": model([stored_in_a_body()], [stored("rounds", np.int64(2)), stored("flag", True)]),
    "an attribute of a function by its default": model([node("Slope", "x", "y", domain="own")], functions=[leaky()]),
    "in a function": model([node("Twice", "x", "y", domain="own")], functions=[twice(), leaky()]),
    "in a branch": model([branches()], [stored("flag", True)], functions=[leaky()]),
    "a function named like an operator": model(
        [node("LeakyRelu", "x", "y")],
        functions=[helper.make_function("", "LeakyRelu", ["a"], ["b"], [node("Neg", "a", "b")], [OPSET])],
    ),
    "a loop without a round": model(
        scanned("Loop", 0), [stored("none", np.int64(0)), stored("flag", True)], (ValueInfoProto(name="y"),)
    ),
    "negative powers of integers": model(
        [node("Pow", "bases powers", "w"), node("Cast", "x", "n", to=INT64), node("Pow", "n powers", "y")],
        [stored("bases", np.int64([-2, -1, 1])), stored("powers", np.int64([-1, -3, 2]))],
        (ValueInfoProto(name="y"), ValueInfoProto(name="w")),
    ),
    "no node": model([], outputs=(X,)),
    "no node, and stored numbers as results": model(
        [], [stored("w", np.float32([1, 2]))], outputs=(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]), X)
    ),
    "a flag of 3 is not set": model(
        [node("ReduceMax", "x", "y", keepdims=3), node("ArgMin", "x", "z", keepdims=-1)],
        outputs=(ValueInfoProto(name="y"), ValueInfoProto(name="z")),
    ),
    "text that nothing reads": model(
        [node("Constant", "", "note", value_string="text"), node("Neg", "x", "y")],
        [helper.make_tensor("words", TensorProto.STRING, [1], [b"text"])],
    ),
    "two tensors of one name": model(
        [node("Add", "x w", "y")], [stored("w", np.float32([1, 2, 3])), stored("w", np.float32([4, 5, 6]))]
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_unusual_files_give_the_runtimes_values(name, tmp_path):
    pytest.importorskip("onnxruntime")
    wanted = answers(session_of(FILES[name], log_severity_level=4), [VALUES])
    network = load(FILES[name])
    export(network, tmp_path / "again.onnx")
    made = network(VALUES)
    for one in (made if isinstance(made, (list, tuple)) else [made], load(tmp_path / "again.onnx")(VALUES)):
        for got, value in zip(one if isinstance(one, (list, tuple)) else [one], wanted, strict=True):
            np.testing.assert_array_equal(got.numpy(), value)


def test_a_scan_of_no_row_gives_nothing_of_the_shape_of_a_round():
    """ONNX Runtime refuses to scan an axis of length 0."""
    empty = stored("rows", np.zeros((0, 3), np.float32))
    net = load(model(scanned("Scan", 1), [empty], [ValueInfoProto(name=name) for name in ("last", "y")]))
    last, joined = net(VALUES)
    np.testing.assert_array_equal(last.numpy(), VALUES)
    assert joined.shape == (2, 0, 3)


def test_text_that_a_node_reads_is_refused():
    words = helper.make_tensor("words", TensorProto.STRING, [1], [b"text"])
    with pytest.raises(FileFormatError, match="tensor 'words': data type 8 is not a number type"):
        load(model([node("Add", "x words", "y")], [words]))
    with pytest.raises(FileFormatError, match="expected a number value"):
        load(model([node("Constant", "", "w", value_string="text"), node("Add", "x w", "y")]))


def test_a_constant_without_a_result():
    nodes = [helper.make_node("Constant", [], [], value_float=1.0), node("Neg", "x", "y")]
    np.testing.assert_array_equal(load(model(nodes))(VALUES).numpy(), -VALUES)


def with_text(where, text):
    """A file that says a text in some place."""
    made = FILES["in a branch"].__class__.FromString(FILES["in a branch"].SerializeToString())
    (call,) = made.graph.node
    if where == "metadata of a node":
        call.metadata_props.add(key=text, value="1")
    elif where == "metadata of the model":
        made.metadata_props.add(key="key", value=text)
    elif where == "an attribute":
        call.attribute[0].name = text
    elif where == "a node of a branch":
        call.attribute[0].g.node[0].name = text
    elif where == "an open axis":
        made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = text
    elif where == "a file beside":
        made.graph.initializer[0].external_data.add(key="location", value=text)
    else:
        made.functions[0].node[0].input[0] = text
    return made.SerializeToString()


PLACES = ["metadata of a node", "metadata of the model", "an attribute", "a node of a branch", "an open axis"]


@pytest.mark.parametrize("where", [*PLACES, "a file beside", "a function"])
def test_text_that_is_damaged_is_refused(where):
    content = with_text(where, "some-text")
    with pytest.raises(FileFormatError, match="a name in it is not valid text; the file is damaged"):
        load(content.replace(b"some-text", b"some\xfftext"))


LONG = np.ones(100_000, np.float32)
GROWING = {
    "an outer product": ("MatMul", {}, [LONG[:, None], LONG[None]]),
    "an outer choice": ("Where", {}, [np.array([True]), LONG[:, None], LONG[None]]),
    "a row many times": ("Gather", {}, [LONG[None], np.zeros(LONG.size, np.int64)]),
    "far strides": ("ConvTranspose", {"strides": [1 << 18] * 2}, [np.ones((1, 1, 2, 2), np.float32)] * 2),
    "a wide border": ("Conv", {"pads": [1 << 16] * 4}, [np.ones((1, 1, 2, 2), np.float32)] * 2),
    "a long window": ("HannWindow", {}, [np.array(1 << 33)]),
    "one tensor many times": ("Concat", {"axis": 0}, [LONG] * 3000),
}


@pytest.mark.parametrize("name", GROWING)
def test_constants_that_few_stored_numbers_make_are_refused(name):
    op_type, attrs, values = GROWING[name]
    names = {id(value): f"w{id(value)}" for value in values}
    tensors = [stored(names[key], value) for key, value in {id(v): v for v in values}.items()]
    nodes = [
        helper.make_node(op_type, [names[id(v)] for v in values], ["c"], "bomb", **attrs),
        node("ReduceSum", "c", "s", keepdims=0),
        node("Add", "x s", "y"),
    ]
    with pytest.raises(FileFormatError, match=f"{op_type} node 'bomb': makes a constant of [0-9]+ values; at most"):
        load(model(nodes, tensors))


def test_the_number_of_parts_is_that_of_the_results():
    """A number that is damaged would be a loop without an end."""
    parts = helper.make_node("Split", ["x"], ["y", "z"], "cut", num_outputs=1 << 40)
    made = model([parts])
    made.opset_import[0].version = 18
    with pytest.raises(FileFormatError, match="Split node 'cut': num_outputs is 1099511627776; it has 2 outputs"):
        load(made)


def test_a_tensor_becomes_no_sequence_without_an_end():
    nodes = [helper.make_node("SplitToSequence", ["x"], ["s"], "cut", axis=0), node("SequenceAt", "s i", "y")]
    made = model(nodes, [stored("i", np.int64(0))])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 20
    with pytest.raises(FileFormatError, match="parts of 1 of an axis of 1048576; at most 10000 parts are accepted"):
        load(made)


def test_nodes_that_no_result_follows_from_may_be_anything():
    nodes = [node("Foo", "x", "a", domain="own"), node("StringNormalizer", "words", "b"), node("Neg", "x", "y")]
    words = helper.make_tensor("words", TensorProto.STRING, [1], [b"text"])
    np.testing.assert_array_equal(load(model(nodes, [words]))(VALUES).numpy(), -VALUES)
    inner = helper.make_graph([node("Foo", "x", "a", domain="own"), node("Neg", "x", "z")], "inner", [], [Y])
    inner.output[0].name = "z"
    made = model([node("If", "flag", "y", then_branch=inner, else_branch=inner)], [stored("flag", True)])
    np.testing.assert_array_equal(load(made)(VALUES).numpy(), -VALUES)


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "float32"])
def test_external_data_of_few_bits_and_of_constants(kind, tmp_path):
    """Values of few bits share bytes; a Constant may lie beside the model like other tensors."""
    values = np.arange(-2, 1).astype(np.int8) if kind != "uint4" else np.arange(3, dtype=np.uint8)
    weight = stored("w", values.astype(getattr(ml_dtypes, kind, np.float32)))
    real = node("DequantizeLinear", "w s", "v") if kind != "float32" else node("Mul", "w s", "v")
    nodes = [node("Constant", "", "k", value=stored("k", np.float32([1, 2, 3]))), real]
    nodes += [node("Mul", "x v", "m"), node("Add", "m k", "y")]
    made = model(nodes, [weight, stored("s", np.float32(0.5))])
    made.opset_import[0].version = 25
    save_model(made, tmp_path / "net.onnx", save_as_external_data=True, size_threshold=0, convert_attribute=True)
    wanted = VALUES * (values * np.float32(0.5)) + np.float32([1, 2, 3])
    np.testing.assert_array_equal(load(tmp_path / "net.onnx")(VALUES).numpy(), wanted)


def test_formulas_of_sizes_do_not_grow_without_an_end():
    """Each step made the formula longer by 1.6: a file of some nodes took minutes and all of the memory."""
    nodes = [node("Shape", "x", "s"), node("Gather", "s one", "d0")]
    for i in range(40):
        nodes += [
            node("Add", f"d{i} one", f"e{i}"),
            node("Div", f"e{i} two", f"f{i}"),
            node("Mul", f"f{i} three", f"d{i + 1}"),
        ]
    nodes += [node("Expand", "x d40", "y")]
    made = model(nodes, [stored(name, np.int64([value])) for name, value in (("one", 1), ("two", 2), ("three", 3))])
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    with pytest.raises(FileFormatError, match="a formula of more than 10000 letters; give a fixed length"):
        load(made)


@pytest.mark.parametrize(("levels", "values"), [(30, 1), (10, 1 << 20)])
def test_functions_that_double_again_and_again_are_refused(levels, values):
    inner = [node("Constant", "", "k", value=stored("k", np.ones(values, np.float32))), node("Relu", "a", "b")]
    opsets = [OPSET, helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "F0", ["a"], ["b"], inner, opsets)]
    for level in range(levels):
        twice = [node(f"F{level}", a, b, domain="own") for a, b in ("am", "mb")]
        functions.append(helper.make_function("own", f"F{level + 1}", ["a"], ["b"], twice, opsets))
    with pytest.raises(FileFormatError, match=r"stand for more than 1,000,000 nodes or 2 GiB"):
        load(model([node(f"F{levels}", "x", "y", domain="own")], functions=functions))


def test_random_numbers_that_fill_the_memory_are_refused():
    bomb = helper.make_node("RandomNormal", [], ["r"], "bomb", shape=[1 << 33])
    with pytest.raises(FileFormatError, match="node 'bomb': makes 8589934592 random numbers; at most"):
        load(model([bomb, node("Add", "x r", "y")]))


def test_memory_that_ends_while_a_node_is_read_is_said(monkeypatch):
    def none_left(*args, **kwargs):
        raise MemoryError("Unable to allocate 512 MiB")

    monkeypatch.setattr("megengine.convert.onnx.importer.made_of", none_left)
    with pytest.raises(FileFormatError, match="node 'y': there is not enough memory for it .Unable to allocate 512"):
        load(model([node("Relu", "x", "y")]))


def test_constants_that_a_file_computes_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(folding, "MAX_BYTES", 1 << 16)
    nodes = [node("ConstantOfShape", "s", f"c{k}") for k in range(12)]
    made = model(
        [*nodes, node("Sum", " ".join(["x", *(f"c{k}" for k in range(12))]), "y")], [stored("s", [1024, 2, 3])]
    )
    with pytest.raises(FileFormatError, match="^ConstantOfShape node 'c2': the constants that the file computes take"):
        load(made)
    monkeypatch.undo()
    assert load(made)(VALUES).shape == (1024, 2, 3)


def test_constants_that_double_are_not_carried_through_the_inference():
    """Behind a node that is refused, the shapes of others are those that ONNX infers."""
    doubled = [node("Concat", f"d{k} d{k}", f"d{k + 1}", axis=0) for k in range(40)]
    made = model([*doubled, node("Add", "x x", "y")], [stored("d0", np.array([1, 2]))], outputs=[])
    made.graph.output.add().name = "d40"
    assert inferred_specs(made, {})["y"].shape == (2, 3)


def test_a_loop_that_nothing_ends_is_refused():
    kinds = {"i": (TensorProto.INT64, []), "on": (TensorProto.BOOL, []), "more": (TensorProto.BOOL, [])}
    kinds |= dict.fromkeys("vw", (TensorProto.FLOAT, [2, 3]))
    infos = {name: helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()}
    inputs, outputs = [infos[n] for n in ("i", "on", "v")], [infos[n] for n in ("more", "w")]
    body = helper.make_graph([node("Identity", "on", "more"), node("Add", "v v", "w")], "body", inputs, outputs)
    made = model([helper.make_node("Loop", ["", "", "x"], ["y"], body=body)])
    with pytest.raises(FileFormatError, match="^Loop node 'y': it has no number of rounds, and its body always asks"):
        load(made)
