"""annotate: a frozen QSpec on every edge that becomes integers, and the reason for every edge that does not."""

from dataclasses import dataclass, field
from difflib import get_close_matches

import numpy as np

from megengine.core.dtype import QuantizedDType, is_float
from megengine.core.errors import OptionError
from megengine.core.text import counted
from megengine.dispatch import QuantRule
from megengine.quantization.pipeline.config import Layer, QuantConfig, select
from megengine.quantization.pipeline.groups import groups_of, is_arithmetic
from megengine.quantization.pipeline.match import is_bias, mean_over_picture
from megengine.quantization.pipeline.rules import NO_RULE, clamp_of, rule_of
from megengine.quantization.pipeline.spec import Fixed, Plain, QSpec, Shared, Weight
from megengine.quantization.ranges import RangeMethod, TensorStatistics, activation_dtype
from megengine.traced_module.ir.expr import Apply, Constant, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value
from megengine.traced_module.passes.fold_constants import fold_constants
from megengine.traced_module.sizes import has_open_axes, specialised


@dataclass(slots=True)
class Annotation:
    """What annotate decided, by node name.

    Args:
        edges: spec of every edge that carries integers.
        weights: spec of every constant weight, by name of the layer's output node.
        operands: spec of every other constant that integer ops read, by name of the op's result and place.
        inside: edges inside one integer kernel (a residual summed before rounding, an input of a clamp): why.
        floating: layers left in float: why.
        nodes: names of all nodes of the graph.
    """

    edges: dict[str, QSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    operands: dict[tuple[str, int], QSpec] = field(default_factory=dict)
    inside: dict[str, str] = field(default_factory=dict)
    floating: dict[str, str] = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()

    def explain(self, name: str) -> str:
        """Why an edge is as it is, in one line. Raises OptionError if no node has that name."""
        if name not in self.nodes:
            close = get_close_matches(str(name)[:100], self.nodes, n=3)
            hint = f"; nearest: {', '.join(close)}" if close else ""
            raise OptionError(
                f"explain: no node {name!r} among the {len(self.nodes)} of the graph that was annotated{hint}"
            )
        if name in self.edges:
            spec = self.edges[name]
            return f"{name}: {type(spec).__name__.lower()} ({spec.reason})"
        if name in self.inside:
            return f"{name}: no rounding here ({self.inside[name]})"
        return f"{name}: float ({self.floating.get(name, 'no integer layer reads or makes it')})"


def annotate(graph: InternalGraph, config: QuantConfig) -> Annotation:
    """Decide how edges of a canonical graph are quantized. Raises OptionError if an exclude rule selects no layer."""
    return _Annotator(graph, config).run()


class _Annotator:
    def __init__(self, graph: InternalGraph, config: QuantConfig) -> None:
        self.graph, self.config, self.target = graph, config, config.target
        self.exprs = [e for e in graph.exprs() if isinstance(e, Apply)]
        self.order = {id(e): i for i, e in enumerate(self.exprs)}
        self.outputs = {id(n) for n in graph.outputs}
        self.result = Annotation(nodes=frozenset(n.name for n in graph.nodes()))
        self.integer: set[int] = set()
        groups = groups_of(self.exprs)
        self.groups = {id(g.root): g for g in groups}
        self.members = {id(e): g for g in groups for e in g.inside}
        self.non_negative: set[int] = set()
        self.not_finite = _not_finite(graph)

    def run(self) -> Annotation:
        self._choose_integer_exprs()
        self._drop_leading_and_trailing()
        self._find_inside_edges()
        for expr in self.exprs:
            self._note_sign(expr)
        for node in self._edges():
            if node.name not in self.result.inside:
                self.result.edges[node.name] = self._spec(node)
        for expr in self.exprs:
            if id(expr) not in self.integer:
                continue
            self._note_operands(expr)
            rule = self._rule(expr)
            if rule.weighted and rule.weight_axis is not None:
                axis = rule.weight_axis(expr.attrs) if self.config.weights == "per_channel" else None
                self.result.weights[expr.outputs[0].name] = Weight(axis, self.config.weight_method, "layer weight")
        self._share_through_concat()
        return self.result

    def _choose_integer_exprs(self) -> None:
        layers = [Layer(e.outputs[0].name, e.op, str(e.meta.get("module", "") or "")) for e in self.exprs]
        excluded = select(self.config.exclude, layers)
        for expr in self.exprs:
            if id(expr) in self.members:
                continue
            group = self.groups.get(id(expr))
            names = [e.outputs[0].name for e in ((*group.inside, expr) if group else (expr,))]
            rules = [f"excluded by {excluded[name]!r}" for name in names if name in excluded]
            reason = rules[0] if rules else self._why_float(expr)
            if reason is None:
                self.integer.add(id(expr))
            else:
                self.result.floating.update(dict.fromkeys(names, reason))

    def _rule(self, expr: Expr) -> QuantRule:
        """What an op is to integers: the rule of its group, or its own."""
        if id(expr) in self.groups:
            return self.groups[id(expr)].rule
        return (rule_of(expr.op) if isinstance(expr, Apply) and id(expr) not in self.members else None) or NO_RULE

    def _kind(self, expr: Expr) -> str:
        return self._rule(expr).kind

    def _data(self, expr: Apply) -> tuple[TensorNode, ...]:
        """Inputs that carry data (not weights, biases and indices)."""
        if id(expr) in self.groups:
            return self.groups[id(expr)].data
        if self._kind(expr) in ("weighted", "gather"):
            return tuple(n for n in expr.inputs[:1] if not isinstance(n.expr, Constant))
        return tuple(n for n in expr.inputs if not isinstance(n.expr, Constant))

    def _why_float(self, expr: Apply) -> str | None:
        if len(expr.outputs) != 1 or not is_float(expr.outputs[0].spec.dtype):
            return f"{expr.op} does not give one float tensor"
        inside = self.groups[id(expr)].inside if id(expr) in self.groups else ()
        masks = [n.name for e in (*inside, expr) for n in e.inputs if n.name in self.not_finite]
        if masks:
            return f"{expr.op} reads {masks[0]}, which follows from sizes alone and holds NaN or infinity"
        if id(expr) in self.groups:
            group = self.groups[id(expr)]
            reader = group.inside[0] if group.inside else group.root
            if any(not is_float(n.dtype) for n in group.data):
                return f"{group.root.op} has operands that are not float"
            if group.rule.kind == "product":
                depth = reader.inputs[0].shape[-2 if reader.attrs["transpose_a"] else -1]
                if depth * 255 * 255 >= 2**31:
                    return f"sums of {counted(depth, 'product')} may not fit int32"
                return _why_constants_float(reader)
            return None
        rule = rule_of(expr.op)
        if rule is None or rule.kind == "part":
            return f"no integer rule for {expr.op}"
        if (reason := rule.usable(expr.attrs)) is not None:
            return f"{expr.op} stays in float: {reason}"
        constant = [isinstance(n.expr, Constant) for n in expr.inputs]
        if rule.kind == "gather":
            rows = constant[0] and is_float(expr.inputs[0].dtype)
            return _why_constants_float(expr) if rows else f"{expr.op} of a computed value"
        if any(not is_float(n.spec.dtype) for n in expr.inputs):
            return f"{expr.op} has operands that are not float"
        if rule.weighted:
            return None if not constant[0] and all(constant[1:]) else f"{expr.op} has no constant weight"
        if rule.takes_constants:
            return None if is_bias(expr) else _why_constants_float(expr)
        return f"{expr.op} has a constant operand" if any(constant) else None

    def _drop_leading_and_trailing(self) -> None:
        """Keep an op without weights in integers only if integers reach it (forward) or leave it (backward)."""
        for expr in self.exprs:
            anywhere = self._kind(expr) in ("weighted", "product", "gather")
            if id(expr) in self.integer and not anywhere and not self._reached(expr):
                self._leave(expr, "no integer layer stands before it")
        for expr in reversed(self.exprs):
            if id(expr) not in self.integer or self._used(expr.output):
                continue
            kind = self._kind(expr)
            moves = (kind in ("clamp", "shape") or self._rule(expr).joins) and not self._feeds_from_layer(expr)
            if moves or kind in ("softmax", "norm", "gather") or (kind == "function" and is_arithmetic(expr)):
                self._leave(expr, "no integer layer stands after it")

    def _reached(self, expr: Apply) -> bool:
        """True if an integer op makes a value that the op reads, or an integer layer reads one too."""
        data = self._data(expr)
        layers = [(u, n) for n in data for u in n.users if id(u) in self.integer and self._kind(u) == "weighted"]
        return any(id(n.expr) in self.integer for n in data) or any(u.inputs[0] is n for u, n in layers)

    def _used(self, node: TensorNode) -> bool:
        return any(id(u) in self.integer or id(self._root(u)) in self.integer for u in node.users)

    def _root(self, expr: Expr) -> Expr:
        """The end of the group to which an op belongs; the op itself outside of groups."""
        group = self.members.get(id(expr))
        return expr if group is None else group.root

    def _feeds_from_layer(self, expr: Apply) -> bool:
        """A pooled or summed result that goes on in float is rounded anyway; a layer's own float output is not."""
        source = expr.inputs[0]
        return id(source.expr) in self.integer and not (self._is_anchor(source) or mean_over_picture(source.expr))

    def _leave(self, expr: Apply, reason: str) -> None:
        self.integer.discard(id(expr))
        group = self.groups.get(id(expr))
        for one in (*(group.inside if group else ()), expr):
            self.result.floating[one.outputs[0].name] = reason

    def _find_inside_edges(self) -> None:
        for expr in self.exprs:
            if id(expr) not in self.integer:
                continue
            kind = self._kind(expr)
            for one in self.groups[id(expr)].inside if id(expr) in self.groups else ():
                self._inside(one.output, f"it is part of {expr.outputs[0].name}")
            if kind == "clamp" and self._sole(expr.inputs[0], expr):
                before = self._rule(expr.inputs[0].expr)
                if before.clamps or before.kind == "shape":
                    self._inside(expr.inputs[0], f"{expr.op} of {expr.outputs[0].name} clamps it in the same kernel")
            elif self._rule(expr).adds:
                self._inside_add(expr)

    def _inside_add(self, expr: Apply) -> None:
        """Which operand of an add is summed before rounding: a layer's bias, or (R1) a residual's branch."""
        branches = [n for n in expr.inputs if self._sole(n, expr) and self._is_anchor(n)]
        if is_bias(expr):
            if branches:
                self._inside(branches[0], f"bias of {expr.outputs[0].name}")
            return
        branches = [n for n in branches if self._kind(n.expr) != "product"]
        alike = len(set(map(id, expr.inputs))) == 2 and expr.inputs[0].shape == expr.inputs[1].shape
        if self.target.residual == "fused" and branches and alike:
            last = max(branches, key=lambda n: self.order[id(n.expr)])
            self._inside(last, f"residual: {expr.outputs[0].name} adds before rounding (R1)")

    def _is_anchor(self, node: TensorNode) -> bool:
        """A layer or product, or a linear layer's bias addition."""
        anchors = is_bias(node.expr) or self._kind(node.expr) in ("weighted", "product")
        return id(node.expr) in self.integer and anchors

    def _sole(self, node: TensorNode, user: Expr) -> bool:
        made = id(node.expr) in self.integer
        return made and id(node) not in self.outputs and all(u is user for u in node.users)

    def _inside(self, node: TensorNode, reason: str) -> None:
        self.result.inside[node.name] = reason

    def _edges(self) -> list[TensorNode]:
        """Edges an integer expr reads or makes, in order; float results of last layers are left out."""
        found: dict[int, TensorNode] = {}
        for expr in self.exprs:
            if id(expr) not in self.integer:
                continue
            nodes = self._data(expr)
            for node in (*nodes, expr.output) if self._rounds(expr.output) else nodes:
                found.setdefault(id(node), node)
        return list(found.values())

    def _rounds(self, out: TensorNode) -> bool:
        if self._used(out) or (id(out) in self.outputs and self.target.quantize_outputs):
            return True
        return not (self._is_anchor(out) or mean_over_picture(out.expr))

    def _note_sign(self, expr: Apply) -> None:
        rule = rule_of(expr.op)
        if rule is None:
            return
        inherits = rule.non_negative == "inherit" and all(id(n) in self.non_negative for n in expr.inputs)
        clamp = clamp_of(expr.op, expr.attrs)
        if rule.non_negative == "always" or inherits or (clamp and clamp[0] is not None and clamp[0] >= 0):
            self.non_negative.add(id(expr.outputs[0]))

    def _spec(self, node: TensorNode) -> QSpec:
        expr = node.expr
        rule = rule_of(expr.op) if isinstance(expr, Apply) and id(expr) in self.integer else None
        positive = id(node) in self.non_negative
        if rule is not None and rule.fixed is not None:
            return Fixed(rule.fixed, f"{node.expr.op} has a known range")
        if isinstance(expr, Apply) and id(expr) in self.integer and self._kind(expr) == "gather":
            return Fixed(self._own_dtype(expr, 0), f"rows of a constant of {node.name}")
        if rule is not None and rule.kind == "shape":
            source = node.expr.inputs[0]
            return Shared(source.name, f"{node.expr.op} moves the integers of {source.name}")
        scheme = self.target.non_negative if positive else self.target.signed
        reason = "graph input" if isinstance(node.expr, Input) else "never negative" if positive else "both signs"
        return Plain(scheme, self.config.activations, reason)

    def _note_operands(self, expr: Apply) -> None:
        """Constants that are quantized like edges: operands of sums, products, concatenations, tables of rows."""
        rule = self._rule(expr)
        if not rule.takes_constants or is_bias(expr):
            return
        group = self.groups.get(id(expr))
        reader = group.inside[0] if group is not None and group.inside else expr
        for at, node in enumerate(reader.inputs):
            if not isinstance(node.expr, Constant) or not is_float(node.dtype):
                continue
            name = reader.outputs[0].name
            if rule.joins:
                spec: QSpec = Shared(expr.outputs[0].name, f"concat {name} copies integers")
            else:
                spec = Fixed(self._own_dtype(reader, at), f"constant of {name}")
            self.result.operands[name, at] = spec

    def _own_dtype(self, expr: Apply, at: int) -> QuantizedDType:
        """The dtype of a constant from its own values."""
        stats = TensorStatistics(expr.outputs[0].name)
        stats.update(np.asarray(constant_value(expr.inputs[at]), np.float32))
        return activation_dtype(stats, RangeMethod("minmax"), self.target.signed)

    def _share_through_concat(self) -> None:
        """Inputs of a concat that nothing else reads take its scale, so that concat only copies."""
        for expr in reversed(self.exprs):
            if id(expr) not in self.integer or not self._rule(expr).joins:
                continue
            out = expr.outputs[0]
            mine = self.result.edges.get(out.name)
            for node in expr.inputs:
                theirs = self.result.edges.get(node.name)
                alike = isinstance(mine, Plain | Shared) and isinstance(theirs, Plain)
                same_sign = (id(node) in self.non_negative) == (id(out) in self.non_negative)
                if alike and same_sign and self._sole(node, expr):
                    sources = {spec.source for spec in self.result.edges.values() if isinstance(spec, Shared)}
                    if node.name in sources:
                        continue
                    self.result.edges[node.name] = Shared(out.name, f"concat {out.name} copies integers")


def _not_finite(graph: InternalGraph) -> set[str]:
    """Values that sizes alone decide, such as the mask of a decoder, and that are not finite at the example."""
    if not has_open_axes(graph):
        return set()
    example = specialised(graph, [n.spec.example.shape for n in graph.inputs])
    fold_constants(example)
    known = {e.name: e.value.numpy() for e in example.exprs() if isinstance(e, Constant) and is_float(e.output.dtype)}
    return {
        n.name
        for n in graph.nodes()
        if not isinstance(n.expr, Constant) and n.name in known and not np.isfinite(known[n.name]).all()
    }


def _why_constants_float(expr: Apply) -> str | None:
    values = [constant_value(n) for n in expr.inputs if isinstance(n.expr, Constant)]
    if all(value is not None and np.isfinite(value).all() for value in values):
        return None
    return f"a constant of {expr.op} holds NaN or infinity"
