"""verify: the specification, the eager integer run and the plans agree exactly, or the first wrong node is named.

Of a network whose weights alone are integers, these are compared exactly, and its float results up to rounding.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from megengine.core.errors import OptionError, listed
from megengine.core.notebook import html_text
from megengine.core.sizes import at
from megengine.core.text import counted, one_line
from megengine.device import normalize
from megengine.dispatch import reference_runner
from megengine.dispatch.refusal import kinds_named
from megengine.kernels.problem import Problem
from megengine.ops.ordered import ORDERED
from megengine.plan import compile as compile_plan
from megengine.quantization.checks.forms import integer_form, require_integers
from megengine.quantization.checks.simulate import simulate
from megengine.quantization.ranges import Batch, Progress, as_batches, as_tensors
from megengine.tensor import Tensor
from megengine.traced_module import TracedModule, interpret
from megengine.traced_module.bodies import Body, bodies_of
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.elsewhere import Elsewhere
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.sizes import note_counts, spec_at, specialised
from megengine.traced_module.tracing.entry import on_processor

Values = dict[str, np.ndarray]


class IntegerNetwork(Protocol):
    """What has an integer graph, such as the result of `quantize_model`."""

    integer_graph: InternalGraph


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest difference of one run from the specification, and where it begins.

    Args:
        run: "eager", "plan, 1 thread", ... or "float".
        steps: largest difference, in steps of the node's dtype (in units of the value for float nodes).
        values: how many values differ.
        node, op, module: first node that differs in execution order ("" if none does), its op and module path.
        batch: input on which it was seen.
    """

    run: str
    steps: float = 0.0
    values: int = 0
    node: str = ""
    op: str = ""
    module: str = ""
    batch: int = -1


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Result of `verify`.

    Args:
        runs: one entry per run, each compared with the specification.
        float_steps: per integer node, the largest difference of its float evaluation on the specification's
            integers (at most one step is expected).
        batches: inputs compared.
        weights: of a network whose weights alone are integers, how many constants were compared: their real values are
            equal, or `runs` tells. 0 for other networks, of which every value is compared.
        results: of such a network, the largest difference of its float results, as a share of the largest result.
        unordered: float layers of an integer network whose sums have no defined order, by name: they came into the
            network after it was made of integers. Their results may differ in the last bit from run to run and from
            machine to machine; `integer_network` gives their sums an order.
    """

    runs: tuple[Difference, ...]
    float_steps: dict[str, float] = field(default_factory=dict)
    batches: int = 0
    weights: int = 0
    results: float = 0.0
    unordered: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """True if every run equals the specification bit for bit, in all that `weights` says was compared."""
        return all(not r.values for r in self.runs)

    @property
    def float_largest(self) -> float:
        """Largest difference of the float evaluation over all nodes, in steps."""
        return max(self.float_steps.values(), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers."""
        return {**asdict(self), "exact": self.exact, "float_largest": self.float_largest}

    def __str__(self) -> str:
        lines = [f"{counted(self.batches, 'input')} compared with the specification"]
        for r in self.runs:
            where = (
                f"{counted(r.values, 'differing value')}, at most {r.steps:g}; "
                f"first at {r.node} ({r.op} {one_line(r.module)})"
            )
            lines.append(f"  {r.run:18} {'equal' if not r.values else where}")
        if self.unordered:
            lines.append(
                f"  float sums of {listed(self.unordered)} have no defined order; "
                "verify and run integer_network(network), where they have"
            )
        if self.weights:
            lines.append(f"  only real values of {counted(self.weights, 'weight')} are compared so: all else is float")
            lines.append(f"  float results      at most {self.results:.2g} of the largest away")
        else:
            lines.append(f"  float evaluation   at most {counted(self.float_largest, 'step', spec='g')} in one node")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_text(str(self))


