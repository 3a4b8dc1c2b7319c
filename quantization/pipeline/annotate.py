"""annotate: a frozen QSpec on every edge that becomes integers, and the reason for every edge that does not."""

from dataclasses import dataclass, field
from difflib import get_close_matches

from megengine.core.dtype import is_float
from megengine.core.errors import OptionError
from megengine.dispatch import QuantRule
from megengine.quantization.pipeline.config import Layer, QuantConfig, select
from megengine.quantization.pipeline.match import mean_over_picture
from megengine.quantization.pipeline.rules import clamp_of, rule_of
from megengine.quantization.pipeline.spec import Fixed, Plain, QSpec, Shared, Weight
from megengine.traced_module.ir.expr import Apply, Constant, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode


@dataclass(slots=True)
class Annotation:
    """What annotate decided, by node name.

    Args:
        edges: spec of every edge that carries integers.
        weights: spec of every constant weight, by name of the layer's output node.
        inside: edges inside one integer kernel (a residual summed before rounding, an input of a clamp): why.
        floating: layers left in float: why.
        nodes: names of all nodes of the graph.
    """

    edges: dict[str, QSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
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
        self.non_negative: set[int] = set()

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
            rule = rule_of(expr.op)
            if id(expr) in self.integer and rule is not None and rule.weight_axis is not None:
                axis = rule.weight_axis(expr.attrs) if self.config.weights == "per_channel" else None
                self.result.weights[expr.outputs[0].name] = Weight(axis, self.config.weight_method, "layer weight")
        self._share_through_concat()
        return self.result

    def _choose_integer_exprs(self) -> None:
        layers = [Layer(e.outputs[0].name, e.op, str(e.meta.get("module", "") or "")) for e in self.exprs]
        excluded = select(self.config.exclude, layers)
        for expr in self.exprs:
            name = expr.outputs[0].name
            reason = f"excluded by {excluded[name]!r}" if name in excluded else self._why_float(expr)
            if reason is None:
                self.integer.add(id(expr))
            else:
                self.result.floating[name] = reason

    def _why_float(self, expr: Apply) -> str | None:
        rule = rule_of(expr.op)
        if rule is None:
            return f"no integer rule for {expr.op}"
        if len(expr.outputs) != 1 or not is_float(expr.outputs[0].spec.dtype):
            return f"{expr.op} does not give one float tensor"
        if (reason := rule.usable(expr.attrs)) is not None:
            return f"{expr.op} stays in float: {reason}"
        return _why_operands_float(expr, rule)

    def _drop_leading_and_trailing(self) -> None:
        """Keep an op without weights in integers only if integers reach it (forward) or leave it (backward)."""
        for expr in self.exprs:
            if id(expr) in self.integer and _kind(expr) != "weighted" and not self._reached(expr):
                self._leave(expr, "no integer layer stands before it")
        for expr in reversed(self.exprs):
            moves = id(expr) in self.integer and _kind(expr) in ("clamp", "shape", "concat")
            if moves and not self._used(expr.output) and not self._feeds_from_layer(expr):
                self._leave(expr, "no integer layer stands after it")

    def _reached(self, expr: Apply) -> bool:
        """True if an integer op makes a value that the op reads, or an integer layer reads one too."""
        data = _data(expr)
        layers = [(u, n) for n in data for u in n.users if id(u) in self.integer and _kind(u) == "weighted"]
        return any(id(n.expr) in self.integer for n in data) or any(u.inputs[0] is n for u, n in layers)

    def _used(self, node: TensorNode) -> bool:
        return any(id(u) in self.integer for u in node.users)

    def _feeds_from_layer(self, expr: Apply) -> bool:
        """A pooled or summed result that goes on in float is rounded anyway; a layer's own float output is not."""
        source = expr.inputs[0]
        return id(source.expr) in self.integer and not (self._is_anchor(source) or mean_over_picture(source.expr))

    def _leave(self, expr: Apply, reason: str) -> None:
        self.integer.discard(id(expr))
        self.result.floating[expr.outputs[0].name] = reason

    def _find_inside_edges(self) -> None:
        for expr in self.exprs:
            if id(expr) not in self.integer:
                continue
            kind = _kind(expr)
            if kind == "clamp" and self._sole(expr.inputs[0], expr):
                if _kind(expr.inputs[0].expr) in ("weighted", "add", "mul", "shape"):
                    self._inside(expr.inputs[0], f"{expr.op} of {expr.outputs[0].name} clamps it in the same kernel")
            elif kind == "add":
                self._inside_add(expr)

    def _inside_add(self, expr: Apply) -> None:
        """Which operand of an add is summed before rounding: a layer's bias, or (R1) a residual's branch."""
        bias = [n for n in expr.inputs if isinstance(n.expr, Constant)]
        branches = [n for n in expr.inputs if self._sole(n, expr) and self._is_anchor(n)]
        if bias:
            if branches:
                self._inside(branches[0], f"bias of {expr.outputs[0].name}")
        elif self.target.residual == "fused" and branches and len(set(map(id, expr.inputs))) == 2:
            last = max(branches, key=lambda n: self.order[id(n.expr)])
            self._inside(last, f"residual: {expr.outputs[0].name} adds before rounding (R1)")

    def _is_anchor(self, node: TensorNode) -> bool:
        """A layer, or a linear layer's bias addition."""
        expr = node.expr
        biased = _kind(expr) == "add" and any(isinstance(n.expr, Constant) for n in expr.inputs)
        return id(expr) in self.integer and (biased or _kind(expr) == "weighted")

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
            nodes = [node for node in _data(expr) if not isinstance(node.expr, Constant)]
            for node in [*nodes, expr.output] if self._rounds(expr.output) else nodes:
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
        inputs = [n for n in expr.inputs if not isinstance(n.expr, Constant)]
        inherits = rule.non_negative == "inherit" and inputs and all(id(n) in self.non_negative for n in inputs)
        clamp = clamp_of(expr.op, expr.attrs)
        if rule.kind == "add" and len(inputs) != len(expr.inputs):
            inherits = False
        if rule.non_negative == "always" or inherits or (clamp and clamp[0] is not None and clamp[0] >= 0):
            self.non_negative.add(id(expr.outputs[0]))

    def _spec(self, node: TensorNode) -> QSpec:
        rule = rule_of(node.expr.op) if isinstance(node.expr, Apply) and id(node.expr) in self.integer else None
        positive = id(node) in self.non_negative
        if rule is not None and rule.fixed is not None:
            return Fixed(rule.fixed, f"{node.expr.op} has a known range")
        if rule is not None and rule.kind == "shape":
            source = node.expr.inputs[0]
            return Shared(source.name, f"{node.expr.op} moves the integers of {source.name}")
        scheme = self.target.non_negative if positive else self.target.signed
        reason = "graph input" if isinstance(node.expr, Input) else "never negative" if positive else "both signs"
        return Plain(scheme, self.config.activations, reason)

    def _share_through_concat(self) -> None:
        """Inputs of a concat that nothing else reads take its scale, so that concat only copies."""
        for expr in reversed(self.exprs):
            if id(expr) not in self.integer or _kind(expr) != "concat":
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


def _kind(expr: Expr) -> str:
    rule = rule_of(expr.op) if isinstance(expr, Apply) else None
    return rule.kind if rule is not None else ""


def _data(expr: Apply) -> tuple[TensorNode, ...]:
    """Inputs that carry data (not weights and biases)."""
    if _kind(expr) == "weighted":
        return expr.inputs[:1]
    return tuple(n for n in expr.inputs if not isinstance(n.expr, Constant))


def _why_operands_float(expr: Apply, rule: QuantRule) -> str | None:
    constant = [isinstance(n.expr, Constant) for n in expr.inputs]
    if any(not is_float(n.spec.dtype) for n in expr.inputs):
        return f"{expr.op} has operands that are not float"
    if rule.kind == "weighted":
        if constant[0] or not all(constant[1:]):
            return f"{expr.op} of two computed tensors has no constant weight"
        return "its weight is not 2-d" if expr.op == "matmul" and len(expr.inputs[1].shape) != 2 else None
    if rule.kind == "add":
        return _why_add_float(expr, constant)
    if any(constant):
        return f"{expr.op} has a constant operand"
    return None


def _why_add_float(expr: Apply, constant: list[bool]) -> str | None:
    a, b = expr.inputs
    if any(constant):
        other = expr.inputs[constant.index(False)] if not all(constant) else a
        bias = expr.inputs[constant.index(True)]
        fits = _kind(other.expr) == "weighted" and bias.shape == (other.shape[-1],)
        linear = isinstance(other.expr, Apply) and other.expr.op == "matmul"
        return None if fits and linear else "it adds a constant that is no layer's bias"
    return None if a.shape == b.shape else f"its operands have different shapes {a.shape} and {b.shape}"
