"""One self-contained HTML page: scores, layers, ranges, graphs, recipe, environment. Names in it are hostile text."""

import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np

from megengine.cli.drawing_parts import HEIGHT, WIDTH, both_histograms, channel_ranges
from megengine.cli.output import cell_text
from megengine.cli.records import version
from megengine.kernels import isa
from megengine.traced_module import InternalGraph
from megengine.traced_module.pictures.page import embedded, hash_of, page_data, viewer
from megengine.traced_module.pictures.texts import printable

BARS, MANY = 44, 100
_MARKED = ("", "the lowest", "the two lowest", "the three lowest", "the four lowest", "the five lowest")
_NUMBER = re.compile(r"[-+−]?(\d[\d., ]*(e[-+]?\d+)?|inf|nan|exact|equal|reference)( of \d+)?( ?(%|dB|ms|[kMG]?B))?")
WORDS = {
    "SQNR": "signal to quantization noise: the power of the float values over that of the difference from them, in "
    "decibels. At 20 dB the difference is 10 % of the values, at 30 dB 3 %, at 40 dB 1 %.",
    "cosine": "of the angle between the float values and those that the integers stand for; 1 if they are parallel.",
    "same first class": "the share of samples for which the greatest result stands at the same place as in float, "
    "right or wrong; top-1 and top-5 are the shares whose label is there, or among the first five.",
    "edge": "a value that goes from one layer to the next. A number on it is scale * (integer - zero).",
    "verify": "runs the integer network three times: as the specification in NumPy, op by op (eager), and compiled "
    "(the plan, which is what is timed). Exact: all integers are equal.",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One network in the report.

    `facts` and `scores` (the header first, under a title) are shown as a list and a table, `drawing` is the address
    of a picture of the scores. `layers` are edges as `EdgeReport` has them, as dictionaries, with `statistics` by
    their names; `floating` are `FloatOp`s as dictionaries, and `floating_line` sums them up. `headline` concludes,
    `notes` are kinds and texts of what was found, `sensitivity` are `LayerReport`s as dictionaries, `pictures`
    inputs with predictions (`drawing_parts.predictions`). `graph` is the integer graph, `plan` the text of the
    plan, `verify` the line of the check, which held if `exact`. Where models are compared, `pairs` are `ValuePair`s
    as dictionaries, `runs` settings with a cell for each model, the header first.
    """

    name: str
    facts: Mapping[str, str] = field(default_factory=dict)
    scores: Sequence[Sequence[str]] = ()
    scores_title: str = "Float and int8 on the same pictures"
    layers: Sequence[Mapping[str, Any]] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    floating: Sequence[Mapping[str, Any]] = ()
    floating_line: str = ""
    headline: str = ""
    notes: Sequence[tuple[str, str]] = ()
    sensitivity: Sequence[Mapping[str, Any]] = ()
    pictures: Sequence[Mapping[str, Any]] = ()
    pairs: Sequence[Mapping[str, Any]] = ()
    runs: Sequence[Sequence[str]] = ()
    graph: InternalGraph | None = None
    plan: str = ""
    verify: str = ""
    exact: bool = True
    drawing: str = ""


def environment() -> dict[str, str]:
    """Versions, processor and instruction set, on which the numbers depend."""
    packages = {name: version(name) for name in ("megengine", "numpy", "onnx", "onnxruntime", "onednn-cpu-gomp")}
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "instruction set": f"{isa.active()} (the machine has {isa.detected()})",
        **{name: version for name, version in packages.items() if version},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"


def render(title: str, sections: Sequence[Section], *, recipe: Mapping[str, Any], lines: Sequence[str] = ()) -> str:
    """The page: `recipe` holds the settings of the quantization, `lines` are remarks under the heading.

    The template engine escapes every text; the page loads nothing from elsewhere.
    """
    import jinja2

    loader = jinja2.PackageLoader("megengine.cli", "templates")
    templates = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_visible
    )
    templates.filters.update(number=number, decibel=decibel, percent=percent)
    script = resources.files("megengine.cli").joinpath("templates/report.js").read_text(encoding="utf-8")
    frame, allowed = viewer()
    return templates.get_template("report.html.j2").render(
        script=script,
        allowed=[hash_of(script), allowed],
        viewer=embedded(frame) if any(section.graph is not None for section in sections) else "",
        title=title,
        sections=[_prepared(section) for section in sections],
        recipe=recipe,
        lines=lines,
        words=WORDS if any(section.layers or section.scores or section.pairs for section in sections) else {},
        environment=environment(),
    )


def _visible(value: Any) -> Any:
    """Text without invisible, reordering and invalid characters; markup is not changed."""
    return printable(value) if type(value) is str else value


def _prepared(section: Section) -> dict[str, Any]:
    worst = _lowest(section.layers)
    rows = []
    for layer in section.layers:
        stats = section.statistics.get(layer["name"])
        ends = layer["representable"]
        drawn = both_histograms(layer.get("histogram"), ends) or histogram(stats, ends)
        node = "" if section.graph is None else _box_of(layer["name"], section.graph)
        more = {"worst": layer["name"] in worst, "histogram": drawn, "node": node}
        rows.append({**layer, **more})
    worst = _lowest(section.pairs)
    boxes = () if section.graph is None else section.graph.names
    pairs = [
        {**one, "worst": one["name"] in worst, "node": one["other"] if one["other"] in boxes else ""}
        for one in section.pairs
    ]
    runs = [(row, len(set(row[1:])) > 1) for row in section.runs]
    layers = [
        {**one, "ranges": channel_ranges(one["weight_low"], one["weight_high"])}
        for one in sorted(section.sensitivity, key=lambda one: -_finite(one["gain"]))
    ]
    return {
        **{name: getattr(section, name) for name in Section.__slots__},
        "numeric": [all(map(_is_number, column)) for column in zip(*section.scores[1:], strict=True)],
        "layers": rows,
        "pairs": pairs,
        "runs": runs,
        "marked": f"{said} SQNR in red; " if (said := _MARKED[_marked(len(rows or pairs))]) else "",
        "sensitivity": layers,
        "profile": profile(rows or pairs),
        "graph_data": "" if section.graph is None else embedded(_coloured(page_data([section.graph]), rows or pairs)),
    }


def _is_number(cell: str) -> bool:
    """Whether a cell of the scores is a number, with or without a sign or a unit, or a dash for none."""
    return not cell or cell in "-–" or bool(_NUMBER.fullmatch(cell))


def _lowest(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The names of the rows of lowest ratio: five, of few rows a quarter."""
    return {row["name"] for row in sorted(rows, key=lambda row: _finite(row["sqnr_db"]))[: _marked(len(rows))]}


def _marked(count: int) -> int:
    """How many of so many rows are marked."""
    return min(len(_MARKED) - 1, count // 4)


def _box_of(name: str, graph: InternalGraph) -> str:
    """The box of the integer graph that makes an edge; "" if there is none."""
    return next((name + more for more in ("_int", "_rq", "_q", "") if name + more in graph.names), "")


def _coloured(data: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Page data whose boxes know the noise of their edge: from 0 at 60 dB to 1 at 0 dB."""
    noise = {row["node"]: row["sqnr_db"] for row in rows if row["node"]}
    for graph in data["graphs"]:
        for box in graph["nodes"]:
            if box["name"] in noise:
                ratio = _finite(noise[box["name"]])
                box["noise"] = round(min(1.0, max(0.0, 1 - ratio / 60)), 3)
                box["ratio"] = f"SQNR {decibel(ratio)}" + ("" if math.isinf(ratio) else " dB")
    return data


def _finite(value: float | None) -> float:
    return math.inf if value is None else value


def histogram(stats: Any, representable: Sequence[float]) -> dict[str, Any] | None:
    """Bars (square root of the counts) over the range of the values, and the ends of the integers, in pixels."""
    if stats is None or not stats.count:
        return None
    counts, edges = stats.histogram.counts, stats.histogram.edges
    low, high = float(edges[0]), float(edges[-1])
    span = (high - low) or 1.0
    slots = np.minimum((np.arange(len(counts)) * BARS) // len(counts), BARS - 1)
    bars = np.sqrt(np.bincount(slots, counts, BARS))
    tall = bars / max(bars.max(), 1e-30) * HEIGHT
    step = WIDTH / BARS
    shapes = [
        {"x": round(i * step, 1), "y": round(HEIGHT - h, 1), "w": round(step * 0.9, 1), "h": round(float(h), 1)}
        for i, h in enumerate(tall)
        if h > 0
    ]
    marks = [round((end - low) / span * WIDTH, 1) for end in representable if low <= end <= high]
    return {"bars": shapes, "marks": marks, "width": WIDTH, "height": HEIGHT, "low": low, "high": high}


def profile(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """SQNR along the network: an SVG line with a dot for each edge, and the places of both axes' numbers.

    An edge without error is drawn at the top.
    """
    values = [row["sqnr_db"] for row in rows]
    known = [v for v in values if v is not None and math.isfinite(v)]
    if len(known) < 2:
        return None
    width, height = 900, 170
    top, bottom = max(10 * math.ceil(max(known) / 10), 10), min(0, 10 * math.floor(min(known) / 10))
    across, down = width / (len(values) - 1), height / (top - bottom)
    dots = [
        {
            "x": round(index * across, 1),
            "y": round((top - min(_finite(row["sqnr_db"]), top)) * down, 1),
            "row": index + 1,
            "worst": row["worst"],
            "text": f"{index + 1}: {row['name']}, {decibel(row['sqnr_db'])}",
        }
        for index, row in enumerate(rows)
    ]
    return {
        "dots": dots,
        "points": " ".join(f"{dot['x']},{dot['y']}" for dot in dots),
        "radius": 3.2 if len(dots) <= MANY else 2,
        "grid": [(db, round((top - db) * down, 1)) for db in range(bottom, top + 1, _step(top - bottom, 10))],
        "ticks": [
            (i, round((i - 1) * across, 1)) for i in range(1, len(values) + 1) if i == 1 or not i % _step(len(values))
        ],
        "width": width,
        "height": height,
    }


def _step(span: int, least: int = 1) -> int:
    """The distance of the numbers of an axis: 1, 2 or 5 with zeros, so that there are at most 12."""
    return next(
        step for zeros in range(20) for one in (1, 2, 5) if span / (step := one * 10**zeros) <= 12 and step >= least
    )


def number(value: Any) -> str:
    """Four significant digits; a dash for nothing."""
    return "–" if value is None else cell_text(value)


def decibel(value: float | None) -> str:
    """One decimal; no error at all is `exact`."""
    return "exact" if value is None or math.isinf(value) else f"{round(value, 1) + 0.0:.1f}"  # 0.0, not -0.0


def ratio_words(value: float) -> str:
    """`SQNR 20.3 dB`, or `exact`."""
    return "exact" if value == math.inf else f"SQNR {decibel(value)} dB"


def percent(value: float) -> str:
    """A part of one in percent."""
    return "0" if value == 0 else f"{100 * value:.3g} %"
