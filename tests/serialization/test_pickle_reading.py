"""Pickles of every protocol read without running them, beside Python's own; sharing, bombs, copies."""

import io
import pickle
import struct
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megengine.core.errors import DTypeError, FileFormatError, brief
from megengine.serialization import load, save
from megengine.serialization.arrays import ARRAY_NAMES, ARRAYS
from megengine.serialization.files import builder_of
from megengine.serialization.pickle_stream import Blob, Global, Record
from megengine.serialization.pickles import PLAIN, Thaw, read_records
from megengine.serialization.writer import dumps
from megengine.tensor import Tensor, tensor

CHUNK = 1 << 14
atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(0, 300)
    | st.floats(allow_nan=False)
    | st.text(max_size=400)
    | st.binary(max_size=400)
)
keys = st.text(max_size=5) | st.integers(-(2**63), 2**63) | st.tuples(st.integers(0, 9), st.text(max_size=2))
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.lists(inner, max_size=6).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict)
        | st.sets(st.integers(0, 9) | st.text(max_size=2))
    ),
    max_leaves=20,
)


def same(a, b) -> bool:
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=150, deadline=None)
@given(value=values, protocol=st.integers(0, 5))
def test_values_come_back_from_every_protocol(value, protocol):
    stream = io.BytesIO(b"before" + pickle.dumps(value, protocol) + b"behind")
    stream.seek(6)
    assert same(Thaw(PLAIN)(read_records(stream)), value)
    assert stream.read() == b"behind"


@settings(max_examples=100, deadline=None)
@given(value=values)
def test_what_is_written_is_read_by_python_and_by_us(value):
    content = b"".join(dumps(value))
    assert same(pickle.loads(content), value)
    assert same(load(io.BytesIO(content)), value)


TEXTS = [
    np.array(["cat", "d\u00e9g", ""]), np.array(["ab", "c"], ">U2"), np.array([], "U3"), np.array([[b"ab", b"c"]]),
    np.str_("hi"), np.bytes_(b"ab"), np.dtype("f4"), np.dtype("i8"), np.dtype("U4"),
]  # fmt: skip


@pytest.mark.parametrize("value", TEXTS, ids=repr)
def test_arrays_of_text_and_dtypes_are_written_and_read(value):
    content = b"".join(dumps({"value": value}))
    assert np.array_equal(pickle.loads(content)["value"], value)
    for again in (load(io.BytesIO(content))["value"], load(io.BytesIO(pickle.dumps(value, 4)))):
        if isinstance(value, np.dtype):
            assert again == value
        else:
            np.testing.assert_array_equal(again, value)
            assert type(again) is type(value) and again.dtype == value.dtype.newbyteorder("=")


@pytest.mark.parametrize("value", [np.datetime64("2020-01-01"), np.dtype("M8[s]"), np.array([1, "a"], dtype=object)])
def test_other_elements_are_refused(value):
    with pytest.raises(DTypeError, match="save: cannot write .*; expected numbers or text"):
        dumps(value)
    with pytest.raises(FileFormatError, match="array elements of type .*expected numbers or text"):
        load(io.BytesIO(pickle.dumps(np.asarray(value) if not isinstance(value, np.dtype) else value, 4)))


def test_text_of_what_is_no_character_is_refused():
    content = pickle.dumps(np.array(["ab"]), 4).replace("ab".encode("utf-32-le"), b"\xff" * 8)
    with pytest.raises(FileFormatError, match="no character"):
        load(io.BytesIO(content))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, CHUNK - 300, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_values_across_the_ends_of_the_window(size, protocol):
    value = ["a" * (CHUNK - 40), "t" * size, b"b" * size, ["x"] * 30, bytearray(b"c" * size), "é" * size, 2**4000]
    found = Thaw(PLAIN)(read_records(io.BytesIO(pickle.dumps(value, protocol))))
    assert found == value