@kinds_named
def verify(
    model: IntegerNetwork | TracedModule | InternalGraph,
    inputs: Iterable[Any],
    *,
    threads: Sequence[int] = (1, 2),
    devices: Sequence[str] = (),
    with_float: bool = True,
    progress: Progress | None = None,
) -> VerifyResult:
    """Compare every way of running an integer network with the specification.

    The specification is the integer graph interpreted node by node with the NumPy references, without native
    code. It is compared with the eager integer run (every node) and with compiled plans for the given thread
    counts (outputs; when they differ, every node). `with_float` adds the float evaluation of each node fed
    with the specification's integers.

    Where weights alone are integers, float layers add up in the order of their kernels. There the real values of the
    weights are compared, in every run, and float results that are more than 1e-3 of the largest away count as wrong.

    Float layers that came into an integer network later (by an edit, or as modules beside quantized ones) do so, too.
    The result names them in `unordered`; in `integer_network(model)` their sums have one order.

    Args:
        model: result of `quantize_model`, or an integer graph.
        inputs: arrays, or tuples of arrays for several inputs.
        threads: thread counts of the plans.
        devices: further devices of which the eager run is compared, as "gpu0".
        with_float: evaluate each node in float too.
        progress: called with ("verify", done, None).

    Raises:
        OptionError: no input was given.
        QuantizationError: the network holds no integers.
    """
    source: Any = getattr(model, "integer_graph", model)
    network = on_processor(source)
    remedies = "quantize_model(network, data)", "verify the model that quantize_model gives"
    require_integers(network, f"verify: network {network.name!r}", remedies)
    weights = frozenset(_real_weights(network)) if (form := integer_form(network)) == "weights" else frozenset()
    plans = {f"plan, {n} thread{'s' * (n > 1)}": _PlanRun(network, n, weights) for n in threads}
    placed = {f"eager, {device}": Elsewhere(network, normalize(device)) for device in devices}
    differences = {name: Difference(name) for name in ("eager", *placed, *plans)}
    float_steps: dict[str, float] = {}
    done, results = 0, 0.0
    for batch, arrays in enumerate(as_batches(inputs, network)):
        graph = specialised(network, [array.shape for array in arrays])
        wanted = specification(graph, arrays)
        for name, (now, away) in _compare_runs(graph, batch, arrays, wanted, plans, placed, weights):
            results = max(results, away)
            differences[name] = _join(differences[name], now)
        if with_float and not weights:
            for node, steps in simulate(graph, wanted).items():
                float_steps[node] = max(float_steps.get(node, 0.0), steps)
        done += 1
        if progress is not None:
            progress("verify", done, None)
    if not done:
        raise OptionError("verify: no inputs; expected at least one input of the model")
    unordered = tuple(_unordered(network)) if form == "integer" else ()
    return VerifyResult(tuple(differences.values()), float_steps, done, len(weights), results, unordered)


def _compare_runs(
    graph: InternalGraph, batch: int, arrays: Batch, wanted: Values, plans: Mapping[str, "_PlanRun"],
    placed: Mapping[str, Elsewhere], weights: Collection[str],
) -> Iterator[tuple[str, tuple[Difference, float]]]:  # fmt: skip
    """For the eager runs and each plan, its difference from the specification, and how far float results are away."""
    runs = {"eager": eager(graph, arrays), **{name: _values_of(run, graph, arrays) for name, run in placed.items()}}
    runs |= {name: plan.values(arrays) for name, plan in plans.items()}
    for name, got in runs.items():
        if weights:
            yield name, _compare_weights(graph, name, batch, wanted, got, weights)
        elif name in plans:
            yield name, (plans[name].compare(name, batch, wanted, arrays, got), 0.0)
        else:
            yield name, (compare(graph, name, batch, wanted, got), 0.0)


def _real_weights(graph: InternalGraph) -> Iterator[str]:
    """Names of the real values of integer constants."""
    for expr in graph.exprs():
        if isinstance(expr, Apply) and expr.record.dequantizes and isinstance(expr.inputs[0].expr, Constant):
            yield expr.outputs[0].name


def _unordered(graph: InternalGraph, path: str = "") -> Iterator[str]:
    """Names of the float layers that add in the order of their kernels, those of the graphs that ops run included."""
    for expr in graph.exprs():
        if isinstance(expr, Apply) and expr.op in ORDERED and expr.outputs[0].dtype == np.float32:
            yield path + expr.outputs[0].name
        for name, body in bodies_of(expr):
            yield from _unordered(body.graph, f"{path}{expr.outputs[0].name}.{name}.")


_NOISE = 1e-3  # of the largest result: far more than the order of float sums makes


def _compare_weights(
    graph: InternalGraph, run: str, batch: int, wanted: Values, got: Values, weights: Collection[str]
) -> tuple[Difference, float]:
    """The difference of the weights, or of results that are not near, and how far results are away at most."""
    result, largest = compare(graph, run, batch, wanted, {k: v for k, v in got.items() if k in weights}), 0.0
    for node in graph.outputs:
        exact = wanted[node.name].astype(np.float64)
        apart = np.abs(got[node.name].astype(np.float64) - exact).max(initial=0.0)
        away = float(apart / max(np.abs(exact).max(initial=0.0), np.finfo(np.float32).tiny))
        if not away <= _NOISE:
            result = _join(result, _difference(run, batch, node, wanted[node.name], got[node.name]))
        largest = max(largest, away)
    return result, largest


