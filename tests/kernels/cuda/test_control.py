"""Ops that run graphs, on the emulated GPU: the bodies run there, and give what they give on the processor."""

import numpy as np
import onnx
import pytest
from cuda_checks import by_reference, on_gpu, same
from emulated_gpu import EmulatedGpu

from megengine.convert.onnx import load
from megengine.core.errors import ShapeError
from megengine.dispatch import get_op
from megengine.kernels.cuda.runtime import installed
from megengine.tensor import Tensor

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
BRANCHES = """g (float[2,3] x, bool c) => (float[2,3] y)
    <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
    z = If (c) <then_branch = a () => (float[2,3] p) { r = MatMul (x, w)
                                                       k = Constant <value = float[3] {1, 2, 3}> ()
                                                       p = Add (r, k) },
                else_branch = b () => (float[2,3] q) { s = Abs (x)
                                                       q = Neg (s) }>
    y = Relu (z) }"""
ROUNDS = """g (float[2] x, int64 n, bool c) => (float[2] y, float[m,2] all) {
    y, all = Loop (n, , x) <body = b (int64 i, bool go, float[2] h) => (bool go_out, float[2] h_out, float[2] o)
        { go_out = Identity (go)
          h_out = If (c) <then_branch = d () => (float[2] p) { p = Add (h, x) },
                          else_branch = e () => (float[2] q) { q = Neg (h) }>
          o = Mul (h_out, x) }> }"""
UNTIL = """g (float[2] x, bool c) => (float[2] y) {
    y = Loop (, c, x) <body = b (int64 i, bool go, float[2] h) => (bool go_out, float[2] h_out)
        { four = Constant <value = int64 {4}> ()
          go_out = Less (i, four)
          h_out = Add (h, x) }> }"""


@pytest.mark.parametrize("op", ["if", "loop"])
def test_samples(op):
    for sample in get_op(op).samples():
        same(on_gpu(op, sample.inputs, sample.attrs), by_reference(op, sample.inputs, sample.attrs))


def results(text, device, inputs):
    net = load(onnx.parser.parse_model(HEAD + text).SerializeToString())
    out = net.to(device)(*[Tensor._wrap(x, x.dtype, device) for x in inputs])
    out = out if isinstance(out, (list, tuple)) else (out,)
    assert {one.spec.device for one in out} == {device}
    return [one.numpy() for one in out]


X = np.array([1.5, -2.0], np.float32)
CALLS = [
    *((BRANCHES, (np.arange(6, dtype=np.float32).reshape(2, 3) - 2, np.array(choice))) for choice in (True, False)),
    *((ROUNDS, (X, np.array(n), np.array(choice))) for n in (0, 1, 3) for choice in (True, False)),
    *((UNTIL, (X, np.array(choice))) for choice in (True, False)),
]


@pytest.mark.parametrize("text, inputs", CALLS)
def test_networks(text, inputs):
    with installed(EmulatedGpu()) as gpu:
        found = results(text, "gpu0", inputs)
        assert gpu.launched or text is not BRANCHES
    same(found, results(text, "cpu0", inputs))


class Growing:
    """A body whose second round gives another shape."""

    def specs(self, given):
        return [given[1], given[2]]

    def run(self, arrays):
        more = int(arrays[0].numpy())
        x = arrays[2]
        return [arrays[1], x if more == 0 else x.reshape((1, *x.shape))]


def test_rounds_that_give_other_shapes_are_refused():
    attrs = {"body": Growing(), "states": 0, "limited": True, "asked": False}
    with pytest.raises(
        ShapeError, match=r"loop: a round gives shape \(1, 2\), the first one \(2,\); expected one shape"
    ):
        on_gpu("loop", (np.array(2), X), attrs)
