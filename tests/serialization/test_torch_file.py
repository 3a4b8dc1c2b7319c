"""`.pth` files: both formats against values that torch itself stored, then hostile and damaged files."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from megengine.core.dtype import bfloat16
from megengine.core.errors import FileFormatError
from megengine.serialization import read_pth

DATA = Path(__file__).parents[1] / "data" / "torch"


@pytest.mark.parametrize("name", ["zip.pth", "legacy.pth"])
def test_values_equal_what_torch_stored(name):
    state = read_pth(DATA / name)
    expected = np.load(DATA / "expected.npz")
    assert list(state) == expected.files
    assert type(state) is OrderedDict
    for key, value in state.items():
        assert value.dtype == (bfloat16 if key == "bf16" else expected[key].dtype), key
        np.testing.assert_array_equal(value.astype(expected[key].dtype), expected[key], err_msg=key)


def test_containers_and_module_state():
    checkpoint = read_pth(DATA / "checkpoint.pth")
    assert (checkpoint["epoch"], checkpoint["lr"]) == (3, [0.1, None])
    assert list(checkpoint["model"]) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]


def test_a_pickled_module_is_refused_by_name():
    with pytest.raises(FileFormatError, match=r"the file wants 'torch.nn.modules.linear.Linear'.*nothing was run"):
        read_pth(DATA / "module.pth")


def same(a, b):
    return list(a) == list(b) and all(a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("new", [True, False])
def test_files_written_by_the_installed_torch(tmp_path, new):
    torch = pytest.importorskip("torch")
    weights = {"w": torch.randn(3, 4, dtype=torch.float64).t(), "b": torch.arange(3)}
    torch.save(weights, tmp_path / "a.pth", _use_new_zipfile_serialization=new)
    assert same(read_pth(tmp_path / "a.pth"), {k: v.numpy() for k, v in weights.items()})


# ------------------------------------------------------------------ hostile files


class _Named:
    """Pickles as a global of any name."""

    def __init__(self, module, name):
        self.text = f"c{module}\n{name}\n".encode()


def pickled(size=(2,), stride=(1,), *, offset=0, count=2, kind="FloatStorage", key="0", call="_rebuild_tensor_v2"):
    """{"w": tensor} as torch pickles it, with any numbers."""
    store = (
        b"(" + b"X\x07\0\0\0storage" + _Named("torch", kind).text + _text(key) + _text("cpu") + _number(count) + b"tQ"
    )
    tensor = _Named("torch._utils", call).text + b"(" + store + _number(offset) + _tuple(size) + _tuple(stride)
    return b"\x80\x02}" + _text("w") + tensor + b"\x89" + b"}" + b"tRs."


def _text(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _number(n):
    return pickle.dumps(n, 2)[2:-1]


def _tuple(values):
    return b"(" + b"".join(map(_number, values)) + b"t"


def archive(tmp_path, body, data=b"\0" * 8, *, compress=zipfile.ZIP_STORED, extra=()):
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w", compress) as z:
        z.writestr("a/data.pkl", body)
        z.writestr("a/data/0", data)
        for name, content in extra:
            z.writestr(name, content)
    return path


def test_the_hand_made_file_is_sound(tmp_path):
    path = archive(tmp_path, pickled(), np.float32([1, 2]).tobytes())
    np.testing.assert_array_equal(read_pth(path)["w"], [1, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": (3,)}, "reaches element 2 of a storage of 2"),
        ({"offset": 1}, "reaches element 2 of a storage of 2"),
        ({"size": (2**40, 2**40), "stride": (2**40, 1)}, "reaches element"),
        ({"size": (2**40,), "stride": (0,)}, "take more than"),
        ({"size": (2,), "stride": (-1,), "offset": 1}, "expected non-negative integers"),
        ({"size": (-1,)}, "expected non-negative integers"),
        ({"size": (1, 2)}, "one stride per axis"),
        ({"offset": -(2**70)}, "expected non-negative integers"),
        ({"count": 2**61}, "has 8 bytes; expected"),
        ({"count": -1}, "without key or size"),
        ({"key": "../../etc/passwd"}, "is missing"),
        ({"kind": "EvilStorage"}, "not on the list of names"),
        ({"call": "_rebuild_device_tensor"}, "not on the list of names"),
    ],
)
def test_impossible_tensors(tmp_path, arguments, message):
    with pytest.raises(FileFormatError, match=message):
        read_pth(archive(tmp_path, pickled(**arguments)))


@pytest.mark.parametrize("module", ["os", "builtins", "posix", "numpy", "subprocess", "megengine.tensor"])
def test_no_name_is_looked_up(tmp_path, module):
    marker = tmp_path / "ran"
    body = b"\x80\x02" + _Named(module, "system").text + b"(" + _text(f"touch {marker}") + b"tR."
    with pytest.raises(FileFormatError, match=rf"wants '{module}.system'"):
        read_pth(archive(tmp_path, body))
    assert not marker.exists()


def test_bombs(tmp_path):
    with pytest.raises(FileFormatError, match="is compressed"):
        read_pth(archive(tmp_path, pickled(), b"\0" * 10**6, compress=zipfile.ZIP_DEFLATED))
    many = b"\x80\x02]" + b"".join(
        pickled(size=(2**17,), stride=(0,))[3:-2].replace(_text("w"), b"") + b"a" for _ in range(64)
    )
    with pytest.raises(FileFormatError, match="take more than"):
        read_pth(archive(tmp_path, many + b"."))
    deep = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    with pytest.raises(FileFormatError, match="nested deeper than"):
        read_pth(archive(tmp_path, deep))
    tuples = b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"Ns."
    with pytest.raises(FileFormatError, match="a dict key is a tuple"):
        read_pth(archive(tmp_path, tuples))
    cycle = b"\x80\x02]q\x00h\x00a."
    with pytest.raises(FileFormatError, match="contains itself"):
        read_pth(archive(tmp_path, cycle))
    huge_memo = b"\x80\x02]r" + b"\xff\xff\xff\x7f" + b"."
    assert read_pth(archive(tmp_path, huge_memo)) == []
    long_text = b"\x80\x02X" + b"\xff\xff\xff\x7f" + b"abc."
    with pytest.raises(FileFormatError, match="not a readable pickle"):
        read_pth(archive(tmp_path, long_text))


def test_archives_with_other_contents(tmp_path):
    with pytest.raises(FileFormatError, match="2 entries named data.pkl"):
        read_pth(archive(tmp_path, pickled(), extra=[("b/data.pkl", b"")]))
    with pytest.raises(FileFormatError, match="big-endian"):
        read_pth(archive(tmp_path, pickled(), extra=[("a/byteorder", b"big")]))
    (tmp_path / "text.pth").write_text("<html>not found</html>")
    with pytest.raises(FileFormatError) as caught:
        read_pth(tmp_path / "text.pth")
    assert "text.pth" in caught.value.__notes__[0]


@pytest.mark.parametrize("name", ["zip.pth", "legacy.pth"])
def test_truncated_files(tmp_path, name):
    whole = (DATA / name).read_bytes()
    for length in range(0, len(whole) - 1, 37):
        (tmp_path / "cut.pth").write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            read_pth(tmp_path / "cut.pth")


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@pytest.mark.parametrize("name", ["zip.pth", "legacy.pth", "checkpoint.pth"])
@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_give_values_or_one_error(tmp_path, name, seed):
    rng = np.random.default_rng(seed)
    whole = np.frombuffer((DATA / name).read_bytes(), np.uint8)
    for _ in range(60):
        damaged = whole.copy()
        at = rng.integers(0, len(damaged), rng.integers(1, 5))
        damaged[at] = rng.integers(0, 256, len(at))
        (tmp_path / "bad.pth").write_bytes(damaged.tobytes())
        try:
            read_pth(tmp_path / "bad.pth")
        except FileFormatError as exc:
            assert str(exc)


def test_random_pickles_give_values_or_one_error():
    from megengine.serialization.pickles import PLAIN, Thaw, read_records

    rng = np.random.default_rng(7)
    opcodes = (
        b"(.0122FIJKLMNPQRSTUVX]abcdeghijlopqrstu}\x80\x81\x85\x86\x87\x88\x89\x8c\x8e\x8f\x90\x91\x93\x94\x95\x96C\n\0"
    )
    for _ in range(4000):
        body = bytes(rng.choice(np.frombuffer(opcodes, np.uint8), rng.integers(1, 40))) + b"."
        try:
            Thaw(PLAIN)(read_records(io.BytesIO(body)))
        except FileFormatError as exc:
            assert str(exc)
