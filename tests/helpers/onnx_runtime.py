"""ONNX Runtime as an independent reference."""

import numpy as np


def session_of(model, **options):
    """A session of a model: a ModelProto, its bytes, or the path of a file; `options` are attributes of SessionOptions.

    It has one thread: to begin and to end a pool of threads takes longer than to run most models of the tests.

    Without `x64quantprecision` sums of uint8 x int8 saturate at 16 bits on processors without VNNI:
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.x64quantprecision", "1")
    for name, value in {"intra_op_num_threads": 1, **options}.items():
        setattr(settings, name, value)
    if not isinstance(model, bytes):
        model = model.SerializeToString() if hasattr(model, "SerializeToString") else str(model)
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def answers(session, arrays):
    """The results for arrays in the order of the inputs."""
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))


def same(got, wanted):
    """Assert that arrays are equal in shape and dtype, and close in value."""
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
