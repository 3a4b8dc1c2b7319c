"""Calls that random ones (`make fuzz-calls`) found to go wrong once."""

from typing import Any

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.optimizer as optim
from megengine import amp
from megengine.autodiff import jvp
from megengine.core import dtype
from megengine.core.dtype import qint8
from megengine.core.errors import ArgumentError, DTypeError, MegEngineError, OptionError, ShapeError
from megengine.functional import quantized
from megengine.plan import compile
from megengine.quantization import MinMaxObserver, create_qparams, fake_quant_tensor
from megengine.tensor import Parameter, Tensor
from megengine.traced_module import lower, trace_module

quantized_dtype: Any = dtype.quantized


def ones(*shape, dtype="float32"):
    return Tensor(np.ones(shape), dtype=dtype)


@pytest.mark.parametrize(
    ("op", "count", "advice"), [("neg", 1, "logical_not, or .astype"), ("sub", 2, "logical_xor, or .astype")]
)
def test_truth_values_have_no_negative(op, count, advice):
    """A graph refuses the edit; NumPy's error came when it ran."""
    truth = ones(2, dtype="bool")
    with pytest.raises(DTypeError, match=f"{op}: .* bool; expected numbers; use {advice}"):
        getattr(F, op)(*[truth] * count)
    graph = lower(trace_module(M.Identity(), truth)).graph
    with pytest.raises(DTypeError, match=f"{op}: .* bool; expected numbers"):
        graph.apply(op, *[graph.inputs[0]] * count)


@pytest.mark.parametrize("call", [lambda x: x.transpose(), lambda x: x.T, lambda x: F.transpose(x, ())])
def test_the_transposed_scalar_is_a_scalar(call):
    out = call(mge.tensor(2.0))
    assert (out.shape, out.numpy().shape, out.item()) == ((), (), 2.0)


@pytest.mark.parametrize("flip", [False, True])
def test_of_several_values_for_one_place_the_last_stays(flip):
    index, values = np.array([[0, 1], [0, 1], [0, 1]], np.int32), np.arange(6, dtype=np.float32).reshape(3, 2)
    if flip:  # the same values, with negative strides
        index, values = (a[::-1].copy()[::-1] for a in (index, values))
    out = F.scatter(mge.tensor(np.zeros((2, 2), np.float32)), 0, Tensor._wrap(index), Tensor._wrap(values))
    np.testing.assert_array_equal(out.numpy(), [[4, 0], [0, 5]])


HALF: Any = 0.5


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "bool", "float32"])
@pytest.mark.parametrize("descending", [False, True])
def test_the_smallest_number_sorts_as_such(dtype, descending):
    least = 0 if dtype == "bool" else -np.inf if dtype == "float32" else np.iinfo(dtype).min
    x = np.array([1, least, 1, 0, least], np.dtype(dtype))
    values, order = F.sort(Tensor(x, dtype=dtype), descending=descending)
    expected = sorted(range(5), key=lambda i: (-float(x[i]) if descending else float(x[i]), i))
    np.testing.assert_array_equal(order.numpy(), expected)  # of equal ones the first comes first
    np.testing.assert_array_equal(values.numpy(), x[expected])


COMPLEX = F.complex(ones(), ones())
NO_TAPS = ones(3, 3, 0, 3, 3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.conv3d(ones(1, 3, 4, 4, 5), NO_TAPS), ShapeError, "conv3d: the window .* has no taps"),
        (lambda: F.conv_transpose3d(ones(1, 3, 4, 4, 5), NO_TAPS), ShapeError, "conv_transpose3d: .* has no taps"),
        (lambda: M.LSTMCell(3, 2)(ones(1, 3), ones(1, 2)), ArgumentError, r"hx is tensor .*; expected the states"),
        (
            lambda: M.LSTM(3, 2)(ones(1, 1, 3), ones(1, 1, 2)),
            ArgumentError,
            r"LSTM: hx is tensor .*; expected the states",
        ),
        (lambda: M.GRU(3, 2)(ones(1, 1, 3), (ones(1, 1, 2),)), ArgumentError, r"GRU: hx is .*; expected one tensor"),
        (lambda: ones(2)[ones(1).astype(qint8(0.5))], DTypeError, "getitem: an index is qint8.*; expected integers"),
        (lambda: F.roll(ones(2), 1, ones(1, 0)), OptionError, "roll: axis is a Tensor; expected an integer"),
        (lambda: quantized_dtype([], 0.5), DTypeError, r"unknown quantized dtype \[\]"),
        (lambda: quantized_dtype(0, 0.5), DTypeError, "unknown quantized dtype 0; expected one of"),
        (lambda: F.floor(COMPLEX), ArgumentError, "floor: it is not defined for tensors of this dtype"),
        (
            lambda: int(COMPLEX),
            DTypeError,
            r"a tensor of complex64 is no real number; take its .real\(\)",
        ),
        (lambda: float(COMPLEX), DTypeError, "no real number"),
        (lambda: F.clip(1.5, 1 << 2000, 1), ArgumentError, "clip: a number is too large for its type"),
        (lambda: jvp(F.sin, [ones(2)], [np.ones(2)]), ArgumentError, "jvp: tangents hold .*; expected tensors"),
        (
            lambda: ones(2, 3).__contains__(np.ones((7, 3))),
            ShapeError,
            r"does not broadcast to .* \(2, 3\)",
        ),
        (lambda: ones(2, 3).__dlpack__(stream=1), BufferError, "stream is 1; expected None"),
        (lambda: ones(2).__array__(dtype=0), DTypeError, "__array__: dtype is 0"),
        (lambda: ones(2).astype({}), DTypeError, "a dict is no dtype of numbers"),
        (lambda: ones(2).astype(object), DTypeError, "no dtype of numbers"),
        (lambda: qint8({}), DTypeError, "qint8: scale is a dict, zero point 0; expected numbers"),
        (lambda: qint8(0.5, HALF), DTypeError, "zero point 0.5; expected numbers, the latter an integer"),
        (lambda: MinMaxObserver()(np.ones(3)), ArgumentError, "x_orig is array float64.* expected a tensor"),
    ],
)
def test_what_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("shape", [(5, 4), ()])
def test_scales_along_an_axis_are_as_many_as_its_entries(shape):
    dtype = qint8((0.5, 0.25, 1.0), axis=0)
    with pytest.raises(ShapeError, match="has 3 scales along axis 0; the shape is"):
        ones(*shape).astype(dtype)
    with pytest.raises(ShapeError, match="fake_quant_away: .* has 3 scales along axis 0"):
        fake_quant_tensor(ones(*shape), create_qparams(dtype_meta="qint8", scale=Tensor([0.5, 0.25, 1.0])))


