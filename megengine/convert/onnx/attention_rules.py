"""Import rules of attention as ONNX Runtime's optimizer of transformers writes it, and of the embedding before it."""

import math

from megengine import functional as F
from megengine.convert.onnx.context import OnnxNode, composition
from megengine.convert.onnx.real_products import real, real_product
from megengine.dispatch import apply
from megengine.ops.common import counting, size_tensor
from megengine.tensor import Tensor

_MASKED = -10000.0  # what is added to scores that a mask takes away, unless a node says another number


@composition("com.microsoft::EmbedLayerNormalization")
def embedded(node: OnnxNode, ids: Tensor, kinds: Tensor | None, *more: Tensor | None) -> tuple[Tensor, ...]:
    """The sum of rows of up to three tables, normalised; how many places the mask keeps of each sample; the sum."""
    words, places, segments, scale, shift, mask, at = (*more, *(None,) * 7)[:7]
    if words is None or places is None or scale is None:
        raise node.fail("a table or the scale is missing")
    return _embedded(node, (ids, kinds, at), (words, places, segments), (scale, shift), mask)


@composition("com.microsoft::QEmbedLayerNormalization")
def embedded_of_integers(node: OnnxNode, ids: Tensor, kinds: Tensor | None, *more: Tensor | None) -> tuple[Tensor, ...]:
    """The same with tables, scale and shift of 8 bits, each with a step and a zero point."""
    stored, (mask, *steps) = more[:5], (*more[5:], *(None,) * 11)[:11]
    made = [
        None if x is None or step is None else real(x, step, zero)
        for x, step, zero in zip(stored, steps[:5], steps[5:], strict=True)
    ]
    words, places, segments, scale, shift = (*made, *(None,) * 5)[:5]
    if words is None or places is None or scale is None:
        raise node.fail("a table, the scale or a step of these is missing")
    return _embedded(node, (ids, kinds, None), (words, places, segments), (scale, shift), mask)[:2]


def _embedded(
    node: OnnxNode,
    ids: tuple[Tensor, Tensor | None, Tensor | None],
    tables: tuple[Tensor, Tensor, Tensor | None],
    norm: tuple[Tensor, Tensor | None],
    mask: Tensor | None,
) -> tuple[Tensor, ...]:
    (words, kinds, at), (of_words, of_places, of_kinds), (scale, shift) = ids, tables, norm
    first = F.expand_dims(counting(words.shape[1]), 0) if at is None else at
    total = _rows(of_words, words) + _rows(of_places, first)
    if of_kinds is not None and kinds is not None:
        total = total + _rows(of_kinds, kinds)
    centred = total - apply("mean", total, axis=(-1,), keepdims=True)
    power = apply("mean", centred * centred, axis=(-1,), keepdims=True)
    y = centred / F.sqrt(power + float(node.attr("epsilon", 1e-12))) * scale
    counts = apply("broadcast_to", Tensor(0, dtype="int32"), shape=words.shape) if mask is None else mask
    kept = apply("sum", counts, axis=(1,), keepdims=False)
    return y if shift is None else y + shift, kept, total


def _rows(table: Tensor, places: Tensor) -> Tensor:
    return apply("index", table, places, pattern=("i", (None, None, None)))


@composition("com.microsoft::Attention")
def attention(node: OnnxNode, x: Tensor, w: Tensor, bias: Tensor | None, *more: Tensor | None) -> tuple[Tensor, ...]:
    """Heads of one product with the weights of queries, keys and values; keys and values so far are a result too."""
    mask, past, added, *_ = (*more, *(None,) * 3)
    return _of_joint(node, F.matmul(x, w) if bias is None else F.matmul(x, w) + bias, mask, past, added)


@composition("com.microsoft::QAttention")
def attention_of_integers(
    node: OnnxNode, x: Tensor, w: Tensor, bias: Tensor | None, scale: Tensor, scales: Tensor, *more: Tensor | None
) -> tuple[Tensor, ...]:
    """Attention whose product of integers is one of real values behind it."""
    mask, zero, zeros, past, *_ = (*more, *(None,) * 4)
    return _of_joint(node, real_product(x, w, (scale, scales), (zero, zeros), bias), mask, past, None)


