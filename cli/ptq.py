"""`mge-quantize ptq`."""

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from megengine.cli import quantizing, records, report
from megengine.cli.app import common, examples
from megengine.cli.choices import FILE, Choice, Number
from megengine.cli.common_options import data_options, device_option, held_out_option, layers_options, workers_option
from megengine.cli.jobs import Job, config_of, inputs_of, prepared, quantized
from megengine.cli.measuring import measured
from megengine.cli.models import InputChoices, chosen_graph, load_calls, shape_option
from megengine.cli.output import Output, check_suffix, kept_after_interrupt, output_file, ratio_cell
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.samples import Samples, tell_suspicious
from megengine.cli.unprepared import tell_unprepared
from megengine.convert import onnx
from megengine.core.errors import OptionError, listed
from megengine.core.text import in_bytes, share_of
from megengine.quantization import EFFORTS, PRECISIONS, QuantizedModel, audit, preview
from megengine.quantization.pipeline.config import CHOICES
from megengine.quantization.pipeline.profiles import PROFILES
from megengine.quantization.ranges.methods import METHODS
from megengine.traced_module import TracedModule, lower
from megengine.traced_module.formats import native


@click.command(
    epilog=examples(
        "ptq net.onnx --data photos --preprocess imagenet -o q.mgt --report q.html",
        "ptq net.onnx --data x.npy -o q.mgt --onnx q.onnx --effort balanced",
        "ptq net.onnx --plan-only --rule 'op:conv2d=w8a16'",
    )
)
@click.argument("model", type=FILE)
@data_options(required=False)
@held_out_option
@path_option(
    "-o",
    "--output",
    help="Quantized model to write: .mgt (integers, exact) or .onnx (QDQ, for other runtimes).",
)
@path_option("--onnx", "onnx_path", help="Write a QDQ .onnx model too.")
@path_option("--report", "report_path", help="Write a self-contained .html report too.")
@click.option(
    "--effort",
    type=Choice([*EFFORTS]),
    default="fast",
    show_default=True,
    help="balanced: ranges of least squared error, --equalize, --smooth and --rounding gptq, several times the time; "
    "best: --rounding gptaq and --distillation, minutes.",
)
@click.option("--weights", type=Choice(CHOICES["weights"]), default="per_channel", show_default=True)
@click.option("--activations", type=Choice([*METHODS]), help="How ranges are chosen.  [default: of --effort]")
@click.option(
    "--percentile",
    type=Number(50, 100, min_open=True),
    default=99.999,
    show_default=True,
    help="For --activations percentile.",
)
@click.option(
    "--rounding",
    type=Choice(CHOICES["rounding"]),
    help="Weights one by one (nearest), together by what reaches the layer (gptq), or so in one layer after the other, "
    "each making up for the errors before it (gptaq), or so with weights that learn whether to round down or up "
    "(adaround).  [default: of --effort]",
)
@click.option(
    "--equalize/--no-equalize",
    default=None,
    help="Scale channels between convolutions so that all use the whole range.  [default: of --effort]",
)
@click.option(
    "--smooth/--no-smooth",
    default=None,
    help="Scale channels of normalised values so that linear layers read them in finer steps.  [default: of --effort]",
)
@click.option(
    "--reconstruction",
    type=click.IntRange(0),
    metavar="STEPS",
    help="Let each block learn the rounding of its weights, scales and biases, without labels; 0: not.  "
    "[default: of --effort]",
)
@click.option(
    "--distillation",
    type=click.IntRange(0),
    metavar="PASSES",
    help="Train scales, biases and weights to follow the float network, without labels; 0: not.  "
    "[default: of --effort]",
)
@click.option(
    "--vary/--no-vary",
    default=None,
    help="Show --rounding gptaq and adaround, --reconstruction and --distillation half of the pictures in less "
    "contrast, where weights have fewer than 8 bits.  "
    "[default: of --effort]",
)
@click.option("--bias-correction/--no-bias-correction", default=True, show_default=True)
@click.option(
    "--wide-sums/--narrow-sums",
    default=False,
    show_default=True,
    help="16 bits for sums of residuals that norms and further sums alone read, as in transformers.",
)
@click.option("--profile", type=Choice(list(PROFILES)), default="x86", show_default=True, help="Target.")
@click.option(
    "--precision",
    type=Choice([*PRECISIONS]),
    default="w8a8",
    show_default=True,
    help="Bits of weights and of results; w8 and w4: weights alone.",
)
@click.option("--group", type=click.IntRange(0), default=0, help="For w8 and w4: weights that share a scale.")
@layers_options
@click.option(
    "--plan-only", is_flag=True, help="Say what becomes of each layer, and end; needs no --data and --output."
)
@click.option(
    "--statistics", type=FILE, metavar="FILE", help="Ranges from this file of `calibrate`; --data scores the result."
)
@path_option(
    "--state",
    help="Keep the training of --distillation here after each pass, or that of --reconstruction after each block; the "
    "same line goes on from it.",
)
@workers_option
@device_option
@overwrite_option
@shape_option
@common
def ptq(
    output: Path | None,
    onnx_path: Path | None,
    report_path: Path | None,
    overwrite: bool,
    plan_only: bool,
    out: Output,
    **options: Any,
) -> None:
    """Quantize MODEL (.onnx, .tm, .mgt, .mge, or module.py:function) to exact integers with calibration data."""
    if plan_only:
        _show_plan(out, **options)
        return
    for name, value in (("--output", output), ("--data", options["data"])):
        if value is None:
            raise click.UsageError(f"Missing option '{name}' (only --plan-only does without).")
    assert output is not None
    check_suffix("--output", output, {".mgt": "our format", ".onnx": "QDQ for other runtimes"})
    check_suffix("--onnx", onnx_path, {".onnx": "QDQ for other runtimes"})
    check_suffix("--report", report_path, {".html": "a page"})
    wanted = {"model": output, "onnx": onnx_path, "report": report_path}
    if output.suffix == ".onnx":
        if onnx_path is not None:
            raise OptionError(
                "--output and --onnx both name a .onnx file; give --output a .mgt file, or leave out --onnx"
            )
        wanted |= {"model": None, "onnx": output}
    outputs = [("--output", output), ("--onnx", onnx_path), ("--report", report_path)]
    outputs.append(("--state", options["state"]))
    check_outputs(outputs, inputs_of(**options), overwrite=overwrite)
    with kept_after_interrupt(options["state"], "holds the training; the same line goes on"), ExitStack() as stack:
        files = {name: stack.enter_context(output_file(path)) for name, path in wanted.items() if path}
        result = _quantize(files, out, **options)
    written = [str(path) for path in wanted.values() if path]
    out.say(f"wrote {', '.join(written)}")
    out.result({**result, "written": written})


