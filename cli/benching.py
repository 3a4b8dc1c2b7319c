"""`mge-quantize bench`."""

import click
import numpy as np

from megengine import plan
from megengine.cli.app import common, examples
from megengine.cli.choices import FILE
from megengine.cli.common_options import data_option, preprocess_option
from megengine.cli.measuring import interleaved, with_integers
from megengine.cli.models import InputChoices, load_models, shape_option
from megengine.cli.output import Output
from megengine.cli.readers import Reader
from megengine.cli.sources import data_of
from megengine.core.dtype import is_float
from megengine.core.errors import OptionError
from megengine.core.text import counted
from megengine.traced_module import TracedModule


@click.command(
    epilog=examples(
        "bench net.onnx q.mgt",
        "bench net.onnx q.mgt --threads 2 --rounds 100 --json",
    )
)
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@data_option(required=False)
@preprocess_option
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 100000), default=30, show_default=True)
@shape_option
@common
def bench(
    models: tuple[str, ...],
    data: str | None,
    preprocess: str | None,
    threads: int,
    rounds: int,
    shapes: InputChoices,
    out: Output,
) -> None:
    """Time compiled plans of MODELs side by side: median CPU time of interleaved runs.

    The input is the first batch of --data, or random.
    """
    if preprocess is not None and data is None:
        raise OptionError("--preprocess: there is no --data to prepare; give both, or none for random input")
    runs, plans = {}, {}
    named = dict(zip(models, load_models(models, shapes), strict=True))
    for source, loaded in named.items():
        model = with_integers(loaded, out)
        plans[source] = plan.compile(model, threads=threads)
        inputs = (
            random_inputs(model) if data is None else _first(data_of(data, preprocess, 1, model, out, named).reader)
        )
        runs[source] = lambda p=plans[source], xs=inputs: p(*xs)
    medians = interleaved(runs, rounds=rounds)
    first = medians[models[0]]
    rows = [(name, median, median / first if first else None) for name, median in medians.items()]
    out.table(
        f"CPU time, {counted(threads, 'thread')}, median of {counted(rounds, 'round')}",
        ("model", "ms", "to the first"),
        rows,
    )
    out.result({"threads": threads, "rounds": rounds, "models": [dict(model=n, ms=m, ratio=r) for n, m, r in rows]})


def _first(reader: Reader) -> tuple[np.ndarray, ...]:
    for batch in reader:
        return batch
    raise OptionError(f"data {reader.name!r}: no batch; expected one at least")


def random_inputs(model: TracedModule) -> list[np.ndarray]:
    """Seeded standard normal arrays (small integers for integer inputs) of the input shapes, at the example."""
    rng = np.random.default_rng(0)
    arrays = []
    for node in model.graph.inputs:
        dtype = np.dtype(node.spec.dtype)
        shape = node.spec.example.shape
        array = rng.standard_normal(shape) if is_float(dtype) else rng.integers(0, 2, shape)
        arrays.append(array.astype(dtype))
    return arrays
