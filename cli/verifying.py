"""`mge-quantize verify`."""

import shlex

import click

from megengine.cli.app import FailedError, common, examples
from megengine.cli.choices import FILE
from megengine.cli.common_options import checked_device, data_options
from megengine.cli.measuring import verify_line, with_integers
from megengine.cli.models import InputChoices, load_model, shape_option
from megengine.cli.output import Output
from megengine.cli.sources import data_of
from megengine.quantization.checks import require_integers
from megengine.quantization.checks import verify as check


@click.command(
    epilog=examples(
        "verify q.mgt --data photos",
        "verify q.mgt --data x.npy --threads 1 --threads 4 --json",
    )
)
@click.argument("model", type=FILE)
@data_options(required=True)
@click.option(
    "--threads", multiple=True, type=click.IntRange(1, 256), default=(1, 2), show_default=True, help="Repeat."
)
@click.option("--device", callback=checked_device, metavar="NAME", help='Run there too: "gpu0".')
@shape_option
@common
def verify(
    model: str,
    data: str,
    preprocess: str | None,
    samples: int | None,
    threads: tuple[int, ...],
    device: str | None,
    shapes: InputChoices,
    out: Output,
) -> None:
    """Check that specification, eager run and compiled plan of the quantized MODEL agree to zero steps."""
    traced = load_model(model, shapes)
    remedies = (
        f"mge-quantize ptq {shlex.quote(model)} --data ... -o q.mgt",
        "there is nothing to prove: no layer is integer",
    )
    traced = with_integers(traced, out)
    require_integers(traced.graph, f"model {model!r}", remedies)
    source = data_of(data, preprocess, samples or 8, traced, out)
    reader = source.reader
    with out.progress("verify", reader.count) as bar:
        result = check(traced, reader, threads=threads, devices=[device] if device else (), progress=bar.show)
    rows = [(run.run, run.values, run.steps, run.node or None, run.op or None) for run in result.runs]
    out.table("Against the specification", ("run", "values that differ", "steps", "first node", "op"), rows)
    out.say(verify_line(result))
    out.result({"model": model, "preprocess": source.describe(), **result.to_json()})
    if not result.exact:
        raise FailedError(verify_line(result))
