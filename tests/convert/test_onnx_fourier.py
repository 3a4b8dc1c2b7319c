"""Fourier transforms along open axes: the results of NumPy at every length, even and odd."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from megengine import plan
from megengine.convert.onnx import export, load
from tests.helpers.onnx_runtime import answers, session_of

pytest.importorskip("onnxruntime")
FORMS = {
    "one-sided": (0, 1, 1, lambda z: np.fft.rfft(z.real, axis=1)),
    "of real numbers": (0, 0, 1, lambda z: np.fft.fft(z, axis=1)),
    "of complex numbers": (0, 0, 2, lambda z: np.fft.fft(z, axis=1)),
    "inverse": (1, 0, 2, lambda z: np.fft.ifft(z, axis=1)),
    "inverse of one side": (1, 1, 2, lambda z: np.fft.irfft(z, axis=1)),
}


@pytest.mark.parametrize("name", FORMS)
def test_transforms_of_open_lengths(name, tmp_path):
    inverse, one_sided, parts, reference = FORMS[name]
    nodes = [
        helper.make_node("Constant", [], ["axis"], value_int=1),
        helper.make_node("DFT", ["x", "", "axis"], ["y"], inverse=inverse, onesided=one_sided),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "length", parts])
    graph = helper.make_graph(nodes, "net", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    net = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    export(net, tmp_path / "again.onnx")
    session = session_of(tmp_path / "again.onnx")
    for length in (9, 16):
        x = np.random.default_rng(length).standard_normal((2, length, parts)).astype(np.float32)
        wanted = reference(x[..., 0] + (1j * x[..., 1] if parts == 2 else 0))
        wanted = np.stack([wanted.real, wanted.imag][: 1 if wanted.dtype.kind == "f" else 2], -1)
        for got in (net(x).numpy(), plan.compile(net)(x)[0], answers(session, [x])[0]):
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-6 * length)
