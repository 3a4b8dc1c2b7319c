"""Own kernels of 4-bit weights against the executable specification, at every instruction set of this machine."""

import numpy as np
import pytest

from megengine.core.dtype import quantized
from megengine.core.spec import TensorSpec
from megengine.dispatch import infer
from megengine.kernels import int4, isa
from tests.kernels.test_int8 import CONVS, check, problem_of, values
from tests.kernels.test_int16 import FITTING, TYPES, arrays_of

FOUR = quantized("qint4", 0.1)
KINDS = [("u8z", "s8", None), ("s8z", "u8z", "s8z"), ("s16", "s16", "s16"), ("u8", "float32", None)]
LINEAR = {"rows": (13, 1, 7), "outputs": (1, 17, 64, 130), "inputs": (1, 21, 64)}


@pytest.fixture(params=isa.available())
def level(request):
    with isa.capped(request.param):
        yield request.param


def check_layer(op, x, w, geometry, kinds, name, *, rare=False):
    kind, out, residual = kinds
    dtype = TYPES.get(out, out)
    lo, hi = (dtype.qmin - dtype.zero_point, dtype.qmax - dtype.zero_point) if out in TYPES else (0, 0)
    arrays = arrays_of(x, w, kind)
    arrays[1] = np.random.default_rng(3).integers(-8, 8, w).astype(np.int8)
    if rare:
        arrays[1][...] = -8
    attrs = {**geometry, "lo": lo, "hi": hi, "ratio": 0.0, "dtype": dtype}
    dtypes = [TYPES[kind], FOUR, *[a.dtype for a in arrays[2:]]]
    if residual:
        attrs["ratio"] = 0.7109375
        specs = [TensorSpec(a.shape, d) for a, d in zip(arrays, dtypes, strict=True)]
        arrays.append(values(TYPES[residual], infer(op, specs, attrs).shape, 9))
        dtypes.append(TYPES[residual])
    check(op, arrays, dtypes, attrs, name=name, constants=(1, 2, 3, 4))


@pytest.mark.parametrize("case", FITTING)
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_convolution(level, case, kinds):
    check_layer("qconv2d", *CONVS[case], kinds, "int4_conv")


@pytest.mark.parametrize("rows", LINEAR["rows"])
@pytest.mark.parametrize("outputs", LINEAR["outputs"])
@pytest.mark.parametrize("inputs", LINEAR["inputs"])
def test_linear(level, rows, outputs, inputs):
    for kinds in (KINDS[0], KINDS[3]):
        check_layer("qlinear", (rows, inputs), (outputs, inputs), {}, kinds, "int4_linear", rare=inputs == 64)


def test_what_the_kernels_leave_to_others():
    def reason(shape, weight, groups=1):
        specs = [TensorSpec((1, shape[1] * groups, 4, 4), TYPES["u8"]), TensorSpec(shape, weight)]
        specs += [TensorSpec((shape[0],), np.dtype(t)) for t in ("i4", "f4", "f4")]
        window = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": groups}
        attrs = {**window, "lo": 0, "hi": 255, "ratio": 0.0, "dtype": TYPES["u8"]}
        return int4.int4_conv.usable(problem_of("qconv2d", specs, attrs))

    assert reason((8, 4, 3, 3), FOUR) is None
    assert "not of 4 bits" in reason((8, 4, 3, 3), quantized("qint8", 0.1))
    assert "depthwise" in reason((8, 1, 3, 3), FOUR, groups=8)
