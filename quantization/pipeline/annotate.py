"""annotate: a frozen QSpec on every edge that becomes integers, and the reason for every edge that does not."""

import functools

import numpy as np

from megengine.core.dtype import QuantizedDType, is_float
from megengine.core.text import counted
from megengine.dispatch import NO_RULE, QuantRule
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.groups import Group, evaluate, groups_of, is_arithmetic
from megengine.quantization.pipeline.masks import (
    ends_of,
    is_score,
    joined_scores,
    least_of,
    masked_scores,
    masked_sums,
    most_of,
    summands,
    why_far,
)
from megengine.quantization.pipeline.match import (
    is_bias,
    is_convolved,
    over_picture,
    why_constants_float,
    why_places_float,
)
from megengine.quantization.pipeline.roots import REASON, around_roots
from megengine.quantization.pipeline.selection import INPUT, Precision, layers_of, precisions, select
from megengine.quantization.pipeline.sequences import weights_of, why_float
from megengine.quantization.pipeline.size_values import reader_of_table, size_values
from megengine.quantization.pipeline.spec import (
    Addend,
    Argument,
    Fixed,
    JoinedScores,
    Known,
    Mask,
    Masked,
    Plain,
    QSpec,
    Shared,
    Weight,
)
from megengine.quantization.pipeline.streams import NARROW, Reading, wide_values
from megengine.quantization.ranges import RangeMethod, dtype_of_values
from megengine.traced_module.ir.expr import Apply, Constant, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.provenance import FLOAT
from megengine.traced_module.passes import constant_value
from megengine.traced_module.passes.linear import bias_place


@kinds_named
def annotate(graph: InternalGraph, config: QuantConfig) -> Annotation:
    """Decide how edges of a canonical graph are quantized. Raises OptionError if an exclude rule selects no layer."""
    return _Annotator(graph, config).run()


_ANYWHERE = ("weighted", "product", "gather", "sequence")  # kinds that are integers whatever stands around them