def specification(graph: InternalGraph, inputs: Sequence[np.ndarray]) -> Values:
    """Every value of an op-level graph from the NumPy references of the ops, by node name."""
    values: Values = {n.name: np.asarray(array) for n, array in zip(graph.inputs, inputs, strict=True)}
    counts: dict[str, int] = {}  # lengths that depend on values
    for expr in graph.exprs():
        if isinstance(expr, Constant):
            values[expr.outputs[0].name] = expr.value.numpy()
        elif isinstance(expr, Apply):
            single = len(expr.outputs) == 1
            input_specs, output_specs = (
                [spec_at(n.spec, counts) for n in nodes] for nodes in (expr.inputs, expr.outputs)
            )
            attrs = at(dict(expr.attrs), counts) | {name: Body(b.graph, _results_of(b)) for name, b in bodies_of(expr)}
            problem = Problem(expr.op, tuple(input_specs), tuple(output_specs), attrs)
            run = reference_runner(expr.record, problem, single)
            result = run(*[values[n.name] for n in expr.inputs])
            for node, value in zip(expr.outputs, (result,) if single else result, strict=True):
                values[node.name] = value
            note_counts(counts, output_specs, [values[n.name].shape for n in expr.outputs])
    return values


def _results_of(body: Body) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """A graph that an op runs, as the specification runs it."""

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        graph = specialised(body.graph, [array.shape for array in arrays])
        values = specification(graph, arrays)
        return [values[node.name] for node in graph.outputs]

    return run


def eager(graph: InternalGraph, inputs: Sequence[np.ndarray]) -> Values:
    """Every value of the graph run op by op through `apply`, with the selected kernels."""
    values: Values = {}

    def keep(node: Any, value: Tensor) -> None:
        values[node.name] = value.numpy()

    interpret(graph, as_tensors(inputs, graph), on_value=keep)
    return values


def compare(graph: InternalGraph, run: str, batch: int, wanted: Values, got: Values) -> Difference:
    """Difference of the values in `got` from the wanted ones; nodes missing in `got` are not compared."""
    result = Difference(run)
    for expr in graph.exprs():
        for node in expr.outputs if isinstance(expr, Apply) else ():
            if node.name in got:
                result = _join(result, _difference(run, batch, node, wanted[node.name], got[node.name]))
    return result


def _difference(run: str, batch: int, node: Any, wanted: np.ndarray, got: np.ndarray) -> Difference:
    if np.array_equal(wanted, got, equal_nan=wanted.dtype.kind == "f"):
        return Difference(run)
    if wanted.shape != got.shape:
        steps, count = float("inf"), wanted.size
    else:
        differ = (wanted != got) & ~((wanted != wanted) & (got != got))  # 0 / 0 is NaN in every run
        delta = np.abs(wanted[differ].astype(np.float64) - got[differ].astype(np.float64))
        steps, count = float(np.nan_to_num(delta, nan=np.inf).max(initial=0)), int(np.count_nonzero(differ))
    if not count:
        return Difference(run)
    expr = node.expr
    return Difference(run, steps, count, node.name, expr.op, str(expr.meta.get("module", "") or ""), batch)


def _join(first: Difference, then: Difference) -> Difference:
    if not then.values:
        return first
    if not first.values:
        return then
    largest = max(first.steps, then.steps)
    return Difference(first.run, largest, first.values + then.values, first.node, first.op, first.module, first.batch)


def _values_of(run: Elsewhere, graph: InternalGraph, inputs: Sequence[np.ndarray]) -> Values:
    """Every value of the graph on another device, by node name."""
    values: Values = {}
    run.run(graph, inputs, lambda node, value: values.update({node.name: value.numpy()}))
    return values


class _PlanRun:
    """A compiled plan; where its outputs differ, a second one that gives every node finds the first."""

    def __init__(self, graph: InternalGraph, threads: int, shown: Collection[str] = ()) -> None:
        if shown:
            graph = graph.clone()
            set_outputs(graph, [*graph.outputs, *(n for n in graph.nodes() if n.name in shown)])
        self.graph, self.threads = graph, threads
        self.plan = compile_plan(graph, threads=threads)
        self.nodes: InternalGraph | None = None

    def values(self, inputs: Sequence[np.ndarray]) -> Values:
        """The outputs, and the nodes that are shown, by name."""
        return dict(zip([n.name for n in self.graph.outputs], self.plan(*inputs), strict=True))

    def compare(self, run: str, batch: int, wanted: Values, inputs: Sequence[np.ndarray], got: Values) -> Difference:
        """Compare the outputs; on a difference, look for the node where it begins."""
        result = compare(self.graph, run, batch, wanted, got)
        if not result.values:
            return result
        begin = compare(self.graph, run, batch, wanted, self._every_node(inputs))
        if not begin.values:
            return result
        return Difference(run, result.steps, result.values, begin.node, begin.op, begin.module, batch)

    def _every_node(self, inputs: Sequence[np.ndarray]) -> Values:
        if self.nodes is None:
            g = self.graph.clone()
            set_outputs(g, [n for e in g.exprs() if isinstance(e, Apply) for n in e.outputs])
            self.nodes, self.full = g, compile_plan(g, threads=self.threads)
        return dict(zip([n.name for n in self.nodes.outputs], self.full(*inputs), strict=True))
