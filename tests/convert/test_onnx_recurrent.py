"""RNN, GRU and LSTM: what ONNX Runtime computes, and the same operator again on export."""

import numpy as np
import onnx
import pytest
from onnx import helper

from megengine import plan
from megengine.convert.onnx import load_graph
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError
from megengine.traced_module import interpret
from tests.helpers.onnx_runtime import session_of

runtime = pytest.importorskip("onnxruntime")

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = ("h", "c")
CASES = {
    "plain": ("LSTM", (), {}),
    "everything": ("LSTM", ("B", "lengths", "h", "c", "P"), {"direction": "bidirectional"}),
    "reverse": ("LSTM", ("B", "lengths"), {"direction": "reverse"}),
    "clip": ("LSTM", ("B",), {"clip": 0.25}),
    "input_forget": ("LSTM", ("B",), {"input_forget": 1}),
    "other_functions": (
        "LSTM",
        ("B",),
        {"activations": ["HardSigmoid", "Softsign", "ScaledTanh"], "activation_alpha": [0.3, 1.5]}
        | {"activation_beta": [0.25, 0.5]},
    ),
    "two_directions_apart": (
        "GRU",
        ("B", "lengths", "h"),
        {"direction": "bidirectional", "activations": ["Sigmoid", "Tanh", "HardSigmoid", "Relu"]},
    ),
    "gru": ("GRU", (), {}),
    "reset_behind": ("GRU", ("B", "h"), {"linear_before_reset": 1}),
    "rnn": ("RNN", ("B", "lengths", "h"), {"direction": "bidirectional"}),
    "leaky": ("RNN", ("B",), {"activations": ["LeakyRelu"], "activation_alpha": [0.2]}),
    "affine": ("RNN", (), {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.125]}),
    "elu": ("RNN", (), {"activations": ["Elu"], "activation_alpha": [1.5]}),
}


def model_of(op, given, attrs, *, time=5, batch=3, features=4, hidden=6, outputs=None, **more):
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    gates = GATES[op] * hidden
    rng = np.random.default_rng(7)
    stored = {
        "W": (directions, gates, features),
        "R": (directions, gates, hidden),
        "B": (directions, 2 * gates),
        "h": (directions, batch, hidden),
        "c": (directions, batch, hidden),
        "P": (directions, 3 * hidden),
    }
    names = [n if n in (*"XWR", *given) else "" for n in ("X", "W", "R", "B", "lengths", "h", "c", "P")]
    arrays = {n: rng.uniform(-1, 1, stored[n]).astype(np.float32) for n in names if n in stored}
    if "lengths" in given:
        arrays["lengths"] = np.array([time, 1, time - 2][:batch], np.int32)
    outputs = outputs or ["Y", "Yh", "Yc"][: 3 if op == "LSTM" else 2]
    while not names[-1]:
        names.pop()
    node = helper.make_node(op, names, outputs, hidden_size=hidden, **attrs, **more)
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs if n]
    x = helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [time, batch, features])
    graph = helper.make_graph([node], "g", [x], infos, [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, rng.standard_normal((time, batch, features)).astype(np.float32)


def by_runtime(model, x):
    session = session_of(model)
    return session.run(None, {session.get_inputs()[0].name: x})


def close(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_graph_plan_and_export_agree_with_the_runtime(case):
    model, x = model_of(*CASES[case])
    wanted = by_runtime(model, x)
    graph = load_graph(model.SerializeToString())
    graph.lint()
    close([y.numpy() for y in interpret(graph, [x])], wanted)
    compiled = plan.compile(graph)
    assert not any(step.kernel == "reference" for step in compiled.steps)
    close(compiled(x), wanted)
    again = to_model(graph)
    close(by_runtime(again, x), wanted)
    assert to_model(load_graph(again.SerializeToString())).graph.node == again.graph.node


def test_the_batch_may_come_first():
    model, x = model_of("GRU", ("B",), {"direction": "bidirectional"})
    wanted, last = by_runtime(model, x)
    model.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [3, 5, 4]))
    graph = load_graph(model.SerializeToString())
    y, state = (v.numpy() for v in interpret(graph, [np.ascontiguousarray(x.transpose(1, 0, 2))]))
    close([y, state], [wanted.transpose(2, 0, 1, 3), last.transpose(1, 0, 2)])


def test_results_that_nothing_reads_may_be_left_out():
    model, x = model_of("LSTM", ("B",), {}, outputs=["", "Yh"])
    close([v.numpy() for v in interpret(load_graph(model.SerializeToString()), [x])], by_runtime(model, x))


@pytest.mark.parametrize(
    ("attrs", "match"),
    [
        ({"direction": "up"}, "direction is 'up'; expected one of forward, reverse, bidirectional"),
        ({"hidden_size": 5}, "hidden_size is 5; its recurrence weight is"),
        ({"activations": ["Tanh", "Sine", "Tanh"]}, "activations is .* expected 3 of Relu"),
        ({"activations": ["Tanh"]}, "activations is .* expected 3 of Relu"),
    ],
)
def test_what_is_refused(attrs, match):
    model, _ = model_of("LSTM", ("B",), {})
    node = model.graph.node[0]
    kept = [a for a in node.attribute if a.name not in attrs]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in attrs.items())])
    with pytest.raises(FileFormatError, match=match):
        load_graph(model.SerializeToString())
