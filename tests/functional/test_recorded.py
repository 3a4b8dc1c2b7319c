"""Results, dtypes and gradients of functions agree with those recorded from MegEngine 1.13.0 (tests/recording)."""

from pathlib import Path

import numpy as np
import packed
import pytest
from cases import CASES, Case
from record import answer

import megengine
import megengine.autodiff
import megengine.functional as F
from megengine.core.errors import MegEngineError

RECORDED = packed.load(Path(__file__).parents[1] / "data" / "recorded" / "functional.npz")
KNOWN = {key.split(" -> ")[0] for key in RECORDED}
FAILING_THERE = {key.removesuffix(" -> error") for key in RECORDED if key.endswith(" -> error")}

# Where MegEngine is wrong, or promises less than it gives: name -> reason.
_ZEROS = "there ones of uint16 are zeros"
_NO_HALF = "there memory that nobody wrote: no kernel for float16"
_OUTSIDE = "there memory behind the pictures is read for a region of a picture that does not exist; here an error"
_PARTS = "there any dtype counts as a pair of parts; here complex numbers are of float32 or float64"
_NOTHING = "there parameters of another shape are taken where there is nothing to normalise; here an error"
_ONE_AXIS_MORE = "there the gradient of a tensor without axes has shape (1,)"
DIFFERENT: dict[str, str] = {
    "abs/kink": "-1 is a subgradient of abs at 0, but 0 is the one that everybody takes",
    "adaptive_avg_pool2d/float16": _NO_HALF,
    "argmax/of bool": "there an index of false",
    "argmin/of bool": "there always 0",
    "avg_pool2d/2 average, all float16": _NO_HALF,
    "argmax/axes": "there an index into indices; here the index into the axes flattened",
    "argmin/axes": "there an index into indices; here the index into the axes flattened",
    "argmin/None, all bool": "there memory that nobody wrote",
    "complex/gradient, all float16": _PARTS,
    "complex/gradient, all bool": _PARTS,
    "complex/gradient, all int8": _PARTS,
    "complex/gradient, all int32": _PARTS,
    "copy/()": "there the copy of a tensor without axes has shape (1,)",
    **dict.fromkeys(
        (
            "correlation/gradient (1, 1, 1, 1, 1, True)",
            "correlation/gradient (1, 2, 2, 2, 2, False)",
            "correlation/gradient (3, 2, 1, 1, 2, True)",
            "correlation/no padding",
        ),
        "there the gradient of the first picture is not the derivative; that of the second is",
    ),
    "deformable_psroi_pooling/trans_std, one row": _OUTSIDE,
    "eye/dtype uint16": _ZEROS,
    "indexing_one_hot, no columns": "there memory is read where there is nothing to choose from; here an error",
    "instance_norm, no columns": _NOTHING,
    "layer_norm, no columns": _NOTHING,
    "ones/dtype uint16": _ZEROS,
    "l1_loss/by position": "there a reduction that is given by position is ignored",
    "local_conv2d, all float16": _NO_HALF,
    "log1p/()": _ONE_AXIS_MORE,
    "max_pool2d/2, all float16": _NO_HALF,
    "max_pool2d/float16": _NO_HALF,
    "max/ties": "there every largest element gets the whole gradient, which is no subgradient; here they share it",
    "min/ties": "there every smallest element gets the whole gradient, which is no subgradient; here they share it",
    "norm/-inf 1": "there the axis is ignored",
    "norm/inf 1": "there the axis is ignored",
    "polar/gradient, all float16": _PARTS,
    "prod/zero": "there the gradient is not a number where an element is zero",
    "roi_align/gradient average, one row": _OUTSIDE,
    "roi_align/gradient average, no columns": "there memory that nobody wrote; here an error: there are no pixels",
    "roi_pooling/scale 1, one row": _OUTSIDE,
    "sqrt/()": _ONE_AXIS_MORE,
    "square/()": _ONE_AXIS_MORE,
    "squeeze": "there the gradient has another shape than the input",
    "squeeze/axes": "there the gradient has another shape than the input",
    "sum/None, all float16": "there the sum of float16 is rounded after every element",
    "where/broadcast": "there the gradient has another shape than the input",
}
TOLERANCE = {"float16": 2e-3}


def check(name: str) -> None:
    found = answer(megengine, F, megengine.autodiff, CASES[name])
    wanted = {key: RECORDED[key] for key in RECORDED if key.startswith((f"{name} -> out", f"{name} -> grad"))}
    missing = {k for k in wanted if k not in found and np.any(wanted[k])}
    assert not missing, f"no gradient or result {missing}"
    for key, want in wanted.items():
        got = found.get(key, np.zeros_like(want))
        assert got.shape == want.shape, key
        assert got.dtype == want.dtype, key
        tolerance = max(TOLERANCE.get(str(a.dtype), 2e-5) for a in (want, *CASES[name].inputs))
        scale = max(1.0, float(np.abs(want.astype(np.float64)[np.isfinite(want)]).max(initial=0)))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale, err_msg=key)


@pytest.mark.parametrize("name", sorted(set(CASES) - FAILING_THERE - set(DIFFERENT)))
def test_agrees_with_the_recording(name):
    check(name)


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_differences_are_still_there(name):
    """A difference that vanished must leave the list."""
    with pytest.raises((AssertionError, MegEngineError)):
        check(name)


def test_every_case_is_recorded():
    assert set(CASES) == KNOWN


def test_a_wrong_answer_is_noticed(monkeypatch):
    right = CASES["exp/(5,)"]
    monkeypatch.setitem(CASES, "exp/(5,)", Case(right.name, lambda F, x: F.exp(x) + 1e-3, right.inputs, True))
    with pytest.raises(AssertionError, match=r"exp/\(5,\) -> out 0"):
        check("exp/(5,)")
