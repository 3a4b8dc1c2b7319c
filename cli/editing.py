"""`mge-quantize edit`: makes edits in the order of the command line and writes the model or its source."""

import functools
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from megengine.cli.app import common, examples
from megengine.cli.choices import FILE
from megengine.cli.edit_options import EDIT_OPTIONS, EditOption, Session, take
from megengine.cli.inspecting import interface
from megengine.cli.models import InputChoices, chosen_graph, graph_option, listing, load_calls, shape_option
from megengine.cli.output import Output, check_folder, check_suffix, output_file
from megengine.cli.overwriting import check_outputs, overwrite_option, path_option
from megengine.convert import c, onnx
from megengine.core.errors import OptionError
from megengine.core.text import counted
from megengine.traced_module import TracedModule, lower
from megengine.traced_module.editing.flattening import flattened
from megengine.traced_module.formats import native as files
from megengine.traced_module.formats.tm_writing import save_tm
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.pictures.edit_page import to_edit_page
from megengine.traced_module.source import save_source

KINDS = {
    ".mgt": "our format",
    ".tm": "MegEngine's, for models of calls",
    ".onnx": "its ops, for other programs",
    ".py": "source, with weights beside it",
    ".c": "integers as C source, for programs without libraries",
}
# suffix -> writer of a model to a file, with the name that the file will have, and the opset for ONNX
_WRITERS: dict[str, Callable[[TracedModule, Path, str, int | None], None]] = {
    ".mgt": lambda model, path, name, opset: files.save(model, path),
    ".tm": lambda model, path, name, opset: save_tm(model, path),
    ".onnx": lambda model, path, name, opset: onnx.export(model, path, opset=opset),
    ".c": lambda model, path, name, opset: c.export(model, path, name=name),
}
ORDER = "megengine.edit.order"  # the edits in the order of the command line


class InOrder(click.Command):
    """Keeps the order of the edits, which click's parameters do not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words twice: for their values, and for their order."""
        rest = super().parse_args(ctx, list(args))
        if not ctx.resilient_parsing:
            values, _, order = self.make_parser(ctx).parse_args(args=list(args))
            ctx.meta[ORDER] = list(_in_order(values, order))
        return rest


def _in_order(options: Mapping[str, Any], order: Sequence[click.Parameter]) -> Iterator[tuple[EditOption, Any]]:
    """(option, value); adjacent values of an option that takes them together are one list."""
    edits = {_parameter(option): option for option in EDIT_OPTIONS}
    seen: Counter[str] = Counter()
    kept: list[Any] = []
    for i, parameter in enumerate(order):
        name = str(parameter.name)
        if name not in edits:
            continue
        option = edits[name]
        value = options[name][seen[name]] if option.value else None
        seen[name] += 1
        if not option.together:
            yield option, value
            continue
        kept.append(value)
        following = next((p.name for p in order[i + 1 :] if p.name in edits), None)
        if following != name:
            yield option, kept
            kept = []


def _parameter(option: EditOption) -> str:
    return option.names[0].removeprefix("--").replace("-", "_") + "_edit"


