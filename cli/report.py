"""One self-contained HTML page: scores, layers, ranges, graphs, recipe, environment. Names in it are hostile text."""

import base64
import hashlib
import importlib.metadata
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np

from megengine.traced_module.pictures.texts import printable

WIDTH, HEIGHT, BARS = 132, 26, 44


@dataclass(frozen=True, slots=True)
class Section:
    """One network in the report.

    Attributes:
        name: heading.
        facts: short label -> text, shown as a list.
        scores: rows of the accuracy table, the header first.
        layers: edges as dictionaries: name, op, module, dtype, scale, zero_point, sqnr_db, steps_sqnr_db, noise_from,
            cosine, cut, observed (low, high), representable (low, high).
        statistics: calibration statistics by edge name (with `histogram`, `minimum`, `maximum`).
        floating: ops left in float as dictionaries: name, op, module, reason, macs, share.
        floating_line: how many these are and their share of the work.
        graph_svg: picture of the integer graph, already escaped by the drawing code; empty for none.
        plan: text of the compiled plan.
        verify: one line of the check of exactness.
        exact: whether that check held.
    """

    name: str
    facts: Mapping[str, str] = field(default_factory=dict)
    scores: Sequence[Sequence[str]] = ()
    layers: Sequence[Mapping[str, Any]] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    floating: Sequence[Mapping[str, Any]] = ()
    floating_line: str = ""
    graph_svg: str = ""
    plan: str = ""
    verify: str = ""
    exact: bool = True


def environment() -> dict[str, str]:
    """What the numbers depend on: versions, processor, instruction set."""
    from megengine.kernels import isa

    packages = {name: _version(name) for name in ("megengine", "numpy", "onnx", "onnxruntime", "onednn-cpu-gomp")}
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "instruction set": f"{isa.active()} (the machine has {isa.detected()})",
        **{name: version for name, version in packages.items() if version},
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"


def render(title: str, sections: Sequence[Section], *, recipe: Mapping[str, Any], lines: Sequence[str] = ()) -> str:
    """The page. Every text is escaped by the template engine; nothing is loaded from elsewhere.

    Args:
        title: heading of the page.
        sections: one a network.
        recipe: how it was quantized, shown as a table.
        lines: remarks under the heading, such as which photographs were used.
    """
    import jinja2

    loader = jinja2.PackageLoader("megengine.cli", "templates")
    templates = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_visible
    )
    templates.filters.update(number=number, decibel=decibel, percent=percent)
    script = resources.files("megengine.cli").joinpath("templates/report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return templates.get_template("report.html.j2").render(
        script=script,
        script_hash=f"sha256-{digest}",
        title=title,
        sections=[_prepared(section) for section in sections],
        recipe=recipe,
        lines=lines,
        environment=environment(),
    )


def _visible(value: Any) -> Any:
    """Text without characters that hide, reorder or cannot be written; what is escaped already stays."""
    return printable(value) if type(value) is str else value


def _prepared(section: Section) -> dict[str, Any]:
    by_noise = sorted(section.layers, key=lambda edge: _finite(edge["sqnr_db"]))
    worst = {layer["name"] for layer in by_noise[:5]}
    rows = []
    for layer in section.layers:
        stats = section.statistics.get(layer["name"])
        rows.append(
            {
                **layer,
                "worst": layer["name"] in worst,
                "histogram": histogram(stats, layer["representable"]),
            }
        )
    values = {name: getattr(section, name) for name in Section.__slots__}
    return {**values, "layers": rows, "profile": profile_line([row["sqnr_db"] for row in rows])}


def _finite(value: float | None) -> float:
    return math.inf if value is None else value


def histogram(stats: Any, representable: Sequence[float]) -> dict[str, Any] | None:
    """Bars (square root of the counts) over the seen range, and where the integers end, in pixels."""
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


def profile_line(values: Sequence[float | None]) -> dict[str, Any] | None:
    """SQNR along the network as the points of an SVG line."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if len(known) < 2:
        return None
    width, height = 900, 120
    top, bottom = max(known), min(0.0, min(known))
    points = []
    for index, value in enumerate(values):
        y = min(_finite(value), top)
        points.append((index / (len(values) - 1) * width, height - (y - bottom) / ((top - bottom) or 1) * height))
    grid = [step for step in range(0, int(top) + 1, 10)]
    lines = [(db, round(height - (db - bottom) / ((top - bottom) or 1) * height, 1)) for db in grid]
    return {
        "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in points),
        "grid": lines,
        "width": width,
        "height": height,
    }


def number(value: Any) -> str:
    """Four significant digits; a dash for nothing."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def decibel(value: float | None) -> str:
    """One decimal; no error at all is `exact`."""
    return "exact" if value is None or math.isinf(value) else f"{value:.1f}"


def percent(value: float) -> str:
    """A part of one in percent."""
    return "0" if value == 0 else f"{100 * value:.3g} %"
