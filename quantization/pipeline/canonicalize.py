"""canonicalize: bring a float graph into the form the other passes read (constants folded into layers)."""

from __future__ import annotations

import numpy as np

from megengine.quantization.pipeline.computed_kernels import COMPUTED_KERNELS
from megengine.quantization.pipeline.masks import ADD_MASKS, BOUND_MASKS
from megengine.traced_module.ir.end_names import keep_result_names, result_names
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes import constant_value, run_passes
from megengine.traced_module.passes.activations import name_activations
from megengine.traced_module.passes.affine_maps import norm_map
from megengine.traced_module.passes.fold_constants import fold_constants
from megengine.traced_module.passes.folding import absorbed
from megengine.traced_module.passes.retyping import widen
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import any_, call, const

_X = any_()
_STATISTICS = [const() for _ in range(4)]
_NORM = call("batch_norm", _X, *_STATISTICS)
_GAIN, _SHIFT = const(), const()
_SCALED = call("mul", _X, _GAIN)
_AFFINE = call("add", _SCALED, _SHIFT) | _SCALED


def _part(m: Found) -> TensorNode:
    x, split = m[_X], m.root.expr
    axis = split.attrs["axis"] % len(x.shape)
    before = split.outputs[: split.outputs.index(m.root)]
    start = sum(out.shape[axis] for out in before)
    ranges = [(start, start + m.root.shape[axis]) if i == axis else (0, n) for i, n in enumerate(x.shape)]
    starts, stops = zip(*ranges, strict=True)
    attrs = {"starts": starts, "stops": stops, "steps": (1,) * len(ranges)}
    return m.apply("slice", x, attrs=attrs, name=f"{m.root.name}_part")


def _layer(m: Found) -> TensorNode:
    """A batch norm as a 1x1 depthwise convolution.

    Its one weight a channel has a scale of its own, so that rounding it to an integer changes nothing.
    """
    gamma, beta, mean, variance = (np.asarray(constant_value(m[p]), np.float64).reshape(-1) for p in _STATISTICS)
    return _depthwise(m, norm_map(gamma, beta, mean, variance, m.root.expr.attrs["eps"]), len(gamma))


