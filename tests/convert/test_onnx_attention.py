"""Attention of ONNX Runtime's optimizer of transformers: open batch and lengths, beside the runtime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import load
from megengine.core.errors import FileFormatError
from megengine.plan import compile as compile_plan
from tests.helpers.onnx_runtime import session_of

runtime = pytest.importorskip("onnxruntime")

F4, I4 = TensorProto.FLOAT, TensorProto.INT32
X = [("x", F4, ["b", "s", 8]), ("w", F4, [8, 24]), ("c", F4, [24])]
Q = [("q", F4, ["b", "s", 8]), ("k", F4, ["b", "t", 8]), ("v", F4, ["b", "t", 8])]
PAST = [("pk", F4, ["b", 2, "p", 4]), ("pv", F4, ["b", 2, "p", 4])]
NONE = ("", 0, [])
TABLES = [("e", F4, [9, 8]), ("p", F4, [20, 8]), ("g", F4, [3, 8]), ("scale", F4, [8]), ("shift", F4, [8])]
IDS = [("ids", I4, ["b", "s"]), ("kinds", I4, ["b", "s"])]
CASES = {
    "plain": ("Attention", X, 1, {}),
    "causal": ("Attention", X, 1, {"unidirectional": 1, "scale": 0.3}),
    "lengths": ("Attention", [*X, ("length", I4, ["b"])], 1, {}),
    "keys": ("Attention", [*X, ("mask", I4, ["b", "s"])], 1, {}),
    "pairs": ("Attention", [*X, ("mask", I4, ["b", "s", "s"])], 1, {}),
    "bias": ("Attention", [*X, NONE, NONE, ("a", F4, ["b", 2, "s", "s"])], 1, {}),
    "past": ("Attention", [*X, NONE, ("p", F4, [2, "b", 2, "p", 4])], 2, {"unidirectional": 1}),
    "values": ("Attention", [X[0], ("w", F4, [8, 32]), ("c", F4, [32])], 1, {"qkv_hidden_sizes": [8, 8, 16]}),
    "heads": ("MultiHeadAttention", [*Q, ("c", F4, [24])], 1, {"scale": 0.2}),
    "heads_mask": ("MultiHeadAttention", [*Q, NONE, ("mask", I4, ["b", "t"])], 1, {}),
    "heads_bias": ("MultiHeadAttention", [*Q, NONE, NONE, ("a", F4, [1, 2, "s", "t"])], 1, {}),
    "heads_past": ("MultiHeadAttention", [*Q, NONE, NONE, NONE, *PAST], 3, {}),
    "embedding": ("EmbedLayerNormalization", [*IDS, *TABLES], 2, {"epsilon": 1e-5}),
    "embedding_mask": ("EmbedLayerNormalization", [*IDS, *TABLES, ("mask", I4, ["b", "s"])], 2, {}),
}


def _model(op, inputs, results, attrs):
    heads = {} if op.startswith("Embed") else {"num_heads": 2}
    outs = [f"y{i}" for i in range(results)]
    kinds = [I4 if op.startswith("Embed") and i else F4 for i in range(results)]
    if op.startswith("Embed"):
        outs = (*outs, "m")[:2]  # the runtime wants both
        kinds = [F4, I4]
    node = helper.make_node(op, [name for name, _, _ in inputs], list(outs), domain="com.microsoft", **heads, **attrs)
    infos = [helper.make_tensor_value_info(*one) for one in inputs if one[0]]
    ends = [helper.make_tensor_value_info(n, k, None) for n, k in zip(outs[:results], kinds, strict=False)]
    graph = helper.make_graph([node], "g", infos, ends)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def _value(name, kind, shape, sizes, rng):
    shape = [sizes.get(n, n) for n in shape]
    if kind == F4:
        return rng.standard_normal(shape).astype(np.float32)
    if name == "length":
        return np.arange(*shape, dtype=np.int32) % 3 + 1
    mask = rng.integers(0, 2, shape, np.int32)
    if name == "mask":
        mask[..., 0] = 1
    return mask if name in ("mask", "kinds") else rng.integers(0, 9, shape, np.int32)


@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_the_runtime(name):
    op, inputs, results, attrs = CASES[name]
    model, rng = _model(op, inputs, results, attrs), np.random.default_rng(0)
    net, session = load(model), session_of(model)
    for sizes in ({"b": 1, "s": 3, "t": 4, "p": 2}, {"b": 3, "s": 5, "t": 2, "p": 1}):
        given = {one[0]: _value(*one, sizes, rng) for one in inputs if one[0]}
        for got, want in zip(compile_plan(net)(*given.values()), session.run(None, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_what_is_refused_of_attention():
    with pytest.raises(FileFormatError, match="turns queries and keys"):
        load(_model("Attention", X, 1, {"do_rotary": 1}))
    with pytest.raises(FileFormatError, match=r"its mask is .*; expected \[batch\], \[batch, keys\]"):
        load(_model("Attention", [*X, ("mask", I4, ["b", 1, 4, 4])], 1, {}))
    with pytest.raises(FileFormatError, match="are packed; expected three inputs"):
        load(_model("MultiHeadAttention", [("q", F4, ["b", "s", 2, 3, 4])], 1, {}))
    with pytest.raises(FileFormatError, match=r"num_heads is 2; expected a divisor of 9"):
        load(_model("Attention", [X[0], ("w", F4, [8, 27]), ("c", F4, [27])], 1, {}))
    with pytest.raises(FileFormatError, match="a table or the scale is missing"):
        load(_model("EmbedLayerNormalization", [*IDS, TABLES[0], NONE], 1, {}))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("start", [[3], None])
@pytest.mark.parametrize(("shape", "attrs"), [((2, 5, 16), {}), ((2, 4, 5, 6), {"rotary_embedding_dim": 4})])
def test_rotary_embedding_is_that_of_the_runtime(shape, attrs, start, interleaved):
    rng = np.random.default_rng(1)
    count = attrs.get("rotary_embedding_dim", 8)
    places = np.asarray(rng.integers(0, 9, (2, 5)) if start is None else start)
    angles = rng.uniform(0, 6, (9, count // 2))
    attrs = {**attrs, "interleaved": interleaved, **({"num_heads": shape[1]} if attrs else {})}
    values = {"x": rng.normal(0, 1, shape), "p": places, "cos": np.cos(angles), "sin": np.sin(angles)}
    values = {n: v.astype(np.int64 if n == "p" else np.float32) for n, v in values.items()}
    node = helper.make_node("RotaryEmbedding", [*values], ["y"], "turn", domain="com.microsoft", **attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in values.items()
    ]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", F4, None)])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=sets, ir_version=8)
    (wanted,) = session_of(made).run(None, values)
    np.testing.assert_allclose(load(made)(*values.values()).numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_rotary_embedding_of_packed_rows_is_refused():
    node = helper.make_node("RotaryEmbedding", [*"xpcs"], ["y"], "turn", domain="com.microsoft", is_packed_batching=1)
    infos = [helper.make_tensor_value_info(n, F4 if n != "p" else I4, s) for n, s in PACKED.items()]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", F4, None)])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    with pytest.raises(FileFormatError, match="'turn': is_packed_batching=1 is not supported; expected"):
        load(helper.make_model(graph, opset_imports=sets, ir_version=8))


PACKED = {"x": [2, 5, 8], "p": [2, 5], "c": [9, 4], "s": [9, 4]}


def _stored(op, names, given, results, **attrs):
    """A model of one operator with stored inputs, behind inputs of integers."""
    node = helper.make_node(op, names, results, domain="com.microsoft", **attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in given.items()
        if n in ("x", "ids", "kinds", "mask")
    ]
    values = [numpy_helper.from_array(v, n) for n, v in given.items() if n not in [info.name for info in infos]]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(n) for n in results], values)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8), {i.name: given[i.name] for i in infos}


def _check_stored(*case, **attrs):
    made, fed = _stored(*case, **attrs)
    net, session = load(made), session_of(made)
    results = net(*(fed[item.name] for item in made.graph.input))
    results = results if isinstance(results, (list, tuple)) else [results]
    for got, want in zip(results, session.run(None, fed), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [(), (24,)])
@pytest.mark.parametrize("masked", ["m", ""])
def test_attention_of_integers_is_that_of_the_runtime(columns, masked):
    """As quantize_dynamic leaves an encoder that ONNX Runtime's optimizer fused."""
    rng = np.random.default_rng(2)
    given = {
        "x": rng.integers(0, 256, (2, 5, 8)).astype(np.uint8),
        "w": rng.integers(-127, 128, (8, 24)).astype(np.int8),
        "c": rng.standard_normal(24).astype(np.float32),
        "step": np.float32(0.02),
        "steps": rng.uniform(0.005, 0.02, columns).astype(np.float32),
        "m": np.int32([5, 3]),
        "zero": np.uint8(120),
        "zeros": np.zeros(columns, np.int8),
    }
    names = ["x", "w", "c", "step", "steps", masked, "zero", "zeros"]
    _check_stored("QAttention", names, given, ["y"], num_heads=2, unidirectional=1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_embedding_of_integers_is_that_of_the_runtime(dtype):
    rng = np.random.default_rng(3)
    ends, tables = np.iinfo(dtype), {"e": (9, 8), "p": (20, 8), "g": (3, 8), "scale": (8,), "shift": (8,)}
    given = {n: rng.integers(ends.min, ends.max, s).astype(dtype) for n, s in tables.items()}
    given |= {n: rng.integers(0, 3, (2, 5)).astype(np.int32) for n in ("ids", "kinds")}
    given |= {"mask": np.int32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])}
    given |= {f"{n}_step": np.float32(0.01 * (k + 1)) for k, n in enumerate(tables)}
    given |= {f"{n}_zero": np.asarray(k + 1, dtype) for k, n in enumerate(tables)}
    names = ["ids", "kinds", *tables, "mask", *(f"{n}_step" for n in tables), *(f"{n}_zero" for n in tables)]
    _check_stored("QEmbedLayerNormalization", names, given, ["y", "kept"], epsilon=1e-5)
    with pytest.raises(FileFormatError, match="a table, the scale or a step of these is missing"):
        load(_stored("QEmbedLayerNormalization", [*names[:5], *[""] * 13], given, ["y", "kept"])[0])


def test_operators_of_torch_before_the_standard_had_them():
    """torch.tril, grid_sample and inverse, by the domain of the runtime."""
    x = np.random.default_rng(4).standard_normal((2, 1, 3, 3)).astype(np.float32)
    grid = np.random.default_rng(5).uniform(-1, 1, (2, 3, 3, 2)).astype(np.float32)
    _check_stored("Trilu", ["x", "k"], {"x": x, "k": np.int64(-1)}, ["y"], upper=0)
    _check_stored("GridSample", ["x", "grid"], {"x": x, "grid": grid}, ["y"], padding_mode="border")
    _check_stored("Inverse", ["x"], {"x": x}, ["y"])
