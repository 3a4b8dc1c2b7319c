"""a * b + c of float32 rounded once, as the sums of recurrent layers are, beside exact fractions."""

from fractions import Fraction

import numpy as np
import pytest

from megengine.dispatch import apply
from megengine.kernels import isa
from megengine.kernels.reference.order import fused
from megengine.ops.recurrent import recurrent_attrs
from megengine.tensor import tensor


def nearest(exact: Fraction) -> np.float32:
    """The float32 that is nearest to a number, of two the one with an even last bit."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda y: (abs(Fraction(float(y)) - exact), int(y.view(np.int32)) & 1))


def numbers(seed):
    """Products and sums of all relations of size; many sums lie next to the middle of two float32 numbers."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(300).astype(np.float32) for _ in range(2))
    a[:100], b[:100] = np.float32(1) + np.float32(2**-12), np.float32(2**-12) * rng.choice([1, -1, 3], 100)
    return a, b, np.ldexp(rng.standard_normal(300), rng.integers(-60, 60, 300)).astype(np.float32)


def test_the_reference_rounds_once():
    for seed in range(4):
        a, b, c = numbers(seed)
        c[:100] = np.ldexp(1.0, np.arange(100) % 25 - 12) * (1 + np.arange(100) % 3 * 2**-23)
        want = [
            nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
            for x, y, z in zip(a, b, c, strict=True)
        ]
        np.testing.assert_array_equal(fused(a, b, c), np.array(want))


def test_what_is_no_number_passes():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    got = fused(*(np.array(v, np.float32) for v in ([1, 1, inf, nan, 3e38], [2, 2, 0, 1, 3], [inf, -inf, 1, 1, 1])))
    np.testing.assert_array_equal(got, np.array([inf, -inf, nan, nan, inf]))


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("place", [0, 50, 250])
def test_kernels_round_once(level, place):
    """A layer that hands on the sums of its inputs: one product and a bias, beside a state of zeros."""
    a, b, c = numbers(place)
    weight, bias = b[place].reshape(1, 1, 1), np.array([[c[place], 0]])
    attrs = recurrent_attrs("rnn", "forward", ["bias"], activations=("Affine",), alphas=(1.0,), betas=(0.0,))
    arrays = (a.reshape(1, -1, 1), weight, np.zeros((1, 1, 1), np.float32), bias.astype(np.float32))
    with isa.capped(level):
        got = apply("recurrent", *map(tensor, arrays), **attrs)[0].numpy().reshape(-1)
    np.testing.assert_array_equal(got, fused(a, b[place], np.full_like(a, c[place])))