def _depthwise(m: Found, step: tuple[np.ndarray, np.ndarray], channels: int) -> TensorNode:
    weight, bias = absorbed(np.ones((channels, 1, 1, 1), np.float32), None, step, groups=channels)
    name, window = m.root.name, {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": channels}
    inputs = (m[_X], m.constant(weight, f"{name}_weight"), m.constant(bias, f"{name}_bias"))
    return m.apply("conv2d", *inputs, attrs=window, name=f"{name}_layer")


_WEIGHT, _BIAS = const(), const()
_VOLUME = call("conv3d", _X, _WEIGHT) | call("conv3d", _X, _WEIGHT, _BIAS)


def _pictures(m: Found) -> TensorNode:
    """A convolution over depth, height and width as one over height and width, whose channels are those of all depths
    that the window covers.
    """
    attrs, name, x, weight = m.root.expr.attrs, m.root.name, m[_X], m[_WEIGHT].expr.value.numpy()
    (step, *stride), (gap, *dilation), (ends, *padding) = (attrs[k] for k in ("stride", "dilation", "padding"))
    n, depth, taps = m.root.shape[0], m.root.shape[2], weight.shape[2]
    if any(ends):
        widths = ((0, 0), (0, 0), ends, (0, 0), (0, 0))
        x = m.apply("pad", x, attrs={"widths": widths, "mode": "constant", "value": 0.0}, name=f"{name}_padded")
    planes = []
    for tap in range(taps):
        starts = (0, 0, tap * gap, 0, 0)
        stops = (*x.shape[:2], tap * gap + (depth - 1) * step + 1, *x.shape[3:])
        cut = {"starts": starts, "stops": stops, "steps": (1, 1, step, 1, 1)}
        plane = m.apply("slice", x, attrs=cut, name=f"{name}_plane")
        shape = (*plane.shape[:2], 1, *plane.shape[2:])
        planes.append(m.apply("reshape", plane, attrs={"shape": shape}, name=f"{name}_plane"))
    wide = planes[0] if taps == 1 else m.apply("concat", *planes, attrs={"axis": 2}, name=f"{name}_planes")
    turned = m.apply("transpose", wide, attrs={"perm": (0, 3, 1, 2, 4, 5)}, name=f"{name}_pictures")
    shape = (n * depth, x.shape[1] * taps, *x.shape[3:])
    pictures = m.apply("reshape", turned, attrs={"shape": shape}, name=f"{name}_pictures")
    flat = weight.reshape(weight.shape[0], weight.shape[1] * taps, *weight.shape[3:])
    window = {"stride": (*stride,), "padding": (*padding,), "dilation": (*dilation,), "groups": attrs["groups"]}
    inputs = (pictures, m.constant(flat, f"{name}_weight"), *([m[_BIAS]] if _BIAS in m else []))
    y = m.apply("conv2d", *inputs, attrs=window, name=f"{name}_layer")
    y = m.apply("reshape", y, attrs={"shape": (n, depth, *y.shape[1:])}, name=f"{name}_depths")
    return m.apply("transpose", y, attrs={"perm": (0, 2, 1, 3, 4)}, name=f"{name}_volume")


_RAISED = call("conv_transpose3d", _X, _WEIGHT) | call("conv_transpose3d", _X, _WEIGHT, _BIAS)


def _raised_pictures(m: Found) -> TensorNode:
    """A transposed convolution over depth, height and width as one over height and width.

    Planes of the result that lie a stride apart read the same planes of the operand, so a stride of them are the
    channels of one picture; the planes that they read are the channels of its operand.
    """
    attrs, name, weight = m.root.expr.attrs, m.root.name, m[_WEIGHT].expr.value.numpy()
    step, (before, _), gap = (attrs[k][0] for k in ("stride", "padding", "dilation"))
    (n, out, depth), taps = m.root.shape[:3], weight.shape[2]
    back = (taps - 1) * gap // step + 1
    first, last = before // step, (before + depth - 1) // step
    groups_of_planes = last - first + 1
    flat = np.zeros((weight.shape[0], back, weight.shape[1], step, *weight.shape[3:]), weight.dtype)
    for tap in range(taps):
        flat[:, tap * gap // step, :, tap * gap % step] = weight[:, :, tap]
    flat = flat.reshape(weight.shape[0] * back, weight.shape[1] * step, *weight.shape[3:])
    inputs = [_planes_behind(m, back, first, last), m.constant(flat, f"{name}_weight")]
    if _BIAS in m:
        inputs.append(m.constant(m[_BIAS].expr.value.numpy().repeat(step, -1), f"{name}_bias"))
    window = {k: attrs[k][1:] for k in ("stride", "padding", "output_padding", "dilation")}
    y = m.apply("conv_transpose2d", *inputs, attrs={**window, "groups": attrs["groups"]}, name=f"{name}_layer")
    y = m.apply("reshape", y, attrs={"shape": (n, groups_of_planes, out, step, *y.shape[2:])}, name=f"{name}_steps")
    y = m.apply("transpose", y, attrs={"perm": (0, 2, 1, 3, 4, 5)}, name=f"{name}_depths")
    shape = (n, out, groups_of_planes * step, *y.shape[4:])
    y = m.apply("reshape", y, attrs={"shape": shape}, name=f"{name}_volume")
    start = before - first * step
    return y if shape[2] == depth else _cut(m, y, start, start + depth, f"{name}_cut")


def _planes_behind(m: Found, back: int, first: int, last: int) -> TensorNode:
    """Pictures of the planes first..last of the operand, whose channels are those of the planes up to `back` before."""
    x, name = m[_X], m.root.name
    n, channels, depth, *size = x.shape
    front, rear = max(0, back - 1 - first), max(0, last - depth + 1)
    if front or rear:
        widths = ((0, 0), (0, 0), (front, rear), (0, 0), (0, 0))
        x = m.apply("pad", x, attrs={"widths": widths, "mode": "constant", "value": 0.0}, name=f"{name}_padded")
    planes = []
    for at in range(back):
        start = first - at + front
        whole = (start, last + 1 - at + front) == (0, x.shape[2])
        plane = x if whole else _cut(m, x, start, last + 1 - at + front, f"{name}_plane")
        shape = (n, channels, 1, last - first + 1, *size)
        planes.append(m.apply("reshape", plane, attrs={"shape": shape}, name=f"{name}_plane"))
    wide = planes[0] if back == 1 else m.apply("concat", *planes, attrs={"axis": 2}, name=f"{name}_planes")
    turned = m.apply("transpose", wide, attrs={"perm": (0, 3, 1, 2, 4, 5)}, name=f"{name}_pictures")
    shape = (n * (last - first + 1), channels * back, *size)
    return m.apply("reshape", turned, attrs={"shape": shape}, name=f"{name}_pictures")


def _cut(m: Found, x: TensorNode, start: int, stop: int, name: str) -> TensorNode:
    """Planes start..stop of a volume."""
    cut = {"starts": (0, 0, start, 0, 0), "stops": (*x.shape[:2], stop, *x.shape[3:]), "steps": (1,) * 5}
    return m.apply("slice", x, attrs=cut, name=name)


_POOL = call("pool", _X, largest=True)


def _pooled_in_turn(m: Found) -> TensorNode | None:
    """The largest value of a window over depth, height and width: that over height and width, then over depth."""
    attrs, name, x = m.root.expr.attrs, m.root.name, m[_X]
    if len(attrs["kernel"]) != 3 or set(attrs["dilation"]) != {1}:
        return None
    n, channels, depth, *size = x.shape

    def part(x: TensorNode, shape: tuple[int, ...], which: slice, **one: tuple) -> TensorNode:
        window = {k: (*attrs[k][which], *one.get(k, ())) for k in ("kernel", "stride", "padding")}
        x = m.apply("reshape", x, attrs={"shape": shape}, name=f"{name}_planes")
        return m.apply("max_pool2d", x, attrs=window, name=f"{name}_part")

    x = part(x, (n, channels * depth, *size), slice(1, 3))
    one = {"kernel": (1,), "stride": (1,), "padding": ((0, 0),)}
    x = part(x, (n, channels, depth, x.shape[2] * x.shape[3]), slice(0, 1), **one)
    return m.apply("reshape", x, attrs={"shape": m.root.shape}, name=f"{name}_pooled")


def _by_channel(node: TensorNode, channels: int) -> np.ndarray | None:
    """One number a channel of [N,C,H,W], from a constant that broadcasts to it; None for others."""
    value = np.asarray(constant_value(node), np.float64)
    shape = (1,) * (4 - value.ndim) + value.shape
    if channels < 2 or shape not in ((1, channels, 1, 1), (1, 1, 1, 1)):
        return None
    return np.broadcast_to(value.reshape(-1), channels)


def _affine_layer(m: Found) -> TensorNode | None:
    """Products and sums with a number a channel as a 1x1 depthwise convolution, which rounds once."""
    channels = m[_X].shape[1]
    gain = _by_channel(m[_GAIN], channels)
    shift = _by_channel(m[_SHIFT], channels) if _SHIFT in m else np.zeros(channels)
    if gain is None or shift is None or (m[_GAIN].spec.size == 1 and (_SHIFT not in m or m[_SHIFT].spec.size == 1)):
        return None  # a function of one value
    return _depthwise(m, (gain, shift), channels)


_SHIFT_BY_ROW = any_()
_SHIFTED = call("sub", _X, _SHIFT_BY_ROW)


def _unshifted(m: Found) -> TensorNode | None:
    """A softmax of values less one number for each row, such as the largest, is that of the values."""
    axis, shape, shift = m.root.expr.attrs["axis"] % m[_X].spec.ndim, m[_X].shape, m[_SHIFT_BY_ROW].shape
    if m[_SHIFTED].shape != shape or ((1,) * (len(shape) - len(shift)) + shift)[axis] != 1:
        return None
    return m.apply("softmax", m[_X], attrs=dict(m.root.expr.attrs), name=f"{m.root.name}_unshifted")


def _computed_picture(m: Found) -> bool:
    return m[_X].spec.ndim == 4 and isinstance(m[_X].expr, Apply) and m.root.shape == m[_X].shape


RULES = (
    # integer layers have two spatial axes
    Rule("volume_as_pictures", _VOLUME, _pictures),
    Rule("raised_volume_as_pictures", _RAISED, _raised_pictures),
    Rule("pool_in_turn", _POOL, _pooled_in_turn),
    *COMPUTED_KERNELS,
    # slices move integers
    Rule("split_as_slices", call("split", _X), _part, shared=True),
    # that no convolution before it could take
    Rule("norm_as_layer", _NORM, _layer, when=lambda m: m[_X].spec.ndim == 4),
    Rule("affine_as_layer", _AFFINE, _affine_layer, when=_computed_picture),
    ADD_MASKS,
    BOUND_MASKS,
)


_UNSHIFTED = Rule("softmax_unshifted", call("softmax", _SHIFTED), _unshifted, shared=True)


def canonicalize(graph: InternalGraph) -> InternalGraph:
    """A copy in float32 (layers in halves are widened, those in float64 narrowed) with constants computed, batch norms
    and constant additions folded into convolutions, activations that are spelled out named, splits opened into slices,
    other batch norms and affine maps by channels as layers, volumes as pictures, and computed kernels as operands of
    products.
    """
    g = graph.clone()
    widen(g)
    run_passes(g)
    name_activations(g)
    if rewrite(g, (_UNSHIFTED,)):
        remove_dead(g)  # the largest values: masks have to see the softmax as the only reader
    rewrite(g, RULES, last_first=True)
    fold_constants(g)  # windows of constant pictures
    remove_dead(g)
    keep_result_names(g, result_names(graph))
    return g
