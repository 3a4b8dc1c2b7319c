"""What an import rule sees of a node, and the table of rules."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.errors import FileFormatError, ShapeError, brief
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode

MAX_AXES = 32  # of a tensor
MAX_ELEMENTS = 1 << 40  # of a value: no machine computes more
Value = np.ndarray | TensorNode
Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Declare how ONNX operators become ops of the graph: `function(node, *inputs)`, a parameter for each input.

    An input whose parameter has no default must be there; one that is left out is None. Inputs that a rule takes as
    `*values` must be there where it takes no others, and may be left out behind others.
    """

    def declare(function: Rule) -> Rule:
        parameters = list(inspect.signature(function).parameters.values())[1:]

        def read(node: OnnxNode) -> Any:
            if parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
                first = len(parameters) - 1
                more = map(node.optional if first else node.input, range(first, len(node.inputs)))
                return function(node, *map(node.input, range(first)), *more)
            taken = (node.input if p.default is p.empty else node.optional for p in parameters)
            return function(node, *(take(index) for index, take in enumerate(taken)))

        for op_type in op_types:
            assert op_type not in RULES, f"{op_type} has two readers"
            RULES[op_type] = read
        return function

    return declare


@dataclass(slots=True)
class OnnxNode:
    """An ONNX node that is imported: inputs (arrays are constants), attributes, and the graph under construction.

    An optional input that is left out is None; `outputs` holds "" for a result that nothing reads.
    """

    graph: InternalGraph
    op_type: str
    name: str
    inputs: list[Value | None]
    attrs: dict[str, Any]
    opset: int
    outputs: tuple[str, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    constants: dict[int, TensorNode] = field(default_factory=dict)
    keep: dict[int, np.ndarray] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def fail(self, message: str) -> FileFormatError:
        """The error to raise: it names the node."""
        return FileFormatError(f"{self.op_type} node {self.name!r}: {message}")

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        return self.attrs.get(name, default)

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        """A list of integers, or the default."""
        value = self.attrs.get(name, default)
        return None if value is None else tuple(int(item) for item in value)

    def optional(self, index: int) -> Value | None:
        """An input, None when it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def input(self, index: int) -> Value:
        """An input that must be there."""
        if (value := self.optional(index)) is None:
            raise self.fail(f"input {index} is missing; the file is damaged")
        return value

    def const(self, index: int, what: str) -> np.ndarray | None:
        """An optional input that must be known while importing, as shapes and axes are."""
        value = self.optional(index)
        if isinstance(value, TensorNode):
            raise self.fail(f"its {what} is computed at run time; expected a constant (give fixed input shapes)")
        return value

    def const_ints(self, index: int, what: str) -> tuple[int, ...] | None:
        """A constant input as integers."""
        value = self.const(index, what)
        return None if value is None else tuple(int(item) for item in value.reshape(-1))

    def axis(self, axis: int, rank: int) -> int:
        """An axis as a number from 0; ONNX counts from the end too."""
        if not -rank <= axis < rank:
            raise self.fail(f"axis {axis} does not exist in a tensor of {counted(rank, 'dimension')}")
        return axis % rank

    def as_node(self, value: Value | float, like: Value | None = None) -> TensorNode:
        """The graph node of a value; an array becomes a constant, once."""
        if isinstance(value, TensorNode):
            return value
        if not isinstance(value, np.ndarray):
            dtype = np.float32 if like is None else _dtype(like)
            return self.graph.constant(np.asarray(value, dtype), name=f"{self.name}_constant")
        if id(value) not in self.constants:
            name = self._constant_name(value)
            self.constants[id(value)] = self.graph.constant(np.asarray(value, order="C"), name=name)
            self.keep[id(value)] = value  # an id stays valid while its object lives
        return self.constants[id(value)]

    def integers(self, value: np.ndarray, dtype: QuantizedDType) -> TensorNode:
        """A constant of stored integers that stand for real values."""
        stored = Tensor._wrap(np.asarray(value, order="C"), dtype)
        return self.graph.constant(stored, name=self._constant_name(value))

    def _constant_name(self, value: np.ndarray) -> str:
        return self.names.get(id(value)) or f"{self.name}_constant"

    def apply(self, op: str, *inputs: Value | float, **attrs: Any) -> Any:
        """Add an op to the graph; numbers become constants of the first input's dtype."""
        first = inputs[0] if isinstance(inputs[0], (np.ndarray, TensorNode)) else None
        nodes = [self.as_node(value, first) for value in inputs]
        try:
            made = self.graph.apply(op, *nodes, attrs=attrs, name=self.name, meta=self.meta)
        except ShapeError as error:
            raise self.fail(str(error)) from error
        for node in made if isinstance(made, tuple) else (made,):
            if len(node.shape) > MAX_AXES or node.spec.size > MAX_ELEMENTS:
                limits = f"at most {MAX_AXES} axes and {MAX_ELEMENTS} elements are accepted"
                raise self.fail(f"its result has shape {brief(node.shape)}; {limits}")
        return made

    def cast(self, x: Value, dtype: Any) -> Value:
        """X in another dtype; nothing is added for the own one, and a way there and back through a wider one goes."""
        dtype = np.dtype(dtype)
        if isinstance(x, np.ndarray):
            return x.astype(dtype)
        if x.dtype == dtype:
            return x
        made, wide = x.expr, storage_of(x.dtype)
        there_and_back = isinstance(made, Apply) and made.op == "cast" and made.inputs[0].dtype == dtype
        if there_and_back and wide.kind == dtype.kind and np.can_cast(dtype, wide):
            return made.inputs[0]
        return self.apply("cast", x, dtype=dtype)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The same values in another shape; nothing is added when the shape is the same already."""
        shape = tuple(int(size) for size in shape)
        if x.shape == shape:
            return x
        return x.reshape(shape) if isinstance(x, np.ndarray) else self.apply("reshape", x, shape=shape)


def _dtype(value: Value) -> Any:
    dtype = value.dtype
    return np.float32 if dtype is None or isinstance(dtype, QuantizedDType) else np.dtype(dtype)


def spec_of(value: Value) -> TensorSpec:
    """Shape and dtype of a value."""
    return value.spec if isinstance(value, TensorNode) else TensorSpec(tuple(value.shape), value.dtype)
