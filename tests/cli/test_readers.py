"""Calibration data: streams, batches, and one clear message for what does not fit."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from megengine.cli import images
from megengine.cli.images import Recipe
from megengine.cli.readers import Slot, load_function, open_reader
from megengine.core.errors import CalibrationError, DTypeError, FileFormatError, OptionError, ShapeError
from megengine.core.sizes import named


def slots(*shapes, dtype=np.float32):
    return [Slot(f"x{i}", shape, np.dtype(dtype)) for i, shape in enumerate(shapes)]


SHAPE = slots((2, 3, 4, 4))
RECIPE = Recipe(size=(4, 4))


def pictures(folder, count):
    for i in range(count):
        Image.fromarray(np.full((8, 8, 3), i * 10, np.uint8)).save(folder / f"{i}.png")


def test_folder_is_read_in_batches_and_again(tmp_path):
    pictures(tmp_path, 5)
    reader = open_reader(str(tmp_path), SHAPE, how=RECIPE)
    assert reader.count == 3
    first = [batch[0] for batch in reader]
    assert [x.shape for x in first] == [(2, 3, 4, 4)] * 3
    assert np.array_equal(first[2][0], first[2][1])  # filled up
    assert all(np.array_equal(a, b[0]) for a, b in zip(first, reader, strict=True))
    assert len(list(open_reader(str(tmp_path), SHAPE, how=RECIPE, limit=1))) == 1


def test_pictures_are_opened_one_batch_at_a_time(tmp_path):
    pictures(tmp_path, 2)
    (tmp_path / "9.png").write_bytes(b"broken")
    stream = iter(open_reader(str(tmp_path), SHAPE, how=RECIPE))
    next(stream)
    with pytest.raises(FileFormatError, match=r"9\.png: cannot be read"):
        next(stream)


def test_npy_and_npz(tmp_path):
    data = np.random.default_rng(0).standard_normal((5, 3, 4, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    got = list(open_reader(str(tmp_path / "x.npy"), SHAPE))
    assert len(got) == 2 and np.array_equal(got[1][0], data[2:4])
    np.savez(tmp_path / "x.npz", data, np.arange(5))
    got = list(open_reader(str(tmp_path / "x.npz"), slots((1, 3, 4, 4), (1,))))
    assert len(got) == 5 and got[3][1].tolist() == [3]


@pytest.mark.parametrize(
    ("shape", "stated", "remedy", "mended"),
    [
        ((5, 9), (1, 1, 9), r"array\[:, None\]", lambda x: x[:, None]),
        ((5, 4, 4), (1, 1, 4, 4), r"array\[:, None\]", lambda x: x[:, None]),
        ((3, 4, 4), (1, 3, 4, 4), r"array\[None\]", lambda x: x[None]),
        ((5, 4, 4, 3), (1, 3, 4, 4), r"numpy.moveaxis\(array, -1, 1\)", lambda x: np.moveaxis(x, -1, 1)),
    ],
)
def test_what_is_advised_about_a_shape_makes_it_fit(tmp_path, shape, stated, remedy, mended):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ShapeError, match=remedy):
        list(open_reader(str(tmp_path / "x.npy"), slots(stated)))
    np.save(tmp_path / "x.npy", mended(array))
    assert all(x.shape == stated for (x,) in open_reader(str(tmp_path / "x.npy"), slots(stated)))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("x.csv", r"numpy.save\('data.npy', numpy.loadtxt\('x.csv', delimiter=',', ndmin=2\)\) writes its rows"),
        ("x.pt", r"numpy.save\('data.npy', torch.load\('x.pt'\).numpy\(\)\) writes its tensor"),
        ("x.safetensors", r"numpy.savez\('data.npz', \*\*safetensors.numpy.load_file\('x.safetensors'\)\)"),
        ("x.py", "add the function that gives them, x.py:FUNCTION"),
        ("x.bin", "write numpy.save files"),
    ],
)
def test_files_of_other_kinds_are_answered_with_the_line_that_converts_them(tmp_path, monkeypatch, name, remedy):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("1,2\n3,4\n")
    with pytest.raises(OptionError, match=remedy):
        open_reader(name, slots((1, 2)))
    np.save("data.npy", np.loadtxt("x.csv", delimiter=",", ndmin=2) if name == "x.csv" else np.zeros((2, 2)))
    assert len(list(open_reader("data.npy", slots((1, 2))))) == 2


def test_a_folder_of_arrays_is_answered_with_the_function_that_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all").mkdir()
    for i in range(3):
        np.save(tmp_path / "all" / f"{i}.npy", np.full((1, 3, 4, 4), i, np.float32))
    with pytest.raises(OptionError, match=r"no pictures below .*; it holds 3 .npy files: give FILE.py:samples") as told:
        open_reader("all", SHAPE, how=RECIPE)
    function = "def samples(): " + str(told.value).split("def samples(): ")[1]
    (tmp_path / "given.py").write_text(f"import glob, numpy\n{function}\n")
    assert [x.max() for (x,) in open_reader("given.py:samples", slots((1, 3, 4, 4)))] == [0, 1, 2]


def test_addresses_are_no_files():
    with pytest.raises(OptionError, match=r"data 'https://a/b.zip': an address; .* download it first"):
        open_reader("https://a/b.zip", SHAPE)


def test_a_size_that_the_network_does_not_take_is_refused_before_pictures_are_read(tmp_path):
    pictures(tmp_path, 1)
    message = r"the recipe makes pictures of 8x8, input 'x0' takes \(2, 3, 4, 4\); leave size out of the recipe"
    with pytest.raises(OptionError, match=message):
        open_reader(str(tmp_path), SHAPE, how=Recipe(size=(8, 8)))


ONE, TWO = np.full((2, 1), 1.0, np.float32), np.full((2, 1), 2.0, np.float32)


@pytest.mark.parametrize(
    ("arrays", "names", "expected"),
    [
        (dict(mask=TWO, ids=ONE), ("ids", "mask"), (1, 2)),  # by name, not by place
        (dict(mask=TWO, ids=ONE, label=ONE * 3), ("ids", "mask"), (1, 2)),  # more than the network reads
        ({"input.2": TWO, "/input.1": ONE}, ("input_1", "input_2"), (1, 2)),  # as nodes of a graph are named
        (dict(input=ONE, mask=TWO), ("input_1", "mask"), (1, 2)),  # `input` is a Python builtin: its node has a count
        (dict(x_1=TWO, x=ONE), ("x", "x_1"), (1, 2)),
        (dict(arr_1=TWO, arr_0=ONE), ("ids", "mask"), (1, 2)),
        (dict(pictures=TWO), ("ids",), (2,)),
    ],
)
def test_arrays_of_npz_go_to_the_inputs_of_their_names(tmp_path, arrays, names, expected):
    np.savez(tmp_path / "x.npz", **arrays)
    inputs = [Slot(name, (1, 1), np.dtype(np.float32)) for name in names]
    got = list(open_reader(str(tmp_path / "x.npz"), inputs))
    assert [tuple(x.item() for x in batch) for batch in got] == [expected] * 2


@pytest.mark.parametrize(
    ("arrays", "names", "message"),
    [
        (
            dict(a=ONE, b=TWO),
            ("ids", "mask"),
            r"expected 2, one .* \(ids, mask\); no array is named ids, mask",
        ),
        (
            dict(ids=ONE, msk=TWO),
            ("ids", "mask"),
            "is named mask. Name them as the inputs, or write them",
        ),
        (dict(a=ONE, b=TWO), ("ids",), r"2 arrays \(a, b\); expected 1"),
        (dict(a=ONE), ("ids", "mask"), r"1 array \(a\); expected 2"),
    ],
)
def test_arrays_of_npz_whose_names_say_nothing(tmp_path, arrays, names, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ShapeError, match=message):
        open_reader(str(tmp_path / "x.npz"), [Slot(name, (1, 1), np.dtype(np.float32)) for name in names])


def test_too_few_arrays_are_told_how_to_be_written(tmp_path):
    inputs = [Slot(name, (1, 1), np.dtype(np.float32)) for name in ("left", "input_2", "mask")]
    np.save(tmp_path / "one.npy", ONE)
    with pytest.raises(ShapeError, match="1 array; expected 3, one for each network input") as caught:
        list(open_reader(str(tmp_path / "one.npy"), inputs))
    advice = str(caught.value).rpartition("write them by name, ")[2].replace("...", "one")
    eval(advice, {"numpy": np, "file": tmp_path / "all.npz", "one": ONE})
    assert len(list(open_reader(str(tmp_path / "all.npz"), inputs))) == len(ONE)


def test_a_loader_of_pictures_with_labels_is_told_to_leave_them_out(tmp_path):
    (tmp_path / "data.py").write_text("import numpy as np\ndef f():\n    return [(np.zeros((1, 2)), np.zeros(1))]\n")
    slots = [Slot("x", (1, 2), np.dtype(np.float32))]
    with pytest.raises(ShapeError, match=r"2 arrays; expected 1, .* and no labels: .* a function, dict\(x=\.\.\.\)"):
        list(open_reader(f"{tmp_path / 'data.py'}:f", slots))
    with pytest.raises(OptionError, match=r"add the function that gives them, .*data\.py:FUNCTION"):
        open_reader(str(tmp_path / "data.py"), slots)


def test_pictures_for_an_input_of_bytes_are_not_divided(tmp_path):
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)).save(tmp_path / "a.png")
    slots = [Slot("x", (1, 2, 2, 3), np.dtype(np.uint8))]
    how = partial(images.recipe, shape=(1, 2, 2, 3))
    with pytest.raises(OptionError, match="takes uint8, pixels as they are; add mean=0,std=1, for") as caught:
        open_reader(str(tmp_path), slots, how=how("unit"))
    advised = str(caught.value).rpartition("--preprocess ")[2]
    ((array,),) = open_reader(str(tmp_path), slots, how=how(advised + ",crop_ratio=1"))
    assert array.dtype == np.uint8 and array.ravel().tolist() == list(range(12))


def test_errors_of_a_function_name_it_and_the_batch(tmp_path):
    path = tmp_path / "data.py"
    path.write_text(
        "import numpy as np\n"
        "def late():\n    yield np.zeros(1)\n    yield np.zeros(1)\n    raise RuntimeError('disk gone')\n"
        "def early(n):\n    return []\n"
    )
    with pytest.raises(OptionError, match=r"late': RuntimeError when the function was asked for batch 2: disk gone"):
        list(open_reader(f"{path}:late", slots((1,))))
    with pytest.raises(OptionError, match=r"early': TypeError when the function was called: .*argument: 'n'"):
        list(open_reader(f"{path}:early", slots((1,))))


def test_functions_give_mappings_too(tmp_path):
    path = tmp_path / "data.py"
    path.write_text("""import numpy as np