def edit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all edit options to a command."""
    for option in reversed(EDIT_OPTIONS):
        how: dict[str, Any] = {"metavar": option.value, "multiple": True} if option.value else {"is_flag": True}
        function = click.option(*option.names, _parameter(option), help=option.run.__doc__, **how)(function)
    return function


EXAMPLES = (
    "edit net.tm -o fused.tm --passes FuseConvBn --rename fc_out=logits --save-log edits.log",
    "edit copy.tm -o same.tm --log edits.log",
    "edit net.tm -o six.mgt --insert 'relu_out=F.minimum(_, 6)' --set flatten_out:start_axis=1",
    "edit net.tm -o part.mgt --flatten --extract layer2_out:layer4_out",
    "edit net.mgt -o net.py",
    "edit net.onnx --page edit.html",
)


@click.command(cls=InOrder, epilog=examples(*EXAMPLES))
@click.argument("model", type=FILE)
@path_option("-o", "--output", help=".mgt, .tm, .onnx, .py or .c file to write.")
@overwrite_option
@click.option("--flatten", is_flag=True, help="Before all: put the calls of submodules in the place of their calls.")
@click.option("--ops", is_flag=True, help="Before all: go from calls to the ops that they run.")
@edit_options
@path_option("--save-log", help="Write all of these edits as a log.")
@path_option("--page", metavar="PAGE.html", help="Write a page in which MODEL is edited, and which saves a log.")
@graph_option
@shape_option
@functools.partial(common, recipe=False)
def edit(
    model: str,
    output: Path | None,
    overwrite: bool,
    flatten: bool,
    ops: bool,
    save_log: Path | None,
    page: Path | None,
    number: int | None,
    shapes: InputChoices,
    out: Output,
    **edits: Any,
) -> None:
    """Edit MODEL and write it to another file.

    Edits are made in the order of the command line. All of them are checked, and nothing is written if one is
    refused. With --page nothing is edited here: the page shows the graph, and saves a log for --log. NODE is the name
    of a value, or its path, which tells values of submodules apart; EXPR is another node, or calls of functions,
    methods and operators on nodes, in which _ is the node itself.
    """
    steps = click.get_current_context().meta[ORDER]
    _check_words(output, save_log, page, steps)
    outputs = [("--output", output), ("--output", weights_of(output)), ("--save-log", save_log), ("--page", page)]
    check_outputs(outputs, [model, *_read_by(steps)], overwrite=overwrite)
    traced = load_calls(model, shapes)
    if ops:
        traced, number = lower(chosen_graph(traced, number)), None
    elif flatten:
        traced, number = flattened(traced, chosen_graph(traced, number)), None
    graph = chosen_graph(traced, number)
    if page is not None:
        _write_page(model, graph, page, _before_edits(flatten, ops, number, shapes), out)
        return
    graph.keep_edits()
    session = Session(traced, graph, "" if flatten else listing(model, shapes, ops=ops))
    for option, value in steps:
        take(session, option, value)
    if session.narrowed:
        session.graph.compile()  # at the end: a later edit may use a layer that an earlier one left unused
    _finish(model, traced, output, save_log, out)


def _check_words(output: Path | None, save_log: Path | None, page: Path | None, steps: Sequence[Any]) -> None:
    """Raises OptionError for options that do not go together."""
    if page is not None:
        check_suffix("--page", page, {".html": "a page"})
        if output is not None or save_log is not None or steps:
            words = ["--output"] * (output is not None) + ["--save-log"] * (save_log is not None)
            words += [option.names[0] for option, _ in steps]
            raise OptionError(f"--page: edits nothing itself; leave out {words[0]}, or edit first and give the result")
        return
    if output is None and save_log is None:
        raise OptionError(
            "--output: expected a file to write (or --save-log, to keep the edits only, or --page, to make them)"
        )
    check_suffix("--output", output, KINDS)


def _before_edits(flatten: bool, ops: bool, number: int | None, shapes: InputChoices) -> list[str]:
    """The words of the line that say which graph is edited."""
    words = ["--ops"] if ops else ["--flatten"] if flatten else []
    return [*words, *(["--graph", str(number)] if number is not None else []), *shapes.words()]


def _write_page(model: str, graph: InternalGraph, page: Path, words: Sequence[str], out: Output) -> None:
    graph.keep_edits()
    name = f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', graph.name)}.log"
    line = shlex.join(["mge-quantize", "edit", model, *words, "--log", name, "-o", "edited.mgt"])
    with output_file(page) as path:
        path.write_text(to_edit_page(graph, line=line), encoding="utf-8")
    out.say(f"wrote {page}; a log that it saves is replayed by `{line}`")
    out.result({"model": model, "written": [str(page)], "line": line})


def weights_of(output: Path | None) -> Path | None:
    """The file that is written beside Python source."""
    return output.with_suffix(".pkl") if output is not None and output.suffix == ".py" else None


def _read_by(edits: Sequence[tuple[EditOption, Any]]) -> Iterator[str]:
    """The files that edits read: logs, and modules with layers."""
    for option, value in edits:
        if option.value.endswith("FILE"):
            yield value
        elif "FILE.py:" in option.value:
            yield value.partition("=")[2].strip()


def _finish(model: str, traced: TracedModule, output: Path | None, save_log: Path | None, out: Output) -> None:
    """Write the files, and report the edits."""
    log = traced.edit_log
    with ExitStack() as files:
        if output is not None:
            write_model(traced, output, files)
        if save_log is not None:
            log.save(files.enter_context(output_file(save_log)))
    written = [str(path) for path in (output, weights_of(output), save_log) if path is not None]
    edits = [record.to_text() for record in log.steps]
    for line in edits:
        out.say(line)
    out.say(f"{counted(len(log), 'edit')}; wrote {', '.join(written)}")
    graphs = [
        {kind: [interface(n) for n in getattr(g, kind) if isinstance(n, TensorNode)] for kind in ("inputs", "outputs")}
        for g in traced.graphs
    ]
    out.result({"model": model, "edits": edits, "graphs": graphs, "written": written})


def write_model(model: TracedModule, output: Path, opened: ExitStack, *, opset: int | None = None) -> None:
    """Write a model in the format of a suffix, to a temporary file that takes its place when `opened` is left."""
    if output.suffix == ".py":
        check_folder(output)
        save_source(model, output)
        return
    path = opened.enter_context(output_file(output))
    _WRITERS[output.suffix](model, path, output.stem, opset)
