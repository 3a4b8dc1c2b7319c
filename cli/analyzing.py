"""`mge-quantize analyze`."""

import math
from pathlib import Path
from typing import Any

import click

from megengine.cli import quantizing
from megengine.cli.app import common, examples
from megengine.cli.jobs import Job, inputs_of, prepared, quantized
from megengine.cli.models import takes_choices
from megengine.cli.output import Output, check_suffix, output_file, ratio_cell
from megengine.cli.overwriting import check_outputs
from megengine.cli.ptq import ptq, write_report
from megengine.cli.recipes import NOT_IN_FILES
from megengine.cli.report import decibel
from megengine.cli.samples import tell_suspicious
from megengine.cli.unprepared import tell_unprepared
from megengine.core.text import counted
from megengine.quantization import advise, audit, diagnose, sensitivity

DEEP = 4  # samples on which every layer is run alone
TRIED = 3  # layers that advice tries in float
ROWS, LINES = 10, 5
_NOT_HERE = (*NOT_IN_FILES, "output", "onnx_path", "plan_only")


@click.command(
    params=[parameter for parameter in ptq.params if parameter.name not in _NOT_HERE],
    epilog=examples("analyze net.onnx --data x.npy", "analyze net.onnx --data x.npy --report a.html --effort balanced"),
)
@takes_choices
@common
def analyze(report_path: Path | None, overwrite: bool, out: Output, **options: Any) -> None:
    """Quantize the float MODEL as ptq does, write no model, and tell what it loses where, why, and what helps.

    Dangers in the float network, the noise of every edge, each layer alone in integers and alone in float, layers at
    fault, and settings that gain, measured on samples that are held out of calibration.
    """
    if options["data"] is None:
        raise click.UsageError("Missing option '--data'.")
    check_suffix("--report", report_path, {".html": "a page"})
    check_outputs([("--report", report_path), ("--state", options["state"])], inputs_of(**options), overwrite=overwrite)
    if report_path is None:
        out.result(_analyze(None, out, **options))
        return
    with output_file(report_path) as temporary:
        result = _analyze(temporary, out, **options)
    out.say(f"wrote {report_path}")
    out.result({**result, "report": str(report_path)})


def _analyze(page: Path | None, out: Output, **options: Any) -> dict[str, Any]:
    """Everything that is told, as plain values; the report is written to `page`."""
    job = prepared(out, **options)
    result = quantized(job, out)
    held = job.samples.held_out()
    edges = result.analyze(held)
    few = held[:DEEP]
    with out.progress("each layer alone", len(few)) as bar:
        layers = sensitivity(
            result.float_graph, result.qdq_graph, few, integer_graph=result.integer_graph, progress=bar.show
        )
    with out.progress("faults", len(few)) as bar:
        faults = diagnose(result.float_graph, result.qdq_graph, few, source=job.source.graph, progress=bar.show)
    risks = audit(result.float_graph, result.stats)
    tried = [one.name for one in layers.worst(TRIED) if one.gain > 0]
    with out.progress("advice", None) as bar:
        advice = advise(result, tried, held, job.samples, progress=bar.show)
    found = quantizing.Found(edges, layers, faults, risks, advice, job.samples.scored_on())
    notes = tell_unprepared(out, job.source.graph, job.data.reader)
    _show(out, job, found)
    if page is not None:
        write_report(page, job, result, found)
    facts = {"model": job.name, "preprocess": job.data.describe(), "scored_on": job.samples.scored_on()}
    return {**facts, "warnings": job.samples.warnings(), "notes": notes, **found.to_json()}


def _show(out: Output, job: Job, found: quantizing.Found) -> None:
    layers, edges = found.layers, found.edges
    tell_suspicious(out, job.samples.warnings())
    columns = ("edge", "op", "type", "SQNR dB", "cosine", "cut %", "noise from")
    rows = [
        (e.name, e.op, e.dtype, ratio_cell(e.sqnr_db), e.cosine, 100 * e.cut, e.noise_from or None)
        for e in edges.worst(ROWS)
    ]
    out.table("Lowest signal to noise", columns, rows)
    assert layers is not None
    columns = ("layer", "op", "alone in int8 dB", "alone in float dB", "gain dB", "weights dB", "input dB", "bias dB")
    rows = [
        (
            x.name,
            x.op,
            *map(ratio_cell, (x.alone, x.freed, x.gain, *map(x.local.get, ("weights", "activations", "bias")))),
        )
        for x in layers.worst(ROWS)
    ]
    out.table(f"Layers that gain most in float, on {counted(layers.batches, 'sample')}", columns, rows)
    parts = ", ".join(f"{kind} {decibel(ratio)}{' dB' * (ratio < math.inf)}" for kind, ratio in layers.parts.items())
    added = round(layers.fusion_db or 0.0, 1) + 0.0  # 0.0, not -0.0
    out.say(f"rounded alone: {parts}; integer arithmetic adds {added:+.1f} dB")
    for title, lines in found.told().items():
        for line in lines[:LINES]:
            out.say(f"{title}: {line}", "yellow" if title in ("danger", "fault") else "")
        if len(lines) > LINES:
            out.say(f"{title}: {len(lines) - LINES} more, listed by --json and --report")
    out.say(found.headline())
