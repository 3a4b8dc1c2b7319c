"""Residual streams: sums that norms and further sums read, and nothing that multiplies them with weights."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from megengine.dispatch import QuantRule
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.groups import groups_of
from megengine.quantization.pipeline.match import is_bias
from megengine.traced_module.editing.rewiring import set_inputs
from megengine.traced_module.ir.expr import Apply, Expr
from megengine.traced_module.ir.graph import InternalGraph

REASON = "16 bits: a sum that norms and further sums alone read"
OPERAND = "16 bits: sums of 16 bits read it"
NARROW = "narrow"  # mark of the transpositions that `part_norms` adds


@dataclass(frozen=True, slots=True)
class Reading:
    """How the ops of a network are read: `integer` has the ids of those that become integers, groups by their ends,
    `outputs` those of the results; `rule` says what an op is to integers, `root` which group's end it belongs to.
    """

    exprs: list[Apply]
    integer: Collection[int]
    outputs: Collection[int]
    rule: Callable[[Expr], QuantRule]
    root: Callable[[Expr], Expr]

    def readers(self, expr: Apply) -> list[Expr] | None:
        """The ops that read a sum, or what becomes integers; None if it is a result of the network."""
        if id(expr.output) in self.outputs or not (id(expr) in self.integer or self.sums(expr)):
            return None
        return list({id(r): r for r in map(self.root, expr.output.users)}.values())

    def sums(self, expr: Expr) -> bool:
        """True for a sum, in float too, as behind the last layers."""
        return self.rule(expr).adds and not is_bias(expr)


def wide_values(network: Reading) -> dict[str, str]:
    """Names of the values that are to have 16 bits, with the reasons: residual sums, and what only these read."""
    sums = _residual_sums(network)
    return dict.fromkeys(_operands(network, sums), OPERAND) | dict.fromkeys(sums, REASON)


def _residual_sums(network: Reading) -> set[str]:
    """All that reads such a sum is a norm or a sum, in float too, and a norm stands at the end of one
    of the ways through sums of the same kind. What a layer or a function reads besides is none.
    """
    found: set[str] = set()
    for expr in reversed(network.exprs):
        readers = network.readers(expr) if network.sums(expr) else None
        if readers is None:
            continue
        norms = [network.rule(r).kind == "norm" for r in readers]
        ends = any(norms) or any(r.outputs[0].name in found for r in readers)
        if ends and all(norm or network.sums(r) for norm, r in zip(norms, readers, strict=True)):
            found.add(expr.output.name)
    return found


def _operands(network: Reading, sums: Collection[str]) -> set[str]:
    """Values that only such sums read, be they moved or joined: results of layers and norms, and joined ones.

    A token of small numbers that is joined with those of a picture would have the step of theirs, and a norm brings all
    to one size afterwards.
    """
    found = set(sums)
    for expr in reversed(network.exprs):
        rule, readers = network.rule(expr), network.readers(expr)
        made = rule.weighted or rule.kind == "norm" or is_bias(expr)
        if readers and (made or rule.joins or rule.moves) and NARROW not in expr.meta:
            wide = [r.outputs[0].name in found for r in readers]
            if any(wide) and all(a or NARROW in r.meta for a, r in zip(wide, readers, strict=True)):
                found.add(expr.output.name)
    for expr in network.exprs:  # what is moved has the integers of its source
        if network.rule(expr).moves and expr.inputs[0].name not in found:
            found.discard(expr.outputs[0].name)
    return found - set(sums)


def part_norms(graph: InternalGraph, annotation: Annotation) -> dict[str, str]:
    """Part what residual sums of 16 bits read of a norm from what others read, which has 8 bits, by transpositions that
    move nothing. Names of these, with those of the norms.
    """
    sums = {name for name, spec in annotation.edges.items() if getattr(spec, "reason", "") == REASON}
    exprs = [e for e in graph.exprs() if isinstance(e, Apply)]
    sums |= {e.output.name for e in exprs if e.record.rule.adds and e.outputs[0].name in annotation.floating}
    outputs, parted = {id(n) for n in graph.outputs}, {}
    for norm in (group.root.output for group in groups_of(exprs) if group.rule.kind == "norm"):
        others = [u for u in norm.users if NARROW not in u.meta and u.outputs[0].name not in sums]
        if not others or len(others) == len(norm.users) or id(norm) in outputs or norm.name not in annotation.edges:
            continue
        meta = {**norm.meta, NARROW: "layers read 8 bits"}
        perm = {"perm": tuple(range(len(norm.shape)))}
        narrow = graph.apply("transpose", norm, attrs=perm, name=f"{norm.name}_narrow", after=norm.expr, meta=meta)
        for user in others:
            set_inputs(user, tuple(narrow if n is norm else n for n in user.inputs))
        parted[narrow.name] = norm.name
    return parted
