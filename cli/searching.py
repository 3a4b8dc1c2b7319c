"""`mge-quantize search`."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click

from megengine.cli import frontier, images, records
from megengine.cli.app import FailedError, common, examples
from megengine.cli.choices import FILE, Choice, Number
from megengine.cli.common_options import data_options, layers_options
from megengine.cli.made_pages import Made, made_page
from megengine.cli.models import InputChoices, chosen_graph, load_calls, shape_option
from megengine.cli.output import Output, check_suffix, check_writable, kept_after_interrupt
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.refusals import check_varies, check_weights
from megengine.cli.report import decibel
from megengine.cli.samples import Samples, tell_suspicious
from megengine.cli.sources import Data, data_of
from megengine.cli.unprepared import tell_unprepared
from megengine.core.errors import listed
from megengine.core.files import replacing
from megengine.core.text import counted, in_bytes, share_of
from megengine.quantization import EFFORTS, PRECISIONS, Budget, LatencyTable, Point, QuantConfig, SearchResult
from megengine.quantization import search as find
from megengine.quantization.checks import require_float
from megengine.quantization.pipeline.config import CHOICES
from megengine.quantization.pipeline.profiles import PROFILES
from megengine.traced_module import TracedModule, lower
from megengine.traced_module.formats import native

_PARETO, _COLUMNS = "Networks that no other beats", ("MB", "ms", "times", "SQNR dB", "agreement %", "rules", "")
JUDGING = 2  # one of so many samples judges: a few dozen tell agreement to a few per cent only


@click.command(
    epilog=examples(
        "search net.onnx --data x.npy -o best.mgt --max-mb 2.5 --min-agreement 0.5",
    )
)
@click.argument("model", type=FILE)
@data_options(required=True)
@click.option(
    "--held-out",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="One of two samples, at most this many, judges the networks and does not calibrate; digests choose which.",
)
@path_option(
    "-o", "--output", required=True, help="The best network so far, .mgt; written whenever a better one is met."
)
@path_option("--state", help="File of what was measured; the search goes on from it.  [default: OUTPUT with .json]")
@path_option("--picture", help="Picture of all networks by size, time and accuracy, .svg.  [default: OUTPUT with .svg]")
@click.option("--max-mb", type=Number(0, min_open=True), help="Budget: megabytes of stored weights.")
@click.option(
    "--max-latency",
    type=Number(0, min_open=True),
    help="Budget: times the network that is all as --effort says.",
)
@path_option("--report", "report_path", help="Write a self-contained .html report of the best network too.")
@click.option(
    "--latency-table",
    type=FILE,
    metavar="FILE",
    help="Times of a device, .csv or .json with op, shape, bits, ms; by it networks are timed, not by measuring.",
)
@path_option("--save-latencies", help="Write what was measured as such a table.")
@click.option("--min-agreement", type=Number(0, 1, min_open=True), help="Budget: share of equal predictions.")
@click.option("--min-sqnr", type=Number(), help="Budget: decibel at the outputs.")
@click.option("--smaller", type=Choice([*PRECISIONS]), default="w4a8", show_default=True, help="What saves bytes.")
@click.option("--finer", type=Choice([*PRECISIONS]), default="w8a16", show_default=True, help="What saves accuracy.")
@click.option("--effort", type=Choice([*EFFORTS]), default="balanced", show_default=True)
@click.option("--weights", type=Choice(CHOICES["weights"]), default="per_channel", show_default=True)
@click.option("--profile", type=Choice([*PROFILES]), default="x86", show_default=True, help="Target.")
@layers_options
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
    report_path: Path | None,
    latency_table: str | None,
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
    state, picture = state or output.parent / f"{output.stem}.json", picture or output.parent / f"{output.stem}.svg"
    files = Files(output, picture, state, save_latencies, report_path)
    table = _table(latency_table, save_latencies)
    inputs = [model, data, *images.recipe_files(preprocess), *([latency_table] if latency_table else [])]
    goes_on = files.check(inputs, overwrite=overwrite)
    budget = _budget(options)
    words = {name: options.pop(name) for name in ("smaller", "finer")}
    source = lower(chosen_graph(load_calls(model, shapes, dynamic=False), None))
    require_float(source.graph)
    check_weights(source)
    source_data = data_of(data, preprocess, samples, source, out)
    check_varies(source.graph, source_data.reader, data)
    chosen = _chosen(source_data, held_out, out)
    tell_unprepared(out, source.graph, source_data.reader)
    _store_record(source, source_data, chosen)
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
    _write(files, model, source, chosen, source_data, budget, result)
    _tell(out, result, chosen.scored_on(), files.written)
    out.result({"model": model, **_described(result)})
    if result.missed:
        raise FailedError(
            f"search: no network keeps all budgets; the nearest, in {output}, misses them by {result.missed:.1%}"
        )


@dataclass(frozen=True, slots=True)
class Files:
    """What a search writes."""

    output: Path
    picture: Path
    state: Path
    latencies: Path | None
    report: Path | None

    @property
    def written(self) -> list[Path]:
        """All that are wanted."""
        return [getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None]

    def check(self, inputs: list[str], *, overwrite: bool) -> bool:
        """Refuse what cannot be written, before anything is measured; whether there is a search to go on with."""
        check_suffix("--output", self.output, {".mgt": "our format"})
        check_suffix("--picture", self.picture, {".svg": "vector graphics"})
        check_suffix("--report", self.report, {".html": "a page"})
        goes_on = self.state.exists()
        options = ("--output", self.output), ("--save-latencies", self.latencies), ("--report", self.report)
        check_outputs(options, inputs, overwrite=overwrite or goes_on)
        check_writable(*self.written)
        return goes_on


def _write(
    files: Files, model: str, source: TracedModule, samples: Samples, data: Data, budget: Budget, result: SearchResult
) -> None:
    """Write the picture, and where they are wanted the latencies and the page of the best network."""
    title = f"{Path(model).name}: {counted(len(result.points), 'network')} tried"
    drawn = frontier.picture(title, result, budget)
    with replacing(files.picture) as file:
        file.write(drawn.encode())
    if files.latencies is not None:
        result.table.save(files.latencies)
    if files.report is not None:
        held = samples.held_out(), samples.scored_on(), f"{_best(result)}; {_judged(result)}"
        rows = [_COLUMNS, *(_row(p, result) for p in result.pareto)]
        rules = [("rule", rule) for rule in result.best.rules]
        made = Made(model, source.graph, native.load(files.output).graph, *held, _PARETO, rows, rules, drawn)
        with replacing(files.report) as file:
            file.write(made_page(made, data, title).encode())


def _chosen(source_data: Data, held_out: int, out: Output) -> Samples:
    """The samples that calibrate and those that judge; warnings about them are printed."""
    chosen = Samples(source_data.reader, held_out, JUDGING)
    with out.progress("read", source_data.reader.count) as bar:
        chosen.progress = bar.show
        tell_suspicious(out, chosen.warnings())
    return chosen


def _store_record(source: TracedModule, data: Data, samples: Samples) -> None:
    """Put into the metadata of the network, which the best one inherits, how it is made."""
    if data.how is not None:
        source.graph.metadata.update(images.to_metadata(data.how))
    digests = {"model": records.digest_of(source.graph), "data": samples.index.digest}
    record = records.record_of(digests=digests, counts=samples.counts, samples=samples.index)
    source.graph.metadata.update(records.to_metadata(record))


def _table(given: str | None, written: Path | None) -> LatencyTable | None:
    check_suffix("--save-latencies", written, {".csv": "a table", ".json": "a list of objects"})
    if given and written:
        raise click.UsageError("--save-latencies writes what is measured, and with --latency-table nothing is")
    return None if given is None else LatencyTable.load(Path(given))


def _budget(options: dict[str, Any]) -> Budget:
    """The budgets among the options, which are taken out of them. Raises click.UsageError if there is none."""
    names = ("max_mb", "max_latency", "min_agreement", "min_sqnr")
    if all(options[name] is None for name in names):
        words = " or ".join(f"--{name.replace('_', '-')}" for name in names)
        raise click.UsageError(f"Missing a budget: {words}.")
    most = options.pop("max_mb")
    limits = {"latency": options.pop("max_latency"), "agreement": options.pop("min_agreement")}
    return Budget(bytes=None if most is None else int(most * 1e6), sqnr_db=options.pop("min_sqnr"), **limits)


def _tell(out: Output, result: SearchResult, scored_on: str, written: list[Path]) -> None:
    out.table(_PARETO, _COLUMNS, [_row(p, result) for p in result.pareto])
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


def _best(result: SearchResult) -> str:
    """The network that is written, in a sentence."""
    best = result.best
    small, fast = (best.bytes / max(result.base.bytes, 1), best.latency_ms / max(result.base.latency_ms, 1e-9))
    kept = f"no network keeps all budgets; the nearest misses them by {result.missed:.1%}" if result.missed else "best"
    return (
        f"{kept}: {in_bytes(best.bytes)} and {best.latency_ms:.3g} ms, {small:.2f} and {fast:.2f} times those of the "
        f"unchanged network, with {counted(len(best.rules), 'rule')}, SQNR {decibel(best.sqnr_db)} dB"
    )


def _judged(result: SearchResult) -> str:
    """What the samples that chose nothing say of the best network, and what is expected by those that chose it."""
    judged, told, best = result.judged, result.told, result.best
    chose = f"{counted(judged.judging, 'sample')} that chose"
    ties = judged.samples - judged.judging
    chose += f" ({counted(ties, 'tie')} left out)" if ties else ""
    counted_share = share_of(best.counted, judged.judging)
    by_noise = f"{100 * best.agreement:.1f} % expected by the noise, {counted_share} counted on {chose}"
    if not told.samples:
        return f"agreement: {by_noise}; no sample is left that chose nothing"
    low, high = (100 * end for end in told.interval)
    sure = f"; {told.sure_same} of {told.sure} without ties" if told.sure < told.samples else ""
    return (
        f"agreement: {share_of(told.share, told.samples)} on {counted(told.samples, 'sample')} that chose nothing "
        f"({low:.0f} to {high:.0f} % with 95 % confidence{sure}); {by_noise}"
    )


def _row(point: Point, result: SearchResult) -> tuple[Any, ...]:
    which = (listed(point.rules, 2) or "none") + (f", quantized anew ({point.anew})" if point.anew else "")
    mark = "best" if point == result.best else None
    times = point.latency_ms / max(result.base.latency_ms, 1e-9)
    return (point.bytes / 1e6, point.latency_ms, times, point.sqnr_db, 100 * point.agreement, which, mark)
