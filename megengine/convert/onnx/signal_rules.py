"""Import rules of Fourier transforms, which are products with constant matrices, and of random numbers, drawn once."""

import math
import zlib
from collections.abc import Sequence

import numpy as np

from megengine import functional as F
from megengine.convert.onnx.context import OnnxNode, Value, composition, rule, spec_of
from megengine.convert.onnx.folding import MAX_VALUES
from megengine.core.dtype import storage_of
from megengine.core.sizes import is_open
from megengine.core.text import counted
from megengine.dispatch import apply
from megengine.logger import get_logger
from megengine.ops.common import counting, size_tensor
from megengine.tensor import Tensor


def _length(node: OnnxNode, index: int, what: str, default: int) -> int:
    stated = node.const_ints(index, what)
    return stated[0] if stated else default


def _of_length(x: Tensor, length: int) -> Tensor:
    """The last axis cut, or filled up with zeros."""
    more = length - x.shape[-1]
    if more == 0:
        return x
    return x[..., :length] if more < 0 else F.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)])


def _number(length: int) -> Tensor:
    """A length, which may be open, as a float64."""
    return size_tensor(length).astype("float64")


def _waves(length: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of products of places and frequencies, in float64; computed by ops where the length is open."""
    if is_open(length):
        turns = (counting(rows).reshape(-1, 1) * counting(columns)) % size_tensor(length)
        angle = turns.astype("float64") / _number(length) * (2 * np.pi)
        return F.cos(angle), F.sin(angle)
    fixed = 2 * np.pi / length * (np.outer(np.arange(rows), np.arange(columns)) % length)
    return Tensor._wrap(np.cos(fixed)), Tensor._wrap(np.sin(fixed))


def _transformed(x: Tensor, length: int, kept: int, *, inverse: bool) -> Tensor:
    """[..., length, 1 or 2] as [..., kept, 2]: the first frequencies of a transform of real or complex numbers."""
    sign = 1 if inverse else -1
    count = _number(length)
    cos, sin = (
        (part / count if inverse else part).astype(storage_of(x.dtype)) for part in _waves(length, length, kept)
    )
    real = x[..., 0]
    if x.shape[-1] == 1:
        return F.stack([F.matmul(real, cos), F.matmul(real, sin) * sign], axis=-1)
    imag = x[..., 1]
    parts = [F.matmul(real, cos) - F.matmul(imag, sin) * sign, F.matmul(imag, cos) + F.matmul(real, sin) * sign]
    return F.stack(parts, axis=-1)


@composition("DFT")
def dft(node: OnnxNode, x: Tensor) -> Tensor:
    """Along one axis, of real or complex numbers; one-sided ones have the first half of the frequencies."""
    stated = node.const_ints(2, "axis") if node.opset >= 20 else (int(node.attr("axis", 1)),)
    axis = node.axis(stated[0] if stated else -2, x.ndim)
    inverse, one_sided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if axis == x.ndim - 1 or x.shape[-1] not in (1, 2):
        raise node.fail(f"its axis is {axis} of shape {x.shape}; expected one in front of the last, which has 1 or 2")
    half = inverse and one_sided
    length = _length(node, 1, "length", 2 * (x.shape[axis] - 1) if half else x.shape[axis])
    turned = F.swapaxes(x, axis, x.ndim - 1)  # the parts of a number in the place of the axis
    turned = _of_length(turned, length // 2 + 1 if half else length)
    moved = F.swapaxes(F.swapaxes(turned, axis, x.ndim - 1), axis, x.ndim - 2)
    if half:
        kept = length // 2 + 1
        numbers, count = counting(kept).reshape(-1, 1).astype("float64"), _number(length)
        alone = F.logical_or(numbers == 0, numbers * 2 == count).astype("float64")
        weight = (2 - alone) / count
        cos, sin = ((weight * part).astype(storage_of(moved.dtype)) for part in _waves(length, kept, length))
        made = F.expand_dims(F.matmul(moved[..., 0], cos) - F.matmul(moved[..., 1], sin), -1)
    else:
        made = _transformed(moved, length, length // 2 + 1 if one_sided else length, inverse=inverse)
    return F.swapaxes(made, axis, x.ndim - 2)


@composition("STFT")
def stft(node: OnnxNode, x: Tensor, step: Tensor, window: Tensor | None = None, length: Tensor | None = None) -> Tensor:
    """Transforms of the pieces of a signal [N, L, 1 or 2] that begin at every `step`: [N, pieces, frequencies, 2]."""
    wide = x if x.ndim == 3 else F.expand_dims(x, -1)
    default = wide.shape[1] if window is None else window.shape[0]
    size, hop = _length(node, 3, "frame_length", default), _length(node, 1, "frame_step", 0)
    if hop < 1 or not 1 <= size <= wide.shape[1] or (window is not None and window.shape != (size,)):
        raise node.fail(
            f"pieces of {size} at every {hop} of a signal {x.shape}; expected positive, and a window as long"
        )
    starts = counting((wide.shape[1] - size) // hop + 1).reshape(-1, 1) * hop
    pieces = wide[:, starts + Tensor._wrap(np.arange(size))]
    if window is not None:
        pieces = pieces * window.reshape(-1, 1)
    return _transformed(pieces, size, size // 2 + 1 if node.attr("onesided", 1) else size, inverse=False)


def _drawn(node: OnnxNode, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Random numbers, the same at every import: a graph of ops draws none."""
    if (count := math.prod(shape)) > MAX_VALUES:
        raise node.fail(f"makes {counted(count, 'random number')}; at most {MAX_VALUES} are accepted")
    stated = node.attr("seed")
    seed = zlib.crc32(node.name.encode() if stated is None else np.float32(stated).tobytes())
    get_logger(__name__).warning(
        f"{node.op_type} node {node.name!r}: its random numbers are drawn once, while importing"
    )
    rng = np.random.default_rng(seed)
    if "Normal" in node.op_type:
        return rng.normal(node.attr("mean", 0.0), node.attr("scale", 1.0), shape).astype(dtype)
    return rng.uniform(node.attr("low", 0.0), node.attr("high", 1.0), shape).astype(dtype)


@rule("RandomNormal", "RandomUniform")
def random(node: OnnxNode) -> Value:
    """Numbers of a stated shape."""
    return _drawn(node, node.ints("shape") or (), node.dtype(node.attr("dtype", 1)))


@rule("RandomNormalLike", "RandomUniformLike")
def random_like(node: OnnxNode, x: Value) -> Value:
    """As many numbers as there are elements."""
    stated = node.attr("dtype")
    return _drawn(node, x.shape, storage_of(spec_of(x).dtype) if stated is None else node.dtype(stated))


@composition("Multinomial")
def multinomial(node: OnnxNode, x: Tensor) -> Tensor:
    """Classes by their logarithmic probabilities [N, C]: the largest one after adding Gumbel noise to each."""
    count = int(node.attr("sample_size", 1))
    noise = -np.log(-np.log(_drawn(node, (x.shape[0], count, x.shape[1]), np.dtype(np.float64))))
    scores = F.expand_dims(x, 1) + Tensor._wrap(noise.astype(storage_of(x.dtype)))
    return apply("argmax", scores, axis=2, keepdims=False).astype(node.dtype(node.attr("dtype", 6)))
