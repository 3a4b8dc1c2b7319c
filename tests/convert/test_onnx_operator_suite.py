"""The operator test cases that the onnx package carries, for every operator that can be imported."""

import functools
import importlib
import re
import warnings

import numpy as np
import onnx
import pytest
from onnx.backend.test.case import node as node_cases

from megengine.convert.onnx import load_graph
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError
from megengine.traced_module import interpret

MODULES = [
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "clip",
    "relu",
    "leakyrelu",
    "prelu",
    "elu",
    "sigmoid",
    "tanh",
    "hardsigmoid",
    "hardswish",
    "softmax",
    "logsoftmax",
    "conv",
    "convtranspose",
    "maxpool",
    "averagepool",
    "globalaveragepool",
    "globalmaxpool",
    "batch_normalization",
    "gemm",
    "matmul",
    "concat",
    "split",
    "slice",
    "reshape",
    "flatten",
    "transpose",
    "pad",
    "squeeze",
    "unsqueeze",
    "identity",
    "dropout",
    "gather",
    "resize",
    "depthtospace",
    "spacetodepth",
    "layernormalization",
    "instance_normalization",
    "upsample",
    "groupnormalization",
    "mish",
    "expand",
    "reducemean",
    "reducesum",
    "reducemax",
    "reducemin",
    "reduceprod",
    "abs",
    "neg",
    "exp",
    "log",
    "sqrt",
    "erf",
    "floor",
    "ceil",
    "sign",
    "softplus",
    "min",
    "max",
    "sum",
    "mean",
    "cast",
    "where",
    "constant",
    "reciprocal",
    "gelu",
    "argmax",
    "argmin",
]

# Part of a case's name -> the reason in the error. Every other case must pass.
REFUSED = {
    "batchnorm_.*_training_mode": "training mode",
    "dropout.*_mask": "mask output",
    "training_dropout": "training mode",
    "resize_.*(cubic|antialias)": "expected nearest or linear",
    "resize_.*half_pixel_symmetric": "coordinates 'half_pixel_symmetric'",
    "resize_tf_crop": "coordinates 'tf_crop_and_resize'",
    "resize_.*not_(larger|smaller)": "keep_aspect_ratio_policy",
    "reduce_(max|min)_empty_set": "cannot reduce an empty axis",
}


@functools.cache
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow on purpose
        return _collected()


def _collected():
    for name in MODULES:
        importlib.import_module(f"onnx.backend.test.case.node.{name}")
    return {case.name: case for case in node_cases._NodeTestCases if usable(case)}


def usable(case) -> bool:
    """Cases of plain float32 tensors; other data types and sequences are not what networks here use."""
    if "expanded" in case.name or not case.model.graph.input:
        return False
    kinds = [item.type for item in (*case.model.graph.input, *case.model.graph.output)]
    return (
        all(kind.WhichOneof("value") == "tensor_type" for kind in kinds)
        and np.asarray(case.data_sets[0][0][0]).dtype == np.float32
    )


def stored(model: onnx.ModelProto, arrays: list[np.ndarray]) -> onnx.ModelProto:
    """The same model with every input but the first stored, as weights and shapes are in files."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for item, array in zip(list(made.graph.input)[1:], arrays[1:], strict=True):
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), item.name))
        made.graph.input.remove(item)
    return made


def run(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    graph = load_graph(model.SerializeToString())
    graph.lint()
    return [y.numpy() for y in interpret(graph, [x])]


def reason(name: str) -> str | None:
    return next((why for part, why in REFUSED.items() if re.search(part, name)), None)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op_type", sorted({case.model.graph.node[0].op_type for case in cases().values()}))
def test_every_case_of_the_operator(op_type):
    mine = {n: c for n, c in cases().items() if c.model.graph.node[0].op_type == op_type}
    assert mine
    for name, case in mine.items():
        inputs, outputs = case.data_sets[0]
        if (why := reason(name)) is not None:
            with pytest.raises(FileFormatError, match=why):
                run(stored(case.model, inputs), np.asarray(inputs[0]))
            continue
        got = run(stored(case.model, inputs), np.asarray(inputs[0]))
        for mine_value, wanted in zip(got, outputs, strict=True):
            assert mine_value.shape == np.shape(wanted), name
            # some expected values are written with four digits
            np.testing.assert_allclose(mine_value, wanted, rtol=5e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("op_type", sorted({case.model.graph.node[0].op_type for case in cases().values()}))
def test_export_runs_in_onnxruntime_and_comes_back_the_same(op_type):
    runtime = pytest.importorskip("onnxruntime")
    mine = {n: c for n, c in cases().items() if c.model.graph.node[0].op_type == op_type and reason(n) is None}
    for name, case in mine.items():
        inputs, outputs = case.data_sets[0]
        graph = load_graph(stored(case.model, inputs).SerializeToString())
        model = to_model(graph)
        session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        got = session.run(None, {session.get_inputs()[0].name: np.asarray(inputs[0])})
        for value, wanted in zip(got, outputs, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=5e-4, atol=1e-5, err_msg=name)
        again = to_model(load_graph(model.SerializeToString()))
        operators = [[node.op_type for node in one.graph.node] for one in (model, again)]
        if operators[0] == ["Pad", "Conv", "Div"]:  # zeros in front of a convolution become its padding
            del operators[0][0]
        assert operators[0] == operators[1], name
