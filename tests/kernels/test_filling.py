"""Counter-based random numbers: published values of Philox, NumPy's bits at every instruction set, distributions."""

import numpy as np
import pytest

from megengine.kernels import _core, filling, isa
from megengine.kernels.reference import philox

KEY = 0x0123456789ABCDEF
SIZES = [0, 1, 3, 63, 64, 65, 255, 256, 257, 5000]


def test_philox_gives_the_published_words():
    # the known answers that come with the authors' Random123
    assert [hex(w) for w in philox.philox(0, np.zeros(1, np.uint64))[:, 0]] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]


@pytest.mark.parametrize("normal", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_every_level_has_numpys_bits(size, normal):
    want = (philox.normal if normal else philox.uniform)(KEY, size)
    for level in isa.available():
        with isa.capped(level):
            whole = np.full(size + 32, 77, np.float32)
            _core.random_fill(KEY, whole[16 : 16 + size], normal, 1.0, 0.0)
            np.testing.assert_array_equal(whole[16 : 16 + size], want)
            assert (whole[:16] == 77).all() and (whole[16 + size :] == 77).all()


def test_scale_shift_and_forcing_numpy(monkeypatch):
    options = {"normal": True, "scale": 0.3, "shift": -1.5}
    native = filling.random_array(KEY, (3, 100), **options)
    np.testing.assert_array_equal(native, philox.normal(KEY, 300).reshape(3, 100) * np.float32(0.3) - np.float32(1.5))
    monkeypatch.setattr(_core, "random_fill", None)
    monkeypatch.setenv("MEGENGINE_FORCE_KERNEL", "reference")
    np.testing.assert_array_equal(filling.random_array(KEY, (3, 100), **options), native)


@pytest.mark.parametrize(
    "word",
    [0, 1, 2**7, 2**31 - 1, 2**31, 0xB504F333, 0xB504F334, 2**32 - 2**8, 2**32 - 1],
)
def test_radius_and_angle_are_exact_to_rounding(word):
    x = np.array([word], np.uint32)
    u = (word + 0.5) / 2**32
    np.testing.assert_allclose(philox._radius(x), np.sqrt(-2 * np.log(u)), rtol=2e-7, atol=3.5e-4 if u > 0.999 else 0)
    cosine, sine = philox._spread(np.ones(1, np.float32), x)
    angle = np.pi / 2 * (word & 0x3FFFFFFF) / 2**30
    want = np.cos(angle) * (-1) ** (word >> 31), np.sin(angle) * (-1) ** (word >> 30 & 1)
    np.testing.assert_allclose((cosine[0], sine[0]), want, atol=1.5e-7)


def moments(x):
    return [float((x**k).mean()) for k in (1, 2, 3, 4)]


def test_distributions():
    n = 1 << 20
    x = filling.random_array(1, (n,), normal=True, scale=1.0, shift=0.0).astype(np.float64)
    np.testing.assert_allclose(moments(x), [0, 1, 0, 3], atol=0.03)
    for z, tail in ((0.0, 0.5), (1.0, 0.158655), (2.0, 0.0227501), (3.0, 0.0013499)):
        assert abs((x > z).mean() - tail) < 5 * (tail / n) ** 0.5
        assert abs((x < -z).mean() - tail) < 5 * (tail / n) ** 0.5
    u = filling.random_array(1, (n,), normal=False, scale=1.0, shift=0.0).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, 256, (0, 1))[0]
    assert ((counts - n / 256) ** 2 / (n / 256)).sum() < 255 + 5 * (2 * 255) ** 0.5  # chi squared


def test_neighbours_and_streams_are_not_correlated():
    n = 1 << 18
    x, y = (filling.random_array(key, (n,), normal=True, scale=1.0, shift=0.0) for key in (7, 8))
    for a, b in ((x, y), (x[:-1], x[1:]), (x[:-64], x[64:]), (x[:-128], x[128:]), (x[:-256], x[256:])):
        for f in (lambda v: v, lambda v: v**2):
            assert abs(np.corrcoef(f(a), f(b))[0, 1]) < 5 / n**0.5
