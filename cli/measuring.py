"""What is measured for a page: time, the check of the integers, the plan, pictures with predictions."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megengine import plan
from megengine.cli.drawing_parts import one_by_one, predictions
from megengine.cli.images import Recipe
from megengine.cli.output import Output
from megengine.core.text import counted
from megengine.quantization import integer_network, verify
from megengine.quantization.checks import integer_form
from megengine.traced_module import InternalGraph, TracedModule, lower


def interleaved(runs: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 2) -> dict[str, float]:
    """Median CPU time of each callable in milliseconds; they run in turns, so that slow periods affect all alike."""
    for run in runs.values():
        for _ in range(warmup):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.process_time_ns()
            run()
            times[name].append((time.process_time_ns() - start) / 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def with_integers(model: TracedModule, out: Output) -> TracedModule:
    """The model; one of quantize / dequantize pairs with integer ops in their place where it can, which is said."""
    if integer_form(lower(model).graph) != "qdq":
        return model
    made = integer_network(model)
    if integer_form(made.graph) != "qdq":
        out.say("its quantize / dequantize pairs and the float layers between them are taken as integer layers")
    return made


def verify_line(result: Any) -> str:
    """The result of `verify` in one line."""
    runs = " = ".join(run.run.replace(", ", " with ") for run in result.runs)
    steps = f"at most {result.float_largest:g} step{'s' * (result.float_largest != 1)} away"
    steps = steps if result.float_largest else "the same"
    if result.exact and result.weights:
        return (
            f"exact in its {counted(result.weights, 'weight')}: specification = {runs}; all else is float, and results "
            f"on {counted(result.batches, 'input')} are at most {result.results:.1g} of the largest away"
        )
    if result.exact:
        return (
            f"exact: specification = {runs} in every value on {counted(result.batches, 'input')}; "
            f"the float evaluation of a node is {steps}"
        )
    worst = next(run for run in result.runs if run.values)
    differ = "value differs" if worst.values == 1 else "values differ"
    return f"NOT exact: {worst.run}: {worst.values} {differ}, first at {worst.node} ({worst.op} {worst.module})"


def measured(
    float_graph: InternalGraph, integer_graph: InternalGraph, model: Any, held: Sequence[Any], how: Recipe | None
) -> tuple[dict[str, str], dict[str, Any]]:
    """Facts and parts of a section that take runs of a network: time, the check of `model`, the plan, pictures."""
    plans = [plan.compile(graph, threads=1) for graph in (float_graph, integer_graph)]
    ms = interleaved({"float": lambda: plans[0](*held[0]), "int8": lambda: plans[1](*held[0])}, rounds=10)
    checked = verify(model, held[:2])
    before, after = ([one(*x)[0] for x in held] for one in plans)
    shown = predictions(one_by_one(held, before, after), how)
    more = {"plan": plans[1].describe(), "verify": verify_line(checked), "exact": checked.exact, "pictures": shown}
    return {"CPU time, one thread": f"{ms['float']:.3g} → {ms['int8']:.3g} ms"}, more
