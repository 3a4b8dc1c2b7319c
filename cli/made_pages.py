"""The page of an integer network (found by `search`, trained by `qat`, in a file) beside the float network."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megengine.cli import records, report
from megengine.cli.measuring import measured
from megengine.cli.output import cell_text
from megengine.cli.readers import Batch
from megengine.cli.sources import Data
from megengine.core.text import counted, in_bytes, share_of
from megengine.quantization import stored_bytes
from megengine.quantization.checks import Comparison, compare_values
from megengine.traced_module import InternalGraph, TracedModule

COMPARED = 8  # samples on which values are compared


@dataclass(frozen=True, slots=True)
class Made:
    """A float network, the integer network made of it, and samples of which the page tells.

    Attributes:
        model: the word of the command line that names the float network.
        float_graph, integer_graph: both networks of ops.
        held: batches that score; `scored_on` says which they are.
        headline: the result in a sentence.
        scores: a table of what was tried, the header first, under the title `scores_title`.
        notes: kinds and texts of what is worth a line.
        drawing: the table as a picture, an SVG document.
        found: the values of both on the first of `held`, where they were compared already.
    """

    model: str
    float_graph: InternalGraph
    integer_graph: InternalGraph
    held: Sequence[Batch]
    scored_on: str
    headline: str
    scores_title: str = ""
    scores: Sequence[Sequence[Any]] = ()
    notes: Sequence[tuple[str, str]] = ()
    drawing: str = ""
    found: Comparison | None = None


def made_page(made: Made, data: Data, title: str) -> str:
    """The page: headline, facts, what was tried, values compared, the plan, pictures, the graph, the recipe."""
    networks = made.float_graph, made.integer_graph
    checked = TracedModule.from_graph(made.integer_graph)
    spent, parts = measured(*networks, checked, made.held, data.how)
    found = made.found or compare_values(*networks, made.held[:COMPARED])
    small = [in_bytes(stored_bytes(graph)) for graph in networks]
    same = found.output_agreement
    facts = {
        "output SQNR": f"{report.decibel(found.output_sqnr_db)} dB",
        "output cosine": f"{found.output_cosine:.5f}",
        "weights": f"{small[0]} → {small[1]}",
        **({} if same is None else {"same first class as float": share_of(same, found.output_samples)}),
        "compared on": counted(found.batches, "sample"),
        **spent,
    }
    section = report.Section(
        Path(made.model).name,
        facts,
        [*made.scores[:1], *([cell_text(cell) for cell in row] for row in made.scores[1:])],
        made.scores_title,
        drawing=f"data:image/svg+xml;base64,{base64.b64encode(made.drawing.encode()).decode()}" if made.drawing else "",
        headline=made.headline,
        notes=made.notes,
        pairs=found.to_json()["values"],
        graph=made.integer_graph,
        **parts,
    )
    return report.render(title, [section], recipe=_recipe(made, data))


def _recipe(made: Made, data: Data) -> Mapping[str, str]:
    pictures = {"pictures": str(data)} if data.how is not None else {}
    if records.METADATA not in made.integer_graph.metadata:
        return {"model": made.model, "data": data.reader.name, **pictures, "scored on": made.scored_on}
    record = records.shown(made.integer_graph.metadata, made.model)
    options = {key: _shown(value) for key, value in record["recipe"].items()}
    return {**options, **pictures, "scored on": made.scored_on, "record": json.dumps(record, sort_keys=True)}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
