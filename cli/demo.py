"""`mge-quantize demo`: three published networks on real photographs, float against exact int8."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from megengine import plan
from megengine.cli import quantizing, report
from megengine.cli.app import FailedError, common, examples
from megengine.cli.assets import downloaded
from megengine.cli.choices import Choice
from megengine.cli.evaluation import Score, logits_of, score
from megengine.cli.measuring import interleaved, verify_line
from megengine.cli.networks import NETWORKS, Calibration, Network
from megengine.cli.output import Output, check_suffix, output_file
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.photos import PhotoSet, photo_set
from megengine.cli.quantizing import quantize_with_progress, sizes
from megengine.core.text import counted, in_bytes
from megengine.quantization import QuantConfig
from megengine.quantization.checks.verify import verify

HEADER = ("network", "top-1", "top-5", "agrees with float", "logit SQNR dB", "MB", "ms")


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of the demo for one network."""

    network: Network
    scores: tuple[Score, Score]
    bytes: tuple[int, int]
    ms: tuple[float, float]
    verify: Any
    model: Any
    analysis: Any
    plan: str

    def rows(self) -> list[tuple[str, ...]]:
        """Float and int8 rows of the table, as text."""
        lines = []
        for kind, one, size, ms in zip(("float32", "int8"), self.scores, self.bytes, self.ms, strict=True):
            same = ("-", "-") if kind == "float32" else (f"{100 * one.agreement:.1f} %", f"{one.sqnr:.1f}")
            top = (f"{100 * one.top1:.1f} %", f"{100 * one.top5:.1f} %")
            lines.append((f"{self.network.title} {kind}", *top, *same, f"{size / 1e6:.2f}", f"{ms:.2f}"))
        return lines

    def headline(self) -> str:
        """The result in a sentence."""
        whole, low = self.scores
        exact = "equal the specification in every value" if self.verify.exact else "do not equal the specification"
        return (
            f"int8 shows float's first class for {100 * low.agreement:.1f} % of {counted(low.count, 'picture')}, with "
            f"top-1 {100 * low.top1:.1f} % against {100 * whole.top1:.1f} %, in {self.ms[1] / self.ms[0]:.2f} of its "
            f"time and {self.bytes[1] / self.bytes[0]:.2f} of its bytes; its integers {exact}"
        )

    def describe(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "network": self.network.name,
            "float": {**self.scores[0].describe(), "bytes": self.bytes[0], "ms": self.ms[0]},
            "int8": {**self.scores[1].describe(), "bytes": self.bytes[1], "ms": self.ms[1]},
            "verify": {"exact": self.verify.exact, "line": verify_line(self.verify)},
        }


@click.command(
    epilog=examples(
        "demo -o demo.html",
        "demo --network squeezenet1_1 --json",
    )
)
@path_option("-o", "--output", default=Path("demo-out/report.html"), show_default=True, help="The HTML page to write.")
@click.option("--network", "names", multiple=True, type=Choice(list(NETWORKS)), help="Only this one; repeat.")
@click.option("--views", type=Choice(["plain", "all"]), default="plain", show_default=True, help="1 or 8 each.")
@click.option("--verify-pictures", type=click.IntRange(1), default=4, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=30, show_default=True, help="Rounds of timing.")
@overwrite_option
@common
def demo(output: Path, names: tuple[str, ...], views: str, overwrite: bool, out: Output, **options: Any) -> None:
    """Quantize MobileNetV2, EfficientNet-Lite0 and SqueezeNet 1.1 with published weights, and report."""
    check_suffix("--output", output, {".html": "a page"})
    check_outputs([("--output", output)], [str(path) for path in downloaded()], overwrite=overwrite)
    if not output.parent.exists():
        output.parent.mkdir(parents=True)
    with output_file(output) as temporary:
        photos = photo_set(say=out.say, views=views)
        measured = []
        for name in names or NETWORKS:
            measured.append(measure(NETWORKS[name], photos, out, **options))
            out.table(NETWORKS[name].title, HEADER, measured[-1].rows())
            out.say(f"verify: {verify_line(measured[-1].verify)}")
        out.table("Float and int8", HEADER, [row for one in measured for row in one.rows()])
        temporary.write_text(_page(measured, photos), encoding="utf-8")
    out.say(f"wrote {output} ({in_bytes(output.stat().st_size)}): open it in a browser")
    out.result({"photographs": photos.line, "networks": [one.describe() for one in measured], "report": str(output)})
    if not all(one.verify.exact for one in measured):
        raise FailedError("verify: the integer network is not exact; see the lines above")


