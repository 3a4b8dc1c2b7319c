"""The record of an op: everything known about it, in one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import OptionError, nearest
from megengine.core.spec import TensorSpec
from megengine.kernels.half_conversion import HALVES

Attrs = Mapping[str, Any]
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class NoRule:
    """A rule that does not exist, with the reason."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class ZeroGradient(NoRule):
    """No rule is needed, since no gradient passes the op."""


def not_differentiable(reason: str) -> NoRule:
    """The value of `vjp` for an op without a gradient: computing one is an error."""
    return NoRule("gradient", reason)


def zero_gradient(reason: str) -> ZeroGradient:
    """The value of `vjp` for an op whose gradient is zero wherever it exists: its inputs get none."""
    return ZeroGradient("gradient", reason)


def no_onnx(reason: str) -> NoRule:
    """The value of `onnx` for an op without an ONNX counterpart."""
    return NoRule("ONNX rule", reason)


@dataclass(frozen=True, slots=True)
class OnnxRule:
    """The ONNX form of an op that is one operator with the same inputs, whatever its neighbours are.

    `attributes` maps our attribute names to ONNX's; pairs for every axis become all begins, then all ends. `more`
    maps the specs of the inputs to further attributes of the operator. With `read=False` the rule is for
    export only, and the operator has a reader in `convert.onnx`.
    """

    op_type: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Sequence[TensorSpec]], Mapping[str, Any]] = field(default=lambda specs: {})
    read: bool = True


@dataclass(frozen=True, slots=True)
class OnnxWriter:
    """The value of `onnx` for an op whose form in ONNX needs the graph: `convert.onnx` has its writer and reader."""


ONNX_WRITER = OnnxWriter()


def stays_float(reason: str) -> NoRule:
    """The value of `quant` for an op that integer networks compute in float."""
    return NoRule("quantization rule", reason)


@dataclass(frozen=True, slots=True)
class QuantRule:
    """How an op takes part in an integer network.

    Args:
        kind: "weighted" (a layer with constant weights: the anchor of a group), "add", "pair" (other arithmetic of two
            tensors that broadcast; of integer op "qadd" their difference), "pool" (a mean with a scale of its own),
            "softmax", "clamp" (absorbed by what stands before it), "shape" (moves integers, keeps the scale), "concat"
            (its inputs take its scale), "gather" (rows of a constant), "table" (any function of one value) or "part"
            (the same, but alone it stays in float), or "sequence" (a layer over the steps of a sequence, with constant
            weights of its input and of its own state). Several ops that are one integer op have the kinds "product" (of
            two matrices), "norm" and "function".
        integer: the op that computes it on integers, where that is one op.
        constants: (dtypes of the operands, dtype of the result) -> what `integer` takes beside the op's own attributes:
            numbers are attributes, arrays further inputs. The range of the result's dtype ends at the clamp behind it.
        weight_axis: output-channel axis of the weight, from the attributes; None if it has none of its own.
        transposed: the weight's first axis counts inputs.
        rows: channels lie along the last axis, not along axis 1.
        clamp: real bounds (lo, hi) of a clamp, None where open.
        fixed: dtype of the output, independent of the data.
        non_negative: "always", "inherit" (if all inputs are), or "never" known to be.
        usable: attributes -> None, or why this form stays in float.
    """

    kind: str
    integer: str = ""
    constants: Callable[..., Mapping[str, Any]] = field(default=lambda *dtypes: {})
    weight_axis: Callable[[Attrs], int | None] | None = None
    transposed: bool = False
    rows: bool = False
    clamp: Callable[[Attrs], tuple[float | None, float | None]] | None = None
    fixed: QuantizedDType | None = None
    non_negative: str = "never"
    usable: Callable[[Attrs], str | None] = field(default=lambda attrs: None)

    @property
    def weighted(self) -> bool:
        """True for layers with weights."""
        return self.kind == "weighted"

    @property
    def scans(self) -> bool:
        """True for layers over the steps of a sequence, which read their own results."""
        return self.kind == "sequence"

    @property
    def adds(self) -> bool:
        """True for the sum of two values, which may become the end of a layer."""
        return self.kind == "add"

    @property
    def combines(self) -> bool:
        """True for arithmetic of two values."""
        return self.kind in ("add", "pair")

    @property
    def averages(self) -> bool:
        """True for means, and sums of several numbers."""
        return self.kind == "pool"

    @property
    def joins(self) -> bool:
        """True if integers of several values, on one scale, are copied."""
        return self.kind == "concat"

    @property
    def pointwise(self) -> bool:
        """True if each number comes from one number of each operand."""
        return self.kind in ("add", "pair", "table", "part", "clamp")

    @property
    def clamps(self) -> bool:
        """True if a clamp behind it becomes part of the integer op."""
        return self.kind in ("weighted", "product", "add", "pair", "function")

    @property
    def moves(self) -> bool:
        """True if the op itself, on integers, puts them in other places."""
        return self.kind in ("shape", "gather")

    @property
    def takes_constants(self) -> bool:
        """True if constant operands become integers of their own."""
        return self.kind in ("product", "add", "pair", "concat", "gather")

    @property
    def convolves(self) -> bool:
        """True for layers whose windows of the input meet a weight [outputs, inputs of a group, height, width]."""
        return self.weighted and not self.rows and not self.transposed

    def bounds(self, attrs: Attrs) -> tuple[float | None, float | None] | None:
        """The real bounds of a clamp, None for other ops."""
        return None if self.clamp is None else self.clamp(attrs)


NO_RULE = QuantRule("")  # of ops that stay in float
MOVES_INTEGERS = QuantRule("shape", non_negative="inherit")
JOINS_INTEGERS = QuantRule(kind="concat", non_negative="inherit")
FLOAT_ONLY = stays_float("no integer form of it is known")


