"""`mge-quantize lint` and `mge-quantize diff`."""

import functools
import sys
from pathlib import Path

import click

from megengine.cli.app import EXIT_BAD, EXIT_USAGE, common, examples
from megengine.cli.choices import FILE
from megengine.cli.models import InputChoices, chosen_graph, load_calls, shape_option
from megengine.cli.output import Output, check_suffix, output_file
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.core.text import counted
from megengine.traced_module import lower
from megengine.traced_module.comparing.diff import diff as compare
from megengine.traced_module.comparing.report import lines
from megengine.traced_module.ir.lint import findings

COLOURS = {"added": "green", "removed": "red", "result": "dim"}
COLOURS |= dict.fromkeys(("changed", "rewired"), "yellow") | dict.fromkeys(("renamed", "moved"), "blue")
KINDS = {".svg": "a picture", ".html": "a page", ".json": "all fields", ".txt": "as it is printed"}


@click.command(
    epilog=examples(
        "lint net.onnx",
        "lint net.tm --json",
    )
)
@click.argument("model", type=FILE)
@shape_option
@common
def lint(model: str, shapes: InputChoices, out: Output) -> None:
    """List what is wrong or suspicious in MODEL.

    Graphs that contradict themselves, weights that are not finite, layers in training mode, values that were fixed by
    tracing, and what nothing uses. Exit code 1 if anything is found.
    """
    issues = findings(load_calls(model, shapes))
    if issues:
        out.table(model, ("kind", "module", "name", "finding"), [(f.kind, f.module, f.name, f.text) for f in issues])
    out.say(counted(len(issues), "finding") if issues else "nothing found")
    out.result({"model": model, "findings": [f.to_json() for f in issues]})
    if issues:
        sys.exit(EXIT_BAD)


@click.command(
    epilog=examples(
        "diff net.tm fused.tm -o fused.html",
    )
)
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@path_option("-o", "--output", help=".svg, .html, .json or .txt file to write.")
@overwrite_option
@shape_option
@functools.partial(common, bad=EXIT_USAGE)
def diff(old: str, new: str, output: Path | None, overwrite: bool, shapes: InputChoices, out: Output) -> None:
    """Tell what is different in the model NEW, seen from OLD.

    If one of them has calls of layers and the other ops only, ops are compared. Exit code 0 if they are equal, 1 if
    they differ, 2 if they cannot be compared.
    """
    check_suffix("--output", output, KINDS)
    check_outputs([("--output", output)], [old, new], overwrite=overwrite)
    models = [load_calls(source, shapes) for source in (old, new)]
    if len({chosen_graph(model, 1).arguments is None for model in models}) > 1:
        models = [lower(model) for model in models]
    difference = compare(*models)
    if output is not None:
        with output_file(output) as temporary:
            temporary.write_text(difference.content(output.suffix), encoding="utf-8")
    if not out.as_json:
        for kind, line in lines(difference.changes):
            out.say(line, COLOURS.get(kind, ""))
    out.result({"old": old, "new": new, **difference.to_json(), **({} if output is None else {"output": str(output)})})
    if difference:
        sys.exit(EXIT_BAD)
