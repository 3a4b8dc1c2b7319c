"""Vision functions: gradients by differences, a picture that does not move, wrong arguments."""

import numpy as np
import pytest

import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.core.errors import MegEngineError
from megengine.tensor import Tensor, tensor

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 5, 6))
ROIS = np.array([[0, 0.4, 0.6, 4.2, 3.4], [1, 1.1, 0.9, 3.3, 4.7]])
MATRIX = np.array([[[0.9, 0.2, 0.33], [-0.1, 1.1, 0.42], [0.01, 0.02, 1.0]]] * 2)
PROBABILITIES = RNG.dirichlet(np.ones(4), (6, 2))
V = F.vision

SMOOTH = {
    "remap": (lambda x, m: V.remap(x, m), X, RNG.uniform(0.6, 3.4, (2, 2, 3, 2))),
    "warp_perspective": (lambda x, m: V.warp_perspective(x, m, (3, 4)), X, MATRIX),
    "warp_affine": (lambda x, m: V.warp_affine(x, m, (3, 4), format="NCHW"), X, MATRIX[:, :2]),
    "roi_align": (lambda x: V.roi_align(x, tensor(ROIS, dtype="float64"), 2), X),
    "roi_pooling": (lambda x: V.roi_pooling(x, tensor(ROIS, dtype="float64"), 2), X),
    "roi_pooling average": (lambda x: V.roi_pooling(x, tensor(ROIS, dtype="float64"), 2, "average"), X),
    "correlation": (lambda x, y: V.correlation(x, y, 1, 1, 1, 1, 1), X, X[::-1].copy()),
    "deformable_psroi_pooling": (
        lambda x, t: F.deformable_psroi_pooling(x, tensor(ROIS, dtype="float64"), t, False, 2, 2, 2, 2, 1.0),
        X,
        RNG.uniform(-1, 1, (2, 2, 2, 2)),
    ),
    "deformable_conv2d": (
        lambda x, w, o, m: F.deformable_conv2d(x, w, o, m, padding=1, groups=2),
        X,
        RNG.standard_normal((2, 2, 3, 3)),
        RNG.uniform(0.1, 0.4, (2, 36, 5, 6)),
        RNG.uniform(0.1, 1, (2, 18, 5, 6)),
    ),
    "ctc_loss": (
        lambda p: F.loss.ctc_loss(p, tensor([6, 5]), tensor([[1, 2, 2], [3, 1, 0]]), tensor([3, 2])),
        PROBABILITIES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_agree_with_differences(name):
    call, *arrays = SMOOTH[name]
    state = np.random.default_rng(1)
    inputs = [Tensor._wrap(a.copy()) for a in arrays]
    manager = GradManager().attach(inputs)
    with manager:
        y = call(*inputs)
        weight = state.standard_normal(y.shape)
        manager.backward((y * Tensor._wrap(np.asarray(weight))).sum())
    moves = [state.standard_normal(a.shape) for a in arrays]

    def value(step):
        moved = [Tensor._wrap(a + step * d) for a, d in zip(arrays, moves, strict=True)]
        return float((call(*moved).numpy() * weight).sum())

    numeric = (value(1e-6) - value(-1e-6)) / 2e-6
    exact = sum(float((t.grad.numpy() * d).sum()) for t, d in zip(inputs, moves, strict=True))
    assert exact == pytest.approx(numeric, rel=1e-5, abs=1e-6)


def test_the_identity_moves_nothing():
    x = tensor(X)
    grid = np.stack(np.meshgrid(np.arange(6), np.arange(5)), -1)[None].repeat(2, 0)
    for y in (
        V.remap(x, tensor(grid, dtype="float32")),
        V.warp_perspective(x, tensor([np.eye(3)] * 2), (5, 6)),
        V.warp_affine(x, tensor([np.eye(3)[:2]] * 2), (5, 6), format="NCHW"),
        V.interpolate(x, (5, 6)),
        V.interpolate(x, scale_factor=1, mode="bicubic"),
    ):
        np.testing.assert_allclose(y.numpy(), x.numpy(), atol=1e-6)


def test_ctc_loss_of_all_paths():
    """The probability of a label is the sum over all paths that read as it."""
    probabilities = np.random.default_rng(2).dirichlet(np.ones(3), (4, 1))
    total = 0.0
    for path in np.ndindex(*[3] * 4):
        merged = [c for k, c in enumerate(path) if k == 0 or c != path[k - 1]]
        if [c for c in merged if c] == [1, 2]:
            total += np.prod([probabilities[t, 0, c] for t, c in enumerate(path)])
    loss = F.loss.ctc_loss(tensor(probabilities), tensor([4]), tensor([[1, 2]]), tensor([2]), reduction="none")
    np.testing.assert_allclose(loss.numpy(), [-np.log(total)], rtol=1e-5)


def test_nms_of_nothing_and_of_equal_boxes():
    assert V.nms(tensor(np.zeros((0, 4))), tensor(np.zeros(0)), 0.5).shape == (0,)
    boxes = tensor([[0.0, 0, 1, 1]] * 3)
    assert V.nms(boxes, tensor([0.1, 0.3, 0.2]), 0.5).tolist() == [1]


PICTURE = tensor(X)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: V.interpolate(PICTURE, (3, 3), mode="bilnear"), "did you mean 'bilinear'"),
        (lambda: V.interpolate(PICTURE), "give either size or scale_factor"),
        (lambda: V.interpolate(PICTURE, (3, 3), mode="nearest", align_corners=True), "align_corners has no meaning"),
        (lambda: V.interpolate(PICTURE, 3, mode="linear"), "expected 3 axes for mode 'linear'"),
        (lambda: V.interpolate(PICTURE, (0, 3)), "expected a positive number"),
        (lambda: V.remap(PICTURE, tensor(np.zeros((2, 2, 3)))), "map_xy has shape"),
        (lambda: V.remap(PICTURE, tensor(np.zeros((2, 2, 3, 2))), "replicat"), "did you mean 'replicate'"),
        (lambda: V.warp_affine(PICTURE, tensor(np.zeros((2, 3, 3))), (2, 2)), "mat has shape"),
        (lambda: V.warp_perspective(PICTURE, tensor(np.zeros((1, 3, 3))), (2, 2)), "mat has shape"),
        (lambda: V.warp_affine(PICTURE, tensor(np.zeros((2, 2, 3))), (2, 2), format="NCWH"), "did you mean 'NCHW'"),
        (lambda: V.roi_align(PICTURE, tensor(ROIS[:, :4]), 2), "rois has shape"),
        (lambda: V.roi_align(PICTURE, tensor(ROIS + 5), 2), "index 6 is out of range"),
        (lambda: V.roi_pooling(PICTURE, tensor(ROIS + 5), 2), "picture 6 is out of range for 2 pictures"),
        (lambda: V.roi_pooling(PICTURE, tensor(ROIS - 1), 2), "picture -1 is out of range for 2 pictures"),
        (lambda: V.roi_pooling(PICTURE, tensor(ROIS), 2, "avrage"), "did you mean 'average'"),
        (lambda: V.nms(tensor(ROIS), tensor([1.0, 2.0]), 0.5), "boxes have shape"),
        (lambda: V.nms(tensor(ROIS[:, 1:]), tensor([1.0, 2.0]), 1.5), "iou_thresh is 1.5; expected 0..1"),
        (lambda: V.cvt_color(tensor(X[..., :3]), "RGB2GREY"), "did you mean 'RGB2GRAY'"),
        (lambda: V.cvt_color(tensor(X[..., :4]), "RGB2GRAY"), "got 4 channels; expected 3"),
        (lambda: V.nvof(PICTURE), "not supported; use F.vision.correlation"),
        (lambda: V.correlation(PICTURE, tensor(X[:1])), "expected one shape"),
        (lambda: F.deformable_conv2d(PICTURE, tensor(X[:, :, :3, :3]), PICTURE, PICTURE), "offset has shape"),
        (lambda: F.loss.ctc_loss(PICTURE, PICTURE, PICTURE, PICTURE), "pred has shape"),
        (
            lambda: F.loss.ctc_loss(tensor(PROBABILITIES), tensor([6, 7]), tensor([1, 1]), tensor([1, 1])),
            "pred_lengths are",
        ),
        (
            lambda: F.loss.ctc_loss(tensor(PROBABILITIES), tensor([6, 6]), tensor([1, 9]), tensor([1, 1])),
            "labels lie in 1..9; expected 0..3",
        ),
    ],
)
def test_wrong_arguments(call, match):
    with pytest.raises(MegEngineError, match=match):
        call()


