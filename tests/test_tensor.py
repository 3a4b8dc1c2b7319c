"""Tensors are values: storage rules, dtypes, conversions, devices, errors, and the cost of importing them."""

import copy
import operator
import pickle
import subprocess
import sys

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.dtype import as_dtype, bfloat16, qint8, quantized, quint8
from megengine.core.errors import DeviceError, DTypeError, OptionError
from megengine.core.spec import TensorSpec
from megengine.dispatch import Interposer, apply, interpose
from megengine.dispatch.record import define
from megengine.tensor import Parameter, Tensor, tensor


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, "float32"),
        (3, "int32"),
        (True, "bool"),
        (2**40, "int64"),
        (np.array([1, 2**31], np.int64), "int64"),
        (np.array([1, 2], np.int64), "int32"),
        (np.zeros(2, np.float64), "float32"),
        (np.zeros(2, np.float16), "float16"),
        (np.zeros(2, np.uint8), "uint8"),
    ],
)
def test_dtype_without_one(value, dtype):
    assert tensor(value).dtype == np.dtype(dtype)
    np.testing.assert_array_equal(tensor(value).numpy(), value)


@pytest.mark.parametrize("dtype", ["float64", "int64", "bfloat16", np.float16, np.dtype(np.uint8)])
def test_explicit_dtype_is_honoured(dtype):
    assert tensor([1, 2], dtype=dtype).dtype == as_dtype(dtype)
    assert tensor([1.0, 2.0]).astype(dtype).dtype == as_dtype(dtype)


def test_result_dtypes():
    x = tensor([0.5, 1.5, -2.5])
    assert F.argmax(x).dtype == np.int32
    assert F.full((2,), 3).dtype == np.int32
    assert F.full((2,), 3.0).dtype == np.float32
    np.testing.assert_array_equal(F.round(x).numpy(), [1, 2, -3])
    assert F.var(tensor([1.0, 2, 3, 4])).item() == 1.25
    assert F.mean(tensor(np.full(100_000, 10, np.float16))).item() == 10
    np.testing.assert_array_equal((x**2).numpy(), (x * x).numpy())


def test_storage_is_shared_with_nobody():
    source = np.arange(3.0)
    x = tensor(source)
    source[0] = 9
    reshaped, same = x.reshape(3, 1), x
    x[1] = 7
    np.testing.assert_array_equal(x.numpy(), [0, 7, 2])
    np.testing.assert_array_equal(reshaped.numpy().ravel(), [0, 1, 2])
    assert same is x
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 1


IN_PLACE = {
    "iadd": [[5, 4], [3, 4]],
    "isub": [[1, 0], [-1, 0]],
    "imul": [[6, 4], [2, 4]],
    "itruediv": [[1.5, 1], [0.5, 1]],
    "ifloordiv": [[1, 1], [0, 1]],
    "imod": [[1, 0], [1, 0]],
    "ipow": [[9, 4], [1, 4]],
    "ilshift": [[12, 8], [4, 8]],
    "irshift": [[0, 0], [0, 0]],
    "imatmul": [[11, 10], [5, 6]],
}


@pytest.mark.parametrize("kind", [Tensor, Parameter])
@pytest.mark.parametrize("name", [*IN_PLACE, "iand", "ior", "ixor"])
def test_operators_in_place_change_the_tensor_itself(name, kind):
    start = np.array([[3, 2], [1, 2]], np.int32 if name.endswith("shift") else np.float32)
    other, wanted = 2, IN_PLACE.get(name)
    if wanted is None:
        start, other = start > 1, np.array([[True, False], [True, False]])
        wanted = getattr(operator, name[1:] + "_" * (name != "ixor"))(start, other)
    x = kind(start)
    before = x.detach()
    y = getattr(operator, name)(x, before if name == "imatmul" else other)
    assert y is x
    assert type(x) is kind
    np.testing.assert_array_equal(x.numpy(), wanted)
    np.testing.assert_array_equal(before.numpy(), start)


