"""Archives of a text and arrays, beside the library of the format of the arrays."""

import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import load, save

from megengine.core.errors import FileFormatError
from megengine.traced_module.formats import archives

TYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32"),
    *("int64", "uint64", "float64", "complex64"),
)
ARRAYS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4).filter(lambda s: s != "__metadata__"),
    st.sampled_from(TYPES).flatmap(lambda t: arrays_of.arrays(t, arrays_of.array_shapes(min_dims=0, min_side=0))),
    max_size=4,
)


def same(a, b):
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes() for k in a
    )


@settings(max_examples=40, deadline=None)
@given(arrays=ARRAYS)
def test_arrays_are_written_and_read_as_the_library_does(arrays, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "arrays.zip"
    archives.write_archive(path, "log.json", "[1]", arrays, zipfile.ZIP_STORED)
    with zipfile.ZipFile(path) as archive:
        content = archive.read(archives.WEIGHTS)  # which compares the check sum
    assert content == save(arrays) and same(load(content), arrays)
    with path.open("rb") as file:
        text, found = archives.read_archive(file, "it", "log.json")
    assert text == [1] and same(found, arrays)
    assert all(a.flags.writeable and a.flags.c_contiguous for a in found.values())


def archive_of(weights, **changes):
    """An archive with an entry of these bytes, whose parts can be wrong."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("log.json", "{}")
        archive.writestr(zipfile.ZipInfo(archives.WEIGHTS), weights)
        for name, value in changes.items():
            setattr(archive.getinfo(archives.WEIGHTS), name, value)
    return made


def head(entries, values=b""):
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + values


def one(dtype="F32", shape=(2,), places=(0, 8)):
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(places)}}


@pytest.mark.parametrize(
    ("weights", "changes", "message"),
    [
        (b"", {}, "damaged"),
        (b"\xff" * 16, {}, "damaged"),
        (b"\x02\0\0\0\0\0\0\0]]", {}, "damaged"),
        (head(one("O"), bytes(8)), {}, "damaged"),
        (head(one(shape=(-2,)), bytes(8)), {}, "damaged"),
        (head(one(shape=(3,)), bytes(8)), {}, "damaged"),
        (head(one(places=(4, 12)), bytes(12)), {}, "damaged"),
        (head(one(shape=(10**12,), places=(0, 4 * 10**12)), bytes(8)), {}, "damaged"),
        (head({**one(), "b": one()["a"]}, bytes(8)), {}, "damaged"),
        (head(one(), bytes(9)), {}, "damaged"),
        (head(one(), bytes(7)), {}, "damaged"),
        (head(one(), bytes(8)), {"CRC": 7}, "damaged.*CRC"),
        (head(one(), bytes(8)), {"flag_bits": 1}, "is packed"),
        (head(one(), bytes(8)), {"header_offset": 3}, "damaged"),
    ],
)
def test_wrong_arrays_are_refused(weights, changes, message):
    with pytest.raises(FileFormatError, match=f"^it: .*({message})"):
        archives.read_archive(archive_of(weights, **changes), "it", "log.json")


def test_sound_arrays_made_by_hand_are_read():
    weights = head({"__metadata__": {"by": "hand"}, **one()}, np.float32([1, 2]).tobytes())
    _, found = archives.read_archive(archive_of(weights), "it", "log.json")
    assert same(found, {"a": np.float32([1, 2])})


def test_damaged_values_are_found(tmp_path):
    path = tmp_path / "a"
    archives.write_archive(path, "log.json", "0", {"a": np.arange(100.0)}, zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    at = content.index(np.float64(50.0).tobytes())
    content[at] ^= 1
    with pytest.raises(FileFormatError, match="damaged.*CRC"):
        archives.read_archive(io.BytesIO(content), "it", "log.json")
