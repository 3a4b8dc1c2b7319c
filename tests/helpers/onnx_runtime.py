"""ONNX Runtime as an independent reference."""

import numpy as np


def session_of(model):
    """A session of a model: a ModelProto, or the path of a file."""
    import onnxruntime

    content = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def answers(session, arrays):
    """The results for arrays in the order of the inputs."""
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))


def same(got, wanted):
    """Assert that arrays are equal in shape and dtype, and close in value."""
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
