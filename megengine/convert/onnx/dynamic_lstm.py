"""com.microsoft::DynamicQuantizeLSTM by the standard's operators: its state is quantized by the range of each step."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from megengine.convert.onnx.bodies import body_of
from megengine.convert.onnx.context import OnnxNode
from megengine.convert.onnx.operators import is_computed

if TYPE_CHECKING:
    import onnx

DYNAMIC_LSTM = "com.microsoft::DynamicQuantizeLSTM"
OPSET = 17  # of the nodes here
DIRECTIONS = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}
INPUTS = ("x", "w", "r", "bias", "lengths", "h", "c", "peephole", "scale_w", "zero_w", "scale_r", "zero_r")


def check_dynamic_lstm(node: OnnxNode) -> None:
    """Raise FileFormatError for a node that cannot be read."""
    given = dict(zip(INPUTS, [*node.inputs, *[None] * len(INPUTS)], strict=False))
    if given["scale_w"] is None or given["scale_r"] is None:
        raise node.fail("a scale is missing; expected one of each weight")
    if not node.dynamic:
        return
    if given["lengths"] is not None:
        raise node.fail("lengths of the sequences of a batch (sequence_lens) are not supported; leave them out")
    usual = ("Sigmoid", "Tanh", "Tanh") * 2
    if (
        node.attr("input_forget", 0)
        or node.attr("clip", 0)
        or tuple(node.attr("activations", usual))
        not in (
            usual,
            usual[:3],
        )
    ):
        raise node.fail("activations, clip and input_forget are not supported; expected Sigmoid, Tanh, Tanh")
    if node.attr("direction", "forward") not in DIRECTIONS:
        raise node.fail(f"direction is {node.attr('direction')!r}; expected one of {', '.join(DIRECTIONS)}")


def definition(node: OnnxNode, proto: "onnx.NodeProto", opset: int) -> tuple[list["onnx.NodeProto"], int] | None:
    """The nodes that stand for one, and their opset: of this operator, and of those that the standard defines so."""
    if node.op_type == DYNAMIC_LSTM and node.dynamic:
        check_dynamic_lstm(node)
        return nodes_of(proto), OPSET
    return None if is_computed(node.op_type) else body_of(proto, node.inputs, opset)


class _Nodes:
    """Nodes under construction, whose values have a name in front."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.made = prefix, []

    def __call__(self, op_type: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        """A node; the name of its output, or the names."""
        import onnx

        names = [f"{self.prefix}{op_type}_{len(self.made)}_{k}" for k in range(outputs)]
        self.made.append(onnx.helper.make_node(op_type, inputs, names, name=names[0], **attrs))
        return names[0] if outputs == 1 else names

    def number(self, value: Any, dtype: Any = np.int64) -> str:
        import onnx

        return self("Constant", value=onnx.numpy_helper.from_array(np.asarray(value, dtype)))

    def product(self, x: str, weight: str, scale: str, zero: str) -> str:
        """X @ weight, where x is quantized by its range."""
        q, step, offset = self("DynamicQuantizeLinear", x, outputs=3)
        sums = self("Cast", self("MatMulInteger", q, weight, offset, *([zero] if zero else [])), to=1)
        return self("Mul", sums, self("Mul", step, scale))


def nodes_of(node: "onnx.NodeProto") -> list["onnx.NodeProto"]:
    """The nodes that make a node's outputs; `check_dynamic_lstm` takes it."""
    import onnx

    at = _Nodes(f"{node.name or next(filter(None, node.output))}::")
    stated = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    directions = DIRECTIONS[stated.get("direction", b"forward").decode()]
    given: dict[str, str] = dict(zip(INPUTS, [*node.input, *[""] * len(INPUTS)], strict=False))
    parts = [_direction(at, place, turned, given) for place, turned in enumerate(directions)]
    for name, values, axis in zip(node.output, zip(*parts, strict=True), (1, 0, 0), strict=False):
        if name:
            axes = at.number([axis])
            joined = at("Concat", *(at("Unsqueeze", value, axes) for value in values), axis=axis)
            at.made.append(onnx.helper.make_node("Identity", [joined], [name], name=f"{at.prefix}{name}"))
    return at.made


def _direction(at: _Nodes, place: int, turned: int, given: dict[str, str]) -> tuple[str, str, str]:
    """All states [length, batch, hidden], the last state and the last cell of one direction."""
    index = at.number(place)
    own = {
        name: at("Gather", value, index, axis=0) if value and name != "x" else ""
        for name, value in given.items()
        if name not in ("x", "lengths")
    }
    gates = at.product(given["x"], own["w"], own["scale_w"], own["zero_w"])
    if own["bias"]:
        halves = at("Split", own["bias"], outputs=2, axis=0)
        gates = at("Add", gates, at("Add", *halves))
    first = [own[name] or _zeros(at, given["x"], own["r"]) for name in ("h", "c")]
    peephole = at("Split", own["peephole"], outputs=3, axis=0) if own["peephole"] else ()
    turns = {"scan_input_directions": [turned], "scan_output_directions": [turned]}
    body = _step(at.prefix + f"{place}::", own, peephole)
    h, c, y = at("Scan", *first, gates, outputs=3, body=body, num_scan_inputs=1, **turns)
    return y, h, c


def _zeros(at: _Nodes, x: str, weight: str) -> str:
    """A first state [batch, hidden] of zeros."""
    batch, hidden = (at("Gather", at("Shape", v), at.number([k])) for v, k in ((x, 1), (weight, 0)))
    return at("ConstantOfShape", at("Concat", batch, hidden, axis=0))


def _step(prefix: str, own: dict[str, str], peephole: Sequence[str]) -> "onnx.GraphProto":
    """One step: state, cell and the input's part of the gates; the next state and cell, and the state again."""
    import onnx

    at = _Nodes(prefix)
    h, c, gates = (f"{prefix}{name}" for name in ("h", "c", "gates"))
    total = at("Add", at.product(h, own["r"], own["scale_r"], own["zero_r"]), gates)
    i, o, f, new = at("Split", total, outputs=4, axis=-1)
    seen = [*peephole] or ["", "", ""]
    i, f = (at("Sigmoid", _peeped(at, gate, weight, c)) for gate, weight in ((i, seen[0]), (f, seen[2])))
    cell = at("Add", at("Mul", f, c), at("Mul", i, at("Tanh", new)))
    state = at("Mul", at("Sigmoid", _peeped(at, o, seen[1], cell)), at("Tanh", cell))
    again = at("Identity", state)
    return onnx.helper.make_graph(at.made, f"{prefix}step", [*_infos(h, c, gates)], [*_infos(state, cell, again)])


def _peeped(at: _Nodes, gate: str, weight: str, cell: str) -> str:
    return at("Add", gate, at("Mul", weight, cell)) if weight else gate


def _infos(*names: str) -> Iterator["onnx.ValueInfoProto"]:
    import onnx

    yield from (onnx.ValueInfoProto(name=name) for name in names)
