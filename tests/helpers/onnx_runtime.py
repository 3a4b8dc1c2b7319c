"""ONNX Runtime as an independent reference."""

import numpy as np


def session_of(model, **options):
    """A session of a model: a ModelProto, or the path of a file; `options` are attributes of SessionOptions.

    Without `x64quantprecision` sums of uint8 x int8 saturate at 16 bits on processors without VNNI:
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.x64quantprecision", "1")
    for name, value in options.items():
        setattr(settings, name, value)
    content = model.SerializeToString() if hasattr(model, "SerializeToString") else str(model)
    return onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])


def answers(session, arrays):
    """The results for arrays in the order of the inputs."""
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))


def same(got, wanted):
    """Assert that arrays are equal in shape and dtype, and close in value."""
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
