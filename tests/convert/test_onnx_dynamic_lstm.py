"""com.microsoft::DynamicQuantizeLSTM, as `quantize_dynamic` writes it: every step has the range of its state."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from megengine import plan
from megengine.convert.onnx import export, load
from megengine.core.errors import FileFormatError
from tests.helpers.onnx_runtime import answers, session_of

pytest.importorskip("onnxruntime")

LENGTH, BATCH, WIDTH, HIDDEN = 3, 2, 4, 3


def model(direction="forward", *, several=False, more=(), length=LENGTH, outputs=("y", "y_h", "y_c"), **attrs):
    """A file of one such node; `more` names inputs behind the bias: of lengths, first states and peepholes."""
    rng = np.random.default_rng(3)
    d = 2 if direction == "bidirectional" else 1
    scales = (d, 4 * HIDDEN) if several else (d,)
    arrays = {
        "w": rng.integers(-127, 128, (d, WIDTH, 4 * HIDDEN)).astype(np.int8),
        "r": rng.integers(-127, 128, (d, HIDDEN, 4 * HIDDEN)).astype(np.int8),
        "bias": rng.normal(size=(d, 8 * HIDDEN)).astype(np.float32) * 0.3,
        "lengths": np.full(BATCH, LENGTH, np.int32),
        "h": rng.normal(size=(d, BATCH, HIDDEN)).astype(np.float32),
        "c": rng.normal(size=(d, BATCH, HIDDEN)).astype(np.float32),
        "peephole": rng.normal(size=(d, 3 * HIDDEN)).astype(np.float32),
        **{f"s{k}": rng.uniform(0.004, 0.01, scales).astype(np.float32) for k in "wr"},
        **{f"z{k}": np.zeros(scales, np.int8) for k in "wr"},
    }
    optional = [name if name in more or name == "bias" else "" for name in ("bias", "lengths", "h", "c", "peephole")]
    inputs = ["x", "w", "r", *optional, "sw", "zw", "sr", "zr"]
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        inputs,
        list(outputs),
        "lstm",
        domain="com.microsoft",
        direction=direction,
        hidden_size=HIDDEN,
        **attrs,
    )
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", 1, [length, BATCH, WIDTH])],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
        [numpy_helper.from_array(v, n) for n, v in arrays.items() if n in inputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def data(seed, length=LENGTH):
    return np.random.default_rng(seed).normal(size=(length, BATCH, WIDTH)).astype(np.float32)


def close(made, wanted):
    """A float in the last place may move a rounding of a later step: steps are at most 0.008 of a gate here."""
    for got, want in zip(made, wanted, strict=True):
        assert got.numpy().shape == want.shape
        np.testing.assert_allclose(got.numpy(), want, atol=1e-5)


FILES = {
    "forward": model(),
    "reverse": model("reverse"),
    "bidirectional": model("bidirectional", several=True),
    "first states": model("bidirectional", more=("h", "c")),
    "peepholes": model("reverse", more=("peephole", "c")),
}


@pytest.mark.parametrize("name", FILES)
def test_states_are_those_of_the_runtime(name, tmp_path):
    network, session = load(FILES[name]), session_of(FILES[name])
    export(network, tmp_path / "again.onnx")
    again = session_of(tmp_path / "again.onnx")
    for x in map(data, range(2)):
        wanted = answers(session, [x])
        close(network(x), wanted)
        for got, want in zip(answers(again, [x]), wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)


def test_open_lengths():
    file = model("bidirectional", length="length")
    network, session = load(file), session_of(file)
    compiled = plan.compile(network)
    for length in (1, 4):
        x = data(length, length)
        close(network(x), answers(session, [x]))
        for got, want in zip(compiled(x), answers(session, [x]), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (model(more=("lengths",)), r"lstm': lengths of the sequences of a batch \(sequence_lens\) are not supported"),
        (model(clip=1.0), "activations, clip and input_forget are not supported; expected Sigmoid, Tanh, Tanh"),
        (model(activations=["Relu"] * 3), "activations, clip and input_forget are not supported"),
        (model(input_forget=1), "activations, clip and input_forget are not supported"),
        (model("backward"), "direction is 'backward'; expected one of forward, reverse, bidirectional"),
    ],
)
def test_what_is_not_read_is_refused(file, text):
    with pytest.raises(FileFormatError, match=text):
        load(file)


def test_a_scale_that_is_missing_and_one_result():
    file = model(outputs=("", "y_h"))
    close([load(file)(data(0))], answers(session_of(file), [data(0)]))
    file.graph.node[0].input[8] = ""
    for dynamic in (True, False):
        with pytest.raises(FileFormatError, match="a scale is missing; expected one of each weight"):
            load(file, dynamic=dynamic)
