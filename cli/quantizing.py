"""Shared by `ptq`, `analyze` and `demo`: quantization with a progress bar, and the section of the report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megengine.cli.output import Output
from megengine.cli.report import Section, decibel, ratio_words
from megengine.cli.samples import Samples
from megengine.core.errors import listed
from megengine.core.text import counted, share_of
from megengine.kernels import isa
from megengine.quantization import (
    Advice,
    Analysis,
    Finding,
    QuantConfig,
    QuantizedModel,
    Risk,
    Sensitivity,
    Statistics,
    collect,
    quantize_model,
    stored_bytes,
)
from megengine.quantization.pipeline.advice import WORTH
from megengine.traced_module import TracedModule

LOST = 3  # edges of the lowest SQNR that a page names
ALONE = 2  # dangers of a kind that have a line each


@dataclass(frozen=True, slots=True)
class Found:
    """What analysis found, on which samples: edges, and where asked for each layer alone, faults, dangers, advice."""

    edges: Analysis
    layers: Sensitivity | None = None
    faults: tuple[Finding, ...] = ()
    risks: tuple[Risk, ...] = ()
    advice: tuple[Advice, ...] = ()
    scored_on: str = ""

    def headline(self) -> str:
        """The result in a sentence."""
        one = self.edges
        agreement = one.output_agreement
        same = "" if agreement is None else f", the same first class for {share_of(agreement, one.output_samples)}"
        ratio = ratio_words(one.output_sqnr_db)
        samples = f", on {self.scored_on}" if self.scored_on else ""
        line = f"outputs: {ratio}, cosine {one.output_cosine:.5f}{same}{samples}"
        if self.faults:
            return f"{line}; at fault: {self.faults[0].layer} ({self.faults[0].cause})"
        if self.advice and self.advice[0].gain >= WORTH:
            return f"{line}; {self.advice[0]}"
        return line if self.layers is None else f"{line}; no fault found, and no setting tried gains {WORTH:g} dB"

    def told(self) -> dict[str, list[str]]:
        """Lines by kind, the gravest first: a danger that conversion deals with is a note."""
        return {
            "danger": [str(one) for one in self.risks if not one.handled],
            "fault": [str(one) for one in self.faults],
            "advice": [str(one) for one in self.advice],
            "note": _together([one for one in self.risks if one.handled]),
        }

    def lost_most(self) -> list[tuple[str, str]]:
        """Lines about the edges with the most noise and its cause, and what to do where nothing was tried."""
        worst = [edge for edge in self.edges.worst(LOST) if edge.sqnr_db is not None and edge.sqnr_db < math.inf]
        lines = [
            (
                "lost most",
                f"{e.name} ({e.op}): {decibel(e.sqnr_db)} dB" + (f", by {e.noise_from}" if e.noise_from else ""),
            )
            for e in worst
        ]
        if worst and self.layers is None:
            lines.append(("next", "mge-quantize analyze, with the options of this run, measures which settings gain"))
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain values: the fields of the edges, and lists of the rest."""
        layers = None if self.layers is None else self.layers.to_json()
        lists = {key: [one.to_json() for one in getattr(self, key)] for key in ("faults", "risks", "advice")}
        return {**self.edges.to_json(), "sensitivity": layers, **lists, "headline": self.headline()}


def _together(risks: Sequence[Risk]) -> list[str]:
    """A line for each danger; more than two of a kind, which are dealt with alike, share one."""
    kinds: dict[tuple[str, str], list[Risk]] = {}
    for one in risks:
        kinds.setdefault((one.kind, one.handled), []).append(one)
    lines: list[str] = []
    for (kind, handled), alike in kinds.items():
        if len(alike) <= ALONE:
            lines += map(str, alike)
        else:
            names = listed((one.name for one in alike), 3)
            text = f"of {alike[0].name}, {alike[0].text}"
            lines.append(f"{counted(len(alike), 'layer')} ({names}): {kind}: {text}; {handled}")
    return lines


def quantize_with_progress(
    model: TracedModule,
    data: Any,
    config: QuantConfig,
    out: Output,
    what: str,
    *,
    path: str | None = None,
    workers: int = 1,
    device: str | None = None,
    state: Path | None = None,
) -> Any:
    """Run the pipeline, with the statistics of the file `path` if it is given; the bar counts the batches of each pass
    over the data, which `workers` processes, or a device, calibrate with. A training is kept in `state`.
    """
    statistics = None if path is None else Statistics.load(path)
    with out.progress(what, None) as bar:

        def show(stage: str, *counts: Any) -> None:
            bar.show(f"{what}: {stage}", *counts)

        if isinstance(data, Samples):
            data.progress = show
        if statistics is None and workers > 1:
            statistics = collect(model, data, workers=workers, device=device, progress=show)
        return quantize_model(model, data, config, statistics=statistics, state=state, device=device, progress=show)


def saturation_of(result: QuantizedModel) -> str:
    """What is to know of a file for other runtimes that this machine would run; "" if their sums are exact."""
    whole = sum(weight.dtype.bits == 8 for weight in result.frozen.weights.values())
    if isa.has("vnni") or not whole:
        return ""
    return (
        f"This CPU has no AVX512-VNNI. On CPUs without VNNI ONNX Runtime and OpenVINO add two products in 16 bits, "
        f"which saturates with the 8-bit weights of {counted(whole, 'layer')}: their results can be wrong. "
        "For such CPUs take --precision w7a8; ONNX Runtime also has the setting session.x64quantprecision=1"
    )


def recipe_of(config: QuantConfig, data: str, extra: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The settings as rows of the report."""
    method = config.activations
    ranges = f"{method.name} {method.percentile}" if method.name == "percentile" else method.name
    return {
        "precision": config.precision + (f", {counted(config.group, 'weight')} a group" if config.group else ""),
        "weights": f"{config.weights.replace('_', ' ')}, range by {config.weight_method}",
        "activations": f"per tensor, range by {ranges}",
        "rounding of weights": config.rounding,
        "equalization": "yes" if config.equalize else "no",
        "smoothing": "yes" if config.smooth else "no",
        "reconstruction": counted(config.reconstruction, "step") + " a block" if config.reconstruction else "no",
        "distillation": counted(config.distillation, "pass") if config.distillation else "no",
        "less contrast": "yes" if config.vary else "no",
        "bias correction": "yes" if config.bias_correction else "no",
        "wide sums": "yes" if config.wide_sums else "no",
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


def noted(found: Found) -> dict[str, Any]:
    """What analysis found as parts of a section: headline, notes, layers alone."""
    told = [(kind, line) for kind, lines in found.told().items() for line in lines]
    graver, notes = ([line for line in told if (line[0] == "note") == is_note] for is_note in (False, True))
    return {
        "headline": found.headline(),
        "notes": [*graver, *found.lost_most(), *notes],
        "sensitivity": [] if found.layers is None else found.layers.to_json()["layers"],
    }


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
