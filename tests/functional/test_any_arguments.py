"""Every public function called with anything: a result or a documented error; no crash, no hang, no other error."""

import subprocess
import sys
from pathlib import Path

import pytest
from any_call import Arguments, undocumented
from hypothesis import given, settings
from hypothesis import strategies as st

import megengine as mge
import megengine.functional as F
from megengine.core.errors import ArgumentError, MegEngineError, ShapeError
from megengine.dispatch import public, public_functions
from megengine.dispatch.public import retract

SCRIPT = Path(__file__).parents[1] / "helpers" / "any_call.py"


def run(seed, calls, timeout):
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(seed), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return sorted(set(done.stdout.splitlines()))


def test_every_function_in_a_process_of_its_own():
    assert run(seed=11, calls=8, timeout=280) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_many_calls(seed):
    assert run(seed, calls=100, timeout=280) == []


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(public_functions)), st.integers(0, 2**32))
def test_any_function_any_seed(qualified, seed):
    assert undocumented(public_functions[qualified], Arguments(seed)) == ""


@pytest.fixture
def broken():
    """A function of ours that raises what no caller can expect, and one that answers without a message."""

    @public(home="megengine.functional.nn")
    def broken_one(inp):
        raise NotImplementedError("oops")

    @public(home="megengine.functional.nn")
    def broken_two(inp):
        raise MegEngineError

    yield [public_functions[f"megengine.functional.nn.{n}"] for n in ("broken_one", "broken_two")]
    retract("megengine.functional.nn.broken_one")
    retract("megengine.functional.nn.broken_two")


def test_the_check_can_fail(broken):
    assert undocumented(broken[0], Arguments(0)).endswith("broken_one: NotImplementedError: oops")
    assert undocumented(broken[1], Arguments(0)).endswith("MegEngineError without a message")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda x: F.mean(x, axis="ab"),
            r"mean: .*got mean\(tensor float32\(2, 3\), axis='ab'\); expected mean\(inp, ax",
        ),
        (lambda x: F.relu(), r"relu: .*missing a required.*expected relu\(x\)"),
        (lambda x: F.relu(x, bananas=[1, 2]), r"unexpected keyword argument 'bananas'; got relu\(.*bananas=\[1, 2\]\)"),
        (lambda x: F.clip(x, lower="a" * 99), r"lower='a{59}\.\.\."),
        (lambda x: x.sum(axis=[object()]), r"sum: .*axis=list"),
        (lambda x: F.sum(x, axis=[0.5] * 20), r"sum: "),
    ],
)
def test_what_a_function_cannot_use_is_shown(call, text):
    x = mge.tensor([[1.0, 2, 3], [4, 5, 6]])
    with pytest.raises(MegEngineError, match=text) as caught:
        call(x)
    assert isinstance(caught.value, (TypeError, ValueError))


def test_the_outer_call_is_shown_when_an_inner_op_refuses():
    with pytest.raises(ShapeError, match="do not broadcast") as caught:
        F.loss.l1_loss(mge.tensor([1.0, 2]), mge.tensor([1.0, 2, 3]))
    assert caught.value.__notes__[-1] == "while calling l1_loss(tensor float32(2,), tensor float32(3,))"


def test_it_is_what_callers_catch():
    assert issubclass(ArgumentError, (TypeError))
    assert issubclass(ArgumentError, (ValueError))


@pytest.mark.parametrize("function", [F.sort, F.argsort])
def test_sorting_needs_an_axis(function):
    with pytest.raises(ShapeError, match=rf"{function.__name__}: x has no axes; expected one or more"):
        function(mge.tensor(1.0))