def test_operators_in_place_may_change_dtype_and_shape():
    x = y = tensor([1, 2])
    y += 2.5
    assert (x.dtype, x.spec.dtype) == (np.float32, np.float32)
    y += np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(x.numpy(), [[4.5, 5.5], [4.5, 5.5]])


def test_parameters_are_updated_in_place():
    net = M.Linear(2, 2)
    weight = net.weight
    net.weight -= net.weight
    assert net.weight is weight
    assert [name for name, _ in net.named_parameters()] == ["bias", "weight"]
    np.testing.assert_array_equal(weight.numpy(), np.zeros((2, 2)))


@pytest.mark.parametrize("dtype", [None, "bfloat16", qint8(0.5), quint8(0.25, 7)])
def test_copies_and_pickles(dtype):
    for kind in (Tensor, Parameter):
        x = kind([1, 2, 3], dtype=dtype)
        for again in (copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
            assert type(again) is kind
            assert again.spec == x.spec
            np.testing.assert_array_equal(again.numpy(), x.numpy())


def test_numpy_and_dlpack():
    x = tensor([[1.0, 2.0]])
    np.testing.assert_array_equal(np.asarray(x), x.numpy())
    taken = np.from_dlpack(x)
    assert not np.shares_memory(taken, x.numpy())
    assert isinstance(np.float32(2) * x, Tensor)
    assert len(list(x)) == 1


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: tensor("text"), DTypeError, "which is text"),
        (lambda: tensor([[1], [1, 2]]), DTypeError, "rectangular nesting"),
        (lambda: tensor(1, dtype="flaot32"), DTypeError, "did you mean 'float32'"),
        (lambda: as_dtype(3.5), DTypeError, "3.5 is not a dtype"),
        (lambda: quantized("qint9", 1.0), DTypeError, "unknown quantized dtype"),
        (
            lambda: quantized("qint8", [0.5, 1.0], axis=0).only_scale,
            DTypeError,
            "has a scale per channel; expected one",
        ),
        (lambda: qint8(0.0), DTypeError, "scale must be a positive, normal, finite float32"),
        (lambda: qint8([1.0, 2.0]), DTypeError, "2 scales need an axis"),
        (lambda: quint8(1.0, 256), DTypeError, r"zero point 256 is outside \[0, 255\]"),
        (lambda: tensor(1, device="tpu0"), DeviceError, "unknown device 'tpu0'"),
        (lambda: len(tensor(1)), TypeError, "without axes"),
        (lambda: bool(tensor([1, 2])), ValueError, "is ambiguous"),
        (lambda: range(tensor(1.5)), TypeError, "cannot be an index"),
        (lambda: apply("rellu", tensor(1.0)), OptionError, "unknown op 'rellu'; did you mean"),
        (lambda: define("relu", *[None] * 5), OptionError, "already defined"),
        (lambda: tensor([1]) // tensor([0]), Exception, "floor_div"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_second_device_needs_copies():
    here, there = tensor([1.0, 2.0]), tensor([3.0, 4.0], device="test0")
    assert (there + 1).device == "test0"
    np.testing.assert_array_equal((here.to("test0") + there).numpy(), [4, 6])
    with pytest.raises(DeviceError, match=r"add: inputs live on different devices \['cpu0', 'test0'\].*\.to\(device\)"):
        here + there


def test_default_device_is_that_of_new_tensors():
    mge.set_default_device("test0")
    try:
        assert tensor(1.0).device == "test0"
    finally:
        mge.set_default_device("cpu0")
    assert tensor(1.0).device == "cpu0"


def test_interposers_see_every_op_and_may_change_inputs():
    class Doubling(Interposer):
        def apply(self, op, tensors, attrs, proceed):
            seen.append(op.name)
            return proceed(tuple(t * 2 for t in tensors))

    seen = []
    with interpose(Doubling()):
        y = F.relu(tensor([1.0, -1.0]))
    assert seen == ["relu"]
    np.testing.assert_array_equal(y.numpy(), [2, 0])


def test_memoised_calls_tell_specs_and_attributes_apart():
    """Calls are found by the identity of specs; dead specs must never be mistaken for new ones."""
    for n in range(1, 40):
        spec = TensorSpec((n,), np.dtype(np.float32))
        for lo in (0.0, 0.5):
            x = Tensor._deferred(spec, lambda n=n: np.zeros(n, np.float32))
            y = apply("clip", x, lo=lo, hi=1.0)
            assert y.shape == (n,)
            assert y.numpy()[0] == lo


def test_half_precision_arithmetic():
    x = tensor([1.0, 2.0], dtype=bfloat16)
    assert (x + 1).dtype == bfloat16
    assert (x + tensor([1.0, 1.0], dtype="float16")).dtype == np.float32


def test_import_brings_in_nothing_heavy():
    heavy = ("onnx", "PIL", "rich", "click", "cupy", "torch")
    code = f"import sys, megengine; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_methods_of_megengine():
    x = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    np.testing.assert_array_equal(x.T.numpy(), x.numpy().T)
    assert (x.item(4), x.item(1, 2), x.format, x.name) == (5, 6, "default", "")
    x.set_value(np.ones((2, 3)))
    assert x.numpy().all()
    x.reset_zero()
    assert not x.numpy().any()
    for value, dtype in ([1.5, 2.5, 3.5], np.float32), (tensor([1, 2, 3]), np.int32):
        y = Parameter(x)
        y.set_value(value)
        assert (y.shape, y.dtype, type(y)) == ((3,), dtype, Parameter)
    assert 0 in x
    assert 1 not in x
    assert complex(tensor(2.0)) == 2
    assert isinstance(np.sin(x), Tensor)
    np.testing.assert_array_equal((np.eye(2, dtype=np.float32) @ x).numpy(), x.numpy())
    y = x
    y @= tensor(np.ones((3, 3)))
    assert y.shape == (2, 3)
    shifted = tensor([1, 2])
    shifted <<= 2
    np.testing.assert_array_equal(shifted.numpy(), [4, 8])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: tensor([1, 2]).item(), ValueError, "expected one, or an index"),
        (lambda: tensor(1).requires_grad, AttributeError, "GradManager"),
        (lambda: tensor(1, format="nwhc"), OptionError, "format is 'nwhc'"),
        (lambda: tensor([1, 2])[2], IndexError, "index 2 is out of range for axis 0 of length 2"),
        (lambda: tensor([1, 2])[[0, 5]], IndexError, "index 5 is out of range"),
        (lambda: F.gather(tensor([[1, 2]]), 1, tensor([[0, 7]])), IndexError, "index 7 is out of range"),
        (lambda: F.one_hot(tensor([4]), 3), IndexError, "index 4 is out of range for 3 classes"),
        (lambda: F.one_hot(tensor([1, -1]), 3), IndexError, "index -1 is out of range for 3 classes"),
        (lambda: F.embedding(tensor([9]), tensor(np.ones((3, 2)))), IndexError, "index 9 is out of range"),
        (lambda: tensor([1]) | 2, DTypeError, "logical_or: an operand is int32; expected bool"),
        (lambda: ~tensor([1]), DTypeError, "logical_not: an operand is int32; expected bool"),
        (lambda: tensor([1.0]) << 1, DTypeError, "expected integers"),
        (lambda: tensor([1]) % tensor([0]), OptionError, "integer division by zero"),
    ],
)
def test_errors_come_at_the_call(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_moved_values_get_no_quantization_parameters_of_their_own():
    """They were made for both, as one object: an update of one was an update of the other."""
    x = F.zeros((2, 3))
    y = x.reshape(3, 2)
    assert not x.__dict__ and not y.__dict__ and x.qparams is not y.qparams
