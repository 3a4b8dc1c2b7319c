"""`mge-quantize replay`."""

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from megengine.cli import recipes, records
from megengine.cli.app import COMMANDS, FailedError, common, examples, group
from megengine.cli.choices import FILE
from megengine.cli.models import load_model
from megengine.cli.output import Output, check_suffix, check_writable
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.core.errors import FileFormatError, OptionError, nearest

_KINDS = {".mgt": "our format", ".onnx": "QDQ for other runtimes"}


@click.command(epilog=examples("replay q.mgt -o again.mgt", "replay q.mgt -o again.mgt --data photos"))
@click.argument("result", type=FILE)
@path_option("-o", "--output", required=True, help="Model to write, of the same kind as RESULT.")
@click.option("--model", type=FILE, help="Where the float model is now.  [default: where it was]")
@click.option("--data", type=FILE, help="Where the data is now.  [default: where it was]")
@click.option(
    "--labels", type=FILE, help="Where the labels are now, in the order of the data.  [default: where they were]"
)
@click.option("--workers", type=click.IntRange(1), help="Processes that calibrate, where the command has them.")
@overwrite_option
@common
def replay(result: str, output: Path, overwrite: bool, out: Output, **places: Any) -> None:
    """Repeat the command that wrote RESULT (.mgt or .onnx), and tell whether the same bytes come out.

    The model and the data, in any order, are compared with the digests that RESULT stores. Exit code 1 if the bytes
    differ.
    """
    suffix = Path(result).suffix
    check_suffix("RESULT", Path(result), _KINDS)
    record = records.from_metadata(load_model(result).graph.metadata, result)
    command_of(record)  # refused before anything is written
    check_suffix("--output", output, {suffix: _KINDS[suffix]})
    changed = [
        f"{name} {was}, now {now}" for name, was in record["versions"].items() if (now := records.version(name)) != was
    ]
    check_outputs([("--output", output)], [result], overwrite=overwrite)
    check_writable(output)
    if changed:
        out.say(f"warning: made with other versions ({'; '.join(changed)}): bytes may differ", "yellow")
    moved = {key: value for key, value in places.items() if value is not None}
    repeat(record, moved, output, overwrite=overwrite, quiet=out.as_json)
    same = Path(result).read_bytes() == output.read_bytes()
    line = f"{output}: {'the same bytes as' if same else 'other bytes than'} {result}"
    out.say(line)
    out.result({"result": result, "output": str(output), "same": same, "record": record})
    if not same:
        raise FailedError(line)


def repeat(record: dict[str, Any], moved: dict[str, Any], output: Path, *, overwrite: bool, quiet: bool) -> None:
    """Run the command of a record, with the model or the data at another place, or in other processes."""
    here, command, name = click.get_current_context(), command_of(record), record["command"]
    why = {"workers": "which runs in one process", "labels": "which takes no labels"}
    for key in moved.keys() - recipes.settable(command).keys():
        reason = why.get(key, "which has no such option")
        raise OptionError(f"{key}: {name} made this model, {reason}; leave that option out")
    values = recipes.defaults(command, {**record["recipe"], **moved}, "the record")
    words = ["-o", str(output), *(["--overwrite"] if overwrite else [])]
    with redirect_stdout(sys.stderr) if quiet else nullcontext():
        ctx = command.make_context(name, words, parent=here, default_map=values)
        ctx.meta[records.REPEATED] = record
        with ctx:
            command.invoke(ctx)


def command_of(record: dict[str, Any]) -> click.Command:
    """The command that a record names. Raises FileFormatError if there is none."""
    name = record["command"]
    if name not in COMMANDS:
        raise FileFormatError(f"its record names the command {name!r}{nearest(name, COMMANDS)}; update megengine")
    command = group.get_command(click.get_current_context(), name)
    assert command is not None
    return command
