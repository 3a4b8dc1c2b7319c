"""Import rules of resizing: our op where it takes the same neighbours, else one product with a matrix for each axis."""

import math
from dataclasses import replace

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value, rule, spec_of
from megengine.convert.onnx.open_folding import rounded, scaled
from megengine.convert.onnx.open_resize import resized_at_run_time
from megengine.convert.onnx.resizing import CUBIC, NEAREST, NEAREST_PLACES, PLACES, Axis, cubic_far, cubic_near
from megengine.convert.onnx.shape_rules import chosen
from megengine.core.dtype import QuantizedDType, is_float, storage_of
from megengine.core.sizes import is_open, names_of, whole
from megengine.core.text import counted
from megengine.ops.resize import taps
from megengine.traced_module.ir.node import TensorNode

MAX_WEIGHTS = 1 << 26  # of the matrix that resizes an axis
LONGEST = 500  # of the lengths at which open axes are tried
MODES = ("nearest", "linear", "cubic")
ROUNDS_LENGTHS = (
    "pytorch"  # between aligned corners its files mean whole lengths; those of the standard's cases are exact
)


@rule("Resize", "Upsample", quantized=True)
def resize(node: OnnxNode, x: Value) -> Value:
    """Nearest, linear and cubic resizing of any axes, with every way of placing the elements."""
    old_form = node.op_type == "Upsample" or node.opset < 11
    mode = {"bilinear": "linear"}.get(mode := node.attr("mode", "nearest"), mode)
    where = node.attr("coordinate_transformation_mode", "asymmetric" if old_form else "half_pixel")
    rounding = node.attr("nearest_mode", "floor" if old_form else "round_prefer_floor")
    if mode not in MODES or where not in PLACES or rounding not in NEAREST:
        expected = f"expected one of {list(MODES)}, {list(PLACES)}, {list(NEAREST)}"
        raise node.fail(f"mode {mode!r}, coordinates {where!r} or rounding {rounding!r} is unknown; {expected}")
    if isinstance(x, TensorNode) and isinstance(own := x.dtype, QuantizedDType) and mode != "nearest":
        if where == "tf_crop_and_resize":  # what lies outside is an integer
            x = node.stored(x)
        else:
            return node.apply("quantize", resize(node, node.apply("dequantize", x)), dtype=own)
    axes = _axes(node, x.shape, where)
    if where != "tf_crop_and_resize" and all(a.old in (1, a.new) for a in axes):  # one element is every element
        shape = tuple(a.new for a in axes)
        return x if shape == x.shape else node.apply("broadcast_to", x, shape=shape)
    if any(is_open((a.old, a.new)) for a in axes):
        y = _at_every_size(node, x, axes, mode, where, rounding)
        y = _along_closed_axes(node, x, axes, mode, where) if y is None else y
        return resized_at_run_time(node, x, axes, mode, where, rounding) if y is None else y
    places = [_places(mode, where, a) for a in axes]
    if mode == "nearest":
        y = _nearest(node, x, axes, [NEAREST[rounding](p) for p in places])
    else:
        y = _weighed(node, x, axes, [_matrix(node, mode, p, a) for p, a in zip(places, axes, strict=True)])
    if where != "tf_crop_and_resize":
        return y
    outside = [(p < 0) | (p > a.old - 1) for p, a in zip(places, axes, strict=True)]
    mask = np.logical_or.reduce(np.meshgrid(*outside, indexing="ij")) if outside else np.zeros((), bool)
    beyond = np.asarray(node.attr("extrapolation_value", 0.0), storage_of(spec_of(x).dtype))
    return node.apply("where", mask, beyond, y) if mask.any() else y


def _places(mode: str, where: str, a: Axis) -> np.ndarray:
    """Where the elements of a new axis lie in the old one; in float32 where ties decide, as runtimes compute them."""
    dtype = NEAREST_PLACES if mode == "nearest" else np.dtype(np.float64)
    return PLACES[where](np.arange(a.new, dtype=dtype), replace(a, scale=dtype.type(a.scale)))