def test_scales_may_be_given_as_numbers():
    given: Any = 0.5
    assert create_qparams(dtype_meta="qint8", scale=given).dtype.scale == 0.5


def test_the_bias_of_a_quantized_convolution_is_one_value_a_channel():
    x, w = (Tensor(np.ones(s), dtype=qint8(0.5)) for s in ((1, 4, 5, 5), (3, 4, 2, 2)))
    with pytest.raises(ShapeError, match=r"conv_bias_activation: bias has shape .*; expected \(1, 3, 1, 1\)"):
        quantized.conv_bias_activation(x, w, ones(1, 3, 2, 2), qint8(0.5))


@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (1, 4), (1, 1, 1, 4), (2, 4, 1, 1), (3, 1, 1), (1, 3)], ids=str)
def test_biases_of_convolutions_broadcast(shape):
    class Net(M.Module):
        def forward(self, x):
            return F.conv2d(x, w, bias)

    rng = np.random.default_rng(0)
    x, kernel, terms = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 5, 4), (4, 3, 1, 1), shape))
    w, bias = Tensor(kernel), Tensor(terms)
    if shape in ((3, 1, 1), (1, 3)):  # a number per channel: three
        w, terms = Tensor(kernel[:3]), terms.reshape(1, 3, 1, 1)
    expected = np.einsum("nchw,oc->nohw", x.astype(np.float64), w.numpy()[:, :, 0, 0]) + terms
    traced = trace_module(Net(), Tensor(x))
    for found in (Net()(Tensor(x)), traced(Tensor(x)), compile(traced)(Tensor(x))[0]):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5)
    with amp.autocast():
        assert F.conv2d(Tensor(x), w, bias).dtype == np.float16


@pytest.mark.parametrize("shape", [(3,), (2, 2, 1, 1), (1, 1, 2, 4), (1, 1, 1, 5, 4)], ids=str)
def test_biases_that_do_not_fit_are_refused(shape):
    with pytest.raises(ShapeError, match=r"conv2d: bias has shape .*; expected \(6,\)"):
        F.conv2d(ones(1, 3, 5, 4), ones(6, 3, 1, 1), ones(*shape))
    with pytest.raises(ShapeError, match=r"conv2d: x has shape .*, w \(3,\)"):
        F.conv2d(ones(1, 3, 5, 4), ones(3), ones(*shape))


def test_lengths_that_are_none_are_kept_in_graphs_too():
    class Net(M.Module):
        def forward(self, x):
            return F.transpose(F.broadcast_to(x, (2, None, 4)), ())

    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    expected = np.transpose(np.broadcast_to(x, (2, 3, 4)))
    for found in (Net()(Tensor(x)), trace_module(Net(), Tensor(x))(Tensor(x))):
        np.testing.assert_array_equal(found.numpy(), expected, strict=True)


def test_new_axes_have_a_length_and_axes_are_integers():
    for shape in ((None, 3), (None, None), [None, 2, 3]):
        with pytest.raises(ShapeError, match=r"broadcast_to: shape is .*; expected the length of a new axis"):
            F.broadcast_to(ones(3), shape)
    with pytest.raises(ShapeError, match="broadcast_to"):
        F.broadcast_to(ones(2, 3), (None,))
    for axis in (Tensor([0.5]), Tensor([0, 1]), np.array([0, 1])):
        with pytest.raises(MegEngineError, match="cumsum: axis"):
            F.cumsum(ones(2, 3), axis)


