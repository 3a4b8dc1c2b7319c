"""Operators in the forms of opsets before 7, and those that were experiments then.

`in_modern_form` brings a node into the form of opset 7, which the other rules read. Inputs of arithmetic had one shape
then, or `broadcast` and `axis` said where the axes of the second one lie.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value, rule
from megengine.convert.onnx.shape_rules import cut

if TYPE_CHECKING:
    import onnx

FIRST = 7  # opset whose forms the rules know
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
_TYPES = {  # texts that `to` of Cast could be
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9, "FLOAT16": 10,
    "DOUBLE": 11, "UINT32": 12, "UINT64": 13,
}  # fmt: skip


def in_modern_form(node: OnnxNode, read: "onnx.NodeProto") -> tuple[OnnxNode, "onnx.NodeProto"]:
    """A node of an opset before 7 in the form of opset 7, and as a node of a file."""
    import onnx

    form = _FORMS.get(node.op_type)
    node = node if form is None else form(node)
    attrs = {name: value for name, value in node.attrs.items() if name not in _SPENT}
    names = [*read.input, *(f"{node.name} {place}" for place in range(len(node.inputs)))][: len(node.inputs)]
    proto = onnx.helper.make_node(node.op_type, names, node.outputs, name=node.name, **attrs)
    return replace(node, attrs=attrs, opset=FIRST), proto


_SPENT = ("consumed_inputs", "broadcast", "is_test")


def _operands(node: OnnxNode) -> OnnxNode:
    """The second operand with axes of one behind its own, as `axis` says where these lie in the first."""
    x, y = node.input(0), node.input(1)
    if not node.attr("broadcast", 0):
        return node
    axis = int(node.attr("axis", len(x.shape) - len(y.shape)))
    behind = len(x.shape) - (axis % max(len(x.shape), 1)) - len(y.shape)
    if "axis" in node.attrs and behind > 0 and y.shape:
        y = node.reshape(y, (*y.shape, *(1,) * behind))
    attrs = {name: value for name, value in node.attrs.items() if name != "axis"}
    return replace(node, inputs=[x, y], attrs=attrs)


def _slopes(node: OnnxNode) -> OnnxNode:
    """Slopes of channels, as they stand before the axes of a picture."""
    x, slope = node.input(0), node.input(1)
    if len(slope.shape) != 1 or slope.shape[0] == 1 or len(x.shape) < 2:
        return node
    return replace(node, inputs=[x, node.reshape(slope, (slope.shape[0], *(1,) * (len(x.shape) - 2)))])


def _with_input(*names: str) -> Callable[[OnnxNode], OnnxNode]:
    """Attributes of these names become the second input of later opsets."""

    def form(node: OnnxNode) -> OnnxNode:
        for name in names:
            if len(node.inputs) == 1 and (given := node.ints(name)) is not None:
                return replace(node, inputs=[*node.inputs, np.array(given, np.int64)])
        return node

    return form


def _renamed(old: str, new: str) -> Callable[[OnnxNode], OnnxNode]:
    def form(node: OnnxNode) -> OnnxNode:
        return replace(node, attrs={new: node.attrs[old], **node.attrs}) if old in node.attrs else node

    return form


def _default(name: str, value: float) -> Callable[[OnnxNode], OnnxNode]:
    return lambda node: replace(node, attrs={name: value, **node.attrs})


def _cast(node: OnnxNode) -> OnnxNode:
    to = node.attr("to")
    if not isinstance(to, str):
        return node
    if to.upper() not in _TYPES:
        raise node.fail(f"casts to {to!r}; expected one of {', '.join(_TYPES)}")
    return replace(node, attrs={**node.attrs, "to": _TYPES[to.upper()]})


def _split(node: OnnxNode) -> OnnxNode:
    """Sizes may be an input, which opset 2 made an attribute."""
    sizes = node.const_ints(1, "sizes")
    return node if sizes is None else replace(node, inputs=node.inputs[:1], attrs=dict(node.attrs, split=sizes))


def _repeats(node: OnnxNode) -> OnnxNode:
    """One number of repeats and its axis, which opset 6 made a number for every axis."""
    tiles, axis = node.const_ints(1, "tiles"), node.const_ints(2, "axis")
    if tiles is None or axis is None:
        return node
    repeats = np.ones(len(node.input(0).shape), np.int64)
    repeats[node.axis(axis[0], len(repeats))] = tiles[0]
    return replace(node, inputs=[node.input(0), repeats])


def _scales(node: OnnxNode) -> OnnxNode:
    height, width = (float(node.attr(name, 1.0)) for name in ("height_scale", "width_scale"))
    return replace(node, attrs={"scales": [1.0, 1.0, height, width], **node.attrs})


def _gamma(node: OnnxNode) -> OnnxNode:
    return replace(node, attrs={"alpha": 1.6732, "gamma": 1.0507, **node.attrs})


_FORMS: dict[str, Callable[[OnnxNode], OnnxNode]] = {
    **dict.fromkeys(_ARITHMETIC, _operands),
    "Cast": _cast,
    "Concat": lambda node: _default("axis", 1)(node) if node.opset < 4 else node,
    "Pad": _renamed("paddings", "pads"),
    "PRelu": _slopes,
    "Reshape": _with_input("shape"),
    "Selu": lambda node: _gamma(node) if node.opset < 6 else node,
    "Split": _split,
    "Tile": lambda node: _repeats(node) if len(node.inputs) == 3 else node,
    "Upsample": lambda node: _scales(node) if "scales" not in node.attrs else node,
}


@rule("Affine")
def affine(node: OnnxNode, x: Value) -> Value:
    """Alpha * x + beta."""
    return node.apply("add", node.apply("mul", x, float(node.attr("alpha", 1.0))), float(node.attr("beta", 0.0)))


@rule("ImageScaler")
def image_scaler(node: OnnxNode, x: Value) -> Value:
    """A picture times `scale`, plus a number for each channel."""
    bias = np.array(node.attr("bias", [0.0]), np.float32).reshape(-1, *(1,) * (len(x.shape) - 2))
    return node.apply("add", node.apply("mul", x, float(node.attr("scale", 1.0))), bias)


@rule("Scale")
def scale(node: OnnxNode, x: Value) -> Value:
    """X times a number."""
    return node.apply("mul", x, float(node.attr("scale", 1.0)))


@rule("ScaledTanh")
def scaled_tanh(node: OnnxNode, x: Value) -> Value:
    """Alpha * tanh(beta * x)."""
    inner = node.apply("tanh", node.apply("mul", x, float(node.attr("beta", 1.0))))
    return node.apply("mul", inner, float(node.attr("alpha", 1.0)))


@rule("ParametricSoftplus")
def parametric_softplus(node: OnnxNode, x: Value) -> Value:
    """Alpha * log(1 + exp(beta * x))."""
    inner = node.apply("softplus", node.apply("mul", x, float(node.attr("beta", 1.0))))
    return node.apply("mul", inner, float(node.attr("alpha", 1.0)))


@rule("Crop")
def crop(node: OnnxNode, x: Value) -> Value:
    """A part of a picture: `border` left, top, right, bottom; with `scale` its height and width from left and top."""
    border = node.ints("border", (0,) * 4) or ()
    if len(border) != 4 or len(x.shape) != 4:
        raise node.fail(f"border is {border}, its input {x.shape}; expected four widths and [N, C, H, W]")
    left, top, right, bottom = border
    height, width = node.ints("scale") or (x.shape[2] - top - bottom, x.shape[3] - left - right)
    return cut(node, x, {2: (top, top + height, 1), 3: (left, left + width, 1)})
