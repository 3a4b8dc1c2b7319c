"""The pages of `evaluate` and `compare`: models side by side on the same samples, and the runs that made them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megengine.cli import records, report
from megengine.cli.drawing_parts import predictions
from megengine.cli.evaluation import Score
from megengine.cli.sources import Data
from megengine.core.errors import listed
from megengine.core.text import counted, share_of
from megengine.quantization.checks import Comparison
from megengine.traced_module import TracedModule

SHOWN = 12  # samples with their pictures
NEAR = 20  # rows of differing samples

Runs = Sequence[tuple[str, ...]]


def runs_of(models: Iterable[tuple[str, TracedModule]]) -> Runs:
    """The records of those models that have one: a header, then a row for each setting, those that differ first; () if
    there are none.
    """
    known = [(name, model.graph.metadata) for name, model in models if records.METADATA in model.graph.metadata]
    tables = {name: _flat(records.shown(metadata, name)) for name, metadata in known}
    keys = dict.fromkeys(key for table in tables.values() for key in table)
    rows = [(key, *(table.get(key, "") for table in tables.values())) for key in keys]
    return [("setting", *tables), *sorted(rows, key=lambda row: len(set(row[1:])) == 1)] if tables else ()


def _flat(record: Mapping[str, Any]) -> dict[str, str]:
    rows = {}
    for part, value in record.items():
        pairs = {f"{part}: {key}": one for key, one in value.items()} if isinstance(value, dict) else {part: value}
        rows |= {key: one if isinstance(one, str) else json.dumps(one) for key, one in pairs.items()}
    return rows


def differing(runs: Runs) -> Runs:
    """The rows of the settings in which the models differ."""
    return [row for row in runs[1:] if len(set(row[1:])) > 1]


# ---------------------------------------------------------------- evaluate


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model on the samples: its first result [samples, numbers], its score, bytes of its constants.

    `classes`: the numbers are one row of classes. `results`: how many results the model has.
    """

    name: str
    logits: np.ndarray
    score: Score
    size: int
    labelled: bool
    classes: bool = True
    results: int = 1

    def against(self, first: Evaluated) -> str:
        """The comparison with the first model in a sentence."""
        one = self.score
        ratio = "equal results" if one.sqnr == float("inf") else f"SQNR {report.decibel(one.sqnr)} dB"
        tops = " against ".join(share_of(x.top1, x.count) for x in (one, first.score))
        top = f", top-1 {tops}" if self.labelled else ""
        ratio += f" of the first of {counted(self.results, 'result')}" if self.results > 1 else ""
        same = f"the same first class for {share_of(one.agreement, one.count)}, " if self.classes else ""
        return (
            f"{self.name} against {first.name}: {ratio}, {same}on {counted(one.count, 'sample')}{top}, "
            f"{self.size / max(first.size, 1):.2g} times the bytes"
        )


def conclusion(models: Sequence[Evaluated]) -> str:
    """The result of an evaluation in a sentence."""
    first, *others = models
    if not others:
        one = first.score
        top = f"top-1 {share_of(one.top1, one.count)}" if first.labelled else "no labels, and nothing to compare with"
        return f"{first.name}: {top}, on {counted(one.count, 'sample')}"
    nearest = max(others, key=lambda one: (one.score.sqnr, one.score.agreement))
    return nearest.against(first) + (f"; the nearest of {len(others)}" if len(others) > 1 else "")


def evaluation_page(models: Sequence[Evaluated], scores: Sequence[Sequence[str]], data: Data, labels: str | None,
                    runs: Runs) -> str:  # fmt: skip
    """The page of `evaluate`: the scores, then each model against the first, with samples that differ."""
    first, *others = models
    facts = {"samples": str(first.score.count), "models": str(len(models))}
    whole = report.Section(
        "Side by side", facts, scores, "Models on the same samples", headline=conclusion(models), runs=runs
    )
    sections = [whole, *(_against(first, one, data) for one in others)]
    recipe = {"models": ", ".join(one.name for one in models), **_recipe(data), "labels": labels or "none"}
    return report.render(f"{counted(len(models), 'model')} on the same data", sections, recipe=recipe)


