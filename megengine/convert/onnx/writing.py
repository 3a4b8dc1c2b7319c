"""The ONNX graph under construction, and the table of write rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.errors import GraphError
from megengine.core.formulas import Formula, constant_of, over_one, sign_of
from megengine.core.sizes import OpenSize, is_open
from megengine.core.text import counted
from megengine.dispatch import ONNX_WRITER, get_op
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.provenance import FLOAT

if TYPE_CHECKING:
    import onnx

WriteRule = Callable[["Writer", Apply], None]
MAX_BYTES = (2 << 30) - (16 << 20)  # of stored values: a file of the format has less than 2 GiB, nodes and names too
WRITERS: dict[str, WriteRule] = {}
OLDER: dict[str, tuple[int, WriteRule]] = {}  # operator of a record's rule -> its first opset, what is written before


def writer(*ops: str) -> Callable[[WriteRule], WriteRule]:
    """Declare how ops of the graph become ONNX nodes. Their records say ONNX_WRITER."""

    def declare(function: WriteRule) -> WriteRule:
        for op in ops:
            assert op not in WRITERS, f"{op} has two writers"
            assert get_op(op).onnx is ONNX_WRITER, f"{op} has a writer, and its record {get_op(op).onnx}"
            WRITERS[op] = function
        return function

    return declare


def older_writer(operator: str, *, since: int) -> Callable[[WriteRule], WriteRule]:
    """Declare how ops are written whose record names an operator that opsets before `since` lack."""

    def declare(function: WriteRule) -> WriteRule:
        OLDER[operator] = (since, function)
        return function

    return declare


class NewerOpsetError(GraphError):
    """An op has an ONNX form since opset `since` only."""

    def __init__(self, message: str, since: int) -> None:
        super().__init__(message)
        self.since = since


@dataclass
class Writer:
    """Collects ONNX nodes and initializers; `absorbed` exprs are written by the node that reads them."""

    opset: int
    nodes: list["onnx.NodeProto"] = field(default_factory=list)
    initializers: list["onnx.TensorProto"] = field(default_factory=list)
    absorbed: set[int] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    bytes: int = 0  # of the initializers
    current: Apply | None = None
    write_graph: Callable[..., Any] | None = None  # (writer, graph, inputs) -> the ONNX graph of a body
    axes: dict[str, tuple[str, int]] = field(default_factory=dict)  # open axis -> the input that has it, and where
    sizes: dict[Any, str] = field(default_factory=dict)  # formula -> the value [1] that computes it

    def value(self, node: TensorNode) -> str:
        """The ONNX name of a node's value; a constant is stored at its first use."""
        if isinstance(node.expr, Constant) and node.name not in self.stored:
            self.stored.add(node.name)
            self._store(node.name, storage(node))
        return node.name

    def constant(self, array: np.ndarray | Sequence[int] | float, name: str, dtype: Any = None) -> str:
        """Store a value under a free name; a list with open sizes is computed there."""
        if is_open(array):
            assert isinstance(array, (list, tuple)), array
            parts = [self.size(n) for n in array]
            return parts[0] if len(parts) == 1 else self.add("Concat", parts, name, axis=0)
        name = self.free(name)
        self._store(name, np.asarray(array, dtype))
        return name

    def size(self, n: int) -> str:
        """A size as an int64 value of shape [1]; open ones are computed from the shapes of the inputs."""
        if not isinstance(n, OpenSize):
            return self._computed((), lambda: self.constant([n], f"size_{n}", np.int64), n)
        return self._formula(n.formula)

    def _computed(self, formula: Any, make: Callable[[], str], *more: Any) -> str:
        key = (formula, *more)
        if key not in self.sizes:
            self.sizes[key] = make()
        return self.sizes[key]

    def _formula(self, formula: Formula) -> str:
        return self._computed(formula, lambda: self._quotient(formula))

    def _quotient(self, formula: Formula) -> str:
        top, bottom = over_one(formula)
        total = self._sum(top)
        return total if constant_of(bottom) == 1 else self.add("Div", [total, self._formula(bottom)], "size_part")

    def _sum(self, formula: Formula) -> str:
        total = ""
        for atoms, factor in formula:
            times = abs(int(factor))
            parts = [*map(self._atom, atoms), *([self.size(times)] if times != 1 or not atoms else [])]
            part = parts[0]
            for other in parts[1:]:
                part = self.add("Mul", [part, other], "size_product")
            if total:
                part = self.add("Sub" if factor < 0 else "Add", [total, part], "size_sum")
            elif factor < 0:
                part = self.add("Neg", [part], "size_negated")
            total = part
        return total or self.size(0)

    def _atom(self, atom: Any) -> str:
        return self._computed((), lambda: self._made_of_atom(atom), atom)

    def _made_of_atom(self, atom: Any) -> str:
        if isinstance(atom, str):
            source, axis = self.axes[atom]
            shape = self._computed((), lambda: self.add("Shape", [source], f"{source}_shape"), "shape", source)
            return self.add("Gather", [shape, self.size(axis)], f"{source}_size_{axis}", axis=0)
        operator, *operands = atom
        names = [self._formula(operand) for operand in operands]
        if operator == "//" and sign_of(operands[0]) in (None, -1):  # Div rounds towards zero
            names[0] = self.add("Sub", [names[0], self.add("Mod", names, "size_rest")], "size_multiple")
        return self.add({"//": "Div", "largest": "Max", "least": "Min"}[operator], names, "size")

    def free(self, name: str) -> str:
        """The name, with a number where it is taken."""
        candidate, count = name, 1
        while candidate in self.taken:
            candidate, count = f"{name}_{count}", count + 1
        self.taken.add(candidate)
        return candidate

    def _store(self, name: str, array: np.ndarray) -> None:
        import onnx

        self.bytes += array.nbytes
        if self.bytes > MAX_BYTES:
            raise GraphError(
                f"ONNX export: the constants up to {name!r} need {counted(self.bytes, 'byte')}; one .onnx file holds "
                f"at most {MAX_BYTES}. Quantize the network, store it in halves (`mge-quantize convert`), or save it "
                "as .mgt"
            )
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(array, order="C"), name))

    def add(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str] | str, **attrs: Any) -> str:
        """Append a node; a plain string output is made free first. Returns the first output's name."""
        import onnx

        for key, value in attrs.items():
            if is_open(value) and self.current is not None:
                why = f"its {key} is {value}, which follows from open sizes, and ONNX wants numbers"
                raise self.unsupported(self.current, why)
        names = [self.free(outputs)] if isinstance(outputs, str) else list(outputs)
        node = onnx.helper.make_node(op_type, list(inputs), names, name=names[0], **attrs)
        for key, value in _provenance(self.current).items():
            node.metadata_props.add(key=key, value=value)
        self.nodes.append(node)
        return names[0]

    def emit(self, op_type: str, expr: Apply, inputs: Sequence[str] | None = None, **attrs: Any) -> None:
        """Append the node that makes an expr's outputs."""
        names = [self.value(node) for node in expr.inputs] if inputs is None else inputs
        self.add(op_type, names, [node.name for node in expr.outputs], **attrs)

    def emit_empty(self, expr: Apply) -> None:
        """Append what makes an output without elements: its shape is known, and there is nothing to compute."""
        node = expr.outputs[0]
        assert 0 in node.shape and not is_open(node.shape), node
        empty = self.constant(np.empty(node.shape, storage_of(node.dtype)), f"{node.name}_empty")
        self.emit("Identity", expr, [empty])

    def unsupported(self, expr: Apply, reason: str) -> GraphError:
        """The error for an expr without an ONNX form."""
        return GraphError(_refusal(expr, reason))

    def newer(self, expr: Apply, what: str, since: int) -> GraphError:
        """The error for an expr whose ONNX form is newer than the opset that is written."""
        return NewerOpsetError(_refusal(expr, f"{what} exists since opset {since}, and {self.opset} is written"), since)


