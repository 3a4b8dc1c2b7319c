"""Convolutions by cuDNN through its graphs (the package nvidia-cudnn-frontend).

A problem's graph is built once. Where cuDNN has none for it, that is remembered, and the own kernels compute it.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16, storage_of
from megengine.core.spec import TensorSpec
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.packing import Packing, kept
from megengine.kernels.cuda.plan_choices import MOST_WORKSPACE, Choices, fastest, plans_timed
from megengine.kernels.cuda.sources import Program, program
from megengine.kernels.cuda.tensor_cores import Precision
from megengine.kernels.problem import Problem

_TYPES = {np.dtype(np.float32): "FLOAT", np.dtype(np.float16): "HALF", bfloat16: "BFLOAT16"}
# activation -> how a graph makes it
_ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda graph, y: y,
    "relu": lambda graph, y: graph.relu(y),
    "relu6": lambda graph, y: graph.relu(y, upper_clip=6.0),
    "sigmoid": lambda graph, y: graph.sigmoid(y),
    "tanh": lambda graph, y: graph.tanh(y),
    "silu": lambda graph, y: graph.swish(y),
    "gelu": lambda graph, y: graph.gelu(y),
}


@functools.cache
def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("cudnn") is not None


def reason_against(problem: Problem) -> str | None:
    """Why cuDNN is not asked for a convolution. None if it is."""
    x, out, groups = problem.inputs[0], problem.outputs[0], problem.attrs.groups
    dtype = storage_of(x.dtype)
    if not installed():
        return "nvidia-cudnn-frontend is not installed"
    if dtype not in _TYPES:
        return f"{dtype} is computed by the own kernels"
    if problem.attrs.get("activation", "none") not in _ACTIVATIONS:
        return f"no {problem.attrs.activation} in its graphs"
    if not all(s.size for s in (*problem.inputs, out)):
        return "no elements"
    weight = out if problem.op.endswith("backward_weight") else problem.inputs[1]
    depthwise = groups > 1 and weight.shape[1] == 1
    return "the own kernels are for depthwise ones" if depthwise else None


def _strides(shape: tuple[int, ...], *, last: bool) -> list[int]:
    """Steps in elements of a dense value [N, C, *size], in rows or with channels last."""
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if not last:
        return steps
    _, c, *size = shape
    return [math.prod(size) * c, 1, *(math.prod(size[axis + 1 :]) * c for axis in range(len(size)))]


@dataclass(slots=True)
class Graph:
    """A graph that is built: numbers of its inputs and of its result, bytes that it needs beside them."""

    graph: Any
    inputs: tuple[int, ...]
    output: int
    workspace: int
    key: str  # of the problem, in the file of choices
    timed: int = 0  # plans that are still to be timed
    plan: int = -1  # that was selected by its number


class Graphs:
    """The graphs of one device. `cudnn` is the package, `stream()` the stream that launches go to, `kind` the GPU's."""

    def __init__(self, cudnn: Any, stream: Callable[[], int], kind: str = "") -> None:
        self._cudnn, self._stream = cudnn, stream
        self._choices = Choices(f"{kind} {cudnn.backend_version()} {getattr(cudnn, '__version__', '')}")
        self._handle = cudnn.create_handle()
        self._lock = threading.Lock()  # the handle has one stream
        self._graphs: dict[tuple[Problem, bool, bool], Graph | None] = {}

    def of(self, problem: Problem, *, last: bool) -> Graph | None:
        """The graph of a problem, with activations in rows or channels-last; None where cuDNN has none."""
        key = (problem, last, Precision.tf32)
        if key not in self._graphs:
            try:
                self._graphs[key] = self._built(problem, last=last)
            except self._refusals():
                self._graphs[key] = None
        return self._graphs[key]

    def meet_stream(self) -> None:
        """Let the handle go to the present stream."""
        with self._lock:
            self._cudnn.set_stream(self._handle, self._stream())

    def run(self, graph: Graph, arrays: tuple[DeviceArray, ...], out: DeviceArray) -> None:
        """Launch a graph."""
        if graph.timed:
            self._tune(graph, arrays, out)
        out.runtime.name_memory((*arrays, out))
        self._launch(graph, arrays, out)

    def _launch(self, graph: Graph, arrays: tuple[DeviceArray, ...], out: DeviceArray) -> None:
        space = out.runtime.empty((graph.workspace,), np.uint8)
        given = {number: array.address for number, array in zip(graph.inputs, arrays, strict=True)}
        given[graph.output] = out.address
        with self._lock:
            self._cudnn.set_stream(self._handle, self._stream())
            graph.graph.execute(given, space.address, handle=self._handle)

    def _tune(self, graph: Graph, arrays: tuple[DeviceArray, ...], out: DeviceArray) -> None:
        """Take the plan that was fastest at an earlier time, or the fastest of the first ones on these arrays."""
        count, graph.timed = graph.timed, 0
        known = self._choices.of(graph.key)
        if known is not None and self._select(graph, known):
            return

        def milliseconds(index: int) -> float | None:
            if graph.plan != index and not self._select(graph, index):
                return None
            try:
                return out.runtime.milliseconds(lambda: self._launch(graph, arrays, out))
            except self._refusals():
                return None

        def warm(index: int) -> float | None:
            fresh = graph.plan != index
            took = milliseconds(index)
            return milliseconds(index) if fresh and took is not None else took

        found = fastest(count, graph.graph.get_execution_plan_count(), warm)
        if found is not None and self._select(graph, found):
            self._choices.keep(graph.key, found)

    def _select(self, graph: Graph, index: int) -> bool:
        """Let a plan be the one that runs; whether it is there, and needs no more memory than it may."""
        try:
            graph.graph.build_plan_at_index(index)
        except self._refusals():
            return False
        graph.workspace, graph.plan = int(graph.graph.get_workspace_size()), index
        return graph.workspace <= MOST_WORKSPACE

    def _refusals(self) -> tuple[type[Exception], ...]:
        return self._cudnn.cudnnGraphNotSupportedError, NotImplementedError, RuntimeError, ValueError

    def _built(self, problem: Problem, *, last: bool) -> Graph:
        cudnn = self._cudnn
        half = getattr(cudnn.data_type, _TYPES[storage_of(problem.inputs[0].dtype)])
        graph = cudnn.pygraph(
            io_data_type=half,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=self._handle,
        )
        inputs = self._inputs(graph, problem, half, last=last)
        out = self._result(graph, problem, inputs)
        shape = problem.outputs[0].shape
        out.set_output(True).set_data_type(half).set_dim(list(shape)).set_stride(_strides(shape, last=last))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(self._unwanted(problem))
        graph.check_support()
        graph.build_plans()
        numbers, space = tuple(x.get_uid() for x in inputs), int(graph.get_workspace_size())
        return Graph(graph, numbers, out.get_uid(), space, _key(problem, last=last), plans_timed(problem))

    def _inputs(self, graph: Any, problem: Problem, half: Any, *, last: bool) -> list[Any]:
        """The tensors of the inputs; a bias is [1, O, 1, 1]."""
        tensors = []
        for number, spec in enumerate(problem.inputs):
            shape = spec.shape
            if len(shape) == 1:
                shape = (1, *shape, *(1,) * (problem.inputs[0].ndim - 2))
            steps = _strides(shape, last=last)
            tensors.append(graph.tensor(name=f"input{number}", dim=list(shape), stride=steps, data_type=half))
        return tensors

    def _result(self, graph: Any, problem: Problem, inputs: list[Any]) -> Any:
        op, attrs = problem.op, problem.attrs
        geometry = {
            "pre_padding": [before for before, _ in attrs.padding],
            "post_padding": [after for _, after in attrs.padding],
            "stride": list(attrs.stride),
            "dilation": list(attrs.dilation),
        }
        x, w, *more = inputs
        shape = list(problem.outputs[0].shape)
        if op.endswith("backward_weight"):
            return graph.conv_wgrad(image=x, loss=w, **geometry).set_dim(shape)
        if op.endswith("backward_data") or "transpose" in op:
            y = graph.conv_dgrad(loss=x, filter=w, **geometry).set_dim(shape)
        else:
            y = graph.conv_fprop(image=x, weight=w, **geometry)
        if more:
            y = graph.bias(y, more[0])
        if len(more) > 1:
            y = graph.add(y, more[1])
        return _ACTIVATIONS[attrs.get("activation", "none")](graph, y)

    def _unwanted(self, problem: Problem) -> list[Any]:
        """Notes of plans that are not taken: results that differ from run to run, or float32 that is not."""
        notes = self._cudnn.numerical_note
        unwanted = [notes.NONDETERMINISTIC]
        if problem.inputs[0].dtype == np.float32 and not Precision.tf32:
            unwanted += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
        return unwanted


