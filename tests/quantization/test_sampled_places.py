"""Places that a network computes and samples pictures at stay in float, with the whole numbers that they are cut to."""

import numpy as np
from onnx import helper, numpy_helper

from megengine.convert.onnx import load
from megengine.quantization import quantize_model, verify
from tests.helpers.onnx_runtime import answers, session_of

SIZE = 32


def warped(rng):
    """A picture whose features are moved by up to three pixels, as a flow says that a layer computes."""
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, SIZE, dtype=np.float32)]), axis=-1)[None]
    stored = {
        **{"w": rng.normal(0, 0.3, (8, 3, 3, 3)), "f": rng.normal(0, 0.2, (2, 8, 3, 3))},
        **{
            "c": rng.normal(0, 0.2, (4, 8, 3, 3)),
            "h": rng.normal(0, 0.2, (3, 4, 3, 3)),
            "grid": grid,
            "reach": np.array(0.2),
        },
    }
    node, pads = helper.make_node, {"pads": [1, 1, 1, 1]}
    nodes = [
        *(node("Conv", ["x", "w"], ["a"], **pads), node("Relu", ["a"], ["r"]), node("Conv", ["r", "f"], ["b"], **pads)),
        *(node("Tanh", ["b"], ["t"]), node("Mul", ["t", "reach"], ["moved"])),
        *(node("Transpose", ["moved"], ["flow"], perm=[0, 2, 3, 1]), node("Add", ["flow", "grid"], ["places"])),
        *(node("Conv", ["r", "c"], ["s"], **pads), node("GridSample", ["s", "places"], ["g"], align_corners=1)),
        *(node("Relu", ["g"], ["kept"]), node("Conv", ["kept", "h"], ["y"], **pads)),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [info("x", 1, [1, 3, SIZE, SIZE])],
        [info("y", 1, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_flow_is_no_coarser_than_its_layer():
    """In 8 bits the places had steps of an eighth of a pixel, and fractions of them others: 15 dB."""
    rng = np.random.default_rng(0)
    model = warped(rng)
    batches = [np.kron(rng.standard_normal((1, 3, 4, 4)), np.ones((8, 8))).astype(np.float32) for _ in range(4)]
    quantized, runtime = quantize_model(load(model), batches), session_of(model)
    wanted = np.stack([np.asarray(answers(runtime, [x])[0]) for x in batches])
    got = np.stack([quantized(x).numpy() for x in batches])
    assert 10 * np.log10(np.mean(np.square(wanted)) / np.mean((got - wanted) ** 2)) > 28
    assert {one.op for one in quantized.report.floating} >= {"floor", "sub"}
    assert quantized.report.integer_layers == 4
    assert verify(quantized, batches[:1]).exact