def test_functions_are_found_where_megengine_has_them_too():
    assert F.nn.interpolate is V.interpolate
    assert F.nn.cross_entropy is F.loss.cross_entropy
    assert F.nn.normalize is F.math.normalize


@pytest.mark.parametrize("count", [63, 64, 65, 700])
@pytest.mark.parametrize("most", [None, 7, 70])
def test_boxes_are_suppressed_by_better_ones_that_stay(count, most):
    """More boxes than are compared at once, against the definition."""
    rng = np.random.default_rng(count)
    corners = rng.uniform(0, 20, (count, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + rng.uniform(1, 6, (count, 2)).astype(np.float32)], 1)
    scores, kept = rng.permutation(count).astype(np.float32), []

    def share(a, b):
        sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
        common = float(np.prod(np.maximum(sides, 0)))
        return common / (float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - common)

    for place in np.argsort(-scores):
        if all(share(boxes[place], boxes[k]) <= 0.3 for k in kept):
            kept.append(place)
    found = V.nms(tensor(boxes), tensor(scores), 0.3, most).numpy()
    np.testing.assert_array_equal(found, kept[:most])


def test_colours_of_8_bits_are_converted_in_fixed_point():
    """14 bits behind the point and halves upwards, as in OpenCV; MegEngine weights channel 0 as blue."""
    half = 1 << 13
    pictures = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3)).astype(np.uint8)
    first, green, last = np.moveaxis(pictures.astype(np.int64), 3, 0)
    gray = (4899 * first + 9617 * green + 1868 * last + half) >> 14
    np.testing.assert_array_equal(V.cvt_color(tensor(pictures), "RGB2GRAY").numpy()[..., 0], gray)
    light = (1868 * first + 9617 * green + 4899 * last + half) >> 14
    chroma = [((d - light) * k + (128 << 14) + half) >> 14 for d, k in ((first, 8061), (last, 14369))]
    yuv = np.stack([light, *chroma], axis=3).clip(0, 255)
    np.testing.assert_array_equal(V.cvt_color(tensor(pictures), "RGB2YUV").numpy(), yuv)
    u, v = green - 128, last - 128
    parts = (u * 33292, v * -9519 + u * -6472, v * 18678)
    colours = np.stack([first + ((part + half) >> 14) for part in parts], axis=3).clip(0, 255)
    np.testing.assert_array_equal(V.cvt_color(tensor(pictures), "YUV2RGB").numpy(), colours)