def _key(problem: Problem, *, last: bool) -> str:
    """A problem as a text, the same in every process."""
    shapes = "; ".join(f"{spec.dtype} {spec.shape}" for spec in (*problem.inputs, *problem.outputs))
    attrs = ", ".join(f"{name}={value!r}" for name, value in sorted(problem.attrs.items()))
    return f"{problem.op}({shapes}; {attrs}) last={last} tf32={Precision.tf32}"


def computed(problem: Problem, arrays: tuple[DeviceArray, ...], *, last: bool) -> DeviceArray | None:
    """The result by cuDNN; None where the device or cuDNN has no graph for it. Weights lie as the op says."""
    runtime = arrays[0].runtime
    graphs = None if runtime.libraries is None else runtime.libraries.graphs
    if graphs is None:
        return None
    asked = _padded(problem) if last else problem
    alone = len(problem.inputs) > 2 and arrays[0].dtype == np.float32 and not Precision.tf32
    graph = None if alone else graphs.of(asked, last=last)  # of several steps they take a hundred times as long
    if graph is None:
        return _in_two(problem, arrays, last=last)
    shape, weight = problem.outputs[0].shape, problem.op.endswith("backward_weight")
    out = runtime.empty((shape[0], *shape[2:], shape[1]) if last else shape, arrays[0].dtype)
    if last and not weight:
        x, w, *others = arrays
        of_x, of_w = (spec.shape for spec in asked.inputs[:2])
        if of_x[1] != x.shape[-1]:
            x = Packing(of_x[0], x.shape[-1], of_x[1], math.prod(of_x[2:]), 1).of(x)
        w = kept(Packing(w.shape[0], w.shape[1], of_w[1], math.prod(of_w[2:])), w)  # [O, *kernel, I]
        arrays = (x, w, *others)
    graphs.run(graph, arrays, out)
    if last and weight:
        out = Packing(shape[0], math.prod(shape[2:]), math.prod(shape[2:]), shape[1]).of(out).reshape(shape)
    return out


