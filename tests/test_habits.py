"""Calls that programs for MegEngine rely on give what MegEngine 1.13.0 gave (tests/recording/habits.py)."""

import copy
import json
from pathlib import Path

import habits
import idioms
import numpy as np
import pytest
from answers import same

import megengine
import megengine.data
import megengine.functional as F
import megengine.quantization
import megengine.traced_module
from megengine import Parameter, tensor
from megengine.core.errors import DTypeError
from megengine.core.tensor.dtype import qint8

ANSWERS = json.loads((Path(__file__).parent / "data" / "recorded" / "habits.json").read_text())


@pytest.mark.parametrize("name", habits.HABITS)
def test_habits(name):
    same(idioms.plain(habits.HABITS[name](megengine)), ANSWERS[name], name)


def test_public_functions_show_their_code():
    for function in (F.relu, F.conv2d, F.add, F.reshape):
        assert "inp" in function.__code__.co_varnames or "x" in function.__code__.co_varnames
        assert function.__code__.co_filename.startswith(str(Path(megengine.__file__).parent.resolve().parent))


def test_tensors_are_made_again_of_what_they_give():
    for t in (megengine.tensor([1.5, 2.0]), megengine.tensor(3), megengine.Parameter([1.0])):
        values, dtype, device = t.__getnewargs__()
        again = type(t)(values, dtype, device)
        assert (again.dtype, again.device, again.numpy().tolist()) == (t.dtype, t.device, t.numpy().tolist())
    quantized = megengine.tensor([1.0, 2.0]).astype(qint8(0.5))
    assert megengine.Tensor(*quantized.__getnewargs__()).numpy().tolist() == quantized.numpy().tolist()


def late_tracking():
    norm = megengine.module.BatchNorm2d(3, track_running_stats=False)
    norm.track_running_stats = True
    return norm(F.ones((1, 3, 2, 2)))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (late_tracking, "track_running_stats was False when the layer was made"),
        (lambda: megengine.autodiff.GradManager().attach(megengine.tensor([1])), "expected .* floating-point dtype"),
        (lambda: megengine.quantization.create_qparams("nonsense"), "create_qparams: mode is 'nonsense'"),
        (
            lambda: megengine.quantization.QConfig(None, megengine.quantization.MinMaxObserver(), None, None),
            r"act_observer is MinMaxObserver that is made already; expected .* functools.partial\(MinMaxObserver",
        ),
        (lambda: copy.copy(megengine.data.Infinite([[3]])).nonsense, "nonsense"),
    ],
)
def test_refusals(call, text):
    with pytest.raises((AssertionError, AttributeError), match=text):
        call()


@pytest.mark.parametrize("function", [np.prod, np.sum, np.max, np.min, np.mean])
def test_functions_of_numpy_take_shapes_that_are_traced(function):
    class Net(megengine.module.Module):
        def forward(self, x):
            return x * function(x.shape)

    traced = megengine.traced_module.trace_module(Net(), F.ones((2, 3)))
    assert traced(F.ones((5, 3))).numpy()[0, 0] == function((5, 3))
    x = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    assert float(function(megengine.tensor(x))) == function(x)
    with pytest.raises(TypeError, match="out"):
        function(megengine.tensor(x), out=x)


VALUES = [
    np.ones(3),
    np.ones((2, 2), np.int64),
    [1, 2],
    3.0,
    2,
    np.float32(3),
    np.ones(2, bool),
    np.ones(2, np.float16),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_reset_gives_arrays_and_numbers_the_dtype_that_is_there(value):
    p = Parameter(np.zeros(3, np.float32))
    p._reset(value)
    np.testing.assert_array_equal(p.numpy(), np.asarray(value, np.float32), strict=True)


def test_reset_takes_other_tensors_as_they_are_and_refuses_text():
    p = Parameter(np.zeros(3, np.float32))
    p._reset(tensor([1, 2]))
    assert p.dtype == np.int32 and p.shape == (2,)
    with pytest.raises(DTypeError, match="text"):
        p._reset("a")