def _at_every_size(node: OnnxNode, x: Value, axes: list[Axis], mode: str, where: str, rounding: str) -> Value | None:
    """Resizing of open axes by our op, or by whole factors; None where neither takes the same neighbours."""
    tries = [[a.at(sizes) for a in axes] for sizes in _sizes_to_try(axes)]
    pairs = [(a, _places(mode, where, a)) for row in tries for a in row]
    if where == "tf_crop_and_resize" or any(a.new < 1 or a.old < 1 for a, _ in pairs):
        return None
    if mode != "nearest":
        matrices = [(_matrix(node, mode, p, a), a) for a, p in pairs]
        for corners in (False, True) if mode == "linear" else (False,):
            if all(_is_ours(matrix, a, mode, corners=corners) for matrix, a in matrices):
                return _resized(node, x, axes, mode, corners=corners)
        return None
    index = [(np.clip(NEAREST[rounding](p), 0, a.old - 1).astype(np.int64), a) for a, p in pairs]
    alike = all(np.array_equal(i, taps(a.old, a.new, "nearest", False)[0][:, 0]) for i, a in index)
    if alike and (y := _resized(node, x, axes, "nearest", corners=False)) is not None:
        return y
    factors = [0 if is_open(a.new % a.old) or a.new % a.old else a.new // a.old for a in axes]
    if is_open(factors) or not all(factors):
        return None
    if any(not np.array_equal(i, np.arange(a.new) // (a.new // a.old)) for i, a in index):
        return None
    for axis, factor in enumerate(factors):
        x = _repeat(node, x, axis, factor)
    return x


def _sizes_to_try(axes: list[Axis]) -> list[dict[str, int]]:
    """Some sizes of the open axes: what is one of our forms at the example may be none elsewhere."""
    names = sorted({name for a in axes for name in names_of((a.old, a.new, a.scale))})
    steps = ((37, 4), (52, 5), (33, 9), (64, 0), (448, -320), (128, 320), (42, 18), (60, 24), (48, 1), (35, 14))
    return [{name: (base + step * i - 1) % LONGEST + 1 for i, name in enumerate(names)} for base, step in steps]


def _is_ours(matrix: np.ndarray, a: Axis, mode: str, *, corners: bool) -> bool:
    return np.allclose(matrix, _of_taps(*taps(a.old, a.new, mode, corners), a.old), atol=1e-6)


def _axes(node: OnnxNode, shape: tuple[int, ...], where: str) -> list[Axis]:
    """Old and new lengths, from `scales` or `sizes` (inputs 2 and 3; `scales` is input 1 before opset 11)."""
    old_form = node.op_type == "Upsample" or node.opset < 11
    scales, sizes = node.const(1 if old_form else 2, "scales"), None if old_form else node.const_ints(3, "sizes")
    rank = len(shape)
    named = [node.axis(axis, rank) for axis in node.ints("axes") or range(rank)]
    if node.op_type == "Upsample" and "scales" in node.attrs:
        scales = np.asarray(node.attr("scales"))
    given = sizes if sizes else [] if scales is None else scales.reshape(-1).tolist()
    if len(given) != len(named):
        raise node.fail(
            f"{counted(len(given), 'scale')} or sizes for {counted(len(named), 'axis')}; expected one for each"
        )
    factors = [value / shape[axis] if sizes else value for axis, value in zip(named, given, strict=True)]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if sizes and policy != "stretch" and is_open(factors) and any(factor != factors[0] for factor in factors):
        raise node.fail(
            f"which axis decides the factor of keep_aspect_ratio_policy={policy!r} depends on open sizes; fix them "
            "with input_shapes={...}, or export the model with scales"
        )
    if sizes and policy != "stretch":
        factors = [(min if policy == "not_larger" else max)(factors)] * len(factors)
    crops = node.const(1, "region of interest") if where == "tf_crop_and_resize" else None
    made = [Axis(n, n, 1.0) for n in shape]
    for k, (axis, factor) in enumerate(zip(named, factors, strict=True)):
        stretched = whole(given[k]) if sizes else _floor_of_product(node, shape[axis], factor)
        new = stretched if policy == "stretch" or not sizes else math.floor(shape[axis] * factor + 0.5)
        if not 1 <= new <= 1 << 16:
            raise node.fail(f"axis {axis} becomes {new} long; expected 1 to 65536")
        ends = (0.0, 1.0) if crops is None else (float(crops[k]), float(crops[k + len(named)]))
        sized = policy == "stretch" if sizes else where == "align_corners" and node.producer == ROUNDS_LENGTHS
        made[axis] = Axis(shape[axis], new, factor, *ends, sized=sized)
    return made


def _floor_of_product(node: OnnxNode, length: int, factor: float) -> int:
    """A length times a factor of the file, rounded down, as float32 gives it."""
    if is_open(factor):
        return math.floor(length * factor)
    if not is_open(length):
        return math.floor(float(np.float32(length) * np.float32(factor)))
    if (made := rounded(np.floor, scaled(length, factor))) is None:
        raise node.fail(
            f"at some sizes the rounding of float32 decides on the length of {length} times {factor:.7g}; fix them "
            "with input_shapes={...}, or export the model with sizes"
        )
    return made


def _nearest(node: OnnxNode, x: Value, axes: list[Axis], places: list[np.ndarray]) -> Value:
    """One element for each place: our op, or along single axes repeated elements or a choice by an index."""
    index = [np.clip(p, 0, a.old - 1).astype(np.int64) for p, a in zip(places, axes, strict=True)]
    pairs = list(zip(index, axes, strict=True))
    whole = [a.new % a.old == 0 and np.array_equal(i, np.arange(a.new) // (a.new // a.old)) for i, a in pairs]
    alike = [np.array_equal(i, taps(a.old, a.new, "nearest", False)[0][:, 0]) for i, a in pairs]
    if all(alike) and (y := _resized(node, x, axes, "nearest", corners=False)) is not None:
        return y
    for axis, a in enumerate(axes):
        x = _repeat(node, x, axis, a.new // a.old) if whole[axis] else chosen(node, x, axis, index[axis])
    return x


def _resized(node: OnnxNode, x: Value, axes: list[Axis], mode: str, *, corners: bool) -> Value | None:
    """Our op on the axes behind the second one; None where others change too, or for integers."""
    if len(axes) not in (3, 4, 5) or not is_float(spec_of(x).dtype) or any(a.old != a.new for a in axes[:2]):
        return None
    return node.apply("resize", x, size=tuple(a.new for a in axes[2:]), mode=mode, corners=corners)


def _weighed(node: OnnxNode, x: Value, axes: list[Axis], matrices: list[np.ndarray]) -> Value:
    """Sums of neighbours along each axis; integers are computed as floats and cut off."""
    mode = "linear" if node.attr("mode") != "cubic" else "cubic"
    for corners in (False, True) if mode == "linear" else (False,):
        alike = all(_is_ours(m, a, mode, corners=corners) for m, a in zip(matrices, axes, strict=True))
        if alike and (y := _resized(node, x, axes, mode, corners=corners)) is not None:
            return y
    dtype = storage_of(spec_of(x).dtype)
    y = x if is_float(dtype) else node.cast(x, np.float32)
    for axis, matrix in enumerate(matrices):
        if matrix.shape[0] != matrix.shape[1] or not np.array_equal(matrix, np.eye(len(matrix))):
            y = _times(node, y, axis, matrix)
    return node.cast(y, dtype)


def _along_closed_axes(node: OnnxNode, x: Value, axes: list[Axis], mode: str, where: str) -> Value | None:
    """Sums of neighbours along the axes that change, where the open ones do not; None elsewhere."""
    moved = [(place, a) for place, a in enumerate(axes) if a.old != a.new]
    if mode == "nearest" or where == "tf_crop_and_resize" or any(is_open((a.old, a.new)) for _, a in moved):
        return None
    dtype = storage_of(spec_of(x).dtype)
    y = x if is_float(dtype) else node.cast(x, np.float32)
    for place, a in moved:
        y = _times(node, y, place, _matrix(node, mode, _places(mode, where, a), a))
    return node.cast(y, dtype)


def _of_taps(index: np.ndarray, weights: np.ndarray, old: int) -> np.ndarray:
    """[new, old]: the sum of the weights of each element."""
    matrix = np.zeros((len(index), old))
    np.add.at(matrix, (np.arange(len(index))[:, None], np.clip(index, 0, old - 1)), weights)
    return matrix


def _matrix(node: OnnxNode, mode: str, places: np.ndarray, axis: Axis) -> np.ndarray:
    """[new, old]: how much each element counts for each new one; elements beyond the ends are those at the ends."""
    if axis.old * axis.new > MAX_WEIGHTS:
        raise node.fail(f"an axis is resized from {axis.old} to {axis.new}, with more than {MAX_WEIGHTS} weights")
    reach, shrink = 1 if mode == "linear" else 2, min(axis.scale, 1.0) if node.attr("antialias", 0) else 1.0
    first = math.floor(-reach / shrink) + 1
    index = np.floor(places).astype(np.int64)[:, None] + np.arange(first, 2 - first)
    distance = np.abs(index - places[:, None]) * shrink
    weights = (
        np.clip(1 - distance, 0, 1) if mode == "linear" else _cubic(distance, float(node.attr("cubic_coeff_a", CUBIC)))
    )
    if node.attr("exclude_outside", 0):
        weights = np.where((index >= 0) & (index < axis.old), weights, 0)
    return _of_taps(index, weights / weights.sum(1, keepdims=True), axis.old)


def _cubic(d: np.ndarray, a: float) -> np.ndarray:
    return np.where(d <= 1, cubic_near(d, a), np.where(d < 2, cubic_far(d, a), 0))


def _times(node: OnnxNode, x: Value, axis: int, matrix: np.ndarray) -> Value:
    """`matrix` [new, old] applied along one axis."""
    shape, dtype = x.shape, storage_of(spec_of(x).dtype)
    flat = node.reshape(x, (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])))
    if axis == len(shape) - 1:
        flat = node.reshape(flat, (math.prod(shape[:-1]), shape[-1]))
        turned = np.ascontiguousarray(matrix.T.astype(dtype))
        y = node.apply("matmul", flat, turned, transpose_a=False, transpose_b=False)
    else:
        stacks = () if is_open(flat.shape[0]) else flat.shape[:1]
        weights = np.broadcast_to(matrix.astype(dtype), (*stacks, *matrix.shape))
        y = node.apply("matmul", np.ascontiguousarray(weights), flat, transpose_a=False, transpose_b=False)
    return node.reshape(y, (*shape[:axis], len(matrix), *shape[axis + 1 :]))


def _repeat(node: OnnxNode, x: Value, axis: int, times: int) -> Value:
    if times == 1:
        return x
    shape = x.shape
    wide = node.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    more = node.apply("broadcast_to", wide, shape=(*shape[: axis + 1], times, *shape[axis + 1 :]))
    return node.reshape(more, (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))
