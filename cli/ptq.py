"""`mge-quantize ptq`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import numpy as np

from megengine.cli import images, quantizing, records, report
from megengine.cli.app import HOLDER, common, examples
from megengine.cli.choices import FILE, Choice, Number
from megengine.cli.measuring import measured
from megengine.cli.models import InputChoices, chosen_graph, load_calls, shape_option
from megengine.cli.output import Output, check_suffix, kept_after_interrupt, output_file, ratio_cell
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.readers import Reader, Slot, holder_of, kind_of, open_reader
from megengine.cli.samples import Samples, tell_suspicious
from megengine.convert import onnx
from megengine.core.dtype import storage_of
from megengine.core.errors import CalibrationError, DeviceError, OptionError, QuantizationError, listed
from megengine.core.text import counted, in_bytes, share_of
from megengine.device import normalize
from megengine.dispatch import get_op
from megengine.quantization import (
    EFFORTS,
    PRECISIONS,
    QuantConfig,
    QuantizedModel,
    RangeMethod,
    TensorStatistics,
    audit,
    preview,
)
from megengine.quantization.checks import require_float, require_float_modules
from megengine.quantization.pipeline.config import CHOICES
from megengine.quantization.pipeline.profiles import PROFILES
from megengine.quantization.ranges import takes_rows
from megengine.quantization.ranges.methods import METHODS
from megengine.traced_module import InternalGraph, TracedModule, lower
from megengine.traced_module.formats import native
from megengine.traced_module.ir.expr import Apply, Constant


def data_option(*, required: bool) -> Any:
    """`--data`."""
    return click.option(
        "--data",
        type=FILE,
        required=required,
        help="A folder of pictures, a .npy or .npz file (samples along the first axis), or module.py:function.",
    )


preprocess_option = click.option(
    "--preprocess",
    type=FILE,
    default=None,
    metavar="RECIPE",
    help=f"For pictures: a preset ({', '.join(images.PRESETS)}), a .json file, or preset,key=value,... "
    "Needed unless the model stores one.",
)
samples_option = click.option(
    "--samples", type=click.IntRange(1), default=None, help="Use at most this many batches, the first."
)
held_out_option = click.option(
    "--held-out",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    help="One of ten samples (of few a quarter, up to 8), at most this many, scores the result and does not calibrate; "
    "digests choose which.",
)


def checked_device(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """The name of a device, if it can be used. Raises click.BadParameter."""
    try:
        return name if name is None else normalize(name)
    except DeviceError as exc:
        raise click.BadParameter(str(exc)) from exc


workers_option = click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes that calibrate."
)

device_option = click.option(
    "--device", callback=checked_device, metavar="NAME", help='Where the network runs: "gpu0". By default here.'
)


@dataclass(frozen=True, slots=True)
class Data:
    """Data of a command: the reader of its batches, and the recipe of pictures with its origin."""

    reader: Reader
    how: images.Recipe | None
    origin: str = ""

    def describe(self) -> dict[str, Any] | None:
        """Plain values for JSON."""
        return None if self.how is None else {"from": self.origin, **self.how.describe()}

    def __str__(self) -> str:
        return "" if self.how is None else f"prepared as {self.origin} says: {self.how}"


def data_of(data: str, preprocess: str | None, samples: int | None, model: TracedModule, out: Output,
            others: Mapping[str, TracedModule] = MappingProxyType({})) -> Data:  # fmt: skip
    """The data source for a model's inputs; prints the recipe of pictures, of `--preprocess` or else of the model.

    A model that stores none takes that of the first of `others`, by name, that does. Pictures take the size of the
    network's input unless `--preprocess` sets one. Raises OptionError for pictures without a recipe and for a
    recipe beside other data.
    """
    rows = (1,) if takes_rows(model.graph) else ()  # of an open batch: each of them is a sample
    specs = [(node.name, node.spec) for node in model.graph.inputs]
    slots = [Slot(name, (*rows, *spec.shape[len(rows) :]), spec.dtype, spec.shape) for name, spec in specs]
    pictured = kind_of(data) == "pictures"
    shape = slots[0].shape if len(slots) == 1 and len(slots[0].shape) == 4 else None
    of_models = {"the model": model, **others} if pictured and shape else {}
    recipes = ((name, images.from_metadata(one.graph.metadata, shape)) for name, one in of_models.items())
    origin, how = next((found for found in recipes if found[1] is not None), ("the model", None))
    stored = how if origin == "the model" else None
    origin = next((name for name, one in others.items() if one is model), origin) if stored else origin
    if preprocess is not None:
        how, origin = images.recipe(preprocess, shape if pictured else None), "--preprocess"
    source = Data(open_reader(data, slots, how=how, limit=samples), how, origin)
    names = [slot.name for slot in slots]
    click.get_current_context().meta[HOLDER] = partial(holder_of, reader=source.reader, inputs=names)
    if how is not None:
        out.say_once(f"pictures: {source}")
    if pictured and Path(data).is_dir() and (left := images.others_in(Path(data))):
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in left.items())
        out.say_once(f"note: files in {data} that are no pictures of known kinds are left out: {kinds}")
    if stored not in (None, how):
        out.say_once(f"note: the model stores another preparation, which --preprocess replaces: {stored}")
    return source


def layers_options(function: Any) -> Any:
    """`--rule`, `--exclude` and `--include`: which layers are treated otherwise."""
    for option in reversed(_LAYERS):
        function = option(function)
    return function


_LAYERS = (
    click.option(
        "--rule",
        "rules",
        multiple=True,
        metavar="LAYERS=WORD[,WORD]",
        help="Other integers for some layers: a --precision, per_channel, per_tensor, group:N. LAYERS: a module path, "
        "a node, op:NAME, a glob, re:PATTERN or FIRST..LAST; repeat, the last one counts.",
    ),
    click.option("--exclude", multiple=True, help="Leave in float: LAYERS as for --rule; repeat."),
    click.option("--include", multiple=True, help="Leave all other layers with weights in float: LAYERS; repeat."),
)


@click.command(
    epilog=examples(
        "ptq net.onnx --data photos --preprocess imagenet -o q.mgt --report q.html",
        "ptq net.onnx --data x.npy -o q.mgt --onnx q.onnx --effort balanced",
        "ptq net.onnx --plan-only --rule 'op:conv2d=w8a16'",
    )
)
@click.argument("model", type=FILE)
@data_option(required=False)
@preprocess_option
@samples_option
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
    """Quantize MODEL (.onnx, .tm, .mgt, or module.py:function) to exact integers with calibration data."""
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


def config_of(*, activations: str | None, percentile: float, **choices: Any) -> QuantConfig:
    """Settings by options; those that were not given are the effort's."""
    given = {name: value for name, value in choices.items() if value is not None}
    if activations is not None:
        given["activations"] = RangeMethod(activations, percentile)
    return QuantConfig.of(**given)


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


