"""`mge-quantize evaluate`."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np

from megengine import plan
from megengine.cli import images, pages, records
from megengine.cli.app import common, examples
from megengine.cli.choices import FILE
from megengine.cli.common_options import data_options
from megengine.cli.evaluation import Score, score
from megengine.cli.labels import labels_of
from megengine.cli.models import InputChoices, load_models, shape_option
from megengine.cli.output import Output, cell_text, check_suffix, output_file
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.refusals import check_weights
from megengine.cli.samples import LEAST, small_score, tell_suspicious
from megengine.cli.sources import Data, data_of
from megengine.core.errors import OptionError, QuantizationError, ShapeError
from megengine.core.text import FEW, counted, share_of
from megengine.quantization import stored_bytes

MOST = 20  # differing samples that --json lists for a model


@click.command(epilog=examples("evaluate net.onnx q.mgt --data x.npy", "evaluate net.onnx q.mgt --data x.npy --json"))
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@data_options(required=True)
@click.option(
    "--labels",
    type=FILE,
    metavar="FILE",
    help="The classes of the samples: .npy, or .txt / .csv with a line for each sample (or each picture: its path, a "
    "comma, its class); spaces separate classes that are all right. Or the word folders: pictures lie in a folder for "
    "each class, in the order of names.",
)
@path_option("--report", "report_path", help="Write a self-contained .html report too.")
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True)
@overwrite_option
@shape_option
@common
def evaluate(
    models: tuple[str, ...],
    data: str,
    preprocess: str | None,
    labels: str | None,
    report_path: Path | None,
    overwrite: bool,
    out: Output,
    **options: Any,
) -> None:
    """Score MODELs side by side on the same data: top-1 and top-5 by labels, and likeness to the first of them.

    The report concludes, shows samples that differ, and sets the runs that made the models side by side.
    """
    check_suffix("--report", report_path, {".html": "a page"})
    inputs = [*models, data, *([] if labels in (None, "folders") else [labels]), *images.recipe_files(preprocess)]
    check_outputs([("--report", report_path)], inputs, overwrite=overwrite)
    with ExitStack() as stack:
        page = None if report_path is None else stack.enter_context(output_file(report_path))
        result = _evaluate(models, data, preprocess, labels, page, out, **options)
    if report_path is not None:
        out.say(f"wrote {report_path}")
        result["report"] = str(report_path)
    out.result(result)


def _evaluate(models: tuple[str, ...], data: str, preprocess: str | None, labels: str | None, page: Path | None,
              out: Output, *, samples: int | None, threads: int, shapes: InputChoices) -> dict[str, Any]:  # fmt: skip
    """Everything that is told, as plain values; the report is written to `page`."""
    rows: list[np.ndarray] = []
    results: list[tuple[int, int]] = []  # how many a model has, and axes of the first one
    loaded, names = [*zip(models, load_models(models, shapes), strict=True)], None
    records.tell_another_network(out, loaded)
    sources: list[Data] = []
    for source, model in loaded:
        check_weights(model, source)
        sources.append(data_of(data, preprocess, samples, model, out, dict(loaded)))
        reader = sources[-1].reader
        names = labels_of(labels, data) if names is None else names
        compiled = plan.compile(model, threads=threads)
        with out.progress(source, reader.count) as bar:
            made = _logits(compiled, ((batch, bar.step) for batch in reader), source)
        rows.append(made[0])
        names = names if samples is None else names[: len(made[0])]  # --samples takes the first ones
        results.append(made[1])
    classes = results[0][1] == 2 and rows[0].shape[1] > 1
    if names and not classes:
        raise OptionError(
            f"--labels: the first result of {models[0]!r} is no row of classes for each sample; expected (samples, "
            "classes). Leave out --labels to compare the models"
        )
    evaluated = [
        pages.Evaluated(
            source,
            one,
            _scored(one, rows[0], names, source, f"--labels {labels}", sources[0].reader.named),
            stored_bytes(model.graph),
            bool(names),
            classes,
            count,
        )
        for one, (source, model), (count, _) in zip(rows, loaded, results, strict=True)
    ]
    columns, table = _table(evaluated)
    out.table(f"{counted(len(rows[0]), 'sample')}, compared with {models[0]}", columns, table)
    headline, warnings = pages.conclusion(evaluated), small_score(len(rows[0]), counted(LEAST, "sample"))
    tell_suspicious(out, warnings)
    out.say(headline)
    runs = pages.runs_of(loaded)
    if page is not None:
        scores = [columns, *([cell_text(cell) for cell in row] for row in table)]
        page.write_text(pages.evaluation_page(evaluated, scores, sources[0], labels, runs), encoding="utf-8")
    result = [
        {"model": x.name, **x.score.describe(), "bytes": x.size, **_differences(x.logits, rows[0])} for x in evaluated
    ]
    if not classes:
        result = [{**one, "agreement": None, "differing": None, "differences": []} for one in result]
    if not names:
        result = [{**one, "top1": None, "top5": None} for one in result]
    return {"data": data, "labels": labels, "headline": headline, "warnings": warnings, "models": result}


def _logits(compiled: Any, inputs: Any, source: str) -> tuple[np.ndarray, tuple[int, int]]:
    """The first result for every sample, a row each; how many results there are, and the axes of the first one.

    Raises OptionError for data without a sample.
    """
    made, about = [], (0, 0)
    for batch, step in inputs:
        results = compiled(*batch)
        first = np.asarray(results[0], np.float32)
        rows = len(batch[0]) if np.shape(first)[:1] == np.shape(batch[0])[:1] else 1  # 1: of a network without a batch
        made.append(first.reshape(rows, -1))
        about = len(results), np.ndim(results[0])
        step()
    if not made:
        raise OptionError(f"evaluate: no sample for {source!r}; expected one at least")
    return np.concatenate(made), about


def _scored(logits: np.ndarray, first: np.ndarray, names: list[tuple[int, ...]] | None, source: str, option: str,
            named: Callable[[int], str]) -> Score:  # fmt: skip
    if logits.shape != first.shape:
        raise ShapeError(
            f"evaluate: {source!r} gives {counted(logits.shape[1], 'number')} for {counted(len(logits), 'sample')}, "
            f"the first model {first.shape[1]} for {len(first)}; compare models of the same results"
        )
    bad = np.flatnonzero(~np.isfinite(logits).all(1))
    if len(bad):
        raise QuantizationError(
            f"evaluate: {source!r} gives NaN or infinite results for {counted(len(bad), 'sample')} of {len(logits)}, "
            f"first number {bad[0] + 1}; `compare` tells at which value they begin"
        )
    if names and len(names) != len(logits):
        raise OptionError(
            f"{option}: {counted(len(names), 'label')} for {counted(len(logits), 'sample')}; expected one for each"
        )
    wrong = ((at, x) for at, one in enumerate(names or ()) for x in one if not 0 <= x < logits.shape[1])
    if found := next(wrong, None):
        raise OptionError(
            f"{option}: {named(found[0])} has class {found[1]}, and {source!r} gives "
            f"{counted(logits.shape[1], 'class')}; expected whole numbers from 0 to {logits.shape[1] - 1}"
        )
    return score(logits, first, names or [()] * len(logits))


def _differences(logits: np.ndarray, first: np.ndarray) -> dict[str, Any]:
    """Samples whose first class is another one than the first model's."""
    mine, theirs = logits.argmax(1), first.argmax(1)
    at = np.flatnonzero(mine != theirs)
    listed = [{"sample": int(i) + 1, "class": int(mine[i]), "first_model": int(theirs[i])} for i in at[:MOST]]
    return {"differing": len(at), "differences": listed}


def _table(models: Sequence[pages.Evaluated]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The columns of the scores, and a row for each model: counts of few samples, shares of many in percent."""
    few = models[0].score.count < FEW
    tops = (1, 5) if models[0].logits.shape[1] > 5 else (1,)  # any label is among the first five of five classes
    tops = tops if models[0].labelled else ()
    rows = []
    for one in models:
        x = one.score
        shares = [*({1: x.top1, 5: x.top5}[k] for k in tops), *([x.agreement] if one.classes else [])]
        cells = [share_of(share, x.count) if few else 100 * share for share in shares]
        ratio = "reference" if one is models[0] else "equal" if np.isinf(x.sqnr) else x.sqnr
        rows.append((one.name, *cells, ratio, x.cosine, one.size / 1e6))
    unit = "" if few else " %"
    top = [f"top-{k}{unit}" for k in tops]
    same = (f"same first class{unit}",) if models[0].classes else ()
    return ("model", *top, *same, "SQNR dB", "cosine", "MB"), rows
