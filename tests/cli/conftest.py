"""What the tests of the command share: running it as users do, and a small network."""

import signal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from warm_process import WarmProcess


@pytest.fixture(scope="session")
def python(interrupts_arrive):
    """Runs a program in a process of its own."""
    with WarmProcess() as process:
        yield process


@pytest.fixture(scope="session")
def run(python):
    """The command in a process of its own."""

    def call(*words, cwd=None, **env):
        return python("from megengine.cli import main; main()", words, cwd=cwd, **env)

    return call


@pytest.fixture(scope="session")
def one_line_error():
    """Checks exit code and form of an error; gives its line."""

    def check(done, code=1):
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("mge-quantize: "), done.stderr
        return lines[0]

    return check


@pytest.fixture(scope="session")
def little():
    """Makes a small convolutional network as an ONNX model; `weight` and `activation` can be made bad."""

    def make(weight=None, activation="Relu"):
        rng = np.random.default_rng(0)
        w = (rng.standard_normal((4, 3, 3, 3)) / 5).astype(np.float32) if weight is None else weight
        v = rng.standard_normal((4, 2)).astype(np.float32)
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], "/body/conv/Conv", pads=[1, 1, 1, 1]),
            helper.make_node(activation, ["c"], ["r"], "/body/relu/Relu"),
            helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
            helper.make_node("Flatten", ["p"], ["f"], "flat"),
            helper.make_node("Gemm", ["f", "v"], ["y"], "head"),
        ]
        x = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])]
        y = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        stored = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")]
        graph = helper.make_graph(nodes, "little", x, y, stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    return make


@pytest.fixture(scope="session")
def model(little, tmp_path_factory):
    """The small network as a .onnx file."""
    path = tmp_path_factory.mktemp("model") / "little.onnx"
    onnx.save(little(), path)
    return path


@pytest.fixture(scope="session", autouse=True)
def interrupts_arrive():
    """A shell starts its background jobs with SIGINT ignored, and what they start inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
