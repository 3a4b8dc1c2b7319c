"""Random calls of everything public; each gives a result, or an error of ours that names the call.

    python tests/fuzz/fuzz_calls.py --count 20000                          # of all subjects together
    python tests/fuzz/fuzz_calls.py --subjects conv2d,Conv2d --seed 7 --levels avx2,reference
    python tests/fuzz/fuzz_calls.py --levels avx2 --call "Drawn('relu/0', (Array((0, 3), 'float16'),))"   # one again

Each call is made twice, in processes of their own with a limit on memory and time: by the kernels of a level, and by
the NumPy references on tensors with their usual strides. Reported, shrunk to the smallest, are crashes, hangs, errors
that are not ours or do not name the call, arguments that were changed, results that contradict themselves, and results
of the two that differ. The same seed makes the same calls.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path[:0] = [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[1] / "recording")]
import call_subjects  # noqa: E402
import call_worker  # noqa: E402
import drawn_calls  # noqa: E402
from drawn_calls import DERIVATIVES, Drawn, Tree, calls, leaves  # noqa: E402
from worker import DEATHS, Worker  # noqa: E402

from megengine.kernels import isa  # noqa: E402

# what results may differ by, of their largest value
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float64": 1e-6, "float32": 2e-3, "complex64": 2e-3, "complex128": 1e-6}


# ---------------------------------------------------------------- comparing


def differ(found: tuple[str, Any], expected: tuple[str, Any]) -> str:
    """How two outcomes of a call contradict each other; empty if they do not."""
    if any(o[0] == "refused" and o[1].startswith("NotEnoughMemoryError") for o in (found, expected)):
        return ""
    if found[0] != expected[0]:
        text = [f"{o[0]}: {o[1] if o[0] == 'refused' else 'a result'}" for o in (found, expected)]
        return f"the kernels and the references differ: {text[0][:600]}\nbut {text[1][:600]}"
    if found[0] == "refused":
        return ""
    if len(found[1]) != len(expected[1]):
        return f"{len(found[1])} results; the references give {len(expected[1])}"
    largest = max((_largest(b[2]) for b in expected[1]), default=0)  # gradients may cancel out to nearly nothing
    for i, (a, b) in enumerate(zip(found[1], expected[1], strict=True)):
        if a[:2] != b[:2]:
            return f"result {i} is {a[0]}{a[1]}; the references give {b[0]}{b[1]}"
        problem = _far(a[0], a[2], b[2], 1e-2 * (1 + largest))
        if problem:
            return f"result {i}: {problem}"
    return ""


def _largest(a: np.ndarray) -> float:
    return float(np.abs(a[np.isfinite(a)]).max(initial=0)) if a.dtype.kind in "fc" else 0.0


def _far(dtype: str, a: np.ndarray, b: np.ndarray, least: float) -> str:
    if dtype not in TOLERANCE:
        same = np.array_equal(a, b)
        return "" if same else f"other values: {a[a != b][:5]}; the references give {b[a != b][:5]}"
    with np.errstate(all="ignore"):
        a, b = a.astype(np.complex128), b.astype(np.complex128)
        odd = ~(np.isfinite(a) & np.isfinite(b))
        if not np.array_equal(np.isnan(a[odd]), np.isnan(b[odd])):
            return f"other values that are not finite: {a[odd][:5]}; the references give {b[odd][:5]}"
        largest = np.abs(b[~odd]).max(initial=0)
        far = np.abs(a - b)[~odd].max(initial=0)
    if far <= TOLERANCE[dtype] * max(largest, least):
        return ""
    return f"{far:.3g} off, values reach {largest:.3g}: {a[~odd][:5]}; the references give {b[~odd][:5]}"


# ---------------------------------------------------------------- the two processes


@dataclass
class Pair:
    """The process of a level and that of the references."""

    level: str
    limited: bool = True
    shrink_seconds: float = 20.0
    only_planted: bool = False
    tally: collections.Counter[str] = field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        fast = {"MEGENGINE_MAX_ISA": self.level}
        slow = {"MEGENGINE_FORCE_KERNEL": "reference"}
        self.workers = [
            Worker(call_worker.serve, plain, self.limited, self.only_planted, environment=variables)
            for plain, variables in ((False, fast), (True, slow))
        ]

    def trees(self) -> list[Tree]:
        """What the calls are made of."""
        self.workers[0].start()
        return self.workers[0].greeting

    def fault(self, drawn: Drawn) -> str:
        """Make a call; what is wrong with the outcome, or an empty text."""
        found = []
        for worker in self.workers:
            worker.ask(drawn)
        for worker in self.workers:
            try:
                found.append(worker.answer())
            except EOFError as error:
                found.append(("fault", str(error)))
        self.tally[found[0][0]] += 1
        for outcome in found:
            if outcome[0] == "fault":
                return outcome[1]
        problem = differ(*found)
        return "" if problem and self._stands_at_a_kink(drawn, found[1]) else problem

    def _stands_at_a_kink(self, drawn: Drawn, expected: tuple[str, Any]) -> bool:
        """True if derivatives of a layer jump in the references too, where its inputs move by less than rounding."""
        if drawn.mode not in DERIVATIVES or not drawn.subject[0].isupper():
            return False
        for way in call_worker.MOVED:
            self.workers[1].ask(replace(drawn, mode=drawn.mode + way))
            if differ(self.workers[1].answer(), expected):
                return True
        return False

    def stop(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.stop()


# ---------------------------------------------------------------- search


class FaultFoundError(Exception):
    """What hypothesis shrinks."""


def faults(pair: Pair, trees: list[Tree], texts: list[str], count: int, start: int) -> Iterator[tuple[Drawn, str]]:
    """The smallest calls found that show a fault, each fault of the subject once."""
    known: set[str] = set()
    left = count
    while left > 0:
        made, shown = _search(pair, calls(trees, texts), left, start + left, known)
        left -= max(made, 1)
        if not shown:
            return
        known.add(_kind(shown[0][1]))
        yield min(shown, key=_size)
        if shown[0][1].startswith((*DEATHS, "takes")):  # each process that starts anew takes seconds
            return


def _size(found: tuple[Drawn, str]) -> int:
    return len(repr(found[0]))


def _search(pair: Pair, strategy: Any, count: int, start: int, known: set[str]) -> tuple[int, list[tuple[Drawn, str]]]:
    """(calls made until the first fault, that call and the smaller ones which show it too)."""
    made, shown, deadline = 0, [], float("inf")

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list[Any](HealthCheck),
        report_multiple_bugs=False,
    )
    @given(strategy)
    def search(drawn: Drawn) -> None:
        nonlocal made, deadline
        made += not shown
        fault = pair.fault(drawn) if time.monotonic() < deadline else ""
        if fault and _kind(fault) not in known and (not shown or _kind(fault) == _kind(shown[0][1])):
            shown.append((drawn, fault))
            deadline = min(deadline, time.monotonic() + pair.shrink_seconds)
            raise FaultFoundError(fault)

    try:
        search()
    except Exception:  # also hypothesis's own, of faults that do not show each time
        if not shown:
            raise
    return made, shown


def _kind(fault: str) -> str:
    """What faults have in common that are one: where they come from, or what they say without numbers."""
    head, _, place = fault.partition("\n")
    return "".join(c for c in (place if "File" in place else head[:40]) if not c.isdigit())


def again(drawn: Drawn, level: str) -> str:
    """The line that makes the call again."""
    return f'python tests/fuzz/fuzz_calls.py --levels {level} --call "{drawn!r}"'


def options_of(trees: list[Tree]) -> list[str]:
    """Every text that some right call holds, and some that none does."""
    found = {leaf for t in trees for _, leaf in leaves((t.args, t.kwargs)) if isinstance(leaf, str)}
    return ["", "nonsense", *drawn_calls.DTYPES, *sorted(found - set(drawn_calls.DTYPES))]


def grouped(trees: list[Tree]) -> dict[str, list[Tree]]:
    """Trees by the name of what they call."""
    groups: dict[str, list[Tree]] = {}
    for tree in trees:
        groups.setdefault(tree.subject.partition("/")[0], []).append(tree)
    return groups


def run(pair: Pair, count: int, start: int, wanted: list[str]) -> int:
    """Make that many calls at a level; prints and counts the faults."""
    level, found = pair.level, 0
    try:
        trees = pair.trees()
        groups = grouped(trees)
        names = [n for n in wanted or groups if n in groups and (wanted or not n.startswith(call_subjects.PLANTED))]
        texts = options_of(trees)
        for i, name in enumerate(names):
            share = count * (i + 1) // len(names) - count * i // len(names)
            for drawn, fault in faults(pair, groups[name], texts, share, start + zlib.crc32(name.encode())):
                found += 1
                print(f"{name}: {fault}\n    {again(drawn, level)}\n", flush=True)
    finally:
        pair.stop()
    told = ", ".join(f"{pair.tally[name]} {name}" for name in ("result", "refused"))
    print(f"{level}: {sum(pair.tally.values())} calls of {len(names)} subjects: {told}; {found} faults", flush=True)
    return found


def one(text: str, level: str) -> int:
    """Make the call that a text says."""
    names = {n: getattr(drawn_calls, n) for n in ("Array", "Drawn", "Key", "Left", "Odd", "Scalar")}
    pair = Pair(level, only_planted=f"'{call_subjects.PLANTED}" in text)
    try:
        fault = pair.fault(eval(text, {**names, "nan": float("nan"), "inf": float("inf")}))
    finally:
        pair.stop()
    print(fault or "no fault")
    return int(bool(fault))


def main(arguments: list[str] | None = None) -> int:
    """Run as described above; the exit code is 1 when a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000, help="calls, of all subjects and levels together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--subjects", default="", help="names, with commas between; every one if empty")
    parser.add_argument("--levels", default=",".join(isa.available()), help="instruction sets; all that there are")
    parser.add_argument("--unlimited", action="store_true", help="no limit on memory: for sanitizers")
    parser.add_argument("--shrink", type=float, default=20.0, help="seconds to look for a smaller call that shows it")
    parser.add_argument("--call", help="make this one")
    options = parser.parse_args(arguments)
    levels = options.levels.split(",")
    if options.call:
        return one(options.call, levels[0])
    wanted = [n for n in options.subjects.split(",") if n]
    planted = options.subjects.startswith(call_subjects.PLANTED)
    found = 0
    for i, level in enumerate(levels):
        share = options.count * (i + 1) // len(levels) - options.count * i // len(levels)
        found += run(Pair(level, not options.unlimited, options.shrink, planted), share, options.seed + i, wanted)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
