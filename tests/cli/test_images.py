"""Recipes, cut-outs, and pictures that cannot be read."""

import json
import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from megengine.cli.app import group
from megengine.cli.images import (
    METADATA,
    PRESETS,
    Recipe,
    from_metadata,
    images_in,
    load,
    open_picture,
    others_in,
    recipe,
    to_metadata,
)
from megengine.core.errors import FileFormatError, OptionError

PLAIN = Recipe(size=(4, 6), resize="stretch", mean=(0.0,), std=(1.0,))


def save(tmp_path, array, name="a.png"):
    path = tmp_path / name
    Image.fromarray(array).save(path)
    return path


def test_layout_colour_order_and_normalisation(tmp_path):
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[..., 0], pixels[..., 2] = 200, 10
    path = save(tmp_path, pixels)
    rgb = load(path, PLAIN)
    assert rgb.shape == (1, 3, 4, 6) and rgb.dtype == np.float32 and rgb.flags.c_contiguous
    assert rgb[0, :, 0, 0].tolist() == [200, 0, 10]
    bgr = Recipe(size=(4, 6), resize="stretch", colour="BGR", mean=(10.0, 0.0, 100.0), std=(1.0, 1.0, 2.0))
    assert load(path, bgr)[0, :, 0, 0].tolist() == [0, 0, 50]
    assert load(path, Recipe(size=(4, 6), resize="stretch", layout="NHWC")).shape == (1, 4, 6, 3)
    assert load(path, recipe("mnist")).shape == (1, 1, 28, 28)


def test_crop_keeps_the_middle_and_flip_mirrors(tmp_path):
    pixels = np.zeros((8, 32, 3), np.uint8)
    pixels[:, 16:] = 255
    path = save(tmp_path, pixels)
    middle = load(path, Recipe(size=(8, 8), crop_ratio=1.0, mean=(0.0,), std=(1.0,)))[0, 0]
    assert middle[:, :3].max() == 0 and middle[:, 5:].min() == 255
    square = load(path, Recipe(size=(8, 8), resize="square", mean=(0.0,), std=(1.0,)))[0, 0]
    assert np.array_equal(square, middle)
    flipped = load(path, Recipe(size=(8, 8), resize="square", mean=(0.0,), std=(1.0,), flip=True))[0, 0]
    assert np.array_equal(flipped, middle[:, ::-1])


def test_a_cut_out_lies_in_the_middle_of_its_background(tmp_path):
    pixels = np.zeros((50, 50, 4), np.uint8)
    pixels[5:15, 30:50] = (255, 0, 0, 255)  # 20 wide, 10 high
    path = save(tmp_path, pixels)
    how = Recipe(background=(1, 2, 3), margin=0.1)
    picture = open_picture(path, how)
    assert picture.size == (24, 24)  # int(20 * 1.2)
    array = np.asarray(picture)
    assert array[0, 0].tolist() == [1, 2, 3]
    assert array[7:17, 2:22].reshape(-1, 3).tolist() == [[255, 0, 0]] * 200
    assert (array == (255, 0, 0)).all(-1).sum() == 200


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_a_broken_picture_is_named(tmp_path, content):
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"picture .*broken\.png: cannot be read"):
        load(path, PLAIN)


@pytest.mark.parametrize(("mode", "message"), [("L", "would be scaled to"), ("LA", "would be laid on a square of")])
def test_pictures_that_would_grow_without_end_are_refused(tmp_path, mode, message):
    """A line of pixels is small itself; what a recipe makes of it is checked before memory is taken."""
    path = tmp_path / "line.png"
    Image.new(mode, (300_000, 1), 255 if mode == "L" else (255, 255)).save(path)
    with pytest.raises(FileFormatError, match=rf"picture .*line\.png: .*{message}"):
        load(path, Recipe(size=(224, 224)))


