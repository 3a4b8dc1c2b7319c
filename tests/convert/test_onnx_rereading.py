"""Models with open axes are read at odd sizes too; what differs is refused, or decided in the run."""

import numpy as np
import onnx
import pytest

from megengine.convert.onnx import load
from megengine.convert.onnx.rereading import check_every_size
from megengine.core.errors import FileFormatError
from megengine.core.sizes import named
from megengine.core.spec import TensorSpec
from megengine.plan import compile as compile_plan
from megengine.traced_module import InternalGraph
from megengine.traced_module.editing.expressions import add_input, set_outputs

runtime = pytest.importorskip("onnxruntime")


def _graph(sizes, constant):
    """A number that was computed from a length, added to an input of this open length."""
    length = sizes.get("n", 16)
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((named("n", length),), np.dtype(np.float32)))
    set_outputs(graph, [graph.apply("add", x, graph.constant(np.float32(constant(length))), name="y")])
    return graph


@pytest.mark.parametrize(
    ("constant", "taken"),
    [
        (lambda n: n, lambda n: True),
        (lambda n: n % 16, lambda n: True),  # of all multiples of the example the same
        (lambda n: n % 16, lambda n: n > 34),  # the first lengths are refused by the network
    ],
)
def test_numbers_of_one_length_are_found(constant, taken):
    def read(sizes):
        if not taken(sizes["n"]):
            raise FileFormatError("too short")
        return _graph(sizes, constant)

    with pytest.raises(FileFormatError, match=r"node 'y' \(add\) cannot be read for open axes: a constant is"):
        check_every_size(_graph({}, constant), read)


def test_numbers_of_every_length_pass():
    check_every_size(_graph({}, lambda n: 3), lambda sizes: _graph(sizes, lambda n: 3))


_EVEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b,n] x) => (float[b,n] y) {
    s = Shape (x)
    one = Constant <value = int64 {1}> ()
    two = Constant <value = int64 {2}> ()
    zero = Constant <value = int64 {0}> ()
    n = Gather (s, one)
    rest = Mod (n, two)
    even = Equal (rest, zero)
    y = If (even) <then_branch = a () => (float[b,n] p) { p = Relu (x) },
                   else_branch = e () => (float[b,n] q) { q = Neg (x) }>
}"""


def test_a_remainder_that_is_zero_at_some_lengths_decides_in_the_run():
    model = onnx.parser.parse_model(_EVEN)
    net, session = load(model), runtime.InferenceSession(model.SerializeToString())
    for n in (4, 5, 16):
        x = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
        np.testing.assert_array_equal(compile_plan(net)(x)[0], session.run(None, {"x": x})[0])
