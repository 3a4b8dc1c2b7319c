"""Every argument of everything public replaced by what does not fit: the answer is a result, or an error of ours that
names the call and says nothing of our insides; the process lives on.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from valid_calls import Call, every_call
from wrong_calls import judged, problems

import megengine as mge
from megengine.core.errors import MegEngineError, OptionError, ShapeError
from megengine.dispatch import no_interposers, public_functions

SCRIPT = Path(__file__).parents[1] / "helpers" / "wrong_calls.py"


@pytest.mark.slow
def test_every_wrong_call_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-W", "ignore", str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert done.stdout.splitlines()[:20] == [], done.stderr[-300:]
    assert done.returncode == 0, f"the process died: {done.stderr[-1000:]}"


def test_the_calls_they_are_made_of_are_right():
    names = set()
    with no_interposers():  # some of them begin to record
        for call in every_call():
            args, kwargs = call.fresh()
            call.make()(*args, **kwargs)
            names.add(call.name)
    # the functions on quantized tensors are declared when something names their module
    declared = [r for r in public_functions.values() if not r.methods and not r.home.endswith(".quantized")]
    left_out = {r.name for r in declared} - names
    assert left_out <= {"nvof", "erf", "rsqrt", "sync_batch_norm"}


def answering(error):
    def function(mode="linear"):
        if not isinstance(mode, str) or mode != "linear":
            raise error

    return Call("function", lambda: function, (), {})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ZeroDivisionError("oops"), "ZeroDivisionError: oops"),
        (MegEngineError(), "without a message"),
        (ShapeError("wrong"), "the call is not named"),
        (OptionError("function: 'int' object is not iterable"), "words about our insides"),
        (OptionError("function: mode is wrong"), "'linear' is not offered"),
    ],
)
def test_poor_answers_are_found(error, text):
    found = list(problems(answering(error)))
    assert any(text in problem for problem in found)


def test_what_is_accepted_in_silence_is_found():
    def function(inp, axis=1, mode="linear", flag=True, name=None):
        return inp

    call = Call("function", lambda: function, (mge.tensor([1.0]),), {})
    found = {problem for problem in problems(call) if problem.endswith(": accepted")}
    for wrong in (
        "inp='text'",
        "axis=7",
        "axis=-100",
        "axis='text'",
        "mode='linea_'",
        "mode='linearx'",
        "name=<object",
    ):
        assert any(f"function: {wrong}" in problem for problem in found), wrong
    assert not any("flag" in problem or "name='text'" in problem for problem in found)


def test_good_answers_are_not():
    assert judged("relu", OptionError("relu: x is 3; expected a tensor")) == ""
    good = list(problems(answering(OptionError("function: mode is wrong; did you mean 'linear'?"))))
    assert good == []


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 31, 1 << 31)])
def test_results_larger_than_memory(shape):
    small = mge.tensor([1.0])
    for call in (
        lambda: mge.functional.zeros(shape),
        lambda: mge.functional.broadcast_to(small, shape),
        lambda: mge.random.normal(size=shape),
        lambda: mge.module.init.parameter(shape),
    ):
        with pytest.raises(MemoryError, match="not enough memory"):
            call()
