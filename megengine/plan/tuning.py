"""The choice of kernels by measuring, with winners that later plans find in a file of this machine.

The file is `tuning-<machine>.json` in the cache folder (`core.files.cache_dir`): a machine is a CPU, an instruction
set and a build of the package, or a GPU and the kernels for it. `MEGENGINE_TUNE_CACHE=off` neither reads nor writes
it. Processes may use it at once: it is replaced as a whole, by one at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.effectless import warn_caller
from megengine.core.files import cache_dir, replacing
from megengine.kernels import _core, isa, onednn
from megengine.kernels.kernel import StepKernel
from megengine.kernels.memory import bits
from megengine.kernels.native import empty_for_step
from megengine.kernels.problem import Problem

_SPILL = 1 << 22  # bytes; more than a core's second-level cache
_ROUNDS = 8
_KEPT = 20_000  # winners of a file

Constants = dict[int, np.ndarray]


class Winners:
    """The winners of measurements on a machine: those of its file, and new ones, which `keep` writes."""

    def __init__(self, machine: dict[str, Any]) -> None:
        self._machine = machine
        self._file = _file(machine)
        self._known = _read(self._file)
        self._new: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        """The name of a winner, if there is one."""
        return self._new.get(key, self._known.get(key))

    def put(self, key: str, name: str) -> None:
        """Note a winner."""
        self._new[key] = name

    def keep(self) -> None:
        """Add the new winners to the file."""
        if self._file is None or not self._new:
            return
        try:
            with _alone(self._file):
                winners = {**_read(self._file, again=True), **self._new}
                kept = {"machine": self._machine, "winners": dict(list(winners.items())[-_KEPT:])}
                with replacing(self._file) as out:
                    out.write(json.dumps(kept, indent=0).encode())
        except OSError as error:
            text = f"tuned kernels are not kept: {error}; set MEGENGINE_CACHE to a folder, or MEGENGINE_TUNE_CACHE=off"
            warn_caller(text, RuntimeWarning)


def signature(problem: Problem) -> list[Any]:
    """What the time of a step depends on: not the numbers of scales, which differ from network to network."""
    values = [[*map(_plain, side)] for side in (problem.inputs, problem.outputs)]
    return [*values, [[name, _plain(value)] for name, value in sorted(problem.attrs.items())]]


class Tuner:
    """Chooses kernels for the steps of one plan. `keep` writes what was measured."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._winners = Winners(_machine())
        self.keep = self._winners.keep

    def pick(self, kernels: Sequence[StepKernel], problem: Problem, constants: Constants) -> StepKernel:
        """The fastest of the kernels: the one that won before in such a step, or the winner of a measurement."""
        if len(kernels) == 1:
            return kernels[0]
        key = self._signature(kernels, problem, constants)
        winner = self._winners.get(key)
        if winner not in [k.name for k in kernels]:
            winner = _fastest(kernels, problem, constants, self.threads).name
            self._winners.put(key, winner)
        return next(k for k in kernels if k.name == winner)

    def _signature(self, kernels: Sequence[StepKernel], problem: Problem, constants: Constants) -> str:
        names = [k.name for k in kernels]
        return json.dumps([problem.op, self.threads, *signature(problem), sorted(constants), names])


def _plain(value: Any) -> Any:
    """A value of a problem for a signature."""
    if isinstance(value, QuantizedDType):
        return [value.storage.name, bool(value.zero_point), value.axis]
    if hasattr(value, "dtype") and hasattr(value, "shape"):  # a spec or an array
        return [*map(int, value.shape), _plain(value.dtype)]
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value)]
    if isinstance(value, float):
        return "float"
    return value if isinstance(value, (int, str, type(None))) else str(value)


# ------------------------------------------------------------------ measuring


def _fastest(kernels: Sequence[StepKernel], problem: Problem, constants: Constants, threads: int) -> StepKernel:
    """The kernel with the least median CPU time on zeros, in rounds of all.

    As in a network, inputs are in the core's caches when a step begins, and weights are not.
    """
    runs = [_trial(kernel, problem, constants, threads) for kernel in kernels]
    spill = np.zeros(_SPILL, np.uint8)
    times: list[list[float]] = [[] for _ in kernels]
    for _ in range(_ROUNDS):
        for (capsule, moving, out), taken in zip(runs, times, strict=True):
            spill += 1
            for array in moving:
                array[...] = 0
            begin = time.process_time()
            _core.run_step(capsule, [*map(bits, (*moving, *out))])
            taken.append(time.process_time() - begin)
    medians = [float(np.median(taken[1:])) for taken in times]
    return kernels[int(np.argmin(medians))]


def _trial(
    kernel: StepKernel, problem: Problem, constants: Constants, threads: int
) -> tuple[Any, list[np.ndarray], list[np.ndarray]]:
    """A step of the kernel with zeros for what moves, and room for its outputs."""
    capsule = kernel.make_step(problem, constants, threads)
    out = [np.zeros(empty_for_step(s).shape, storage_of(s.dtype)) for s in problem.outputs]
    moving = []
    for i, spec in enumerate(problem.inputs):
        if i not in kernel.packs:
            zeros = np.zeros(empty_for_step(spec).shape, storage_of(spec.dtype))
            moving.append(out[0] if i == kernel.inplace_input else zeros)
    return capsule, moving, out


# ------------------------------------------------------------------ the file


def _machine() -> dict[str, Any]:
    """What winners hold for. A build is known by its native modules: the version stays the same while they change."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "cache size")
    about = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    library = onednn.build()
    modules = [os.stat(path) for path in (str(_core.__file__), *library[1:])]
    return {
        "cpu": [platform.machine(), platform.processor(), *(about.get(name, "") for name in wanted)],
        "isa": [isa.active(), os.environ.get("ONEDNN_MAX_CPU_ISA", "")],
        "onednn": library[:1],
        "build": [[m.st_size, m.st_mtime_ns] for m in modules],
    }


def _file(machine: dict[str, Any]) -> Path | None:
    if os.environ.get("MEGENGINE_TUNE_CACHE", "").lower() in ("0", "off"):
        return None
    digest = hashlib.sha256(json.dumps(machine).encode()).hexdigest()[:16]
    return cache_dir() / f"tuning-{digest}.json"


def _read(file: Path | None, *, again: bool = False) -> dict[str, str]:
    """The winners of a file; a damaged one has none, and the next plan that is tuned replaces it."""
    if file is None:
        return {}
    try:
        winners = json.loads(file.read_text(encoding="utf-8"))["winners"]
        if all(isinstance(name, str) for name in winners.values()):
            return winners
    except OSError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    if not again:
        warn_caller(f"{file} is damaged and not used; kernels are measured again", RuntimeWarning)
    return {}


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """No other process is in such a body, on systems with locks of files."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w") as lock:
        try:
            import fcntl
        except ImportError:
            pass
        else:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
