"""Compiling networks; of those with open axes, a plan for each shape, made at the first call with it."""

from __future__ import annotations

import numbers
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.calls import shown
from megengine.core.errors import OptionError, ShapeError, listed
from megengine.core.sizes import closed
from megengine.core.text import counted
from megengine.device import normalize
from megengine.dispatch.refusal import kinds_named
from megengine.plan.building import StepInfo, is_exact, title
from megengine.plan.compiler import Plan
from megengine.plan.gpu_plan import GpuPlan
from megengine.plan.segmented_plan import SegmentedPlan
from megengine.traced_module import InternalGraph, TracedModule, lower
from megengine.traced_module.formats import native as files
from megengine.traced_module.moving import home, moved
from megengine.traced_module.sizes import counting, has_open_axes, specialised

_KEPT = 16  # plans of one network with open axes


class OpenPlan:
    """Plans of a network with open axes: one for the shapes of each call, of which those used last are kept.

    A plan of the first call with new shapes is compiled then. `at` compiles one beforehand.
    """

    def __init__(self, source: InternalGraph, make: Callable[[InternalGraph], Any]) -> None:
        self.source, self.make = source, make
        self._plans: OrderedDict[tuple[tuple[int, ...], ...], Plan] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, *shapes: Sequence[int]) -> Plan:
        """The plan for inputs of these shapes, compiled if it is not there yet; without shapes that of the example.

        Raises ShapeError for shapes that the network does not take.
        """
        key = tuple([tuple(shape) for shape in shapes]) or closed(tuple(n.spec.shape for n in self.source.inputs))
        if len(key) != len(self.source.inputs):
            raise ShapeError(
                f"plan of {self.source.name!r} takes {counted(len(self.source.inputs), 'input')}, got {len(key)}"
            )
        with self._lock:
            if key not in self._plans:
                self._plans[key] = self.make(specialised(self.source, key))
            self._plans.move_to_end(key)
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
            return self._plans[key]

    def _of(self, inputs: Sequence[Any]) -> Plan:
        return self.at(*map(np.shape, inputs))

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        """Run on arrays (4-D: NCHW) of any shapes that the network takes; returns the outputs."""
        return self._of(inputs)(*inputs)

    def __reduce__(self) -> Any:
        return OpenPlan, (self.source, self.make)

    def __repr__(self) -> str:
        return title(self, f"compiled for {counted(len(self._plans), 'shape')}")

    def profile(self, *inputs: Any, repeat: int = 20) -> list[tuple[StepInfo, float]]:
        """As `Plan.profile`, for the shapes of the inputs."""
        return self._of(inputs).profile(*inputs, repeat=repeat)

    @property
    def graph(self) -> InternalGraph:
        """The graph of the plan for the example."""
        return self.at().graph

    @property
    def steps(self) -> list[StepInfo]:
        """The steps of the plan for the example."""
        return self.at().steps

    @property
    def arena_bytes(self) -> int:
        """The memory of the plan for the example."""
        return self.at().arena_bytes

    def save(self, path: str | Path) -> None:
        """As `Plan.save`: the axes stay open."""
        files.save(self.source, path)

    def describe(self) -> str:
        """What `Plan.describe` says of the example, below the shapes of the inputs."""
        shapes = ", ".join(f"{n.name} {n.spec}" for n in self.source.inputs)
        return f"{shapes}; at the example:\n{self.at().describe()}"


AnyPlan = Plan | OpenPlan | SegmentedPlan | GpuPlan


@kinds_named
def compile(
    model: TracedModule | InternalGraph, *, threads: int = 1, tune: bool = False, device: str | None = None
) -> AnyPlan:
    """Compile a float or integer model for the shapes it was captured with; for each shape where axes are open.

    Float graphs are fused (batch norm, bias, residual, activation); integer arithmetic is never changed. The plan is
    for `device`, "gpu0" for instance, or else for that of the inputs at the capture (docs/gpu.md).
    `tune` times the usable kernels of every step on this machine, or takes those that won before (docs/plans.md);
    integer results do not depend on which one wins.
    """
    if not isinstance(threads, numbers.Integral) or threads < 1:
        raise OptionError(f"compile: threads is {shown(threads)}; expected an integer, at least 1")
    graph = lower(model).graph
    name = normalize(device) if device is not None else home(graph)
    if name.startswith("gpu"):
        return _on_gpu(graph, name, tune)
    return _planned(moved(graph, name), partial(Plan, threads=threads, tune=tune))


def _on_gpu(graph: InternalGraph, device: str, tune: bool) -> AnyPlan:
    if names := sorted({expr.op for expr in counting(graph)}):
        raise OptionError(
            f"plan: {listed(names)} gives lengths that depend on values, which plans on {device} do not take; call the "
            "network itself, or compile it for cpu0"
        )
    make = partial(GpuPlan, device=device, tune=tune)
    return OpenPlan(graph, make) if has_open_axes(graph) else make(graph)


def _planned(graph: InternalGraph, make: Callable[[InternalGraph], Plan]) -> AnyPlan:
    if counting(graph):  # in plans with integers, graphs that ops run are computed as eager runs do
        return SegmentedPlan(graph, make, None if is_exact(graph) else partial(_planned, make=make))
    return OpenPlan(graph, make) if has_open_axes(graph) else make(graph)


@kinds_named
def load(path: str | Path, *, threads: int = 1, tune: bool = False, device: str | None = None) -> AnyPlan:
    """Read a graph that `Plan.save` (or `traced_module.files.save`) wrote, and compile it for this machine.

    Raises:
        FileFormatError: no such file, damaged, or not of this format.
    """
    return compile(files.load(path), threads=threads, tune=tune, device=device)
