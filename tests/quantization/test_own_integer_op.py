"""An op of one's own in integer networks: two records, the float op and its integer op, and nothing else."""

import pytest

from megengine.core.spec import TensorSpec
from megengine.dispatch import QuantRule, define, no_onnx, not_differentiable
from megengine.dispatch.record import undefine
from megengine.kernels.reference import integer
from megengine.ops.quantized import output_of
from tests.helpers.quant_nets import ops
from tests.quantization.test_transformers import Rows, checked

_NONE = (not_differentiable("a test"), no_onnx("a test"), tuple)


def _steps(a, b, ra, rb, lo, hi, dtype, in_specs, **_):
    z_a, z_b = (spec.dtype.zero_point for spec in in_specs)
    return integer.add(a, b, output_of(dtype, lo, hi), ra=ra, rb=rb, z_a=z_a, z_r=z_b)


@pytest.fixture
def average():
    rule = QuantRule(
        "pair",
        "qaverage",
        lambda a, b, y: {"ra": integer.ratio(a, y) / 2, "rb": integer.ratio(b, y) / 2, **integer.ends(y)},
    )
    define("average", lambda a, b: a, lambda a, b: (a + b) / 2, *_NONE, quant=rule)
    infer = lambda a, b, *, ra, rb, lo, hi, dtype: TensorSpec(a.shape, dtype, a.device)  # noqa: E731
    define("qaverage", infer, _steps, *_NONE, needs_specs=True)
    yield
    undefine("average")
    undefine("qaverage")


def test_the_rule_of_a_record_makes_integers_of_an_op(average):
    b = Rows()
    y = b.op("average", b.linear(b.x, 16), b.linear(b.x, 16), label="mixed")
    model = checked(b, b.linear(b.op("relu", y), 4), least=20)
    assert ops(model.integer_graph) == ["quantize", "qlinear", "qlinear", "qaverage", "qlinear"]
