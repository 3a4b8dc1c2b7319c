""".mge files to an editable op-level graph, with the names of inputs and results and the paths of layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megengine.convert.mge.biases import biases_into_layers
from megengine.convert.mge.reading import MAX_ELEMENTS, Model, Operator, Stored, clean, content_of, read_model
from megengine.convert.mge.rules import RULES
from megengine.convert.onnx import end_names
from megengine.core.dtype import storage_of
from megengine.core.errors import FileFormatError, MegEngineError, brief
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import Op, infer, interpose
from megengine.dispatch.refusal import kinds_named
from megengine.tensor import DeferredValueError, Tensor
from megengine.traced_module import InternalGraph, TracedModule
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.ir.names import identifier
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.tracing.record import OpRecorder

INPUT = "Host2DeviceCopy"
COMPARED = "AssertEqual"  # of what load_and_run expects and a value, which it gives
CONSTANTS = ("ImmutableTensor", "MultipleDeviceTensorHolder", "SharedDeviceTensor")
EXPECTED = ":expect"  # behind the name of a result: the input that load_and_run compares it with
LARGEST_FOLD = 1 << 16  # elements of a constant that is computed while a file is read
ALL_FOLDS = 1 << 24  # of all of them
# numbers that no memory is large enough for, and operands that a rule does not take
MALFORMED = (TypeError, ValueError, LookupError, ArithmeticError, MemoryError)


@kinds_named
def load(source: str | Path | bytes) -> TracedModule:
    """Read a .mge file as a module that is called, edited, quantized and compiled like a traced one.

    See `load_graph` for the errors.

    Example:
        >>> net = load("net.mge")  # doctest: +SKIP
    """
    return TracedModule.from_graph(load_graph(source))


@kinds_named
def load_graph(source: str | Path | bytes) -> InternalGraph:
    """Read a graph that MegEngine 1.x wrote with `trace.dump` as an op-level graph.

    Inputs have the shapes that they had there, and their names; constants are stored in the graph. No code of the file
    runs. Graphs with quantized operators compute the integers that MegEngine's kernels do.

    Args:
        source: path of a .mge file of version 2 (the default of MegEngine 1.13), or its bytes.

    Raises:
        FileFormatError: the file is of version 1, damaged, hostile, or uses what is not supported; one message names
            all unknown operators.
        OptionError: `source` is something else.
    """
    model = read_model(content_of(source))
    unknown = sorted({one.kind for one in model.operators} - {*RULES, *CONSTANTS, INPUT, COMPARED})
    if unknown:
        named = ", ".join(map(brief, unknown))
        raise FileFormatError(
            f"{counted(len(unknown), 'operator')} of the .mge file cannot be read here: {named}. Save the network as a "
            "traced module, megengine.save(megengine.traced_module.trace_module(net, x), 'net.tm'), and load that"
        )
    return _Importer(model).run()


class _Recorder(OpRecorder):
    """Ops of constants alone are computed while they are small."""

    left = ALL_FOLDS

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Add one op to the graph, also one of large constants."""
        made = infer(op, [t.spec for t in tensors], attrs)
        sizes = [spec.size for spec in (made if isinstance(made, tuple) else (made,))]
        if max(sizes, default=0) > MAX_ELEMENTS:
            raise FileFormatError(f"{op.name} gives {counted(max(sizes), 'element')}; expected at most {MAX_ELEMENTS}")
        size = sum(sizes) + sum(t.size for t in tensors)
        if all(t._value is not None and id(t) not in self.nodes for t in tensors):
            if tensors and size > min(LARGEST_FOLD, self.left):
                self.node_of(tensors[0])
            self.left -= min(size, self.left)
        return super().apply(op, tensors, attrs, proceed)