def test_a_recipe_of_endless_nesting_is_refused(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(FileFormatError, match=r"deep\.json: not JSON"):
        recipe(str(path))


def test_a_truncated_picture_is_named(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path, noise)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(FileFormatError, match=r"a\.png: cannot be read"):
        load(path, PLAIN)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_grey_of_16_bits_keeps_its_range(tmp_path, suffix):
    pixels = np.arange(24, dtype=np.uint16).reshape(4, 6) * (65535 // 23)
    path = save(tmp_path, pixels, f"a.{suffix}")
    assert np.abs(load(path, PLAIN)[0, 1] - pixels / 65535 * 255).max() <= 0.5


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_without_a_white_are_refused(tmp_path, dtype):
    path = save(tmp_path, np.ones((4, 6), dtype), "a.tif")
    with pytest.raises(FileFormatError, match=rf"a\.tif: its pixels are {np.dtype(dtype)}, .* prepared arrays"):
        load(path, PLAIN)


@pytest.mark.parametrize(("note", "turned"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_pictures_are_turned_as_the_camera_notes(tmp_path, note, turned):
    pixels = np.random.default_rng(0).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = note
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path, exif=exif)
    assert np.array_equal(np.asarray(open_picture(path, PLAIN)), np.rot90(pixels, turned))


def test_damaged_notes_of_a_camera_are_no_reason_to_refuse(tmp_path):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (6, 4), (9, 9, 9)).save(path, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert load(path, PLAIN).shape == (1, 3, 4, 6)


def test_the_command_does_not_show_what_pillow_warns_of(tmp_path):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (6, 4), (9, 9, 9)).save(path, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        filters = [*warnings.filters]
        load(path, PLAIN)
        assert warnings.filters == filters, "threads that read pictures share them"
        assert said
        said.clear()
        CliRunner().invoke(group, ["inspect", "--help"])
        load(path, PLAIN)
        assert not said


def test_pictures_come_in_path_order(tmp_path):
    for name in ("b.png", "a.JPG", "c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.png").touch()
    (tmp_path / ".thumbnails").mkdir()
    for hidden in (".b.png", "._b.png", ".thumbnails/b.png"):
        (tmp_path / hidden).write_bytes(b"no picture")
    assert [path.name for path in images_in(tmp_path)] == ["a.JPG", "b.png", "d.png"]


def test_a_link_to_nothing_is_refused_and_not_left_out(tmp_path):
    (tmp_path / "a.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(FileFormatError, match="a.png: cannot be read .*; remove or repair the file"):
        load(images_in(tmp_path)[0], PLAIN)


def test_links_to_folders_are_followed_once(tmp_path):
    (tmp_path / "elsewhere" / "cat").mkdir(parents=True)
    (tmp_path / "set").mkdir()
    for path in ("elsewhere/cat/a.png", "set/b.JFIF", "elsewhere/cat/.hidden.png", "elsewhere/cat/a.heic"):
        Image.new("RGB", (2, 2)).save(tmp_path / path, "PNG")
    (tmp_path / "set" / "cat").symlink_to("../elsewhere/cat")
    (tmp_path / "elsewhere" / "cat" / "up").symlink_to("../../set")  # a circle
    (tmp_path / "set" / "again").symlink_to("cat")
    found = [path.relative_to(tmp_path).as_posix() for path in images_in(tmp_path / "set")]
    assert found == ["set/again/a.png", "set/b.JFIF"]
    assert others_in(tmp_path / "set") == {".heic": 1}


def test_recipes_from_text(tmp_path):
    made = recipe("tf,size=160,resize=stretch,mean=1,2,3,flip=true")
    assert (made.size, made.resize, made.mean, made.std, made.flip) == (
        (160, 160),
        "stretch",
        (1, 2, 3),
        (128.0,),
        True,
    )
    assert recipe("mean=0,std=255,size=10,20").size == (10, 20)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(PRESETS["caffe"].describe()))
    assert recipe(str(path)) == PRESETS["caffe"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("imagnet", "no preset 'imagnet'; did you mean 'imagenet'"),
        ("imagenet,siz=3", "unknown key 'siz'; did you mean 'size'"),
        ("imagenet,flip", "'flip' is not key=value"),
        ("imagenet,resize=zoom", "resize is 'zoom'; expected one of stretch, crop, square"),
        ("imagenet,mean=1,2", "mean has 2 numbers"),
        ("imagenet,std=0", "std holds a zero"),
        ("imagenet,size=0", "expected height and width, 1 to 4096"),
        ("imagenet,size=1e9", "expected height and width"),
        ("imagenet,size=100000", "expected height and width"),
        ("imagenet,size=3.5", "expected height and width"),
        ("imagenet,margin=1e9", "margin is 1000000000.0; expected a part of the longer side"),
        ("imagenet,background=1,2", r"background is \(1, 2\); expected red, green and blue"),
        ("imagenet,background=1,2,300", "background is"),
        ("imagenet,mean=NaN", "a number that is not finite"),
        ("imagenet,crop_ratio=1e-9", "crop_ratio is 1e-09"),
        ("imagenet,size=big", "expected numbers"),
        ("imagenet,crop_ratio=2", "crop_ratio is 2"),
        ("size=160", "names no preset, so it must state mean and std; missing: mean, std"),
        ("mean=1,2,3", "missing: std"),
    ],
)
def test_wrong_recipes(text, message):
    with pytest.raises(OptionError, match=message):
        recipe(text)


@pytest.mark.parametrize("text", ["tf,resize=square", "tf,crop_ratio=1", "mean=127,std=128"])
def test_size_and_layout_follow_the_network_unless_they_are_stated(text):
    """`resize` ends in `size`: it states none."""
    assert recipe(text, (1, 3, 40, 50)).size == (40, 50)
    nhwc = recipe(text, (1, 40, 50, 3))
    assert (nhwc.size, nhwc.layout) == ((40, 50), "NHWC")
    assert recipe(f"{text},size=30", (1, 3, 40, 50)).size == (30, 30)
    assert recipe(f"{text},layout=NHWC", (1, 3, 40, 50)).layout == "NHWC"
    with pytest.raises(OptionError, match="pictures have 1 or 3 channels"):
        recipe(text, (1, 7, 8, 8))


def test_a_recipe_file_states_what_it_states(tmp_path):
    path = tmp_path / "r.json"
    path.write_text('{"mean": 127, "std": [128]}')
    assert recipe(str(path), (1, 3, 40, 50)).size == (40, 50)
    path.write_text('{"mean": 127, "std": 128, "size": 30}')
    assert recipe(str(path), (1, 3, 40, 50)).size == (30, 30)
    path.write_text('{"size": 30}')
    with pytest.raises(OptionError, match="must state mean and std"):
        recipe(str(path))


def test_a_model_stores_a_recipe():
    how = recipe("caffe,resize=square", (1, 3, 40, 50))
    assert from_metadata(to_metadata(how), (1, 3, 40, 50)) == how
    assert from_metadata(to_metadata(how), (1, 3, 9, 8)).size == (9, 8)
    assert from_metadata({"author": "somebody"}, (1, 3, 40, 50)) is None
    assert str(how) == "40x50 square, BGR, mean 103.939,116.779,123.68, std 1, NCHW"


@pytest.mark.parametrize(
    "stored",
    ["", "[1]", "{", "[" * 100_000, '{"std": 0}', '{"color": "RGB"}', '{"flip": 1, "margin": {}}',
     '{"mean": [1e999]}', '{"resize": []}'],
)  # fmt: skip
def test_a_stored_recipe_that_cannot_be_used(stored):
    with pytest.raises(FileFormatError, match="the model stores a recipe for pictures that cannot be used"):
        from_metadata({METADATA: stored}, (1, 3, 40, 50))


def test_wrong_recipe_files(tmp_path):
    with pytest.raises(FileFormatError, match=r"none\.json: no such file"):
        recipe(str(tmp_path / "none.json"))
    path = tmp_path / "r.json"
    path.write_text("{")
    with pytest.raises(FileFormatError, match="not JSON"):
        recipe(str(path))
    path.write_text("[1]")
    with pytest.raises(FileFormatError, match="expected a JSON object"):
        recipe(str(path))


@pytest.mark.parametrize("text", ["tf,size=48x192", "tf,size=48,192", "tf,size=(48,192)"])
def test_height_and_width_are_written_as_they_are_shown(text):
    assert recipe(text).size == (48, 192) and str(recipe(text)).startswith("48x192 ")