def _of_joint(
    node: OnnxNode, joint: Tensor, mask: Tensor | None, past: Tensor | None, added: Tensor | None
) -> tuple[Tensor, ...]:
    """Attention from queries, keys and values in one tensor."""
    if node.attr("do_rotary", 0):
        raise node.fail("turns queries and keys (do_rotary), which is not supported; export the model without it")
    heads = int(node.attr("num_heads", 0))
    sizes = node.ints("qkv_hidden_sizes") or (joint.shape[-1] // 3,) * 3
    parts, begin = [], 0
    for size in sizes:
        one = apply("slice", joint, starts=(None, None, begin), stops=(None, None, begin + size), steps=(1, 1, 1))
        parts.append(_in_heads(node, one, heads))
        begin += size
    query, key, value = parts
    if past is not None:
        key, value = (_behind(past, k, new) for k, new in ((0, key), (1, value)))
    shape = (1, *key.shape)
    present = F.concat([F.reshape(key, shape), F.reshape(value, shape)], axis=0) if any(node.outputs[1:]) else key
    return _attended(node, query, key, value, mask, added), present


@composition("com.microsoft::RotaryEmbedding")
def turned(node: OnnxNode, x: Tensor, places: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Pairs of the first channels of each head, turned by the angles of their places; a place alone is the first one.

    X is [N, T, heads * channels] or [N, heads, T, channels]; a pair is two neighbours (interleaved), or one channel of
    each half.
    """
    if node.attr("is_packed_batching", 0):
        raise node.fail("is_packed_batching=1 is not supported; expected [N, T, channels] or [N, heads, T, channels]")
    count, heads = 2 * cosines.shape[1], int(node.attr("num_heads", 0))
    if x.ndim == 3:
        width = x.shape[2] // heads if heads else count
        rows = F.reshape(x, (*x.shape[:2], x.shape[2] // width, width))
    else:
        rows = F.transpose(x, (0, 2, 1, 3))
    if places.ndim == 1:
        places = F.expand_dims(places + counting(rows.shape[1]).astype(places.dtype), 0)
    cosine, sine = (F.expand_dims(_rows(table, places), 2) for table in (cosines, sines))
    half, first = count // 2, _part(rows, 0, count)
    interleaved = bool(node.attr("interleaved", 0))
    if interleaved:
        pairs = F.reshape(first, (*first.shape[:3], half, 2))
        a, b = (F.reshape(_part(pairs, k, k + 1), (*first.shape[:3], half)) for k in (0, 1))
    else:
        a, b = _part(first, 0, half), _part(first, half, count)
    made = [a * cosine - b * sine, a * sine + b * cosine]
    y = F.reshape(F.stack(made, -1), first.shape) if interleaved else F.concat(made, -1)
    y = y if count == rows.shape[3] else F.concat([y, _part(rows, count, rows.shape[3])], -1)
    return F.reshape(y, x.shape) if x.ndim == 3 else F.transpose(y, (0, 2, 1, 3))


def _part(x: Tensor, begin: int, end: int) -> Tensor:
    """Places of the last axis."""
    before = (None,) * (x.ndim - 1)
    return apply("slice", x, starts=(*before, begin), stops=(*before, end), steps=(1,) * x.ndim)


def _behind(past: Tensor, place: int, new: Tensor) -> Tensor:
    old = apply("slice", past, starts=(place,) + (None,) * 4, stops=(place + 1,) + (None,) * 4, steps=(1,) * 5)
    return F.concat([F.reshape(old, past.shape[1:]), new], axis=2)


@composition("com.microsoft::MultiHeadAttention")
def multi_head(node: OnnxNode, query: Tensor, *more: Tensor | None) -> tuple[Tensor, ...]:
    """Queries, keys and values [batch, length, heads * size]; the latter two may be [batch, heads, length, size]."""
    key, value, bias, mask, added, *past = (*more, *(None,) * 7)[:7]
    if key is None or value is None or query.ndim != 3 or key.ndim not in (3, 4):
        raise node.fail("its queries, keys and values are packed; expected three inputs of three axes")
    heads, parts, begin = int(node.attr("num_heads", 0)), [], 0
    for one in (query, key, value):
        if one.ndim == 3:
            if bias is not None:
                one = one + apply("slice", bias, starts=(begin,), stops=(begin + one.shape[2],), steps=(1,))
                begin += one.shape[2]
            one = _in_heads(node, one, heads)
        parts.append(one)
    q, k, v = parts
    k, v = (new if old is None else F.concat([old, new], axis=2) for old, new in zip(past, (k, v), strict=True))
    return _attended(node, q, k, v, mask, added), k, v


def _in_heads(node: OnnxNode, x: Tensor, heads: int) -> Tensor:
    """[batch, length, all] as [batch, heads, length, size]."""
    batch, length, size = x.shape
    if heads < 1 or size % heads:
        raise node.fail(f"num_heads is {heads}; expected a divisor of {size}")
    return F.transpose(F.reshape(x, (batch, length, heads, size // heads)), (0, 2, 1, 3))


def _attended(
    node: OnnxNode, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, added: Tensor | None
) -> Tensor:
    batch, _, length, size = query.shape
    total = key.shape[2]
    scale = float(node.attr("scale", 0.0)) or 1 / math.sqrt(size)
    scores = F.matmul(query, F.swapaxes(key, -1, -2)) * scale
    kept = None if mask is None else _kept(node, mask, batch, total)
    if node.attr("unidirectional", 0):  # a query looks at keys up to its own place, which is that from the end
        own = counting(length) + size_tensor(total - length)
        behind = F.expand_dims(counting(total), 0) <= F.expand_dims(own, 1)
        behind = F.reshape(behind, (1, 1, length, total))
        kept = behind if kept is None else F.logical_and(kept, behind)
    if kept is not None:
        scores = scores + F.where(kept, Tensor(0.0), Tensor(float(node.attr("mask_filter_value", _MASKED))))
    if added is not None:
        scores = scores + added
    y = F.transpose(F.matmul(F.softmax(scores, axis=-1), value), (0, 2, 1, 3))
    return F.reshape(y, (batch, length, y.shape[2] * y.shape[3]))


def _kept(node: OnnxNode, mask: Tensor, batch: int, total: int) -> Tensor:
    """Which keys count, as something that fits [batch, heads, length, keys]; lengths count from the first key on."""
    if mask.ndim == 1 and mask.shape == (batch,):
        inside = F.expand_dims(counting(total), 0) < F.expand_dims(mask.astype("int64"), 1)
        return F.reshape(inside, (batch, 1, 1, total))
    if mask.ndim not in (2, 3) or mask.shape[0] != batch or mask.shape[-1] != total:
        raise node.fail(f"its mask is {mask.shape}; expected [batch], [batch, keys] or [batch, length, keys]")
    real = mask > Tensor(0, dtype=mask.dtype)
    return F.reshape(real, (batch, 1, 1, total)) if mask.ndim == 2 else F.expand_dims(real, 1)