@dataclass(frozen=True, slots=True)
class Sample:
    """One call for the contract test: input arrays (or quantized tensors) and attributes."""

    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    differentiable: bool = True


@dataclass(frozen=True, slots=True)
class ErrorSample:
    """One wrong call: the error type and a pattern its message matches."""

    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any]
    error: type[Exception]
    match: str


Infer = Callable[..., TensorSpec | tuple[TensorSpec, ...]]
Macs = Callable[[Sequence[TensorSpec], TensorSpec, Attrs], int]


def no_macs(inputs: Sequence[TensorSpec], result: TensorSpec, attrs: Attrs) -> int:
    """The value of `macs` for an op that multiplies no matrices."""
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """The record of an op.

    `infer(*specs, **attrs)` gives the result's spec (or specs) without data and raises for wrong arguments.
    `reference(*arrays, **attrs)` computes it in NumPy; with `needs_specs` it is called as
    `reference(*arrays, in_specs=..., out_specs=..., **attrs)`: quantized ops need scales and zero points.
    `vjp(ctx, *cotangents)` returns one gradient (or None) per input, written in ops; `ctx` has `inputs`, `outputs`,
    `attrs` and `needs` (which inputs want a gradient). `quant` says how it takes part in an integer
    network. With `moves` the result holds nothing but elements of the first input. `macs(inputs, result, attrs)` counts
    the multiply-accumulates of a convolution or matrix product from specs. Plans fuse an `activation` into the layer
    before it. `lift(attrs)` returns the attributes with which the op computes the same on operands with an axis of
    length 1 in front (of operands that broadcast, those with the most axes); None if there are none.
    `follow(attrs, old, new, step)` returns the attributes that change where the first operand's shape does, from `old`
    to `new`, so that what stood for a changed length still does: all choices, the likeliest first; `step` is how many
    numbers apart the elements of a length lie that was 1, if that is known. Operands of an op that takes them `in_step`
    have one length along an axis, though a shorter one would be taken. `each(attrs)` gives the operands that hold a
    value for each sample (states of a recurrent layer), with their axis of samples and that of the first operand.
    `keeps(shape, attrs)` is true if all elements of an input of that shape stay where they are; with `keeps_order` they
    always lie in the same order. An op that `quantizes` makes integers of real values, one that `dequantizes` real
    values of integers. Of float16 and bfloat16
    every op computes the float32 result of the same numbers and rounds it once; ops `by_type`, which move or convert
    numbers, take them as they are. With `counts` the attribute `count` names a length of the result that depends on
    values; graphs give each such op its own name. An op that `normalizes` does so to its first operand; the others
    are parameters and statistics. One that `loses_digits`, as small differences of its operands are large ones of the
    result, takes float32 operands under mixed precision.
    """

    name: str
    infer: Infer
    reference: Callable[..., Any]
    vjp: Callable[..., Any] | NoRule
    onnx: OnnxRule | OnnxWriter | NoRule
    samples: Callable[[], Iterable[Sample]]
    error_samples: Callable[[], Iterable[ErrorSample]] = tuple
    needs_specs: bool = False
    quant: QuantRule | NoRule = FLOAT_ONLY
    moves: bool = False
    macs: Macs = no_macs
    random: bool = False
    activation: bool = False
    by_type: bool = False
    counts: bool = False
    lift: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    follow: Callable[[Attrs, tuple[int, ...], tuple[int, ...], int | None], list[dict[str, Any]]] | None = None
    in_step: bool = False
    each: Callable[[Attrs], Mapping[int, tuple[int, int]]] = field(default=lambda attrs: {})
    keeps: Callable[[tuple[int, ...], Attrs], bool] = field(default=lambda shape, attrs: False)
    keeps_order: bool = False
    quantizes: bool = False
    dequantizes: bool = False
    normalizes: bool = False
    loses_digits: bool = False

    @property
    def rule(self) -> QuantRule:
        """What the op is to integer networks; `NO_RULE` if it stays in float."""
        return self.quant if isinstance(self.quant, QuantRule) else NO_RULE

    @property
    def weighted(self) -> bool:
        """True for layers with weights: convolutions and matrix products."""
        return self.rule.weighted

    def widens(self, specs: Sequence[TensorSpec]) -> bool:
        """True if some operands are float16 or bfloat16, and float32 computes their results."""
        return not self.by_type and any(s.dtype in HALVES for s in specs)

    @property
    def joins(self) -> bool:
        """True if integers of several values, on one scale, are copied."""
        return self.rule.joins

    @property
    def transposed(self) -> bool:
        """True for layers whose weight counts inputs along its first axis."""
        return self.rule.transposed

    @property
    def rows(self) -> bool:
        """True for layers with channels along the last axis: matrix products."""
        return self.rule.rows

    def __repr__(self) -> str:
        return f"<op {self.name}>"


registry: dict[str, Op] = {}


def _entering(make: Callable[P, Op]) -> Callable[P, Op]:
    def define(*args: P.args, **kwargs: P.kwargs) -> Op:
        """Make the record of an op from the fields of `Op`, and enter it into the registry, once for a name."""
        op = make(*args, **kwargs)
        if op.name in registry:
            raise OptionError(f"op {op.name!r} is already defined; choose another name")
        registry[op.name] = op
        return op

    return define


define = _entering(Op)


def undefine(name: str) -> None:
    """Remove an op from the registry: for tests that add one at run time."""
    registry.pop(name, None)


def get_op(op: Op | str) -> Op:
    """The record of an op by name, with the nearest name in the error."""
    if isinstance(op, Op):
        return op
    try:
        return registry[op]
    except KeyError:
        raise OptionError(f"unknown op {op!r}{nearest(op, registry)}") from None