@pytest.mark.parametrize("cut", [1, 2, 10, CHUNK, CHUNK + 7, 2 * CHUNK + 1])
def test_a_cut_pickle_is_refused(cut):
    content = pickle.dumps(["a" * 100] * 5 + [b"b" * 3 * CHUNK, {"k": 1}], 4)
    for body in (content[:cut], content[:-cut]):
        with pytest.raises(FileFormatError):
            read_records(io.BytesIO(body))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x8e" + b"\xff" * 8 + b"abc.", "bytes of text or data expected, 4 are left"),
        (b"\x8d" + struct.pack("<Q", 1 << 40) + b"abc.", "4 are left"),
        (b"\x8b" + b"\xff" * 4 + b".", "1 are left"),
        (b"j\xff\xff\xff\xff.", "entry 4294967295 is used before it is stored"),
        (b"\xff.", "used by no supported file"),
        (b"]", "the file ends in the middle"),
        (b"cos\nsystem", "the file ends in the middle"),
        (b")\x86.", "too few values"),
        (b"}\x8a\x0a" + b"\x01" * 10 + b"Ns.", "64-bit numbers"),  # long integers can be made to collide
    ],
)
def test_damage_and_lies_about_sizes(body, message):
    with pytest.raises(FileFormatError, match=message):
        read_records(io.BytesIO(body))


def test_names_are_never_looked_up():
    record = read_records(io.BytesIO(b"cos\nsystem\n(S'echo no'\ntR."))
    assert isinstance(record, Record)
    assert record.target == Global("os", "system")
    assert record.args == ("echo no",)
    with pytest.raises(FileFormatError, match=r"'os.system', which is not on the list"):
        Thaw(PLAIN)(record)


@pytest.mark.parametrize("pair", [b"t", b"l"])
def test_values_that_double_at_every_level_are_refused(pair):
    levels = [b"(j" + struct.pack("<I", i) + b"j" + struct.pack("<I", i) + pair + b"\x94" for i in range(60)]
    with pytest.raises(FileFormatError, match="values are in several places"):
        Thaw(PLAIN)(read_records(io.BytesIO(b"\x80\x04](Ne\x94" + b"".join(levels) + b".")))


def test_a_key_of_nested_tuples_is_refused():
    """The hash of tuples that double at every level would follow every path."""
    level = b"cbuiltins\ntuple\n](h%ch%ce\x85R\x94"
    body = b"}cbuiltins\ntuple\n]\x85R\x94" + b"".join(b"0" + level % (i, i) for i in range(5)) + b"Ns."
    with pytest.raises(FileFormatError, match="a dict key is a nested tuple"):
        Thaw(PLAIN)(read_records(io.BytesIO(body)))


def test_a_shared_byte_string_gives_arrays_of_their_own():
    raw = bytes(range(256)) * 16
    one = np.frombuffer(raw, np.uint8)
    record = read_records(io.BytesIO(pickle.dumps([one.copy(), one.copy()], 4)))
    record[1].state = record[0].state  # both arrays name the same bytes
    first, second = Thaw(ARRAYS, names=ARRAY_NAMES)(record)
    assert not np.shares_memory(first, second)
    first[:] = 0
    np.testing.assert_array_equal(second, one)


def test_copies_of_shared_bytes_are_bounded_by_the_file():
    blob = Blob(np.zeros(1000, np.uint8), allowance=[2500])
    blob.take()
    assert len(blob.take()) == len(blob.copy_bytes()) == 1000
    with pytest.raises(FileFormatError, match="take more than the file"):
        blob.take()


def test_arrays_are_read_into_the_memory_of_their_tensors(tmp_path):
    value = tensor(np.arange(1 << 16, dtype=np.float32))
    parts = dumps([value])
    assert any(np.shares_memory(np.frombuffer(p, np.uint8), value._storage()) for p in parts)
    save([value, value.numpy()], tmp_path / "a.pkl")
    loaded, array = load(tmp_path / "a.pkl")
    assert isinstance(loaded, Tensor)
    storage = loaded._storage()
    assert storage.flags.writeable
    assert storage.flags.aligned
    assert storage.base.nbytes == storage.nbytes  # nothing else of the file is kept alive
    assert not np.shares_memory(storage, array)
    np.testing.assert_array_equal(storage, array)


def test_one_array_in_two_tensors_is_two_memories():
    (record,) = read_records(io.BytesIO(b"".join(dumps([tensor(np.arange(1000.0))]))))
    twin = Record(record.target, record.args, record.state)
    a, b = builder_of()([record, twin])
    assert not np.shares_memory(a._storage(), b._storage())
    np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_brief_text_of_hostile_values():
    deep: tuple = ()
    for _ in range(100):
        deep = (deep, deep)
    assert brief(deep) == "(a tuple, a tuple)"
    assert len(brief("x" * 10**6)) < 110
    assert brief((1, None, "a", 2**70)) == "(1, None, 'a', an integer of 71 bits)"
    assert brief([1.5] * 10**5, 10) == "[1.5, 1.5,..."
    record = Record(Global("a", "b"), deep)
    assert repr(record) == "<record of a.b>"
