"""Networks and data in other float types and of other packages become the integer network of the float32 ones."""

import numpy as np
import onnx.parser
import pytest

from megengine.convert.onnx import load
from megengine.quantization import quantize_model, verify

RNG = np.random.default_rng(0)
XS = [RNG.standard_normal((2, 4)) for _ in range(3)]
WEIGHTS = {"w": RNG.standard_normal((4, 8)), "b": RNG.standard_normal(8), "v": RNG.standard_normal((8, 3))}


def network(dtype):
    """Two layers around an activation; sizes take part in their type, too."""
    kind = {"float64": "double", "float32": "float"}[dtype]
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        net ({kind}[n, 4] x) => ({kind}[n, 3] y)
        {{
            h = MatMul(x, w)
            c = Add(h, b)
            r = Erf(c)
            s = Shape(x)
            d = Cast <to = {11 if dtype == "float64" else 1}> (s)
            t = ReduceMin <keepdims = 0> (d)
            u = Div(r, t)
            y = MatMul(u, v)
        }}""")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a.astype(dtype), n) for n, a in WEIGHTS.items())
    return load(model)


def test_layers_in_float64_are_quantized():
    """Exporters write float64 where a user called `.double()`; additions named two types."""
    wide, plain = (quantize_model(network(dtype), XS) for dtype in ("float64", "float32"))
    assert not wide.report.floating or sum(one.share for one in wide.report.floating) == 0
    assert verify(wide, XS).exact
    for x in XS:
        result = wide(x).numpy()
        assert result.dtype == np.float64
        np.testing.assert_allclose(result, plain(x.astype(np.float32)).numpy(), rtol=1e-6)


def test_tensors_of_pytorch_that_have_gradients_calibrate():
    torch = pytest.importorskip("torch")
    net = network("float32")
    tensors = [torch.tensor(x, dtype=torch.float32, requires_grad=True) for x in XS]
    ours, theirs = (quantize_model(net, data) for data in ([x.astype(np.float32) for x in XS], tensors))
    x = XS[0].astype(np.float32)
    np.testing.assert_array_equal(ours(x).numpy(), theirs(x).numpy())