def check_weights(model: TracedModule, name: str = "") -> None:
    """Raises QuantizationError if a stored value is NaN or a weight infinite; `name` says which of several models."""
    for expr in model.graph.exprs():
        if not isinstance(expr, Constant) or storage_of(expr.outputs[0].spec.dtype).kind != "f":
            continue
        value = np.asarray(expr.value.numpy())
        layers = [use for use in expr.outputs[0].users if isinstance(use, Apply)]
        weight = value.ndim > 1 and any(get_op(use.op).weighted for use in layers)
        bad = int((~np.isfinite(value) if weight else np.isnan(value)).sum())
        if bad:
            reader = layers[0].outputs[0].name if layers else "nothing"
            what = f"{f'model {name!r}, ' if name else ''}constant {expr.outputs[0].name!r}"
            raise QuantizationError(
                f"{what}: {bad} of {counted(value.size, 'value')} are NaN or infinite, "
                f"read by {reader!r}; train or export the model again"
            )


def check_varies(graph: InternalGraph, batches: Iterable[Sequence[Any]], data: str) -> None:
    """Raises CalibrationError as `check_data` does, from the samples themselves; it reads until values differ."""
    equal: dict[str, tuple[int, float]] = {}  # how many values were seen, and the one
    left = {n.name for n in graph.inputs if storage_of(n.spec.dtype).kind == "f"}
    for batch in batches:
        for node, array in zip(graph.inputs, map(np.asarray, batch), strict=False):
            if node.name not in left or not array.size:
                continue
            count, value = equal.get(node.name, (0, array.flat[0]))
            if array.dtype.kind in "fiub" and (array == value).all():
                equal[node.name] = count + array.size, value
            else:
                left.discard(node.name)
        if not left:
            return
    for name, (count, value) in equal.items():
        if name in left and count > 1:
            _refuse_equal(data, name, count, value)


def _refuse_equal(data: str, name: str, count: int, value: float) -> None:
    raise CalibrationError(
        f"data {data!r}: all {counted(count, 'value')} of input {name!r} are {float(value) + 0.0:g}, "
        "so no range can be learnt from them; give samples of what the network will see"
    )


def check_data(graph: InternalGraph, stats: Mapping[str, TensorStatistics], data: str) -> None:
    """Raises CalibrationError if all values of an input are the same, as in an empty or broken file."""
    for node in graph.inputs:
        seen = stats.get(node.name)
        if seen is not None and seen.count > 1 and seen.minimum == seen.maximum:
            _refuse_equal(data, node.name, seen.count, seen.minimum)


@dataclass(frozen=True, slots=True)
class Job:
    """A float network that is to be quantized: its graph of ops and its digest, its data, the settings; how it is
    made is `known` (a file of statistics, workers, a device, a file of the training's state).
    """

    name: str
    source: TracedModule
    digest: str
    data: Data
    samples: Samples
    config: QuantConfig
    known: dict[str, Any]


def inputs_of(*, model: str, data: str, preprocess: str | None, **_: Any) -> list[str]:
    """The words of the command line that name what is read."""
    return [model, data, *images.recipe_files(preprocess)]


def prepared(out: Output, *, model: str, data: str, preprocess: str | None, shapes: InputChoices, samples: int | None,
             held_out: int, statistics: str | None, workers: int, device: str | None = None, state: Path | None = None,
             **choices: Any) -> Job:  # fmt: skip
    """Read the model and open the data; refuse what cannot be quantized."""
    config = config_of(**choices)
    calls = load_calls(model, shapes, dynamic=False)
    require_float_modules(calls)
    source = lower(chosen_graph(calls, None))
    require_float(source.graph)
    check_weights(source)
    source_data = data_of(data, preprocess, samples, source, out)
    if source_data.how is not None:
        source.graph.metadata.update(images.to_metadata(source_data.how))
    digest = records.digest_of(source.graph)
    known = {"path": statistics, "workers": workers, "device": device, "state": state}
    return Job(model, source, digest, source_data, Samples(source_data.reader, held_out), config, known)


def quantized(job: Job, out: Output) -> QuantizedModel:
    """The network in integers, with the record of its making."""
    result = quantizing.quantize_with_progress(job.source, job.samples, job.config, out, "quantize", **job.known)
    check_data(result.float_graph, result.stats, job.data.reader.name)
    index = job.samples.index
    digests = {"model": job.digest, "data": index.digest}
    stored = records.to_metadata(records.record_of(digests=digests, counts=job.samples.counts, samples=index))
    for graph in (result.qdq_graph, result.integer_graph):
        graph.metadata.update(stored)
    return result


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