class _Annotator:
    def __init__(self, graph: InternalGraph, config: QuantConfig) -> None:
        self.graph, self.config, self.target = graph, config, config.target
        self.exprs = [e for e in graph.exprs() if isinstance(e, Apply)]
        self.order = {id(e): i for i, e in enumerate(self.exprs)}
        self.outputs = {id(n) for n in graph.outputs}
        names = frozenset(n.name for n in graph.nodes())
        self.result = Annotation(nodes=names, real_results=not config.target.quantize_outputs)
        self.of_sizes = size_values(graph.inputs, self.exprs)
        self.integer: set[int] = set()
        groups = groups_of(self.exprs)
        self.groups = {id(g.root): g for g in groups}
        self.members = {id(e): g for g in groups for e in g.inside}
        self.rooted = around_roots(self.exprs, groups)
        self.non_negative: set[int] = set()
        self.streams: dict[str, str] = {}

    def run(self) -> Annotation:
        self._choose_integer_exprs()
        self._drop_leading_and_trailing()
        self._find_inside_edges()
        if self.config.wide_sums:
            self.streams = wide_values(Reading(self.exprs, self.integer, self.outputs, self._rule, self._root))
        for expr in self.exprs:
            self._note_sign(expr)
        for node in self._edges():
            if node.name not in self.result.inside:
                self.result.edges[node.name] = self._spec(node)
        for expr in self.exprs:
            if id(expr) not in self.integer:
                continue
            self._note_operands(expr)
        self._share_through_concat()
        return self.result

    def _choose_integer_exprs(self) -> None:
        layers, config = layers_of(self.graph), self.config
        self.result.replaced = {name: layer.name for layer in layers for name in layer.names}
        self.result.precision = precisions(config.general, config.layer_rules, config.exclude, layers)
        excluded = Precision("float", reason="excluded in the model")
        self.result.precision |= {e.outputs[0].name: excluded for e in self.exprs if e.meta.get(FLOAT)}
        included = select(config.include, [layer for layer in layers if layer.op != INPUT], "include")
        for expr in self.exprs:
            if id(expr) in self.members:
                continue
            group = self.groups.get(id(expr))
            names = [e.outputs[0].name for e in ((*group.inside, expr) if group else (expr,))]
            unable = self._why_float(expr)
            reason = self._unwanted(expr, names, included) or unable
            if reason is None:
                self.integer.add(id(expr))
            else:
                self.result.floating.update(dict.fromkeys(names, reason))
            if unable is None and self._rule(expr).weighted:
                self._note_weight(expr)
            elif unable is None and self._rule(expr).scans:
                self._note_sequence(expr)

    def _unwanted(self, expr: Apply, names: list[str], included: dict[str, str]) -> str | None:
        """Why the settings leave an op in float, by the names of its group."""
        chosen = [self.result.precision[name] for name in names]
        for one in chosen:
            if one.activation_bits is None:
                return one.reason or f"precision {one.name}"
        starts = self._kind(expr) in _ANYWHERE
        if starts and self.config.include and not any(name in included for name in names):
            return f"not among {', '.join(map(repr, self.config.include))}"
        return None

    def _note_weight(self, expr: Apply) -> None:
        """The spec of a layer's weight, in integers if the layer is, or alone."""
        name, rule = expr.outputs[0].name, self._rule(expr)
        wanted, config = self.result.precision[name], self.config
        if rule.weight_axis is None or (
            id(expr) not in self.integer and (wanted.activation_bits or not wanted.weight_bits)
        ):
            return
        weight, group = expr.inputs[1].spec, wanted.group
        axis = rule.weight_axis(expr.attrs) if wanted.weights == "per_channel" else None
        reason = f"int{wanted.weight_bits} {wanted.weights.replace('_', ' ')}"
        if group:
            width = weight.size // weight.shape[rule.weight_axis(expr.attrs) or 0]
            fits = width % group == 0 and not rule.transposed
            reason += f", {group} a group" if fits else f"; its sums of {width} have no groups of {group}"
            group = group if fits else 0
        method, scheme = wanted.weight_scheme(config.weight_method)
        self.result.weights[name] = Weight(axis, method, reason, scheme, group)
        if (place := bias_place(expr)) is not None:
            self.result.biases[name] = place[0].output.name, place[1]

    def _note_sequence(self, expr: Apply) -> None:
        """The specs of both weights of a layer over steps: a scale for each row, or one for all."""
        name = expr.outputs[0].name
        specs = weights_of(expr, self.result.precision[name], self.config.weight_method, id(expr) in self.integer)
        if specs:
            self.result.weights[name], self.result.operands[name, 2] = specs

    def _rule(self, expr: Expr) -> QuantRule:
        """What an op is to integers: the rule of its group, or its own."""
        if id(expr) in self.groups:
            return self.groups[id(expr)].rule
        return expr.record.rule if isinstance(expr, Apply) and id(expr) not in self.members else NO_RULE

    def _kind(self, expr: Expr) -> str:
        return self._rule(expr).kind

    def _data(self, expr: Apply) -> tuple[TensorNode, ...]:
        """Inputs that carry data (not weights, biases and indices)."""
        if id(expr) in self.groups:
            return self.groups[id(expr)].data
        if self._kind(expr) in ("weighted", "gather", "sequence"):
            return tuple(n for n in expr.inputs[:1] if not isinstance(n.expr, Constant))
        return tuple(n for n in expr.inputs if not isinstance(n.expr, Constant))

    def _why_float(self, expr: Apply) -> str | None:
        if self._rule(expr).scans:
            return why_float(expr)
        if len(expr.outputs) != 1 or not is_float(expr.outputs[0].spec.dtype):
            return f"{expr.op} does not give one float tensor"
        if empty := [n.name for n in (*expr.outputs, *expr.inputs) if 0 in n.spec.shape]:
            return f"{empty[0]} has no elements, so no range"
        inside = self.groups[id(expr)].inside if id(expr) in self.groups else ()
        masks = [n.name for e in (*inside, expr) for n in e.inputs if n.name in self.of_sizes.not_finite]
        if masks:
            return f"{expr.op} reads {masks[0]}, which follows from sizes alone and holds NaN or infinity"
        if self._is_of_sizes(expr):
            return f"{expr.op} follows from sizes alone, so its range holds for one length only"
        if growing := [n.name for e in (*inside, expr) for n in e.inputs if n.name in self.of_sizes.growing]:
            return f"{expr.op} reads {growing[0]}, which follows from sizes alone and grows with them"
        if any(e.outputs[0].name in self.rooted for e in (*inside, expr)):
            return f"{expr.op} stays in float: {REASON}"
        if (reason := why_places_float((*inside, expr)) or why_far(expr)) is not None:
            return reason
        if id(expr) in self.groups:
            group = self.groups[id(expr)]
            reader = group.inside[0] if group.inside else group.root
            if any(not is_float(n.dtype) for n in group.data):
                return f"{group.root.op} has operands that are not float"
            if group.rule.kind == "product":
                depth = reader.inputs[0].shape[-2 if reader.attrs["transpose_a"] else -1]
                if depth * 255 * 255 >= 2**31 and not any(self._wide(n) for n in group.data):
                    return f"sums of {counted(depth, 'product')} may not fit int32"
                return why_constants_float(reader)
            return None
        rule = expr.record.rule
        if rule.kind in ("", "part"):
            return f"no integer rule for {expr.op}"
        if (reason := rule.usable(expr.attrs)) is not None:
            return f"{expr.op} stays in float: {reason}"
        constant = [isinstance(n.expr, Constant) for n in expr.inputs]
        if rule.kind == "gather":
            rows = constant[0] and is_float(expr.inputs[0].dtype)
            return why_constants_float(expr) if rows else f"{expr.op} of a computed value"
        if any(not is_float(n.spec.dtype) for n in expr.inputs):
            return f"{expr.op} has operands that are not float"
        if rule.weighted:
            return None if not constant[0] and all(constant[1:]) else f"{expr.op} has no constant weight"
        if rule.takes_constants:
            return None if is_bias(expr) else why_constants_float(expr)
        return f"{expr.op} has a constant operand" if any(constant) else None

    def _is_of_sizes(self, expr: Apply) -> bool:
        """True for a value that sizes alone decide; layers of such values (queries, first states) that do not grow
        with the sizes, or are bounded, have a range for all of them.
        """
        name, kind = expr.outputs[0].name, self._kind(expr)
        moved = kind == "shape" and id(expr.inputs[0].expr) in self.integer
        if name not in self.of_sizes.names or kind == "gather" or moved:
            return False
        return kind not in ("weighted", "product") or name in self.of_sizes.growing

    def _drop_leading_and_trailing(self) -> None:
        """Keep an op without weights in integers only if integers reach it (forward) or leave it (backward)."""
        for expr in self.exprs:
            anywhere = self._kind(expr) in _ANYWHERE
            if id(expr) in self.integer and not anywhere and not self._reached(expr):
                self._leave(expr, "no integer layer stands before it")
        judged: set[int] = set()  # ops from whose results choices follow
        for expr in reversed(self.exprs):
            if self._is_judged(expr, judged):
                judged.add(id(expr))
            if id(expr) not in self.integer or self._rule(expr).scans or self._used(expr.output):
                continue
            if id(expr) in judged and self._kind(expr) not in ("function", "softmax") and not is_bias(expr):
                self._leave(expr, "choices follow from it, which steps would change")
            elif self._ends(expr):
                self._leave(expr, "no integer layer stands after it")

    def _is_judged(self, expr: Expr, judged: set[int]) -> bool:
        """True for an op that only choices read (argmin, comparisons, top-k), perhaps behind other such ops."""
        rule, out = self._rule(expr), expr.outputs[0]
        follows = rule.pointwise or rule.averages or rule.kind in ("", "function", "shape", "softmax", "product")
        if not follows or not out.users or id(out) in self.outputs:
            return False
        return all(id(r) in judged or _chooses(r) for r in map(self._root, out.users))

    def _ends(self, expr: Apply) -> bool:
        """True for an op without weights that is computed in float where nothing in integers reads its result.

        Results would be rounded for nothing: boxes and scores that a detector joins had the steps of the boxes.
        """
        kind, rule = self._kind(expr), self._rule(expr)
        if kind in ("softmax", "norm", "gather") or self._interpolates(expr):
            return True
        if self.target.quantize_outputs:  # functions give integers then
            moves = (kind in ("clamp", "shape") or rule.joins) and not self._feeds_from_layer(expr)
            return moves or (kind in ("function", "table") and is_arithmetic(expr))
        if rule.adds:
            return not is_bias(expr)
        if kind in ("clamp", "shape"):
            return not self._feeds_from_layer(expr)
        return kind in ("function", "table", "pair") or rule.joins

    def _reached(self, expr: Apply) -> bool:
        """True if an integer op makes a value that the op reads, or an integer layer reads one too."""
        data = self._data(expr)
        layers = [(u, n) for n in data for u in n.users if id(u) in self.integer and self._has_weights(u)]
        return any(id(n.expr) in self.integer for n in data) or any(u.inputs[0] is n for u, n in layers)

    def _has_weights(self, expr: Expr) -> bool:
        return self._kind(expr) in ("weighted", "sequence")

    def _used(self, node: TensorNode) -> bool:
        return any(id(u) in self.integer or id(self._root(u)) in self.integer for u in node.users)

    def _root(self, expr: Expr) -> Expr:
        """The end of the group to which an op belongs; the op itself outside of groups."""
        group = self.members.get(id(expr))
        return expr if group is None else group.root

    def _feeds_from_layer(self, expr: Apply) -> bool:
        """A pooled or summed result that goes on in float is rounded anyway; that of a layer or function is not."""
        source = expr.inputs[0]
        while self._kind(source.expr) == "shape" and id(source.expr) in self.integer:
            source = source.expr.inputs[0]
        if not isinstance(made := source.expr, Apply) or id(made) not in self.integer:
            return False
        real = self._is_anchor(source) or over_picture(made) or self._interpolates(made)
        return not real and (self.target.quantize_outputs or not self._ends(made))

    def _interpolates(self, expr: Expr) -> bool:
        """True for an op that keeps the scale, but whose results lie between the integers that it reads."""
        return self._kind(expr) == "shape" and isinstance(expr, Apply) and not expr.record.moves

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
        """True for integers that nothing but `user` reads; the results of a sequence its next steps read too."""
        integer = id(node.expr) in self.integer and not self._rule(node.expr).scans
        return integer and id(node) not in self.outputs and all(u is user for u in node.users)

    def _inside(self, node: TensorNode, reason: str) -> None:
        self.result.inside[node.name] = reason

    def _edges(self) -> list[TensorNode]:
        """Edges an integer expr reads or makes, in order; float results of last layers are left out."""
        edges: dict[int, TensorNode] = {}
        for expr in self.exprs:
            if id(expr) not in self.integer:
                continue
            nodes = self._data(expr)
            out = expr.outputs[0]
            for node in (*nodes, out) if self._rounds(out) else nodes:
                edges.setdefault(id(node), node)
        return list(edges.values())

    def _rounds(self, out: TensorNode) -> bool:
        if self._used(out) or (id(out) in self.outputs and self.target.quantize_outputs):
            return True
        return not (self._is_anchor(out) or over_picture(out.expr))

    def _note_sign(self, expr: Apply) -> None:
        rule = expr.record.rule
        inherits = rule.non_negative == "inherit" and all(id(n) in self.non_negative for n in expr.inputs)
        clamp = rule.bounds(expr.attrs)
        if rule.non_negative == "always" or inherits or (clamp and clamp[0] is not None and clamp[0] >= 0):
            self.non_negative.add(id(expr.outputs[0]))

    def _spec(self, node: TensorNode) -> QSpec:
        expr = node.expr
        rule = expr.record.rule if isinstance(expr, Apply) and id(expr) in self.integer else NO_RULE
        positive = id(node) in self.non_negative
        wide = self._wide(node)
        known = None if rule.fixed is None or wide else self.target.fixed(rule.fixed)
        if known is not None:
            reason = f"{node.expr.op} has a known range"
            if self.target.keeps_known:
                return Fixed(known, reason)
            scheme = self.target.signed if known.zero_point or known.qmin < 0 else self.target.non_negative
            return Known(known, reason, scheme, self.config.activations)
        if (table := reader_of_table(node)) is not None:
            return Fixed(self._own_dtype(table, 0), f"part of a constant of {table.outputs[0].name}")
        if (ends := self.of_sizes.bounded.get(node.name)) is not None:
            dtype = dtype_of_values(ends, "s16" if wide else self.target.signed)
            return Fixed(dtype, "sizes alone decide it, and it is bounded")
        narrows = NARROW in node.expr.meta and not wide and self._wide(node.expr.inputs[0])
        if not narrows and (rule.kind == "shape" or (rule is not NO_RULE and node.expr.op in self.target.shares)):
            source = node.expr.inputs[0]
            return Shared(source.name, f"{node.expr.op} moves the integers of {source.name}")
        scheme = self.target.non_negative if positive else self._signed(node)
        reason = "graph input" if isinstance(node.expr, Input) else "never negative" if positive else "both signs"
        if wide:
            return Plain("s16", RangeMethod("minmax"), self.streams.get(node.name, reason))
        if rule.scans:
            return Plain(scheme, self.config.activations, "the state, which the next step reads")
        if (mask := masked_scores(node)) is not None:
            largest = float(sum(np.max(np.asarray(constant_value(n))) for n in mask.constants))
            scores, why = tuple(n.name for n in mask.scores), f"scores behind a mask of {mask.softmax.output.name}"
            parts = tuple(part for n in mask.scores for part in summands(n))
            sure = frozenset(n.name for n in (*mask.scores, *parts) if is_score(n))
            apart = tuple(map(ends_of, parts))
            return Masked(scheme, self.config.activations, why, scores, sure, largest, mask.room, apart)
        if sums := masked_sums(node):
            return Addend(scheme, self.config.activations, reason, tuple((n.name, most_of(other)) for n, other in sums))
        if joined := joined_scores(node):
            parts = tuple(n.name for n in joined if not isinstance(n.expr, Constant))
            return JoinedScores(scheme, self.config.activations, "masked scores and others", parts, least_of(joined))
        if (group := self._function_behind(node)) is not None:
            places = node.shape[group.attrs["axis"]] if group.attrs else 1
            return Argument(scheme, self.config.activations, reason, functools.partial(evaluate, group), places)
        return Plain(scheme, self.config.activations, reason)

    def _signed(self, node: TensorNode) -> str:
        """The scheme of a value of both signs."""
        joins = isinstance(node.expr, Apply) and node.expr.record.rule.joins
        return self.target.joined if joins and self.target.joined and is_convolved(node) else self.target.signed

    def _wide(self, node: TensorNode) -> bool:
        """True for a value that is to have 16 bits, by its own precision or that of the layer that it ends."""
        wanted, readers = self.result.precision.get(node.name), [self.groups.get(id(self._root(u))) for u in node.users]
        if wanted is None or any(group is not None and group.needs_bytes for group in readers):
            return False
        if node.name in self.streams and not wanted.reason.startswith("rule"):
            return True
        inside = [n for n in node.expr.inputs if n.name in self.result.inside]
        if not wanted.reason.startswith("rule") and inside:
            return any(map(self._wide, inside))
        return wanted.activation_bits == 16

    def _function_behind(self, node: TensorNode) -> Group | None:
        """The function, perhaps another at each place of an axis, that alone reads a value."""
        roots = {id(self._root(u)): self._root(u) for u in node.users}
        if len(roots) != 1 or id(node) in self.outputs:
            return None
        (root,) = roots.values()
        group = self.groups.get(id(root)) if id(root) in self.integer else None
        return group if group is not None and group.rule.kind == "function" else None

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
            mask = masked_scores(expr.output) if rule.adds else None
            if rule.joins:
                spec: QSpec = Shared(expr.outputs[0].name, f"{expr.op} {name} copies integers")
            elif mask is not None and len(mask.scores) == 1:
                spec = Mask(mask.scores[0].name, self.target.signed, mask.room, f"mask of {name}")
            else:
                spec = Fixed(self._own_dtype(reader, at), f"constant of {name}")
            self.result.operands[name, at] = spec

    def _own_dtype(self, expr: Apply, at: int) -> QuantizedDType:
        """The dtype of a constant from its own values."""
        scheme = "s16" if self._wide(expr.outputs[0]) else self.target.signed
        return dtype_of_values(constant_value(expr.inputs[at]), scheme)

    def _share_through_concat(self) -> None:
        """Inputs of a concat that nothing else reads take its scale, so that concat only copies."""
        for expr in reversed(self.exprs):
            if id(expr) not in self.integer or not self._rule(expr).joins:
                continue
            out = expr.outputs[0]
            mine = self.result.edges.get(out.name)
            if isinstance(mine, Plain) and mine.derived:
                continue
            for node in expr.inputs:
                theirs = self.result.edges.get(node.name)
                alike = isinstance(mine, Plain | Shared) and isinstance(theirs, Plain)
                same_sign = (id(node) in self.non_negative) == (id(out) in self.non_negative)
                if alike and same_sign and self._wide(node) == self._wide(out) and self._sole(node, expr):
                    sources = {spec.source for spec in self.result.edges.values() if isinstance(spec, Shared)}
                    if node.name in sources:
                        continue
                    self.result.edges[node.name] = Shared(out.name, f"concat {out.name} copies integers")


def _chooses(expr: Expr) -> bool:
    """True for an op that reads numbers, and gives indices or truth values, perhaps beside the numbers (top-k)."""
    used = [n for n in expr.outputs if n.users or any(n is one for one in n.graph.outputs)]
    return isinstance(expr, Apply) and any(not is_float(n.dtype) for n in used)
