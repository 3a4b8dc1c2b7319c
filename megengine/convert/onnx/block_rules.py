"""Import rules of operators whose weights ONNX Runtime packs: integers of few bits, with a scale for each block."""

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value, rule, spec_of
from megengine.convert.onnx.operators import like
from megengine.core.dtype import storage_of
from megengine.core.errors import brief
from megengine.traced_module.ir.node import TensorNode

_BITS = (2, 4, 8)


@rule("com.microsoft::MatMulNBits")
def product_with_blocks(node: OnnxNode, x: Value, *more: Value | None) -> Value:
    """The product with a stored matrix, whose columns lie row by row: [out, in], packed from the lowest bits on.

    g_idx says to which block a column belongs, where these do not follow each other.
    """
    packed, scales, zeros, blocks_of, bias = (*_stored(node, more), *(None,) * 5)[:5]
    if packed is None or scales is None:
        raise node.fail("its weight or its scales are missing")
    depth, width, bits, block = (int(node.attr(name, 0)) for name in ("K", "N", "bits", "block_size"))
    bits = bits or 4
    if bits not in _BITS or min(depth, width, block) < 1:
        raise node.fail(
            f"K, N and block_size are {depth}, {width} and {block}, bits {bits}; "
            f"expected positive numbers, and bits {', '.join(map(str, _BITS))}"
        )
    blocks = -(-depth // block)
    whole = _unpacked(packed.reshape(width, -1), bits)
    if whole.shape[1] < depth or scales.size != width * blocks:
        raise node.fail(
            f"weight {packed.shape} and scales {scales.shape} hold no matrix ({width}, {depth}) in blocks of {block}"
        )
    at = np.arange(depth) // block if blocks_of is None else blocks_of.reshape(-1)[:depth]
    if at.size < depth or at.min() < 0 or at.max() >= blocks:
        raise node.fail(f"g_idx names the block of each of {depth} columns, from 0 to {blocks - 1}; got {brief(at)}")
    offset = _offsets(node, zeros, bits, width, blocks)
    steps = scales.astype(np.float32).reshape(width, blocks)
    real = (whole[:, :depth] - offset[:, at]) * steps[:, at]
    weight = np.ascontiguousarray(real.T).astype(storage_of(spec_of(x).dtype))
    y = node.apply("matmul", x, weight, transpose_a=False, transpose_b=False)
    return y if bias is None else node.apply("add", y, bias)


@rule("com.microsoft::GatherBlockQuantized")
def rows_in_blocks(node: OnnxNode, table: Value, at: Value, *more: Value | None) -> Value:
    """Rows of a stored table whose integers have a scale for each block of an axis."""
    stored, scales, zeros = (*_stored(node, (table, *more)), None)[:3]
    if stored is None or scales is None:
        raise node.fail("its table or its scales are missing")
    bits, block = int(node.attr("bits", 4)), int(node.attr("block_size", 128))
    packed = stored.dtype == np.uint8
    whole = _unpacked(stored, bits) if packed else stored.astype(np.float32)
    axis = node.axis(int(node.attr("quantize_axis", 1)), whole.ndim)
    blocks = -(-whole.shape[axis] // block)
    if scales.shape != (*whole.shape[:axis], blocks, *whole.shape[axis + 1 :]):
        raise node.fail(
            f"its table of {whole.shape} with blocks of {block} along axis {axis} has scales {scales.shape}"
        )
    where = np.arange(whole.shape[axis]) // block
    offset = np.float32(1 << (bits - 1) if packed else 0)
    if zeros is not None:
        levels = _unpacked(zeros, bits) if packed else zeros.astype(np.float32)
        offset = np.take(levels, where, axis)
    real = (whole - offset) * np.take(scales.astype(np.float32), where, axis)
    return like(node, "Gather", real.astype(scales.dtype), at, axis=int(node.attr("gather_axis", 0)))


def _stored(node: OnnxNode, inputs: tuple[Value | None, ...]) -> list[np.ndarray | None]:
    """Inputs that have to be constants."""
    made: list[np.ndarray | None] = []
    for value in inputs:
        if isinstance(value, TensorNode):
            raise node.fail(f"its input {value.name!r} is computed; expected stored values")
        made.append(value)
    return made


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The integers that bytes hold along the last axis, as float32."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1).astype(np.float32)


def _offsets(node: OnnxNode, zeros: np.ndarray | None, bits: int, width: int, blocks: int) -> np.ndarray:
    """The zero point of each block of each column: packed bytes, or numbers of the type of the scales."""
    if zeros is None:
        return np.full((width, blocks), 1 << (bits - 1), np.float32)
    rows = zeros.reshape(width, -1)
    levels = _unpacked(rows, bits) if rows.dtype == np.uint8 else rows.astype(np.float32)
    if levels.shape[1] < blocks:
        raise node.fail(f"zero points {zeros.shape} do not hold a matrix ({width}, {blocks})")
    return levels[:, :blocks]
