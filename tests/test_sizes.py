"""Sizes that follow from open axes: arithmetic on them gives what it gives at every size."""

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megengine.core import sizes
from megengine.core.errors import FileFormatError, ShapeError
from megengine.core.sizes import OpenSize, at, from_start, is_open, largest, least, named, parse_size

H, W = named("h", 24), named("w", 17)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (H + 1 - H, "1"),
        (H * W * 64 // W, "64*h"),
        (((H + 1) // 2 + 1) // 2, "((h + 3)//4)"),
        (-(-H // 4), "((h + 3)//4)"),
        ((H * W) % W, "0"),
        (math.floor(H * 2.0), "2*h"),
        (math.floor(W * (H / W)), "h"),
        (H / H, "1.0"),
        (largest(H, 1), "h"),
        (least(H, 1 << 62), "h"),
        (largest(0, H - 2 * (H // 2)), "h - 2*(h//2)"),
        (least(H, least(H, 512)), "least(h, 512)"),
        (sizes.range_length(*sizes.slice_bounds(None, None, -1, H)), "h"),
        (sizes.range_length(*sizes.slice_bounds(1, None, 1, H)), "h - 1"),
    ],
    ids=str,
)
def test_normal_forms(size, text):
    assert str(size) == text


def test_equal_only_where_equal_at_every_size():
    assert H != 24
    assert named("h", 24) == H
    assert H // 2 * 2 != H
    with sizes.as_examples():
        assert H == 24
        assert H // 2 * 2 == H
    assert (1, H) != (1, 24)
    assert int(H) == 24


FORMULAS = st.recursive(
    st.one_of(st.sampled_from(["h", "w"]), st.integers(0, 9)),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "max", "min"]), inner, inner),
    max_leaves=5,
)
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def computed(tree, values, extremes):
    if not isinstance(tree, tuple):
        return values.get(tree, tree)
    operator, a, b = tree
    a, b = computed(a, values, extremes), computed(b, values, extremes)
    if operator in extremes:
        return extremes[operator](a, b)
    return a if operator in ("//", "%") and int(b) == 0 else OPERATIONS[operator](a, b)


@settings(max_examples=60, deadline=None)
@given(FORMULAS, st.integers(1, 40), st.integers(1, 40))
def test_a_formula_gives_what_integers_give(tree, h, w):
    try:
        size = computed(tree, {"h": H, "w": W}, {"max": largest, "min": least})
    except ShapeError:  # too long
        return
    plain = {"max": max, "min": min}
    assert int(size) == computed(tree, {"h": 24, "w": 17}, plain)
    try:
        got = at(size, {"h": h, "w": w})
    except ZeroDivisionError:  # a divisor that is not zero at the example
        return
    divisors_stay = int(size) == at(size, {"h": 24, "w": 17})
    assert divisors_stay
    if is_open(size):
        again = parse_size(str(size), int(size))
        assert at(again, {"h": h, "w": w}) == got
    if "//" not in str(tree) and "%" not in str(tree):
        assert got == computed(tree, {"h": h, "w": w}, plain)


@pytest.mark.parametrize("bounds", [(None, None, 2), (3, None, 1), (-4, None, 1), (None, -2, 3), (None, None, -2)])
def test_slices_of_every_length(bounds):
    length = sizes.range_length(*sizes.slice_bounds(*bounds, H))
    for n in range(1, 30):
        assert at(length, {"h": n}) == len(range(n)[slice(*bounds)]), n


def test_bounds_that_are_those_of_the_axis_at_the_example_alone():
    """Files are read with examples in the place of sizes."""
    other = named("k", 24)
    with sizes.as_examples():
        whole, none = sizes.slice_length(0, other, 1, H), sizes.slice_length(other - 24, H, 1, H)
    for h, k in ((24, 24), (30, 25), (20, 27)):
        assert at(whole, {"h": h, "k": k}) == min(h, k)
        assert at(none, {"h": h, "k": k}) == len(range(h)[k - 24 :])


def test_names_that_are_no_identifiers():
    size = named("past length + 1", 3) * 2
    assert str(size) == "2*'past length + 1'"
    assert parse_size(str(size), 6) == size
    assert sizes.names_of((1, [size])) == {"past length + 1"}


@pytest.mark.parametrize("name", ["class", "None", "lambda", "least", "\ufb01", "a'b"])
def test_names_that_a_parser_takes_for_something_else(name):
    size = named(name, 3) * 2 + named("fi", 5)
    assert parse_size(str(size), 11) == size
    assert sizes.names_of(parse_size(str(size), 11)) == {name, "fi"}


@pytest.mark.parametrize("text", ["", "h +", "__import__('os')", "h ** 2", "[h]", "h // 0", "largest(h)", "(" * 400])
def test_texts_that_are_no_formulas(text):
    with pytest.raises(FileFormatError, match="is no formula of a size"):
        parse_size(text, 1)


def test_copies_and_arrays():
    for made in (copy.deepcopy(H // 2), pickle.loads(pickle.dumps(H // 2))):
        assert made == H // 2
        assert isinstance(made, OpenSize)
    assert np.zeros((2, H)).shape == (2, 24)
    assert sizes.closed({"shape": (1, H, [W])}) == {"shape": (1, 24, [17])}
    assert sizes.fits((3, 8), (H, 8))
    assert not sizes.fits((3, 9), (H, 8))


def test_a_formula_has_a_most_number_of_terms():
    total = sum(named(f"n{i}", 2) for i in range(40))
    with pytest.raises(ShapeError, match="a formula of more than 64 terms"):
        total * total


def test_numbers_that_are_no_integers_are_quotients_of_sizes():
    assert sizes.as_quotient(H * 0.5, {"h": int(H)}) == ((1, H), (2, 1))
    (above, one), (below, size) = sizes.as_quotient(5 / ((2 * H + 4) * 4.0), {"h": int(H)})
    assert (above, one, below, size) == (5, 1, 8, H + 2)
    assert int(size) == int(H) + 2


def test_a_rounded_negative_quotient_is_not_taken_for_a_size():
    """-2 % length, as exporters write the end of a slice."""
    blocks = (named("n", 16) + 3) // 4
    end = from_start(-2 % (4 * blocks), 4 * blocks)
    assert [at(end, {"n": n}) for n in (1, 9, 16)] == [2, 10, 14]
