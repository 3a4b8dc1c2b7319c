"""Import rules of resizing, rearranging and normalising, composed of smaller ops."""

import math

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value, rule, spec_of
from megengine.core.text import counted
from megengine.kernels.half_conversion import HALVES


@rule("DepthToSpace", "SpaceToDepth")
def depth(node: OnnxNode, x: Value) -> Value:
    """Blocks of channels to blocks of pixels, and back (PixelShuffle is DepthToSpace with mode CRD)."""
    block = int(node.attr("blocksize", 0))
    shape = x.shape
    if len(shape) != 4 or block < 1:
        raise node.fail(f"its input is {shape} and blocksize {block}; expected [N, C, H, W] and a positive number")
    n, c, h, w = shape
    if node.op_type == "SpaceToDepth":
        cut = (n, c, h // block, block, w // block, block)
        perm = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        made = (n, c * block * block, h // block, w // block)
    elif node.attr("mode", "DCR") == "DCR":
        cut, perm = (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)
        made = (n, c // block**2, h * block, w * block)
    else:
        cut, perm = (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
        made = (n, c // block**2, h * block, w * block)
    if int(math.prod(cut)) != int(math.prod(shape)):  # of open lengths those that do not divide are refused in the run
        raise node.fail(f"blocks of {block} do not divide {shape}")
    return node.reshape(node.apply("transpose", node.reshape(x, cut), perm=perm), made)


def _standard(node: OnnxNode, x: Value, axes: tuple[int, ...], eps: float) -> tuple[Value, Value, Value]:
    """(x - mean) / sqrt(variance + eps) over some axes, the mean, and the square root.

    Of halves the statistics are computed in float32, as `stash_type` says: in float16 1e-12 is 0.
    """
    own = spec_of(x).dtype
    if own in HALVES and int(node.attr("stash_type", 1)) == 1:
        y, mean, deviation = _standard(node, node.cast(x, np.float32), axes, eps)
        return node.cast(y, own), mean, deviation
    mean = node.apply("mean", x, axis=axes, keepdims=True)
    centred = node.apply("sub", x, mean)
    variance = node.apply("mean", node.apply("square", centred), axis=axes, keepdims=True)
    deviation = node.apply("sqrt", node.apply("add", variance, eps))
    return node.apply("div", centred, deviation), mean, deviation


@rule("LayerNormalization")
def layer_norm(node: OnnxNode, x: Value, scale: Value, shift: Value | None = None) -> tuple[Value, ...]:
    """Over all axes from `axis` on; scale and shift have the shape of those axes."""
    rank = len(x.shape)
    axis = node.axis(int(node.attr("axis", -1)), rank)
    y, mean, deviation = _standard(node, x, tuple(range(axis, rank)), float(node.attr("epsilon", 1e-5)))
    y = node.apply("mul", y, scale)
    if shift is not None:
        y = node.apply("add", y, shift)
    if not any(node.outputs[1:]):
        return (y,)
    return (y, mean, node.apply("div", np.ones((), np.float32), deviation))


@rule("InstanceNormalization")
def instance_norm(node: OnnxNode, x: Value, scale: Value, shift: Value) -> Value:
    """Each channel of each sample by itself; scale and shift per channel."""
    y, _, _ = _standard(node, x, tuple(range(2, len(x.shape))), float(node.attr("epsilon", 1e-5)))
    return _per_channel(node, y, scale, shift)


@rule("GroupNormalization")
def group_norm(node: OnnxNode, x: Value, scale: Value, shift: Value) -> Value:
    """Groups of channels; scale and shift per channel (per group before opset 21)."""
    groups = int(node.attr("num_groups", 0))
    shape = x.shape
    if len(shape) < 3 or groups < 1 or shape[1] % groups:
        raise node.fail(f"{counted(groups, 'group')} do not divide the channels of {shape}")
    grouped = node.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups))
    y, _, _ = _standard(node, grouped, (2,), float(node.attr("epsilon", 1e-5)))
    if node.opset < 21:
        return node.reshape(_per_channel(node, y, scale, shift), shape)
    return _per_channel(node, node.reshape(y, shape), scale, shift)


def _per_channel(node: OnnxNode, y: Value, scale: Value, shift: Value) -> Value:
    """Y [N, C, ...] times `scale` plus `shift`, one of each a channel."""
    along = (1, y.shape[1], *(1,) * (len(y.shape) - 2))
    return node.apply("add", node.apply("mul", y, node.reshape(scale, along)), node.reshape(shift, along))


@rule("Mish")
def mish(node: OnnxNode, x: Value) -> Value:
    """X * tanh(log(1 + exp(x))) (Misra 2019)."""
    return node.apply("mul", x, node.apply("tanh", node.apply("softplus", x)))
