"""`mge-quantize export`."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from megengine.cli import records
from megengine.cli.app import common, examples
from megengine.cli.choices import FILE, Choice
from megengine.cli.editing import KINDS, weights_of, write_model
from megengine.cli.models import InputChoices, chosen_graph, graph_option, load_calls, shape_option
from megengine.cli.output import Output, check_suffix
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.cli.replaying import repeat
from megengine.core.errors import OptionError
from megengine.quantization.checks import integer_form
from megengine.traced_module import TracedModule, lower

_HELD = {
    "integer": "integer ops: ONNX Runtime gives every value of the specification, slowly; --form qdq is for speed",
    "qdq": "quantize / dequantize pairs, which other runtimes compute in integers",
}


@click.command(
    epilog=examples(
        "export net.mgt -o resnet.onnx --opset 18",
        "export int8.mgt -o int8.onnx --form qdq",
        "export int8.mgt -o int8.py",
        "export int8.mgt -o net.c",
    )
)
@click.argument("source", type=FILE, metavar="MODEL")
@path_option("-o", "--output", required=True, help="File to write: .onnx, .mgt, .tm, .py or .c.")
@click.option(
    "--form",
    type=Choice(["stored", "qdq"]),
    default="stored",
    show_default=True,
    help="stored: what MODEL holds. qdq: the quantize / dequantize pairs of an integer network that ptq wrote, "
    "made again of the float network and the data, which are compared with the digests in MODEL.",
)
@click.option("--opset", type=click.IntRange(13), help="Of ONNX, 13 to the newest.  [default: what the network needs]")
@click.option("--model", type=FILE, help="For --form qdq: where the float network is now.  [default: where it was]")
@click.option("--data", type=FILE, help="For --form qdq: where the data is now.  [default: where it was]")
@graph_option
@overwrite_option
@shape_option
@common
def export(
    source: str,
    output: Path,
    form: str,
    opset: int | None,
    model: str | None,
    data: str | None,
    number: int | None,
    overwrite: bool,
    shapes: InputChoices,
    out: Output,
) -> None:
    """Write MODEL (.onnx, .tm, .mgt, .mge, or module.py:function) in the format of another suffix, as it is."""
    kinds = KINDS if form == "stored" else {".onnx": "QDQ for other runtimes"}
    check_suffix("--output", output, kinds)
    check_outputs([("--output", output), ("--output", weights_of(output))], [source], overwrite=overwrite)
    moved = {key: value for key, value in (("model", model), ("data", data)) if value is not None}
    if opset is not None and (output.suffix != ".onnx" or form == "qdq"):
        raise OptionError("--opset: holds for .onnx files of what MODEL stores; leave it out")
    if moved and form == "stored":
        raise OptionError("--model and --data: only --form qdq reads them; leave them out, or add --form qdq")
    traced = load_calls(source, shapes)
    if form == "qdq":
        _repeat(source, traced, moved, output, overwrite=overwrite)
        held = form
    else:
        traced = traced if number is None else lower(chosen_graph(traced, number))
        held = integer_form(lower(traced.graphs[0]).graph)
        with ExitStack() as files:
            write_model(traced, output, files, opset=opset)
    written = [str(path) for path in (output, weights_of(output)) if path is not None]
    out.say(f"wrote {', '.join(written)}")
    if output.suffix == ".onnx" and held in _HELD:
        out.say(f"it holds {_HELD[held]}")
    out.result({"model": source, "form": held, "written": written})


def _repeat(source: str, traced: TracedModule, moved: dict[str, Any], output: Path, *, overwrite: bool) -> None:
    """Make the network of a record again, as pairs."""
    record = records.from_metadata(traced.graphs[0].metadata, source)
    if record["command"] != "ptq":
        raise OptionError(
            f"--form qdq: {record['command']} made {source!r}, and only ptq writes pairs; without --form the file gets "
            "integer ops"
        )
    repeat(record, moved, output, overwrite=overwrite, quiet=True)
