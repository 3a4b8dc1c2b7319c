"""Transforms that give pictures another size: random parts, and what is refused (numbers: tests/recording)."""

import numpy as np
import pytest

import megengine as mge
import megengine.data.transform as T

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


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: T.Resize(0), "Resize: output_size is 0; expected one length or"),
        (lambda: T.Resize((3, 4, 5)), "output_size is .3, 4, 5.; expected"),
        (lambda: T.Resize((3.5, 4)), "output_size is .3.5, 4.; expected"),
        (lambda: T.Resize(4, 2).apply(IMAGE), "Resize: interpolation is 2; expected 0 .nearest. or 1 .linear."),
        (lambda: T.RandomResize(2.0), "RandomResize: scale_range is 2.0; expected .least, most., above 0"),
        (lambda: T.RandomResizedCrop(4, (0.5, 0.1)), "RandomResizedCrop: scale_range is .0.5, 0.1."),
    ],
)
def test_refusals(make, text):
    with pytest.raises((ValueError, TypeError), match=text):
        make()