def _refusal(expr: Apply, reason: str) -> str:
    return f"node {expr.outputs[0].name!r} ({expr.op}): {reason}; it cannot be exported to ONNX"


def storage(node: TensorNode) -> np.ndarray:
    """The stored array of a constant, integers for quantized ones."""
    return np.asarray(node.expr.value._storage())


def storage_in_onnx(dtype: QuantizedDType) -> np.dtype:
    """The dtype in which ONNX holds integers: 4-bit ones have their own."""
    few = {"qint4": ml_dtypes.int4, "quint4": ml_dtypes.uint4}
    return np.dtype(few.get(dtype.name, dtype.storage))


def attribute(value: Any) -> Any:
    """The value of an attribute as ONNX has it: a list, pairs for every axis as all begins, then all ends."""
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, tuple):
        return value
    pairs = value and isinstance(value[0], tuple)
    return [n for column in zip(*value, strict=True) for n in column] if pairs else list(value)


def quantized(node: TensorNode) -> QuantizedDType | None:
    """The quantized dtype of a node, if it has one."""
    dtype = node.spec.dtype
    return dtype if isinstance(dtype, QuantizedDType) else None


def _provenance(expr: Apply | None) -> dict[str, str]:
    if expr is None:
        return {}
    meta = {**expr.outputs[0].meta, **expr.meta}
    known = {key: meta.get(key) for key in ("module", "source", "passes", "onnx", "inside", FLOAT)}
    texts = {key: ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v) for key, v in known.items() if v}
    return {f"mge.{key}": utf8(text) for key, text in texts.items()}


def utf8(text: str) -> str:
    """Text that ONNX files can hold: a mark for halves of characters, which only damaged names have."""
    return text.encode("utf-8", "replace").decode("utf-8")