def good():
    return [{"mask": np.full((1, 1), 2), "label": 7, "/ids": np.full((1, 1), 1)}]
def bad():
    return [{"mask": np.zeros((1, 1)), "id": np.zeros((1, 1))}]
""")
    inputs = [Slot(name, (1, 1), np.dtype(np.float32)) for name in ("ids", "mask")]
    assert [[x.item() for x in batch] for batch in open_reader(f"{path}:good", inputs)] == [[1, 2]]
    with pytest.raises(CalibrationError, match="no value for ids; expected the names ids, mask, got mask, id"):
        list(open_reader(f"{path}:bad", inputs))


def test_batches_of_two_open_axes_are_those_of_the_example(tmp_path):
    np.savez(tmp_path / "x.npz", np.zeros((5, 3)), np.zeros((5, 3)))
    got = list(open_reader(str(tmp_path / "x.npz"), slots((named("a", 2), 3), (named("b", 2), 3))))
    assert [x.shape for batch in got for x in batch] == [(2, 3)] * 4


def test_inputs_whose_first_axis_is_no_batch(tmp_path):
    x, state = np.arange(3.0).reshape(3, 1), np.arange(12.0).reshape(3, 2, 2)
    for stored in (state, state.reshape(6, 2)):  # an axis of samples in front, or the rows of all samples
        np.savez(tmp_path / "x.npz", x, stored)
        got = list(open_reader(str(tmp_path / "x.npz"), slots((1, 1), (2, 2))))
        assert [a.tolist() for a, _ in got] == [[[0]], [[1]], [[2]]]
        assert all(np.array_equal(b, want) for (_, b), want in zip(got, state, strict=True))


def test_function(tmp_path):
    path = tmp_path / "data.py"
    path.write_text(
        "import numpy as np\n"
        "def one():\n    yield np.zeros((2, 3, 4, 4))\n"
        "def number():\n    return 3\n"
        "def text():\n    return [np.array(['a'])]\n"
    )
    (batch,) = open_reader(f"{path}:one", SHAPE)
    assert batch[0].dtype == np.float32
    with pytest.raises(OptionError, match="has no function 'onne'; did you mean 'one'"):
        load_function(f"{path}:onne")
    with pytest.raises(OptionError, match="gave int; expected an iterable"):
        list(open_reader(f"{path}:number", SHAPE))
    with pytest.raises(DTypeError, match="batch 0: dtype <U1"):
        list(open_reader(f"{path}:text", slots((1,))))
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
    with pytest.raises(FileFormatError, match=r"x\.npy, batch 0: 1 NaN or infinite value"):
        list(open_reader(str(tmp_path / "x.npy"), SHAPE))


def test_batches_for_a_network_of_one_sample_are_divided(tmp_path):
    path = tmp_path / "data.py"
    path.write_text(
        "import numpy as np\n"
        "pairs = [(np.arange(n * 6.0).reshape(n, 2, 3), np.arange(n)) for n in (4, 1, 2)]\n"
        "def both():\n    return pairs\n"
        "def uneven():\n    return [(pairs[0][0], pairs[1][1])]\n"
        "def first():\n    return [x for x, _ in pairs]\n"
        "def sample():\n    return [np.zeros((2, 3))]\n"
    )
    found = list(open_reader(f"{path}:both", slots((1, 2, 3), (1,))))
    assert [n.tolist() for _, n in found] == [[0], [1], [2], [3], [0], [0], [1]]
    assert np.array_equal(found[3][0], np.arange(18.0, 24).reshape(1, 2, 3))
    assert len(list(open_reader(f"{path}:both", slots((1, 2, 3), (1,)), limit=5))) == 5
    with pytest.raises(ShapeError, match=r"shape \(4, 2, 3\); expected \(1, 2, 3\)"):
        list(open_reader(f"{path}:uneven", slots((1, 2, 3), (1,))))
    with pytest.raises(ShapeError, match=r"\(the network takes 2 samples at once: give batches of that size\)"):
        list(open_reader(f"{path}:first", slots((2, 2, 3))))
    with pytest.raises(ShapeError, match=r"\(add the axis of the batch: array\[None\]\)"):
        list(open_reader(f"{path}:sample", slots((1, 2, 3))))


def test_arrays_that_do_not_fit(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 5, 5), np.float32))
    with pytest.raises(ShapeError, match=r"shape \(2, 3, 5, 5\); expected \(2, 3, 4, 4\)"):
        list(open_reader(str(tmp_path / "x.npy"), SHAPE))
    with pytest.raises(ShapeError, match="4 samples, the network takes 8"):
        open_reader(str(tmp_path / "x.npy"), slots((8, 3, 5, 5)))
    np.save(tmp_path / "n.npy", np.float32(1))
    with pytest.raises(ShapeError, match="a single number"):
        open_reader(str(tmp_path / "n.npy"), SHAPE)
    np.savez(tmp_path / "x.npz", np.zeros((2, 1)), np.zeros((3, 1)))
    with pytest.raises(ShapeError, match=r"unequal numbers of samples, \[2, 3\]"):
        open_reader(str(tmp_path / "x.npz"), slots((1, 1), (1, 1)))


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_damaged_array_files_and_pickles(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"damaged")
    with pytest.raises(FileFormatError, match="not a readable"):
        open_reader(str(path), SHAPE)
    if name == "x.npy":
        np.save(path, np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(FileFormatError, match="not a readable"):
            open_reader(str(path), SHAPE)


def test_sources_that_are_nothing(tmp_path):
    with pytest.raises(OptionError, match="no such file or folder"):
        open_reader("nowhere", SHAPE)
    with pytest.raises(OptionError, match="no pictures below this folder"):
        open_reader(str(tmp_path), SHAPE, how=RECIPE)
    (tmp_path / "x.txt").touch()
    with pytest.raises(OptionError, match=r"expected a folder of pictures, \.npy, \.npz"):
        open_reader(str(tmp_path / "x.txt"), SHAPE)
    pictures(tmp_path, 1)
    with pytest.raises(OptionError, match="pictures fit a network with one 4-D input"):
        open_reader(str(tmp_path), slots((1, 3)))
    with pytest.raises(OptionError, match=r"the recipe makes 1 channel \(L\), input 'x0' takes \(2, 3, 4, 4\)"):
        open_reader(str(tmp_path), SHAPE, how=Recipe(colour="L", mean=(0.0,), std=(1.0,)))


def test_pictures_need_a_recipe_and_arrays_take_none(tmp_path):
    pictures(tmp_path, 1)
    with pytest.raises(OptionError, match=r"need --preprocess.* imagenet \(RGB, mean 123.675,.*; or key="):
        open_reader(str(tmp_path), SHAPE)
    with pytest.raises(OptionError, match="need --preprocess"):
        open_reader(str(tmp_path / "0.png"), SHAPE)
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 4, 4), np.float32))
    np.savez(tmp_path / "x.npz", a=np.zeros((2, 3, 4, 4), np.float32))
    (tmp_path / "x.py").write_text("def data():\n    return []\n")
    for name in ("x.npy", "x.npz", "x.py:data"):
        with pytest.raises(OptionError, match=rf"--preprocess: data .*{name}' gives arrays, which are taken"):
            open_reader(str(tmp_path / name), SHAPE, how=RECIPE)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(np.int32, np.int64), (np.int64, np.int32), (np.uint8, np.float32), (np.float64, np.int64), (bool, np.float32)],
)
def test_numbers_take_the_dtype_of_the_input_where_it_holds_them(tmp_path, given, wanted):
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(given)
    np.save(tmp_path / "x.npy", values)
    for batch, row in zip(open_reader(str(tmp_path / "x.npy"), slots((1, 3), dtype=wanted)), values, strict=True):
        assert batch[0].dtype == wanted and batch[0].tolist() == [row.tolist()]


@pytest.mark.parametrize(
    ("value", "wanted", "message"),
    [
        (np.float32(0.5), np.int64, r"float32 with values such as 0\.5, which int64 does not hold"),
        (np.int64(2**40), np.int32, "int64 with values such as 1099511627776, which int32 does not hold"),
        (np.int64(-1), np.uint8, "int64 with values such as -1, which uint8 does not hold"),
        (np.float64(1e300), np.float32, r"float64 with values such as 1e\+300, which float32 does not hold"),
        (np.int64(2**24 + 1), np.float32, "int64 with values such as 16777217, which float32 does not hold"),
    ],
)
def test_numbers_that_the_input_does_not_hold(tmp_path, value, wanted, message):
    np.save(tmp_path / "x.npy", np.array([[0, value]], type(value)))
    reader = open_reader(str(tmp_path / "x.npy"), slots((1, 2), dtype=wanted))
    with pytest.raises(DTypeError, match=rf"batch 0: {message}; expected {np.dtype(wanted)} \(1, 2\) of input 'x0'"):
        list(reader)


@pytest.mark.parametrize(
    ("given", "wanted"), [((5, 6, 7, 3), (1, 3, 6, 7)), ((5, 3, 6, 7), (1, 6, 7, 3)), ((3, 6, 7), (1, 3, 6, 7))]
)
def test_the_advice_about_a_shape_works(tmp_path, given, wanted):
    """It was to reshape, which mixes what lies in other axes without an error."""
    array = np.random.default_rng(0).standard_normal(given).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ShapeError, match="give ") as caught:
        list(open_reader(str(tmp_path / "x.npy"), slots(wanted)))
    advice = str(caught.value).partition("give ")[2].removesuffix(")")
    np.save(tmp_path / "x.npy", eval(advice, {"numpy": np, "array": array}))
    got = list(open_reader(str(tmp_path / "x.npy"), slots(wanted)))
    assert len(got) == (5 if len(given) == 4 else 1) and got[0][0].shape == wanted
