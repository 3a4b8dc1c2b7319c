"""Convolutions of other ranks and kinds, windows and local normalisation, against torch or loops."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.dispatch import interpose
from megengine.dispatch.apply import Interposer
from megengine.tensor import tensor


class Counter(Interposer):
    """Counts the ops that are applied."""

    applied = 0

    def apply(self, op, tensors, attrs, proceed):
        self.applied += 1
        return proceed()


def numbers(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def biased(layer):
    layer.bias._reset(tensor(numbers(*layer.bias.shape)))
    return layer


def twin_of(layer, name, **options):
    """The torch layer with the same weights: groups are one axis there."""
    torch = pytest.importorskip("torch")
    twin = getattr(torch.nn, name)(layer.in_channels, layer.out_channels, **options)
    twin.weight.data = torch.from_numpy(layer.weight.numpy().reshape(twin.weight.shape).copy())
    twin.bias.data = torch.from_numpy(layer.bias.numpy().reshape(-1).copy())
    return twin


CASES = [
    ("Conv1d", {"kernel_size": 3}, (2, 4, 9)),
    ("Conv1d", {"kernel_size": 3, "stride": 2, "padding": 2, "groups": 2, "padding_mode": "reflect"}, (2, 4, 9)),
    ("Conv3d", {"kernel_size": 2}, (1, 4, 3, 4, 5)),
    ("Conv3d", {"kernel_size": (1, 2, 3), "stride": 2, "padding": (0, 1, 1), "groups": 2}, (1, 4, 3, 4, 5)),
    ("ConvTranspose3d", {"kernel_size": 2, "stride": 2}, (1, 4, 2, 3, 2)),
    (
        "ConvTranspose3d",
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
        (1, 4, 2, 3, 2),
    ),
]


@pytest.mark.parametrize(("name", "options", "shape"), CASES)
def test_other_ranks_equal_torchs(name, options, shape):
    torch = pytest.importorskip("torch")
    layer = biased(getattr(M, name)(4, 6, **options))
    x = numbers(*shape)
    wanted = twin_of(layer, name, **options)(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(layer(tensor(x)).numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_local_convolution_equals_loops():
    layer, x = M.LocalConv2d(4, 6, 5, 6, 3, stride=2, padding=1, groups=2), numbers(2, 4, 5, 6)
    w, padded = layer.weight.numpy(), np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    wanted = np.zeros((2, 6, *w.shape[1:3]))
    for g in range(2):
        for i in range(w.shape[1]):
            for j in range(w.shape[2]):
                window = padded[:, 2 * g : 2 * g + 2, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
                wanted[:, 3 * g : 3 * g + 3, i, j] = np.einsum("nchw,chwo->no", window, w[g, i, j])
    np.testing.assert_allclose(layer(tensor(x)).numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_regions_restrict_a_convolution():
    layer, x = biased(M.RegionRestrictedConv(4, 6, 3, groups=2, padding=1)), numbers(1, 4, 5, 5)
    one = np.ones((1, 5, 5), np.int32)
    plain = M.Conv2d(4, 6, 3, groups=2, padding=1)
    plain.weight, plain.bias = layer.weight, layer.bias
    everywhere = layer(tensor(x), tensor(one), tensor(one)).numpy()
    np.testing.assert_allclose(everywhere, plain(tensor(x)).numpy(), rtol=1e-4, atol=1e-5)
    left = one * (np.arange(5) < 2)
    masked = plain(tensor(x * (np.arange(5) < 2))).numpy()
    restricted = layer(tensor(x), tensor(left), tensor(left)).numpy()
    np.testing.assert_allclose(restricted[..., :2], masked[..., :2], rtol=1e-4, atol=1e-5)


def test_windows_and_their_adjoint():
    x = numbers(2, 3, 5, 6)
    windows = M.SlidingWindow((3, 2), padding=1, stride=2)(tensor(x))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    np.testing.assert_array_equal(windows.numpy()[:, :, 1, 2], padded[:, :, 2:5, 4:6])
    ct = numbers(*windows.shape)
    back = M.SlidingWindowTranspose((5, 6), (3, 2), padding=1, stride=2)(tensor(ct)).numpy()
    assert (back * x).sum() == pytest.approx((ct * windows.numpy()).sum(), rel=1e-4)


def test_local_response_norm():
    x = numbers(2, 7, 3, 3).astype(np.float64)
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    layer = M.LocalResponseNorm(3, k=1.5, alpha=0.1, beta=0.5)
    np.testing.assert_allclose(layer(tensor(x)).numpy(), x / (1.5 + 0.1 * total) ** 0.5, rtol=1e-4)


@pytest.mark.parametrize("kernel_size", [5, 7, 200001])
def test_local_response_norm_over_more_channels_than_there_are(kernel_size):
    """The cost follows the channels: a size in the millions takes no longer."""
    x = numbers(2, 3, 4, 4)
    with interpose(Counter()) as counter:
        found = F.local_response_norm(tensor(x), kernel_size).numpy()
    wanted = x / (2 + 1e-4 * (x * x).sum(1, keepdims=True)) ** 0.75
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert counter.applied < 20


def test_deformable_convolution_without_offsets_is_a_convolution():
    layer, x = biased(M.DeformableConv2d(4, 6, 3, padding=1)), numbers(2, 4, 5, 6)
    plain = M.Conv2d(4, 6, 3, padding=1)
    plain.weight, plain.bias = layer.weight, layer.bias
    offset, mask = np.zeros((2, 18, 5, 6), np.float32), np.ones((2, 9, 5, 6), np.float32)
    still = layer(tensor(x), tensor(offset), tensor(mask)).numpy()
    np.testing.assert_allclose(still, plain(tensor(x)).numpy(), rtol=1e-4, atol=1e-5)
    moved = layer(tensor(x), tensor(offset + 1), tensor(mask)).numpy()  # every tap one down and one right
    shifted = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)))[:, :, 1:, 1:]
    wanted = plain(tensor(shifted)).numpy()
    np.testing.assert_allclose(moved[:, :, 1:, 1:], wanted[:, :, 1:, 1:], rtol=1e-4, atol=1e-5)


def test_regions_are_pooled():
    layer = M.DeformablePSROIPooling(True, 2, 2, 2, 2, 1.0)
    x = np.full((1, 3, 8, 8), 2.5, np.float32)
    rois = np.array([[0, 1, 1, 5, 5]], np.float32)
    out = layer(tensor(x), tensor(rois), tensor(np.zeros((1, 2, 2, 2), np.float32))).numpy()
    assert out.shape == (1, 3, 2, 2)
    np.testing.assert_allclose(out, 2.5, rtol=1e-5)
