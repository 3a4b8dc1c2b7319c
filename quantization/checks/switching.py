"""Switches of a quantized network: each rounded edge, weight and bias alone in integers or alone in float.

A switchboard holds the quantize / dequantize graph and the float values that stand for its rounded constants. A sample
is run once all in float and once all in integers; what a switch changes is computed from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.dispatch import apply
from megengine.quantization.ranges import as_tensors
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.ir.expr import Apply, Constant, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node
from megengine.traced_module.sizes import has_open_axes, specialised

KINDS = ("weights", "activations", "bias")
"""What a switch rounds."""


BOUNDED = "bounded"
"""Mark of a pair whose range leaves out values on purpose, such as those of a mask."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One rounding: of an edge (by its name) or of a constant that the layer `name` reads."""

    kind: str
    name: str


Values = dict[str, Tensor]


@dataclass(slots=True)
class Switchboard:
    """All switches of a network, and the layers to which they belong.

    Args:
        exact: the canonical float graph.
        rounded: its quantize / dequantize form, with the same node names.
    """

    exact: InternalGraph
    rounded: InternalGraph
    edges: dict[str, Apply] = field(init=False)
    constants: dict[str, tuple[Switch, Tensor]] = field(init=False)
    layers: dict[str, Apply] = field(init=False)
    steps: list[tuple[Expr, Switch | None]] = field(init=False)
    _at: dict[tuple, Switchboard] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        exprs = [e for e in self.rounded.exprs() if isinstance(e, Apply)]
        self.edges = {e.meta["edge"]: e for e in exprs if e.record.dequantizes and "edge" in e.meta}
        floats = {e.outputs[0].name: e for e in self.exact.exprs() if isinstance(e, Apply)}
        self.layers, self.constants = {}, {}
        for expr in exprs:
            twin = floats.get(expr.outputs[0].name)
            if twin is not None and twin.op == expr.op:
                self._note_constants(expr, twin)
        self.steps = [(e, self._switch(e)) for e in self.rounded.exprs() if not isinstance(e, Input)]

    def _note_constants(self, expr: Apply, twin: Apply) -> None:
        """A constant of a layer that is stored as integers is its weight, another one that differs its bias."""
        for at, node in enumerate(expr.inputs):
            name = expr.outputs[0].name
            stored = _stored(node) is not None
            if at < len(twin.inputs) and not isinstance(twin.inputs[at].expr, Constant):
                continue
            if stored:
                self.constants[node.name] = Switch("weights", name), twin.inputs[at].expr.value
                self.layers[name] = expr
            elif isinstance(node.expr, Constant) and (made := _float_constant(twin, at, node)) is not None:
                self.constants[node.name] = Switch("bias", name), made

    def _switch(self, expr: Expr) -> Switch | None:
        """The switch of an edge's pair or of a constant."""
        name, edge = expr.outputs[0].name, expr.meta.get("edge")
        if name in self.constants:
            return self.constants[name][0]
        if not isinstance(expr, Apply):
            return None
        if expr.record.rule.scans and name in self.edges:  # it rounds its state in each step
            return Switch("activations", name)
        pair = expr.record.quantizes or expr.record.dequantizes
        return Switch("activations", str(edge)) if pair and edge in self.edges else None

    def weight_of(self, layer: str) -> tuple[np.ndarray, Tensor]:
        """The first weight of a layer, in float and as it is stored: a table is the first operand of its look-up."""
        node = next(n for n in self.layers[layer].inputs if n.name in self.constants and _stored(n) is not None)
        stored, exact = _stored(node), self.constants[node.name][1].numpy()
        assert stored is not None, layer
        turned = isinstance(node.expr, Apply) and "perm" in node.expr.attrs
        return (exact.T if turned else exact).reshape(stored.shape), stored

    @property
    def switches(self) -> list[Switch]:
        """Every switch, edges in order of execution first."""
        edges = [Switch("activations", name) for name in self.edges]
        return [*edges, *(switch for switch, _ in self.constants.values())]

    def owner(self, name: str) -> str:
        """The layer to which an edge or a constant belongs: the last weighted layer before it without an edge between.

        An edge that no layer alone makes belongs to itself.
        """
        node, found = self.rounded.node(name), []
        todo = [node]
        while todo:
            one = todo.pop()
            expr = one.expr
            if one.name in self.layers:
                found.append(one.name)
            elif isinstance(expr, Apply) and not expr.record.dequantizes:
                todo += [n for n in expr.inputs if not isinstance(n.expr, Constant)]
        return found[0] if len(found) == 1 else name

    def units(self) -> dict[str, list[Switch]]:
        """Switches by the layer that they belong to, in order of execution."""
        groups: dict[str, list[Switch]] = {}
        for switch in self.switches:
            groups.setdefault(self.owner(switch.name), []).append(switch)
        order = {node.name: i for i, node in enumerate(self.rounded.nodes())}
        return dict(sorted(groups.items(), key=lambda item: order[item[0]]))

    def sample(self, arrays: Sequence[np.ndarray]) -> Sample:
        """Run one batch of inputs in float and in integers."""
        shapes = tuple(array.shape for array in arrays)
        board = self
        if has_open_axes(self.rounded):
            if shapes not in self._at:
                exact, rounded = (specialised(graph, shapes) for graph in (self.exact, self.rounded))
                self._at[shapes] = Switchboard(exact, rounded)
            board = self._at[shapes]
        return Sample(board, as_tensors(arrays, board.rounded))


