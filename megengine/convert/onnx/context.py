"""What an import rule sees of a node, and the table of rules."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from megengine.convert.onnx.counted_lengths import counted_lengths, inputs_behind
from megengine.convert.onnx.open_values import is_open_array, numbers_of, open_dtype, settled
from megengine.convert.onnx.reading import DATA_TYPES, data_type_name, dtype_of, is_held
from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.errors import FileFormatError, ShapeError, brief
from megengine.core.sizes import is_open, whole
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import Interposer, Op, interpose
from megengine.ops.common import counting
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import SHAPE_OF, Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode

MAX_AXES = 32  # of a tensor
MAX_ELEMENTS = 1 << 40  # of a value: no machine computes more
Value = np.ndarray | TensorNode
Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
QUANTIZED: set[str] = set()  # operators whose rules take quantized tensors; the others get the integers


@dataclass(frozen=True, slots=True)
class Group:
    """A sequence of values, or an optional value that is not there: known while importing, and no value of a graph.

    Args:
        values: those of the sequence.
        optional: whether it is an optional value that is not there.
        grows: whether the rounds of a loop add to it; its values are those of one round then.
        rows: of a sequence whose length depends on the network's input, all values along a first axis.
    """

    values: list[Any]
    optional: bool = False
    grows: bool = False
    rows: Any = None


def rule(*op_types: str, quantized: bool = False) -> Callable[[Rule], Rule]:
    """Declare how ONNX operators become ops of the graph: `function(node, *inputs)`, a parameter for each input.

    An input whose parameter has no default must be there; one that is left out is None. Inputs that a rule takes as
    `*values` must be there where it takes no others, and may be left out behind others. To ONNX the result of
    QuantizeLinear is integers like others; a rule that says `quantized`, since it moves or dequantizes them, gets a
    tensor that knows its scale.
    """
    QUANTIZED.update(op_types if quantized else ())
    return partial(_declare, op_types, tensors=False)


def _declare(op_types: tuple[str, ...], function: Rule, *, tensors: bool) -> Rule:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    variadic = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL
    named = parameters[:-1] if variadic else parameters

    def read(node: OnnxNode) -> Any:
        takes = [node.input if p.default is p.empty else node.optional for p in named]
        if variadic:
            takes += [node.optional if named else node.input] * (len(node.inputs) - len(named))
        inputs = [take(index) for index, take in enumerate(takes)]
        return node.composed(function, *inputs) if tensors else function(node, *inputs)

    for op_type in op_types:
        assert op_type not in RULES, f"{op_type} has two readers"
        RULES[op_type] = read
    return function


def composition(*op_types: str) -> Callable[[Rule], Rule]:
    """Declare how ONNX operators are computed with our functions: as `rule`, and the inputs are tensors.

    A stored input has a value, and what is computed of such tensors alone is a constant; others have a spec.
    """
    return partial(_declare, op_types, tensors=True)


@dataclass(slots=True)
class OnnxNode:
    """An ONNX node that is imported: inputs (arrays are constants), attributes, and the graph under construction.

    An optional input that is left out is None; `outputs` holds "" for a result that nothing reads; `dynamic` says
    whether values that are quantized by the range at hand are, or are read as the real ones; `producer` wrote the file.
    """

    graph: InternalGraph
    op_type: str
    name: str
    inputs: list[Value | None]
    attrs: dict[str, Any]
    opset: int
    outputs: tuple[str, ...]
    dynamic: bool = True
    producer: str = ""
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
        return self.known(value, what) if isinstance(value, TensorNode) else value

    def known(self, value: TensorNode, what: str) -> np.ndarray:
        """The numbers of a computed value that are lengths. Raises FileFormatError for other computed values."""
        if (lengths := counted_lengths(self.apply, value)) is not None:
            return lengths
        names = ", ".join(map(repr, inputs_behind(value)[:4]))
        raise self.fail(
            f"its {what} is computed at run time from {names or 'open sizes'}; expected a constant: fix the shapes "
            "with input_shapes={...}, or values of inputs with input_values={...}"
        )

    def const_ints(self, index: int, what: str) -> tuple[int, ...] | None:
        """A constant input as integers."""
        value = self.const(index, what)
        return None if value is None else tuple(whole(item) for item in value.reshape(-1))

    def axis(self, axis: int, rank: int) -> int:
        """An axis as a number from 0; ONNX counts from the end too."""
        if not -rank <= axis < rank:
            raise self.fail(f"axis {axis} does not exist in a tensor of {counted(rank, 'dimension')}")
        return axis % rank

    def dtype(self, number: Any) -> np.dtype:
        """The dtype of one of ONNX's numbers of data types."""
        if (found := dtype_of(number)) is None:
            name = data_type_name(number)
            raise self.fail(f"has the data type {name}, which is not supported; {DATA_TYPES}")
        return found

    def as_node(self, value: Value | float, like: Value | None = None) -> TensorNode:
        """The graph node of a value; an array becomes a constant, once."""
        if isinstance(value, TensorNode):
            return value
        if not isinstance(value, np.ndarray):
            dtype = np.float32 if like is None else _dtype(like)
            return self.graph.constant(np.asarray(value, dtype), name=f"{self.name}_constant")
        if is_open_array(value):
            dtype = open_dtype(value)
            if like is not None and spec_of(like).dtype.kind == dtype.kind:  # the file may compute sizes in others
                dtype = _dtype(like)
            return self.composed(lambda node: numbers_of(value, node.graph.inputs, dtype))
        if not is_held(value.dtype):
            raise self.fail(f"a value of {value.dtype} is needed at run time, which is not supported; {DATA_TYPES}")
        if id(value) not in self.constants:
            name = self._constant_name(value)
            self.constants[id(value)] = self.graph.constant(np.asarray(value, order="C"), name=name)
            self.keep[id(value)] = value  # an id stays valid while its object lives
        return self.constants[id(value)]

    def integers(self, value: np.ndarray, dtype: QuantizedDType) -> TensorNode:
        """A constant of stored integers that stand for real values."""
        stored = Tensor._wrap(np.asarray(value, order="C"), dtype)
        return self.graph.constant(stored, name=self._constant_name(value))

    def stored(self, x: Any, dtype: Any = None) -> Any:
        """The integers that a quantized tensor holds, as `dtype`, its storage by default; others as they are."""
        if not isinstance(x, TensorNode) or not isinstance(own := x.dtype, QuantizedDType):
            return x
        steps = self.apply("round_even", self.apply("div", self.apply("dequantize", x), own.only_scale))
        steps = self.apply("add", steps, float(own.zero_point)) if own.zero_point else steps
        return self.cast(steps, own.storage if dtype is None else dtype)

    def _constant_name(self, value: np.ndarray) -> str:
        return self.names.get(id(value)) or f"{self.name}_constant"

    def apply(self, op: str, *inputs: Value | float, **attrs: Any) -> Any:
        """Add an op to the graph; numbers become constants of the first input's dtype."""
        first = inputs[0] if isinstance(inputs[0], (np.ndarray, TensorNode)) else None
        if is_open_array(first):
            stated = (v for v in inputs if isinstance(v, (np.ndarray, TensorNode)) and not is_open_array(v))
            first = next(stated, None)
        nodes = [self.as_node(value, first) for value in inputs]
        try:
            made = self.graph.apply(op, *nodes, attrs=attrs, name=self.name, meta=self.meta)
        except ShapeError as error:
            raise self.fail(str(error)) from error
        for node in made if isinstance(made, tuple) else (made,):
            if len(node.shape) > MAX_AXES or math.prod(map(int, node.shape)) > MAX_ELEMENTS:
                limits = f"at most {MAX_AXES} axes and {MAX_ELEMENTS} elements are accepted"
                raise self.fail(f"its result has shape {brief(node.shape)}; {limits}")
        return made

    def cast(self, x: Value, dtype: Any) -> Value:
        """X in another dtype; nothing is added for the own one, and a way there and back through a wider one goes."""
        dtype = np.dtype(dtype)
        if not is_held(dtype):
            raise self.fail(f"casts to {dtype}, which is not supported; {DATA_TYPES}")
        if isinstance(x, np.ndarray) and not is_open_array(x):
            return x.astype(dtype)
        x = self.as_node(x)
        if x.dtype == dtype:
            return x
        made, wide = x.expr, storage_of(x.dtype)
        there_and_back = isinstance(made, Apply) and made.op == "cast" and made.inputs[0].dtype == dtype
        if there_and_back and wide.kind == dtype.kind and np.can_cast(dtype, wide):
            return made.inputs[0]
        return self.apply("cast", x, dtype=dtype)

    def composed(self, function: Callable[..., Any], *inputs: Value | None, **options: Any) -> Any:
        """What `function(node, *tensors, **options)` computes, as ops of the graph."""
        recorder = _Composing(self)
        with interpose(recorder):
            made = function(self, *map(recorder.tensor, inputs), **options)
        return tuple(map(recorder.value, made)) if isinstance(made, tuple) else recorder.value(made)

    def counting(self, count: int) -> Value:
        """The numbers from 0 on, so many of them."""
        return self.composed(lambda node: counting(count)) if is_open(count) else np.arange(count)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The same values in another shape; nothing is added when the shape is the same already."""
        shape = tuple(map(whole, shape))
        if x.shape == shape:
            return x
        if isinstance(x, np.ndarray) and not is_open(shape):
            return x.reshape(shape)
        x = self.as_node(x)
        made = x.expr
        before = made.inputs[0] if isinstance(made, Apply) and made.record.keeps_order else None
        return before if before is not None and before.shape == shape else self.apply("reshape", x, shape=shape)


class _Composing(Interposer):
    """Ops on values of the graph become ops of the graph; those on stored tensors alone are computed."""

    holds_draws = False
    looks_inside = True

    def __init__(self, node: OnnxNode) -> None:
        self.node = node
        self.values: dict[int, tuple[Tensor, Value]] = {}  # an id stays valid while its tensor lives

    def tensor(self, value: Value | None) -> Tensor | None:
        """The tensor that stands for a value."""
        if value is None:
            return None
        value = self.node.as_node(value) if is_open_array(value) else value
        made = Tensor._wrap(value) if isinstance(value, np.ndarray) else Tensor._deferred(value.spec)
        self.values[id(made)] = made, value
        return made

    def value(self, tensor: Tensor) -> Value:
        """The value that a tensor stands for."""
        return self.values[id(tensor)][1] if id(tensor) in self.values else tensor._storage()

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Add one op to the graph."""
        if op.name == SHAPE_OF:  # shapes are known at op level, up to open sizes
            shape = tensors[0].spec.shape
            return numbers_of(settled(shape, (len(shape),), np.int32)).astype("int32")
        if all(t._value is not None for t in tensors) and not is_open(attrs):
            return proceed()
        if op.keeps(tensors[0].shape, attrs):
            return tensors[0]
        made = self.node.apply(op.name, *map(self.value, tensors), **attrs)
        return tuple(map(self.tensor, made)) if isinstance(made, tuple) else self.tensor(made)

    def rebind(self, tensor: Tensor, new: Tensor) -> None:
        """Item assignment: the tensor stands for another value from now on."""
        self.values[id(tensor)] = tensor, self.value(new)


def _dtype(value: Value) -> Any:
    dtype = spec_of(value).dtype
    return np.float32 if dtype is None or isinstance(dtype, QuantizedDType) else np.dtype(dtype)


def spec_of(value: Value) -> TensorSpec:
    """Shape and dtype of a value."""
    if isinstance(value, TensorNode):
        return value.spec
    return TensorSpec(tuple(value.shape), open_dtype(value) if is_open_array(value) else value.dtype)
