"""Distributions and initial values are MegEngine's: quantiles, shapes and dtypes beside recorded ones."""

import inspect
from pathlib import Path

import numpy as np
import packed
import pytest
import random_cases

import megengine
import megengine.module.init as init
from megengine import random

RECORDED = packed.load(Path(__file__).parents[1] / "data" / "recorded" / "random.npz")


@pytest.fixture(scope="module")
def found():
    return random_cases.answers(megengine, random, init)


@pytest.mark.parametrize("name", [*random_cases.DRAWS, *random_cases.FILLS])
def test_quantiles_agree(found, name):
    """Each within five standard errors of both samples' quantiles; the density is that of the recorded ones."""
    want, points = RECORDED[name], random_cases.POINTS
    whole = np.allclose(want, np.round(want)) and not name.startswith("permutation")
    if whole:  # quantiles of counts are counts: at the step from one to the next either may be drawn
        assert np.abs(found[name] - want).max() <= 1
        assert abs((found[name] - want).mean()) < 0.05
        return
    slope = np.gradient(want, points)
    error = np.sqrt(2 * points * (1 - points) / random_cases.COUNT) * slope
    assert (np.abs(found[name] - want) < 5 * error).all(), np.abs(found[name] - want) / error


@pytest.mark.parametrize("name", random_cases.SHAPES)
def test_shapes_and_dtypes_are_the_same(found, name):
    assert tuple(found[name]) == tuple(RECORDED[name])
    assert str(found[f"{name} dtype"]) == str(RECORDED[f"{name} dtype"])


def test_every_distribution_is_compared():
    drawn = {name.split()[0] for name in (*random_cases.DRAWS, *random_cases.FILLS)}
    public = {name for name, value in vars(random.RNG).items() if inspect.isfunction(value) and name[0] != "_"}
    assert public - drawn - {"seed", "draw", "shuffle"} == set()
    fills = {name for name in vars(init) if name.endswith("_") and name[0] != "_"}
    assert fills - drawn == {"fill_", "zeros_", "ones_"}  # not random: test_recorded.py has them
