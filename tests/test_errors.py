"""Errors are of the types that users catch: Python's, NumPy's, and those that MegEngine 1.13.0 raises for the same call
(tests/recording/refusals.py).
"""

# pyright: reportArgumentType=false

import builtins
import json
import pickle
from pathlib import Path

import pytest
import refusals

import megengine as mge
import megengine.module as M
from megengine.core import errors
from megengine.core.errors import MegEngineError, MissingMethodError

RECORDED = json.loads((Path(__file__).parent / "data" / "recorded" / "refusals.json").read_text())


@pytest.mark.parametrize("call", RECORDED)
def test_types_are_megengines(call):
    with pytest.raises(getattr(builtins, RECORDED[call])) as caught:
        eval(call, refusals.names())
    wrong_count = caught.type is TypeError and "missing 1 required positional argument" in str(caught.value)
    assert isinstance(caught.value, MegEngineError) or wrong_count
    assert str(caught.value)


def test_the_recorded_calls_are_all_there():
    assert set(RECORDED) <= set(refusals.CALLS.split("\n"))
    assert len(RECORDED) > 80


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        ("ShapeError", (ValueError, RuntimeError, AssertionError)),
        ("DTypeError", (TypeError, ValueError, RuntimeError)),
        ("OptionError", (ValueError, RuntimeError, AssertionError)),
        ("ArgumentError", (TypeError, ValueError)),
        ("DivisionByZeroError", (ZeroDivisionError, ValueError)),
        ("IndexOutOfRangeError", (IndexError, RuntimeError)),
        ("AxisError", (IndexError, ValueError)),
        ("StateDictError", (KeyError, ValueError)),
        ("MissingNameError", (AttributeError,)),
        ("MissingMethodError", (NotImplementedError, TypeError)),
        ("MissingFileError", (FileNotFoundError,)),
        ("FileFormatError", (ValueError, pickle.UnpicklingError)),
        ("NotEnoughMemoryError", (MemoryError,)),
        ("NameInUseError", (AssertionError,)),
        ("PatternError", (AttributeError, AssertionError)),
    ],
)
def test_documented_bases(kind, bases):
    for base in (MegEngineError, *bases):
        assert issubclass(getattr(errors, kind), base)


class Unfinished(M.Module):
    pass


class Pointless(mge.data.Sampler):
    def __init__(self):
        super().__init__()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Unfinished()(1), "Unfinished has no forward"),
        (lambda: mge.optimizer.LRScheduler(mge.optimizer.SGD([mge.Parameter([1.0])], 0.1)), "has no get_lr"),
        (lambda: mge.data.dataset.VisionDataset("a")[0], "VisionDataset has no __getitem__"),
        (lambda: len(mge.data.dataset.VisionDataset("a")), "VisionDataset has no __len__"),
        (lambda: mge.data.transform.VisionTransform().apply([[1.0]]), "VisionTransform has no _apply_image"),
        (lambda: iter(Pointless()), "Pointless has no __iter__"),
        (lambda: mge.autodiff.Function()(mge.tensor(1.0)), "Function has no forward"),
        (lambda: mge.optimizer.SGD([mge.Parameter([1.0])], 0.1).backward(1), "gm.backward"),
    ],
)
def test_missing_methods(call, text):
    with pytest.raises(MissingMethodError, match=text) as caught:
        call()
    assert isinstance(caught.value, NotImplementedError)
    assert isinstance(caught.value, TypeError)


def test_missing_names_are_attribute_errors():
    assert not hasattr(mge.functional, "nonsense")
    assert getattr(M.Linear(2, 2), "nonsense", 3) == 3
    with pytest.raises(AttributeError, match="did you mean 'relu'"):
        mge.functional.rellu
