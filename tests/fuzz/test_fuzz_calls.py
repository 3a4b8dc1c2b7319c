"""A few random calls of everything public: `make fuzz-calls` makes many more."""

import functools
import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest
from call_subjects import PLANTED, subjects
from drawn_calls import Array, Drawn, calls
from hypothesis import given, settings
from hypothesis.strategies import deferred

import megengine as mge
from megengine.kernels import isa

spec = importlib.util.spec_from_file_location("fuzz_calls", Path(__file__).with_name("fuzz_calls.py"))
assert spec is not None
assert spec.loader is not None
fuzz_calls = importlib.util.module_from_spec(spec)
sys.modules["fuzz_calls"] = fuzz_calls
spec.loader.exec_module(fuzz_calls)

BEST = isa.available()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("level", isa.available())
def test_many_random_calls(level, capfd):
    count = ["--count", "3000", "--seed", str(100 + isa.level(level))]
    assert fuzz_calls.main([*count, "--levels", level]) == 0, capfd.readouterr().out


@pytest.mark.slow
def test_the_fuzzer_finds_planted_faults(capfd):
    kinds = ["error", "silence", "nameless", "writes", "differs", "nothing", "crash"]  # behind it processes start anew
    names = ",".join(PLANTED + kind for kind in kinds)
    count = ["--count", str(10 * len(kinds)), "--shrink", "0"]
    assert fuzz_calls.main(["--subjects", names, "--levels", BEST, *count]) == 1
    told = capfd.readouterr().out
    for text in (
        "planted_error: ZeroDivisionError: planted error",
        "planted_silence: MegEngineError without a message",
        "planted_crash: ends the program with code -6",
        "planted_nameless: the call is not named: an axis is wrong",
        "planted_writes: AssertionError: the call changed what it was given",
        "planted_differs: result 0: 1 off",
    ):
        assert text in told
    assert "planted_nothing:" not in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "text"), [("memory", "MemoryError"), ("hang", "takes|does not end"), ("differs", "1 off")]
)
def test_what_it_prints_makes_the_call_again(kind, text, capfd):
    assert fuzz_calls.main(["--subjects", PLANTED + kind, "--levels", BEST, "--count", "8", "--shrink", "0.1"]) == 1
    line = next(t for t in capfd.readouterr().out.splitlines() if "--call" in t)
    call = line.partition('--call "')[2].removesuffix('"')
    assert fuzz_calls.main(["--levels", BEST, "--call", call]) == 1
    assert re.search(text, capfd.readouterr().out)


@pytest.mark.slow
def test_a_layer_whose_gradient_jumps_with_its_rounding_errors_is_no_fault(capfd):
    """The batch norm gives a value that is zero but for them, and a ReLU takes it."""
    picture = Array((1, 3, 6, 6), "float32", values="given", place=0)
    call = Drawn("ConvBnRelu2d/0", ([3, 1, 4], {}, (picture,), True), mode="gradient")
    assert fuzz_calls.main(["--levels", "avx2", "--call", repr(call)]) == 0, capfd.readouterr().out


every_subject = functools.cache(subjects)
HOMES = ["", ".elemwise", ".loss", ".math", ".metric", ".nn", ".tensor", ".vision", ".quantized"]


def test_every_public_callable_is_a_subject():
    names = {name.partition("/")[0].rpartition(".")[2] for name in every_subject()}
    homes = [importlib.import_module(f"megengine.functional{home}") for home in HOMES]
    for home in [*homes, mge.random, mge.optimizer]:
        public = {n for n in home.__all__ if callable(getattr(home, n))}
        assert public - names <= {"generator", "LRScheduler", "Optimizer"}, home.__name__
    kinds = [k for k in vars(mge.module).values() if isinstance(k, type) and issubclass(k, mge.module.Module)]
    abstract = {"Module", "SyncBatchNorm", "GRU", "GRUCell"}  # the latter two refuse at once
    assert {k.__name__ for k in kinds if not inspect.isabstract(k)} - names <= abstract | ALIASES
    methods = {n for n in dir(mge.Tensor) if n not in dir(object) and callable(getattr(mge.Tensor, n)) and n[0] != "_"}
    assert methods <= names


ALIASES = {"HSigmoid", "HSwish", "ReLU6", "Tanh"}


def some_calls():
    made = every_subject()
    return calls([made[n].tree for n in ("conv2d/0", "concat/0", "__getitem__/0", "Linear/0", "SGD/0")], ["a"])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(deferred(some_calls))
def test_drawn_calls_print_as_what_makes_them(drawn):
    names = {"Array": Array, "Drawn": Drawn, "nan": float("nan"), "inf": float("inf")}
    names |= {n: getattr(fuzz_calls.drawn_calls, n) for n in ("Key", "Left", "Odd", "Scalar")}
    assert repr(eval(repr(drawn), names)) == repr(drawn)
