"""`mge-quantize search`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from megengine.cli import frontier, images
from megengine.cli.app import FailedError, common, examples
from megengine.cli.choices import Choice
from megengine.cli.models import InputChoices, chosen_graph, load_calls, shape_option
from megengine.cli.output import Output, check_suffix, check_writable, kept_after_interrupt
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.ptq import check_varies, check_weights, data_of, data_option, preprocess_option, samples_option
from megengine.cli.samples import Samples, tell_suspicious
from megengine.core.errors import listed
from megengine.core.files import replacing
from megengine.core.text import counted
from megengine.quantization import EFFORTS, PRECISIONS, Budget, LatencyTable, Point, QuantConfig, SearchResult
from megengine.quantization import search as find
from megengine.quantization.checks import require_float
from megengine.quantization.pipeline.config import CHOICES
from megengine.quantization.pipeline.profiles import PROFILES
from megengine.traced_module import TracedModule, lower

JUDGING = 2  # one of so many samples judges: a few dozen tell agreement to a few per cent only


@click.command(
    epilog=examples(
        "search net.onnx --data x.npy -o best.mgt --max-mb 2.5 --min-agreement 0.5",
    )
)
@click.argument("model")
@data_option(required=True)
@preprocess_option
@samples_option
@click.option(
    "--held-out",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="Every second sample, at most this many, judges the networks and does not calibrate.",
)
@path_option(
    "-o", "--output", required=True, help="The best network so far, .mgt; written whenever a better one is met."
)
@path_option("--state", help="File of what was measured; the search goes on from it.  [default: OUTPUT with .json]")
@path_option("--picture", help="Picture of all networks by size, time and accuracy, .svg.  [default: OUTPUT with .svg]")
@click.option("--max-mb", type=click.FloatRange(0, min_open=True), help="Budget: megabytes of stored weights.")
@click.option(
    "--max-latency",
    type=click.FloatRange(0, min_open=True),
    help="Budget: times the network that is all as --effort says.",
)
@path_option(
    "--latency-table",
    help="Times of a device, .csv or .json with op, shape, bits, ms; by it networks are timed, not by measuring.",
)
@path_option("--save-latencies", help="Write what was measured as such a table.")
@click.option("--min-agreement", type=click.FloatRange(0, 1, min_open=True), help="Budget: share of equal predictions.")
@click.option("--min-sqnr", type=float, help="Budget: decibel at the outputs.")
@click.option("--smaller", type=Choice([*PRECISIONS]), default="w4a8", show_default=True, help="What saves bytes.")
@click.option("--finer", type=Choice([*PRECISIONS]), default="w8a16", show_default=True, help="What saves accuracy.")
@click.option("--effort", type=Choice([*EFFORTS]), default="balanced", show_default=True)
@click.option("--weights", type=Choice(CHOICES["weights"]), default="per_channel", show_default=True)
@click.option("--profile", type=Choice([*PROFILES]), default="x86", show_default=True, help="Target.")
@overwrite_option
@shape_option
@common
def search(
    model: str,
    data: str,
    preprocess: str | None,
    samples: int | None,
    held_out: int,
    output: Path,
    state: Path | None,
    picture: Path | None,
    latency_table: Path | None,
    save_latencies: Path | None,
    shapes: InputChoices,
    overwrite: bool,
    out: Output,
    **options: Any,
) -> None:
    """Find precisions for the layers of MODEL that keep budgets of size, latency and accuracy.

    What was measured is kept in --state, and the best network so far in --output, after every network: an interrupted
    search goes on when the line is repeated.
    """
    check_suffix("--output", output, {".mgt": "our format"})
    check_suffix("--picture", picture, {".svg": "vector graphics"})
    table = _table(latency_table, save_latencies)
    state, picture = state or output.with_suffix(".json"), picture or output.with_suffix(".svg")
    goes_on = state.exists()
    inputs = [model, data, *images.recipe_files(preprocess), *([str(latency_table)] if latency_table else [])]
    check_outputs([("--output", output), ("--save-latencies", save_latencies)], inputs, overwrite=overwrite or goes_on)
    check_writable(output, state, picture, *([save_latencies] if save_latencies else []))
    budget = _budget(options)
    words = {name: options.pop(name) for name in ("smaller", "finer")}
    source = _source(model, shapes)
    chosen = Samples(data_of(data, preprocess, samples, source, out).reader, held_out, JUDGING)
    check_varies(source.graph, chosen.reader, data)
    tell_suspicious(out, chosen.warnings())
    if goes_on:
        out.say(f"going on from {state}")
    kept = kept_after_interrupt(state, "holds what was measured; the same line goes on")
    with kept, out.progress("search", None) as bar:
        result = find(
            source,
            chosen,
            chosen.held_out(),
            budget,
            QuantConfig.of(**options),
            **words,
            table=table,
            state=state,
            output=output,
            progress=lambda stage, *counts: bar.show(f"search: {stage}", *counts),
        )
    _draw(picture, f"{Path(model).name}: {counted(len(result.points), 'network')}", result, budget)
    if save_latencies is not None:
        result.table.save(save_latencies)
    _tell(out, result, chosen.scored_on(), [output, picture, state, *([save_latencies] if save_latencies else [])])
    out.result({"model": model, **_described(result)})
    if result.missed:
        raise FailedError(
            f"search: no network keeps all budgets; the nearest, in {output}, misses them by {result.missed:.1%}"
        )


def _source(model: str, shapes: InputChoices) -> TracedModule:
    """The network to search in. Raises QuantizationError if it is quantized, or holds weights that are no numbers."""
    source = lower(chosen_graph(load_calls(model, shapes, dynamic=False), None))
    require_float(source.graph)
    check_weights(source)
    return source


def _table(given: Path | None, written: Path | None) -> LatencyTable | None:
    check_suffix("--save-latencies", written, {".csv": "a table", ".json": "a list of objects"})
    if given and written:
        raise click.UsageError("--save-latencies writes what is measured, and with --latency-table nothing is")
    return None if given is None else LatencyTable.load(given)


def _budget(options: dict[str, Any]) -> Budget:
    """The budgets among the options, which are taken out of them. Raises click.UsageError if there is none."""
    names = ("max_mb", "max_latency", "min_agreement", "min_sqnr")
    if all(options[name] is None for name in names):
        words = " or ".join(f"--{name.replace('_', '-')}" for name in names)
        raise click.UsageError(f"Missing a budget: {words}.")
    most = options.pop("max_mb")
    limits = {"latency": options.pop("max_latency"), "agreement": options.pop("min_agreement")}
    return Budget(bytes=None if most is None else int(most * 1e6), sqnr_db=options.pop("min_sqnr"), **limits)


def _draw(picture: Path, title: str, result: SearchResult, budget: Budget) -> None:
    with replacing(picture) as file:
        file.write(frontier.picture(title, result, budget).encode())


def _tell(out: Output, result: SearchResult, scored_on: str, written: list[Path]) -> None:
    columns = ("MB", "ms", "times", "SQNR dB", "agreement %", "rules", "")
    out.table("Networks that no other beats", columns, [_row(p, result) for p in result.pareto])
    out.say(f"measured on {scored_on}; wrote {', '.join(map(str, written[:-1]))} and {written[-1]}")
    out.say(_judged(result))


def _described(result: SearchResult) -> dict[str, Any]:
    return {
        "best": {**asdict(result.best), "missed": result.missed},
        "judged": {**asdict(result.judged), "interval": result.judged.interval(result.best.counted)},
        "told": {**asdict(result.told), "share": result.told.share, "interval": result.told.interval},
        "pareto": [asdict(p) for p in result.pareto],
        "noise": result.noise,
    }


def _judged(result: SearchResult) -> str:
    """What the samples that chose nothing say of the best network, and what is expected by those that chose it."""
    judged, told, best = result.judged, result.told, result.best
    chose = f"{counted(judged.judging, 'sample')} that chose"
    ties = judged.samples - judged.judging
    chose += f" ({counted(ties, 'tie')} left out)" if ties else ""
    by_noise = f"{100 * best.agreement:.1f} % expected by the noise, {100 * best.counted:.1f} % counted on {chose}"
    if not told.samples:
        return f"agreement: {by_noise}; no sample is left that chose nothing"
    low, high = (100 * end for end in told.interval)
    sure = f"; {told.sure_same} of {told.sure} without ties" if told.sure < told.samples else ""
    return (
        f"agreement: {100 * told.share:.1f} % of {counted(told.samples, 'sample')} that chose nothing ({low:.0f} to "
        f"{high:.0f} % with 95 % confidence{sure}); {by_noise}"
    )


def _row(point: Point, result: SearchResult) -> tuple[Any, ...]:
    which = (listed(point.rules, 2) or "none") + (f", quantized anew ({point.anew})" if point.anew else "")
    mark = "best" if point == result.best else None
    times = point.latency_ms / max(result.base.latency_ms, 1e-9)
    return (point.bytes / 1e6, point.latency_ms, times, point.sqnr_db, 100 * point.agreement, which, mark)