def measure(network: Network, photos: PhotoSet, out: Output, *, verify_pictures: int, rounds: int) -> Measured:
    """Quantize one network and measure both forms."""
    traced = network.traced(say=out.say)
    data = Calibration(photos, network.recipe)
    model = quantize_with_progress(traced, data, QuantConfig(), out, network.title)
    plans = [plan.compile(graph, threads=1) for graph in (model.float_graph, model.integer_graph)]
    views = photos.evaluation
    logits = []
    for kind, compiled in zip(("float", "int8"), plans, strict=True):
        with out.progress(f"{network.title}: {kind} on {counted(len(views), 'picture')}", len(views)) as bar:
            inputs = (view.array(network.recipe) for view in views)
            logits.append(logits_of(lambda x, run=compiled: run(x)[0], inputs, bar.step))
    labels = [view.photo.ids for view in views]
    pictures = [view.array(network.recipe) for view in views[:verify_pictures]]
    x = pictures[0]
    ms = interleaved({"float": lambda: plans[0](x), "int8": lambda: plans[1](x)}, rounds=rounds)
    return Measured(
        network,
        (score(logits[0], logits[0], labels), score(logits[1], logits[0], labels)),
        sizes(model),
        (ms["float"], ms["int8"]),
        verify(model, [(p,) for p in pictures]),
        model,
        model.analyze(list(islice(data, 4))),
        plans[1].describe(),
    )


def _page(measured: list[Measured], photos: PhotoSet) -> str:
    sections = []
    for one in measured:
        low = one.scores[1]
        facts = {
            "same first class as float": f"{100 * low.agreement:.1f} %",
            "logit SQNR": f"{report.decibel(low.sqnr)} dB",
            "top-1, float → int8": f"{100 * one.scores[0].top1:.1f} → {100 * low.top1:.1f} %",
            "weights": f"{in_bytes(one.bytes[0])} → {in_bytes(one.bytes[1])}",
            "CPU time, one thread": f"{one.ms[0]:.3g} → {one.ms[1]:.3g} ms",
        }
        scores = [HEADER, *one.rows()]
        more = {"scores": scores, "plan": one.plan, "verify": verify_line(one.verify), "exact": one.verify.exact}
        more["headline"] = one.headline()
        sections.append(quantizing.section(one.network.title, one.model, one.analysis, facts=facts, **more))
    recipe = quantizing.recipe_of(QuantConfig(), f"{counted(len(photos.calibration), 'photograph')}, not evaluated")
    prepared = {f"pictures of {m.network.title}": str(m.network.recipe) for m in measured}
    lines = [conclusion(measured), photos.line, "So few pictures move top-1 by points: read it with the agreement."]
    return report.render("Float and exact int8", sections, recipe={**recipe, **prepared}, lines=lines)


def conclusion(measured: Sequence[Measured]) -> str:
    """All networks in a sentence."""
    same = sorted(100 * one.scores[1].agreement for one in measured)
    parts = [(one.ms[1] / one.ms[0], one.bytes[1] / one.bytes[0]) for one in measured]
    times, sizes = (sorted(column) for column in zip(*parts, strict=True))
    exact, shows = sum(one.verify.exact for one in measured), "shows" if len(measured) == 1 else "show"
    return (
        f"Quantized from 32-bit floats to 8-bit integers, {counted(len(measured), 'network')} {shows} the same first "
        f"class as before for {_span(same, '.1f')} % of the pictures, in {_span(times, '.2f')} of the time and "
        f"{_span(sizes, '.2f')} of the bytes. The integers of {exact} of {len(measured)} equal the specification."
    )


def _span(ordered: Sequence[float], form: str) -> str:
    """The least and the greatest of numbers, as text."""
    ends = [f"{number:{form}}" for number in (ordered[0], ordered[-1])]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)