def test_the_index_of_an_empty_and_vast_tensor():
    x = F.zeros((0, 1 << 40))
    assert x[np.zeros(0, np.int32)].shape == (0, 1 << 40)


ONE_BETA: Any = (0.9,)


def trained():
    p = Parameter(np.ones((2, 3), np.float32))
    return p, optim.Adam([p], lr=0.1)


NUMBERS_IN_LISTS = {"param_groups": [{"params": [[0]]}], "state": {}}
WITHOUT_RATE = {"param_groups": [{"params": [0], "lr": None}], "state": {}}
STATE_OF_TEXTS = {"param_groups": [{"params": [0]}], "state": {0: {"exp_avg": ""}}}


def test_gradients_are_tensors():
    p, adam = trained()
    p.grad = 3
    with pytest.raises(ArgumentError, match="Adam: a gradient is 3; expected a tensor"):
        adam.step()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda adam: adam.add_param_group({"params": 0}), ArgumentError, "params is 0; expected parameters"),
        (lambda adam: adam.load_state_dict({"param_groups": 0, "state": {}}), ArgumentError, "param_groups is 0"),
        (
            lambda adam: adam.load_state_dict({"param_groups": [0], "state": {}}),
            ArgumentError,
            r"is \[0\]; expected",
        ),
        (lambda adam: adam.load_state_dict({**adam.state_dict(), "state": 0}), ArgumentError, "state is 0; expected"),
        (lambda adam: adam.load_state_dict({**adam.state_dict(), "state": {0: 1}}), ArgumentError, "state is dict"),
        (lambda adam: adam.load_state_dict(NUMBERS_IN_LISTS), ArgumentError, "expected dicts with numbered params"),
        (lambda adam: adam.load_state_dict(WITHOUT_RATE), ArgumentError, "Adam: lr is None; expected a number"),
        (lambda adam: adam.load_state_dict(STATE_OF_TEXTS), ArgumentError, "of parameter 0 is ''; expected numbers"),
        (lambda adam: optim.Adam([Parameter(1.0)], lr=0.1, betas=ONE_BETA), ArgumentError, "expected two numbers"),
    ],
)
def test_what_optimizers_refuse(call, error, text):
    p, adam = trained()
    with pytest.raises(error, match=text):
        call(adam)
    assert [len(g["params"]) for g in adam.param_groups] == [1]
    p.grad = ones(2, 3)
    adam.step()


def test_any_number_is_a_bias_or_none():
    number: Any = 2
    assert M.LSTM(3, 2, bias=number)(ones(4, 1, 3))[0].shape == (4, 1, 2)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("full", [False, True])
def test_singular_values_of_what_is_not_finite(value, full):
    """NumPy's own routine does not come back from infinite elements."""
    with pytest.raises(OptionError, match="svd: inp has elements that are infinite or not a number"):
        F.svd(mge.tensor(np.float32([[1, value], [2, 3]])), full_matrices=full)


def test_masks_and_devices_and_ways_of_computing():
    x = mge.tensor(np.ones((2, 2), np.float32))
    for call, match in (
        (lambda: F.where(x, x, x), "where: mask is float32; expected bool"),
        (lambda: F.concat([x, x], device="cpx"), "unknown device 'cpx'"),
        (lambda: F.stack([x, x], device="cpx"), "unknown device 'cpx'"),
        (lambda: F.matmul(x, x, compute_mode="floatt32"), "did you mean 'float32'"),
        (lambda: M.Linear(2, 2, compute_mode="floatt32"), "Linear: compute_mode is 'floatt32'"),
        (lambda: M.Conv3d(2, 2, 1, conv_mode="convolution"), "Conv3d: conv_mode is 'convolution'"),
        (lambda: M.AvgPool2d(2, mode="averag"), "AvgPool2d: mode is 'averag'.*did you mean 'average'"),
        (lambda: M.BatchNorm2d(2, eps="small"), "BatchNorm2d: eps is 'small'; expected a number"),
        (lambda: M.MaxPool2d((2, 2, 2)), r"MaxPool2d: kernel_size is \(2, 2, 2\); expected an integer or 2 of"),
        (lambda: M.ReLU(name=3), "ReLU: name is 3; expected a string"),
        (lambda: amp.autocast(low_prec_dtype="float61"), "autocast: low_prec_dtype is 'float61'.*mean 'float16'"),
    ):
        with pytest.raises(MegEngineError, match=match):
            call()
    assert F.concat([x, x], device="cpu0").device == "cpu0"
    assert M.MaxPool2d([2, 2])(x.reshape(1, 1, 2, 2)).shape == M.MaxPool2d(2.0)(x.reshape(1, 1, 2, 2)).shape


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("mode", ["average", "average_count_exclude_padding"])
def test_means_of_more_elements_than_the_integer_type_counts(dtype, mode):
    x = np.arange(256).reshape(1, 1, 16, 16) % 100
    found = F.avg_pool2d(Tensor(x, dtype=dtype), 16, mode=mode)
    assert found.item() == (int(x.mean()) if mode == "average" else round(x.mean()))
