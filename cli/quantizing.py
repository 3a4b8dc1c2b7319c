"""Shared by `ptq` and `demo`: quantization with a progress bar, and the section of the report."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from megengine.cli.output import Output
from megengine.cli.report import Section
from megengine.core.text import counted
from megengine.quantization import QuantConfig, Statistics, collect, quantize_model, stored_bytes
from megengine.traced_module import TracedModule


def quantize_with_progress(
    model: TracedModule,
    data: Any,
    config: QuantConfig,
    out: Output,
    what: str,
    *,
    path: str | None = None,
    workers: int = 1,
) -> Any:
    """Run the pipeline, with the statistics of the file `path` if it is given; the bar counts the batches of each pass
    over the data, which `workers` processes calibrate with.
    """
    statistics = None if path is None else Statistics.load(path)
    with out.progress(what, None) as bar:

        def show(stage: str, *counts: Any) -> None:
            bar.show(f"{what}: {stage}", *counts)

        if statistics is None and workers > 1:
            statistics = collect(model, data, workers=workers, progress=show)
        return quantize_model(model, data, config, statistics=statistics, progress=show)


def recipe_of(config: QuantConfig, data: str, extra: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The settings as rows of the report."""
    method = config.activations
    ranges = f"{method.name} {method.percentile}" if method.name == "percentile" else method.name
    return {
        "precision": config.precision + (f", {config.group} weights a group" if config.group else ""),
        "weights": f"{config.weights.replace('_', ' ')}, range by {config.weight_method}",
        "activations": f"per tensor, range by {ranges}",
        "rounding of weights": config.rounding,
        "equalization": "yes" if config.equalize else "no",
        "bias correction": "yes" if config.bias_correction else "no",
        "profile": config.target.name,
        "rules": ", ".join(map(str, config.rules)) or "none",
        "left in float by choice": ", ".join(config.exclude) or "nothing",
        **({"all but these in float": ", ".join(config.include)} if config.include else {}),
        "calibration data": data,
        **extra,
    }


def floating_of(model: Any) -> list[dict[str, Any]]:
    """The ops that the network computes in float, as plain dictionaries."""
    return [asdict(one) for one in model.report.floating]


def floating_groups(model: Any) -> list[tuple[Any, ...]]:
    """The nodes that stay in float, grouped by op and reason: op, number, the first one, % of the work, reason."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for one in model.report.floating:
        groups.setdefault((one.op, one.reason), []).append(one)
    rows = [
        (op, len(ops), ops[0].name, 100 * sum(one.share for one in ops), reason) for (op, reason), ops in groups.items()
    ]
    return sorted(rows, key=lambda row: -row[3])


def floating_line(model: Any) -> str:
    """How much of the network stays in float."""
    floating = model.report.floating
    if not floating:
        return "left in float: nothing"
    share = 100 * sum(one.share for one in floating)
    return f"left in float: {counted(len(floating), 'op')}, {share:.4g} % of the multiply-adds"


def section(name: str, model: Any, analysis: Any, *, facts: Mapping[str, str], **more: Any) -> Section:
    """A network's part of the page; the picture is of the integer graph."""
    return Section(
        name=name,
        facts=facts,
        layers=analysis.to_json()["edges"],
        statistics=dict(model.stats),
        floating=floating_of(model),
        floating_line=floating_line(model),
        graph=model.integer_graph,
        **more,
    )


def sizes(model: Any) -> tuple[int, int]:
    """Bytes of the float and of the integer network's weights."""
    return stored_bytes(model.float_graph), stored_bytes(model.integer_graph)
