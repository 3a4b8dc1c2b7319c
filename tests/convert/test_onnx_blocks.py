"""Weights that ONNX Runtime packs in few bits, with a scale for each block: its results."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import load
from megengine.core.errors import FileFormatError
from megengine.quantization import quantize_model, verify
from tests.helpers.onnx_runtime import answers, session_of

pytest.importorskip("onnxruntime")
DEPTH, WIDTH, BLOCK = 40, 6, 16  # the last block is not full, and a row of zero points ends within a byte
BLOCKS = -(-DEPTH // BLOCK)
ORDER = np.random.default_rng(1).integers(0, BLOCKS, DEPTH).astype(np.int32)  # the block of each column


def made(op, inputs, stored, **attrs):
    node = helper.make_node(op, [*inputs, *stored], ["y"], "it", domain="com.microsoft", **attrs)
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in stored.items() if name],
    )
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def product(bits, zeros, **stored):
    rng = np.random.default_rng(bits)
    packed = {
        None: {},
        "bytes": {"z": rng.integers(0, 256, (WIDTH, -(-BLOCKS * bits // 8))).astype("u1")},
        "floats": {"z": rng.uniform(0, 3, (WIDTH, BLOCKS)).astype("f4")},
    }[zeros]
    weight = {
        "w": rng.integers(0, 256, (WIDTH, BLOCKS, BLOCK * bits // 8)).astype("u1"),
        "s": rng.uniform(0.1, 1, WIDTH * BLOCKS).astype("f4"),
    }
    sizes = {"K": DEPTH, "N": WIDTH, "bits": bits, "block_size": BLOCK}
    return made("MatMulNBits", {"x": (TensorProto.FLOAT, ("n", DEPTH))}, {**weight, **packed, **stored}, **sizes)


@pytest.mark.parametrize("zeros", [None, "bytes", "floats"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_are_the_runtimes(bits, zeros):
    if (bits, zeros) == (8, "floats"):
        pytest.skip("ONNX Runtime has no such kernel")
    model, x = product(bits, zeros), np.random.default_rng(9).standard_normal((3, DEPTH)).astype("f4")
    wanted = answers(session_of(model), [x])[0]
    np.testing.assert_allclose(load(model)(x).numpy(), wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("zeros", [None, "floats"])
def test_columns_of_a_block_need_not_follow_each_other(zeros):
    """With zero points in bytes ONNX Runtime 1.32 computes as if there were none."""
    model, x = product(4, zeros, g=ORDER), np.random.default_rng(9).standard_normal((3, DEPTH)).astype("f4")
    if zeros is None:
        model.graph.node[0].input.insert(3, "")
    wanted = answers(session_of(model), [x])[0]
    np.testing.assert_allclose(load(model)(x).numpy(), wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_such_a_product_becomes_an_integer_layer():
    net, rng = load(product(4, "bytes")), np.random.default_rng(0)
    rows = rng.standard_normal((4, 3, DEPTH)).astype("f4")
    quantized = quantize_model(net, rows)
    assert quantized.report.integer_layers == 1
    assert verify(quantized, rows[:1]).exact


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_tables_are_the_runtimes(bits, zeros):
    rng = np.random.default_rng(bits)
    stored = {
        "t": rng.integers(0, 256, (5, 48 * bits // 8)).astype("u1"),
        "i": np.array([[0, 3, 4], [1, 1, 2]]),
        "s": rng.uniform(0.1, 1, (5, 3)).astype("f4"),
    }
    if zeros:
        stored["z"] = rng.integers(0, 256, (5, -(-3 * bits // 8))).astype("u1")
    at = stored.pop("i")
    model = made("GatherBlockQuantized", {}, stored, block_size=16, bits=bits, gather_axis=0, quantize_axis=1)
    model.graph.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, at.shape))
    model.graph.node[0].input.insert(1, "i")
    np.testing.assert_array_equal(load(model)(at).numpy(), answers(session_of(model), [at])[0])


def test_forms_that_are_refused():
    refused = [
        (product(4, "bytes", g=ORDER + 1), "g_idx names the block of each of 40 columns, from 0 to 2; got"),
        (product(4, "bytes", g=ORDER[1:]), "g_idx names the block of each of 40 columns"),
        (product(4, None, s=np.ones(5, "f4")), r"scales \(5,\) hold no matrix \(6, 40\) in blocks of 16"),
        (made("MatMulNBits", {"x": (1, (2, 4)), "w": (2, (4, 4))}, {"s": np.ones(4, "f4")}), "input 'w' is computed"),
    ]
    bad = product(4, None)
    bad.graph.node[0].attribute[[a.name for a in bad.graph.node[0].attribute].index("bits")].i = 3
    for model, said in [*refused, (bad, "bits 3; expected positive numbers, and bits 2, 4, 8")]:
        with pytest.raises(FileFormatError, match=f"'it': .*{said}"):
            load(model)