@functools.lru_cache(1024)
def _padded(problem: Problem) -> Problem:
    """A convolution of halves with channels up to a multiple of 8, without which cuDNN reads single numbers."""
    x, w, *more = problem.inputs
    half = storage_of(x.dtype).itemsize == 2
    if not half or x.shape[1] % 8 == 0 or problem.attrs.groups > 1 or problem.op.removeprefix("fused_")[:-2] != "conv":
        return problem
    channels = -(-x.shape[1] // 8) * 8
    padded = [TensorSpec((s.shape[0], channels, *s.shape[2:]), s.dtype, s.device) for s in (x, w)]
    return Problem(problem.op, (*padded, *more), problem.outputs, problem.attrs)


def _in_two(problem: Problem, arrays: tuple[DeviceArray, ...], *, last: bool) -> DeviceArray | None:
    """The sums by cuDNN, then bias, residual and activation: of float32 alone, since halves would be rounded twice."""
    if len(arrays) < 3 or arrays[0].dtype != np.float32:
        return None
    sums = computed(_sums_of(problem), arrays[:2], last=last)
    if sums is None:
        return None
    out, (_, channels, *size) = sums.runtime.empty(sums.shape, sums.dtype), problem.outputs[0].shape
    inner = 1 if last else math.prod(size)
    bias, residual = (*arrays[2:], None)[:2]
    given = (sums, bias, residual, out, np.int64(out.size), np.int32(channels), np.int64(inner))
    sums.runtime.each(finishing_program(problem.attrs.get("activation", "none")), "finish_layer", out.size, given)
    return out


@functools.lru_cache(1024)
def _sums_of(problem: Problem) -> Problem:
    """The problem without bias, residual and activation."""
    attrs = {name: value for name, value in problem.attrs.items() if name != "activation"}
    return Problem(problem.op.removeprefix("fused_"), problem.inputs[:2], problem.outputs, attrs)


def finishing_program(activation: str) -> Program:
    """The program of what follows the sums of a layer."""
    return program("biased.cu", TYPE="float", ACC="float", FUSED=1, ACT=f"op_{activation}")
