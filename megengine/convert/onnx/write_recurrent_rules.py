"""Recurrent layers on integers in ONNX: a Scan over the steps, whose body is the step of the specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from megengine.convert.onnx.write_integer_rules import unsigned_weights
from megengine.convert.onnx.writing import Writer, storage, writer
from megengine.core.dtype import QuantizedDType
from megengine.dispatch import OnnxRule, get_op
from megengine.kernels.reference.recurrent import GATES, Direction, Maths, activation
from megengine.traced_module.ir.expr import Apply


def _operator(function: str) -> str:
    rule = get_op(function).onnx
    assert isinstance(rule, OnnxRule), function
    return rule.op_type


@dataclass(frozen=True, slots=True, eq=False)
class _Value:
    """A float32 value of the graph that is written, with its last length: arithmetic adds nodes."""

    w: Writer
    name: str
    length: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    def node(self, op_type: str, *others: Any, length: int | None = None, **attrs: Any) -> _Value:
        names = [self.name, *(self.name_of(v) for v in others)]
        return _Value(self.w, self.w.add(op_type, names, op_type.lower(), **attrs), length or self.length)

    def name_of(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        return value.name if isinstance(value, _Value) else self.w.constant(value, "number", np.float32)

    def __add__(self, other: Any) -> _Value:
        return self.node("Add", other)

    def __mul__(self, other: Any) -> _Value:
        return self.node("Mul", other)

    def __sub__(self, other: Any) -> _Value:
        return self.node("Sub", other)

    def __rsub__(self, other: float) -> _Value:
        return _Value(self.w, self.name_of(other), self.length) - self

    def __truediv__(self, other: Any) -> _Value:
        return self.node("Div", other)

    def __lt__(self, other: float) -> _Value:
        return self.node("Less", other)

    def __getitem__(self, places: Any) -> _Value:
        start, stop, _ = places[-1].indices(self.length)
        ends = [self.w.constant([n], "place", np.int64) for n in (start, stop, -1)]
        return self.node("Slice", *ends, length=stop - start)


def _clip(x: _Value, lo: float, hi: float) -> _Value:
    for operator, end in (("Max", lo), ("Min", hi)):
        if np.isfinite(end):
            x = x.node(operator, end)
    return x


def _refused(*_: Any) -> Any:
    raise AssertionError("a step needs none of this")


_NODES = Maths(
    lambda name, x: x.node(_operator(name)),
    _refused,
    lambda mask, a, b: mask.node("Where", a, b),
    _refused,
    _refused,
    _clip,
    _refused,
)


def _stored(h: _Value, dtype: QuantizedDType, zero: int) -> _Value:
    """The integers of a state as float32, moved so that the zero point is `zero`."""
    ends = [float(end - dtype.zero_point) for end in (dtype.qmin, dtype.qmax)]
    return _clip(h / float(np.float32(dtype.only_scale)), *ends).node("Round") + float(zero)


class _Layer:
    """One layer as it is written: its values and what its steps need."""

    def __init__(self, w: Writer, expr: Apply) -> None:
        self.w, self.expr, self.a = w, expr, expr.attrs
        self.name, self.dtype = expr.outputs[0].name, expr.attrs["dtype"]
        self.hidden = expr.inputs[1].shape[1]
        self.given = dict(zip(self.a["given"], expr.inputs[3:], strict=True))
        self.width = GATES[self.a["cell"]] * self.hidden

    def part(self, name: str, d: int) -> str:
        """One direction of an optional input."""
        return self.w.add(
            "Gather", [self.w.value(self.given[name]), self.w.constant(d, "direction", np.int64)], f"{name}_{d}", axis=0
        )

    def states(self, d: int) -> list[str]:
        """The states before the first step."""
        names = ("h", "c")[: 2 if self.a["cell"] == "lstm" else 1]
        size = [self.expr.inputs[0].shape[1], self.hidden]
        zero = self.w.constant(0, "zero", np.float32)
        return [
            self.part(n, d)
            if n in self.given
            else self.w.add("Expand", [zero, self.w.constant(size, "shape", np.int64)], f"{self.name}_{n}")
            for n in names
        ]

    def parts(self, h: _Value) -> list[tuple[_Value, int]]:
        """The rounded state as uint8 with its zero point; of 16 bits the upper half, then the lower one."""
        import onnx

        zero = self.dtype.zero_point - int(np.iinfo(self.dtype.storage).min)
        whole = _stored(h, self.dtype, zero)
        parts = [(whole, zero)]
        if self.dtype.storage.itemsize == 2:
            high = (whole * (1 / 256)).node("Floor")
            parts = [(high, zero // 256), (whole - high * 256.0, zero % 256)]
        return [(x.node("Cast", to=onnx.TensorProto.UINT8), z) for x, z in parts]

    def product(self, inner: Writer, d: int) -> Any:
        """`Direction.add_state`: MatMulInteger of the rounded state; the sums of two parts are of int64."""
        import onnx

        def add_state(sums: _Value, h: _Value, rows: slice) -> _Value:
            start, stop, _ = rows.indices(self.width)
            places = slice(d * self.width + start, d * self.width + stop)
            stored, middle = unsigned_weights(storage(self.expr.inputs[1])[places])
            weights = self.w.constant(stored, f"{self.name}_r")
            parts = []
            for codes, zero in self.parts(h):
                ends = [inner.constant(int(z), "zero_point", np.uint8) for z in (zero, middle)]
                parts.append(codes.node("MatMulInteger", weights, *ends, length=stop - start))
            acc = parts[-1]
            if len(parts) > 1:
                high, low = (part.node("Cast", to=onnx.TensorProto.INT64) for part in parts)
                acc = high.node("Mul", inner.constant(256, "high", np.int64)) + low
            factors = self.w.constant(storage(self.expr.inputs[2])[places], f"{self.name}_factors")
            return sums + acc.node("Cast", to=onnx.TensorProto.FLOAT) * factors

        return add_state

    def step(self, inner: Writer, d: int, outer: dict[str, str]) -> Direction:
        """The step of one direction, whose arithmetic adds nodes; `outer` are values around the body."""
        a, n = self.a, self.hidden
        per = len(a["activations"]) // self.directions
        columns = zip(a["activations"], a["alphas"], a["betas"], strict=True)
        bias = outer.get("bias") or inner.constant(np.zeros(n, np.float32), "no_bias")
        peepholes: Sequence[_Value] = ()
        if "peepholes" in outer:
            whole = _Value(inner, outer["peepholes"], 3 * n)
            peepholes = [whole[..., k * n : (k + 1) * n] for k in range(3)]
        return Direction(
            _NODES,
            [activation(_NODES, *f) for f in columns][d * per : (d + 1) * per],
            add_state=self.product(inner, d),
            recurrent_bias=_Value(inner, bias, n),
            peepholes=peepholes,
            **{f.name: a[f.name] for f in fields(Direction) if f.name in a},
        )

    def body(self, d: int, outer: dict[str, str]) -> Any:
        """The graph of one step: states, sums and whether a sample goes on -> states, integers of the output."""
        import onnx

        inner, cell, n = Writer(self.w.opset, taken=self.w.taken), self.a["cell"], self.hidden
        names = [inner.free(part) for part in ("state", "cell")[: 2 if cell == "lstm" else 1]]
        sums, within = inner.free("sums"), inner.free("within")
        old = [_Value(inner, name, n) for name in names]
        new = getattr(self.step(inner, d, outer), cell)(_Value(inner, sums, self.width), *old)
        y = new[0]
        if "lengths" in self.given:
            mask = _Value(inner, within, 1)
            y = mask.node("Where", y, y * 0.0, length=n)
            new = [mask.node("Where", value, before, length=n) for value, before in zip(new, old, strict=True)]
        storage = onnx.helper.np_dtype_to_tensor_dtype(self.dtype.storage)
        codes = _stored(y, self.dtype, self.dtype.zero_point).node("Cast", to=storage)
        results = [*(value.node("Identity").name for value in new), codes.name]
        kinds = [*[onnx.TensorProto.FLOAT] * len(names), storage]
        inputs = [(name, onnx.TensorProto.FLOAT) for name in (*names, sums)]
        inputs += [(within, onnx.TensorProto.BOOL)] if "lengths" in self.given else []
        typed = onnx.helper.make_tensor_value_info
        return onnx.helper.make_graph(
            inner.nodes,
            f"{self.name}_step",
            [typed(name, kind, None) for name, kind in inputs],
            [typed(name, kind, None) for name, kind in zip(results, kinds, strict=True)],
            initializer=inner.initializers,
        )

    @property
    def directions(self) -> int:
        return self.expr.inputs[1].shape[0] // self.width

    def scan(self, d: int, within: list[str]) -> list[str]:
        """One direction: the last states, and the integers of all steps [T,N,H]."""
        w, a = self.w, self.a
        ends = [w.constant([n], "place", np.int64) for n in (d * self.width, (d + 1) * self.width, -1)]
        sums = w.add("Slice", [w.value(self.expr.inputs[0]), *ends], f"{self.name}_sums_{d}")
        outer = {name: self.part(name, d) for name in ("bias", "peepholes") if name in self.given}
        states, backwards = self.states(d), int(a["direction"] == "reverse" or d == 1)
        outputs = [w.free(f"{self.name}_{part}_{d}") for part in (*("h", "c")[: len(states)], "y")]
        w.add(
            "Scan",
            [*states, sums, *within],
            outputs,
            body=self.body(d, outer),
            num_scan_inputs=1 + len(within),
            scan_input_directions=[backwards] * (1 + len(within)),
            scan_output_directions=[backwards],
        )
        return outputs


@writer("qrecurrent")
def qrecurrent(w: Writer, expr: Apply) -> None:
    """A Scan for each direction."""
    import onnx

    layer = _Layer(w, expr)
    within = []
    if "lengths" in layer.given:
        zero, one = (w.constant(n, "number", np.int64) for n in (0, 1))
        count = w.add("Squeeze", [w.size(expr.inputs[0].shape[0])], f"{layer.name}_steps")
        steps = w.add("Range", [zero, count, one], f"{layer.name}_places")
        steps = w.add("Unsqueeze", [steps, w.constant([1, 2], "axes", np.int64)], f"{layer.name}_times")
        lengths = w.add("Cast", [w.value(layer.given["lengths"])], f"{layer.name}_lengths", to=onnx.TensorProto.INT64)
        lengths = w.add("Unsqueeze", [lengths, w.constant([1], "axis", np.int64)], f"{layer.name}_ends")
        within = [w.add("Less", [steps, lengths], f"{layer.name}_within")]
    parts = [layer.scan(d, within) for d in range(layer.directions)]
    *states, ys = zip(*parts, strict=True)
    for node, names, axis in zip(expr.outputs, (ys, *states), (1, *[0] * len(states)), strict=True):
        at = w.constant([axis], "axis", np.int64)
        raised = [w.add("Unsqueeze", [name, at], f"{name}_part") for name in names]
        w.add("Concat", raised, [node.name], axis=axis)
