"""Transforms that change sizes and colours of pictures: random numbers, and what is refused (values: recording)."""

import numpy as np
import pytest
from PIL import Image

import megengine as mge
import megengine.data.transform as T
from megengine.data.dataset import ImageFolder
from megengine.data.transform.vision import functional

IMAGE = np.stack(np.meshgrid(np.arange(40.0), np.arange(30.0)), axis=-1)  # x and y of each point


def test_random_parts_go_with_their_points():
    mge.random.seed(3)
    for _ in range(20):
        crop = T.RandomResizedCrop((30, 40), (0.1, 0.9), (0.5, 2.0), order=("image", "coords", "mask"))
        image, ends, mask = crop.apply((IMAGE, np.array([[0.0, 0.0], [40.0, 30.0]]), np.ones((30, 40))))
        assert image.shape == (30, 40, 2) and mask.shape == (30, 40)
        (left, top), (right, bottom) = ends
        width, height = 1600 / (right - left), 900 / (bottom - top)
        assert 0.05 * 1200 < width * height < 1.0 * 1200 and 0.4 < width / height < 2.5
        assert image[15, 20, 0] == pytest.approx((20.5 - left) * width / 40 - 0.5, abs=1e-4)
        assert image[15, 20, 1] == pytest.approx((15.5 - top) * height / 30 - 0.5, abs=1e-4)


def test_both_sides_are_multiplied_by_one_number():
    sizes = [T.RandomResize((0.5, 2.0)).apply(IMAGE).shape[:2] for _ in range(20)]
    assert len(set(sizes)) > 5 and all(abs(h / 30 - w / 40) < 0.04 and 15 <= h <= 60 for h, w in sizes)


def test_lengths_of_shorter_sides_are_drawn():
    drawn = {T.ShortestEdgeResize((10, 13), 99).apply(IMAGE).shape[0] for _ in range(60)}
    chosen = {T.ShortestEdgeResize((10, 13, 17), 99, "choice").apply(IMAGE).shape[0] for _ in range(60)}
    assert drawn == {10, 11, 12, 13} and chosen == {10, 13, 17}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: T.Resize(0), "Resize: output_size is 0; expected one length or"),
        (lambda: T.Resize((3, 4, 5)), "output_size is .3, 4, 5.; expected"),
        (lambda: T.Resize((3.5, 4)), "output_size is .3.5, 4.; expected"),
        (lambda: T.Resize(4, 2).apply(IMAGE), "Resize: interpolation is 2; expected 0 .nearest. or 1 .linear."),
        (lambda: T.ShortestEdgeResize(4, 9, "both"), "sample_style is 'both'; expected 'range' or 'choice'"),
        (lambda: T.ShortestEdgeResize((4, 5, 6), 9), "min_size=.4, 5, 6., max_size=9; expected lengths"),
        (lambda: T.RandomResize(2.0), "RandomResize: scale_range is 2.0; expected .least, most., above 0"),
        (lambda: T.RandomResizedCrop(4, (0.5, 0.1)), "RandomResizedCrop: scale_range is .0.5, 0.1."),
    ],
)
def test_refusals(make, text):
    with pytest.raises((ValueError, TypeError), match=text):
        make()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: T.BrightnessTransform(-1), "BrightnessTransform: value is -1; expected a number of at least 0"),
        (lambda: T.HueTransform(0.7), "HueTransform: value is 0.7; expected a number of at least 0 and at most 0.5"),
        (lambda: T.Lighting(-1), "Lighting: scale is -1; expected a number of at least 0"),
        (lambda: T.ContrastTransform(0.3).apply(IMAGE), "ContrastTransform: a picture has shape .30, 40, 2.; expected"),
        (lambda: T.Normalize([0, 0, 0]).apply(IMAGE), "shape .30, 40, 2., and mean 3 numbers; expected one for each"),
    ],
)
def test_refusals_of_colours(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_strengths_are_drawn_around_the_middle():
    mge.random.seed(5)
    picture = np.full((1, 1, 3), 100.0)
    drawn = np.array([T.BrightnessTransform(0.4).apply(picture)[0, 0, 0] for _ in range(200)])
    assert 60 <= drawn.min() < 70 and 130 < drawn.max() <= 140 and len(set(drawn)) == 200
    noisy = T.GaussianNoise(0.1, 0.05).apply(np.full((50, 50, 3), 100.0)) - 100
    assert noisy.mean() == pytest.approx(25.5, abs=0.5) and noisy.std() == pytest.approx(12.75, abs=0.5)


def test_folders_of_pictures_are_classes(tmp_path):
    """Order, labels and bytes as MegEngine 1.13 gives them."""
    values = np.random.default_rng(0).integers(0, 256, (3, 4, 3), np.uint8)
    for name in ("b/1.png", "b/sub/0.bmp", "b/x.txt", "a/2.PNG"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path, "BMP" if name.endswith("bmp") else "PNG")
    (tmp_path / "empty").mkdir()
    folder = ImageFolder(str(tmp_path))
    shown = [(path[len(str(tmp_path)) + 1 :], label) for path, label in folder.samples]
    assert shown == [("a/2.PNG", 0), ("b/1.png", 1), ("b/sub/0.bmp", 1)] and len(folder) == 3
    assert folder.class_dict == {"a": 0, "b": 1, "empty": 2}
    image, label = folder[1]
    np.testing.assert_array_equal(image, values[:, :, ::-1])
    assert (label, label.dtype) == (1, np.int32)
    assert ImageFolder(str(tmp_path), lambda path: path.endswith("1.png"), class_name=True)[0][1] == "b"
    (tmp_path / "a/3.png").write_text("x")
    with pytest.raises(ValueError, match="3.png is no picture that can be read"):
        ImageFolder(str(tmp_path))[1]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ImageFolder(str(tmp_path / "none"))
    with pytest.raises(TypeError, match="check_valid_func is 3; expected a function of paths"):
        ImageFolder(str(tmp_path), 3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: functional.to_gray(IMAGE), "to_gray: a picture has shape .30, 40, 2.; expected .H,W,3."),
        (lambda: functional.to_bgr(IMAGE), "to_bgr: a picture has shape .30, 40, 2.; expected .H,W,1."),
        (lambda: functional.flip(IMAGE[..., 0], 1), "flip: a picture has shape .30, 40.; expected .H,W,C."),
        (lambda: functional.resize(IMAGE, 3), "resize: size is 3; expected .height, width."),
        (lambda: functional.pad(IMAGE, (1, 2, 3), 0), "pad: "),
    ],
)
def test_functions_of_pictures_refuse(call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call()