class _Importer:
    """Runs the operators on values without numbers, and writes down the ops that they apply."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.recorder = _Recorder(InternalGraph("mge"))
        self.values: dict[int, Tensor] = {}
        self.inputs: list[tuple[str, str]] = []  # name of the node, name in the file
        self.absent: set[int] = set()  # values that load_and_run compares results with, and what follows from them
        self.checked: dict[
            int, int
        ] = {}  # a value that is compared with one of these -> itself, without the comparison

    def run(self) -> InternalGraph:
        graph = self.recorder.graph
        with interpose(self.recorder):
            for operator in _inputs_in_order(self.model.operators):
                self._input(operator)
            for operator in self.model.operators:
                if operator.kind != INPUT:
                    self._define(operator)
            results = [self._result(number) for number in self.model.results]
        if not self.inputs:
            raise FileFormatError("the graph has no input; expected at least one")
        set_outputs(graph, [node for node, _ in results])
        remove_dead(graph)
        biases_into_layers(graph)
        names = [(node.name, name) for node, (_, name) in zip(graph.outputs, results, strict=True)]
        graph.metadata |= end_names.noted(self.inputs, names)
        return graph

    def _input(self, operator: Operator) -> None:
        if len(operator.tensors) != 1 or len(operator.outputs) != 1:
            raise operator.fail("is an input without a shape; the file is damaged")
        stored = operator.tensors[0]
        name = stored.name or operator.label
        spec = TensorSpec(stored.shape, stored.dtype)
        if name.endswith(EXPECTED):
            self.absent.update(operator.outputs)
            return
        made = self.recorder.inputs([identifier(name[:200])], [spec])
        self.inputs.append((self.recorder.node_of(made[0]).name, name))
        self._enter(operator, made)

    def _enter(self, operator: Operator, values: Sequence[Any]) -> None:
        for number, value in zip(operator.outputs, values, strict=False):
            if number in self.values:
                raise operator.fail("makes a value that another operator made; the file is damaged")
            self.values[number] = value

    def _define(self, operator: Operator) -> None:
        if operator.kind in CONSTANTS:
            self._constants(operator)
            return
        if operator.kind == COMPARED and len(operator.inputs) > 1 and operator.outputs:
            self.checked[operator.outputs[0]] = operator.inputs[1]
            return
        if not self.absent.isdisjoint(operator.inputs):
            self.absent.update(operator.outputs)
            return
        missing = [number for number in operator.inputs if number not in self.values]
        if missing:
            raise operator.fail(f"reads value {missing[0]}, which no earlier operator makes; the file is damaged")
        self.recorder.meta["module"] = _module_path(operator.label)
        made = self._made(operator)
        self._enter(operator, made if isinstance(made, (tuple, list)) else [made])

    def _made(self, operator: Operator) -> Any:
        try:
            return RULES[operator.kind](operator, *(self.values[number] for number in operator.inputs))
        except FileFormatError:
            raise
        except DeferredValueError as error:
            raise operator.fail(
                "its shape or positions depend on values of the inputs; expected constants, or lengths of inputs"
            ) from error
        except MegEngineError as error:
            raise operator.fail(str(error)) from error
        except MALFORMED as error:
            raise operator.fail(
                f"its operands or parameters are malformed ({type(error).__name__}: {error})"
            ) from error

    def _constants(self, operator: Operator) -> None:
        if len(operator.tensors) != len(operator.outputs):
            raise operator.fail(
                f"has {counted(len(operator.tensors), 'tensor')} for {counted(len(operator.outputs), 'value')}"
            )
        for stored, number in zip(operator.tensors, operator.outputs, strict=True):
            value = _constant(operator, stored)
            name = clean(self.model.names[number]) or clean(stored.name)
            if name:
                self.recorder.names[id(value)] = identifier(name)
            self.recorder.alive.append(value)
            if number in self.values:
                raise operator.fail("makes a value that another operator made; the file is damaged")
            self.values[number] = value

    def _result(self, number: int) -> tuple[Any, str]:
        number = self.checked.get(number, number)
        name = self.model.names[number]
        if number not in self.values:
            raise FileFormatError(f"the result {brief(name)} is made by no operator; the file is damaged")
        node = self.recorder.node_of(self.values[number])
        return node, name or node.name


def _inputs_in_order(operators: Sequence[Operator]) -> list[Operator]:
    """The inputs as the file has them; those that `trace` named (arg_0, arg_1, ...) by their numbers."""
    found = [one for one in operators if one.kind == INPUT]
    numbers = [re.fullmatch(r"arg_?(\d{1,6})", one.tensors[0].name if one.tensors else "") for one in found]
    if all(numbers):
        return [
            one for _, one in sorted(zip((int(m[1]) for m in numbers if m), found, strict=True), key=lambda p: p[0])
        ]
    return found


def _constant(operator: Operator, stored: Stored) -> Tensor:
    storage = np.dtype(storage_of(stored.dtype))
    count = int(np.prod(stored.shape, dtype=object))
    if len(stored.data) != count * storage.itemsize:
        raise operator.fail(
            f"has {counted(len(stored.data), 'byte')} for {counted(count, 'element')} of {storage}; the file is damaged"
        )
    if storage == np.bool_:
        array = np.frombuffer(stored.data, np.uint8).reshape(stored.shape) != 0
    else:
        array = np.frombuffer(stored.data, storage).reshape(stored.shape).copy()
    return Tensor._wrap(array, stored.dtype)


def _module_path(name: str) -> str:
    """The path of the layer that made a value: block1.conv1 of `block1.conv1.ConvBias`; "" where the name has none."""
    return clean(name).rpartition(".")[0]
