"""8-bit integers that are mapped one by one, by channels: one table for each channel instead of several steps.

A requantization, a table, and a layer of 1x1 in groups of one channel (what a batch norm in front of its layer becomes)
give for each of the 256 integers of a channel another one. Those in a row become one table for each channel, also
through values that are joined; the entries are what the ops give, so results stay the same. Where the CPU looks up
tables of channels by vectors, this takes less time than the arithmetic.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.core.spec import TensorSpec
from megengine.dispatch import runner
from megengine.kernels import int8
from megengine.kernels._core import has_fast_channel_lookup, make_int8_channel_lookup_step
from megengine.kernels.lists import LISTS
from megengine.kernels.problem import Problem
from megengine.plan.layouts import Layouts
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import is_among, remove_dead
from megengine.traced_module.patterns import any_, call, match

_FEW = 128  # pixels for each table: with fewer, tables are most of what is read
_MAPS = {
    kernel: op
    for op, kernels in LISTS.items()
    for kernel in kernels
    if kernel in (int8.int8_requantize, int8.int8_table, int8.int8_depthwise)
}
_TABLE, _LAYER = _MAPS[int8.int8_table], _MAPS[int8.int8_depthwise]
_CODES = 16  # squared: the integers of 8 bits, as a picture


def _is_picture(spec: TensorSpec) -> bool:
    dtype = spec.dtype
    return spec.ndim == 4 and isinstance(dtype, QuantizedDType) and dtype.itemsize == 1 and dtype.axis is None


def _is_affine(expr: Apply) -> bool:
    a, (x, w) = expr.attrs, expr.inputs[:2]
    geometry = (a["stride"], a["padding"], w.shape[2:], len(expr.inputs))
    channels = x.shape[1] == w.shape[0] == a["groups"]
    return channels and geometry == ((1, 1), ((0, 0), (0, 0)), (1, 1), 5)


def _is_map(expr: Any) -> TypeGuard[Apply]:
    """True for an op that gives each integer of a channel another one."""
    if not isinstance(expr, Apply) or expr.op not in _MAPS.values():
        return False
    if not (_is_picture(expr.inputs[0].spec) and _is_picture(expr.output.spec)):
        return False
    if not all(isinstance(n.expr, Constant) for n in expr.inputs[1:]):
        return False
    return _is_affine(expr) if expr.op == _LAYER else expr.attrs.get("axis") in (None, 1)


def _is_join(expr: Any) -> TypeGuard[Apply]:
    return (
        isinstance(expr, Apply) and expr.record.joins and expr.attrs.get("axis") == 1 and _is_picture(expr.output.spec)
    )


def _is_private(node: TensorNode) -> bool:
    return len(node.users) == 1 and not is_among(node, node.graph.outputs)


def _maps(node: TensorNode) -> tuple[TensorNode, list[Apply]]:
    """The maps that lead to a value, first to last, of which nothing else needs what is between them; their operand."""
    found: list[Apply] = []
    while _is_map(node.expr) and (not found or _is_private(node)):
        found.insert(0, node.expr)
        node = node.expr.inputs[0]
    return node, found


def _mapped(x: np.ndarray, spec: TensorSpec, maps: list[Apply]) -> tuple[np.ndarray, TensorSpec]:
    """What maps make of an array."""
    for expr in maps:
        constants = [n.expr.value.numpy() for n in expr.inputs[1:]]
        specs = [spec, *(n.spec for n in expr.inputs[1:])]
        spec = TensorSpec(spec.shape, expr.output.dtype)
        x = runner(expr.record, Problem(expr.op, specs, [spec], expr.attrs), True)(x, *constants)
    return x, spec


def _codes(node: TensorNode) -> np.ndarray:
    """[256]: all integers of its storage, smallest first."""
    storage = known_quantized(node.dtype).storage
    return (np.arange(256) + np.iinfo(storage).min).astype(storage)


def _tables(sources: list[TensorNode], heads: list[list[Apply]], tail: list[Apply]) -> np.ndarray:
    """[C,256]: the integer for each one of each channel of the sources side by side."""
    joined = []
    for source, head in zip(sources, heads, strict=True):
        shape = (1, source.shape[1], _CODES, _CODES)
        x = np.broadcast_to(_codes(source).reshape(1, 1, _CODES, _CODES), shape)
        joined.append(_mapped(np.ascontiguousarray(x), TensorSpec(shape, source.dtype), head))
    x, dtype = np.concatenate([x for x, _ in joined], 1), joined[0][1].dtype
    x, _ = _mapped(x, TensorSpec(x.shape, dtype), tail)
    return np.ascontiguousarray(x.reshape(-1, 256))


class _Merged:
    """The maps that end in an op, before and behind values that are joined."""

    def __init__(self, root: Apply) -> None:
        base, self.tail = _maps(root.output)
        self.join = base.expr if _is_join(base.expr) and (base is root.output or _is_private(base)) else None
        found = [_maps(n) if _is_private(n) else (n, []) for n in self.join.inputs] if self.join else [(base, [])]
        self.sources, self.heads = [source for source, _ in found], [head for _, head in found]

    @property
    def exprs(self) -> list[Apply]:
        return [*self.tail, *(e for head in self.heads for e in head), *([self.join] if self.join else [])]

    def pays(self) -> bool:
        n, _, h, w = self.sources[0].shape
        if n * h * w < _FEW:
            return False
        return len(self.exprs) > 1 or (not self.join and self.tail[0].op == _LAYER)


def _replacement(graph: InternalGraph, root: Apply, merged: _Merged) -> TensorNode:
    """Tables of the sources, joined where there are several."""
    tables, dtype = _tables(merged.sources, merged.heads, merged.tail), root.output.dtype
    parts, begin, name = [], 0, root.output.name
    for i, source in enumerate(merged.sources):
        own = tables[begin : begin + source.shape[1]]
        begin += source.shape[1]
        if merged.join is not None and source.dtype == dtype and bool((own == _codes(source)).all()):
            parts.append(source)
            continue
        alike = bool((own == own[:1]).all())
        table = graph.constant(own[0] if alike else own, f"{name}_table", before=root, meta=root.meta)
        attrs = {"dtype": dtype, "axis": None if alike else 1}
        part = name if merged.join is None else f"{name}_{i}"
        parts.append(graph.apply(_TABLE, source, table, attrs=attrs, name=part, before=root, meta=root.meta))
    if merged.join is None:
        return parts[0]
    return graph.apply(merged.join.op, *parts, attrs=merged.join.attrs, name=name, before=root, meta=root.meta)


def merge_maps(graph: InternalGraph) -> bool:
    """Merge in place; True if something changed."""
    if not has_fast_channel_lookup():
        return False
    done: set[int] = set()
    changed = False
    for root in reversed(list(graph.exprs())):
        if id(root) in done or not (_is_map(root) or _is_join(root)):
            continue
        merged = _Merged(root)
        done.update(map(id, merged.exprs))
        if merged.pays():
            graph.replace_node({root.output: _replacement(graph, root, merged)})
            changed = True
    if changed:
        remove_dead(graph)
    return changed


# ---------------------------------------------------------------- truths


_CAST = call("cast", any_())


def quantize_truths(graph: InternalGraph) -> bool:
    """Choose between two integers where truths are cast to float32 and quantized; in place, True if something changed.

    So are the words of embeddings that are products with rows of one 1.
    """
    changed = False
    for expr in list(graph.exprs()):
        if not isinstance(expr, Apply) or not expr.record.quantizes:
            continue
        made, dtype = expr.inputs[0], known_quantized(expr.output.dtype)
        if match(_CAST, made) is None or made.expr.inputs[0].dtype != np.bool_:
            continue
        if dtype.axis is not None or made.dtype != np.float32:
            continue
        specs = [TensorSpec((2,), made.dtype)], [TensorSpec((2,), dtype)]
        run = runner(expr.record, Problem(expr.op, *specs, expr.attrs), True)
        no, yes = (
            graph.constant(Tensor._wrap(v.reshape(()), dtype), f"{expr.output.name}_{i}", before=expr, meta=expr.meta)
            for i, v in enumerate(np.split(run(np.array([0, 1], np.float32)), 2))
        )
        inputs = (made.expr.inputs[0], yes, no)
        chosen = graph.apply("where", *inputs, name=expr.output.name, before=expr, meta=expr.meta)
        graph.replace_node({expr.output: chosen})
        changed = True
    if changed:
        remove_dead(graph)
    return changed


# ---------------------------------------------------------------- the step


def looked_up_parts(graph: InternalGraph, layouts: Layouts) -> dict[int, list[Apply | None]]:
    """By ids of ops that join channels: the tables behind which their operands lie, None where there is none."""
    found = {}
    if has_fast_channel_lookup():
        for expr in graph.exprs():
            if not _is_join(expr) or layouts.in_rows(expr):
                continue
            parts = [
                n.expr if _is_map(n.expr) and n.expr.op == _TABLE and _is_private(n) else None for n in expr.inputs
            ]
            if any(parts):
                found[id(expr)] = parts
    return found


def look_up_joined(expr: Apply, parts: list[Apply | None], threads: int) -> tuple[Any, list[TensorNode]]:
    """The step that writes what tables give into the places of a join, and the values that it reads."""
    tables, sources = [], []
    for node, part in zip(expr.inputs, parts, strict=True):
        source, own = (node, _codes(node)) if part is None else (part.inputs[0], part.inputs[1].expr.value.numpy())
        tables.append(np.broadcast_to(own.view(np.uint8), (source.shape[1], 256)))
        sources.append(source)
    n, _, h, w = expr.output.shape
    step = make_int8_channel_lookup_step(
        tables=np.concatenate(tables),
        channels=[s.shape[1] for s in sources],
        is_signed=[known_quantized(s.dtype).storage == np.int8 for s in sources],
        pixels=n * h * w,
        threads=threads,
    )
    return step, sources
