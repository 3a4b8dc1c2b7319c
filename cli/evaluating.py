"""`mge-quantize evaluate`."""

from typing import Any

import click
import numpy as np

from megengine import plan
from megengine.cli.app import common, examples
from megengine.cli.evaluation import Score, logits_of, score
from megengine.cli.labels import labels_of
from megengine.cli.models import load_model, shape_option
from megengine.cli.output import Output
from megengine.cli.ptq import data_of, data_option, preprocess_option, samples_option
from megengine.core.errors import OptionError, ShapeError
from megengine.core.text import counted
from megengine.quantization import stored_bytes

MOST = 20  # differing samples that --json lists for a model


@click.command(epilog=examples("evaluate net.onnx q.mgt --data x.npy", "evaluate net.onnx q.mgt --data x.npy --json"))
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@data_option(required=True)
@preprocess_option
@samples_option
@click.option(
    "--labels",
    metavar="FILE",
    help="The classes of the samples: .npy, or .txt / .csv with a line for each sample (or each picture: its path, a "
    "comma, its class); spaces separate classes that are all right. Or the word folders: pictures lie in a folder for "
    "each class, in the order of names.",
)
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True)
@shape_option
@common
def evaluate(
    models: tuple[str, ...],
    data: str,
    preprocess: str | None,
    samples: int | None,
    labels: str | None,
    threads: int,
    shapes: tuple,
    out: Output,
) -> None:
    """Score MODELs side by side on the same data: top-1 and top-5 by labels, and likeness to the first of them."""
    rows: list[np.ndarray] = []
    sizes, names = [], None
    for source in models:
        model = load_model(source, shapes)
        reader = data_of(data, preprocess, samples, model, out).reader
        names = labels_of(labels, data, reader) if names is None else names
        compiled = plan.compile(model, threads=threads)
        with out.progress(source, reader.count) as bar:
            inputs = ((batch, bar.step) for batch in reader)
            rows.append(_logits(compiled, inputs, source))
        sizes.append(stored_bytes(model.graph))
    scores = [_scored(one, rows[0], names, source) for one, source in zip(rows, models, strict=True)]
    _show(out, models, scores, sizes, labelled=bool(names))
    result = [
        {"model": source, **one.describe(), "bytes": size, **_differences(logits, rows[0])}
        for source, one, size, logits in zip(models, scores, sizes, rows, strict=True)
    ]
    if not names:
        result = [{**one, "top1": None, "top5": None} for one in result]
    out.result({"data": data, "labels": labels, "models": result})


def _logits(compiled: Any, inputs: Any, source: str) -> np.ndarray:
    """The first result for every sample, a row each. Raises OptionError for data without a sample."""
    made = []
    for batch, step in inputs:
        made.append(logits_of(lambda x, rest=batch[1:]: compiled(x, *rest)[0], [batch[0]]))
        step()
    if not made:
        raise OptionError(f"evaluate: no sample for {source!r}; expected one at least")
    return np.concatenate(made)


def _scored(logits: np.ndarray, first: np.ndarray, names: list[tuple[int, ...]] | None, source: str) -> Score:
    if logits.shape != first.shape:
        raise ShapeError(
            f"evaluate: {source!r} gives {counted(logits.shape[1], 'number')} for {counted(len(logits), 'sample')}, "
            f"the first model {first.shape[1]} for {len(first)}; compare models of the same results"
        )
    if names and len(names) != len(logits):
        raise OptionError(
            f"--labels: {counted(len(names), 'label')} for {counted(len(logits), 'sample')}; expected one for each"
        )
    return score(logits, first, names or [()] * len(logits))


def _differences(logits: np.ndarray, first: np.ndarray) -> dict[str, Any]:
    """Samples whose first class is another one than the first model's."""
    mine, theirs = logits.argmax(1), first.argmax(1)
    at = np.flatnonzero(mine != theirs)
    listed = [{"sample": int(i) + 1, "class": int(mine[i]), "first_model": int(theirs[i])} for i in at[:MOST]]
    return {"differing": len(at), "differences": listed}


def _show(out: Output, models: tuple[str, ...], scores: list[Score], sizes: list[int], *, labelled: bool) -> None:
    rows = [
        (name, *((100 * x.top1, 100 * x.top5) if labelled else ()), 100 * x.agreement, x.sqnr, x.cosine, size / 1e6)
        for name, x, size in zip(models, scores, sizes, strict=True)
    ]
    top = ("top-1 %", "top-5 %") if labelled else ()
    title = f"{counted(scores[0].count, 'sample')}, compared with {models[0]}"
    out.table(title, ("model", *top, "same first class %", "SQNR dB", "cosine", "MB"), rows)