def _recipe(data: Data) -> dict[str, str]:
    return {"data": data.reader.name, **({"pictures": str(data)} if data.how is not None else {})}


def _against(first: Evaluated, other: Evaluated, data: Data) -> report.Section:
    if not other.classes:
        facts = {"SQNR": f"{report.decibel(other.score.sqnr)} dB", "cosine": f"{other.score.cosine:.5f}"}
        return report.Section(_title(first, other), facts, headline=other.against(first))
    before, after = first.logits.argmax(1), other.logits.argmax(1)
    others = np.flatnonzero(before != after)
    facts = {
        "same first class": share_of(other.score.agreement, other.score.count),
        "SQNR": f"{report.decibel(other.score.sqnr)} dB",
        "cosine": f"{other.score.cosine:.5f}",
        "differing samples": str(len(others)),
    }
    notes = [(data.reader.named(i), f"class {before[i]} becomes {after[i]}") for i in others[:NEAR]]
    wanted = [*others[:SHOWN], *np.flatnonzero(before == after)[: max(0, SHOWN - len(others))]]
    inputs = _samples(data, {int(i) for i in wanted})
    rows = [int(i) for i in wanted if int(i) in inputs]
    samples = [(inputs[i], first.logits[i], other.logits[i]) for i in rows]
    pictures = predictions(samples, data.how, SHOWN)
    shown = [{**one, "number": rows[one["number"] - 1] + 1} for one in pictures]
    return report.Section(_title(first, other), facts, headline=other.against(first), notes=notes, pictures=shown)


def _title(first: Evaluated, other: Evaluated) -> str:
    return f"{Path(other.name).name} against {Path(first.name).name}"


def _samples(data: Data, wanted: set[int]) -> dict[int, np.ndarray]:
    """Some samples of the first input by their place, each [1, ...]."""
    kept, start = {}, 0
    for batch in data.reader:
        kept |= {i: batch[0][i - start : i - start + 1] for i in wanted if start <= i < start + len(batch[0])}
        start += len(batch[0])
        if start > max(wanted, default=0):
            break
    return kept


# ---------------------------------------------------------------- compare


def compared(found: Comparison) -> str:
    """The result of a comparison of values in a sentence."""
    share = found.output_agreement
    same = "" if share is None else f", the same first class for {share_of(share, found.output_samples)}"
    fall = "" if found.steepest is None else f"; most noise comes in at {found.steepest.name}"
    if found.steepest is not None and (before := found.unseen.get(found.steepest.name)):
        fall += f", where {listed(before[0], 3)} became {listed(before[1], 3)}"
    ratio = (
        "equal in every value"
        if found.output_sqnr_db == float("inf")
        else f"SQNR {report.decibel(found.output_sqnr_db)} dB"
    )
    return (
        f"results: {ratio}, cosine {found.output_cosine:.5f}{same}, on {counted(found.batches, 'sample')}{fall}; "
        f"{counted(len(found.values), 'value')} compared, {found.missing} without a partner"
    )


def comparison_page(names: Sequence[str], found: Comparison, headline: str, data: Data, runs: Runs) -> str:
    """The page of `compare`: the ratio along the network, a row for each value, and both runs."""
    short = [Path(name).name for name in names]
    same = found.output_agreement
    facts = {
        "output SQNR": f"{report.decibel(found.output_sqnr_db)} dB",
        "output cosine": f"{found.output_cosine:.5f}",
        **({} if same is None else {"same first class": share_of(same, found.output_samples)}),
        "values compared": str(len(found.values)),
    }
    steepest = found.steepest
    section = report.Section(
        f"{short[1]} against {short[0]}",
        facts,
        headline=headline,
        notes=[] if steepest is None else [("most noise comes in at", f"{steepest.name} ({steepest.op})")],
        pairs=found.to_json()["values"],
        runs=runs,
    )
    recipe = {"models": ", ".join(names), **_recipe(data), "samples": str(found.batches)}
    return report.render(f"{short[0]} and {short[1]}, value by value", [section], recipe=recipe)
