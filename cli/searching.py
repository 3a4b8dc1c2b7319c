"""`mge-quantize search`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from megengine.cli import frontier, images
from megengine.cli.app import FailedError, common
from megengine.cli.choices import Choice
from megengine.cli.models import InputChoices, chosen_graph, load_calls, shape_option
from megengine.cli.output import Output, check_suffix
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.ptq import check_varies, data_of, data_option, held_out_option, preprocess_option, samples_option
from megengine.cli.samples import Samples
from megengine.core.errors import listed
from megengine.core.files import replacing
from megengine.core.text import counted
from megengine.quantization import EFFORTS, PRECISIONS, Budget, Point, QuantConfig, SearchResult
from megengine.quantization import search as find
from megengine.quantization.checks import require_float
from megengine.quantization.pipeline.config import CHOICES
from megengine.quantization.pipeline.profiles import PROFILES
from megengine.traced_module import lower


@click.command()
@click.argument("model")
@data_option(required=True)
@preprocess_option
@samples_option
@held_out_option
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
    state, picture = state or output.with_suffix(".json"), picture or output.with_suffix(".svg")
    goes_on = state.exists()
    inputs = [model, data, *images.recipe_files(preprocess)]
    check_outputs([("--output", output)], inputs, overwrite=overwrite or goes_on)
    most = options.pop("max_mb")
    limits = {"latency": options.pop("max_latency"), "agreement": options.pop("min_agreement")}
    budget = Budget(bytes=None if most is None else int(most * 1e6), sqnr_db=options.pop("min_sqnr"), **limits)
    smaller, finer = options.pop("smaller"), options.pop("finer")
    source = lower(chosen_graph(load_calls(model, shapes, dynamic=False), None))
    require_float(source.graph)
    chosen = Samples(data_of(data, preprocess, samples, source, out).reader, held_out)
    check_varies(source.graph, chosen.reader, data)
    if goes_on:
        out.say(f"going on from {state}")
    with out.progress("search", None) as bar:
        result = find(
            source,
            chosen,
            chosen.held_out(),
            budget,
            QuantConfig.of(**options),
            smaller=smaller,
            finer=finer,
            state=state,
            output=output,
            progress=lambda stage, *counts: bar.show(f"search: {stage}", *counts),
        )
    columns = ("MB", "ms", "times", "SQNR dB", "agreement %", "rules", "")
    out.table("Networks that no other beats", columns, [_row(p, result) for p in result.pareto])
    title = f"{Path(model).name}: {counted(len(result.points), 'network')}"
    with replacing(picture) as file:
        file.write(frontier.picture(title, result, budget).encode())
    out.say(f"measured on {chosen.scored_on()}; wrote {output}, {picture} and {state}")
    best = {**asdict(result.best), "missed": result.missed}
    out.result({"model": model, "best": best, "pareto": [asdict(p) for p in result.pareto], "noise": result.noise})
    if result.missed:
        raise FailedError(
            f"search: no network keeps all budgets; the nearest, in {output}, misses them by {result.missed:.1%}"
        )


def _row(point: Point, result: SearchResult) -> tuple[Any, ...]:
    which = listed(point.rules, 2) or "none"
    mark = "best" if point == result.best else None
    times = point.latency_ms / max(result.base.latency_ms, 1e-9)
    return (point.bytes / 1e6, point.latency_ms, times, point.sqnr_db, 100 * point.agreement, which, mark)