def _show_plan(out: Output, *, model: str, shapes: InputChoices, **options: Any) -> None:
    of_data = ("data", "preprocess", "samples", "held_out", "statistics", "workers", "device", "state")
    choices = {name: value for name, value in options.items() if name not in of_data}
    plan = preview(lower(chosen_graph(load_calls(model, shapes, dynamic=False), None)), config_of(**choices))
    if plan.rules:
        rows = [(option, rule, len(names), listed(names)) for option, rule, names in plan.rules]
        out.table("Rules", ("option", "rule", "layers", "which"), rows)
    rows = [(x.name, x.op, x.module, x.weights, x.result) for x in plan.layers]
    out.table("Layers", ("layer", "op", "module", "weights", "result"), rows)
    out.result({"model": model, **asdict(plan)})


def _quantize(files: dict[str, Path], out: Output, **options: Any) -> dict[str, Any]:
    """Write `files`, temporary paths by their content; returns the result for --json."""
    job = prepared(out, **options)
    result = quantized(job, out)
    if "model" in files:
        native.save(TracedModule.from_graph(result.integer_graph), files["model"])
    if "onnx" in files:
        onnx.export_qdq(result, files["onnx"])
    held = job.samples.held_out()
    risks = audit(result.float_graph, result.stats)
    found = quantizing.Found(result.analyze(held), risks=risks, scored_on=job.samples.scored_on())
    small = quantizing.sizes(result)
    if "report" in files:
        write_report(files["report"], job, result, found)
    tell_suspicious(out, job.samples.warnings())
    notes = tell_unprepared(out, job.source.graph, job.data.reader)
    if result.report.undone:
        out.say(result.report.undone, "yellow")
    if "onnx" in files and (said := quantizing.saturation_of(result)):
        out.say(said, "yellow")
    _show(out, result, found.edges, small, job.samples)
    return {
        "model": job.name,
        "preprocess": job.data.describe(),
        "record": records.from_metadata(result.integer_graph.metadata, job.name),
        "scored_on": job.samples.scored_on(),
        "warnings": job.samples.warnings(),
        "notes": notes,
        "undone": result.report.undone,
        "float_bytes": small[0],
        "int8_bytes": small[1],
        **found.to_json(),
        "floating": quantizing.floating_of(result),
    }


def _show(out: Output, result: Any, analysis: Any, small: tuple[int, int], samples: Samples) -> None:
    rows = [
        (edge.name, edge.op, edge.dtype, ratio_cell(edge.sqnr_db), edge.cosine, 100 * edge.cut, edge.noise_from or None)
        for edge in analysis.worst(8)
    ]
    columns = ("edge", "op", "type", "SQNR dB", "cosine", "cut %", "noise from")
    out.table("Lowest signal to noise", columns, rows)
    floating = quantizing.floating_groups(result)
    if floating:
        out.table("Left in float", ("op", "nodes", "first", "multiply-adds %", "reason"), floating)
    out.say(quantizing.floating_line(result))
    out.say(
        f"outputs: {report.ratio_words(analysis.output_sqnr_db)}, cosine {analysis.output_cosine:.5f} "
        f"on {samples.scored_on()}; weights {in_bytes(small[0])} -> {in_bytes(small[1])}"
    )


def write_report(path: Path, job: Job, result: QuantizedModel, found: quantizing.Found) -> None:
    """The page of a quantized network, on the samples that score it."""
    small, analysis = quantizing.sizes(result), found.edges
    same = analysis.output_agreement
    spent, parts = measured(result.float_graph, result.integer_graph, result, job.samples.held_out(), job.data.how)
    facts = {
        "output SQNR": f"{report.decibel(analysis.output_sqnr_db)} dB",
        "output cosine": f"{analysis.output_cosine:.5f}",
        "weights": f"{in_bytes(small[0])} → {in_bytes(small[1])}",
        **({} if same is None else {"same first class as float": share_of(same, analysis.output_samples)}),
        **spent,
    }
    name = Path(job.name).name
    section = quantizing.section(name, result, analysis, facts=facts, **quantizing.noted(found), **parts)
    more = {"pictures": str(job.data)} if job.data.how is not None else {}
    record = records.shown(result.integer_graph.metadata, job.name)
    more |= {"scored on": job.samples.scored_on(), "record": json.dumps(record, sort_keys=True)}
    more |= {"undone": result.report.undone} if result.report.undone else {}
    recipe = quantizing.recipe_of(job.config, job.data.reader.name, more)
    path.write_text(report.render(f"{name} in int8", [section], recipe=recipe), encoding="utf-8")
