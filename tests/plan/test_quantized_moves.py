"""Values that are moved and then quantized are quantized first in plans where that rounds fewer numbers."""

import numpy as np
import pytest

from megengine import plan, tensor
from megengine.core.dtype import qint8, quint8
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply
from megengine.kernels import isa
from megengine.traced_module import record

SHAPE = (1, 2, 4, 5, 6)
CODES = quint8(0.05, 3)


def quantized(x, dtype=CODES):
    return apply("quantize", x, dtype=dtype)


def border(x, value=0.0, mode="constant"):
    widths = ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0))
    return apply("pad", x, widths=widths, mode=mode, value=value)


def planes(x):
    return apply("concat", x[:, :, :-2], x[:, :, 1:-1], x[:, :, 2:], axis=1)


MOVES = {  # name -> function, how many steps come before the integers if others follow
    "windows of a volume": (lambda x: quantized(planes(border(x)).transpose(0, 2, 1, 3, 4)), 0),
    "border of zeros": (lambda x: quantized(border(x)), 0),
    "mirrored border": (lambda x: quantized(border(x, mode="reflect")), 0),
    "scales of its own": (lambda x: quantized(border(x), qint8((0.1, 0.05), axis=1)), None),
    "border of another number": (lambda x: quantized(border(x, 0.5)), None),
    "a part": (lambda x: quantized(x[:, :1]), None),
    "a turn": (lambda x: quantized(x.transpose(0, 2, 1, 3, 4)), None),
    "used twice": (lambda x: (quantized(planes(y := border(x))), y), 1),  # behind the border
    "joined with a constant": (lambda x: quantized(apply("concat", x, x, tensor(np.ones(SHAPE, "f4")), axis=2)), None),
    "an output": (lambda x: (y := border(x), quantized(y)), 1),
}


@pytest.mark.parametrize("name", MOVES)
def test_the_integers_of_the_eager_run(name):
    function, behind = MOVES[name]
    x = np.random.default_rng(3).normal(0, 4, SHAPE).astype(np.float32)
    x[0, 0, 0, 0] = [np.inf, -np.inf, 0.125, 0.175, -0.0, 1e-30]
    graph = record(function, [TensorSpec(SHAPE, x.dtype)])
    wanted = function(tensor(x))
    for level in isa.available():
        with isa.capped(level):
            compiled = plan.compile(graph)
            for got, want in zip(compiled(x), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
                np.testing.assert_array_equal(got, want.numpy())
    steps = [s.op for s in compiled.steps]
    assert steps.index("quantize") == (behind if behind is not None else len(steps) - 1)
