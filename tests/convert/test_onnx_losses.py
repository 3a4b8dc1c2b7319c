"""Losses of ONNX, whose definitions were written for an older opset than the file's, against ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import helper

from megengine.convert.onnx import load

ort = pytest.importorskip("onnxruntime")

LOGITS = np.random.default_rng(0).standard_normal((3, 5, 2)).astype(np.float32)
LABELS = np.array([[0, 4], [2, 2], [1, 3]])
WEIGHTS = np.linspace(0.5, 2, 5).astype(np.float32)


@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("opset", [13, 17, 22])
@pytest.mark.parametrize("attrs", [{}, {"reduction": "sum", "ignore_index": 2}, {"reduction": "none"}])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses(op_type, opset, attrs, weighted):
    outputs = ["y", "logs"][: 2 if op_type.startswith("Softmax") else 1]
    names = ["x", "t", "w"][: 2 + weighted]
    values = dict(zip(names, (LOGITS, LABELS, WEIGHTS), strict=False))
    ends = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in values.items()
    ]
    results = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([helper.make_node(op_type, names, outputs, **attrs)], "loss", ends, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    made = load(model)(*values.values())
    for got, wanted in zip(made if len(outputs) > 1 else [made], session.run(None, values), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-6)
