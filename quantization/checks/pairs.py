"""Two networks value by value: where the second one leaves the first, whatever each of them computes in."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, is_float
from megengine.core.errors import QuantizationError, ShapeError, listed
from megengine.core.text import counted
from megengine.dispatch import apply
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.checks.analysis import Agreement, finite, same_places
from megengine.quantization.ranges import Progress, as_batches, as_tensors
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import STAND_INS
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.affine_maps import form_of

_ALSO = ("", *STAND_INS)  # what stands for a value in a quantized network
_FOLDS = {"fold_batch_norm", "fold_affine"}
_CONVERSIONS = {"quantize", "dequantize"}


@dataclass(frozen=True, slots=True)
class ValuePair:
    """One value of both networks: its node in the first, its name in the second, and how like they are."""

    name: str
    other: str
    op: str
    module: str
    sqnr_db: float
    cosine: float
    largest_error: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `compare_values`.

    Args:
        values: values of the first network that the second has too, in order of execution.
        missing: how many computed values of the first it does not have.
        output_sqnr_db, output_cosine, output_agreement: of the results; the agreement is the share of samples whose
            largest value stands at the same place, None for results that are no rows.
        batches: inputs that were run.
        output_samples: rows of the results by which the agreement is counted.
        unseen: for values that are compared, what each network computes before them, back to other such values, that
            the other one lacks; both have some, so that a layer which was fused is none.
    """

    values: tuple[ValuePair, ...]
    missing: int
    output_sqnr_db: float
    output_cosine: float
    output_agreement: float | None
    batches: int
    output_samples: int = 0
    unseen: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)

    @property
    def steepest(self) -> ValuePair | None:
        """The value at which most noise comes in, relative to the values, seen from 60 dB.

        A fall of the ratio that the next value takes back is none: of scores behind a mask the masked ones differ, and
        a softmax makes 0 of them.
        """
        worst, before, found = 0.0, 1e-6, None
        for one, following in zip(self.values, (*self.values[1:], None), strict=True):
            ratio = min(max(one.sqnr_db, one.sqnr_db if following is None else following.sqnr_db), 60.0)
            here = 10 ** (-ratio / 10)
            if here - before > worst:
                worst, found = here - before, one
            before = here
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers; infinities become None."""
        return finite({**asdict(self), "steepest": None if self.steepest is None else self.steepest.name})


@kinds_named
def compare_values(
    first: InternalGraph, second: InternalGraph, batches: Iterable[Any], *, progress: Progress | None = None
) -> Comparison:
    """Run two networks of ops on the same inputs and compare values of the same names; integers count as real numbers.

    Raises:
        ShapeError: the networks take or give other shapes, or other numbers of them.
        QuantizationError: a value that is compared, or a result, is NaN.
    """
    _check_ends(first, second)
    pairs = _pairs(first, second)
    sums = {name: Agreement() for name in pairs}
    back = {other: name for name, other in pairs.items()}
    outputs, same, done = Agreement(), [], 0
    for arrays in as_batches(batches, first):
        values: dict[str, np.ndarray] = {}

        def keep(node: Any, value: Tensor, values: dict = values) -> None:
            if node.name in sums:
                values[node.name] = _number("first", node, value)

        def look(node: Any, value: Tensor, values: dict = values) -> None:
            if node.name in back and values[back[node.name]].shape == value.shape:
                sums[back[node.name]].update(values.pop(back[node.name]), _number("second", node, value))

        runs = ("first", first, keep), ("second", second, look)
        wanted, got = (
            [
                _number(which, node, value)
                for node, value in zip(of.outputs, interpret(of, as_tensors(arrays, of), on_value=see), strict=True)
            ]
            for which, of, see in runs
        )
        for a, b in zip(wanted, got, strict=False):
            if a.shape != b.shape:
                raise ShapeError(f"compare: results of shapes {a.shape} and {b.shape}; expected the same")
            outputs.update(a, b)
        same += same_places(wanted[0], got[0])
        done += 1
        if progress is not None:
            progress("compare", done, None)
    computed = [e for e in first.exprs() if isinstance(e, Apply) and is_float(e.outputs[0].spec.dtype)]
    reports = [_report(first, name, pairs[name], one) for name, one in sums.items() if one.count]
    agreement = float(np.mean(same)) if same else None
    missing = len(computed) - len(reports)
    lacking = _unseen(first, {one.name for one in reports}), _unseen(second, {one.other for one in reports})
    both = {x.name: (lacking[0].get(x.name, ()), lacking[1].get(x.other, ())) for x in reports}
    unseen = {name: two for name, two in both.items() if all(two)}
    ends = outputs.sqnr_db, outputs.cosine, agreement
    return Comparison(tuple(reports), max(missing, 0), *ends, done, len(same), unseen)


def _unseen(graph: InternalGraph, compared: set[str]) -> dict[str, tuple[str, ...]]:
    """For values that are compared the computed float values which they are made of and which are not compared."""
    place = {expr: number for number, expr in enumerate(graph.exprs())}
    found = {}
    for expr in place:
        if isinstance(expr, Apply) and (names := [node.name for node in expr.outputs if node.name in compared]):
            behind = sorted(_behind(expr, compared), key=place.__getitem__)
            parts = tuple(node.name for one in behind for node in one.outputs if _is_unseen(one, node, compared))
            found |= dict.fromkeys(names, parts) if parts else {}
    return found


def _behind(expr: Apply, compared: set[str]) -> set[Apply]:
    """The operations that an operation reads, back to values that are compared."""
    found: set[Apply] = set()
    left = [expr]
    while left:
        for node in left.pop().inputs:
            if node.name not in compared and isinstance(one := node.expr, Apply) and one not in found:
                found.add(one)
                left.append(one)
    return found


def _is_unseen(expr: Apply, node: TensorNode, compared: set[str]) -> bool:
    return is_float(node.spec.dtype) and not expr.record.dequantizes and node.name not in compared


def _check_ends(first: InternalGraph, second: InternalGraph) -> None:
    """As many inputs and results; what fits of their shapes is seen when they run."""
    for what, one, other in (("takes", first.inputs, second.inputs), ("gives", first.outputs, second.outputs)):
        if len(one) != len(other):
            raise ShapeError(
                f"compare: the first network {what} {len(one)} ({listed(n.name for n in one)}), the second "
                f"{len(other)} ({listed(n.name for n in other)}); compare networks with the same inputs and results"
            )


def _number(which: str, node: TensorNode, value: Tensor) -> np.ndarray:
    """The real numbers of a value. Raises QuantizationError if one is NaN."""
    real = _real(value)
    bad = int(np.isnan(real).sum())
    if bad:
        raise QuantizationError(
            f"compare: {node.name!r} of the {which} network, the first such value: {bad} of "
            f"{counted(real.size, 'number')} are NaN, for inputs that are finite; expected numbers. Sums beyond its "
            "type (float16 ends at 65504) and roots or logarithms of negative numbers give NaN"
        )
    return real


def _real(value: Tensor) -> np.ndarray:
    return (apply("dequantize", value) if isinstance(value.dtype, QuantizedDType) else value).numpy()


def _pairs(first: InternalGraph, second: InternalGraph) -> dict[str, str]:
    """Names of computed float or integer values in the first network, each with its name in the second.

    A layer into which a batch norm or a factor was folded keeps its name; its result is that of what was folded.
    """
    found = {}
    for expr in first.exprs():
        for node in expr.outputs if isinstance(expr, Apply) else ():
            real = isinstance(node.spec.dtype, QuantizedDType) or is_float(node.spec.dtype)
            partner = _namesake(node, second)
            if not real or partner is None:
                continue
            if _folded(partner) > _folded(node):
                node = _behind_folded(node, second)
            elif _folded(node) > _folded(partner):
                partner = _behind_folded(partner, first)
            found[node.name] = partner.name
    return found


def _namesake(node: TensorNode, graph: InternalGraph) -> TensorNode | None:
    """The computed value that has a node's name in another network, or stands for it there."""
    base = node.name.removesuffix("_int")
    names = [base + more for more in _ALSO if base + more in graph.names]
    nodes = [one for one in map(graph.node, names) if not isinstance(one.expr, Constant)]
    return nodes[-1] if nodes else None


def _folded(node: TensorNode) -> int:
    """How many passes folded something into the layer that a value comes from."""
    expr: Any = node.expr
    while isinstance(expr, Apply) and expr.op in _CONVERSIONS:
        expr = expr.inputs[0].expr
    return len(_FOLDS & {*expr.meta.get("passes", ())}) if isinstance(expr, Apply) else 0


def _behind_folded(node: TensorNode, other: InternalGraph) -> TensorNode:
    """The value behind the arithmetic with constants that follows a layer here, and that another network has not."""
    while len(node.users) == 1 and (form := form_of(user := node.users[0])) is not None and form.x is node:
        if _namesake(user.outputs[0], other) is not None:
            break
        node = user.outputs[0]
    return node


def _report(graph: InternalGraph, name: str, other: str, one: Agreement) -> ValuePair:
    expr = graph.node(name).expr
    op, module = getattr(expr, "op", ""), str(expr.meta.get("module", "") or "")
    return ValuePair(name, other, op, module, one.sqnr_db, one.cosine, one.largest)
