"""Calibration data: streams, batches, and one clear message for what does not fit."""

import numpy as np
import pytest
from PIL import Image

from megengine.cli.pictures import sets_size
from megengine.cli.readers import default_recipe, load_function, open_reader
from megengine.core.errors import DTypeError, FileFormatError, OptionError, ShapeError

SHAPE = [(2, 3, 4, 4)]


def pictures(folder, count):
    for i in range(count):
        Image.fromarray(np.full((8, 8, 3), i * 10, np.uint8)).save(folder / f"{i}.png")


def test_folder_is_read_in_batches_and_again(tmp_path):
    pictures(tmp_path, 5)
    reader = open_reader(str(tmp_path), shapes=SHAPE)
    assert reader.count == 3
    first = [batch[0] for batch in reader]
    assert [x.shape for x in first] == [(2, 3, 4, 4)] * 3
    assert np.array_equal(first[2][0], first[2][1])  # filled up
    assert all(np.array_equal(a, b[0]) for a, b in zip(first, reader, strict=True))
    assert len(list(open_reader(str(tmp_path), shapes=SHAPE, limit=1))) == 1


def test_pictures_are_opened_one_batch_at_a_time(tmp_path):
    pictures(tmp_path, 2)
    (tmp_path / "9.png").write_bytes(b"broken")
    stream = iter(open_reader(str(tmp_path), shapes=SHAPE))
    next(stream)
    with pytest.raises(FileFormatError, match=r"9\.png: cannot be read"):
        next(stream)


def test_npy_and_npz(tmp_path):
    data = np.random.default_rng(0).standard_normal((5, 3, 4, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    got = list(open_reader(str(tmp_path / "x.npy"), shapes=SHAPE))
    assert len(got) == 2 and np.array_equal(got[1][0], data[2:4])
    np.savez(tmp_path / "x.npz", a=data, b=np.arange(5))
    got = list(open_reader(str(tmp_path / "x.npz"), shapes=[(1, 3, 4, 4), (1,)]))
    assert len(got) == 5 and got[3][1].tolist() == [3]


def test_function(tmp_path):
    path = tmp_path / "data.py"
    path.write_text(
        "import numpy as np\n"
        "def one():\n    yield np.zeros((2, 3, 4, 4))\n"
        "def number():\n    return 3\n"
        "def text():\n    return [np.array(['a'])]\n"
    )
    (batch,) = open_reader(f"{path}:one", shapes=SHAPE)
    assert batch[0].dtype == np.float32
    with pytest.raises(OptionError, match="has no function 'onne'; did you mean 'one'"):
        load_function(f"{path}:onne")
    with pytest.raises(OptionError, match="gave int; expected an iterable"):
        list(open_reader(f"{path}:number", shapes=SHAPE))
    with pytest.raises(DTypeError, match="batch 0: dtype <U1"):
        list(open_reader(f"{path}:text", shapes=[(1,)]))
    path.write_text("1 / 0")
    with pytest.raises(OptionError, match="ZeroDivisionError while loading it"):
        load_function(f"{path}:one")
    with pytest.raises(OptionError, match="no such file"):
        load_function(f"{tmp_path}/none.py:one")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite(tmp_path, bad):
    data = np.zeros((2, 3, 4, 4), np.float32)
    data[1, 0, 0, 0] = bad
    np.save(tmp_path / "x.npy", data)
    with pytest.raises(FileFormatError, match=r"x\.npy, batch 0: 1 values are NaN or infinite"):
        list(open_reader(str(tmp_path / "x.npy"), shapes=SHAPE))


def test_arrays_that_do_not_fit(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 5, 5), np.float32))
    with pytest.raises(ShapeError, match=r"shape \(2, 3, 5, 5\); expected \(2, 3, 4, 4\)"):
        list(open_reader(str(tmp_path / "x.npy"), shapes=SHAPE))
    with pytest.raises(ShapeError, match="4 samples, the network takes 8"):
        open_reader(str(tmp_path / "x.npy"), shapes=[(8, 3, 5, 5)])
    np.save(tmp_path / "n.npy", np.float32(1))
    with pytest.raises(ShapeError, match="a single number"):
        open_reader(str(tmp_path / "n.npy"), shapes=SHAPE)
    np.savez(tmp_path / "x.npz", a=np.zeros((2, 1)), b=np.zeros((3, 1)))
    with pytest.raises(ShapeError, match=r"arrays of \[2, 3\] samples"):
        open_reader(str(tmp_path / "x.npz"), shapes=[(1, 1), (1, 1)])
    with pytest.raises(ShapeError, match="2 arrays; expected 1"):
        open_reader(str(tmp_path / "x.npz"), shapes=[(1, 1)])


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_damaged_array_files_and_pickles(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"damaged")
    with pytest.raises(FileFormatError, match="not a readable"):
        open_reader(str(path), shapes=SHAPE)
    if name == "x.npy":
        np.save(path, np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(FileFormatError, match="not a readable"):
            open_reader(str(path), shapes=SHAPE)


def test_sources_that_are_nothing(tmp_path):
    with pytest.raises(OptionError, match="no such file or folder"):
        open_reader("nowhere", shapes=SHAPE)
    with pytest.raises(OptionError, match="no pictures below this folder"):
        open_reader(str(tmp_path), shapes=SHAPE)
    (tmp_path / "x.txt").touch()
    with pytest.raises(OptionError, match=r"expected a folder of pictures, \.npy, \.npz"):
        open_reader(str(tmp_path / "x.txt"), shapes=SHAPE)
    pictures(tmp_path, 1)
    with pytest.raises(OptionError, match="pictures fit a network with one 4-D input"):
        open_reader(str(tmp_path), shapes=[(1, 3)])
    with pytest.raises(OptionError, match="pictures have 1 or 3 channels"):
        default_recipe((1, 7, 8, 8))
    assert default_recipe((1, 8, 9, 3)).layout == "NHWC"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tf,resize=square", False),
        ("resize=square", False),
        ("tf,size=160", True),
        ("size=160", True),
        ("sized.json", True),
        ("sized.json,resize=square", True),
        ("plain.json", False),
        ("plain.json,size=160", True),
    ],
)
def test_a_recipe_tells_the_size_only_by_its_key(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sized.json").write_text('{"size": [160, 160]}')
    (tmp_path / "plain.json").write_text('{"resize": "stretch"}')
    assert sets_size(text) is expected


def test_a_recipe_without_a_size_takes_that_of_the_network(tmp_path):
    from types import SimpleNamespace

    from megengine.cli.ptq import reader_of

    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    inputs = [SimpleNamespace(shape=(1, 3, 20, 24))]
    network = SimpleNamespace(graph=SimpleNamespace(inputs=inputs))
    for text in ("tf,resize=square", "imagenet", "resize=stretch"):
        (batch,) = reader_of(str(tmp_path), text, None, network)
        assert batch[0].shape == (1, 3, 20, 24)