def _stored(node: Node) -> Tensor | None:
    """The integers of a constant operand, which may be stored in another shape than it is read."""
    expr = node.expr
    while isinstance(expr, Apply) and expr.record.rule.moves:
        expr = expr.inputs[0].expr
    if not isinstance(expr, Apply) or not expr.record.dequantizes or "edge" in expr.meta:
        return None
    source = expr.inputs[0].expr
    return source.value if isinstance(source, Constant) else None


def _float_constant(twin: Apply, at: int, node: Node) -> Tensor | None:
    """The float value of a constant; None if nothing was changed. A bias that correction added was 0."""
    value = node.expr.value
    if at >= len(twin.inputs):
        return Tensor(np.zeros(value.shape, np.float32))
    old = twin.inputs[at].expr.value
    return None if np.array_equal(old.numpy(), value.numpy()) else old


class Sample:
    """One input: every value in float and in integers, and what comes out with some switches turned."""

    def __init__(self, board: Switchboard, inputs: Sequence[Tensor]) -> None:
        self.board = board
        self.integers = _every_value(board.rounded, inputs)
        self.floats: Values = {
            n.name: self.integers[n.name] for e in board.rounded.exprs() for n in e.outputs if isinstance(e, Input)
        }
        self._run(self.floats, {}, frozenset(), every=True)

    def turned_on(self, switches: Iterable[Switch]) -> list[np.ndarray]:
        """The outputs with these switches alone in integers."""
        return self._outputs(self._run(dict(self.floats), self.floats, frozenset(switches)))

    def turned_off(self, switches: Iterable[Switch]) -> list[np.ndarray]:
        """The outputs with these switches alone in float."""
        on = frozenset(self.board.switches) - frozenset(switches)
        return self._outputs(self._run(dict(self.integers), self.integers, on, before=frozenset(self.board.switches)))

    @property
    def exact(self) -> list[np.ndarray]:
        """The outputs of the float network."""
        return self._outputs(self.floats)

    @property
    def rounded(self) -> list[np.ndarray]:
        """The outputs of the network with everything rounded."""
        return self._outputs(self.integers)

    def layer(self, name: str, *kinds: str) -> np.ndarray:
        """The (first) output of one layer on the float network's values, with some of its operands rounded."""
        expr = self.board.layers[name]
        operands = [self._operand(node, kinds) for node in expr.inputs]
        made = apply(expr.op, *operands, **dict(expr.attrs))
        return (made[0] if isinstance(made, tuple | list) else made).numpy()

    def edge(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The float network's value of an edge, before and after rounding."""
        quantize = self.board.edges[name].inputs[0].expr
        exact = self.floats[quantize.inputs[0].name]
        stored = apply("quantize", exact, **dict(quantize.attrs))
        return exact.numpy(), apply("dequantize", stored).numpy()

    def _operand(self, node: Node, kinds: Sequence[str]) -> Tensor:
        if node.name in self.board.constants:
            switch, exact = self.board.constants[node.name]
            return self.integers[node.name] if switch.kind in kinds else exact
        if "activations" in kinds and isinstance(node.expr, Apply) and node.expr.meta.get("edge") in self.board.edges:
            return Tensor(self.edge(node.expr.meta["edge"])[1])
        return self.floats[node.name]

    def _outputs(self, values: Values) -> list[np.ndarray]:
        return [values[node.name].numpy() for node in self.board.rounded.outputs]

    def _run(
        self,
        values: Values,
        known: Values,
        on: frozenset[Switch],
        *,
        before: frozenset[Switch] = frozenset(),
        every: bool = False,
    ) -> Values:
        """Compute what differs from `known`, where the switches of `before` are on; write it into `values`."""
        changed: set[str] = set()
        for expr, switch in self.board.steps:
            turned = every or (switch is not None and (switch in on) != (switch in before))
            if not turned and not any(node.name in changed for node in expr.inputs):
                continue
            if isinstance(expr, Apply) and expr.record.quantizes and switch is not None and switch not in on:
                changed.add(expr.output.name)  # what passes it by
                continue
            results = self._computed(expr, switch, values, on)
            for node, value in zip(expr.outputs, results, strict=True):
                if every or value is not known.get(node.name):
                    values[node.name] = value
                    changed.add(node.name)
        return values

    def _computed(self, expr: Expr, switch: Switch | None, values: Values, on: frozenset[Switch]) -> Sequence[Any]:
        name = expr.outputs[0].name
        off = switch is not None and switch not in on
        if isinstance(expr, Apply) and expr.record.rule.scans:
            made_by = self.board.exact.node(name).expr if off else expr
            attrs = dict(made_by.attrs) if isinstance(made_by, Apply) else {}
            return apply(expr.op, *(values[node.name] for node in expr.inputs), **attrs)
        if switch is not None and off:
            if switch.kind == "activations":
                return [values[self.board.edges[switch.name].inputs[0].expr.inputs[0].name]]
            return [self.board.constants[name][1]]
        if not isinstance(expr, Apply):
            return [expr.value]
        result = apply(expr.op, *(values[node.name] for node in expr.inputs), **dict(expr.attrs))
        return result if isinstance(result, tuple | list) else [result]


def _every_value(graph: InternalGraph, inputs: Sequence[Tensor]) -> Values:
    values: Values = {}

    def keep(node: Any, value: Tensor) -> None:
        values[node.name] = value

    interpret(graph, inputs, on_value=keep)
    return values
