"""Values go to other packages and come back: DLPack, NumPy, torch, pickle, files; quantized types keep theirs."""

import copy
import io
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import megengine as mge
from megengine.core.dtype import bfloat16, quantized
from megengine.core.errors import DTypeError
from megengine.utils.dlpack import from_dlpack, to_dlpack

DTYPES = ["float16", "float32", "float64", "bool", *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64))]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
# name -> (smallest, largest integer, whether it has a zero point)
QUANTIZED = {
    "qint8": (-128, 127, False),
    "quint8": (0, 255, True),
    "qint16": (-32768, 32767, False),
    "qint32": (-(2**31), 2**31 - 1, False),
    "qint4": (-8, 7, False),
    "quint4": (0, 15, True),
    "qint1": (0, 1, False),
}


@st.composite
def arrays(draw):
    """Arrays of any shape and layout: axes swapped, every second element, reversed."""
    array = draw(hnp.arrays(draw(st.sampled_from(DTYPES)), draw(SHAPES), elements=st.integers(0, 1)))
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    steps = draw(st.lists(st.sampled_from([1, 2, -1]), min_size=array.ndim, max_size=array.ndim))
    return array[tuple(slice(None, None, s) for s in steps)]


def same(found, wanted):
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found, wanted)


@settings(max_examples=150, deadline=None)
@given(arrays())
def test_arrays_go_there_and_back(array):
    x = mge.tensor(array, dtype=array.dtype)
    same(x.numpy(), array)
    same(np.asarray(x), array)
    same(np.from_dlpack(x), array)
    same(from_dlpack(to_dlpack(x)).numpy(), array)
    if array.flags.writeable:
        same(from_dlpack(array).numpy(), array)
    same(pickle.loads(pickle.dumps(x)).numpy(), array)
    same(copy.deepcopy(x).numpy(), array)


@settings(max_examples=100, deadline=None)
@given(arrays())
def test_torch_takes_and_gives(array):
    torch = pytest.importorskip("torch")
    x = mge.tensor(array, dtype=array.dtype)
    taken = torch.from_dlpack(x)
    same(taken.numpy(), array)
    same(torch.utils.dlpack.from_dlpack(to_dlpack(x)).numpy(), array)
    same(from_dlpack(taken).numpy(), array)
    same(from_dlpack(torch.utils.dlpack.to_dlpack(taken)).numpy(), array)
    swapped = taken.permute(tuple(reversed(range(taken.ndim))))
    same(from_dlpack(swapped).numpy(), array.transpose())


def test_values_are_copied():
    torch = pytest.importorskip("torch")
    x, source = mge.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    y = from_dlpack(source)
    source[0], torch.from_dlpack(x)[0] = 9, 9
    np.from_dlpack(x)[...] = 7
    np.testing.assert_array_equal(x.numpy(), [1, 2])
    np.testing.assert_array_equal(y.numpy(), [3, 4])


def test_what_cannot_go():
    half = mge.tensor([1.0], dtype=bfloat16)
    for call in (lambda: to_dlpack(half), lambda: np.from_dlpack(half)):
        with pytest.raises(DTypeError, match=r"bfloat16.*astype"):
            call()
    torch = pytest.importorskip("torch")
    with pytest.raises(DTypeError, match="from_dlpack: .*grad.*detach"):
        from_dlpack(torch.ones(2, requires_grad=True))
    with pytest.raises(DTypeError, match="from_dlpack: .*float32"):
        from_dlpack(torch.ones(2, dtype=torch.bfloat16))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(QUANTIZED)),
    hnp.arrays(np.float32, SHAPES, elements=st.floats(-300, 300, width=32)),
    st.sampled_from([2.0**-8, 0.1, 0.5, 1.0, 3.0]),
    st.integers(0, 15),
)
def test_real_values_become_integers_in_range(name, values, scale, zero):
    smallest, largest, asymmetric = QUANTIZED[name]
    zero = zero if asymmetric else 0
    dtype = quantized(name, scale, zero)
    q = mge.tensor(values).astype(dtype)
    scale = np.float32(scale)
    ratio = (values / scale).astype(np.float32)
    want = np.clip(np.rint(ratio) + zero, smallest, largest)
    assert q.dtype == dtype
    np.testing.assert_array_equal(q.numpy(), want)
    np.testing.assert_array_equal(q.astype("float32").numpy(), ((want - zero).astype(np.float32) * scale))
    np.testing.assert_array_equal(q.astype("float32").astype(dtype).numpy(), q.numpy())  # they lie on the grid


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(QUANTIZED)), SHAPES, st.randoms(use_true_random=False))
def test_quantized_values_are_kept(name, shape, random):
    smallest, largest, asymmetric = QUANTIZED[name]
    dtype = quantized(name, 0.25, 3 if asymmetric else 0)
    stored = np.array([random.randint(smallest, largest) for _ in range(int(np.prod(shape)))], dtype.storage)
    q = mge.tensor(stored.reshape(shape), dtype=dtype)
    file = io.BytesIO()
    mge.save({"q": q}, file)
    file.seek(0)
    for kept in (pickle.loads(pickle.dumps(q)), copy.deepcopy(q), mge.load(file)["q"], q.reshape(shape), mge.tensor(q)):
        assert kept.dtype == dtype
        same(kept.numpy(), q.numpy())
    same(from_dlpack(to_dlpack(q)).numpy(), q.numpy())  # the integers: DLPack has no quantized types
    same(q.reshape(-1)[::-1].numpy(), q.numpy().reshape(-1)[::-1])


@pytest.mark.parametrize("name", sorted(QUANTIZED))
def test_integers_out_of_range_are_refused(name):
    smallest, largest, _ = QUANTIZED[name]
    dtype = quantized(name, 0.25)
    mge.tensor([smallest, largest], dtype=dtype)
    for wrong in (smallest - 1, largest + 1):
        for value in ([0, wrong], np.array([0, wrong])):
            with pytest.raises(DTypeError, match=rf"{wrong}.*{name}"):
                mge.tensor(value, dtype=dtype)


@pytest.mark.parametrize(("value", "dtype"), [(300, "int8"), ([1, -1], "uint8"), (2**40, "int32"), ([2**63], "int64")])
def test_numbers_that_do_not_fit_are_refused(value, dtype):
    with pytest.raises(DTypeError, match=f"do(es)? not fit {dtype}"):
        mge.tensor(value, dtype=dtype)


def test_arrays_wrap_as_astype_does():
    np.testing.assert_array_equal(mge.tensor(np.array([300, -1]), dtype="uint8").numpy(), [44, 255])
    np.testing.assert_array_equal(mge.tensor([300, -1]).astype("uint8").numpy(), [44, 255])
